/* json_text.h - texts in JSON: jansson refuses what is no UTF-8, and with it the whole object. */
#ifndef PROTO_JSON_TEXT_H
#define PROTO_JSON_TEXT_H

#include <jansson.h>

/* The text as it is, or with '?' for what is no UTF-8 (half a letter, where it was cut).  OWNED by the caller. */
json_t *json_text(const char *text);

/* Sets a value under such a text; takes the value. */
void json_text_set(json_t *object, const char *name, json_t *value);

#endif
