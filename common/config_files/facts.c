/* facts.c - collects the keys of both files and detects contradictions. */
#include "common/config_files/resolver.h"

#include "common/base/why.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL: too many, or no memory. */
static resolved_notice *add_notice(resolver *r)
{
    resolution *out = r->out;
    if (out->notices == NULL) out->notices = calloc(RESOLVED_LINES_MAX, sizeof *out->notices);
    const bool is_full = out->notices == NULL || out->n_notices == RESOLVED_LINES_MAX;
    return is_full ? NULL : &out->notices[out->n_notices++];
}

void resolver_notice(resolver *r, const char *format, ...)
{
    va_list args;
    resolved_notice *n = add_notice(r);
    if (n == NULL) return;
    va_start(args, format);
    vsnprintf(n->text, sizeof n->text, format, args);
    va_end(args);
}

void facts_ignore(resolver *r, const fact *f, size_t bytes, const char *reason)
{
    resolved_notice *n = add_notice(r);
    const int size     = bytes > 0 ? (int)bytes : (int)strlen(f->key->path);
    if (n == NULL) return;
    snprintf(n->key, sizeof n->key, "%.*s (%s)", size, f->key->path,
             document_place(f->from, f->key).text);
    snprintf(n->text, sizeof n->text, "%s: %.*s has no effect: %s",
             document_place(f->from, f->key).text, size, f->key->path, reason);
}

const char *resolver_remedy(const resolver *r, const char *flag, const char *value, char text[128])
{
    if (!r->flags->are_variables) {
        snprintf(text, 128, "say --%s%s%s", flag, value[0] != '\0' ? " " : "", value);
        return text;
    }
    int n = snprintf(text, 128, "set PENSTOCK_");
    for (const char *c = flag; *c != '\0' && n < 126; c++)
        text[n++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    text[n] = '\0';
    return text;
}

void facts_place(const fact *f, char *text, size_t size)
{
    snprintf(text, size, "%s", document_place(f->from, f->key).text);
}

void facts_leave(resolver *r, fact *f, const char *reason)
{
    f->is_out = true;
    facts_ignore(r, f, 0, reason);
}

fact *facts_find(resolver *r, const char *path)
{
    for (size_t i = 0; i < r->n; i++)
        if (!r->facts[i].is_out && strcmp(r->facts[i].key->path, path) == 0) return &r->facts[i];
    return NULL;
}

/* Whether a path is a section, possibly empty or null. */
static bool is_section(const key_row *rows, const char *path)
{
    const size_t n = strlen(path);
    for (const key_row *r = rows; r->path != NULL; r++)
        if (strncmp(r->path, path, n) == 0 && r->path[n] == '.') return true;
    return false;
}

static bool is_usual(const key_row *row, const char *value)
{
    static const char *const same[] = {"true", "yes", "false", "no"};
    if (row->usual == NULL) return false;
    if (key_same_value(row->usual, value)) return true;
    for (int i = 0; i < 4; i += 2)
        if ((strcmp(row->usual, same[i]) == 0 && strcmp(value, same[i + 1]) == 0) ||
            (strcmp(row->usual, same[i + 1]) == 0 && strcmp(value, same[i]) == 0))
            return true;
    return false;
}

static void tell_if_idle(resolver *r, fact *f)
{
    char reason[RESOLVED_LINE_BYTES];
    const bool usual = is_usual(f->row, f->value);
    if (f->row->use == KEY_IDLE && usual) f->is_out = true;
    if (f->row->use == KEY_IDLE && !usual) facts_leave(r, f, f->row->doc);
    if (f->row->use != KEY_ALWAYS || usual) return;
    snprintf(reason, sizeof reason, "it is always %s here, for %s",
             strcmp(f->row->usual, "yes") == 0 ? "true" : "false", f->row->doc);
    facts_leave(r, f, reason);
}

static bool is_told(const resolver *r, const fact *f)
{
    for (const fact *g = r->facts; g < f; g++)
        if (g->row == f->row && g->from == f->from) return true;
    return false;
}

static pen_status collect_one(resolver *r, const document *from, const document_key *key,
                              const key_row *rows)
{
    const char *nearest;
    const key_row *row  = key_find(rows, key->path, &nearest);
    const bool is_empty = key->kind == DOCUMENT_EMPTY && (row == NULL || row->value == KEY_ANY);
    const bool is_bare  = is_empty || key->kind == DOCUMENT_NULL;
    if (is_bare && (row != NULL || is_section(rows, key->path))) return PEN_OK;
    if (row == NULL)
        return why_set(r->why, PEN_BAD_SETTING, "%s: unknown key '%s'; did you mean '%s'?",
                       document_place(from, key).text, key->path, nearest);
    fact *f    = &r->facts[r->n++];
    *f         = (fact){.row = row, .from = from, .key = key};
    f->is_auto = key->kind == DOCUMENT_TEXT && strcmp(key->text, "auto") == 0;
    if (f->is_auto && row->value != KEY_ANY && row->automatic == AUTO_NEVER)
        return why_set(r->why, PEN_BAD_SETTING,
                       "%s: %s is 'auto', but nothing fills that in: write the value",
                       document_place(from, key).text, key->path);
    if (f->is_auto) return PEN_OK;
    pen_status status = key_convert(row, from, key, f->value, r->why);
    if (status != PEN_OK) return status;
    const bool is_wild = strchr(row->path, '*') != NULL;
    if (is_wild && is_told(r, f)) /* one notice for a whole section */
        f->is_out = true;
    else
        tell_if_idle(r, f);
    return PEN_OK;
}

pen_status facts_collect(resolver *r, const document *from, const key_row *rows)
{
    for (size_t i = 0; i < from->n; i++) {
        pen_status status = collect_one(r, from, &from->keys[i], rows);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

pen_status facts_contradict(resolver *r, const fact *a, const fact *b)
{
    return why_set(r->why, PEN_BAD_SETTING, "%s (%s: %s) and %s (%s: %s) contradict each other",
                   document_place(a->from, a->key).text, a->key->path, a->key->text,
                   document_place(b->from, b->key).text, b->key->path, b->key->text);
}

static bool is_value(const fact *f, const char *target)
{
    return !f->is_out && !f->is_auto && (f->row->use == KEY_SETS || f->row->use == KEY_STARTS) &&
           (target == NULL || strcmp(f->row->target, target) == 0);
}

pen_status facts_compare(resolver *r, const char *target)
{
    for (const fact *a = r->facts; a < r->facts + r->n; a++)
        for (const fact *b = a + 1; is_value(a, target) && b < r->facts + r->n; b++)
            if (is_value(b, target) && strcmp(a->row->target, b->row->target) == 0 &&
                !key_same_value(a->value, b->value))
                return facts_contradict(r, a, b);
    return PEN_OK;
}
