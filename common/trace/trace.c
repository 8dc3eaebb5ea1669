/* trace.c - records spans, and their file. */
#include "common/trace/trace_part.h"

#include "common/base/why.h"
#include "common/containers/hash.h"
#include "common/system/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MARKS_MAX = 32, PATH_BYTES = 600 };

/* clang-format off */
const trace_row trace_rows[TRACE_KINDS] = {
#define X(id, name, shape, record, doc) {name, TRACE_IS_##shape, record, doc},
    TRACE_LIST(X)
#undef X
};
/* clang-format on */

/* The part of this process.  Stays mapped to the end: any thread may be writing a record. */
atomic_bool trace_flag;
static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* of the fields below, and of new labels */
static trace_head *part;
static int part_fd = -1;

typedef struct {
    uint64_t begun_ns;
    uint16_t label;
} open_mark;

static _Thread_local struct {
    trace_ring *ring;
    bool has_none; /* no room for its ring */
    char name[TRACE_NAME_BYTES];
    int32_t role, rank;
    uint32_t n_marks;
    open_mark mark[MARKS_MAX];
} me;

/* ---- the scheduler's clock ------------------------------------------------------------------- */
static uint64_t wall_began_ns; /* offset of this clock */

static void look_at_wall(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    wall_began_ns =
        (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec - clock_ns(&clock_real);
}

static uint64_t wall_offset(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_at_wall);
    return wall_began_ns;
}

uint64_t trace_wall_ns(void)
{
    return wall_offset() + clock_ns(&clock_real);
}

/* ---- the file -------------------------------------------------------------------------------- */
/* Allocates the file at once: a full disk under a mapped page would kill the process. */
static void *map_more(int fd, uint64_t at, uint64_t bytes)
{
    struct rlimit bound;
    if (getrlimit(RLIMIT_FSIZE, &bound) == 0 && bound.rlim_cur != RLIM_INFINITY &&
        at + bytes > bound.rlim_cur) {
        errno = EFBIG; /* the call would raise a signal */
        return NULL;
    }
    const int error = posix_fallocate(fd, (off_t)at, (off_t)bytes);
    if (error != 0) {
        errno = error;
        return NULL;
    }
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    return data != MAP_FAILED ? data : NULL;
}

static pen_status make_file(const char *file, const char *who, int32_t rank, int *fd,
                            pen_error *why)
{
    char path[PATH_BYTES], name[TRACE_NAME_BYTES + 96], host[TRACE_NAME_BYTES] = "host",
                                                        number[16] = "";
    pen_error inner;
    if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    if (rank >= 0) snprintf(number, sizeof number, "-%d", rank);
    snprintf(path, sizeof path, "%.400s" TRACE_PARTS_SUFFIX, file);
    const int folder = own_folder_open(AT_FDCWD, path, path, OWN_FOLDER, &inner);
    if (folder < 0)
        return why_set(why, PEN_STORE,
                       "no folder for the timeline: %s; trace needs a file in a folder that exists",
                       inner.text);
    snprintf(name, sizeof name, "%s%s-%s-%d" TRACE_PART_SUFFIX, who, number, host, (int)getpid());
    *fd = own_file_open(folder, name, O_TRUNC);
    close(folder);
    return *fd >= 0 ? PEN_OK
                    : why_set(why, PEN_STORE, "cannot write the timeline to %s/%s: %m", path, name);
}

static void fill_head(trace_head *h, uint64_t events, pen_role role, int32_t rank)
{
    h->version     = TRACE_PART_VERSION;
    h->head_bytes  = (uint32_t)trace_pages(sizeof *h);
    h->ring_events = TRACE_EVENTS_MIN;
    while (h->ring_events < events && h->ring_events < TRACE_EVENTS_MAX) h->ring_events *= 2;
    h->ring_bytes    = TRACE_PAGE + trace_pages(h->ring_events * sizeof(trace_event));
    h->role          = (int)role;
    h->rank          = rank;
    h->pid           = (int32_t)getpid();
    h->own_offset_ns = (int64_t)wall_offset();
    if (gethostname(h->host, sizeof h->host - 1) != 0) h->host[0] = '\0';
    trace_clock_init(&h->clock);
    memcpy(h->magic, TRACE_PART_MAGIC, sizeof h->magic); /* last: marks it as complete */
}

static pen_status make_part(const char *file, uint64_t events, const char *who, pen_role role,
                            int32_t rank, pen_error *why)
{
    int fd = -1;
    if (make_file(file, who, rank, &fd, why) != PEN_OK) return why->status;
    trace_head *head = map_more(fd, 0, trace_pages(sizeof *head));
    if (head == NULL) {
        why_set(why, PEN_STORE, "no room for the timeline %.200s: %m", file);
        close(fd);
        return PEN_STORE;
    }
    fill_head(head, events, role, rank);
    part    = head;
    part_fd = fd;
    atomic_store(&trace_flag, true);
    return PEN_OK;
}

pen_status trace_open(const char *file, uint64_t events, const char *who, pen_role role,
                      int32_t rank, pen_error *why)
{
    pthread_mutex_lock(&lock);
    const pen_status status = part != NULL ? PEN_OK : make_part(file, events, who, role, rank, why);
    pthread_mutex_unlock(&lock);
    return status;
}

void trace_who(pen_role role, int32_t rank, const char *job)
{
    if (!trace_on()) return;
    pthread_mutex_lock(&lock);
    atomic_store(&part->role, (int)role);
    atomic_store(&part->rank, rank);
    snprintf(part->job, sizeof part->job, "%s", job);
    pthread_mutex_unlock(&lock);
}

