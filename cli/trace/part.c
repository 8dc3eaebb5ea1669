/* part.c - reads and validates the trace file of a process. */
#include "cli/trace/timeline.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JOB_LETTERS = 47 }; /* of a job's name that all its processes store */

/* ---- checking -------------------------------------------------------------------------------- */
static const char *what_is_wrong(const trace_head *h, uint64_t size)
{
    if (size < trace_pages(sizeof *h)) return "it is too short";
    if (memcmp(h->magic, TRACE_PART_MAGIC, sizeof h->magic) != 0) return "it is not a trace file";
    if (h->version != TRACE_PART_VERSION) return "it was written by another version of Penstock";
    const uint64_t events = h->ring_events;
    if (h->head_bytes != trace_pages(sizeof *h) || events < TRACE_EVENTS_MIN ||
        events > TRACE_EVENTS_MAX || (events & (events - 1)) != 0 ||
        h->ring_bytes != TRACE_PAGE + trace_pages(events * sizeof(trace_event)))
        return "its sizes are invalid";
    return NULL;
}

static void end_texts(trace_head *h)
{
    h->host[sizeof h->host - 1] = h->job[sizeof h->job - 1] = '\0';
    for (int i = 0; i < TRACE_LABELS_MAX; i++) h->label[i].text[TRACE_NAME_BYTES - 1] = '\0';
}

static trace_ring *ring_at(const timeline_part *p, uint32_t i)
{
    char *first = (char *)p->head + p->head->head_bytes;
    return (trace_ring *)(void *)(first + i * p->head->ring_bytes);
}

static bool is_believable(const trace_clock_sample *s)
{
    return s->at_ns <= TIMELINE_NS_MAX && s->error_ns <= TIMELINE_NS_MAX &&
           s->offset_ns <= (int64_t)TIMELINE_NS_MAX && s->offset_ns >= -(int64_t)TIMELINE_NS_MAX;
}

static pen_status look_at_clock(timeline_part *p, pen_error *why)
{
    trace_clock *c               = &p->head->clock;
    uint32_t n                   = atomic_load(&c->n);
    const trace_clock_sample own = {.offset_ns = p->head->own_offset_ns};
    if (!is_believable(&own)) p->head->own_offset_ns = 0;
    if (n > TRACE_CLOCK_SAMPLES) n = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!is_believable(&c->sample[i])) n = 0;
    p->clock = malloc((n + 1) * sizeof *p->clock);
    if (p->clock == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a clock's samples");
    memcpy(p->clock, c->sample, n * sizeof *p->clock);
    p->n_samples = trace_clock_prune(p->clock, n);
    return PEN_OK;
}

static pen_status map(const char *path, timeline_part *p, pen_error *why)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        why_set(why, PEN_STORE, "cannot read %s: %m", path);
        if (fd >= 0) close(fd);
        return PEN_STORE;
    }
    p->size = (uint64_t)st.st_size;
    void *data =
        p->size > 0 ? mmap(NULL, p->size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    const char *wrong = data == MAP_FAILED ? "it is empty" : what_is_wrong(data, p->size);
    if (wrong != NULL && data != MAP_FAILED) munmap(data, p->size);
    if (wrong != NULL) return why_set(why, PEN_CORRUPT, "%s: %s", path, wrong);
    p->head = data;
    return PEN_OK;
}

static pen_status check_job(const timeline *t, const timeline_part *p, pen_error *why)
{
    for (uint32_t i = 0; i < t->n_parts; i++) {
        const char *other = t->part[i].head->job;
        if (other[0] == '\0' || p->head->job[0] == '\0' ||
            strncmp(other, p->head->job, JOB_LETTERS) == 0)
            continue;
        return why_set(why, PEN_MISMATCH, "%s belongs to job %.63s, but %s to job %.63s",
                       t->part[i].path, other, p->path, p->head->job);
    }
    return PEN_OK;
}

