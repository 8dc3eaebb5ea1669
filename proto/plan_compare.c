/* plan_compare.c - compares the models of two ranks; the sentence names the first difference. */
#include "proto/plan.h"

#include "common/base/why.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    int32_t rank[2];
    const char *host[2];
    pen_error *why;
} sides;

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

static bool same(const char *a, const char *b)
{
    return strcmp(or_empty(a), or_empty(b)) == 0;
}

/* "<what> is <a> on rank 1 (devbox) and <b> on rank 0 (tower); all ranks must register the same" */
static pen_status differ(const sides *s, const char *tensor, const char *what, const char *a,
                         const char *b)
{
    why_set(s->why, PEN_MISMATCH,
            "%s is %s on rank %d (%s) and %s on rank %d (%s); all ranks must register the same",
            what, a, s->rank[0], s->host[0], b, s->rank[1], s->host[1]);
    why_culprit(s->why, PEN_WORKER, s->rank[0], -1, tensor);
    return PEN_MISMATCH;
}

static pen_status differ_text(const sides *s, const char *tensor, const char *what, const char *a,
                              const char *b)
{
    char quoted[2][200];
    snprintf(quoted[0], sizeof quoted[0], "'%s'", or_empty(a));
    snprintf(quoted[1], sizeof quoted[1], "'%s'", or_empty(b));
    return differ(s, tensor, what, quoted[0], quoted[1]);
}

static pen_status differ_number(const sides *s, const char *tensor, const char *what, int64_t a,
                                int64_t b)
{
    char text[2][24];
    snprintf(text[0], sizeof text[0], "%" PRId64, a);
    snprintf(text[1], sizeof text[1], "%" PRId64, b);
    return differ(s, tensor, what, text[0], text[1]);
}

/* "f32[128,784]"; a scalar is "f32[]". */
static void write_shape(const wire_tensor *t, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "%s[", plan_dtype_name(t->dtype));
    for (int32_t d = 0; d < t->ndim && d < 8 && n < size; d++)
        n += (size_t)snprintf(text + n, size - n, "%s%" PRId64, d > 0 ? "," : "", t->shape[d]);
    if (n < size) snprintf(text + n, size - n, "]");
}

