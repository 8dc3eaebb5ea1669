/* bench_tune.c - `penstock bench tune`: finds the fastest way of each collective on the links of a job.
 *
 *     export PENSTOCK_COLL_ALGORITHM="$(penstock bench tune --ranks 4)"
 *     penstock run --nnodes 2 ... penstock bench tune --save links.conf, then penstock run --config links.conf ...
 *
 * DESIGN
 * Ranks      all measure the same calls in one job, and change its rules between two of them.  Times are means over all
 *            ranks, so all draw the same conclusions; rank 0 prints them.  Started as a worker, the command measures
 *            that job's links; else it starts a job here.
 * Lanes      first: 1, 2 and more connections between two workers, by all_reduce of the largest size.
 * Rules      An algorithm gets one where it needs less than 0.95 of the built-in choice's time; for both the shortest of
 *            several rounds counts.  If they exceed the length of a setting, those with the smallest gain are dropped.
 * Output     Measurements go to stderr, only the rules to stdout, and all of it to the file of --save, as settings.
 * Devices    Penstock's kernels against NCCL, with deterministic=no, which lets NCCL carry sums of floats.  A job that
 *            keeps the order ignores the rules for these.
 */
#include "cli/bench/bench.h"
#include "cli/bench/bench_coll.h"
#include "cli/run/devices.h"
#include "common/compute/device/nccl.h"
#include "worker/collective/schedule/schedule.h"
#include "worker/context.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t ranks, min_bytes, max_bytes, factor, rounds;
    double seconds;
    int over, device;
    char only[CONFIG_TEXT_BYTES], save[CONFIG_TEXT_BYTES];
} tune_settings;

static const char *const device_choices[] = {"host", "cuda", NULL};

#define ROW(...) CONFIG_ROW(tune_settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(ranks,     U64,  "2",   2,     64,    NULL, "Worker processes; within a job, its own.")
    ROW(min_bytes, U64,  "1k",  64,    1e12,  NULL, "Smallest message size.")
    ROW(max_bytes, U64,  "16m", 64,    1e12,  NULL, "Largest message size.")
    ROW(factor,    U64,  "4",   2,     65536, NULL, "Multiplication factor between sizes.")
    ROW(seconds,   F64,  "0.2", 0.001, 60,    NULL, "Measuring time per algorithm and size.")
    ROW(rounds,    U64,  "3",   1,     100,   NULL, "Number of rounds; the shortest time of each algorithm counts.")
    ROW(over,      ENUM, "tcp", 0,     0,     bench_transports, BENCH_TRANSPORTS)
    ROW(device,    ENUM, "host", 0,    0,     device_choices, "host: host memory; cuda: device memory, by kernels and by NCCL.")
    ROW(only,      TEXT, "",    0,     0,     NULL, "Tune only this collective, for example all-reduce.")
    ROW(save,      TEXT, "",    0,     0,     NULL, "Also write measurements and settings to this file, for `penstock run --config`.")
    {0},
};

static const struct {
    bench_coll_kind bench;
    coll_kind coll;
} tuned[] = {
    {BENCH_ALL_REDUCE, COLL_ALL_REDUCE}, {BENCH_BROADCAST, COLL_BROADCAST}, {BENCH_REDUCE, COLL_REDUCE},
    {BENCH_ALL_GATHER, COLL_ALL_GATHER}, {BENCH_REDUCE_SCATTER, COLL_REDUCE_SCATTER}, {BENCH_GATHER, COLL_GATHER},
    {BENCH_SCATTER, COLL_SCATTER}, {BENCH_ALL_TO_ALL, COLL_ALL_TO_ALL},
};
/* clang-format on */
enum { TUNED = sizeof tuned / sizeof tuned[0], RULES_MAX = 256, CONTENDERS_MAX = 16, LANES = 4 };
static const double worth = 0.95;

typedef struct {
    size_t n;
    double bytes[BENCH_COLL_SIZES_MAX], time_us[BENCH_COLL_SIZES_MAX];
    const char *algorithm[BENCH_COLL_SIZES_MAX]; /* NULL: the first contender */
} timings;

typedef struct {
    struct {
        char text[96];
        double gain; /* largest ratio of the built-in time to this time */
    } rule[RULES_MAX];
    size_t n;
} rules;

/* One rank. */
typedef struct {
    tune_settings s;
    bench_coll_state w;
    uint64_t lanes;
    rules rules;
    FILE *file; /* of --save; NULL: none, or another rank's */
} tuner;

/* ---- output ---------------------------------------------------------------------------------- */

