/* document_yaml.c - YAML into a document, event by event.  Accepts maps, scalars and lists of scalars, which
 * launchers' configuration files consist of.  Refuses anchors, aliases and a second document: they can grow
 * without bound, or have no meaning here. */
#include "common/config_files/document.h"

#include "common/base/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

typedef struct {
    document *d;
    yaml_parser_t parser;
    pen_error *why;
} reader;

static int line_of(const yaml_event_t *event)
{
    return (int)event->start_mark.line + 1;
}

static pen_status next_event(reader *r, yaml_event_t *event)
{
    if (yaml_parser_parse(&r->parser, event) == 0) {
        if (r->parser.error == YAML_MEMORY_ERROR)
            return why_set(r->why, PEN_NO_MEMORY, "no memory to read %s", r->d->name);
        const yaml_parser_t *p  = &r->parser;
        const char *problem     = p->problem != NULL ? p->problem : "it ends too early";
        const yaml_mark_t *mark = &p->problem_mark;
        return why_set(r->why, PEN_BAD_SETTING, "%s:%d: this is not YAML: %s", r->d->name,
                       (int)mark->line + 1, problem);
    }
    const bool has_anchor =
        event->type == YAML_ALIAS_EVENT ||
        (event->type == YAML_SCALAR_EVENT && event->data.scalar.anchor != NULL) ||
        (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.anchor != NULL) ||
        (event->type == YAML_SEQUENCE_START_EVENT && event->data.sequence_start.anchor != NULL);
    if (!has_anchor) return PEN_OK;
    const int line = line_of(event);
    yaml_event_delete(event);
    return why_set(r->why, PEN_BAD_SETTING,
                   "%s:%d: anchors (&) and aliases (*) are not read here: write the value out",
                   r->d->name, line);
}

