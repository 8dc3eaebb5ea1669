/* optim.c - the update rules: finding, parsing and applying one. */
#include "common/compute/optim/optim.h"

#include "common/base/why.h"
#include "common/compute/arithmetic.h"
#include <assert.h>
#include <math.h>
#include <string.h>

extern const optim_ops optim_sum, optim_sgd, optim_adam, optim_adamw, optim_adagrad, optim_rmsprop,
    optim_adadelta, optim_adamax, optim_ftrl, optim_lion, optim_lamb, optim_rowwise_adagrad;

const optim_ops *const optim_all[] = {
    &optim_sum,      &optim_sgd,    &optim_adam, &optim_adamw, &optim_adagrad, &optim_rmsprop,
    &optim_adadelta, &optim_adamax, &optim_ftrl, &optim_lion,  &optim_lamb,    NULL};

const optim_ops *const optim_of_rows[] = {&optim_rowwise_adagrad, NULL};

static const optim_ops *find_in(const optim_ops *const *rules, const char *name)
{
    while (*rules != NULL && strcmp((*rules)->name, name) != 0) rules++;
    return *rules;
}

const optim_ops *optim_find(const char *name)
{
    const optim_ops *found = find_in(optim_all, name);
    return found != NULL ? found : find_in(optim_of_rows, name);
}

/* ---- parse ----------------------------------------------------------------------------------- */

static pen_status read_hyper(const optim_ops *ops, const char *words, optim_hyper *hyper,
                             pen_error *why)
{
    config_defaults(ops->hyper_rows, hyper);
    pen_status status = config_from_words(ops->hyper_rows, hyper, words, why);
    if (status == PEN_OK && ops->check != NULL) status = ops->check(hyper, why);
    if (status != PEN_OK) return why_set(why, status, "%s: %s", ops->name, why->text);
    if (isnan(hyper->lr))
        return why_set(why, PEN_BAD_SETTING, "%s needs a rate: say optim=\"%s lr=0.1\"", ops->name,
                       ops->name);
    return PEN_OK;
}

pen_status optim_parse(const char *text, const optim_ops **ops, optim_hyper *hyper, pen_error *why)
{
    static const char blanks[] = " \t\r\n";
    pen_error local; /* read_hyper() prefixes a sentence, which must exist */
    if (why == NULL) why = &local;

    char name[32];
    text += strspn(text, blanks);
    const size_t length = strcspn(text, blanks);
    snprintf(name, sizeof name, "%.*s", length < sizeof name ? (int)length : 31, text);
    const optim_ops *found = optim_find(name);
    if (found == NULL || length >= sizeof name) {
        /* The settings parser can refuse a word and list the others. */
        const char *names[sizeof optim_all / sizeof optim_all[0]] = {NULL};
        for (int i = 0; optim_all[i] != NULL; i++) names[i] = optim_all[i]->name;
        const config_row rows[] = {{"optim", CONFIG_ENUM, 0, names[0], 0, 0, names, ""}, {0}};
        int unused;
        return config_set(rows, &unused, "optim", name, why);
    }

    optim_hyper read        = {0};
    const pen_status status = read_hyper(found, text + length, &read, why);
    if (status != PEN_OK) return status;
    *ops   = found;
    *hyper = read;
    return PEN_OK;
}

pen_status optim_parse_of_tensor(const char *text, const optim_ops **ops, optim_hyper *hyper,
                                 pen_error *why)
{
    const pen_status status = optim_parse(text, ops, hyper, why);
    if (status != PEN_OK || (*ops)->update_row == NULL) return status;
    return why_set(why, PEN_BAD_SETTING, "%s is a rule of tables by key (pen_table_new) only",
                   (*ops)->name);
}

