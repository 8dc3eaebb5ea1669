/* report.h - rank 0's output: rows, a progress bar on a terminal, the result as JSON. */
#ifndef GPT2_REPORT_H
#define GPT2_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *text;        /* rows and sentences; NULL: this rank is silent */
    bool has_bar;      /* stderr is a terminal                             */
    int64_t bar_tenth; /* tenths of a percent currently shown */
} report;

typedef struct {
    int64_t step, steps; /* done, in total */
    double loss;         /* nats per token, mean over the row's steps            */
    double bits;         /* the same per byte, or per token if bytes are unknown */
    double held_bits;    /* on held-out text; NaN: not evaluated */
    double rate;         /* learning rate of its last step                       */
    double grad_norm;
    double tokens_per_s; /* of all ranks                                         */
    double mfu;          /* fraction of the measured peak; NaN: unknown */
} report_row;

typedef struct {
    double train_loss;           /* over the last row                                  */
    double held_loss, held_bits; /* NaN: nothing held out, or not evaluated */
    bool bits_per_byte;          /* else per token                                     */
    double seconds;              /* training only                                      */
    double tokens_per_s;
    double step_p50_s, step_max_s;
    double peak_gflops, mfu; /* matrix products of all ranks; model flops over it */
    int64_t steps, from, batch, length, accum;
    int64_t parameters, clipped, skipped;
    uint64_t seed;
    const char *mode, *precision, *device, *preset, *optim;
    int layers, heads, channels, vocab;
    int workers, servers, threads;
    uint32_t params_crc32c;
} report_result;

/* "gpt2: " and the sentence, on stderr; returns false. */
bool report_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

void report_init(report *r, bool speaks, bool json);
void report_line(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_bar(report *r, int64_t done, int64_t total); /* cheap: draws only what changed */
void report_head(report *r, bool bits_per_byte);
void report_show(report *r, const report_row *row);
void report_end(report *r, const report_result *result);

const char *report_grouped(int64_t n, char text[32]); /* 2808 -> "2,808"; returns text */

/* One JSON object and a newline.  False: errno says why. */
bool report_write_json(const report_result *result, FILE *out);

#endif
