/* resolve.c - the order in which the keys of both files become settings. */
#include "common/config_files/resolver.h"

#include "common/base/why.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FACTS_MAX = 2 * DOCUMENT_KEYS_MAX };

const char *const resolve_targets[] = {
    "mode",
    "train_batch",
    "micro_batch",
    "accum",
    "clip",
    "precision",
    "loss_scale",
    "loss_scale_window",
    "loss_scale_power",
    "loss_scale_hysteresis",
    "loss_scale_min",
    "consecutive_hysteresis",
    "optim",
    "schedule",
    "simd",
    "reduce_bucket",
    "prefetch_bucket",
    "persistence_threshold",
    "max_live",
    "max_reuse",
    "sub_group",
    "gather_16bit_on_save",
    "offload_optimizer",
    "offload_param",
    "offload_path",
    "wrap",
    "wrap_match",
    "wrap_min_params",
    "prefetch_backward",
    "prefetch_forward",
    "report_every",
    "report_times",
    NULL,
};

void resolution_free(resolution *r)
{
    free(r->notices);
    r->notices   = NULL;
    r->n_notices = 0;
}

/* ---- effective sections ---------------------------------------------------------------------------------- */

static void leave_section(resolver *r, const char *section, const fact *kind)
{
    char reason[RESOLVED_LINE_BYTES];
    const size_t n = strlen(section);
    const fact *f  = NULL;
    for (size_t i = 0; i < r->n; i++) {
        if (r->facts[i].is_out || strncmp(r->facts[i].key->path, section, n) != 0) continue;
        if (f == NULL) f = &r->facts[i];
        r->facts[i].is_out = true;
    }
    if (f == NULL) return;
    snprintf(reason, sizeof reason, "distributed_type is %s", kind->key->text);
    facts_ignore(r, f, n - 1, reason);
}

static pen_status choose_sections(resolver *r)
{
    const fact *kind = facts_find(r, "distributed_type");
    const fact *n    = facts_find(r, "num_processes");
    if (kind == NULL) return PEN_OK;
    const bool is_fsdp = strcmp(kind->value, "FSDP") == 0;
    const bool is_deep = strcmp(kind->value, "DEEPSPEED") == 0;
    if (r->json != NULL && !is_deep)
        return why_set(r->why, PEN_BAD_SETTING,
                       "%s (distributed_type: %s) and %s, a configuration of DeepSpeed, "
                       "contradict each other: say DEEPSPEED, or leave the file out",
                       document_place(kind->from, kind->key).text, kind->key->text, r->json->name);
    if (strcmp(kind->value, "NO") == 0 && n != NULL && strcmp(n->value, "1") != 0)
        return facts_contradict(r, kind, n);
    if (!is_deep) leave_section(r, "deepspeed_config.", kind);
    if (!is_fsdp) leave_section(r, "fsdp_config.", kind);
    return PEN_OK;
}

/* ---- the mode, and the stage of ZeRO --------------------------------------------------------------------- */

static int stage_of(const char *mode)
{
    static const struct {
        const char *mode;
        int stage;
    } stages[] = {{"zero1", 1},
                  {"zero2", 2},
                  {"zero3", 3},
                  {"full_shard", 3},
                  {"FULL_SHARD", 3},
                  {"shard_grad_op", 2},
                  {"SHARD_GRAD_OP", 2},
                  {"hybrid_shard", 3},
                  {"HYBRID_SHARD", 3},
                  {"hybrid_shard_zero2", 2},
                  {"HYBRID_SHARD_ZERO2", 2}};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (strcmp(stages[i].mode, mode) == 0) return stages[i].stage;
    return 0;
}

static bool is_kind(resolver *r, const char *kind)
{
    const fact *f = facts_find(r, "distributed_type");
    return f != NULL && strcmp(f->value, kind) == 0;
}

static pen_status put_fact(resolver *r, const fact *f)
{
    char place[RESOLVED_LINE_BYTES];
    facts_place(f, place, sizeof place);
    return f->row->use == KEY_STARTS ? resolver_put_start(r, f->row->target, f->value, place)
                                     : resolver_put(r, f->row->target, f->value, place);
}

