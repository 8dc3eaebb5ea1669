/* bench_tune.c - `penstock bench tune`: finds the fastest way of each collective here, as a setting.
 *
 *     export PENSTOCK_COLL_ALGORITHM="$(penstock bench tune --ranks 4)"
 *
 * `penstock bench COLLECTIVE` measures each algorithm, with a rule that selects it for all sizes, and the built-in
 * choice.  An algorithm gets a rule where it needs less than 0.95 of the built-in choice's time; for both the shortest
 * of several rounds counts.  Measurements go to stderr, only the rules to stdout.  If the rules exceed the length of
 * a setting, those with the smallest gain are dropped.
 *
 * Where each rank has a CUDA device of its own and NCCL is installed, calls on device memory are measured as well: NCCL
 * against Penstock's kernels, with deterministic=no, which lets NCCL carry sums of floats.  A job that keeps the order
 * ignores the rules for these.
 */
#include "cli/bench/bench.h"
#include "cli/bench/bench_coll.h"
#include "common/compute/device/device.h"
#include "common/compute/device/nccl.h"
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
    int transport, device;
    char only[CONFIG_TEXT_BYTES];
} tune_settings;

enum { TUNE_AUTO, TUNE_HOST, TUNE_CUDA };
static const char *const device_choices[] = {"auto", "host", "cuda", NULL};

#define ROW(...) CONFIG_ROW(tune_settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(ranks,     U64,  "2",   2,     64,    NULL, "Worker processes.")
    ROW(min_bytes, U64,  "1k",  64,    1e12,  NULL, "Smallest message size.")
    ROW(max_bytes, U64,  "16m", 64,    1e12,  NULL, "Largest message size.")
    ROW(factor,    U64,  "4",   2,     65536, NULL, "Multiplication factor between sizes.")
    ROW(seconds,   F64,  "0.2", 0.001, 60,    NULL, "Measuring time per algorithm and size.")
    ROW(rounds,    U64,  "3",   1,     100,   NULL, "Number of rounds; the shortest time of each algorithm counts.")
    ROW(transport, ENUM, "tcp", 0,     0,     bench_transports, BENCH_TRANSPORTS)
    ROW(device,    ENUM, "auto", 0,    0,     device_choices, "auto: host memory, and device memory if each rank has a device and NCCL is installed; host; cuda.")
    ROW(only,      TEXT, "",    0,     0,     NULL, "Tune only this collective, for example all-reduce.")
    {0},
};

/* What rules are made for. */
typedef struct {
    bench_coll_kind bench;
    coll_kind coll;
    bool on_device;
} subject;

