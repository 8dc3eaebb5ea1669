/* schedule_select.c - selects the algorithm of a call, by rules in text and built-in ones.
 *
 * DESIGN
 * A rule matches kind, ranks and bytes.  The first whose algorithm is allowed wins: the table's
 * rules, then the built-in ones; "direct" comes last for every kind.  The built-in thresholds are
 * for TCP between processes, in the manner of OpenMPI's coll/tuned: whole vectors while latency
 * dominates, parts when bytes do.  Between hosts few rounds count; on one host, whose processors do
 * the work of all members, few messages.
 */
#include "common/base/why.h"
#include "proto/plan.h"
#include "worker/collective/schedule/schedule_draft.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_BYTES = 24, ALGORITHM_BYTES = 32 };

typedef struct {
    coll_kind kind;
    int ranks_min, ranks_max;
    size_t bytes_min, bytes_max;
    const schedule_algorithm *algorithm; /* NULL: a rule for device memory */
    schedule_device device;
    bool on_one_host; /* holds only there */
} rule;

struct schedule_table {
    size_t n;
    rule *rules;
};

#define KI       *(size_t)1024
#define NO_END   SIZE_MAX
#define NO_LIMIT INT_MAX

enum { MANY = 65, SIZES_TRIED = 4096 };

static const rule built_in[] = {
    {COLL_BARRIER, MANY, NO_LIMIT, 0, NO_END, &schedule_funnel},
    {COLL_ALL_REDUCE, MANY, NO_LIMIT, 0, 8 KI, &schedule_funnel, .on_one_host = true},
    {COLL_ALL_GATHER, MANY, NO_LIMIT, 0, 1 KI, &schedule_funnel, .on_one_host = true},
    {COLL_REDUCE, MANY, NO_LIMIT, 0, 8 KI, &schedule_funnel},
    {COLL_BROADCAST, 3, NO_LIMIT, 512 KI, NO_END, &schedule_pipeline},
    {COLL_BROADCAST, 4, NO_LIMIT, 0, NO_END, &schedule_tree},
    {COLL_REDUCE, 2, 8, 0, 64 KI, &schedule_one_shot},
    {COLL_REDUCE, 9, NO_LIMIT, 0, 4 KI, &schedule_tree},
    {COLL_REDUCE, 9, NO_LIMIT, 0, 4 KI, &schedule_one_shot},
    {COLL_ALL_REDUCE, 3, 4, 0, 64 KI, &schedule_bruck, .on_one_host = true},
    {COLL_ALL_REDUCE, 5, 8, 0, 16 KI, &schedule_bruck, .on_one_host = true},
    {COLL_ALL_REDUCE, 9, 64, 0, 4 KI, &schedule_bruck, .on_one_host = true},
    /* Two members send the same bytes either way; one_shot needs only one round. */
    {COLL_ALL_REDUCE, 2, 2, 0, 4096 KI, &schedule_one_shot},
    {COLL_ALL_REDUCE, 3, 4, 0, 16 KI, &schedule_one_shot},
    {COLL_ALL_REDUCE, 5, NO_LIMIT, 0, 8 KI, &schedule_recursive_doubling},
    {COLL_ALL_REDUCE, 5, 8, 0, 4 KI, &schedule_one_shot},
    {COLL_ALL_REDUCE, 9, 16, 0, 1 KI, &schedule_one_shot},
    {COLL_ALL_REDUCE, 17, 64, 0, 1 KI, &schedule_bruck},
    {COLL_ALL_REDUCE, 17, NO_LIMIT, 0, 1024 KI, &schedule_halving_doubling},
    {COLL_ALL_REDUCE, 17, NO_LIMIT, 0, NO_END, &schedule_ring},
    {COLL_ALL_REDUCE, MANY, NO_LIMIT, 0, 8 KI, &schedule_funnel},
    {COLL_ALL_REDUCE, MANY, NO_LIMIT, 0, NO_END, &schedule_chain},
    {COLL_GATHER, 16, NO_LIMIT, 0, 2 KI, &schedule_tree},
    {COLL_SCATTER, 16, NO_LIMIT, 0, 2 KI, &schedule_tree},
    {COLL_ALL_GATHER, 5, NO_LIMIT, 0, 4 KI, &schedule_bruck},
    {COLL_ALL_GATHER, 9, NO_LIMIT, 0, NO_END, &schedule_ring},
    {COLL_REDUCE_SCATTER, 17, NO_LIMIT, 64 KI, NO_END, &schedule_ring},
    {COLL_REDUCE_SCATTER, 17, NO_LIMIT, 0, NO_END, &schedule_pairwise},
    {COLL_ALL_TO_ALL, 9, NO_LIMIT, 0, 256, &schedule_bruck},
    {COLL_ALL_TO_ALL, 9, NO_LIMIT, 0, NO_END, &schedule_pairwise},
};

