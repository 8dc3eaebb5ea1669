/* resolve_rules.c - settings that several keys form together: precision, update rule, schedule, units. */
#include "common/config_files/resolver.h"

#include "common/base/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_on(const fact *f)
{
    return f != NULL && !f->is_auto && strcmp(f->value, "yes") == 0;
}

static bool is_off(const fact *f)
{
    return f != NULL && !f->is_auto && strcmp(f->value, "no") == 0;
}

/* ---- precision ------------------------------------------------------------------------------------------- */
/* Compares the JSON file and mixed_precision about one type; a file may exclude the type. */
static pen_status compare_precision(resolver *r, const fact *half, const char *type,
                                    const fact *mixed)
{
    if (half == NULL || half->is_auto || mixed == NULL) return PEN_OK;
    const bool same = strcmp(mixed->value, type) == 0;
    if (is_on(half) != same && (is_on(half) || same)) return facts_contradict(r, half, mixed);
    return PEN_OK;
}

pen_status resolve_precision(resolver *r)
{
    char place[RESOLVED_LINE_BYTES];
    const char *layer, *given = resolver_given(r, "precision", &layer);
    const fact *fp16 = facts_find(r, "fp16.enabled"), *bf16 = facts_find(r, "bf16.enabled");
    const fact *old = facts_find(r, "bfloat16.enabled"), *mixed = facts_find(r, "mixed_precision");
    if (bf16 != NULL && old != NULL && is_on(bf16) != is_on(old))
        return facts_contradict(r, bf16, old);
    if (bf16 == NULL) bf16 = old;
    if (is_on(fp16) && is_on(bf16)) return facts_contradict(r, fp16, bf16);
    pen_status status = compare_precision(r, fp16, "fp16", mixed);
    if (status == PEN_OK) status = compare_precision(r, bf16, "bf16", mixed);
    if (status != PEN_OK) return status;

    const fact *by    = is_on(fp16) ? fp16 : is_on(bf16) ? bf16 : mixed;
    const char *value = is_on(fp16) ? "fp16" : is_on(bf16) ? "bf16" : mixed ? mixed->value : "fp32";
    const bool is_said = by != NULL || is_off(fp16) || is_off(bf16);
    if (by != NULL)
        facts_place(by, place, sizeof place);
    else if (is_said)
        facts_place(is_off(fp16) ? fp16 : bf16, place, sizeof place);
    if (is_said || given != NULL) status = resolver_put(r, "precision", value, place);
    if (strcmp(given != NULL ? given : value, "fp16") != 0) {
        for (fact *f = r->facts; f < r->facts + r->n; f++) {
            const bool is_scale = strncmp(f->key->path, "fp16.", 5) == 0 && f->row->use == KEY_SETS;
            if (is_scale && !f->is_out) facts_leave(r, f, "the job does not train in fp16");
        }
    }
    return status;
}

/* ---- values whose "auto" is a flag ----------------------------------------------------------------------- */
static const char *flag_of(const resolver *r, const char *name)
{
    const struct {
        const char *name, *value;
    } flags[] = {{"lr", r->flags->lr},
                 {"weight-decay", r->flags->weight_decay},
                 {"warmup-steps", r->flags->warmup_steps},
                 {"total-steps", r->flags->total_steps}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(flags[i].name, name) == 0) return flags[i].value;
    return NULL;
}

typedef struct {
    char text[CONFIG_TEXT_BYTES];
    size_t used;
    bool has_auto;     /* some value was auto */
    bool is_open;      /* and has no value yet */
    const char *given; /* settings given by a flag or the environment */
    const char *own;   /* the program's own words; NULL: none, or of another rule */
    char value[CONFIG_TEXT_BYTES];
} words;

/* A rule's name and settings begin; `own` is what the program says of it. */
static words begin_words(const char *rule, const char *own)
{
    const size_t n = strlen(rule);
    words w        = {.used = (size_t)snprintf(w.text, sizeof w.text, "%s", rule)};
    if (own != NULL && strncmp(own, rule, n) == 0 && (own[n] == ' ' || own[n] == '\0')) w.own = own;
    return w;
}

