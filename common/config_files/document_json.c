/* document_json.c - JSON into a document.  jansson parses the JSON; a second walk finds the lines. */
#include "common/config_files/document.h"

#include "common/base/why.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the line of each key.  jansson keeps the order of keys, but not their lines: the n-th key of a walk is the
 * n-th string of the text that a colon follows.  The text is known to be JSON. */
typedef struct {
    const char *at, *end;
    int line;
} key_lines;

static int next_line(key_lines *k)
{
    while (k->at < k->end) {
        if (*k->at != '"') {
            k->line += *k->at++ == '\n';
            continue;
        }
        const int line = k->line;
        for (k->at++; k->at < k->end && *k->at != '"'; k->at++)
            if (*k->at == '\\') k->at++;
        if (k->at < k->end) k->at++;
        while (k->at < k->end && strchr(" \t\r\n", *k->at) != NULL && *k->at != '\0')
            k->line += *k->at++ == '\n';
        if (k->at < k->end && *k->at == ':') return line;
    }
    return k->line;
}

typedef struct {
    document *d;
    key_lines lines;
    pen_error *why;
} walk;

static pen_status add_map(walk *w, const json_t *map, const char *above, int depth);

/* The shortest text that reads back as the same number. */
static void write_real(double value, char *text, size_t size)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

static document_kind write_scalar(const json_t *value, char *text, size_t size)
{
    switch (json_typeof(value)) {
    case JSON_TRUE: snprintf(text, size, "true"); return DOCUMENT_BOOL;
    case JSON_FALSE: snprintf(text, size, "false"); return DOCUMENT_BOOL;
    case JSON_INTEGER:
        snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return DOCUMENT_NUMBER;
    case JSON_REAL: write_real(json_real_value(value), text, size); return DOCUMENT_NUMBER;
    case JSON_STRING: snprintf(text, size, "%s", json_string_value(value)); return DOCUMENT_TEXT;
    case JSON_NULL:
    case JSON_ARRAY:
    case JSON_OBJECT: break;
    }
    text[0] = '\0';
    return DOCUMENT_NULL;
}

static pen_status refuse_depth(const walk *w, int line)
{
    return why_set(w->why, PEN_BAD_SETTING, "%s:%d: nested deeper than %d", w->d->name, line,
                   DOCUMENT_DEPTH_MAX);
}

/* Lists do not nest in any key that is used: only advances the lines. */
static pen_status pass_nested(walk *w, const json_t *value, int depth)
{
    size_t i;
    const char *key;
    const json_t *item;
    pen_status status = PEN_OK;
    if (depth > DOCUMENT_DEPTH_MAX) return refuse_depth(w, w->lines.line);
    if (json_is_array(value)) {
        for (i = 0; i < json_array_size(value) && status == PEN_OK; i++)
            status = pass_nested(w, json_array_get(value, i), depth + 1);
        return status;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, item)
    {
        next_line(&w->lines);
        if (status == PEN_OK) status = pass_nested(w, item, depth + 1);
    }
    return status;
}

static pen_status add_list(walk *w, const json_t *list, const char *path, int line, int depth)
{
    char text[2 * CONFIG_TEXT_BYTES] = "", one[CONFIG_TEXT_BYTES];
    size_t used                      = 0;
    pen_status status                = PEN_OK;
    for (size_t i = 0; i < json_array_size(list) && status == PEN_OK; i++) {
        const json_t *item = json_array_get(list, i);
        if (json_is_array(item) || json_is_object(item)) {
            status = pass_nested(w, item, depth + 1);
            continue;
        }
        write_scalar(item, one, sizeof one);
        if (used < CONFIG_TEXT_BYTES)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? "," : "", one);
    }
    return status == PEN_OK ? document_add(w->d, path, text, DOCUMENT_LIST, line, w->why) : status;
}

static pen_status add_value(walk *w, const json_t *value, const char *path, int line, int depth)
{
    char text[CONFIG_TEXT_BYTES];
    if (json_is_object(value) && json_object_size(value) == 0)
        return document_add(w->d, path, "", DOCUMENT_EMPTY, line, w->why);
    if (json_is_object(value)) return add_map(w, value, path, depth + 1);
    if (json_is_array(value)) return add_list(w, value, path, line, depth + 1);
    if (json_is_string(value)) /* full length: document_add() reports if it is too long */
        return document_add(w->d, path, json_string_value(value), DOCUMENT_TEXT, line, w->why);
    const document_kind kind = write_scalar(value, text, sizeof text);
    return document_add(w->d, path, text, kind, line, w->why);
}

static pen_status add_map(walk *w, const json_t *map, const char *above, int depth)
{
    const char *key;
    const json_t *value;
    char path[DOCUMENT_PATH_BYTES];
    if (depth > DOCUMENT_DEPTH_MAX) return refuse_depth(w, w->lines.line);
    json_object_foreach((json_t *)(uintptr_t)map, key, value)
    {
        const int line    = next_line(&w->lines);
        pen_status status = document_path(w->d, above, key, line, path, w->why);
        if (status == PEN_OK) status = add_value(w, value, path, line, depth);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

pen_status document_parse_json(document *d, const char *name, const char *bytes, size_t size,
                               pen_error *why)
{
    json_error_t error;
    *d = (document){.keys = NULL};
    snprintf(d->name, sizeof d->name, "%s", name);
    json_t *root = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return why_set(why, PEN_BAD_SETTING, "%s:%d: this is not JSON: %s", d->name,
                       error.line > 0 ? error.line : 1, error.text);
    walk w = {.d = d, .lines = {.at = bytes, .end = bytes + size, .line = 1}, .why = why};
    pen_status status =
        json_is_object(root)
            ? add_map(&w, root, "", 1)
            : why_set(why, PEN_BAD_SETTING, "%s:1: this is not a JSON object: it begins with '{'",
                      d->name);
    json_decref(root);
    if (status != PEN_OK) document_free(d);
    return status;
}
