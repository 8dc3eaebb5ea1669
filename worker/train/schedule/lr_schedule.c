/* lr_schedule.c - the schedules. */
#include "worker/train/schedule/lr_schedule.h"

#include "common/base/why.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

enum { WARMUP_LOG, WARMUP_LINEAR };
static const char *const warmup_types[] = {"log", "linear", NULL};

/* clang-format off */
#define ROW(type, field, dfl, min, max, doc) {#field, CONFIG_##type, offsetof(lr_numbers, field), dfl, min, max, NULL, doc}
#define OWN_LR     ROW(F64, lr, "nan", 0, 1e30, "Scheduled rate; default: the update rule's.")
#define MIN_LR     ROW(F64, warmup_min_lr, "0", 0, 1e30, "Rate of the first steps.")
#define WARMUP(d)  ROW(U64, warmup_num_steps, d, 1, 9e15, "Updates until the highest rate; 1 counts as 2.")
#define TOTAL      ROW(U64, total_num_steps, "0", 0, 9e15, "Updates until the rate has fallen; required.")
#define TYPE       {"warmup_type", CONFIG_ENUM, offsetof(lr_numbers, warmup_type), "log", 0, 0, warmup_types, "Shape of the rise."}
#define RISE       ROW(U64, warmup_num_steps, "0", 0, 9e15, "Updates of a linear rise at the start.")
#define FINAL      ROW(F64, final_lr_frac, "0", 0, 1, "Fraction of the rate at the end.")
/* clang-format on */

/* ---- DeepSpeed's: its it is applied - 1 ------------------------------------------------------ */
static double given_or(double value, double usual)
{
    return isnan(value) ? usual : value;
}

/* Completed fraction of the rise, 0 to 1; the caller checks it < steps. */
static double risen(const lr_numbers *n, int64_t it, double steps)
{
    if (n->warmup_type == WARMUP_LINEAR) return (double)it / steps;
    return 1 / log(steps) * log((double)(it + 1));
}

static double rise_steps(const lr_numbers *n)
{
    return n->warmup_num_steps > 2 ? (double)n->warmup_num_steps : 2;
}

static double between(double low, double high, double gamma)
{
    return low + (high - low) * gamma;
}

static double warmup_rate(const lr_numbers *n, double base, int64_t applied)
{
    const int64_t it  = applied - 1;
    const double high = given_or(n->warmup_max_lr, base), steps = rise_steps(n);
    if (it < 0) return n->warmup_min_lr;
    return between(n->warmup_min_lr, high, (double)it < steps ? risen(n, it, steps) : 1);
}

static double warmup_decay_rate(const lr_numbers *n, double base, int64_t applied)
{
    const int64_t it  = applied - 1;
    const double high = given_or(n->warmup_max_lr, base), steps = rise_steps(n);
    const double total = (double)n->total_num_steps;
    if (it < 0) return n->warmup_min_lr;
    if ((double)it < steps) return between(n->warmup_min_lr, high, risen(n, it, steps));
    const double left = fmax(0, (total - (double)it) / fmax(1, total - steps));
    return between(n->warmup_min_lr, high, left);
}

static double warmup_cosine_rate(const lr_numbers *n, double base, int64_t applied)
{
    const int64_t it   = applied - 1;
    const double steps = rise_steps(n), lr = given_or(n->lr, base);
    if (it < 0) return 0;
    if ((double)it < steps)
        return lr * (n->warmup_min_ratio + risen(n, it, steps) * (1 - n->warmup_min_ratio));
    const double total = fmax(1, (double)n->total_num_steps - steps);
    const double done  = fmin(1, ((double)it - steps + 1) / total);
    const double ratio = (1 + cos(PI * done)) / 2;
    return lr * fmax(0, n->cos_min_ratio + (1 - n->cos_min_ratio) * ratio);
}

/* Position in the cycle, 0 to 1 and back.  Stairs are computed from whole steps, because this number
 * may be just below an exact stair. */
static double height(const lr_numbers *n, double first, double second, double applied)
{
    const double total = first + second, ratio = first / total;
    const double x = 1 + applied / total - floor(1 + applied / total);
    uint64_t up = n->cycle_first_stair_count, down = up;
    if (n->cycle_second_stair_count >= 0) down = (uint64_t)n->cycle_second_stair_count;
    const double stairs = (double)(x <= ratio ? up : down), at = fmod(applied, total);
    if (stairs == 0) return x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
    if (at <= first) return floor(at * stairs / first) / stairs;
    return floor((total - at) * stairs / second) / stairs;
}

static double one_cycle_rate(const lr_numbers *n, double base, int64_t applied)
{
    const double first = n->cycle_first_step_size, it = (double)applied - 1;
    const double second = given_or(n->cycle_second_step_size, first);
    (void)base;
    if (it < first + second)
        return between(n->cycle_min_lr, n->cycle_max_lr, height(n, first, second, (double)applied));
    if (n->decay_step_size == 0 || n->decay_lr_rate == 0) return n->cycle_min_lr;
    const double interval = (it - (first + second) + 1) / n->decay_step_size;
    return n->cycle_min_lr / (1 + n->decay_lr_rate * interval);
}

