/* metrics_test.c - pages of metrics, as text 0.0.4 and as OpenMetrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/net/metrics.h"
#include "scheduler/shell/scheduler_http.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static stat_set set; /* zeros, and what a test counts */

/* The whole page of a server: OWNED. */
static char *server_page(bool is_open)
{
    char *text  = NULL;
    size_t size = 0;
    FILE *out   = open_memstream(&text, &size);
    metrics_page page;
    metrics_begin(&page, out, is_open, "server", 1);
    metrics_process(&page);
    metrics_stats(&page, &set);
    metrics_end(&page);
    fclose(out);
    return text;
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    while ((text = strstr(text, part)) != NULL) {
        n++;
        text += strlen(part);
    }
    return n;
}

/* The value of the only sample with this prefix; NaN if there is none, or more than one. */
static double value_of(const char *text, const char *begin)
{
    char line[METRICS_LABELS_BYTES + 64];
    snprintf(line, sizeof line, "\n%s ", begin);
    double value   = NAN;
    const char *at = strstr(text, line);
    if (at != NULL && count_of(text, line) == 1) sscanf(at + strlen(line), "%lf", &value);
    return value;
}

/* No family and no series occurs twice: Prometheus would drop it, and promtool does not check. */
static void expect_no_duplicates(const char *page)
{
    char *copy = strdup(page), *rest = copy, *line;
    char keys[1024][METRICS_LABELS_BYTES + 64];
    int n = 0;
    while ((line = strsep(&rest, "\n")) != NULL) {
        const char *space = strrchr(line, ' ');
        if (line[0] == '\0' || space == NULL || strncmp(line, "# HELP", 6) == 0) continue;
        assert_true(n < 1024);
        snprintf(keys[n], sizeof keys[n], "%.*s", (int)(space - line), line);
        for (int i = 0; i < n; i++) assert_string_not_equal(keys[i], keys[n]);
        n++;
    }
    assert_true(n > 100);
    free(copy);
}

static void test_metrics_label_escapes_what_would_end_it(void **state)
{
    (void)state;
    char labels[METRICS_LABELS_BYTES] = "";
    metrics_label(labels, "name", "a\"b\\c\nd\xc3\xa9\x01");
    assert_string_equal(labels, "name=\"a\\\"b\\\\c\\nd\\\\xc3\\\\xa9\\\\x01\"");
    metrics_label(labels, "rank", "3");
    assert_non_null(strstr(labels, ",rank=\"3\""));
}

static void test_metrics_label_that_does_not_fit_is_left_out_whole(void **state)
{
    (void)state;
    char labels[METRICS_LABELS_BYTES] = "", value[METRICS_LABELS_BYTES + 100];
    memset(value, '\n', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    metrics_label(labels, "role", "server");
    metrics_label(labels, "name", value);
    assert_string_equal(labels, "role=\"server\"");
}

static void test_metrics_page_has_help_and_type_of_each_family_and_no_series_twice(void **state)
{
    (void)state;
    for (int is_open = 0; is_open < 2; is_open++) {
        char *text         = server_page(is_open);
        const int families = count_of(text, "# TYPE ");
        assert_int_equal(families, STAT_COUNT + STAT_SPREADS + 4);
        assert_int_equal(count_of(text, "# HELP "), families);
        expect_no_duplicates(text);
        assert_int_equal(count_of(text, "\n# EOF\n"), is_open);
        free(text);
    }
}

static void test_metrics_counter_is_named_total_in_its_type_only_in_the_old_format(void **state)
{
    (void)state;
    set = (stat_set){0};
    stat_add(&set, STAT_PUSH_BYTES, 12345678901);
    char *text = server_page(false), *open = server_page(true);
    assert_non_null(strstr(text, "\n# TYPE penstock_push_bytes_total counter\n"));
    assert_non_null(strstr(open, "\n# TYPE penstock_push_bytes counter\n"));
    assert_non_null(strstr(open, "\n# UNIT penstock_push_bytes bytes\n"));
    assert_null(strstr(text, "# UNIT"));
    const char *series = "penstock_push_bytes_total{role=\"server\",rank=\"1\"}";
    assert_true(value_of(text, series) == 12345678901.0);
    assert_true(value_of(open, series) == 12345678901.0);
    free(text);
    free(open);
}

static void test_metrics_histogram_is_cumulative_and_ends_with_its_count(void **state)
{
    (void)state;
    set = (stat_set){0};
    atomic_store(&set.is_watched, true);
    stat_observe(&set, STAT_SPREAD_PUSH, 1);             /* 1 ns */
    stat_observe(&set, STAT_SPREAD_PUSH, 1 << 14);       /* just within the first bucket */
    stat_observe(&set, STAT_SPREAD_PUSH, (1 << 14) + 1); /* the second bucket */
    stat_observe(&set, STAT_SPREAD_PUSH, UINT64_C(1) << 60);
    stat_observe(&set, STAT_SPREAD_STALENESS, 0);
    stat_observe(&set, STAT_SPREAD_STALENESS, 3);
    char *text       = server_page(false);
    const char *push = "penstock_push_seconds", *self = "role=\"server\",rank=\"1\"";
    char series[200];
    snprintf(series, sizeof series, "%s_bucket{%s,le=\"1.6384e-05\"}", push, self);
    assert_true(value_of(text, series) == 2);
    snprintf(series, sizeof series, "%s_bucket{%s,le=\"3.2768e-05\"}", push, self);
    assert_true(value_of(text, series) == 3);
    snprintf(series, sizeof series, "%s_bucket{%s,le=\"+Inf\"}", push, self);
    assert_true(value_of(text, series) == 4);
    snprintf(series, sizeof series, "%s_count{%s}", push, self);
    assert_true(value_of(text, series) == 4);
    snprintf(series, sizeof series, "penstock_staleness_steps_bucket{%s,le=\"0\"}", self);
    assert_true(value_of(text, series) == 1);
    snprintf(series, sizeof series, "penstock_staleness_steps_bucket{%s,le=\"2\"}", self);
    assert_true(value_of(text, series) == 1);
    snprintf(series, sizeof series, "penstock_staleness_steps_bucket{%s,le=\"4\"}", self);
    assert_true(value_of(text, series) == 2);
    free(text);
}

static void test_metrics_without_a_monitor_read_no_clock_and_count_nothing(void **state)
{
    (void)state;
    set = (stat_set){0};
    assert_int_equal(stat_begin(&set), 0);
    stat_took(&set, STAT_SPREAD_PUSH, 0);
    stat_observe(&set, STAT_SPREAD_STALENESS, 5);
    for (int i = 0; i < STAT_SPREADS; i++)
        for (int b = 0; b < STAT_BUCKETS; b++)
            assert_int_equal(atomic_load(&set.spread[i].bucket[b]), 0);
    atomic_store(&set.is_watched, true);
    assert_true(stat_begin(&set) > 0);
}

static void test_metrics_numbers_are_the_same_in_every_locale(void **state)
{
    (void)state;
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) setlocale(LC_NUMERIC, "");
    set = (stat_set){0};
    atomic_store(&set.is_watched, true);
    stat_observe(&set, STAT_SPREAD_STEP, 1500000000);
    char *text = server_page(false);
    setlocale(LC_NUMERIC, "C");
    assert_non_null(strstr(text, "penstock_step_seconds_sum{role=\"server\",rank=\"1\"} 1.5\n"));
    free(text);
}

