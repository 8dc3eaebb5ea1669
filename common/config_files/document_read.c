/* document_read.c - reads a configuration file by its extension. */
#include "common/config_files/document.h"

#include "common/base/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static pen_status load(const char *path, char *bytes, size_t *size, pen_error *why)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return why_set(why, PEN_NOT_FOUND, "cannot read %.200s: %m", path);
    *size             = fread(bytes, 1, DOCUMENT_BYTES_MAX + 1, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    if (failed) return why_set(why, PEN_NOT_FOUND, "cannot read %.200s: %m", path);
    if (*size > DOCUMENT_BYTES_MAX)
        return why_set(why, PEN_BAD_SETTING,
                       "%.200s is larger than %d bytes: that is not a configuration", path,
                       DOCUMENT_BYTES_MAX);
    return PEN_OK;
}

pen_status document_read(document *d, const char *path, pen_error *why)
{
    char *bytes = malloc(DOCUMENT_BYTES_MAX + 1);
    size_t size = 0;
    *d          = (document){.keys = NULL};
    if (strlen(path) >= sizeof d->name) {
        free(bytes);
        return why_set(why, PEN_BAD_SETTING, "the name '%.40s...' is longer than %zu bytes", path,
                       sizeof d->name - 1);
    }
    if (bytes == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to read %.200s", path);
    pen_status status = load(path, bytes, &size, why);
    if (status == PEN_OK)
        status = ends_with(path, ".yml") || ends_with(path, ".yaml")
                     ? document_parse_yaml(d, path, bytes, size, why)
                     : document_parse_json(d, path, bytes, size, why);
    free(bytes);
    return status;
}