/* The value of `name` in "adamw lr=1e-3 ..."; NULL: not there. */
static const char *word_of(const char *text, const char *name, char value[CONFIG_TEXT_BYTES])
{
    const size_t n = strlen(name);
    for (const char *at = text; at != NULL && (at = strchr(at, ' ')) != NULL;) {
        if (strncmp(++at, name, n) != 0 || at[n] != '=') continue;
        at += n + 1;
        snprintf(value, CONFIG_TEXT_BYTES, "%.*s", (int)strcspn(at, " "), at);
        return value;
    }
    return NULL;
}

/* The value of a key that may be auto: its flag's, else the file's, else the program's.  *value is NULL if the key is
 * absent, or open. */
static void flagged(resolver *r, words *w, const char *path, const char **value)
{
    const fact *f = facts_find(r, path);
    *value        = NULL;
    if (f == NULL) return;
    const bool has_flag = f->row->automatic == AUTO_FLAG;
    const char *flag    = has_flag ? flag_of(r, f->row->usual) : NULL;
    *value              = flag != NULL ? flag : f->is_auto ? NULL : f->value;
    if (f->is_auto) w->has_auto = true;
    if (f->is_auto && f->row->automatic == AUTO_CONSTANT) *value = f->row->usual;
    if (*value == NULL) *value = word_of(w->own, strrchr(path, '.') + 1, w->value);
    if (*value != NULL || !has_flag) return;
    w->is_open = true;
    resolver_open(r, f, f->row->usual, "", "");
}

/* ---- optimizer ------------------------------------------------------------------------------------------- */
static pen_status put_words(resolver *r, const words *w, const char *setting, const char *place)
{
    char source[RESOLVED_LINE_BYTES + 32];
    if (w->is_open) return PEN_OK;
    snprintf(source, sizeof source, "%s%s", place, w->has_auto ? " (auto filled in)" : "");
    if (w->used < sizeof w->text) return resolver_put(r, setting, w->text, source);
    return why_set(r->why, PEN_BAD_SETTING, "%s: %s is longer than %zu bytes", place, setting,
                   sizeof w->text - 1);
}

static void add_word(words *w, const char *name, const char *value)
{
    if (value == NULL || w->used >= sizeof w->text) return;
    w->used += (size_t)snprintf(w->text + w->used, sizeof w->text - w->used, " %s=%s", name, value);
}

static void add_flagged(resolver *r, words *w, const char *name)
{
    char path[DOCUMENT_PATH_BYTES];
    const char *value;
    if (word_of(w->given, name, w->value) != NULL) return;
    snprintf(path, sizeof path, "optimizer.params.%s", name);
    flagged(r, w, path, &value);
    const bool is_absent = facts_find(r, path) == NULL;
    if (is_absent && strcmp(name, "lr") == 0) value = r->flags->lr;
    if (is_absent && strcmp(name, "weight_decay") == 0) value = r->flags->weight_decay;
    add_word(w, name, value);
}

static pen_status add_betas(resolver *r, words *w)
{
    char one[CONFIG_TEXT_BYTES], two[CONFIG_TEXT_BYTES];
    const char *value;
    int used      = 0;
    const fact *f = facts_find(r, "optimizer.params.betas");
    flagged(r, w, "optimizer.params.betas", &value);
    if (value == NULL) return PEN_OK;
    if (sscanf(value, "%100[0-9.eE-],%100[0-9.eE-]%n", one, two, &used) != 2 || value[used] != '\0')
        return why_set(r->why, PEN_BAD_SETTING,
                       "%s: betas are '%.80s', but must be like "
                       "[0.9, 0.999]",
                       document_place(f->from, f->key).text, value);
    add_word(w, "beta1", one);
    add_word(w, "beta2", two);
    return PEN_OK;
}

