/* utf8.h - texts that others are shown: UTF-8, and no control characters. */
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the UTF-8 letter that `text` begins with; 0: it is none. */
size_t utf8_letter(const char *text);

/* Bytes of the control character that `text` begins with (U+0000 to U+001F, U+007F to U+009F); 0: it is none. */
size_t utf8_control(const char *text);

/* Every byte that is part of no letter, or of a control character, becomes '?'.  At most `max` bytes are looked at;
 * returns how many there are, `max` where the text has no end before. */
size_t utf8_clean(char *text, size_t max);
bool utf8_is_clean(const char *text);

/* BAD_SETTING with a sentence where a setting is not clean; `name` is that of the setting. */
pen_status utf8_check(const char *name, const char *text, pen_error *why);

#endif
