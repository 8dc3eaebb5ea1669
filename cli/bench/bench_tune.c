/* bench_tune.c - `penstock bench tune`: finds the fastest algorithm of each collective here, as a setting.
 *
 *     export PENSTOCK_COLL_ALGORITHM="$(penstock bench tune --ranks 4)"
 *
 * `penstock bench COLLECTIVE` measures each algorithm, with a rule that selects it for all sizes, and the built-in
 * choice.  An algorithm gets a rule where it needs less than 0.95 of the built-in choice's time; for both the shortest
 * of several rounds counts.  Measurements go to stderr, only the rules to stdout.  If the rules exceed the length of
 * a setting, those with the smallest gain are dropped.
 */
#include "cli/bench/bench.h"
#include "cli/bench/bench_coll.h"
#include "worker/collective/schedule/schedule.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t ranks, min_bytes, max_bytes, factor, rounds;
    double seconds;
    int transport;
    char only[CONFIG_TEXT_BYTES];
} tune_settings;

#define ROW(...) CONFIG_ROW(tune_settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(ranks,     U64,  "2",   2,     64,    NULL, "Worker processes.")
    ROW(min_bytes, U64,  "1k",  64,    1e12,  NULL, "Smallest message size.")
    ROW(max_bytes, U64,  "16m", 64,    1e12,  NULL, "Largest message size.")
    ROW(factor,    U64,  "4",   2,     65536, NULL, "Multiplication factor between sizes.")
    ROW(seconds,   F64,  "0.2", 0.001, 60,    NULL, "Measuring time per algorithm and size.")
    ROW(rounds,    U64,  "3",   1,     100,   NULL, "Number of rounds; the shortest time of each algorithm counts.")
    ROW(transport, ENUM, "tcp", 0,     0,     bench_coll_transports, "shm: shared memory; tcp: sockets, as between hosts.")
    ROW(only,      TEXT, "",    0,     0,     NULL, "Tune only this collective, for example all-reduce.")
    {0},
};

static const struct { bench_coll_kind bench; coll_kind coll; } tuned[] = {
    {BENCH_ALL_REDUCE, COLL_ALL_REDUCE}, {BENCH_BROADCAST, COLL_BROADCAST},
    {BENCH_REDUCE, COLL_REDUCE}, {BENCH_ALL_GATHER, COLL_ALL_GATHER},
    {BENCH_REDUCE_SCATTER, COLL_REDUCE_SCATTER}, {BENCH_GATHER, COLL_GATHER},
    {BENCH_SCATTER, COLL_SCATTER}, {BENCH_ALL_TO_ALL, COLL_ALL_TO_ALL},
};
/* clang-format on */
enum { TUNED = sizeof tuned / sizeof tuned[0], SIZES_MAX = 64, RULES_MAX = 256 };
static const double worth = 0.95;

typedef struct {
    size_t n;
    double bytes[SIZES_MAX], time_us[SIZES_MAX];
    const char *algorithm[SIZES_MAX]; /* NULL: the built-in choice */
} timings;

/* ---- one measurement ------------------------------------------------------------------------- */

static void read_lines(FILE *from, timings *t)
{
    char line[2048];
    t->n = 0;
    while (t->n < SIZES_MAX && fgets(line, sizeof line, from) != NULL) {
        json_t *row         = json_loads(line, 0, NULL);
        const json_t *bytes = json_object_get(row, "bytes"),
                     *time  = json_object_get(row, "time_us");
        if (json_is_number(bytes) && json_is_number(time)) {
            t->bytes[t->n]     = json_number_value(bytes);
            t->time_us[t->n++] = json_number_value(time);
        }
        json_decref(row);
    }
}

