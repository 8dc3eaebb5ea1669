/* timeline_check.c - checks a timeline: valid, nested, on one clock, with all processes.
 *
 *   timeline_check FILE workers=W servers=S shards=N steps=N [ahead=A,B] [KIND ...]
 * Prints what it found, and ends with 0 if all of these hold:
 *   - every rank and the scheduler (with servers) is there, and has a clock; clocks of one host, which are one clock,
 *     agree within their stated errors; ahead=A,B: the clock of worker r is A + B r seconds ahead;
 *   - spans of one tid are disjoint or nested;
 *   - for every step, worker and shard there is a push; the shard's first commit of the step does not begin before the
 *     push, and the pull does not end before that commit begins: within the stated errors of their clocks;
 *   - all KINDs of span occur.
 */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIDS_MAX = 64, DEPTH_MAX = 64 };

typedef struct {
    double begun, ended;             /* microseconds */
    int pid, tid, step, shard, rank; /* rank -1: all ranks, or none */
    const char *name, *phase;
} span;

typedef struct {
    double error_us, offset_us;
    char name[64];
    int is_there;
} process;

static int workers, servers, shards, steps, wrong;
static double ahead_s, more_s;
static process who[PIDS_MAX];
static span *all;
static size_t n_spans;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition) && wrong++ < 20) {                                                        \
            printf("wrong: " __VA_ARGS__);                                                         \
            puts("");                                                                              \
        }                                                                                          \
    } while (0)

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *found = json_string_value(json_object_get(o, key));
    return found != NULL ? found : "";
}

/* ---- reading --------------------------------------------------------------------------------- */
static void read_processes(const json_t *file)
{
    const json_t *list = json_object_get(json_object_get(file, "metadata"), "processes");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *p = json_array_get(list, i);
        const int pid   = (int)number(p, "pid");
        CHECK(pid > 0 && pid < PIDS_MAX, "a process has pid %d", pid);
        if (pid <= 0 || pid >= PIDS_MAX) continue;
        process *w     = &who[pid];
        const double e = number(p, "clock_error_ns") / 1000;
        w->is_there    = 1;
        w->error_us    = w->error_us > e ? w->error_us : e; /* the rank's largest */
        w->offset_us   = number(p, "clock_offset_ns") / 1000;
        snprintf(w->name, sizeof w->name, "%s", text(p, "name"));
        CHECK(strcmp(text(p, "clock"), "scheduler") == 0, "%s has a clock of its own", w->name);
        printf("%-12s clock %s within %.1f us, %.0f records, %.0f lost\n", w->name,
               text(p, "clock"), e, number(p, "records"), number(p, "records_lost"));
    }
}

static void read_spans(const json_t *file)
{
    const json_t *events = json_object_get(file, "traceEvents");
    all                  = calloc(json_array_size(events) + 1, sizeof *all);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i), *args = json_object_get(e, "args");
        const char *phase = text(e, "ph");
        if (strcmp(phase, "X") != 0 && strcmp(phase, "i") != 0) continue;
        const json_t *step = json_object_get(args, "step"), *shard = json_object_get(args, "shard"),
                     *rank = json_object_get(args, "rank");
        all[n_spans++]     = (span){.begun = number(e, "ts"),
                                    .ended = number(e, "ts") + number(e, "dur"),
                                    .pid   = (int)number(e, "pid"),
                                    .tid   = (int)number(e, "tid"),
                                    .step  = step != NULL ? (int)json_integer_value(step) : -1,
                                    .shard = shard != NULL ? (int)json_integer_value(shard) : -1,
                                    .rank  = rank != NULL ? (int)json_integer_value(rank) : -1,
                                    .name  = text(e, "name"),
                                    .phase = phase};
    }
}

/* ---- checking -------------------------------------------------------------------------------- */
static int pid_of(const char *name, int rank)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, rank < 0 ? "%s" : "%s %d", name, rank);
    for (int i = 0; i < PIDS_MAX; i++)
        if (who[i].is_there && strcmp(who[i].name, wanted) == 0) return i;
    CHECK(0, "%s is not there", wanted);
    return 0;
}