/* ---- choosing -------------------------------------------------------------------------------- */
typedef struct {
    coll_kind kind;
    int size;
    size_t bytes;
    schedule_order order; /* of a fold */
    bool even;            /* parts are equal */
    bool on_one_host;
} question;

static bool matches(const rule *r, const question *q)
{
    return r->kind == q->kind && q->size >= r->ranks_min && q->size <= r->ranks_max &&
           q->bytes >= r->bytes_min && q->bytes <= r->bytes_max &&
           (q->on_one_host || !r->on_one_host);
}

static bool keeps(const schedule_algorithm *a, schedule_order order)
{
    if (order == SCHEDULE_ANY_ORDER || a->keeps_order) return true;
    return order == SCHEDULE_RANK_ORDER ? a->in_rank_order : a->any_order;
}

static bool answers(const rule *r, const question *q)
{
    if (!matches(r, q) || r->algorithm == NULL) return false;
    if (!keeps(r->algorithm, q->order)) return false;
    if (!q->even && q->kind == COLL_ALL_TO_ALL && r->algorithm->even_all_to_all) return false;
    return r->algorithm->fits(q->kind, q->size);
}

/* For floats only, including MIN and MAX: 0 and -0 are equal but differ in their bits. */
static bool order_matters(pen_dtype dtype)
{
    return dtype == PEN_F32 || dtype == PEN_F64 || dtype == PEN_F16 || dtype == PEN_BF16;
}

static size_t bytes_of(const coll_call *call, int size)
{
    size_t n = call->n;
    if (call->kind == COLL_ALL_TO_ALL && call->counts) {
        n = 0;
    } else if (call->counts) {
        n = coll_part_offset(call->counts, 0, size) / (size_t)size;
    }
    return n * plan_dtype_bytes(call->dtype);
}

const schedule_algorithm *schedule_for_call(const schedule_table *table, const coll_call *call,
                                            int size, schedule_order order, bool on_one_host)
{
    const bool matters = coll_reduces(call->kind) && order_matters(call->dtype);
    const question q   = {.kind        = call->kind,
                          .size        = size,
                          .bytes       = bytes_of(call, size),
                          .order       = matters ? order : SCHEDULE_ANY_ORDER,
                          .even        = !call->counts,
                          .on_one_host = on_one_host};
    for (size_t i = 0; table && i < table->n; i++)
        if (answers(&table->rules[i], &q)) return table->rules[i].algorithm;
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (answers(&built_in[i], &q)) return built_in[i].algorithm;
    return &schedule_direct;
}

schedule_device schedule_for_device(const schedule_table *table, const coll_call *call, int size)
{
    const question q = {.kind = call->kind, .size = size, .bytes = bytes_of(call, size)};
    for (size_t i = 0; table && i < table->n; i++)
        if (table->rules[i].device != SCHEDULE_DEVICE_MEASURED && matches(&table->rules[i], &q))
            return table->rules[i].device;
    return SCHEDULE_DEVICE_MEASURED;
}

bool schedule_wants_nccl(const schedule_table *table)
{
    for (size_t i = 0; table && i < table->n; i++)
        if (table->rules[i].device == SCHEDULE_DEVICE_NCCL) return true;
    return false;
}

