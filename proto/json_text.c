/* json_text.c - replaces what is not UTF-8 before jansson sees it. */
#include "proto/json_text.h"

#include "common/base/utf8.h"

#include <stdlib.h>
#include <string.h>

json_t *json_text(const char *text)
{
    json_t *made = json_string(text);
    if (made != NULL) return made;
    char *copy = strdup(text);
    if (copy != NULL) utf8_clean(copy, strlen(copy));
    made = json_string(copy != NULL ? copy : "");
    free(copy);
    return made;
}

void json_text_set(json_t *object, const char *name, json_t *value)
{
    json_t *key = json_text(name);
    if (key != NULL && json_string_value(key) != NULL)
        json_object_set_new(object, json_string_value(key), value);
    else
        json_decref(value);
    json_decref(key);
}
