/* utf8.h - texts shown to others: UTF-8 without control characters. */
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the UTF-8 letter at the start of `text`; 0: invalid. */
size_t utf8_letter(const char *text);

/* Replaces invalid bytes and control characters by '?'.  Reads at most `max` bytes; returns the length, at most
 * `max`. */
size_t utf8_clean(char *text, size_t max);
bool utf8_is_clean(const char *text);

/* BAD_SETTING with a sentence if the setting `name` is not clean. */
pen_status utf8_check(const char *name, const char *text, pen_error *why);

#endif
