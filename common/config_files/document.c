/* document.c - keys of a configuration file: added, found. */
#include "common/config_files/document.h"

#include "common/base/why.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pen_status document_path(document *d, const char *above, const char *key, int line,
                         char path[DOCUMENT_PATH_BYTES], pen_error *why)
{
    const int n =
        snprintf(path, DOCUMENT_PATH_BYTES, "%s%s%s", above, above[0] != '\0' ? "." : "", key);
    for (char *c = path; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?'; /* errors may reach a terminal */
    if (key[0] == '\0')
        return why_set(why, PEN_BAD_SETTING, "%s:%d: a key without a name", d->name, line);
    if (n >= DOCUMENT_PATH_BYTES)
        return why_set(why, PEN_BAD_SETTING, "%s:%d: the key '%.40s...' is longer than %d bytes",
                       d->name, line, path, DOCUMENT_PATH_BYTES - 1);
    return PEN_OK;
}

const document_key *document_find(const document *d, const char *path)
{
    for (size_t i = 0; i < d->n; i++)
        if (strcmp(d->keys[i].path, path) == 0) return &d->keys[i];
    return NULL;
}

pen_status document_add(document *d, const char *path, const char *text, document_kind kind,
                        int line, pen_error *why)
{
    const document_key *first = document_find(d, path);
    if (first != NULL)
        return why_set(why, PEN_BAD_SETTING, "%s: %s is given twice, on lines %d and %d", d->name,
                       path, first->line, line);
    if (d->n == DOCUMENT_KEYS_MAX)
        return why_set(why, PEN_BAD_SETTING, "%s:%d: more than %d keys", d->name, line,
                       DOCUMENT_KEYS_MAX);
    if (strlen(text) >= CONFIG_TEXT_BYTES)
        return why_set(why, PEN_BAD_SETTING, "%s:%d: %s is %zu bytes long, but at most %d fit",
                       d->name, line, path, strlen(text), CONFIG_TEXT_BYTES - 1);
    if (d->keys == NULL) d->keys = calloc(DOCUMENT_KEYS_MAX, sizeof *d->keys);
    if (d->keys == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the keys of %s", d->name);

    document_key *key = &d->keys[d->n++];
    snprintf(key->path, sizeof key->path, "%s", path);
    snprintf(key->text, sizeof key->text, "%s", text);
    for (char *c = key->text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    key->kind = kind;
    key->line = line;
    return PEN_OK;
}

document_spot document_place(const document *d, const document_key *key)
{
    document_spot at;
    const char *dot = strrchr(key->path, '.');
    if (key->line > 0)
        snprintf(at.text, sizeof at.text, "%s:%d", d->name, key->line);
    else
        snprintf(at.text, sizeof at.text, "--%s", dot != NULL ? dot + 1 : key->path);
    return at;
}

pen_status document_overlay(document *d, const document *flags, pen_error *why)
{
    for (size_t i = 0; i < flags->n; i++) {
        const document_key *key = &flags->keys[i];
        document_key *old       = (document_key *)(uintptr_t)document_find(d, key->path);
        if (old != NULL) {
            *old = *key;
            continue;
        }
        const pen_status status = document_add(d, key->path, key->text, key->kind, 0, why);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

void document_free(document *d)
{
    free(d->keys);
    d->keys = NULL;
    d->n    = 0;
}