/* With `rule` as the setting; "": the built-in choice.  false: the job failed, for example an unsupported algorithm. */
static bool measure(const tune_settings *s, bench_coll_kind kind, const char *rule, timings *t)
{
    char self[1024], words[2048];
    if (!command_self(self, sizeof self) || setenv("PENSTOCK_COLL_ALGORITHM", rule, 1) != 0)
        return false;
    snprintf(words, sizeof words,
             "'%s' bench %s --ranks %" PRIu64 " --min-bytes %" PRIu64 " --max-bytes %" PRIu64
             " --factor %" PRIu64 " --seconds %g --pairs 3 --no-limit --transport %s --json "
             "2>/dev/null",
             self, bench_coll_names[kind], s->ranks, s->min_bytes, s->max_bytes, s->factor,
             s->seconds, bench_coll_transports[s->transport]);
    FILE *job = popen(words, "r");
    if (job == NULL) return false;
    read_lines(job, t);
    return pclose(job) == 0 && t->n > 0;
}

static void print_times(bench_coll_kind kind, const char *algorithm, const timings *t)
{
    fprintf(stderr, "%-15s %-20s", bench_coll_names[kind], algorithm);
    for (size_t i = 0; i < t->n; i++) fprintf(stderr, " %10.1f", t->time_us[i]);
    fprintf(stderr, "\n");
}

/* ---- rules ----------------------------------------------------------------------------------- */

typedef struct {
    struct {
        char text[96];
        double gain; /* largest ratio of the built-in time to this time */
    } rule[RULES_MAX];
    size_t n;
} rules;

static size_t length(const rules *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) n += strlen(r->rule[i].text) + strlen(" ; ");
    return n;
}

/* Drops rules with the smallest gain until the rest fits into a setting. */
static void shorten(rules *r)
{
    size_t dropped = 0;
    for (; r->n > 0 && length(r) >= CONFIG_TEXT_BYTES; dropped++) {
        size_t least = 0;
        for (size_t i = 1; i < r->n; i++)
            if (r->rule[i].gain < r->rule[least].gain) least = i;
        fprintf(stderr, "dropped rule with %.0f %% gain: %s\n", 100 * (r->rule[least].gain - 1),
                r->rule[least].text);
        memmove(&r->rule[least], &r->rule[least + 1], (--r->n - least) * sizeof r->rule[0]);
    }
    if (dropped > 0)
        fprintf(stderr, "dropped %zu rules: a setting holds at most %d bytes\n", dropped,
                CONFIG_TEXT_BYTES - 1);
}

/* For collectives with parts a rule counts the bytes of one part. */
static double rule_bytes(const tune_settings *s, bench_coll_kind kind, double bytes)
{
    return floor(bench_coll_has_parts(kind) ? bytes / (double)s->ranks : bytes);
}

/* Assigns sizes [first, last] to `algorithm`; boundaries are half way between measured sizes. */
static void add_rule(rules *r, const tune_settings *s, coll_kind coll, bench_coll_kind kind,
                     const timings *t, const timings *built_in, size_t first, size_t last)
{
    char from[24] = "0", to[24] = "";
    if (r->n == RULES_MAX) return;
    if (first > 0)
        snprintf(from, sizeof from, "%.0f",
                 rule_bytes(s, kind, sqrt(t->bytes[first - 1] * t->bytes[first])) + 1);
    if (last + 1 < t->n)
        snprintf(to, sizeof to, "%.0f",
                 rule_bytes(s, kind, sqrt(t->bytes[last] * t->bytes[last + 1])));
    snprintf(r->rule[r->n].text, sizeof r->rule[0].text, "%s bytes=%s-%s : %s",
             coll_kind_name(coll), from, to, t->algorithm[first]);
    r->rule[r->n].gain = 0;
    for (size_t i = first; i <= last; i++)
        r->rule[r->n].gain = fmax(r->rule[r->n].gain, built_in->time_us[i] / t->time_us[i]);
    r->n++;
}

static void add_rules(rules *r, const tune_settings *s, coll_kind coll, bench_coll_kind kind,
                      const timings *best, const timings *built_in)
{
    for (size_t first = 0, last; first < best->n; first = last + 1) {
        for (last = first;
             last + 1 < best->n && best->algorithm[last + 1] == best->algorithm[first];)
            last++;
        if (best->algorithm[first] != NULL) add_rule(r, s, coll, kind, best, built_in, first, last);
    }
}

