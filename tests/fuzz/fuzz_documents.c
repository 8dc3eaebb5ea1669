/* fuzz_documents.c - any file of accelerate (YAML) or DeepSpeed (JSON) is refused with a sentence, or gives a list of
 * keys within bounds, which resolves to settings or is refused with a sentence again.
 * The first byte selects: 'y' YAML, 'b' both, one behind a zero byte; anything else JSON. */
#include "common/config_files/load.h"
#include "tests/fuzz/fuzz.h"

static bool is_whole(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

/* In a block of its own, so that a read past the end is found. */
static bool parse(document *d, bool is_yaml, const uint8_t *data, size_t size)
{
    pen_error why = {.status = PEN_OK};
    char *bytes   = malloc(size > 0 ? size : 1);
    FUZZ_CHECK(bytes != NULL);
    memcpy(bytes, data, size);
    const pen_status status = is_yaml ? document_parse_yaml(d, "a.yml", bytes, size, &why)
                                      : document_parse_json(d, "a.json", bytes, size, &why);
    free(bytes);
    FUZZ_CHECK(status == PEN_OK || (why.status == status && why.text[0] != '\0' && d->n == 0));
    FUZZ_CHECK(d->n <= DOCUMENT_KEYS_MAX);
    for (size_t i = 0; i < d->n; i++) {
        const document_key *k = &d->keys[i];
        FUZZ_CHECK(is_whole(k->path, sizeof k->path) && is_whole(k->text, sizeof k->text));
        FUZZ_CHECK(k->kind <= DOCUMENT_EMPTY && k->line >= 1);
        FUZZ_CHECK(document_find(d, k->path) == k);
    }
    return status == PEN_OK;
}

static const char *nothing(const void *user, const char *setting, const char **source)
{
    (void)user, (void)setting, (void)source;
    return NULL;
}

static void check_list(const resolved_list *list)
{
    FUZZ_CHECK(list->n <= RESOLVED_SETTINGS_MAX);
    for (size_t i = 0; i < list->n; i++) {
        const resolved_value *v = &list->values[i];
        FUZZ_CHECK(is_whole(v->name, sizeof v->name) && is_whole(v->value, sizeof v->value) &&
                   is_whole(v->source, sizeof v->source));
        FUZZ_CHECK(resolved_find(list, v->name) == v);
    }
}

static void check_line(const char *line, void *user)
{
    (void)user;
    FUZZ_CHECK(line[0] != '\0' && strlen(line) < 2048);
}

static void check_resolution(const document *yaml, const document *json)
{
    static const resolve_flags sets[2] = {{.hidden_size = NULL},
                                          {"64", "0.1", "0.01", "10", "1000"}};
    for (int i = 0; i < 2; i++) {
        static resolution r;
        pen_error why = {.status = PEN_OK};
        const pen_status status =
            resolve(yaml, json, &sets[i], (resolve_given){nothing, NULL}, &r, &why);
        FUZZ_CHECK(status == PEN_OK || (why.status == status && why.text[0] != '\0'));
        if (status == PEN_OK) {
            check_list(&r.settings);
            check_list(&r.start);
            FUZZ_CHECK(r.n_notices <= RESOLVED_LINES_MAX);
            config_files_tell(&r, check_line, NULL);
        }
        resolution_free(&r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    document yaml = {.n = 0}, json = {.n = 0};
    if (size == 0) return 0;
    const uint8_t kind = *data++, *middle;
    size--;
    bool has_yaml = false, has_json = false;
    if (kind == 'b' && (middle = memchr(data, '\0', size)) != NULL) {
        has_yaml = parse(&yaml, true, data, (size_t)(middle - data));
        has_json = parse(&json, false, middle + 1, size - (size_t)(middle + 1 - data));
    } else if (kind == 'y') {
        has_yaml = parse(&yaml, true, data, size);
    } else {
        has_json = parse(&json, false, data, size);
    }
    if (has_yaml || has_json) check_resolution(has_yaml ? &yaml : NULL, has_json ? &json : NULL);
    document_free(&yaml);
    document_free(&json);
    return 0;
}