pen_status optim_check(const char *text, pen_error *why)
{
    const optim_ops *ops;
    optim_hyper hyper;
    char rated[512];
    const pen_status status = optim_parse(text, &ops, &hyper, why);
    if (status == PEN_OK) return PEN_OK;
    const bool fits = (size_t)snprintf(rated, sizeof rated, "%s lr=1", text) < sizeof rated;
    return fits && optim_parse(rated, &ops, &hyper, NULL) == PEN_OK ? PEN_OK : status;
}

/* ---- override -------------------------------------------------------------------------------- */
typedef struct {
    const char *at;
    size_t n;
} word;

static bool next_word(word *w)
{
    static const char blanks[] = " \t\r\n";
    w->at += w->n;
    w->at += strspn(w->at, blanks);
    w->n = strcspn(w->at, blanks);
    return w->n > 0;
}

static size_t key_of(const word *w)
{
    const char *equals = memchr(w->at, '=', w->n);
    return equals != NULL ? (size_t)(equals - w->at) + 1 : w->n;
}

static bool names(const char *text, const word *wanted)
{
    const size_t n = key_of(wanted);
    for (word w = {text, 0}; next_word(&w);)
        if (key_of(&w) == n && memcmp(w.at, wanted->at, n) == 0) return true;
    return false;
}

pen_status optim_override(const char *usual, const char *given, char *text, size_t size,
                          pen_error *why)
{
    word u = {usual, 0}, g = {given, 0};
    (void)next_word(&u);
    (void)next_word(&g);
    size_t used;
    if (g.n == 0 || u.n != g.n || memcmp(u.at, g.at, g.n) != 0) {
        used = (size_t)snprintf(text, size, "%s", g.n > 0 ? given : usual);
    } else {
        used = (size_t)snprintf(text, size, "%.*s", (int)g.n, g.at);
        while (used < size && next_word(&u))
            if (!names(given, &u))
                used += (size_t)snprintf(text + used, size - used, " %.*s", (int)u.n, u.at);
        while (used < size && next_word(&g))
            used += (size_t)snprintf(text + used, size - used, " %.*s", (int)g.n, g.at);
    }
    if (used < size) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING, "optim '%.80s' with '%.80s' is longer than %zu bytes",
                   usual, given, size - 1);
}

/* ---- apply ----------------------------------------------------------------------------------- */

static size_t blocks_of(const optim_span *span)
{
    return (span->n + SIMD_BLOCK - 1) / SIMD_BLOCK;
}

void optim_apply_span(const optim_ops *ops, const optim_hyper *hyper, const optim_span *span)
{
    const simd_update u = ops->scalars(hyper, span);
    simd()->update[u.formula](&u);
}

void optim_norms(const optim_ops *ops, const optim_hyper *hyper, const optim_span *span,
                 double *param_sums, double *update_sums)
{
    const simd_update u = ops->scalars(hyper, span);
    simd()->lamb_norms(&u, param_sums, update_sums);
}

static void measure(const optim_ops *ops, const optim_hyper *hyper, optim_span *spans,
                    size_t n_spans, double *scratch)
{
    size_t blocks = 0, done = 0;
    for (size_t i = 0; i < n_spans; i++) blocks += blocks_of(&spans[i]);
    double *const param_sums = scratch, *const update_sums = scratch + blocks;

    for (size_t i = 0; i < n_spans; i++) {
        assert(spans[i].n % SIMD_BLOCK == 0 || i + 1 == n_spans);
        optim_norms(ops, hyper, &spans[i], param_sums + done, update_sums + done);
        done += blocks_of(&spans[i]);
    }
    const double param_norm  = sqrt(sum_in_tree(param_sums, blocks));
    const double update_norm = sqrt(sum_in_tree(update_sums, blocks));
    for (size_t i = 0; i < n_spans; i++) {
        spans[i].param_norm  = param_norm;
        spans[i].update_norm = update_norm;
    }
}

void optim_apply(const optim_ops *ops, const optim_hyper *hyper, optim_span *spans, size_t n_spans,
                 double *scratch)
{
    if (n_spans == 0) return;
    if (ops->whole_tensor) measure(ops, hyper, spans, n_spans, scratch);
    for (size_t i = 0; i < n_spans; i++) optim_apply_span(ops, hyper, &spans[i]);
}

