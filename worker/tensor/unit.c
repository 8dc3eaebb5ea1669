/* unit.c - makes units and handles from the tensors of a model. */
#include "worker/tensor/unit.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 256 };
#define OUTERMOST 0u

static pen_status no_memory(pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory for the units of the model");
}

/* ---- names ----------------------------------------------------------------------------------- */
static bool is_number(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return n > 0;
}

/* fnmatch() keeps a * from crossing a slash, not a dot. */
static void dots_to_slashes(char *text)
{
    for (; *text != '\0'; text++)
        if (*text == '.') *text = '/';
}

/* A leading **. stands for any number of parts, also none. */
static bool matches_pattern(const char *pattern, const char *prefix)
{
    if (strncmp(pattern, "**/", 3) != 0) return fnmatch(pattern, prefix, FNM_PATHNAME) == 0;
    for (const char *at = prefix; at != NULL; at = strchr(at, '/')) {
        at += *at == '/';
        if (fnmatch(pattern + 3, at, FNM_PATHNAME) == 0) return true;
    }
    return false;
}

/* A pattern or alternative in the first `size` bytes matches the prefix. */
static bool matches_one(const char *patterns, size_t size, const char *prefix)
{
    char pattern[NAME_BYTES];
    const char *end = patterns + size;
    while (patterns < end) {
        const size_t n = strcspn(patterns, ",|");
        snprintf(pattern, sizeof pattern, "%.*s", (int)n, patterns);
        dots_to_slashes(pattern);
        if (matches_pattern(pattern, prefix)) return true;
        patterns += n + 1;
    }
    return false;
}

/* Length of the name's layer prefix; 0: none.  The last part of a name never belongs to the layer. */
static size_t layer_of(const char *name, const char *patterns)
{
    char prefix[NAME_BYTES];
    size_t longest = 0;
    for (size_t at = 0, part; name[at + (part = strcspn(name + at, "."))] != '\0'; at += part + 1) {
        const size_t n = at + part;
        if (n >= sizeof prefix) break;
        if (patterns[0] == '\0') {
            if (is_number(name + at, part)) return n;
            continue;
        }
        memcpy(prefix, name, n);
        prefix[n] = '\0';
        dots_to_slashes(prefix);
        if (matches_one(patterns, strlen(patterns), prefix)) longest = n;
    }
    return longest;
}

static pen_status check_patterns(const char *patterns, pen_error *why)
{
    for (const char *at = patterns; *at != '\0'; at += strcspn(at, ",|") + 1) {
        const size_t n = strcspn(at, ",|");
        if (n == 0 || n >= NAME_BYTES || (at[n] != '\0' && at[n + 1] == '\0'))
            return why_set(why, PEN_BAD_SETTING,
                           "invalid wrap_match '%.100s': empty pattern, or one longer than 255 "
                           "bytes; expected a list like h.*,encoder.layer.*",
                           patterns);
        if (at[n] == '\0') break;
    }
    return PEN_OK;
}

/* ---- patterns that match nothing --------------------------------------------------------------- */
enum { CHOICES_BYTES = 600 };

/* "h.0.attn" becomes "h.*.attn". */
static void star_numbers(const char *prefix, char text[NAME_BYTES])
{
    size_t used = 0;
    for (const char *at = prefix; *at != '\0' && used + 1 < NAME_BYTES;) {
        const size_t n = strcspn(at, ".");
        const int part = is_number(at, n) ? 1 : (int)n;
        used += (size_t)snprintf(text + used, NAME_BYTES - used, "%s%.*s", used > 0 ? "." : "",
                                 part, is_number(at, n) ? "*" : at);
        at += n + (at[n] == '.');
    }
}

static bool is_listed(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == '\0' || at[n] == ',')) return true;
    return false;
}

