/* engine_agree.c - settings of collectives that must be equal on all members: sent as one of the addresses, compared
 * when the job has joined, so that a difference is named before it does harm. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/why.h"

#include <stdio.h>
#include <string.h>

static const char prefix[] = "same:";

/* Other settings may differ.  The last value may contain the separator of the others. */
static const char *const agreed[] = {"deterministic",  "two_level",      "coll_lanes",
                                     "park_bytes_max", "device_backend", "coll_algorithm"};
enum { AGREED = sizeof agreed / sizeof *agreed };

void engine_write_agreed(const coll_engine *e, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "%s", prefix);
    for (int i = 0; i < AGREED && at < size; i++) {
        char value[CONFIG_TEXT_BYTES];
        config_get(worker_settings_rows, e->setup.settings, agreed[i], value, sizeof value);
        at += (size_t)snprintf(text + at, size - at, "%s%s=%s", i > 0 ? "|" : "", agreed[i], value);
    }
}

static const char *text_of(const coll_member *m)
{
    for (uint32_t i = 0; i < m->n_addresses; i++)
        if (strncmp(m->address[i], prefix, sizeof prefix - 1) == 0)
            return m->address[i] + sizeof prefix - 1;
    return NULL;
}

/* "name=value" at `text`; false: another name.  *size: of the value. */
static bool read_value(const char *text, int which, const char **value, int *size)
{
    const size_t n = strlen(agreed[which]);
    if (strncmp(text, agreed[which], n) != 0 || text[n] != '=') return false;
    *value = text + n + 1;
    *size  = (int)(which == AGREED - 1 ? strlen(*value) : strcspn(*value, "|"));
    return true;
}

static pen_status differ(int which, const char *value, int size, const coll_member *m,
                         const char *usual, int usual_size, const coll_member *first,
                         pen_error *why)
{
    why_set(why, PEN_MISMATCH,
            "setting '%s' is '%.*s' on rank %d (%s) and '%.*s' on rank %d (%s); collectives need "
            "the same on all ranks",
            agreed[which], size, value, m->rank, m->host, usual_size, usual, first->rank,
            first->host);
    why_culprit(why, PEN_WORKER, m->rank, -1, NULL);
    return PEN_MISMATCH;
}

static pen_status compare(const coll_member *m, const coll_member *first, pen_error *why)
{
    const char *text = text_of(m), *other = text_of(first);
    for (int i = 0; i < AGREED && text != NULL && other != NULL; i++) {
        const char *value, *usual;
        int size, usual_size;
        if (!read_value(text, i, &value, &size) || !read_value(other, i, &usual, &usual_size))
            return why_set(why, PEN_MISMATCH,
                           "rank %d (%s) and rank %d (%s) have different versions of Penstock",
                           m->rank, m->host, first->rank, first->host);
        if (size != usual_size || memcmp(value, usual, (size_t)size) != 0)
            return differ(i, value, size, m, usual, usual_size, first, why);
        text  = value + size + (value[size] == '|');
        other = usual + usual_size + (usual[usual_size] == '|');
    }
    return PEN_OK;
}

pen_status engine_compare_agreed(const coll_member *by_rank, int n, pen_error *why)
{
    for (int i = 1; i < n; i++)
        if (compare(&by_rank[i], &by_rank[0], why) != PEN_OK) return PEN_MISMATCH;
    return PEN_OK;
}