/* ---- reading --------------------------------------------------------------------------------- */
static const char *skip_space(const char *p)
{
    while (isspace((unsigned char)*p)) p++;
    return p;
}

/* A word of letters, digits and underscores; false: none, or too long. */
static bool read_word(const char **p, char *word, size_t cap)
{
    const char *at = skip_space(*p);
    size_t n       = 0;
    while (isalnum((unsigned char)at[n]) || at[n] == '_') n++;
    if (n == 0 || n >= cap) return false;
    memcpy(word, at, n);
    word[n] = '\0';
    *p      = skip_space(at + n);
    return true;
}

static bool read_number(const char **p, size_t *number)
{
    if (!isdigit((unsigned char)**p)) return false;
    char *end                = NULL;
    unsigned long long value = strtoull(*p, &end, 10);
    int shift                = *end == 'k' ? 10 : *end == 'm' ? 20 : *end == 'g' ? 30 : 0;
    if (value > (SIZE_MAX >> shift)) return false;
    *number = (size_t)value << shift;
    *p      = end + (shift != 0);
    return true;
}

/* "A-B", "A-" or "A". */
static bool read_range(const char **p, size_t *low, size_t *high)
{
    if (!read_number(p, low)) return false;
    *high = *low;
    if (**p == '-') {
        ++*p;
        *high = NO_END;
        if (isdigit((unsigned char)**p) && !read_number(p, high)) return false;
    }
    *p = skip_space(*p);
    return *low <= *high;
}

/* The sentence ends with the rule itself, up to its ';'. */
static pen_status bad_rule(pen_error *why, const char *begin, const char *what, const char *which)
{
    int length = (int)strcspn(begin, ";");
    if (length > 120) length = 120;
    return why_set(why, PEN_BAD_SETTING,
                   "%s%s in the rule \"%.*s\" for choosing algorithms; a rule is like \"all_reduce "
                   "ranks=2-4 bytes=0-16k : one_shot\"",
                   what, which, length, begin);
}

static bool find_kind(const char *name, coll_kind *kind)
{
    for (int k = 0; k < COLL_KINDS; k++) {
        if (strcmp(coll_kind_name((coll_kind)k), name) != 0) continue;
        *kind = (coll_kind)k;
        return true;
    }
    return false;
}

static bool fits_somewhere(const rule *r)
{
    for (int i = 0; i < SIZES_TRIED && i <= r->ranks_max - r->ranks_min; i++)
        if (r->algorithm->fits(r->kind, r->ranks_min + i)) return true;
    return false;
}

static pen_status read_memory(const char **p, const char *begin, bool *on_device, pen_error *why)
{
    char word[KIND_BYTES];
    if (!read_word(p, word, sizeof word))
        return bad_rule(why, begin, "expected host or device after memory=", "");
    *on_device = strcmp(word, "device") == 0;
    if (*on_device || strcmp(word, "host") == 0) return PEN_OK;
    return bad_rule(why, begin, "unknown memory ", word);
}

/* ranks=..., bytes=... and memory=... up to the ':'. */
static pen_status read_conditions(const char **p, const char *begin, rule *r, bool *on_device,
                                  pen_error *why)
{
    char word[KIND_BYTES];
    while (**p && **p != ':' && **p != ';') {
        size_t low = 0, high = 0;
        if (!read_word(p, word, sizeof word) || **p != '=')
            return bad_rule(why, begin, "expected ranks=, bytes=, memory= or ':'", "");
        if (strcmp(word, "memory") == 0) {
            *p                = skip_space(*p + 1);
            pen_status status = read_memory(p, begin, on_device, why);
            if (status != PEN_OK) return status;
            continue;
        }
        bool is_ranks = strcmp(word, "ranks") == 0;
        if (!is_ranks && strcmp(word, "bytes") != 0)
            return bad_rule(why, begin, "unknown condition ", word);
        *p = skip_space(*p + 1);
        if (!read_range(p, &low, &high))
            return bad_rule(why, begin, "not a range of numbers after ", word);
        if (is_ranks) {
            r->ranks_min = low < NO_LIMIT ? (int)low : NO_LIMIT;
            r->ranks_max = high < NO_LIMIT ? (int)high : NO_LIMIT;
        } else {
            r->bytes_min = low;
            r->bytes_max = high;
        }
    }
    return PEN_OK;
}