void optim_apply_row(const optim_ops *ops, const optim_hyper *hyper, optim_span *row,
                     double *scratch)
{
    if (ops->update_row != NULL)
        ops->update_row(hyper, row);
    else
        optim_apply(ops, hyper, row, 1, scratch);
}

simd_update optim_scalars(const optim_ops *ops, const optim_hyper *hyper, double lr, uint64_t step,
                          bool no_decay)
{
    return ops->scalars(hyper, &(optim_span){.step = step, .lr = lr, .no_decay = no_decay});
}

/* ---- docs ------------------------------------------------------------------------------------ */

static const char *default_of(const config_row *row)
{
    return strcmp(row->dfl, "nan") == 0 ? "none, must be given" : row->dfl;
}

static void write_rule(const optim_ops *ops, FILE *out)
{
    fprintf(out, "| `%s` | %s", ops->name, ops->slot_count == 0 ? "none" : "");
    for (int i = 0; i < ops->slot_count; i++)
        fprintf(out, "%s`%s`", i > 0 ? ", " : "", ops->slot_names[i]);
    fprintf(out, " | %s", ops->hyper_rows->name == NULL ? "none" : "");
    for (const config_row *row = ops->hyper_rows; row->name != NULL; row++)
        fprintf(out, "%s`%s` (%s)", row > ops->hyper_rows ? ", " : "", row->name, default_of(row));
    fprintf(out, " | %s%s | %s |\n", ops->doc,
            ops->whole_tensor ? " Needs norms of the whole tensor, which stays on one server."
            : ops->update_row != NULL ? " For tables by key only; each row has one number of state."
                                      : "",
            ops->source);
}

static void write_hyper(const optim_ops *ops, FILE *out)
{
    if (ops->hyper_rows->name == NULL) return;
    fprintf(out, "\n## %s\n\n| setting | default | accepted | meaning |\n|---|---|---|---|\n",
            ops->name);
    for (const config_row *row = ops->hyper_rows; row->name != NULL; row++) {
        fprintf(out, "| `%s` | %s | ", row->name, default_of(row));
        if (row->type == CONFIG_BOOL)
            fprintf(out, "yes or no");
        else
            fprintf(out, "%.9g to %.9g", row->min, row->max);
        fprintf(out, " | %s |\n", row->doc);
    }
}

void optim_write_markdown(FILE *out)
{
    fprintf(
        out,
        "A rule and its settings are one string: `optim=\"adamw lr=3e-4 beta2=0.95\"`.\n"
        "A later source (program, file, environment, flag) changes the settings that it names;\n"
        "another rule begins with its own defaults.\n\n"
        "Rounding, for comparison with a program's own rule: what is equal for all elements "
        "(rates,\n"
        "bias corrections, `lr x weight_decay`) is computed in double and rounded once to "
        "float32;\n"
        "each operation on an element is one float32 operation, rounded to nearest, in the order "
        "of\n"
        "the formula in `common/compute/simd/formulas.inc`, without fused multiply-add. The "
        "gradient\n"
        "is multiplied first, by 1 / (weights x loss scale) and the clip factor. 16-bit "
        "parameters\n"
        "have float32 masters and are rounded once, to nearest even.\n\n"
        "| rule | slots | settings (default) | what it does | source |\n"
        "|---|---|---|---|---|\n");
    for (int i = 0; optim_all[i] != NULL; i++) write_rule(optim_all[i], out);
    for (int i = 0; optim_of_rows[i] != NULL; i++) write_rule(optim_of_rows[i], out);
    for (int i = 0; optim_all[i] != NULL; i++) write_hyper(optim_all[i], out);
    for (int i = 0; optim_of_rows[i] != NULL; i++) write_hyper(optim_of_rows[i], out);
}