static void unmap(timeline_part *p)
{
    if (p->head != NULL) munmap(p->head, p->size);
    free(p->clock);
}

pen_status timeline_add(timeline *t, const char *path, pen_error *why)
{
    timeline_part p = {0};
    snprintf(p.path, sizeof p.path, "%s", path);
    if (map(path, &p, why) != PEN_OK) return why->status;
    end_texts(p.head);
    const uint64_t room = (p.size - p.head->head_bytes) / p.head->ring_bytes;
    p.n_rings           = atomic_load(&p.head->n_rings);
    if (p.n_rings > room) p.n_rings = (uint32_t)room;
    if (p.n_rings > TRACE_RINGS_MAX) p.n_rings = TRACE_RINGS_MAX;
    p.role = atomic_load(&p.head->role);
    p.rank = atomic_load(&p.head->rank);
    for (uint32_t i = 0; i < p.n_rings; i++) ring_at(&p, i)->name[TRACE_NAME_BYTES - 1] = '\0';
    pen_status status = look_at_clock(&p, why);
    if (status == PEN_OK) status = check_job(t, &p, why);
    if (status == PEN_OK && VEC_MORE(t->part, t->n_parts)) {
        t->part[t->n_parts++] = p;
        return PEN_OK;
    }
    unmap(&p);
    return status != PEN_OK ? status : why_set(why, PEN_NO_MEMORY, "no memory for %s", path);
}

static int is_part(const struct dirent *entry)
{
    const size_t n = strlen(entry->d_name), suffix = strlen(TRACE_PART_SUFFIX);
    return n > suffix && strcmp(entry->d_name + n - suffix, TRACE_PART_SUFFIX) == 0;
}

pen_status timeline_add_folder(timeline *t, const char *path, pen_error *why)
{
    struct dirent **entry;
    const int n       = scandir(path, &entry, is_part, alphasort);
    pen_status status = PEN_OK;
    if (n < 0) return why_set(why, PEN_STORE, "cannot read the folder %s: %m", path);
    if (n == 0)
        status = why_set(why, PEN_NOT_FOUND, "the folder %s has no parts of a timeline (*%s)", path,
                         TRACE_PART_SUFFIX);
    for (int i = 0; i < n; i++) {
        char file[1200];
        snprintf(file, sizeof file, "%.500s/%.255s", path, entry[i]->d_name);
        if (status == PEN_OK) status = timeline_add(t, file, why);
        free(entry[i]);
    }
    free(entry);
    return status;
}

/* ---- events --------------------------------------------------------------------------------- */
uint64_t timeline_shifted(const timeline_part *p, uint64_t at_ns)
{
    const int64_t offset = p->n_samples > 0 ? trace_clock_offset(p->clock, p->n_samples, at_ns)
                                            : p->head->own_offset_ns;
    return at_ns + (uint64_t)offset;
}

static bool makes_sense(const trace_event *e)
{
    if (e->kind >= TRACE_KINDS || e->begun_ns == 0 || e->label > TRACE_LABELS_MAX) return false;
    if (e->begun_ns > TIMELINE_NS_MAX || e->ended_ns > TIMELINE_NS_MAX ||
        e->bytes > TIMELINE_NS_MAX)
        return false;
    return trace_rows[e->kind].shape == TRACE_IS_MOMENT || e->ended_ns >= e->begun_ns;
}

/* Finds the line of operations in flight of one kind, or adds one; each thread has its own.  False: no memory. */
static bool find_line(timeline *t, const timeline_line *wanted, uint32_t since, uint32_t *line)
{
    for (*line = since; *line < t->n_lines; ++*line) {
        const timeline_line *l = &t->line[*line];
        if (wanted->is_flights && l->is_flights && strcmp(l->name, wanted->name) == 0 &&
            l->role == wanted->role && l->rank == wanted->rank)
            return true;
    }
    if (!VEC_MORE(t->line, t->n_lines)) return false;
    t->line[t->n_lines++] = *wanted;
    return true;
}

