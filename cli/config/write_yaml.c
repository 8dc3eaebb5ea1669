/* write_yaml.c - a document as YAML, event by event. */
#include "cli/config/write_yaml.h"

#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

static int by_path(const void *a, const void *b)
{
    return strcmp(((const document_key *)a)->path, ((const document_key *)b)->path);
}

static bool emit(yaml_emitter_t *emitter, yaml_event_t *event, int made)
{
    return made != 0 && yaml_emitter_emit(emitter, event) != 0;
}

static bool begin_map(yaml_emitter_t *emitter)
{
    yaml_event_t event;
    return emit(
        emitter, &event,
        yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE));
}

static bool end_map(yaml_emitter_t *emitter)
{
    yaml_event_t event;
    return emit(emitter, &event, yaml_mapping_end_event_initialize(&event));
}

static bool write_word(yaml_emitter_t *emitter, const char *text, size_t size, bool quoted)
{
    yaml_event_t event;
    const yaml_scalar_style_t style =
        quoted ? YAML_SINGLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE;
    return emit(emitter, &event,
                yaml_scalar_event_initialize(&event, NULL, NULL, (const yaml_char_t *)text,
                                             (int)size, 1, 1, style));
}

/* Quotes a text that would be read back as another type. */
static bool must_quote(const document_key *key)
{
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off", "null", "~", ""};
    char *end;
    if (key->kind != DOCUMENT_TEXT) return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(key->text, words[i]) == 0) return true;
    strtod(key->text, &end);
    return *end == '\0';
}

static bool write_key(yaml_emitter_t *emitter, const document_key *key, size_t above)
{
    const char *name = key->path + above;
    if (!write_word(emitter, name, strlen(name), false)) return false;
    if (key->kind == DOCUMENT_NULL) return write_word(emitter, "null", 4, false);
    return write_word(emitter, key->text, strlen(key->text), must_quote(key));
}

static bool write_keys(yaml_emitter_t *emitter, const document *d)
{
    size_t open = 0; /* length of the open section, with its dot */
    bool good   = begin_map(emitter);
    for (size_t i = 0; i < d->n && good; i++) {
        const document_key *key = &d->keys[i];
        const char *dot         = strchr(key->path, '.');
        const size_t above      = dot != NULL ? (size_t)(dot - key->path) + 1 : 0;
        const bool goes_on =
            above == open && (open == 0 || strncmp(key->path, d->keys[i - 1].path, open) == 0);
        if (!goes_on && open > 0) good = end_map(emitter);
        if (good && !goes_on && above > 0)
            good = write_word(emitter, key->path, above - 1, false) && begin_map(emitter);
        open = above;
        good = good && write_key(emitter, key, above);
    }
    if (good && open > 0) good = end_map(emitter);
    return good && end_map(emitter);
}

pen_status document_write_yaml(document *d, FILE *out, pen_error *why)
{
    yaml_emitter_t emitter;
    yaml_event_t event;
    qsort(d->keys, d->n, sizeof *d->keys, by_path);
    if (yaml_emitter_initialize(&emitter) == 0)
        return why_set(why, PEN_NO_MEMORY, "no memory to write YAML");
    yaml_emitter_set_output_file(&emitter, out);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1);
    bool good =
        emit(&emitter, &event, yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING)) &&
        emit(&emitter, &event, yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1)) &&
        write_keys(&emitter, d) &&
        emit(&emitter, &event, yaml_document_end_event_initialize(&event, 1)) &&
        emit(&emitter, &event, yaml_stream_end_event_initialize(&event));
    const char *problem = emitter.problem != NULL ? emitter.problem : "no memory";
    const pen_status status =
        good ? PEN_OK : why_set(why, PEN_BAD_SETTING, "cannot write this as YAML: %s", problem);
    yaml_emitter_delete(&emitter);
    return status;
}