/* ---- one collective -------------------------------------------------------------------------- */

enum { CONTENDERS_MAX = 16 };

/* The first is the built-in choice. */
static size_t contenders_of(const tune_settings *s, coll_kind coll, const char **name)
{
    size_t n  = 0;
    name[n++] = NULL;
    for (int i = 0; schedule_all[i] != NULL && n < CONTENDERS_MAX; i++) {
        const schedule_algorithm *a = schedule_all[i];
        if (a->fits(coll, (int)s->ranks) && (!coll_reduces(coll) || a->keeps_order))
            name[n++] = a->name;
    }
    return n;
}

/* Keeps the shortest time of each size.  false: the job failed. */
static bool measure_again(const tune_settings *s, bench_coll_kind kind, coll_kind coll,
                          const char *algorithm, timings *shortest)
{
    timings t      = {0};
    char rule[128] = "";
    if (algorithm != NULL) snprintf(rule, sizeof rule, "%s : %s", coll_kind_name(coll), algorithm);
    if (!measure(s, kind, rule, &t)) return false;
    if (shortest->n == 0) *shortest = t;
    for (size_t i = 0; i < t.n && i < shortest->n; i++)
        shortest->time_us[i] = fmin(shortest->time_us[i], t.time_us[i]);
    return true;
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

static int tune(rules *r, const tune_settings *s, bench_coll_kind kind, coll_kind coll)
{
    const char *name[CONTENDERS_MAX];
    timings t[CONTENDERS_MAX] = {0};
    const size_t n            = contenders_of(s, coll, name);
    for (uint64_t round = 0; round < s->rounds; round++)
        for (size_t c = 0; c < n; c++)
            if (!measure_again(s, kind, coll, name[c], &t[c]) && c == 0)
                return command_fail(
                    1, "`penstock bench %s --ranks %" PRIu64 "` failed; run it alone to see why",
                    bench_coll_names[kind], s->ranks);
    timings best = t[0];
    for (size_t c = 0; c < n; c++) {
        print_times(kind, c == 0 ? "(built in)" : name[c], &t[c]);
        if (c > 0) take_better(&best, &t[0], &t[c], name[c]);
    }
    add_rules(r, s, coll, kind, &best, &t[0]);
    return 0;
}

static bool is_tuned(const char *only)
{
    for (size_t i = 0; i < TUNED; i++)
        if (only[0] == '\0' || strcmp(only, bench_coll_names[tuned[i].bench]) == 0) return true;
    return false;
}

static void print_sizes(const tune_settings *s)
{
    fprintf(stderr, "%-15s %-20s", "us", "bytes:");
    for (uint64_t b = s->min_bytes; b <= s->max_bytes; b *= s->factor)
        fprintf(stderr, " %10" PRIu64, b);
    fprintf(stderr, "\n");
}

int bench_tune(int argc, char **argv)
{
    tune_settings s;
    rules r  = {0};
    int code = command_settings(
        rows, &s, argc, argv, "usage: penstock bench tune [--ranks N] [--transport shm|tcp]", NULL);
    if (code >= 0) return code;
    if (s.min_bytes > s.max_bytes)
        return command_fail(EXIT_USAGE, "--min-bytes %" PRIu64 " is more than --max-bytes %" PRIu64,
                            s.min_bytes, s.max_bytes);
    if (!is_tuned(s.only))
        return command_fail(EXIT_USAGE, "--only '%s' is not a collective with several algorithms",
                            s.only);
    print_sizes(&s);
    code = 0;
    for (size_t i = 0; i < TUNED && code == 0; i++) {
        if (s.only[0] != '\0' && strcmp(s.only, bench_coll_names[tuned[i].bench]) != 0) continue;
        code = tune(&r, &s, tuned[i].bench, tuned[i].coll);
    }
    if (code != 0) return code;
    shorten(&r);
    for (size_t i = 0; i < r.n; i++) printf("%s%s", i > 0 ? " ; " : "", r.rule[i].text);
    printf("\n");
    return 0;
}