static double range_test_rate(const lr_numbers *n, double base, int64_t applied)
{
    double interval = (double)applied / n->lr_range_test_step_size;
    (void)base;
    if (n->lr_range_test_staircase) interval = floor(interval);
    return n->lr_range_test_min_lr * (1 + n->lr_range_test_step_rate * interval);
}

/* ---- llm.c's --------------------------------------------------------------------------------- */
static bool rises(const lr_numbers *n, int64_t applied)
{
    return (uint64_t)applied < n->warmup_num_steps;
}

static double rising(const lr_numbers *n, double lr, int64_t applied)
{
    return lr * (double)(applied + 1) / (double)n->warmup_num_steps;
}

/* Completed fraction of the decay, 0 to 1; then 1. */
static double fallen(const lr_numbers *n, int64_t applied)
{
    const double rise = (double)n->warmup_num_steps, total = (double)n->total_num_steps;
    return fmin(1, ((double)applied - rise) / fmax(1, total - rise));
}

static double constant_rate(const lr_numbers *n, double base, int64_t applied)
{
    const double lr = given_or(n->lr, base);
    return rises(n, applied) ? rising(n, lr, applied) : lr;
}

static double cosine_rate(const lr_numbers *n, double base, int64_t applied)
{
    const double lr = given_or(n->lr, base), low = lr * n->final_lr_frac;
    if (rises(n, applied)) return rising(n, lr, applied);
    return low + 0.5 * (1 + cos(PI * fallen(n, applied))) * (lr - low);
}

static double linear_rate(const lr_numbers *n, double base, int64_t applied)
{
    const double lr = given_or(n->lr, base), low = lr * n->final_lr_frac;
    if (rises(n, applied)) return rising(n, lr, applied);
    return lr - fallen(n, applied) * (lr - low);
}

/* ---- checks ---------------------------------------------------------------------------------- */
static pen_status need_total(const lr_numbers *n, pen_error *why)
{
    if (n->total_num_steps > 0) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING, "missing total_num_steps; set total_num_steps=10000");
}