static pen_status read_algorithm(const char *name, const char *begin, rule *r, pen_error *why)
{
    r->algorithm = schedule_find(name);
    if (!r->algorithm) return bad_rule(why, begin, "unknown algorithm ", name);
    if (!fits_somewhere(r)) return bad_rule(why, begin, "this operation cannot use ", name);
    return PEN_OK;
}

bool schedule_nccl_has(coll_kind kind)
{
    return kind == COLL_ALL_REDUCE || kind == COLL_REDUCE || kind == COLL_REDUCE_SCATTER ||
           kind == COLL_ALL_GATHER || kind == COLL_BROADCAST;
}

static pen_status read_way(const char *name, const char *begin, rule *r, pen_error *why)
{
    const bool is_nccl = strcmp(name, "nccl") == 0;
    if (!is_nccl && strcmp(name, "kernels") != 0)
        return bad_rule(why, begin, "device memory has the ways kernels and nccl, not ", name);
    if (is_nccl && !schedule_nccl_has(r->kind))
        return bad_rule(why, begin, "this operation cannot use ", name);
    r->device = is_nccl ? SCHEDULE_DEVICE_NCCL : SCHEDULE_DEVICE_KERNELS;
    return PEN_OK;
}

static pen_status read_rule(const char **p, rule *r, pen_error *why)
{
    const char *begin = *p;
    char kind[KIND_BYTES], name[ALGORITHM_BYTES];
    bool on_device = false;
    *r             = (rule){.ranks_min = 1, .ranks_max = NO_LIMIT, .bytes_max = NO_END};
    if (!read_word(p, kind, sizeof kind)) return bad_rule(why, begin, "no operation", "");
    if (!find_kind(kind, &r->kind)) return bad_rule(why, begin, "unknown operation ", kind);
    pen_status status = read_conditions(p, begin, r, &on_device, why);
    if (status != PEN_OK) return status;
    if (**p != ':') return bad_rule(why, begin, "no ':' and algorithm", "");
    ++*p;
    if (!read_word(p, name, sizeof name)) return bad_rule(why, begin, "no algorithm", "");
    status = on_device ? read_way(name, begin, r, why) : read_algorithm(name, begin, r, why);
    if (status != PEN_OK) return status;
    if (**p && **p != ';') return bad_rule(why, begin, "unexpected text after ", name);
    return PEN_OK;
}

pen_status schedule_table_parse(const char *text, schedule_table **table, pen_error *why)
{
    size_t cap = 1;
    for (const char *p = text; *p; p++) cap += *p == ';';
    schedule_table *t = calloc(1, sizeof *t);
    *table            = NULL;
    if (t) t->rules = calloc(cap, sizeof t->rules[0]);
    if (!t || !t->rules) {
        free(t);
        return why_set(why, PEN_NO_MEMORY, "no memory for a table of algorithms");
    }
    for (const char *p = skip_space(text); *p;) {
        pen_status status = *p == ';' ? PEN_OK : read_rule(&p, &t->rules[t->n], why);
        if (status != PEN_OK) {
            schedule_table_free(t);
            return status;
        }
        if (t->rules[t->n].algorithm || t->rules[t->n].device) t->n++;
        if (*p == ';') p = skip_space(p + 1);
    }
    *table = t;
    return PEN_OK;
}

void schedule_table_swap(schedule_table *a, schedule_table *b)
{
    const schedule_table other = *a;
    *a                         = *b;
    *b                         = other;
}

void schedule_table_free(schedule_table *table)
{
    if (table) free(table->rules);
    free(table);
}