/* DeepSpeed's Adam is AdamW unless adam_w_mode is false, and its AdamW always is. */
static pen_status choose_rule(resolver *r, const fact *type, const char **rule)
{
    const fact *decoupled = facts_find(r, "optimizer.params.adam_w_mode");
    *rule                 = type->value;
    if (strcmp(type->value, "adamw") == 0 && is_off(decoupled))
        return facts_contradict(r, type, decoupled);
    if (strcmp(type->value, "adam") == 0 && !is_off(decoupled)) *rule = "adamw";
    return PEN_OK;
}

static pen_status put_simd(resolver *r)
{
    char place[RESOLVED_LINE_BYTES];
    const fact *plain = facts_find(r, "optimizer.params.torch_adam");
    if (!is_on(plain)) return PEN_OK;
    facts_place(plain, place, sizeof place);
    return resolver_put(r, "simd", "scalar", place);
}

pen_status resolve_optim(resolver *r)
{
    const fact *type = facts_find(r, "optimizer.type");
    char place[RESOLVED_LINE_BYTES];
    const char *rule, *layer;
    if (type == NULL) return PEN_OK;
    facts_place(type, place, sizeof place);
    pen_status status = put_simd(r);
    if (status == PEN_OK) status = choose_rule(r, type, &rule);
    const char *given = resolver_given(r, "optim", &layer);
    const size_t n    = status == PEN_OK ? strlen(rule) : 0;
    if (status != PEN_OK) return status;
    if (given != NULL && (strncmp(given, rule, n) != 0 || (given[n] != ' ' && given[n] != '\0')))
        return resolver_put(r, "optim", "", ""); /* another rule: the file's values do not apply */
    words w = begin_words(rule, r->flags->optim);
    w.given = given;
    add_flagged(r, &w, "lr");
    add_flagged(r, &w, "weight_decay");
    const bool is_adamw = strcmp(rule, "adamw") == 0;
    const bool is_bare =
        facts_find(r, "optimizer.params.weight_decay") == NULL && r->flags->weight_decay == NULL;
    if (is_adamw && is_bare && !is_on(facts_find(r, "optimizer.params.torch_adam")))
        add_word(&w, "weight_decay", "0"); /* DeepSpeed's; ours is 0.01, as in torch */
    status = add_betas(r, &w);
    add_flagged(r, &w, "eps");
    add_flagged(r, &w, "momentum");
    add_flagged(r, &w, "nesterov");
    if (status != PEN_OK || given == NULL || w.is_open)
        return status == PEN_OK ? put_words(r, &w, "optim", place) : status;
    return resolver_override_optim(r, w.text, given, place, layer);
}

/* --lr, or the optimizer's rate from --optim, the file or the program. */
static const char *rate_of(resolver *r, char text[CONFIG_TEXT_BYTES])
{
    const char *layer, *optim = resolver_given(r, "optim", &layer);
    const fact *rate = facts_find(r, "optimizer.params.lr");
    if (r->flags->lr != NULL) return r->flags->lr;
    if (word_of(optim, "lr", text) != NULL) return text;
    if (optim == NULL && rate != NULL && !rate->is_auto) return rate->value;
    return word_of(r->flags->optim, "lr", text);
}

/* A key of the schedule; "auto" for the rate and the last step has a second source. */
static void rate_value(resolver *r, words *w, const fact *f, const char **value)
{
    const char *layer;
    const char *steps  = resolver_given(r, "steps", &layer);
    const bool is_last = strcmp(f->key->path, "scheduler.params.total_num_steps") == 0;
    const bool is_rate = strcmp(f->key->path, "scheduler.params.warmup_max_lr") == 0;
    if (steps == NULL) steps = r->flags->steps;
    *value = NULL;
    if (f->is_auto) w->has_auto = true;
    if (f->is_auto && is_rate) *value = rate_of(r, w->value);
    if (f->is_auto && is_last && r->flags->total_steps == NULL && steps != NULL &&
        strcmp(steps, "0") != 0)
        *value = steps;
    if (!f->is_auto && is_rate) *value = f->value; /* --lr belongs to the optimizer */
    if (*value == NULL) flagged(r, w, f->key->path, value);
}