static pen_status choose_mode(resolver *r)
{
    const char *layer;
    pen_status status = facts_compare(r, "mode");
    for (size_t i = 0; i < r->n && status == PEN_OK; i++) {
        const fact *f = &r->facts[i];
        if (!f->is_out && f->row->use == KEY_SETS && strcmp(f->row->target, "mode") == 0)
            status = put_fact(r, f);
    }
    if (status != PEN_OK) return status;
    if (is_kind(r, "FSDP"))
        status = resolver_put(r, "mode", "full_shard", "default of fsdp_sharding_strategy");
    if (is_kind(r, "DEEPSPEED") && r->json == NULL)
        status = resolver_put(r, "mode", "zero2", "default of zero_stage");
    const resolved_value *mode = resolved_find(&r->out->settings, "mode");
    const char *given          = resolver_given(r, "mode", &layer);
    r->stage = given != NULL ? stage_of(given) : mode != NULL ? stage_of(mode->value) : 0;
    /* The default is DeepSpeed's, which keeps what is used again soon. */
    if (status == PEN_OK && r->stage == 3 && is_kind(r, "FSDP"))
        status = resolver_put(r, "max_reuse", "0", "FSDP reshards after the forward pass");
    return status;
}

static void leave_by_stage(resolver *r)
{
    char reason[RESOLVED_LINE_BYTES];
    for (fact *f = r->facts; f < r->facts + r->n; f++) {
        if (f->is_out) continue;
        const bool is_bucket = strcmp(f->key->path, "zero_optimization.allgather_bucket_size") == 0;
        if (is_bucket && r->stage == 3)
            facts_leave(r, f, "at stage 3 stage3_prefetch_bucket_size says it");
        if (f->is_out || f->row->stage <= r->stage) continue;
        snprintf(reason, sizeof reason, "it is for ZeRO stage %d, and this is stage %d",
                 f->row->stage, r->stage);
        f->is_out = strcmp(f->value, "no") == 0 || strcmp(f->value, "none") == 0;
        if (!f->is_out) facts_leave(r, f, reason);
    }
}

/* ---- offloading to files needs a stage and a folder ------------------------------------------------------ */

static const fact *find_target(resolver *r, const char *target, const char *value)
{
    for (const fact *f = r->facts; f < r->facts + r->n; f++)
        if (!f->is_out && !f->is_auto && f->row->target != NULL &&
            strcmp(f->row->target, target) == 0 && (value == NULL || strcmp(f->value, value) == 0))
            return f;
    return NULL;
}

static pen_status check_nvme(resolver *r, const char *target, int stage)
{
    const char *layer;
    const fact *f = find_target(r, target, "nvme");
    if (f == NULL || resolver_given(r, target, &layer) != NULL) return PEN_OK;
    if (r->stage < stage)
        return why_set(r->why, PEN_BAD_SETTING,
                       "%s: %s nvme needs ZeRO stage %d%s, but this is stage %d",
                       document_place(f->from, f->key).text, f->key->path, stage,
                       stage < 3 ? " or more" : "", r->stage);
    if (find_target(r, "offload_path", NULL) == NULL &&
        resolver_given(r, "offload_path", &layer) == NULL)
        return why_set(r->why, PEN_BAD_SETTING,
                       "%s: %s nvme needs a folder: say nvme_path, or --offload-path DIR",
                       document_place(f->from, f->key).text, f->key->path);
    return PEN_OK;
}

/* ---- auto ------------------------------------------------------------------------------------------------ */

static pen_status by_hidden_size(resolver *r, const fact *f, double square, double linear)
{
    char value[CONFIG_TEXT_BYTES], source[RESOLVED_LINE_BYTES], *end;
    const char *text = r->flags->hidden_size;
    if (text == NULL) {
        resolver_open(r, f, "hidden-size", "N",
                      ", which is made from the hidden size of the model");
        return PEN_OK;
    }
    const double h = strtod(text, &end);
    snprintf(value, sizeof value, "%.0f", floor(square * h * h + linear * h));
    snprintf(source, sizeof source, "auto: %s of hidden size %s, %s",
             linear > 0   ? "10 times"
             : square < 1 ? "0.9 of the square"
                          : "the square",
             text, document_place(f->from, f->key).text);
    return resolver_put(r, f->row->target, value, source);
}

