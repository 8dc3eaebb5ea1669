/* merge.c - merges parts into a file, and describes the result. */
#include "cli/trace/timeline.h"
#include "common/base/why.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

static uint32_t count_unheard(const timeline *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_parts; i++)
        n += t->part[i].kept > 0 && t->part[i].n_samples == 0 && t->n_parts > 1;
    return n;
}

void timeline_describe(const timeline *t, char *text, size_t size)
{
    uint64_t lost = t->crowded, error_ns = 0;
    uint32_t summed = 0;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        lost += t->part[i].lost;
        summed += t->part[i].is_summed;
        if (t->part[i].error_ns > error_ns) error_ns = t->part[i].error_ns;
    }
    int n = snprintf(text, size, "%" PRIu64 " spans of %u process%s", t->n_spans - t->crowded,
                     t->n_parts, t->n_parts == 1 ? "" : "es");
    if (t->n_parts > 1 && (size_t)n < size)
        n += snprintf(text + n, size - (size_t)n,
                      "; each clock is within %.3g ms of the scheduler's", (double)error_ns / 1e6);
    if (count_unheard(t) > 0 && (size_t)n < size)
        n += snprintf(text + n, size - (size_t)n, ", except %u without a time from it",
                      count_unheard(t));
    if (summed > 0 && (size_t)n < size)
        n += snprintf(text + n, size - (size_t)n, "; %u of them are only summed up", summed);
    if (lost > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n,
                 "; %" PRIu64 " older ones were overwritten (see setting trace_events)", lost);
}

static pen_status add(timeline *t, const char *path, pen_error *why)
{
    struct stat st;
    const bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return is_folder ? timeline_add_folder(t, path, why) : timeline_add(t, path, why);
}

pen_status timeline_merge(const char *out, char *const *from, int n, char *text, size_t size,
                          pen_error *why)
{
    timeline t        = {0};
    pen_status status = PEN_OK;
    for (int i = 0; i < n && status == PEN_OK; i++) status = add(&t, from[i], why);
    if (status == PEN_OK) status = timeline_build(&t, why);
    if (status == PEN_OK) status = timeline_write(&t, out, why);
    if (status == PEN_OK) timeline_describe(&t, text, size);
    timeline_free(&t);
    return status;
}