/* A tensor is in a layer of this pattern, or of one of its alternatives. */
static bool has_layer(const char *pattern, size_t size, const unit_tensor *t, uint32_t n)
{
    char prefix[NAME_BYTES];
    for (uint32_t i = 0; i < n; i++)
        for (const char *dot = strchr(t[i].name, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
            snprintf(prefix, sizeof prefix, "%.*s", (int)(dot - t[i].name), t[i].name);
            dots_to_slashes(prefix);
            if (matches_one(pattern, size, prefix)) return true;
        }
    return false;
}

static pen_status check_matches(const unit_rules *rules, const unit_tensor *t, uint32_t n,
                                pen_error *why)
{
    char list[CHOICES_BYTES];
    if (rules->wrap != WRAP_LAYER) return PEN_OK;
    for (const char *at = rules->match; *at != '\0';) {
        const size_t size = strcspn(at, ",");
        if (!has_layer(at, size, t, n)) {
            /* Patterns that match layers of this model: "h, h.*, h.*.attn", as many as fit. */
            char prefix[NAME_BYTES], word[NAME_BYTES] = "";
            size_t used = 0;
            list[0]     = '\0';
            for (uint32_t i = 0; i < n; i++)
                for (const char *dot = strchr(t[i].name, '.'); dot != NULL;
                     dot             = strchr(dot + 1, '.')) {
                    snprintf(prefix, sizeof prefix, "%.*s", (int)(dot - t[i].name), t[i].name);
                    star_numbers(prefix, word);
                    if (is_listed(list, word) || used + strlen(word) + 8 > CHOICES_BYTES) continue;
                    used += (size_t)snprintf(list + used, CHOICES_BYTES - used, "%s%s",
                                             used > 0 ? ", " : "", word);
                }
            return why_set(why, PEN_BAD_SETTING,
                           "wrap_match: no layer of this model is named '%.*s'%s%s", (int)size, at,
                           list[0] != '\0' ? "; it has " : ": no name of a tensor has a dot", list);
        }
        at += size + (at[size] == ',');
    }
    return PEN_OK;
}

/* ---- building -------------------------------------------------------------------------------- */
typedef struct { /* a partition being made: the group of each tensor */
    uint32_t n;
    size_t capacity;
    char **name;
    uint32_t *of; /* [tensors] */
} draft;

static void free_draft(draft *d)
{
    for (uint32_t i = 0; i < d->n; i++) free(d->name[i]);
    free(d->name);
    free(d->of);
}

/* The group of this name, made if it is new.  False: no memory. */
static bool group_of(draft *d, const char *name, size_t n, uint32_t *group)
{
    for (uint32_t i = d->n; i-- > 0;) /* newest first: tensors of a layer are neighbours */
        if (strlen(d->name[i]) == n && memcmp(d->name[i], name, n) == 0) {
            *group = i;
            return true;
        }
    if (!VEC_ROOM(d->name, d->capacity, d->n + 1)) return false;
    d->name[d->n] = strndup(name, n);
    if (d->name[d->n] == NULL) return false;
    *group = d->n++;
    return true;
}

static bool begin_draft(draft *d, uint32_t n_tensors)
{
    uint32_t outermost;
    *d    = (draft){0};
    d->of = calloc(n_tensors + 1, sizeof *d->of);
    return d->of != NULL && group_of(d, "", 0, &outermost);
}

static const char *label_of(const unit_tensor *t)
{
    return t->label != NULL ? t->label : "";
}

static bool draft_by_name(draft *d, const unit_tensor *t, uint32_t n, bool by_layer,
                          const char *patterns)
{
    for (uint32_t i = 0; i < n; i++) {
        const char *name   = by_layer ? t[i].name : label_of(&t[i]);
        const size_t bytes = by_layer ? layer_of(name, patterns) : strlen(name);
        if (t[i].is_tied || bytes == 0) continue;
        if (!group_of(d, name, bytes, &d->of[i])) return false;
    }
    return true;
}

static bool draft_by_size(draft *d, const unit_tensor *t, uint32_t n, uint64_t min_params)
{
    uint64_t elements = 0;
    for (uint32_t i = 0, first = 0; i < n; i++) {
        if (t[i].is_tied) continue;
        elements += t[i].elements;
        if (elements < min_params) continue;
        char name[32];
        const int bytes = snprintf(name, sizeof name, "size %u", d->n - 1);
        uint32_t group;
        if (!group_of(d, name, (size_t)bytes, &group)) return false;
        for (uint32_t k = first; k <= i; k++)
            if (!t[k].is_tied) d->of[k] = group;
        first    = i + 1;
        elements = 0;
    }
    return true;
}

static bool fill_unit(pen_unit *u, pen_ctx *ctx, uint32_t index, const draft *d,
                      const unit_tensor *t, uint32_t n)
{
    u->ctx    = ctx;
    u->index  = index;
    u->name   = strdup(d->name[index]);
    u->tensor = malloc((n + 1) * sizeof *u->tensor);
    if (u->name == NULL || u->tensor == NULL) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (d->of[i] != index) continue;
        u->tensor[u->n_tensors++] = i;
        u->elements += t[i].elements;
        u->bytes += t[i].bytes;
        if (!t[i].stays) u->moving += t[i].elements;
    }
    return true;
}

static bool make_units(pen_unit **out, uint32_t *n_out, pen_ctx *ctx, const draft *d,
                       const unit_tensor *t, uint32_t n)
{
    pen_unit *all = calloc(d->n, sizeof *all);
    *out          = all;
    if (all == NULL) return false;
    *n_out = d->n;
    for (uint32_t i = 0; i < d->n; i++)
        if (!fill_unit(&all[i], ctx, i, d, t, n)) return false;
    return true;
}

/* The units that contain tensors of u. */
static bool cover(pen_unit *u, const unit_set *set)
{
    bool *has = calloc(set->n, sizeof *has);
    u->covers = calloc(set->n, sizeof *u->covers);
    if (has == NULL || u->covers == NULL) {
        free(has);
        return false;
    }
    for (uint32_t i = 0; i < u->n_tensors; i++) has[set->of[u->tensor[i]]] = true;
    for (uint32_t i = 0; i < set->n; i++)
        if (has[i]) u->covers[u->n_covers++] = i;
    free(has);
    return true;
}