static pen_status put_auto(resolver *r, const fact *f)
{
    char source[RESOLVED_LINE_BYTES];
    const char *layer;
    if (find_target(r, f->row->target, NULL) != NULL) return PEN_OK; /* another key sets it */
    if (resolver_given(r, f->row->target, &layer) != NULL)
        return resolver_put(r, f->row->target, "", "");
    switch (f->row->automatic) {
    case AUTO_H2: return by_hidden_size(r, f, 1, 0);
    case AUTO_H2_9: return by_hidden_size(r, f, 0.9, 0);
    case AUTO_H10: return by_hidden_size(r, f, 0, 10);
    case AUTO_CONSTANT:
        snprintf(source, sizeof source, "auto: its default, %s",
                 document_place(f->from, f->key).text);
        return resolver_put(r, f->row->target, f->row->usual, source);
    case AUTO_OTHERS:
        resolver_notice(r, "%s: %s is auto: left to the batch plan and the program",
                        document_place(f->from, f->key).text, f->key->path);
        return PEN_OK;
    case AUTO_FLAG:
    case AUTO_NEVER: break;
    }
    return why_set(r->why, PEN_INTERNAL, "no rule for auto of %s", f->key->path);
}

static pen_status put_rest(resolver *r)
{
    pen_status status = PEN_OK;
    for (size_t i = 0; i < r->n && status == PEN_OK; i++) {
        const fact *f = &r->facts[i];
        if (f->is_out || (f->row->use != KEY_SETS && f->row->use != KEY_STARTS)) continue;
        status = f->is_auto ? put_auto(r, f) : put_fact(r, f);
    }
    const bool plugs_in = is_kind(r, "DEEPSPEED") && r->json == NULL;
    if (status == PEN_OK && plugs_in)
        status = resolver_put(r, "clip", "1", "default of gradient_clipping");
    return status;
}

/* use_cpu and gpu_ids are one variable of the processes. */
static pen_status put_devices(resolver *r)
{
    fact *cpu = facts_find(r, "use_cpu"), *ids = facts_find(r, "gpu_ids");
    char place[RESOLVED_LINE_BYTES];
    const bool hides = cpu != NULL && strcmp(cpu->value, "yes") == 0;
    const bool names = ids != NULL && strcmp(ids->value, "all") != 0;
    if (hides && names) return facts_contradict(r, cpu, ids);
    if (hides || names) {
        const fact *f = hides ? cpu : ids;
        facts_place(f, place, sizeof place);
        pen_status status =
            resolver_put_start(r, "cuda_visible_devices", hides ? "" : ids->value, place);
        if (status != PEN_OK) return status;
    }
    if (cpu != NULL) cpu->is_out = true;
    if (ids != NULL) ids->is_out = true;
    return PEN_OK;
}

static pen_status apply_rules(resolver *r)
{
    pen_status status = choose_sections(r);
    if (status == PEN_OK) status = choose_mode(r);
    if (status == PEN_OK) status = check_nvme(r, "offload_optimizer", 1);
    if (status == PEN_OK) status = check_nvme(r, "offload_param", 3);
    if (status != PEN_OK) return status;
    leave_by_stage(r);
    status = facts_compare(r, NULL);
    if (status == PEN_OK) status = put_devices(r);
    if (status == PEN_OK) status = resolve_precision(r);
    if (status == PEN_OK) status = resolve_optim(r);
    if (status == PEN_OK) status = resolve_schedule(r);
    if (status == PEN_OK) status = resolve_units(r);
    return status == PEN_OK ? put_rest(r) : status;
}

pen_status resolve(const document *yaml, const document *json, const resolve_flags *flags,
                   resolve_given given, resolution *out, pen_error *why)
{
    resolver r = {
        .yaml = yaml, .json = json, .flags = flags, .given = given, .out = out, .why = why};
    *out    = (resolution){.notices = NULL};
    r.facts = calloc(FACTS_MAX, sizeof *r.facts);
    if (r.facts == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the configuration");
    pen_status status = PEN_OK;
    if (yaml != NULL) status = facts_collect(&r, yaml, accelerate_keys);
    if (status == PEN_OK && json != NULL) status = facts_collect(&r, json, deepspeed_keys);
    if (status == PEN_OK) status = apply_rules(&r);
    if (status == PEN_OK) status = resolver_end_open(&r);
    free(r.facts);
    return status;
}