static void check_clocks(void)
{
    pid_of("scheduler", -1);
    for (int i = 0; i < workers; i++)
        who[pid_of("worker", i)].offset_us += (ahead_s + more_s * i) * 1e6;
    for (int i = 0; i < servers; i++) pid_of("server", i);
    for (int a = 0; a < PIDS_MAX; a++)
        for (int b = 0; b < a; b++)
            if (who[a].is_there && who[b].is_there)
                CHECK(fabs(who[a].offset_us - who[b].offset_us) <=
                          who[a].error_us + who[b].error_us + 0.01,
                      "%s and %s are said to be %.3f us apart, within %.3f and %.3f", who[a].name,
                      who[b].name, who[a].offset_us - who[b].offset_us, who[a].error_us,
                      who[b].error_us);
}

static int compare(const void *left, const void *right)
{
    const span *a = left, *b = right;
    if (a->tid != b->tid) return a->tid < b->tid ? -1 : 1;
    if (a->begun != b->begun) return a->begun < b->begun ? -1 : 1;
    return a->ended == b->ended ? 0 : a->ended > b->ended ? -1 : 1;
}

static void check_nesting(void)
{
    double open[DEPTH_MAX];
    int depth = 0;
    qsort(all, n_spans, sizeof *all, compare);
    for (size_t i = 0; i < n_spans; i++) {
        const span *s = &all[i];
        if (strcmp(s->phase, "X") != 0) continue;
        if (i > 0 && s->tid != all[i - 1].tid) depth = 0;
        while (depth > 0 && open[depth - 1] <= s->begun + 0.0005) depth--;
        CHECK(depth == 0 || s->ended <= open[depth - 1] + 0.0005,
              "'%s' of tid %d at %.3f us is half inside another span", s->name, s->tid, s->begun);
        if (depth < DEPTH_MAX) open[depth++] = s->ended;
    }
}

static const span *first(const char *name, int pid, int step, int shard, int rank)
{
    const span *found = NULL;
    for (size_t i = 0; i < n_spans; i++) {
        const span *s = &all[i];
        if (s->step == step && s->shard == shard && (pid == 0 || s->pid == pid) &&
            (s->rank < 0 || s->rank == rank) && strcmp(s->name, name) == 0 &&
            (found == NULL || s->begun < found->begun))
            found = s;
    }
    return found;
}

static void check_order(int worker, int step, int shard)
{
    const int pid      = pid_of("worker", worker);
    const span *push   = first("push", pid, step, shard, worker),
               *pull   = first("pull", pid, step, shard, worker),
               *commit = first("commit", 0, step, shard, worker);
    CHECK(push != NULL && pull != NULL && commit != NULL,
          "worker %d, step %d, shard %d: push %d, commit %d, pull %d", worker, step, shard,
          push != NULL, commit != NULL, pull != NULL);
    if (push == NULL || pull == NULL || commit == NULL) return;
    const double error = who[pid].error_us + who[commit->pid].error_us;
    CHECK(push->begun <= commit->begun + error,
          "worker %d, step %d, shard %d: committed %.3f us before it was pushed", worker, step,
          shard, push->begun - commit->begun);
    CHECK(commit->begun <= pull->ended + error,
          "worker %d, step %d, shard %d: committed %.3f us after it was pulled", worker, step,
          shard, commit->begun - pull->ended);
}

static void check_kind(const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < n_spans; i++) n += strcmp(all[i].name, name) == 0;
    CHECK(n > 0, "there is no '%s'", name);
    printf("%zu of '%s'\n", n, name);
}

int main(int argc, char **argv)
{
    json_error_t error = {0};
    json_t *file       = argc > 1 ? json_load_file(argv[1], JSON_REJECT_DUPLICATES, &error) : NULL;
    if (file == NULL) {
        printf("wrong: %s, line %d: %s\n", argc > 1 ? argv[1] : "no file", error.line, error.text);
        return 1;
    }
    read_processes(file);
    read_spans(file);
    check_nesting();
    for (int i = 2; i < argc; i++)
        if (sscanf(argv[i], "workers=%d", &workers) != 1 &&
            sscanf(argv[i], "servers=%d", &servers) != 1 &&
            sscanf(argv[i], "shards=%d", &shards) != 1 &&
            sscanf(argv[i], "ahead=%lf,%lf", &ahead_s, &more_s) != 2 &&
            sscanf(argv[i], "steps=%d", &steps) != 1)
            check_kind(argv[i]);
    check_clocks();
    for (int step = 0; step < steps; step++)
        for (int worker = 0; worker < workers; worker++)
            for (int shard = 0; shard < shards; shard++) check_order(worker, step, shard);
    printf("%zu spans, %d wrong\n", n_spans, wrong);
    free(all);
    json_decref(file);
    return wrong > 0;
}
