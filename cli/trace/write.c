/* write.c - a timeline as JSON: Trace Event Format, which Perfetto and chrome://tracing read.
 *
 * DESIGN.  pid is a rank, tid a lane of a line, numbered in display order.  A flow leads from a worker's push of a step
 * to a shard, through the first commit of that step there, to the worker's pull: it shows which push a step waited for,
 * and which worker waited.
 */
#include "cli/trace/timeline.h"
#include "common/base/why.h"
#include "common/system/own_files.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const timeline *t;
    FILE *out;
    const char *comma; /* before the next event */
} writer;

/* ---- text ------------------------------------------------------------------------------------ */
/* Labels come from the program and may contain any bytes. */
static void write_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7f)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

/* Microseconds, as the format requires, with all nanoseconds. */
static void write_us(FILE *out, const char *key, uint64_t ns)
{
    fprintf(out, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

/* ---- processes ------------------------------------------------------------------------------------- */
void timeline_name(int32_t role, int32_t rank, char *text, size_t size)
{
    if (role == PEN_SCHEDULER)
        snprintf(text, size, "scheduler");
    else if (rank == TIMELINE_OTHERS)
        snprintf(text, size, "other %s", role == PEN_SERVER ? "servers" : "workers");
    else if (rank < 0)
        snprintf(text, size, "%s that never joined", role == PEN_SERVER ? "server" : "worker");
    else
        snprintf(text, size, "%s %d", role == PEN_SERVER ? "server" : "worker", rank);
}

static uint64_t order_of(int32_t role, int32_t rank)
{
    const uint64_t first = role == PEN_SCHEDULER ? 0 : role == PEN_SERVER ? 1 : 2;
    return first << 32 | (uint32_t)rank;
}

static int32_t rank_of(const timeline_part *p)
{
    return p->is_summed ? TIMELINE_OTHERS : p->rank;
}

/* Lines first, then parts, some of which may have none. */
static uint64_t order_at(const timeline *t, uint32_t i)
{
    if (i < t->n_lines) return order_of(t->line[i].role, t->line[i].rank);
    const timeline_part *p = &t->part[i - t->n_lines];
    return order_of(p->role, rank_of(p));
}

static bool is_first_of_its_pid(const timeline *t, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (order_at(t, k) == order_at(t, i)) return false;
    return true;
}

uint32_t timeline_pid(const timeline *t, int32_t role, int32_t rank)
{
    const uint64_t mine = order_of(role, rank);
    uint32_t before     = 0;
    for (uint32_t i = 0; i < t->n_lines + t->n_parts; i++)
        before += order_at(t, i) < mine && is_first_of_its_pid(t, i);
    return before + 1;
}

/* ---- events ---------------------------------------------------------------------------------- */
static void write_who(writer *w, int32_t role, int32_t rank)
{
    char name[64];
    const uint32_t pid = timeline_pid(w->t, role, rank);
    timeline_name(role, rank, name, sizeof name);
    fprintf(
        w->out,
        "%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":\"%s\"}},"
        "\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%u,\"args\":{\"sort_index\":%u}}",
        w->comma, pid, name, pid, pid);
    w->comma = ",";
}

static void write_everybody(writer *w)
{
    const timeline *t = w->t;
    for (uint32_t i = 0; i < t->n_lines + t->n_parts; i++) {
        if (!is_first_of_its_pid(t, i)) continue;
        if (i < t->n_lines)
            write_who(w, t->line[i].role, t->line[i].rank);
        else
            write_who(w, t->part[i - t->n_lines].role, rank_of(&t->part[i - t->n_lines]));
    }
}

static void write_line(writer *w, const timeline_line *l, uint32_t pid)
{
    for (uint32_t i = 0; i < l->n_lanes; i++) {
        char name[TRACE_NAME_BYTES + 16];
        snprintf(name, sizeof name, i == 0 ? "%s" : "%s (%u)", l->name, i + 1);
        fprintf(
            w->out,
            ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":",
            pid, l->first_tid + i);
        write_text(w->out, name);
        fprintf(w->out,
                "}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%u,\"tid\":%u,\"args\":"
                "{\"sort_index\":%u}}",
                pid, l->first_tid + i, l->first_tid + i);
    }
}

static void write_args(const writer *w, const timeline_span *s)
{
    const unsigned has = trace_rows[s->kind].record;
    const char *comma  = "";
    fprintf(w->out, ",\"args\":{");
    if (has & OF_STEP) fprintf(w->out, "\"step\":%" PRId64, s->step);
    if (has & OF_STEP) comma = ",";
    if (has & OF_SHARD) fprintf(w->out, "%s\"shard\":%d", comma, s->shard);
    if (has & OF_SHARD) comma = ",";
    const bool is_ones = (has & OF_RANK) != 0 && s->rank >= 0; /* else of all */
    if (is_ones) fprintf(w->out, "%s\"rank\":%d", comma, s->rank);
    if (is_ones) comma = ",";
    if (has & OF_BYTES) fprintf(w->out, "%s\"bytes\":%" PRIu64, comma, s->bytes);
    if (has & OF_BYTES) comma = ",";
    const char *what = s->text > 0 ? w->t->text[s->text - 1].words : s->label;
    if (what[0] != '\0' && s->kind != TRACE_MARK) {
        fprintf(w->out, "%s\"what\":", comma);
        write_text(w->out, what);
    }
    fputc('}', w->out);
}

static void write_span(const writer *w, const timeline_span *s, uint32_t pid)
{
    const bool is_moment = trace_rows[s->kind].shape == TRACE_IS_MOMENT;
    fprintf(w->out, "%s\n{\"ph\":\"%s\",\"cat\":\"%s\",\"name\":", w->comma,
            is_moment ? "i\",\"s\":\"t" : "X", s->kind == TRACE_MARK ? "program" : "penstock");
    write_text(w->out, s->kind == TRACE_MARK ? s->label : trace_rows[s->kind].name);
    fprintf(w->out, ",\"pid\":%u,\"tid\":%u", pid, s->tid);
    write_us(w->out, "ts", s->begun_ns - w->t->begun_ns);
    if (!is_moment) write_us(w->out, "dur", s->ended_ns - s->begun_ns);
    write_args(w, s);
    fputc('}', w->out);
}

/* ---- flows ----------------------------------------------------------------------------------- */
typedef struct {
    const timeline_span *push, *commit, *pull;
    int32_t rank;
} flow;

static int compare_key(const flow *a, const flow *b)
{
    if (a->push->shard != b->push->shard) return a->push->shard < b->push->shard ? -1 : 1;
    if (a->push->step != b->push->step) return a->push->step < b->push->step ? -1 : 1;
    return 0;
}

static int compare_flows(const void *left, const void *right)
{
    const flow *a = left, *b = right;
    const int key = compare_key(a, b);
    if (key != 0) return key;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return a->push->begun_ns == b->push->begun_ns  ? 0
           : a->push->begun_ns < b->push->begun_ns ? -1
                                                   : 1;
}

/* The first flow of that shard and step, or where it would be. */
static uint64_t find_flow(const flow *f, uint64_t n, const timeline_span *s)
{
    const flow wanted = {.push = s};
    uint64_t low = 0, high = n;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (compare_key(&f[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void keep_first(const timeline_span **place, const timeline_span *s)
{
    if (*place == NULL || s->begun_ns < (*place)->begun_ns) *place = s;
}

static void join(const timeline *t, flow *f, uint64_t n, const timeline_span *s)
{
    const int32_t rank = t->line[s->line].rank;
    for (uint64_t i = find_flow(f, n, s); i < n; i++) {
        if (f[i].push->shard != s->shard || f[i].push->step != s->step) return;
        if (s->kind == TRACE_COMMIT && (s->rank < 0 || s->rank == f[i].rank))
            keep_first(&f[i].commit, s);
        if (s->kind == TRACE_PULL && f[i].rank == rank) keep_first(&f[i].pull, s);
    }
}

/* One flow per push of a rank to a shard in a step; a resent push is the same. */
static flow *find_flows(const timeline *t, uint64_t *n)
{
    uint64_t pushes = 0, kept = 0;
    for (uint64_t i = 0; i < t->n_spans; i++) pushes += t->span[i].kind == TRACE_PUSH;
    flow *f = calloc(pushes + 1, sizeof *f);
    if (f == NULL) return NULL;
    for (uint64_t i = 0, k = 0; i < t->n_spans; i++)
        if (t->span[i].kind == TRACE_PUSH)
            f[k++] = (flow){.push = &t->span[i], .rank = t->line[t->span[i].line].rank};
    qsort(f, pushes, sizeof *f, compare_flows);
    for (uint64_t i = 0; i < pushes; i++)
        if (kept == 0 || compare_key(&f[kept - 1], &f[i]) != 0 || f[kept - 1].rank != f[i].rank)
            f[kept++] = f[i];
    for (uint64_t i = 0; i < t->n_spans; i++)
        if (t->span[i].kind == TRACE_COMMIT || t->span[i].kind == TRACE_PULL)
            join(t, f, kept, &t->span[i]);
    *n = kept;
    return f;
}

static void write_end_of_flow(const writer *w, const char *phase, uint64_t id,
                              const timeline_span *s, uint64_t at_ns, const uint32_t *pid)
{
    fprintf(w->out,
            ",\n{\"ph\":\"%s\",\"cat\":\"step\",\"name\":\"gradient\",\"id\":%" PRIu64
            ",\"pid\":%u,\"tid\":%u",
            phase, id + 1, pid[s->line], s->tid);
    write_us(w->out, "ts", at_ns - w->t->begun_ns);
    fputc('}', w->out);
}

static pen_status write_flows(const writer *w, const uint32_t *pid, pen_error *why)
{
    uint64_t n = 0;
    flow *f    = find_flows(w->t, &n);
    if (f == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the flows of a timeline");
    for (uint64_t i = 0; i < n; i++) {
        const timeline_span *pull = f[i].pull;
        if (f[i].commit == NULL || pull == NULL) continue;
        const uint64_t last = pull->ended_ns > pull->begun_ns ? pull->ended_ns - 1 : pull->begun_ns;
        write_end_of_flow(w, "s", i, f[i].push, f[i].push->begun_ns, pid);
        write_end_of_flow(w, "t", i, f[i].commit, f[i].commit->begun_ns, pid);
        write_end_of_flow(w, "f\",\"bp\":\"e", i, pull, last, pid);
    }
    free(f);
    return PEN_OK;
}

/* ---- metadata ----------------------------------------------------------- */
static void write_process(const timeline *t, const timeline_part *p, FILE *out)
{
    char name[64];
    timeline_name(p->role, p->rank, name, sizeof name);
    fprintf(out, "{\"name\":\"%s\",\"pid\":%u,\"host\":", name, timeline_pid(t, p->role, p->rank));
    write_text(out, p->head->host);
    fprintf(out,
            ",\"system_pid\":%d,\"clock\":\"%s\",\"clock_samples\":%u,\"clock_offset_ns\":%" PRId64
            ",\"clock_error_ns\":%" PRIu64 ",\"records\":%" PRIu64 ",\"records_lost\":%" PRIu64
            ",\"labels_lost\":%" PRIu64 "}",
            p->head->pid, p->n_samples > 0 ? "scheduler" : "own", p->n_samples,
            p->n_samples > 0 ? trace_clock_offset(p->clock, p->n_samples, p->ended_ns)
                             : p->head->own_offset_ns,
            p->error_ns, p->kept, p->lost, p->unnamed);
}

static void write_metadata(const timeline *t, FILE *out)
{
    const char *job = "";
    for (uint32_t i = 0; i < t->n_parts; i++)
        if (t->part[i].head->job[0] != '\0') job = t->part[i].head->job;
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\n\"metadata\":{\"job\":");
    write_text(out, job);
    fprintf(out, ",\"began_unix_ns\":%" PRIu64 ",\"processes\":[", t->begun_ns);
    const char *comma = "\n";
    for (uint32_t i = 0; i < t->n_parts; i++) {
        if (t->part[i].is_summed) continue;
        fputs(comma, out);
        write_process(t, &t->part[i], out);
        comma = ",\n";
    }
    fputs("]},\n\"traceEvents\":[", out);
}

static pen_status write_events(const timeline *t, FILE *out, pen_error *why)
{
    writer w      = {t, out, ""};
    uint32_t *pid = calloc((size_t)t->n_lines + 1, sizeof *pid);
    if (pid == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to write a timeline");
    write_everybody(&w);
    for (uint32_t i = 0; i < t->n_lines; i++) {
        pid[i] = timeline_pid(t, t->line[i].role, t->line[i].rank);
        write_line(&w, &t->line[i], pid[i]);
    }
    for (uint64_t i = 0; i < t->n_spans; i++)
        if (t->span[i].tid != 0) write_span(&w, &t->span[i], pid[t->span[i].line]);
    const pen_status status = write_flows(&w, pid, why);
    free(pid);
    return status;
}

pen_status timeline_write(const timeline *t, const char *path, pen_error *why)
{
    char making[PATH_MAX];
    FILE *out = own_file_beside(path, making, sizeof making);
    if (out == NULL) return why_set(why, PEN_STORE, "cannot write %s: %m", path);
    write_metadata(t, out);
    pen_status status = write_events(t, out, why);
    fputs("]}\n", out);
    const bool has_failed = ferror(out) != 0;
    if ((fclose(out) != 0 || has_failed || (status == PEN_OK && rename(making, path) != 0)) &&
        status == PEN_OK)
        status = why_set(why, PEN_STORE, "cannot write %s: %m", path);
    if (status != PEN_OK) unlink(making);
    return status;
}

/* ---- parts merged into a file, and what it holds --------------------------------------------- */
static uint32_t count_unheard(const timeline *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_parts; i++)
        n += t->part[i].kept > 0 && t->part[i].n_samples == 0 && t->n_parts > 1;
    return n;
}

void timeline_describe(const timeline *t, char *text, size_t size)
{
    uint64_t lost = t->crowded, error_ns = 0;
    uint32_t summed = 0;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        lost += t->part[i].lost;
        summed += t->part[i].is_summed;
        if (t->part[i].error_ns > error_ns) error_ns = t->part[i].error_ns;
    }
    int n = snprintf(text, size, "%" PRIu64 " spans of %u process%s", t->n_spans - t->crowded,
                     t->n_parts, t->n_parts == 1 ? "" : "es");
    if (t->n_parts > 1 && (size_t)n < size)
        n += snprintf(text + n, size - (size_t)n,
                      "; each clock is within %.3g ms of the scheduler's", (double)error_ns / 1e6);
    if (count_unheard(t) > 0 && (size_t)n < size)
        n += snprintf(text + n, size - (size_t)n, ", except %u without a time from it",
                      count_unheard(t));
    if (summed > 0 && (size_t)n < size)
        n += snprintf(text + n, size - (size_t)n, "; %u of them are only summed up", summed);
    if (lost > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n,
                 "; %" PRIu64 " older ones were overwritten (see setting trace_events)", lost);
}

static pen_status add(timeline *t, const char *path, pen_error *why)
{
    struct stat st;
    const bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return is_folder ? timeline_add_folder(t, path, why) : timeline_add(t, path, why);
}

pen_status timeline_merge(const char *out, char *const *from, int n, char *text, size_t size,
                          pen_error *why)
{
    timeline t        = {0};
    pen_status status = PEN_OK;
    for (int i = 0; i < n && status == PEN_OK; i++) status = add(&t, from[i], why);
    if (status == PEN_OK) status = timeline_build(&t, why);
    if (status == PEN_OK) status = timeline_write(&t, out, why);
    if (status == PEN_OK) timeline_describe(&t, text, size);
    timeline_free(&t);
    return status;
}
