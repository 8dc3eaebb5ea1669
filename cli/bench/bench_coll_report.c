/* bench_coll_report.c - results of a collective benchmark as a table, JSON, or a plot. */
#include "cli/bench/bench_coll.h"

#include "cli/bench/bench.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

static const char *op_name(bench_coll_kind kind, const bench_coll_settings *s)
{
    return bench_coll_reduces(kind) ? bench_coll_ops[s->op] : "none";
}

void bench_coll_report_begin(bench_coll_kind kind, const bench_coll_settings *s)
{
    if (s->json) return;
    printf("%s  %" PRIu64 " ranks, %s%s%s, %s, %s, %s, %s\n", bench_coll_names[kind], s->ranks,
           bench_coll_dtypes[s->dtype], bench_coll_reduces(kind) ? " " : "",
           bench_coll_reduces(kind) ? op_name(kind, s) : "", bench_coll_devices[s->device],
           bench_transport_name(s->over),
           s->registered ? "registered buffers" : "unregistered buffers",
           s->in_place ? "in place" : "out of place");
    printf("%12s %10s %10s %10s %8s %8s %8s  %s\n", "bytes", "time us", "p50 us", "p99 us", "algbw",
           "busbw", "limit", "ratio (algbw to limit, GB/s)");
    fflush(stdout);
}

static void print_json(bench_coll_kind kind, const bench_coll_settings *s,
                       const bench_coll_row *row)
{
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:b, s:b, s:f, s:f, s:f, s:f, s:f, s:b, s:I}",
        "bench", bench_coll_names[kind], "bytes", (json_int_t)row->bytes, "elements",
        (json_int_t)row->elements, "ranks", (json_int_t)s->ranks, "dtype",
        bench_coll_dtypes[s->dtype], "op", op_name(kind, s), "device",
        bench_coll_devices[s->device], "transport", bench_transport_name(s->over), "registered",
        (int)s->registered, "in_place", (int)s->in_place, "time_us", row->time_s * 1e6,
        "time_us_p50", row->p50_s * 1e6, "time_us_p99", row->p99_s * 1e6, "algbw_GBps", row->algbw,
        "busbw_GBps", row->busbw, "verified", 1, "iterations", (json_int_t)row->iterations);
    if (row->limit > 0) {
        json_object_set_new(o, "limit_GBps", json_real(row->limit));
        json_object_set_new(o, "ratio", json_real(row->ratio));
        json_object_set_new(o, "ratio_min", json_real(row->ratio_min));
        json_object_set_new(o, "ratio_max", json_real(row->ratio_max));
        json_object_set_new(o, "pairs", json_integer((json_int_t)s->pairs));
    }
    command_print_json(o, JSON_COMPACT);
}

void bench_coll_report_row(bench_coll_kind kind, const bench_coll_settings *s,
                           const bench_coll_row *row)
{
    if (s->json) {
        print_json(kind, s, row);
    } else {
        printf("%12zu %10.1f %10.1f %10.1f %8.3f %8.3f", row->bytes, row->time_s * 1e6,
               row->p50_s * 1e6, row->p99_s * 1e6, row->algbw, row->busbw);
        if (row->limit > 0)
            printf(" %8.3f  %.2f (%.2f to %.2f)", row->limit, row->ratio, row->ratio_min,
                   row->ratio_max);
        printf("\n");
    }
    fflush(stdout);
}

int bench_coll_plot(bench_coll_kind kind, const bench_coll_settings *s, const bench_coll_row *rows,
                    size_t n)
{
    FILE *gnuplot = popen("gnuplot 2>/dev/null", "w");
    if (gnuplot == NULL) return command_fail(1, "--plot: cannot start gnuplot: %m");
    fprintf(gnuplot,
            "set terminal pngcairo size 900,540 font 'sans,11'\nset output '%s'\n"
            "set title '%s, %" PRIu64 " ranks, %s, %s'\nset xlabel 'bytes'\n"
            "set ylabel 'GB/s'\nset logscale x 2\nset format x '%%.0b %%BB'\nset grid\n"
            "set key top left\nplot '-' using 1:2 with linespoints lw 2 title 'algbw', "
            "'-' using 1:2 with linespoints lw 2 title 'busbw'%s\n",
            s->plot, bench_coll_names[kind], s->ranks, bench_coll_dtypes[s->dtype],
            bench_transport_name(s->over),
            n > 0 && rows[0].limit > 0 ? ", '-' using 1:2 with lines dt 2 title 'limit of algbw'"
                                       : "");
    for (size_t i = 0; i < n; i++) fprintf(gnuplot, "%zu %g\n", rows[i].bytes, rows[i].algbw);
    fprintf(gnuplot, "e\n");
    for (size_t i = 0; i < n; i++) fprintf(gnuplot, "%zu %g\n", rows[i].bytes, rows[i].busbw);
    fprintf(gnuplot, "e\n");
    for (size_t i = 0; i < n && rows[0].limit > 0; i++)
        fprintf(gnuplot, "%zu %g\n", rows[i].bytes, rows[i].limit);
    if (n > 0 && rows[0].limit > 0) fprintf(gnuplot, "e\n");
    if (pclose(gnuplot) == 0) return 0;
    return command_fail(1, "--plot: gnuplot cannot write '%s'; is gnuplot installed?", s->plot);
}
