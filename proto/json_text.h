/* json_text.h - texts in JSON: jansson refuses invalid UTF-8, and with it the whole object. */
#ifndef PROTO_JSON_TEXT_H
#define PROTO_JSON_TEXT_H

#include <jansson.h>

/* The text, with '?' for invalid UTF-8 (a truncated character).  OWNED by the caller. */
json_t *json_text(const char *text);

/* Sets `name` to the value, which it takes. */
void json_text_set(json_t *object, const char *name, json_t *value);

#endif
