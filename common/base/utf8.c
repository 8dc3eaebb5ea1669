/* utf8.c - finds letters of UTF-8, and replaces or refuses what cannot be shown. */
#include "common/base/utf8.h"

#include "common/base/why.h"

#include <stdio.h>
#include <string.h>

size_t utf8_letter(const char *letter)
{
    const unsigned char *text = (const unsigned char *)letter;
    const size_t n            = text[0] < 0x80                      ? 1
                                : text[0] >= 0xc2 && text[0] < 0xe0 ? 2
                                : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
                                : text[0] >= 0xf0 && text[0] < 0xf5 ? 4
                                                                    : 0;
    for (size_t i = 1; i < n; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    const bool is_long = (text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xf0 && text[1] < 0x90);
    const bool is_surrogate = text[0] == 0xed && text[1] >= 0xa0;
    return is_long || is_surrogate || (text[0] == 0xf4 && text[1] >= 0x90) ? 0 : n;
}

/* Bytes of a control character at the start of `text` (U+0000 to U+001F, U+007F to U+009F); 0: none. */
static size_t control_bytes(const char *text)
{
    const unsigned char *byte = (const unsigned char *)text;
    if (byte[0] < ' ' || byte[0] == 0x7f) return 1;
    return byte[0] == 0xc2 && byte[1] >= 0x80 && byte[1] <= 0x9f ? 2 : 0;
}

size_t utf8_clean(char *text, size_t max)
{
    const size_t length = strnlen(text, max);
    bool is_plain       = true; /* most of all texts are: 16 and more letters at a time */
    for (size_t i = 0; i < length; i++) is_plain &= text[i] >= ' ' && text[i] <= '~';
    size_t n = is_plain ? length : 0;
    while (n < length) {
        const size_t letter = utf8_letter(text + n), control = control_bytes(text + n);
        const size_t bad = control > 0 ? control : letter == 0;
        memset(text + n, '?', bad);
        n += bad > 0 ? bad : letter;
    }
    return n < max ? n : max;
}

bool utf8_is_clean(const char *text)
{
    while (*text != '\0') {
        const size_t n = utf8_letter(text);
        if (n == 0 || control_bytes(text) > 0) return false;
        text += n;
    }
    return true;
}

pen_status utf8_check(const char *name, const char *text, pen_error *why)
{
    if (utf8_is_clean(text)) return PEN_OK;
    char copy[96];
    snprintf(copy, sizeof copy, "%s", text);
    utf8_clean(copy, sizeof copy);
    return why_set(why, PEN_BAD_SETTING,
                   "%s '%s' contains invalid UTF-8 or control characters (shown as '?'); "
                   "choose another name",
                   name, copy);
}
