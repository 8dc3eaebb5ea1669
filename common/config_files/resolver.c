/* resolver.c - the resulting settings, each with its source. */
#include "common/config_files/resolver.h"

#include "common/base/why.h"
#include "common/compute/optim/optim.h"

#include <stdio.h>
#include <string.h>

const resolved_value *resolved_find(const resolved_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->values[i].name, name) == 0) return &list->values[i];
    return NULL;
}

static pen_status put(resolver *r, resolved_list *list, const char *name, const char *value,
                      const char *source)
{
    if (resolved_find(list, name) != NULL) return PEN_OK; /* two places agree */
    if (list->n == RESOLVED_SETTINGS_MAX)
        return why_set(r->why, PEN_INTERNAL, "more than %d settings", RESOLVED_SETTINGS_MAX);
    resolved_value *v = &list->values[list->n++];
    snprintf(v->name, sizeof v->name, "%s", name);
    snprintf(v->value, sizeof v->value, "%s", value);
    snprintf(v->source, sizeof v->source, "%s", source);
    return PEN_OK;
}

const char *resolver_given(const resolver *r, const char *setting, const char **source)
{
    return r->given.find(r->given.user, setting, source);
}

/* Appends a word to a list with commas, once. */
static void add_once(char *list, size_t size, const char *word)
{
    const size_t used = strlen(list), n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == '\0' || at[n] == ',')) return;
    snprintf(list + used, size - used, "%s%s", used > 0 ? ", " : "", word);
}

void resolver_open(resolver *r, const fact *f, const char *flag, const char *value, const char *how)
{
    char remedy[128];
    const char *words = resolver_remedy(r, flag, value, remedy); /* "say --lr" */
    if (r->n_open++ == 0)
        snprintf(r->open_file, sizeof r->open_file, "%s: %s is auto%s: %s",
                 document_place(f->from, f->key).text, f->key->path, how, words);
    add_once(r->open, sizeof r->open, f->key->path);
    add_once(r->open_flags, sizeof r->open_flags, words + strcspn(words, " ") + 1);
}

pen_status resolver_end_open(resolver *r)
{
    if (r->n_open == 0) return PEN_OK;
    char text[sizeof r->open + sizeof r->open_flags + sizeof r->open_file];
    const bool has_flags = strncmp(r->open_flags, "--", 2) == 0;
    const bool is_one    = strchr(r->open, ',') == NULL;
    const char *it       = is_one ? "it" : "them";
    if (is_one)
        snprintf(text, sizeof text, "%s", r->open_file);
    else
        snprintf(text, sizeof text, "%.*s: these are auto: %s; %s %s",
                 (int)strcspn(r->open_file, " ") - 1, r->open_file, r->open,
                 has_flags ? "say" : "set", r->open_flags);
    if (!r->flags->program_may_say)
        return why_set(r->why, PEN_BAD_SETTING,
                       r->flags->optim != NULL ? "%s, or say %s to pen_init()" : "%s", text, it);
    r->out->is_open = true;
    resolver_notice(r, "%s, unless the program says %s", text, it);
    return PEN_OK;
}

pen_status resolver_put(resolver *r, const char *setting, const char *value, const char *source)
{
    const char *layer, *over = resolver_given(r, setting, &layer);
    if (over != NULL) return put(r, &r->out->settings, setting, over, layer);
    return put(r, &r->out->settings, setting, value, source);
}

pen_status resolver_put_start(resolver *r, const char *name, const char *value, const char *source)
{
    return put(r, &r->out->start, name, value, source);
}

pen_status resolver_override_optim(resolver *r, const char *file, const char *given,
                                   const char *place, const char *layer)
{
    char text[CONFIG_TEXT_BYTES], source[RESOLVED_LINE_BYTES + 32];
    if (optim_override(file, given, text, sizeof text, r->why) != PEN_OK) return r->why->status;
    snprintf(source, sizeof source, "%s over %s", layer, place);
    return put(r, &r->out->settings, "optim", text, source);
}