static bool take_event(timeline *t, timeline_part *p, const trace_event *e, uint32_t thread_line,
                       uint32_t first_line)
{
    const trace_row *row = &trace_rows[e->kind];
    timeline_span s      = {.begun_ns = timeline_shifted(p, e->begun_ns),
                            .step     = e->step,
                            .bytes    = e->bytes,
                            .label    = e->label > 0 ? p->head->label[e->label - 1].text : "",
                            .shard    = e->shard,
                            .rank     = e->rank,
                            .line     = thread_line,
                            .kind     = e->kind};
    s.ended_ns = row->shape == TRACE_IS_MOMENT ? s.begun_ns : timeline_shifted(p, e->ended_ns);
    if (s.begun_ns > 2 * TIMELINE_NS_MAX || s.ended_ns > 2 * TIMELINE_NS_MAX ||
        s.ended_ns < s.begun_ns) {
        p->lost++; /* out of range: invalid clock */
        return true;
    }
    const uint64_t last = row->shape == TRACE_IS_MOMENT ? e->begun_ns : e->ended_ns;
    if (p->kept == 0 || e->begun_ns < p->begun_ns) p->begun_ns = e->begun_ns;
    if (last > p->ended_ns) p->ended_ns = last;
    p->kept++;
    if (row->shape == TRACE_IS_FLIGHT) {
        timeline_line l = t->line[thread_line];
        l.is_flights    = true;
        snprintf(l.name, sizeof l.name, "%s", row->name);
        if (!find_line(t, &l, first_line, &s.line)) return false;
    }
    if (!VEC_MORE(t->span, t->n_spans)) return false;
    t->span[t->n_spans++] = s;
    return true;
}

/* The oldest event of a full ring may be half overwritten, so it is skipped. */
bool timeline_events(const timeline_part *p, uint32_t ring, timeline_event_fn fn, void *user,
                     uint64_t *lost)
{
    const trace_ring *r      = ring_at(p, ring);
    const trace_event *event = (const trace_event *)(const void *)((const char *)r + TRACE_PAGE);
    const uint64_t room = p->head->ring_events, said = atomic_load(&r->written);
    const uint64_t written = said < TIMELINE_NS_MAX ? said : 0;
    const uint64_t first   = written < room ? 0 : written - room + 1;
    *lost += first;
    for (uint64_t i = first; i < written; i++) {
        const trace_event *e = &event[i & (room - 1)];
        if (!makes_sense(e))
            ++*lost;
        else if (!fn(user, e))
            return false;
    }
    return true;
}

typedef struct {
    timeline *t;
    timeline_part *part;
    uint32_t line, first_line;
} taker;

static bool take(void *user, const trace_event *e)
{
    const taker *to = user;
    return take_event(to->t, to->part, e, to->line, to->first_line);
}

static bool take_ring(timeline *t, uint32_t part, uint32_t ring, uint32_t first_line)
{
    timeline_part *p    = &t->part[part];
    const trace_ring *r = ring_at(p, ring);
    timeline_line l     = {.part = part,
                           .role = r->role != 0 ? r->role : p->role,
                           .rank = r->role != 0 ? r->rank : p->rank};
    taker to            = {t, p, 0, first_line};
    snprintf(l.name, sizeof l.name, "%s", r->name);
    return find_line(t, &l, first_line, &to.line) && timeline_events(p, ring, take, &to, &p->lost);
}

bool timeline_take(timeline *t, uint32_t part)
{
    const uint32_t first_line = t->n_lines;
    bool is_all               = true;
    for (uint32_t k = 0; k < t->part[part].n_rings && is_all; k++)
        is_all = take_ring(t, part, k, first_line);
    return is_all;
}

void timeline_free(timeline *t)
{
    for (uint32_t i = 0; i < t->n_parts; i++) unmap(&t->part[i]);
    free(t->part);
    free(t->line);
    free(t->span);
    free(t->text);
    *t = (timeline){0};
}