static void test_metrics_of_the_scheduler_bound_the_names_that_programs_give(void **state)
{
    (void)state;
    enum { NAMES = 100 };
    static char names[NAMES][24];
    wire_stat stat[NAMES];
    for (int i = 0; i < NAMES; i++) {
        snprintf(names[i], sizeof names[i], "metric\"%d", i);
        stat[i] = (wire_stat){names[i], i};
    }
    wire_member_status members[] = {
        {.member  = {.role = PEN_WORKER, .rank = 0},
         .state   = "active",
         .n_stats = NAMES,
         .stat    = stat},
        {.member  = {.role = PEN_WORKER, .rank = 1},
         .state   = "active",
         .n_stats = NAMES,
         .stat    = stat},
        {.member = {.role = WIRE_OBSERVER, .rank = -1}, .state = "guest"}};
    wire_control status       = {.kind = WIRE_STATUS};
    status.u.status.phase     = "training";
    status.u.status.n_members = 3;
    status.u.status.member    = members;
    char *text                = NULL;
    size_t size               = 0;
    FILE *out                 = open_memstream(&text, &size);
    scheduler_metrics_write(out, false, &status);
    fclose(out);
    assert_int_equal(count_of(text, "\npenstock_member_metric{"), 2 * 64);
    assert_true(value_of(text, "penstock_job_phase{phase=\"training\"}") == 1);
    assert_true(value_of(text, "penstock_job_phase{phase=\"failed\"}") == 0);
    assert_true(value_of(text, "penstock_job_members{role=\"worker\",state=\"active\"}") == 2);
    assert_true(
        value_of(text, "penstock_member_metric{role=\"worker\",rank=\"1\",name=\"metric\\\"7\"}") ==
        7);
    expect_no_duplicates(text);
    free(text);
}

static void test_metrics_accept_chooses_the_format(void **state)
{
    (void)state;
    assert_false(metrics_is_open(NULL));
    assert_false(metrics_is_open("*/*"));
    assert_false(metrics_is_open("text/plain;version=0.0.4"));
    assert_true(metrics_is_open("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_label_escapes_what_would_end_it),
        cmocka_unit_test(test_metrics_label_that_does_not_fit_is_left_out_whole),
        cmocka_unit_test(test_metrics_page_has_help_and_type_of_each_family_and_no_series_twice),
        cmocka_unit_test(test_metrics_counter_is_named_total_in_its_type_only_in_the_old_format),
        cmocka_unit_test(test_metrics_histogram_is_cumulative_and_ends_with_its_count),
        cmocka_unit_test(test_metrics_without_a_monitor_read_no_clock_and_count_nothing),
        cmocka_unit_test(test_metrics_numbers_are_the_same_in_every_locale),
        cmocka_unit_test(test_metrics_of_the_scheduler_bound_the_names_that_programs_give),
        cmocka_unit_test(test_metrics_accept_chooses_the_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
