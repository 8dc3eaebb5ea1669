/* metrics.h - a page of metrics for Prometheus: text 0.0.4, or OpenMetrics 1.0 on request.
 *
 * A page is written family by family: metrics_family(), then its samples.  Names get a prefix: "push.bytes" becomes
 * penstock_push_bytes, and penstock_push_bytes_total for a counter.
 */
#ifndef COMMON_METRICS_H
#define COMMON_METRICS_H

#include "common/base/stat.h"
#include <stdio.h>

enum { METRICS_NAME_BYTES = 128, METRICS_LABELS_BYTES = 640 };

typedef struct {
    FILE *out;                       /* BORROWED */
    bool is_open;                    /* OpenMetrics */
    char self[METRICS_LABELS_BYTES]; /* labels of this process: role="server",rank="0" */
    char name[METRICS_NAME_BYTES];   /* of the family */
    stat_kind kind;
} metrics_page;

/* role "server"; rank -1: not known yet. */
void metrics_begin(metrics_page *page, FILE *out, bool is_open, const char *role, int32_t rank);
void metrics_family(metrics_page *page, const stat_row *row);
/* labels from metrics_label(); NULL: those of this process. */
void metrics_sample(metrics_page *page, const char *labels, double value);
void metrics_end(metrics_page *page);

/* Appends name="value", escaped; or nothing if it does not fit. */
void metrics_label(char labels[METRICS_LABELS_BYTES], const char *name, const char *value);

/* Whole groups of families. */
void metrics_stats(metrics_page *page, const stat_set *set); /* counters and distributions */
void metrics_process(
    metrics_page *page); /* version, memory, time and descriptors of this process */

/* The metric's name, with _total for a counter. */
void metrics_name(const stat_row *row, char name[METRICS_NAME_BYTES]);

/* Whether this Accept prefers OpenMetrics; NULL does not. */
bool metrics_is_open(const char *accept);

#endif