/* A line, or a part of one that does not begin it, of the explanation: to stderr and, as a comment, to the file. */
static void explain(const tuner *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void explain(const tuner *t, const char *format, ...)
{
    char text[4096];
    va_list args;
    if (t->w.c.rank != 0) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "%s\n", text);
    if (t->file != NULL) fprintf(t->file, "# %s\n", text);
}

static void explain_times(const tuner *t, const char *collective, const char *what,
                          const double *value, size_t n, int digits)
{
    char text[BENCH_COLL_SIZES_MAX * 24] = "";
    for (size_t i = 0, at = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, " %10.*f", digits, value[i]);
    explain(t, "%-15s %-20s%s", collective, what, text);
}

/* ---- one measurement ------------------------------------------------------------------------- */

/* Measures all sizes from `from` on with `rule` as the setting; keeps the shortest time of each. */
static pen_status measure(tuner *t, bench_coll_kind kind, const char *rule, uint64_t from,
                          timings *shortest)
{
    pen_error why;
    size_t n          = 0;
    t->w.kind         = kind;
    t->w.c.kind       = kind;
    pen_status status = coll_engine_tune(t->w.ctx->coll, rule, t->lanes, &why);
    if (status != PEN_OK) t->w.is_told = command_fail(1, "%s", why.text) != 0;
    for (uint64_t bytes = from;
         bytes <= t->s.max_bytes && n < BENCH_COLL_SIZES_MAX && status == PEN_OK;
         bytes *= t->s.factor, n++) {
        bench_coll_row row   = {0};
        status               = bench_coll_measure(&t->w, bytes, &row);
        const double time    = row.time_s * 1e6;
        const bool is_first  = n >= shortest->n;
        shortest->bytes[n]   = (double)row.bytes;
        shortest->time_us[n] = is_first ? time : fmin(time, shortest->time_us[n]);
    }
    shortest->n = n;
    return status;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static size_t length(const rules *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) n += strlen(r->rule[i].text) + strlen(" ; ");
    return n;
}

/* For collectives with parts a rule counts the bytes of one part. */
static double rule_bytes(const tuner *t, bench_coll_kind kind, double bytes)
{
    return floor(bench_coll_has_parts(kind) ? bytes / (double)t->w.c.ranks : bytes);
}

static const char *memory(const tuner *t)
{
    return t->s.device == 1 ? " memory=device" : "";
}

/* Assigns sizes [first, last] to `algorithm`; boundaries are half way between measured sizes. */
static void add_rule(tuner *t, size_t what, const timings *best, const timings *built_in,
                     size_t first, size_t last)
{
    const bench_coll_kind kind = tuned[what].bench;
    rules *r                   = &t->rules;
    const double *bytes        = best->bytes;
    char from[24] = "0", to[24] = "";
    if (r->n == RULES_MAX) return;
    if (first > 0)
        snprintf(from, sizeof from, "%.0f",
                 rule_bytes(t, kind, sqrt(bytes[first - 1] * bytes[first])) + 1);
    if (last + 1 < best->n)
        snprintf(to, sizeof to, "%.0f", rule_bytes(t, kind, sqrt(bytes[last] * bytes[last + 1])));
    snprintf(r->rule[r->n].text, sizeof r->rule[0].text, "%s%s bytes=%s-%s : %s",
             coll_kind_name(tuned[what].coll), memory(t), from, to, best->algorithm[first]);
    r->rule[r->n].gain = 0;
    for (size_t i = first; i <= last; i++)
        r->rule[r->n].gain = fmax(r->rule[r->n].gain, built_in->time_us[i] / best->time_us[i]);
    explain(t, "rule with %.0f %% gain: %s", 100 * (r->rule[r->n].gain - 1), r->rule[r->n].text);
    r->n++;
}

static void add_rules(tuner *t, size_t what, const timings *best, const timings *built_in)
{
    for (size_t first = 0, last; first < best->n; first = last + 1) {
        for (last = first;
             last + 1 < best->n && best->algorithm[last + 1] == best->algorithm[first];)
            last++;
        if (best->algorithm[first] != NULL) add_rule(t, what, best, built_in, first, last);
    }
}

/* ---- one collective -------------------------------------------------------------------------- */

/* The first is what a job does without rules; on devices, one that keeps the order. */
static size_t contenders_of(const tuner *t, coll_kind coll, const char **name)
{
    size_t n = 0;
    if (t->s.device == 1) {
        name[n++] = "kernels";
        name[n++] = "nccl";
        return n;
    }
    name[n++] = NULL;
    for (int i = 0; schedule_all[i] != NULL && n < CONTENDERS_MAX; i++) {
        const schedule_algorithm *a = schedule_all[i];
        if (a->fits(coll, t->w.c.ranks) &&
            (!coll_reduces(coll) || a->keeps_order || a->in_rank_order))
            name[n++] = a->name;
    }
    return n;
}