static bool cover_all(unit_set *set)
{
    for (uint32_t i = 0; i < set->n; i++) {
        set->unit[i].covers = malloc(sizeof(uint32_t));
        if (set->unit[i].covers == NULL) return false;
        set->unit[i].covers[0] = i;
        set->unit[i].n_covers  = 1;
    }
    for (uint32_t i = 0; i < set->n_handles; i++)
        if (!cover(&set->handle[i], set)) return false;
    return true;
}

/* By label, else by layer, so that a program finds "h.3" either way. */
static bool draft_handles(draft *d, const unit_tensor *t, uint32_t n, const unit_rules *rules)
{
    const char *patterns = rules->wrap == WRAP_LAYER ? rules->match : "";
    for (uint32_t i = 0; i < n; i++) {
        const char *name = label_of(&t[i]);
        size_t bytes     = strlen(name);
        if (bytes == 0 && rules->wrap == WRAP_LAYER) {
            name  = t[i].name;
            bytes = layer_of(name, patterns);
        }
        if (t[i].is_tied || bytes == 0) continue;
        if (!group_of(d, name, bytes, &d->of[i])) return false;
    }
    return true;
}

static bool draft_units(draft *d, const unit_tensor *t, uint32_t n, const unit_rules *rules)
{
    switch (rules->wrap) {
    case WRAP_UNIT: return draft_by_name(d, t, n, false, "");
    case WRAP_LAYER: return draft_by_name(d, t, n, true, rules->match);
    case WRAP_SIZE: return draft_by_size(d, t, n, rules->min_params);
    case WRAP_NONE: break;
    }
    return true;
}

pen_status units_make(unit_set *set, pen_ctx *ctx, const unit_tensor *tensor, uint32_t n,
                      const unit_rules *rules, pen_error *why)
{
    draft units = {0}, handles = {0};
    *set = (unit_set){0};
    if (check_patterns(rules->match, why) != PEN_OK ||
        check_matches(rules, tensor, n, why) != PEN_OK)
        return why->status;
    const bool is_made = begin_draft(&units, n) && begin_draft(&handles, n) &&
                         draft_units(&units, tensor, n, rules) &&
                         draft_handles(&handles, tensor, n, rules) &&
                         make_units(&set->unit, &set->n, ctx, &units, tensor, n) &&
                         make_units(&set->handle, &set->n_handles, ctx, &handles, tensor, n);
    set->of  = units.of;
    units.of = NULL;
    free_draft(&units);
    free_draft(&handles);
    return is_made && cover_all(set) ? PEN_OK : no_memory(why);
}

static void free_units(pen_unit *all, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        free(all[i].name);
        free(all[i].tensor);
        free(all[i].covers);
    }
    free(all);
}

void units_fini(unit_set *set)
{
    free_units(set->unit, set->n);
    free_units(set->handle, set->n_handles);
    free(set->of);
    *set = (unit_set){0};
}

/* ---- finding --------------------------------------------------------------------------------- */
/* Levenshtein's distance of two short names. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_BYTES];
    const size_t n = strnlen(b, NAME_BYTES - 1);
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0]          = i + 1;
        for (size_t j = 0; j < n; j++) {
            const size_t above = row[j + 1];
            size_t least       = diagonal + (a[i] != b[j]);
            if (row[j] + 1 < least) least = row[j] + 1;
            if (above + 1 < least) least = above + 1;
            row[j + 1] = least;
            diagonal   = above;
        }
    }
    return row[n];
}

static pen_unit *find_unit(const unit_set *set, const char *name)
{
    for (uint32_t i = 0; i < set->n_handles; i++)
        if (strcmp(set->handle[i].name, name) == 0) return &set->handle[i];
    return NULL;
}

static pen_status not_found(const unit_set *set, const char *name, pen_error *why)
{
    const char *nearest = NULL;
    size_t least        = SIZE_MAX;
    for (uint32_t i = 1; i < set->n_handles; i++) {
        const size_t d = distance(name, set->handle[i].name);
        if (d >= least) continue;
        least   = d;
        nearest = set->handle[i].name;
    }
    if (nearest == NULL)
        return why_set(why, PEN_NOT_FOUND,
                       "no unit is named '%.64s', because no tensor has a unit; set "
                       "pen_tensor_desc.unit, or wrap=layer",
                       name);
    return why_set(why, PEN_NOT_FOUND, "no unit is named '%.64s'; the nearest name is '%.64s'",
                   name, nearest);
}

pen_status units_find(const unit_set *set, const char *name, int64_t index, pen_unit **out,
                      pen_error *why)
{
    char full[NAME_BYTES];
    if (name == NULL || name[0] == '\0') {
        *out = &set->handle[OUTERMOST];
        return PEN_OK;
    }
    if (index < 0)
        snprintf(full, sizeof full, "%.200s", name);
    else
        snprintf(full, sizeof full, "%.200s.%lld", name, (long long)index);
    pen_unit *found = find_unit(set, full);
    if (found == NULL && index == 0) found = find_unit(set, name);
    if (found == NULL) return not_found(set, full, why);
    *out = found;
    return PEN_OK;
}
