/* engine_agree.c - settings of collectives that must be equal on all members: those that are not the defaults are sent as one
 * of the addresses, and compared when the job has joined, so that a difference is named before it does harm. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/why.h"

#include <stdio.h>
#include <string.h>

static const char prefix[] = "same:";

/* Other settings may differ.  The last value may contain the separator of the others. */
static const char *const agreed[] = {"deterministic",  "two_level",      "coll_lanes",
                                     "park_bytes_max", "device_backend", "coll_algorithm"};
enum { AGREED = sizeof agreed / sizeof *agreed };

static void default_of(int which, char value[CONFIG_TEXT_BYTES])
{
    worker_settings usual;
    config_defaults(worker_settings_rows, &usual);
    config_get(worker_settings_rows, &usual, agreed[which], value, CONFIG_TEXT_BYTES);
}

void engine_write_agreed(const coll_engine *e, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "%s", prefix);
    for (int i = 0; i < AGREED && at < size; i++) {
        char value[CONFIG_TEXT_BYTES], preset[CONFIG_TEXT_BYTES];
        config_get(worker_settings_rows, e->setup.settings, agreed[i], value, sizeof value);
        default_of(i, preset);
        if (strcmp(value, preset) != 0)
            at += (size_t)snprintf(text + at, size - at, "%s=%s%s", agreed[i], value,
                                   i < AGREED - 1 ? "|" : "");
    }
    if (at == sizeof prefix - 1) text[0] = '\0';
}

static const char *text_of(const coll_member *m)
{
    for (uint32_t i = 0; i < m->n_addresses; i++)
        if (strncmp(m->address[i], prefix, sizeof prefix - 1) == 0)
            return m->address[i] + sizeof prefix - 1;
    return "";
}

/* Takes "name=value|" off the text; the default if the text goes on with another name. */
static void take_value(const char **text, int which, char value[CONFIG_TEXT_BYTES])
{
    const size_t n = strlen(agreed[which]);
    if (strncmp(*text, agreed[which], n) == 0 && (*text)[n] == '=') {
        const char *from  = *text + n + 1;
        const size_t size = which == AGREED - 1 ? strlen(from) : strcspn(from, "|");
        snprintf(value, CONFIG_TEXT_BYTES, "%.*s", (int)size, from);
        *text = from + size + (from[size] == '|');
        return;
    }
    default_of(which, value);
}

static pen_status compare(const coll_member *m, const coll_member *first, pen_error *why)
{
    const char *text = text_of(m), *other = text_of(first);
    if (strcmp(text, other) == 0) return PEN_OK;
    for (int i = 0; i < AGREED; i++) {
        char value[CONFIG_TEXT_BYTES], expected[CONFIG_TEXT_BYTES];
        take_value(&text, i, value);
        take_value(&other, i, expected);
        if (strcmp(value, expected) == 0) continue;
        why_set(why, PEN_MISMATCH,
                "setting '%s' is '%s' on rank %d (%s) and '%s' on rank %d (%s); collectives need "
                "the same on all ranks",
                agreed[i], value, m->rank, m->host, expected, first->rank, first->host);
        why_culprit(why, PEN_WORKER, m->rank, -1, NULL);
        return PEN_MISMATCH;
    }
    return why_set(why, PEN_MISMATCH,
                   "rank %d (%s) and rank %d (%s) have different versions of Penstock", m->rank,
                   m->host, first->rank, first->host);
}

pen_status engine_compare_agreed(const coll_member *by_rank, int n, pen_error *why)
{
    for (int i = 1; i < n; i++)
        if (compare(&by_rank[i], &by_rank[0], why) != PEN_OK) return PEN_MISMATCH;
    return PEN_OK;
}
