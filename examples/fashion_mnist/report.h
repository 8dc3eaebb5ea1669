/* report.h - rank 0's output: a row per epoch, a progress bar on a terminal, the result as JSON. */
#ifndef FASHION_MNIST_REPORT_H
#define FASHION_MNIST_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *text;        /* table and sentences; NULL: this rank is silent */
    bool has_servers;  /* rows show what was pushed and pulled */
    bool has_bar;      /* stderr is a terminal                              */
    int64_t bar_tenth; /* tenths of a percent currently shown */
} report;

typedef struct {
    int64_t epoch, epochs; /* epoch from 1                        */
    double train_loss, test_accuracy;
    double images_per_s;
    double push_gbps, pull_gbps;   /* all workers together; shown with servers */
    double step_p50_s, step_p99_s; /* of rank 0                   */
} report_epoch;

typedef struct {
    double test_accuracy, train_loss; /* after and over the last epoch */
    double seconds;                   /* training only                 */
    double images_per_s;
    double step_max_s; /* longest step of rank 0, including the request */
    int64_t steps, epochs, batch;
    int64_t clipped; /* steps of this run with a clipped gradient */
    uint64_t seed;
    const char *mode, *model, *optim;
    int workers, servers;
    uint32_t params_crc32c;
} report_result;

void report_init(report *r, bool speaks, bool json);
void report_line(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_bar(report *r, int64_t done, int64_t total); /* cheap: draws only what changed */
void report_head(report *r, bool has_servers);
void report_row(report *r, const report_epoch *e);
void report_end(report *r, const report_result *result);

const char *report_grouped(int64_t n, char text[32]); /* 2808 -> "2,808"; returns text */

/* One JSON object and a newline.  False: errno says why. */
bool report_write_json(const report_result *result, FILE *out);

#endif
