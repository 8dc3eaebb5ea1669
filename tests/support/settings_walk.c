/* settings_walk.c - checks every row of a settings table without naming one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/settings_walk.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const config_row *rows;
    void *settings, *before; /* [size] bytes each */
    size_t size;
} walk;

#define require(row, condition, ...)                                                               \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("setting %s: ", (row)->name);                                              \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

static size_t field_size(const config_row *row)
{
    switch (row->type) {
    case CONFIG_U64:
    case CONFIG_I64: return sizeof(uint64_t);
    case CONFIG_F64: return sizeof(double);
    case CONFIG_BOOL: return sizeof(bool);
    case CONFIG_ENUM: return sizeof(int);
    case CONFIG_TEXT: return CONFIG_TEXT_BYTES;
    }
    return 0;
}

static void accepts(walk *w, const config_row *row, const char *text)
{
    pen_error why = {0};
    require(row, config_set(w->rows, w->settings, row->name, text, &why) == PEN_OK,
            "'%s' was refused: %s", text, why.text);

    /* Its value, written and read again, is equal. */
    char written[CONFIG_TEXT_BYTES];
    memcpy(w->before, w->settings, w->size);
    config_get(w->rows, w->settings, row->name, written, sizeof written);
    require(row, config_set(w->rows, w->settings, row->name, written, &why) == PEN_OK,
            "config_get() wrote '%s', which was refused: %s", written, why.text);
    require(row, memcmp(w->before, w->settings, w->size) == 0,
            "'%s' became '%s', which is something else", text, written);
}

static void refuses(walk *w, const config_row *row, const char *text)
{
    pen_error why = {0};
    memcpy(w->before, w->settings, w->size);
    require(row, config_set(w->rows, w->settings, row->name, text, &why) == PEN_BAD_SETTING,
            "'%s' was accepted", text);
    require(row, memcmp(w->before, w->settings, w->size) == 0, "refusing '%s' changed the settings",
            text);
    require(row, strstr(why.text, row->name) != NULL, "the refusal does not name it: %s", why.text);
}

static void walk_whole(walk *w, const config_row *row)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, (int64_t)row->min);
    accepts(w, row, text);
    snprintf(text, sizeof text, "%" PRId64, (int64_t)row->max);
    accepts(w, row, text);
    snprintf(text, sizeof text, "%" PRId64, (int64_t)row->min - 1);
    refuses(w, row, text);
    snprintf(text, sizeof text, "%" PRId64, (int64_t)row->max + 1);
    refuses(w, row, text);
    refuses(w, row, "99999999999999999999999999");
    refuses(w, row, "1.5");
    refuses(w, row, "nan");
    refuses(w, row, "");
}

static void walk_double(walk *w, const config_row *row)
{
    char text[64];
    snprintf(text, sizeof text, "%.17g", row->min);
    accepts(w, row, text);
    snprintf(text, sizeof text, "%.17g", row->max);
    accepts(w, row, text);
    if (!isinf(row->min)) {
        snprintf(text, sizeof text, "%.17g", nextafter(row->min, -INFINITY));
        refuses(w, row, text);
    }
    if (!isinf(row->max)) {
        snprintf(text, sizeof text, "%.17g", nextafter(row->max, INFINITY));
        refuses(w, row, text);
        refuses(w, row, "inf");
    }
    refuses(w, row, "1e999");
    refuses(w, row, "nan");
    refuses(w, row, "");
}

static void walk_text(walk *w, const config_row *row)
{
    char text[CONFIG_TEXT_BYTES + 1] = "";
    accepts(w, row, "");
    memset(text, 'x', CONFIG_TEXT_BYTES - 1);
    accepts(w, row, text);
    text[CONFIG_TEXT_BYTES - 1] = 'x';
    refuses(w, row, text);
}

static void walk_value(walk *w, const config_row *row)
{
    switch (row->type) {
    case CONFIG_U64:
        require(row, row->min >= 0, "its smallest value is below 0");
        walk_whole(w, row);
        return;
    case CONFIG_I64: walk_whole(w, row); return;
    case CONFIG_F64: walk_double(w, row); return;
    case CONFIG_TEXT: walk_text(w, row); return;
    case CONFIG_BOOL:
        accepts(w, row, "no");
        accepts(w, row, "yes");
        refuses(w, row, "perhaps");
        return;
    case CONFIG_ENUM:
        require(row, row->choices != NULL && row->choices[0] != NULL, "it has no choices");
        for (int i = 0; row->choices[i] != NULL; i++) accepts(w, row, row->choices[i]);
        refuses(w, row, "no such choice");
        return;
    }
    require(row, false, "its type is unknown");
}

static bool overlap(const config_row *a, const config_row *b)
{
    return a->offset < b->offset + field_size(b) && b->offset < a->offset + field_size(a);
}

static void walk_shape(const walk *w, const config_row *row)
{
    const size_t name_length = strlen(row->name);
    require(row, name_length > 0 && name_length < 64,
            "its name is empty or longer than 63 letters");
    require(row, strspn(row->name, "abcdefghijklmnopqrstuvwxyz0123456789_") == name_length,
            "its name is not snake_case");

    require(row, row->doc != NULL && strlen(row->doc) > 1, "it has no doc");
    require(row, row->doc[strlen(row->doc) - 1] == '.', "its doc does not end in a full stop");

    require(row, row->offset + field_size(row) <= w->size, "its field is outside the struct");
    for (const config_row *other = w->rows; other < row; other++) {
        require(row, strcmp(other->name, row->name) != 0, "it has two rows");
        require(row, !overlap(other, row), "its field overlaps that of %s", other->name);
    }
}

void settings_walk(const config_row *rows, size_t struct_size)
{
    walk w     = {.rows = rows, .size = struct_size};
    w.settings = calloc(1, struct_size);
    w.before   = calloc(1, struct_size);
    assert_non_null(w.settings);
    assert_non_null(w.before);

    for (const config_row *r = rows; r->name != NULL; r++) walk_shape(&w, r);
    config_defaults(rows, w.settings);
    for (const config_row *r = rows; r->name != NULL; r++) {
        walk_value(&w, r);
        if (strcmp(r->dfl, "nan") != 0) accepts(&w, r, r->dfl);
    }
    free(w.settings);
    free(w.before);
}