static const subject tuned[] = {
    {BENCH_ALL_REDUCE, COLL_ALL_REDUCE, false}, {BENCH_BROADCAST, COLL_BROADCAST, false},
    {BENCH_REDUCE, COLL_REDUCE, false}, {BENCH_ALL_GATHER, COLL_ALL_GATHER, false},
    {BENCH_REDUCE_SCATTER, COLL_REDUCE_SCATTER, false}, {BENCH_GATHER, COLL_GATHER, false},
    {BENCH_SCATTER, COLL_SCATTER, false}, {BENCH_ALL_TO_ALL, COLL_ALL_TO_ALL, false},
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
static bool measure(const tune_settings *s, const subject *what, const char *rule, timings *t)
{
    char self[1024], words[2048];
    const char *transport = what->on_device ? "shm" : bench_transports[s->transport];
    if (!command_self(self, sizeof self) || setenv("PENSTOCK_COLL_ALGORITHM", rule, 1) != 0)
        return false;
    snprintf(words, sizeof words,
             "'%s' bench %s --ranks %" PRIu64 " --min-bytes %" PRIu64 " --max-bytes %" PRIu64
             " --factor %" PRIu64 " --seconds %g --pairs 3 --no-limit --transport %s --device %s "
             "--json 2>/dev/null",
             self, bench_coll_names[what->bench], s->ranks, s->min_bytes, s->max_bytes, s->factor,
             s->seconds, transport, bench_coll_devices[what->on_device]);
    FILE *job = popen(words, "r");
    if (job == NULL) return false;
    read_lines(job, t);
    return pclose(job) == 0 && t->n > 0;
}

static void print_times(const subject *what, const char *algorithm, const timings *t)
{
    char name[32];
    snprintf(name, sizeof name, "%s%s", what->on_device ? "device " : "",
             algorithm == NULL ? "(built in)" : algorithm);
    fprintf(stderr, "%-15s %-20s", bench_coll_names[what->bench], name);
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

static const char *memory(const subject *what)
{
    return what->on_device ? " memory=device" : "";
}

/* Assigns sizes [first, last] to `algorithm`; boundaries are half way between measured sizes. */
static void add_rule(rules *r, const tune_settings *s, const subject *what, const timings *t,
                     const timings *built_in, size_t first, size_t last)
{
    char from[24] = "0", to[24] = "";
    if (r->n == RULES_MAX) return;
    if (first > 0)
        snprintf(from, sizeof from, "%.0f",
                 rule_bytes(s, what->bench, sqrt(t->bytes[first - 1] * t->bytes[first])) + 1);
    if (last + 1 < t->n)
        snprintf(to, sizeof to, "%.0f",
                 rule_bytes(s, what->bench, sqrt(t->bytes[last] * t->bytes[last + 1])));
    snprintf(r->rule[r->n].text, sizeof r->rule[0].text, "%s%s bytes=%s-%s : %s",
             coll_kind_name(what->coll), memory(what), from, to, t->algorithm[first]);
    r->rule[r->n].gain = 0;
    for (size_t i = first; i <= last; i++)
        r->rule[r->n].gain = fmax(r->rule[r->n].gain, built_in->time_us[i] / t->time_us[i]);
    r->n++;
}

static void add_rules(rules *r, const tune_settings *s, const subject *what, const timings *best,
                      const timings *built_in)
{
    for (size_t first = 0, last; first < best->n; first = last + 1) {
        for (last = first;
             last + 1 < best->n && best->algorithm[last + 1] == best->algorithm[first];)
            last++;
        if (best->algorithm[first] != NULL) add_rule(r, s, what, best, built_in, first, last);
    }
}

/* ---- one collective -------------------------------------------------------------------------- */

enum { CONTENDERS_MAX = 16 };

/* The first is the built-in choice. */
static size_t contenders_of(const tune_settings *s, const subject *what, const char **name)
{
    const coll_kind coll = what->coll;
    size_t n             = 0;
    name[n++]            = NULL;
    if (what->on_device) {
        name[n++] = "kernels";
        name[n++] = "nccl";
        return n;
    }
    for (int i = 0; schedule_all[i] != NULL && n < CONTENDERS_MAX; i++) {
        const schedule_algorithm *a = schedule_all[i];
        if (a->fits(coll, (int)s->ranks) && (!coll_reduces(coll) || a->keeps_order))
            name[n++] = a->name;
    }
    return n;
}

/* Keeps the shortest time of each size.  false: the job failed. */
static bool measure_again(const tune_settings *s, const subject *what, const char *algorithm,
                          timings *shortest)
{
    timings t      = {0};
    char rule[128] = "";
    if (algorithm != NULL)
        snprintf(rule, sizeof rule, "%s%s : %s", coll_kind_name(what->coll), memory(what),
                 algorithm);
    if (!measure(s, what, rule, &t)) return false;
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

static int tune(rules *r, const tune_settings *s, const subject *what)
{
    const char *name[CONTENDERS_MAX];
    timings t[CONTENDERS_MAX] = {0};
    const size_t n            = contenders_of(s, what, name);
    for (uint64_t round = 0; round < s->rounds; round++)
        for (size_t c = 0; c < n; c++)
            if (!measure_again(s, what, name[c], &t[c]) && c == 0)
                return command_fail(
                    1, "`penstock bench %s --ranks %" PRIu64 "%s` failed; run it alone to see why",
                    bench_coll_names[what->bench], s->ranks,
                    what->on_device ? " --device cuda" : "");
    timings best = t[0];
    for (size_t c = 0; c < n; c++) {
        print_times(what, name[c], &t[c]);
        if (c > 0) take_better(&best, &t[0], &t[c], name[c]);
    }
    add_rules(r, s, what, &best, &t[0]);
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

/* ---- all collectives ------------------------------------------------------------------------- */

static bool is_chosen(const tune_settings *s, const subject *what)
{
    return s->only[0] == '\0' || strcmp(s->only, bench_coll_names[what->bench]) == 0;
}

static int tune_host(rules *r, const tune_settings *s)
{
    int code = 0;
    for (size_t i = 0; i < TUNED && code == 0; i++)
        if (is_chosen(s, &tuned[i])) code = tune(r, s, &tuned[i]);
    return code;
}

/* Copies have no order, so they are compared with what a job that keeps the order does. */
static int tune_device(rules *r, const tune_settings *s)
{
    int code = 0;
    for (size_t i = 0; i < TUNED && code == 0; i++) {
        subject what   = tuned[i];
        what.on_device = true;
        if (!is_chosen(s, &what) || !schedule_nccl_has(what.coll)) continue;
        if (setenv("PENSTOCK_DETERMINISTIC", coll_reduces(what.coll) ? "no" : "yes", 1) != 0)
            return command_fail(1, "no memory");
        code = tune(r, s, &what);
    }
    return code;
}

/* Whether there is a choice on devices; else what is missing. */
static bool has_choice(const tune_settings *s, char *missing, size_t size)
{
    char note[200];
    const device_ops *device = device_beside_host(note, sizeof note);
    const int devices        = device != NULL ? device->count() : 0;
    if (device == NULL)
        snprintf(missing, size, "%s", note);
    else if ((uint64_t)devices < s->ranks)
        snprintf(missing, size, "%" PRIu64 " ranks on %d device%s share one, which NCCL refuses",
                 s->ranks, devices, devices == 1 ? "" : "s");
    else if (nccl_find() == NULL)
        snprintf(missing, size, "NCCL is not installed (libnccl.so.2), so there is no choice");
    else
        return true;
    return false;
}

static void print_rules(rules *r)
{
    shorten(r);
    for (size_t i = 0; i < r->n; i++) printf("%s%s", i > 0 ? " ; " : "", r->rule[i].text);
    printf("\n");
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
    char missing[256]     = "";
    const bool has_device = s.device != TUNE_HOST && has_choice(&s, missing, sizeof missing);
    if (s.device == TUNE_CUDA && !has_device) return command_fail(1, "--device cuda: %s", missing);
    print_sizes(&s);
    code = s.device != TUNE_CUDA ? tune_host(&r, &s) : 0;
    if (code == 0 && has_device) code = tune_device(&r, &s);
    if (code == 0) print_rules(&r);
    return code;
}