/* The type of an unquoted word in YAML 1.1. */
static document_kind kind_of(const yaml_event_t *event, const char *text)
{
    static const char *const switches[] = {"true", "false", "yes", "no", "on", "off"};
    if (event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return DOCUMENT_TEXT;
    if (text[0] == '\0' || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0)
        return DOCUMENT_NULL;
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (strcasecmp(text, switches[i]) == 0) return DOCUMENT_BOOL;
    char *end;
    strtod(text, &end);
    const bool is_number = *end == '\0' && strchr("+-.0123456789", text[0]) != NULL;
    return is_number ? DOCUMENT_NUMBER : DOCUMENT_TEXT;
}

static pen_status text_of(const reader *r, const yaml_event_t *event, const char **text)
{
    *text = (const char *)event->data.scalar.value;
    if (strlen(*text) == event->data.scalar.length) return PEN_OK;
    return why_set(r->why, PEN_BAD_SETTING, "%s:%d: a zero byte inside a word", r->d->name,
                   line_of(event));
}

static pen_status refuse_depth(const reader *r, int line)
{
    return why_set(r->why, PEN_BAD_SETTING, "%s:%d: nested deeper than %d", r->d->name, line,
                   DOCUMENT_DEPTH_MAX);
}

/* Reads a list after its start event.  Values nested in it belong to keys that are not used. */
static pen_status read_list(reader *r, const char *path, int line)
{
    char all[2 * CONFIG_TEXT_BYTES] = "";
    size_t used                     = 0;
    int depth                       = 0;
    for (;;) {
        yaml_event_t event;
        const char *text;
        pen_status status = next_event(r, &event);
        if (status != PEN_OK) return status;
        if (event.type == YAML_SCALAR_EVENT && depth == 0) {
            status = text_of(r, &event, &text);
            if (status == PEN_OK && used < CONFIG_TEXT_BYTES)
                used += (size_t)snprintf(all + used, sizeof all - used, "%s%.*s",
                                         used > 0 ? "," : "", CONFIG_TEXT_BYTES, text);
        }
        depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        yaml_event_delete(&event);
        if (depth > DOCUMENT_DEPTH_MAX) /* the parser's time is quadratic in the depth */
            return refuse_depth(r, line);
        if (status != PEN_OK) return status;
        if (depth < 0) return document_add(r->d, path, all, DOCUMENT_LIST, line, r->why);
    }
}

static pen_status read_map(reader *r, const char *above, int line, int depth);

static pen_status read_value(reader *r, const char *path, int depth)
{
    yaml_event_t event;
    const char *text;
    pen_status status = next_event(r, &event);
    if (status != PEN_OK) return status;
    const int line              = line_of(&event);
    const yaml_event_type_t now = event.type;
    if (now == YAML_SCALAR_EVENT) {
        status = text_of(r, &event, &text);
        if (status == PEN_OK)
            status = document_add(r->d, path, text, kind_of(&event, text), line, r->why);
    }
    yaml_event_delete(&event);
    if (now == YAML_MAPPING_START_EVENT) return read_map(r, path, line, depth + 1);
    if (now == YAML_SEQUENCE_START_EVENT) return read_list(r, path, line);
    return status;
}

/* Reads a map after its start event. */
static pen_status read_map(reader *r, const char *above, int line, int depth)
{
    char path[DOCUMENT_PATH_BYTES];
    if (depth > DOCUMENT_DEPTH_MAX) return refuse_depth(r, line);
    for (bool is_empty = true;; is_empty = false) {
        yaml_event_t event;
        const char *key   = "";
        pen_status status = next_event(r, &event);
        if (status != PEN_OK) return status;
        const bool ends = event.type == YAML_MAPPING_END_EVENT;
        if (event.type == YAML_SCALAR_EVENT) status = text_of(r, &event, &key);
        if (status == PEN_OK && !ends)
            status = document_path(r->d, above, key, line_of(&event), path, r->why);
        yaml_event_delete(&event);
        if (ends && is_empty && above[0] != '\0')
            return document_add(r->d, above, "", DOCUMENT_EMPTY, line, r->why);
        if (ends || status != PEN_OK) return status;
        status = read_value(r, path, depth);
        if (status != PEN_OK) return status;
    }
}

/* Outside of the document, only the type of an event matters. */
static pen_status pass_event(reader *r, yaml_event_type_t *now, int *line)
{
    yaml_event_t event;
    const pen_status status = next_event(r, &event);
    if (status != PEN_OK) return status;
    *now  = event.type;
    *line = line_of(&event);
    yaml_event_delete(&event);
    return PEN_OK;
}

/* Reads up to the first map, which is the whole document. */
static pen_status read_document(reader *r)
{
    for (;;) {
        yaml_event_type_t now;
        int line;
        const pen_status status = pass_event(r, &now, &line);
        if (status != PEN_OK) return status;
        if (now == YAML_STREAM_START_EVENT || now == YAML_DOCUMENT_START_EVENT) continue;
        if (now != YAML_MAPPING_START_EVENT)
            return why_set(r->why, PEN_BAD_SETTING,
                           "%s:%d: no keys: write each line as  key: value", r->d->name, line);
        return read_map(r, "", line, 1);
    }
}

static pen_status read_end(reader *r)
{
    for (;;) {
        yaml_event_type_t now;
        int line;
        const pen_status status = pass_event(r, &now, &line);
        if (status != PEN_OK) return status;
        if (now == YAML_STREAM_END_EVENT) return PEN_OK;
        if (now == YAML_DOCUMENT_START_EVENT)
            return why_set(r->why, PEN_BAD_SETTING,
                           "%s:%d: a second document begins here; one file is one configuration",
                           r->d->name, line);
    }
}

pen_status document_parse_yaml(document *d, const char *name, const char *bytes, size_t size,
                               pen_error *why)
{
    reader r = {.d = d, .why = why};
    *d       = (document){.keys = NULL};
    snprintf(d->name, sizeof d->name, "%s", name);
    if (yaml_parser_initialize(&r.parser) == 0)
        return why_set(why, PEN_NO_MEMORY, "no memory to read %s", d->name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes, size);
    pen_status status = read_document(&r);
    if (status == PEN_OK) status = read_end(&r);
    yaml_parser_delete(&r.parser);
    if (status != PEN_OK) document_free(d);
    return status;
}