/* ---- rings ----------------------------------------------------------------------------------- */
static trace_ring *new_ring(void)
{
    const uint32_t n = atomic_load(&part->n_rings);
    if (n == TRACE_RINGS_MAX) return NULL;
    trace_ring *r = map_more(part_fd, part->head_bytes + n * part->ring_bytes, part->ring_bytes);
    if (r == NULL) return NULL;
    r->role   = me.role;
    r->rank   = me.rank;
    r->thread = (int32_t)syscall(SYS_gettid);
    if (me.name[0] != '\0')
        snprintf(r->name, sizeof r->name, "%s", me.name);
    else
        pthread_getname_np(pthread_self(), r->name, sizeof r->name);
    atomic_store_explicit(&part->n_rings, n + 1, memory_order_release);
    return r;
}

static trace_ring *ring_of_mine(void)
{
    if (me.ring != NULL || me.has_none) return me.ring;
    pthread_mutex_lock(&lock);
    me.ring     = new_ring();
    me.has_none = me.ring == NULL;
    pthread_mutex_unlock(&lock);
    return me.ring;
}

void trace_thread(const char *name, pen_role role, int32_t rank)
{
    snprintf(me.name, sizeof me.name, "%s", name);
    me.role = (int32_t)role;
    me.rank = rank;
}

/* ---- labels ---------------------------------------------------------------------------------- */
/* The slot of the label, or a free slot for it; -1: neither. */
static int find_label(uint32_t hash, const char *text)
{
    for (uint32_t i = 0; i < TRACE_LABELS_MAX; i++) {
        const uint32_t at    = (hash + i) % TRACE_LABELS_MAX;
        const trace_label *l = &part->label[at];
        const uint32_t there = atomic_load_explicit(&l->hash, memory_order_acquire);
        if (there == 0) return (int)at;
        if (there == hash && strncmp(l->text, text, TRACE_NAME_BYTES - 1) == 0) return (int)at;
    }
    return -1;
}

static int add_label(uint32_t hash, const char *text)
{
    pthread_mutex_lock(&lock);
    const int at = find_label(hash, text);
    if (at >= 0 && atomic_load(&part->label[at].hash) == 0) {
        snprintf(part->label[at].text, TRACE_NAME_BYTES, "%s", text);
        atomic_store_explicit(&part->label[at].hash, hash, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return at;
}

static uint16_t label_of(const char *text)
{
    if (text == NULL || text[0] == '\0') return 0;
    const uint32_t h    = (uint32_t)hash_bytes(text, strnlen(text, TRACE_NAME_BYTES - 1));
    const uint32_t hash = h != 0 ? h : 1;
    int at              = find_label(hash, text);
    if (at >= 0 && atomic_load_explicit(&part->label[at].hash, memory_order_acquire) == 0)
        at = add_label(hash, text);
    if (at < 0) atomic_fetch_add_explicit(&part->unnamed, 1, memory_order_relaxed);
    return (uint16_t)(at + 1);
}

/* ---- records --------------------------------------------------------------------------------- */
static void put(const trace_event *e)
{
    trace_ring *r = ring_of_mine();
    if (r == NULL) {
        atomic_fetch_add_explicit(&part->unwritten, 1, memory_order_relaxed);
        return;
    }
    const uint64_t n                    = atomic_load_explicit(&r->written, memory_order_relaxed);
    trace_event *events                 = (trace_event *)(void *)((char *)r + TRACE_PAGE);
    events[n & (part->ring_events - 1)] = *e;
    atomic_store_explicit(&r->written, n + 1, memory_order_release);
}

void trace_write(trace_kind kind, uint64_t begun_ns, uint64_t ended_ns, const trace_note *note)
{
    const trace_event e = {.begun_ns = begun_ns,
                           .ended_ns = ended_ns,
                           .step     = note->step,
                           .bytes    = note->bytes,
                           .shard    = note->shard,
                           .rank     = note->rank,
                           .kind     = (uint16_t)kind,
                           .label    = label_of(note->label)};
    put(&e);
}

/* ---- the program's own spans ----------------------------------------------------------------- */
static pen_status begin_mark(uint16_t label, const char *name, pen_error *why)
{
    if (me.n_marks == MARKS_MAX)
        return why_set(why, PEN_WRONG_STATE,
                       "pen_mark('%.63s', 1): this thread already has %d open spans", name,
                       MARKS_MAX);
    me.mark[me.n_marks++] = (open_mark){clock_ns(&clock_real), label};
    return PEN_OK;
}

static pen_status end_mark(uint16_t label, const char *name, pen_error *why)
{
    uint32_t i = me.n_marks;
    while (i > 0 && me.mark[i - 1].label != label) i--;
    if (i == 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_mark('%.63s', 0): this thread has no open span of that name", name);
    const trace_event e = {.begun_ns = me.mark[i - 1].begun_ns,
                           .ended_ns = clock_ns(&clock_real),
                           .kind     = TRACE_MARK,
                           .label    = label};
    for (; i < me.n_marks; i++) me.mark[i - 1] = me.mark[i];
    me.n_marks--;
    put(&e);
    return PEN_OK;
}

pen_status trace_mark(const char *name, bool begins, pen_error *why)
{
    if (!trace_on()) return PEN_OK;
    const uint16_t label = label_of(name);
    return begins ? begin_mark(label, name, why) : end_mark(label, name, why);
}

/* ---- samples of the scheduler's clock -------------------------------------------------------- */
void trace_clock_heard(uint64_t sent_ns, uint64_t theirs_ns, uint64_t heard_ns)
{
    if (trace_on()) trace_clock_note(&part->clock, sent_ns, theirs_ns, heard_ns);
}

void trace_clock_own(void)
{
    if (trace_on()) trace_clock_is(&part->clock, clock_ns(&clock_real), (int64_t)wall_offset());
}
