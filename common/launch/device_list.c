/* device_list.c - reads CUDA_VISIBLE_DEVICES, stricter than the driver, which ignores what it does not know. */
#include "common/launch/device_list.h"
#include "common/base/why.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define HEX   "0123456789abcdefABCDEF-"
#define DIGIT "0123456789"

enum { DIGITS_MAX = 9 };

/* The rest of a word after `prefix`; NULL: another prefix. */
static const char *after(const char *word, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(word, prefix, n) == 0 ? word + n : NULL;
}

static bool consists_of(const char *text, const char *letters)
{
    return text[0] != '\0' && text[strspn(text, letters)] == '\0';
}

/* "MIG-UUID", or "MIG-GPU-UUID/1/0" before driver 470. */
static bool is_part(const char *word)
{
    const char *rest = after(word, "MIG-");
    const char *old  = rest != NULL ? after(rest, "GPU-") : NULL;
    return rest != NULL && consists_of(old != NULL ? old : rest, HEX "/");
}

static bool is_device(const char *word)
{
    const char *uuid = after(word, "GPU-");
    if (uuid != NULL) return consists_of(uuid, HEX);
    return is_part(word) || (consists_of(word, DIGIT) && strlen(word) <= DIGITS_MAX);
}

static bool is_end(const char *word)
{
    return (word[0] == '-' && consists_of(word + 1, DIGIT)) || strcmp(word, "NoDevFiles") == 0;
}

static bool has(const device_list *list, const char *word)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->word[i], word) == 0) return true;
    return false;
}

/* Copies the word at `at` without spaces around it and returns what follows; false: it does not fit. */
static bool copy_word(const char **at, char word[DEVICE_WORD_BYTES])
{
    const char *begin = *at, *end = begin + strcspn(begin, ",");
    *at = *end == ',' ? end + 1 : NULL;
    while (begin < end && isspace((unsigned char)*begin)) begin++;
    while (end > begin && isspace((unsigned char)end[-1])) end--;
    if (end - begin >= DEVICE_WORD_BYTES) return false;
    snprintf(word, DEVICE_WORD_BYTES, "%.*s", (int)(end - begin), begin);
    return true;
}

static pen_status add(device_list *list, const char *word, pen_error *why)
{
    if (has(list, word))
        return why_set(why, PEN_BAD_SETTING,
                       "CUDA_VISIBLE_DEVICES lists '%s' twice; list each device once", word);
    if (list->n == DEVICE_LIST_MAX)
        return why_set(why, PEN_BAD_SETTING,
                       "CUDA_VISIBLE_DEVICES lists more than %d devices; list those of this "
                       "machine",
                       DEVICE_LIST_MAX);
    snprintf(list->word[list->n++], DEVICE_WORD_BYTES, "%s", word);
    list->has_parts = list->has_parts || is_part(word);
    return PEN_OK;
}

pen_status device_list_parse(const char *text, device_list *list, pen_error *why)
{
    char word[DEVICE_WORD_BYTES];
    *list = (device_list){.n = 0};
    if (text[strspn(text, " \t")] == '\0') return PEN_OK;
    for (const char *at = text; at != NULL;) {
        const char *begin = at;
        const bool fits   = copy_word(&at, word);
        if (fits && is_end(word)) return PEN_OK;
        if (!fits || !is_device(word))
            return why_set(why, PEN_BAD_SETTING,
                           "CUDA_VISIBLE_DEVICES has '%.*s', which is not a device; list numbers, "
                           "GPU-UUID or MIG-UUID, separated by commas",
                           (int)(strcspn(begin, ",") < 64 ? strcspn(begin, ",") : 64), begin);
        const pen_status status = add(list, word, why);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}