static pen_status check_one_cycle(const lr_numbers *n, pen_error *why)
{
    if (isnan(n->cycle_min_lr) || isnan(n->cycle_max_lr))
        return why_set(
            why, PEN_BAD_SETTING,
            "missing cycle_min_lr or cycle_max_lr; set cycle_min_lr=1e-4 cycle_max_lr=1e-3");
    if (n->cycle_momentum)
        return why_set(why, PEN_UNSUPPORTED,
                       "cycle_momentum=yes: schedules change rates only, not other numbers of an "
                       "update rule; set cycle_momentum=no");
    return PEN_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */
/* clang-format off */
static const config_row warmup_rows[] = {MIN_LR,
    ROW(F64, warmup_max_lr, "nan", 0, 1e30, "Rate after the rise; default: the update rule's."),
    WARMUP("1000"), TYPE, {0}};
static const config_row warmup_decay_rows[] = {TOTAL, MIN_LR,
    ROW(F64, warmup_max_lr, "0.001", 0, 1e30, "Highest rate."), WARMUP("1000"), TYPE, {0}};
static const config_row warmup_cosine_rows[] = {TOTAL,
    ROW(F64, warmup_min_ratio, "0", 0, 1, "Fraction of the rate at the start of the rise."), WARMUP("1000"),
    ROW(F64, cos_min_ratio, "0.0001", 0, 1, "Fraction of the rate at the end."), TYPE, OWN_LR, {0}};
static const config_row one_cycle_rows[] = {
    ROW(F64, cycle_min_lr, "nan", 0, 1e30, "Rate at both ends of the cycle; required."),
    ROW(F64, cycle_max_lr, "nan", 0, 1e30, "Rate at its top; required."),
    ROW(F64, decay_lr_rate, "0", 0, 1e30, "How fast the rate decays after the cycle; 0: no decay."),
    ROW(F64, cycle_first_step_size, "2000", 1, 9e15, "Updates of the rise."),
    ROW(F64, cycle_second_step_size, "nan", 1, 9e15, "Updates of the fall; default: as in the rise."),
    ROW(U64, cycle_first_stair_count, "0", 0, 9e15, "Stairs of the rise; 0 is smooth."),
    ROW(I64, cycle_second_stair_count, "-1", -1, 9e15, "Stairs of the fall; -1: as in the rise."),
    ROW(F64, decay_step_size, "0", 0, 9e15, "Updates between decays after the cycle; 0: no decay."),
    ROW(BOOL, cycle_momentum, "no", 0, 0, "Refused: schedules change rates only."), {0}};
static const config_row range_test_rows[] = {
    ROW(F64, lr_range_test_min_lr, "0.001", 0, 1e30, "Rate of the first step."),
    ROW(F64, lr_range_test_step_size, "2000", 1, 9e15, "Updates in which the rate grows by one step."),
    ROW(F64, lr_range_test_step_rate, "1", 0, 1e30, "Height of a step, as a fraction of the first rate."),
    ROW(BOOL, lr_range_test_staircase, "no", 0, 0, "Grow in stairs instead of with every update."), {0}};
static const config_row constant_rows[] = {RISE, OWN_LR, {0}};
static const config_row fall_rows[]     = {RISE, TOTAL, FINAL, OWN_LR, {0}};

static const lr_rule constant      = {"constant", "A constant rate, after an optional linear rise.", constant_rows, NULL, constant_rate};
static const lr_rule cosine        = {"cosine", "Half a cosine down to a fraction of the rate.", fall_rows, need_total, cosine_rate};
static const lr_rule linear        = {"linear", "A straight line down to a fraction of the rate.", fall_rows, need_total, linear_rate};
static const lr_rule warmup        = {"WarmupLR", "A rise, then the highest rate.", warmup_rows, NULL, warmup_rate};
static const lr_rule warmup_decay  = {"WarmupDecayLR", "A rise, then a straight line down to the lowest rate.", warmup_decay_rows, need_total, warmup_decay_rate};
static const lr_rule warmup_cosine = {"WarmupCosineLR", "A rise, then half a cosine.", warmup_cosine_rows, need_total, warmup_cosine_rate};
static const lr_rule one_cycle     = {"OneCycle", "Up, down, then slowly further down.", one_cycle_rows, check_one_cycle, one_cycle_rate};
static const lr_rule range_test    = {"LRRangeTest", "Up for ever, to find the highest rate that still trains.", range_test_rows, NULL, range_test_rate};
/* clang-format on */

const lr_rule *const lr_rules[] = {&constant,      &cosine,    &linear,     &warmup, &warmup_decay,
                                   &warmup_cosine, &one_cycle, &range_test, NULL};

/* ---- parse ----------------------------------------------------------------------------------- */
static const lr_rule *find_schedule(const char *name, size_t length)
{
    for (int i = 0; lr_rules[i] != NULL; i++)
        if (strlen(lr_rules[i]->name) == length && memcmp(lr_rules[i]->name, name, length) == 0)
            return lr_rules[i];
    return NULL;
}

pen_status lr_schedule_parse(const char *text, lr_schedule *s, pen_error *why)
{
    static const char blanks[] = " \t\r\n";
    pen_error local; /* the schedule's name is put before the sentence, so one must exist */
    if (why == NULL) why = &local;
    if (text == NULL) text = "";
    text += strspn(text, blanks);
    if (*text == '\0') text = "constant";
    const size_t length = strcspn(text, blanks);
    const lr_rule *rule = find_schedule(text, length);
    if (rule == NULL) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", length < sizeof name ? (int)length : 31, text);
        /* The settings code refuses an unknown word and lists the known ones. */
        const char *names[sizeof lr_rules / sizeof lr_rules[0]] = {NULL};
        for (int i = 0; lr_rules[i] != NULL; i++) names[i] = lr_rules[i]->name;
        const config_row rows[] = {{"schedule", CONFIG_ENUM, 0, names[0], 0, 0, names, ""}, {0}};
        int unused;
        return config_set(rows, &unused, "schedule", name, why);
    }
    lr_schedule read = {.rule = rule};
    config_defaults(rule->rows, &read.numbers);
    pen_status status = config_from_words(rule->rows, &read.numbers, text + length, why);
    if (status == PEN_OK && rule->check != NULL) status = rule->check(&read.numbers, why);
    if (status != PEN_OK) return why_set(why, status, "%s: %s", rule->name, why->text);
    *s = read;
    return PEN_OK;
}

double lr_schedule_rate(const lr_schedule *s, double base, int64_t applied)
{
    return s->rule->rate(&s->numbers, base, applied);
}

/* ---- docs ------------------------------------------------------------------------------------ */
static void write_row(const config_row *row, FILE *out)
{
    fprintf(out, "| `%s` | %s | ", row->name, strcmp(row->dfl, "nan") == 0 ? "none" : row->dfl);
    for (int i = 0; row->choices != NULL && row->choices[i] != NULL; i++)
        fprintf(out, "%s%s", i > 0 ? " or " : "", row->choices[i]);
    if (row->type == CONFIG_BOOL) fprintf(out, "yes or no");
    if (row->type != CONFIG_BOOL && row->choices == NULL)
        fprintf(out, "%.9g to %.9g", row->min, row->max);
    fprintf(out, " | %s |\n", row->doc);
}

void lr_schedule_write_markdown(FILE *out)
{
    fprintf(
        out,
        "A schedule and its numbers are one string:\n"
        "`schedule=\"WarmupDecayLR warmup_num_steps=10 total_num_steps=100\"`. Where they come\n"
        "from and how updates are counted: [design/precision.md](design/precision.md).\n");
    for (int i = 0; lr_rules[i] != NULL; i++) {
        fprintf(out,
                "\n## %s\n\n%s\n\n| number | default | accepted | meaning |\n|---|---|---|---|\n",
                lr_rules[i]->name, lr_rules[i]->doc);
        for (const config_row *row = lr_rules[i]->rows; row->name != NULL; row++)
            write_row(row, out);
    }
}
