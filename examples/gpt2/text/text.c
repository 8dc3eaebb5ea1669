/* text.c - reads a text file, packed or not. */
#include "text.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM_FIRST = 1 << 20 };

static bool refuse(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, TEXT_WHY_BYTES, format, args);
    va_end(args);
    return false;
}

/* ---- a plain or packed file: libarchive detects it ---------------------------------------------- */
static bool grow(text *t, size_t *room, const char *path, char *why)
{
    if (t->n < *room) return true;
    if (*room >= TEXT_BYTES_MAX)
        return refuse(
            why,
            "%.300s holds more than %zu bytes of text: make a token file of it and give --tokens",
            path, TEXT_BYTES_MAX);
    *room          = *room ? *room * 2 : ROOM_FIRST;
    uint8_t *bytes = realloc(t->bytes, *room);
    if (!bytes) return refuse(why, "no memory for the text of %.300s", path);
    t->bytes = bytes;
    return true;
}

static bool cannot_read(struct archive *a, const char *path, char *why)
{
    const char *said = archive_error_string(a);
    return refuse(why, "cannot read %.300s: %s", path, said ? said : "it is damaged");
}

static bool read_all(text *t, struct archive *a, const char *path, char *why)
{
    struct archive_entry *entry;
    const int first = archive_read_next_header(a, &entry);
    if (first == ARCHIVE_EOF) return true;
    if (first != ARCHIVE_OK) return cannot_read(a, path, why);
    for (size_t room = 0;;) {
        if (!grow(t, &room, path, why)) return false;
        const la_ssize_t got = archive_read_data(a, t->bytes + t->n, room - t->n);
        if (got < 0) return cannot_read(a, path, why);
        if (got == 0) return true;
        t->n += (size_t)got;
    }
}

/* packed NULL: the file itself. */
static bool read_packed(text *t, const text *packed, size_t from, const char *path, char *why)
{
    if (!packed && access(path, R_OK) != 0)
        return refuse(why, "cannot open %.300s: %s", path, strerror(errno));
    struct archive *a = archive_read_new();
    if (!a) return refuse(why, "no memory to read %.300s", path);
    archive_read_support_filter_all(a);
    archive_read_support_format_raw(a);
    archive_read_support_format_empty(a);
    const int opened = packed ? archive_read_open_memory(a, packed->bytes + from, packed->n - from)
                              : archive_read_open_filename(a, path, 1 << 17);
    const bool ok    = opened == ARCHIVE_OK ? read_all(t, a, path, why) : cannot_read(a, path, why);
    archive_read_free(a);
    return ok;
}

/* ---- the container of bible-kjv-text --------------------------------------------------------- */
static uint32_t big_endian(const uint8_t b[4])
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* A name of 84 bytes; the size of a window, the number of windows, where each begins, all big-endian; then one .Z stream. */
static const char container_name[] = "EC02Compressed Data File";
enum { CONTAINER_COUNT_AT = 88, CONTAINER_FIRST_AT = 92 };

static bool is_container(const text *t)
{
    return t->n > CONTAINER_FIRST_AT + 4 &&
           memcmp(t->bytes, container_name, sizeof container_name - 1) == 0;
}

static bool find_stream(const text *t, size_t *from)
{
    const size_t windows = big_endian(t->bytes + CONTAINER_COUNT_AT);
    *from                = CONTAINER_FIRST_AT + 4 * (windows + 1);
    return windows < t->n && *from + 3 < t->n && memcmp(t->bytes + *from, "\x1f\x9d", 2) == 0;
}

/* "Ge1:1 In the beginning ..." becomes "In the beginning ..."; lines without a number are dropped. */
static void keep_verses(text *t)
{
    size_t kept = 0;
    for (size_t at = 0, next; at < t->n; at = next) {
        const uint8_t *line = t->bytes + at, *end = memchr(line, '\n', t->n - at);
        next                 = end ? (size_t)(end - t->bytes) + 1 : t->n;
        const uint8_t *space = memchr(line, ' ', next - at);
        if (!space || !memchr(line, ':', (size_t)(space - line))) continue;
        const size_t from = (size_t)(space - t->bytes) + 1;
        memmove(t->bytes + kept, t->bytes + from, next - from);
        kept += next - from;
    }
    t->n = kept;
}

static bool unpack_container(text *t, const char *path, char *why)
{
    size_t from;
    if (!find_stream(t, &from))
        return refuse(why, "%.300s is damaged: it has no text where its head says", path);
    text plain    = {0};
    const bool ok = read_packed(&plain, t, from, path, why);
    free(t->bytes);
    *t = plain;
    if (!ok) return false;
    keep_verses(t);
    return true;
}

bool text_load(text *t, const char *path, char why[TEXT_WHY_BYTES])
{
    *t = (text){0};
    if (!path && access(TEXT_DEFAULT, R_OK) != 0)
        return refuse(why, "the default text is not there: install the Debian package "
                           "bible-kjv-text, or give --data FILE");
    if (!path) path = TEXT_DEFAULT;
    bool ok = read_packed(t, NULL, 0, path, why);
    if (ok && is_container(t)) ok = unpack_container(t, path, why);
    if (ok && t->n == 0) ok = refuse(why, "%.300s is empty", path);
    if (!ok) text_free(t);
    return ok;
}

void text_free(text *t)
{
    free(t->bytes);
    *t = (text){0};
}