static bool same_shape(const wire_tensor *a, const wire_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

static const char *group_name(const wire_model *m, uint32_t group)
{
    return group < m->n_groups ? or_empty(m->group[group].name) : "?";
}

static pen_status compare_names(const sides *s, uint32_t index, const wire_tensor *a,
                                const wire_tensor *b)
{
    if (same(a->name, b->name)) return PEN_OK;
    char what[32];
    snprintf(what, sizeof what, "tensor %u", index);
    return differ_text(s, a->name, what, a->name, b->name);
}

static pen_status compare_shapes(const sides *s, const wire_tensor *a, const wire_tensor *b)
{
    if (same_shape(a, b)) return PEN_OK;
    char what[160], shape[2][200];
    snprintf(what, sizeof what, "'%s'", a->name);
    write_shape(a, shape[0], sizeof shape[0]);
    write_shape(b, shape[1], sizeof shape[1]);
    return differ(s, a->name, what, shape[0], shape[1]);
}

static pen_status compare_tensors(const sides *s, const wire_model *ma, const wire_model *mb,
                                  uint32_t index)
{
    const wire_tensor *a = &ma->tensor[index], *b = &mb->tensor[index];
    pen_status status = compare_names(s, index, a, b);
    if (status == PEN_OK) status = compare_shapes(s, a, b);
    if (status != PEN_OK) return status;

    char what[200];
    const char *name = a->name;
#define WHAT(words) (snprintf(what, sizeof what, words " of '%s'", name), what)
    if (a->grad_dtype != b->grad_dtype)
        return differ(s, name, WHAT("the gradient type"), plan_dtype_name(a->grad_dtype),
                      plan_dtype_name(b->grad_dtype));
    if (a->group != b->group)
        return differ_text(s, name, WHAT("the parameter group"), group_name(ma, a->group),
                           group_name(mb, b->group));
    if (a->flags != b->flags) return differ_number(s, name, WHAT("flags"), a->flags, b->flags);
    if (a->priority != b->priority)
        return differ_number(s, name, WHAT("priority"), a->priority, b->priority);
    if (!same(a->init, b->init)) return differ_text(s, name, WHAT("init"), a->init, b->init);
    if (!same(a->handler, b->handler))
        return differ_text(s, name, WHAT("handler"), a->handler, b->handler);
#undef WHAT
    return PEN_OK;
}

static pen_status compare_groups(const sides *s, const wire_group *a, const wire_group *b)
{
    if (!same(a->name, b->name)) return differ_text(s, NULL, "a parameter group", a->name, b->name);
    const struct {
        const char *field, *a, *b;
    } texts[] = {{"optim", a->optim, b->optim},
                 {"sync", a->sync, b->sync},
                 {"wire", a->wire, b->wire},
                 {"schedule", a->schedule, b->schedule}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (same(texts[i].a, texts[i].b)) continue;
        char what[200];
        snprintf(what, sizeof what, "%s of parameter group '%s'", texts[i].field,
                 or_empty(a->name));
        return differ_text(s, NULL, what, texts[i].a, texts[i].b);
    }
    return PEN_OK;
}

static pen_status compare_settings(const sides *s, const wire_pair *a, const wire_pair *b)
{
    if (!same(a->key, b->key))
        return differ_text(s, NULL, "a setting that must agree", a->key, b->key);
    if (same(a->value, b->value)) return PEN_OK;
    char what[200];
    snprintf(what, sizeof what, "setting '%s'", or_empty(a->key));
    return differ_text(s, NULL, what, a->value, b->value);
}

static pen_status compare_counts(const sides *s, const wire_model *a, const wire_model *b)
{
    if (a->n_tensors != b->n_tensors) {
        const wire_model *more = a->n_tensors > b->n_tensors ? a : b;
        const char *surplus =
            more->tensor[a->n_tensors < b->n_tensors ? a->n_tensors : b->n_tensors].name;
        why_set(s->why, PEN_MISMATCH,
                "rank %d (%s) registers %u tensors and rank %d (%s) %u, and '%s' is the first that "
                "is missing; all ranks must register the same",
                s->rank[0], s->host[0], a->n_tensors, s->rank[1], s->host[1], b->n_tensors,
                surplus);
        why_culprit(s->why, PEN_WORKER, s->rank[0], -1, surplus);
        return PEN_MISMATCH;
    }
    if (a->n_groups != b->n_groups)
        return differ_number(s, NULL, "the number of parameter groups", a->n_groups, b->n_groups);
    if (a->n_settings != b->n_settings)
        return differ_number(s, NULL, "the number of settings that must agree", a->n_settings,
                             b->n_settings);
    return PEN_OK;
}

pen_status plan_compare(const wire_model *a, int32_t rank_a, const char *host_a,
                        const wire_model *b, int32_t rank_b, const char *host_b, pen_error *why)
{
    const sides s = {
        .rank = {rank_a, rank_b}, .host = {or_empty(host_a), or_empty(host_b)}, .why = why};
    /* Tensors that both have come first: a different name or shape says more than a count. */
    pen_status status = PEN_OK;
    for (uint32_t i = 0; status == PEN_OK && i < a->n_tensors && i < b->n_tensors; i++)
        status = compare_tensors(&s, a, b, i);
    if (status == PEN_OK) status = compare_counts(&s, a, b);
    for (uint32_t i = 0; status == PEN_OK && i < a->n_groups; i++)
        status = compare_groups(&s, &a->group[i], &b->group[i]);
    for (uint32_t i = 0; status == PEN_OK && i < a->n_settings; i++)
        status = compare_settings(&s, &a->setting[i], &b->setting[i]);
    return status;
}