pen_status resolve_schedule(resolver *r)
{
    static const char params[] = "scheduler.params.";
    const fact *type           = facts_find(r, "scheduler.type");
    char place[RESOLVED_LINE_BYTES];
    const char *layer, *value;
    if (type == NULL) return PEN_OK;
    facts_place(type, place, sizeof place);
    if (resolver_given(r, "schedule", &layer) != NULL) return resolver_put(r, "schedule", "", "");
    words w = begin_words(type->value, r->flags->schedule);
    for (const fact *f = r->facts; f < r->facts + r->n; f++) {
        if (f->is_out || strncmp(f->key->path, params, strlen(params)) != 0) continue;
        rate_value(r, &w, f, &value);
        add_word(&w, f->key->path + strlen(params), value);
    }
    return put_words(r, &w, "schedule", place);
}

/* ---- units of FSDP --------------------------------------------------------------------------------------- */
/* The units of well-known classes, as patterns of tensor names: transformers' names, inside any enclosing model
 * (worker/tensor/unit.h). */
static const struct {
    const char *class, *glob;
} layers[] = {
    {"GPT2Block", "**.h.*"},
    {"GPTJBlock", "**.h.*"},
    {"T5Block", "**.encoder.block.*|**.decoder.block.*"},
    {"LlamaDecoderLayer", "**.layers.*"},
    {"BertLayer", "**.encoder.layer.*"},
    {"BertEmbeddings", "**.embeddings"},
    {"BertSelfOutput", "**.encoder.layer.*.attention.output"},
};

static const char *glob_of(const char *class, size_t n)
{
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if (strlen(layers[i].class) == n && strncmp(layers[i].class, class, n) == 0)
            return layers[i].glob;
    return NULL;
}

static pen_status put_classes(resolver *r, const fact *f)
{
    char globs[CONFIG_TEXT_BYTES], place[RESOLVED_LINE_BYTES];
    size_t used = 0;
    facts_place(f, place, sizeof place);
    for (const char *at = f->value; *at != '\0';) {
        at += strspn(at, ", ");
        const size_t n    = strcspn(at, ", ");
        const char *known = glob_of(at, n);
        if (n > 0 && used < sizeof globs)
            used += (size_t)snprintf(
                globs + used, sizeof globs - used, "%s%.*s", used > 0 ? "," : "",
                known != NULL ? (int)strlen(known) : (int)n, known != NULL ? known : at);
        at += n;
    }
    if (used >= sizeof globs)
        return why_set(r->why, PEN_BAD_SETTING,
                       "%s: the globs of these classes are longer than %zu "
                       "bytes",
                       place, sizeof globs - 1);
    return used > 0 ? resolver_put(r, "wrap_match", globs, place) : PEN_OK;
}

pen_status resolve_units(resolver *r)
{
    char place[RESOLVED_LINE_BYTES];
    const fact *classes = facts_find(r, "fsdp_config.fsdp_transformer_layer_cls_to_wrap");
    const fact *offload = facts_find(r, "fsdp_config.fsdp_offload_params");
    const fact *later   = facts_find(r, "fsdp_config.fsdp_cpu_offload");
    pen_status status   = classes != NULL ? put_classes(r, classes) : PEN_OK;
    if (offload != NULL && later != NULL && is_on(offload) != is_on(later))
        return facts_contradict(r, offload, later);
    if (offload == NULL) offload = later;
    if (status != PEN_OK || !is_on(offload)) return status;
    facts_place(offload, place, sizeof place);
    status = resolver_put(r, "offload_param", "cpu", place);
    return status == PEN_OK ? resolver_put(r, "offload_optimizer", "cpu", place) : status;
}