static void take_better(timings *best, const timings *built_in, const timings *t,
                        const char *algorithm)
{
    for (size_t i = 0; i < best->n && i < t->n; i++)
        if (t->time_us[i] < best->time_us[i] && t->time_us[i] < worth * built_in->time_us[i]) {
            best->time_us[i]   = t->time_us[i];
            best->algorithm[i] = algorithm;
        }
}

static pen_status tune(tuner *t, size_t what)
{
    const char *name[CONTENDERS_MAX], *collective = bench_coll_names[tuned[what].bench];
    timings times[CONTENDERS_MAX] = {0};
    const size_t n                = contenders_of(t, tuned[what].coll, name);
    const uint64_t least          = (uint64_t)t->w.c.ranks * sizeof(float);
    const uint64_t from           = t->s.min_bytes > least ? t->s.min_bytes : least;
    pen_status status             = PEN_OK;
    for (uint64_t round = 0; round < t->s.rounds; round++)
        for (size_t c = 0; c < n && status == PEN_OK; c++) {
            char rule[128] = "";
            if (name[c] != NULL)
                snprintf(rule, sizeof rule, "%s%s : %s", coll_kind_name(tuned[what].coll),
                         memory(t), name[c]);
            status = measure(t, tuned[what].bench, rule, from, &times[c]);
        }
    if (status != PEN_OK) return status;
    timings best = times[0];
    explain_times(t, collective, "bytes:", best.bytes, best.n, 0);
    for (size_t c = 0; c < n; c++) {
        char shown[48];
        snprintf(shown, sizeof shown, "%s%s", t->s.device == 1 ? "device " : "",
                 name[c] == NULL ? "(built in)" : name[c]);
        explain_times(t, collective, shown, times[c].time_us, times[c].n, 1);
        if (c > 0) take_better(&best, &times[0], &times[c], name[c]);
    }
    add_rules(t, what, &best, &times[0]);
    return PEN_OK;
}

/* Connections between two workers, by the largest all_reduce. */
static pen_status tune_lanes(tuner *t)
{
    const uint64_t most  = t->w.ctx->settings.coll_lanes;
    timings times[LANES] = {0};
    double us[LANES] = {0}, lanes[LANES] = {0};
    size_t n = 0, best = 0;
    while (n < LANES && 1U << n <= most) n++;
    for (uint64_t round = 0; round < t->s.rounds; round++)
        for (size_t i = 0; i < n; i++) {
            t->lanes                = 1U << i;
            lanes[i]                = (double)t->lanes;
            const pen_status status = measure(t, BENCH_ALL_REDUCE, "", t->s.max_bytes, &times[i]);
            if (status != PEN_OK) return status;
            us[i] = times[i].time_us[0];
        }
    for (size_t i = 1; i < n; i++)
        if (us[i] < us[best] && us[i] < worth * us[0]) best = i;
    t->lanes = 1U << best;
    explain_times(t, "all-reduce", "connections:", lanes, n, 0);
    explain_times(t, "all-reduce", "time in us:", us, n, 1);
    return PEN_OK;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static bool is_chosen(const tune_settings *s, size_t what)
{
    return s->only[0] == '\0' || strcmp(s->only, bench_coll_names[tuned[what].bench]) == 0;
}

static pen_status tune_all(tuner *t)
{
    const bool is_on_device = t->s.device == 1;
    pen_status status       = is_on_device ? PEN_OK : tune_lanes(t);
    for (size_t i = 0; i < TUNED && status == PEN_OK; i++)
        if (is_chosen(&t->s, i) && (!is_on_device || schedule_nccl_has(tuned[i].coll)))
            status = tune(t, i);
    return status;
}

static void write_rules(FILE *out, const rules *r, const char *before)
{
    fprintf(out, "%s", before);
    for (size_t i = 0; i < r->n; i++) fprintf(out, "%s%s", i > 0 ? " ; " : "", r->rule[i].text);
    fprintf(out, "\n");
}

static int conclude(tuner *t)
{
    /* Drops rules with the smallest gain until the rest fits into a setting. */
    rules *r       = &t->rules;
    size_t dropped = 0;
    for (; r->n > 0 && length(r) >= CONFIG_TEXT_BYTES; dropped++) {
        size_t least = 0;
        for (size_t i = 1; i < r->n; i++)
            if (r->rule[i].gain < r->rule[least].gain) least = i;
        explain(t, "dropped rule with %.0f %% gain: %s", 100 * (r->rule[least].gain - 1),
                r->rule[least].text);
        memmove(&r->rule[least], &r->rule[least + 1], (--r->n - least) * sizeof r->rule[0]);
    }
    if (dropped > 0)
        explain(t, "dropped %zu rules: a setting holds at most %d bytes", dropped,
                CONFIG_TEXT_BYTES - 1);
    if (t->w.c.rank != 0) return 0;
    write_rules(stdout, &t->rules, "");
    if (t->file == NULL) return 0;
    if (t->rules.n > 0) write_rules(t->file, &t->rules, "coll_algorithm = ");
    if (t->s.device == 0) fprintf(t->file, "coll_lanes = %" PRIu64 "\n", t->lanes);
    const bool is_written = fflush(t->file) == 0;
    return is_written ? 0 : command_fail(1, "cannot write --save %s: %m", t->s.save);
}

static int run_rank(const tune_settings *s)
{
    tuner *t = calloc(1, sizeof *t);
    if (t == NULL) return command_fail(1, "no memory");
    t->s              = *s;
    t->lanes          = 1;
    t->w.s            = (bench_coll_settings){.max_bytes  = s->max_bytes,
                                              .registered = 1,
                                              .pairs      = 3,
                                              .seconds    = s->seconds,
                                              .device     = s->device};
    pen_status status = bench_coll_begin(&t->w);
    int code          = 0;
    if (status == PEN_OK && t->w.c.rank == 0 && s->save[0] != '\0') {
        t->file = fopen(s->save, "w");
        if (t->file == NULL) code = command_fail(1, "cannot write --save %s: %m", s->save);
    }
    if (status == PEN_OK && code == 0) {
        explain(t, "penstock bench tune: %d ranks", t->w.c.ranks);
        status = tune_all(t);
    }
    if (status == PEN_OK && code == 0) code = conclude(t);
    if (t->file != NULL) fclose(t->file);
    const int ended = bench_coll_end(&t->w, status);
    free(t);
    return code != 0 ? code : ended;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int parse(int argc, char **argv, tune_settings *s)
{
    int code = command_settings(rows, s, argc, argv,
                                "usage: penstock bench tune [--ranks N] [--over shm|tcp]", NULL);
    if (code >= 0) return code;
    if (s->min_bytes > s->max_bytes)
        return command_fail(EXIT_USAGE, "--min-bytes %" PRIu64 " is more than --max-bytes %" PRIu64,
                            s->min_bytes, s->max_bytes);
    for (size_t i = 0; i < TUNED; i++)
        if (is_chosen(s, i)) return -1;
    return command_fail(EXIT_USAGE, "--only '%s' is not a collective with several algorithms",
                        s->only);
}

/* Whether there is a choice on devices; else what is missing.  No driver is loaded: a job will be forked. */
static bool has_choice(const tune_settings *s, char *missing, size_t size)
{
    pen_error why;
    run_devices devices;
    const bool is_known = run_devices_find(&devices, &why) == PEN_OK;
    const int n         = is_known ? devices.list.n : 0;
    if (n == 0)
        snprintf(missing, size, "%s", is_known ? devices.note : why.text);
    else if ((uint64_t)n < s->ranks)
        snprintf(missing, size, "%" PRIu64 " ranks on %d device%s share one, which NCCL refuses",
                 s->ranks, n, n == 1 ? "" : "s");
    else if (nccl_find() == NULL)
        snprintf(missing, size, "NCCL is not installed (libnccl.so.2), so there is no choice");
    else
        return true;
    return false;
}

int bench_tune_rank(int argc, char **argv)
{
    tune_settings s;
    const int code = parse(argc, argv, &s);
    return code >= 0 ? code : run_rank(&s);
}

int bench_tune(int argc, char **argv)
{
    static const char *const no_flags[] = {NULL}, *const verb[] = {"tune-rank", NULL};
    tune_settings s;
    char missing[sizeof(pen_error)] = "";
    const int code                  = parse(argc, argv, &s);
    if (code >= 0) return code;
    const bool is_rank = bench_job_ranks() > 0, is_on_device = s.device == 1;
    if (is_on_device && !is_rank && !has_choice(&s, missing, sizeof missing))
        return command_fail(1, "--device cuda: %s", missing);
    bool is_set = setenv("PENSTOCK_COLL_LANES", "4", 0) == 0;
    if (is_on_device)
        is_set = is_set && setenv("PENSTOCK_DETERMINISTIC", "no", 0) == 0 &&
                 setenv("PENSTOCK_DEVICE", "cuda", 0) == 0;
    if (!is_set || (!is_rank && !bench_use_transport(is_on_device ? 0 : s.over)))
        return command_fail(1, "no memory");
    return is_rank ? run_rank(&s) : bench_run_job(0, s.ranks, no_flags, verb, argc, argv);
}
