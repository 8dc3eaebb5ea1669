/* timeline_test.c - the traces that processes write, and the timeline made of them.
 *
 * A process has one part, so a child writes each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/trace/lanes.h"
#include "cli/trace/timeline.h"
#include "proto/status_json.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EVENTS = 64, MANY = 1000, FUZZED = 300 };
static char folder[64], file[128], parts[160], out[128];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/timeline-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(file, sizeof file, "%s/t.json", folder);
    snprintf(parts, sizeof parts, "%s.parts", file);
    snprintf(out, sizeof out, "%s/out.json", folder);
    return 0;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* ---- children -------------------------------------------------------------------------------- */
#define NEEDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) _exit(__LINE__ % 200 + 1);                                               \
    } while (0)

static void in_child(void (*body)(void *user), void *user)
{
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        body(user);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void open_as(pen_role role, int rank, const char *job)
{
    pen_error why;
    NEEDS(trace_open(file, EVENTS, status_role_name(role), role, rank, &why) == PEN_OK);
    trace_who(role, rank, job);
}

static void write_pair(trace_kind kind, uint64_t begun, uint64_t ended, int64_t step, int shard)
{
    trace_write(kind, begun, ended,
                &(trace_note){.step = step, .shard = shard, .rank = -1, .bytes = 8});
}

/* ---- reading --------------------------------------------------------------------------------- */
static json_t *merged(char *text, size_t size)
{
    char *from[] = {parts};
    pen_error why;
    json_error_t error;
    assert_int_equal(timeline_merge(out, from, 1, text, size, &why), PEN_OK);
    json_t *all = json_load_file(out, JSON_REJECT_DUPLICATES, &error);
    if (all == NULL) fail_msg("%s, line %d: %s", out, error.line, error.text);
    return all;
}

static const char *word(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text != NULL ? text : "";
}

static double value(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static size_t count(const json_t *all, const char *phase, const char *name)
{
    const json_t *events = json_object_get(all, "traceEvents");
    size_t n             = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        n += strcmp(word(e, "ph"), phase) == 0 &&
             (name == NULL || strcmp(word(e, "name"), name) == 0);
    }
    return n;
}

static uint64_t whole_ns(const json_t *event, const char *key)
{
    return (uint64_t)(value(event, key) * 1000 + 0.5);
}

/* Two spans of one tid are disjoint, or one contains the other. */
static void check_nesting(const json_t *all)
{
    const json_t *events = json_object_get(all, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *a = json_array_get(events, i);
        for (size_t k = 0; k < i && strcmp(word(a, "ph"), "X") == 0; k++) {
            const json_t *b = json_array_get(events, k);
            if (strcmp(word(b, "ph"), "X") != 0 || value(a, "tid") != value(b, "tid")) continue;
            const uint64_t a0 = whole_ns(a, "ts"), a1 = a0 + whole_ns(a, "dur"),
                           b0 = whole_ns(b, "ts"), b1 = b0 + whole_ns(b, "dur");
            assert_true(a1 <= b0 || b1 <= a0 || (a0 <= b0 && b1 <= a1) || (b0 <= a0 && a1 <= b1));
        }
    }
}

/* ---- writing --------------------------------------------------------------------------------- */
static void nothing_was_asked_for(void *user)
{
    pen_error why;
    (void)user;
    NEEDS(!trace_on() && trace_begin() == 0);
    trace_span(TRACE_SUM, trace_begin(), &(trace_note){0});
    trace_moment(TRACE_READY, &(trace_note){0});
    NEEDS(trace_mark("nobody opened it", false, &why) == PEN_OK);
    trace_who(PEN_WORKER, 0, "job");
    trace_clock_heard(1, 2, 3);
}

static void test_timeline_nothing_is_written_unless_asked_for(void **state)
{
    (void)state;
    in_child(nothing_was_asked_for, NULL);
    assert_int_equal(access(parts, F_OK), -1);
}

static void write_many(void *user)
{
    (void)user;
    open_as(PEN_SERVER, 1, "many");
    for (int i = 1; i <= MANY; i++)
        write_pair(TRACE_SUM, (uint64_t)i * 10000, (uint64_t)i * 10000 + 5000, i, 0);
}

static void test_timeline_a_full_ring_keeps_the_newest_and_counts_the_rest(void **state)
{
    char text[400];
    (void)state;
    in_child(write_many, NULL);
    json_t *all          = merged(text, sizeof text);
    const json_t *events = json_object_get(all, "traceEvents");
    assert_int_equal(count(all, "X", "server sum"), EVENTS - 1);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        if (strcmp(word(e, "ph"), "X") == 0)
            assert_in_range((uint64_t)value(json_object_get(e, "args"), "step"), MANY - EVENTS + 2,
                            MANY);
    }
    assert_string_equal(text, "63 spans of 1 process; 937 older ones were overwritten (see setting "
                              "trace_events)");
    json_decref(all);
}

static void *write_one(void *user)
{
    (void)user;
    write_pair(TRACE_SUM, 1000, 2000, 1, 0);
    return NULL;
}

static void write_in_threads(void *user)
{
    (void)user;
    open_as(PEN_WORKER, 0, "threads");
    for (int i = 0; i < TRACE_RINGS_MAX + 10; i++) {
        pthread_t thread;
        NEEDS(pthread_create(&thread, NULL, write_one, NULL) == 0);
        pthread_join(thread, NULL);
    }
}

static void test_timeline_threads_beyond_the_last_ring_are_counted(void **state)
{
    char text[400];
    (void)state;
    in_child(write_in_threads, NULL);
    json_t *all = merged(text, sizeof text);
    assert_int_equal(count(all, "X", NULL), TRACE_RINGS_MAX);
    assert_non_null(strstr(text, "; 10 older ones were overwritten"));
    json_decref(all);
}

static void mark_wrongly(void *user)
{
    pen_error why;
    (void)user;
    open_as(PEN_WORKER, 0, "marks");
    NEEDS(trace_mark("a", false, &why) == PEN_INVALID_ARGUMENT);
    NEEDS(strcmp(why.text, "pen_mark('a', 0): this thread has no open span of that name") == 0);
    NEEDS(trace_mark("a", true, &why) == PEN_OK && trace_mark("b", true, &why) == PEN_OK);
    NEEDS(trace_mark("a", false, &why) == PEN_OK && trace_mark("b", false, &why) == PEN_OK);
    for (int i = 0; i < 32; i++) NEEDS(trace_mark("deep", true, &why) == PEN_OK);
    NEEDS(trace_mark("deep", true, &why) == PEN_WRONG_STATE);
    for (int i = 0; i < 32; i++) NEEDS(trace_mark("deep", false, &why) == PEN_OK);
    NEEDS(trace_mark("a \"quoted\"\n\\ b\xc3\xa4r", true, &why) == PEN_OK);
    NEEDS(trace_mark("a \"quoted\"\n\\ b\xc3\xa4r", false, &why) == PEN_OK);
}

static void test_timeline_marks_nest_even_if_the_program_crosses_them(void **state)
{
    char text[400];
    (void)state;
    in_child(mark_wrongly, NULL);
    json_t *all = merged(text, sizeof text);
    assert_int_equal(count(all, "X", "a"), 1);
    assert_int_equal(count(all, "X", "b"), 1);
    assert_int_equal(count(all, "X", "deep"), 32);
    assert_int_equal(count(all, "X", NULL), 35);
    check_nesting(all);
    json_decref(all);
}

/* ---- a job ----------------------------------------------------------------------------------- */
enum { STEP_NS = 1000000 };

static void be_scheduler(void *user)
{
    (void)user;
    open_as(PEN_SCHEDULER, 0, "job");
    trace_clock_own();
    write_pair(TRACE_FAILOVER, 1000, 2000, 0, 0);
}

/* Its clock is 7 s behind the scheduler's. */
static void be_server(void *user)
{
    (void)user;
    open_as(PEN_SERVER, 0, "job");
    trace_clock_heard(1000, 7000000000u + 1200, 1400);
    for (uint64_t i = 0; i < 5; i++)
        write_pair(TRACE_COMMIT, 500000 + i * STEP_NS, 600000 + i * STEP_NS, (int64_t)i, 0);
}

static void be_worker(void *user)
{
    const uint64_t offset = 3000000000u;
    open_as(PEN_WORKER, *(int *)user, "job");
    trace_clock_heard(1000 + offset, 7000000000u + 1200, 1400 + offset);
    for (uint64_t i = 0; i < 5; i++) {
        const uint64_t at = offset + i * STEP_NS;
        write_pair(TRACE_PUSH, at + 100000, at + 550000, (int64_t)i, 0);
        write_pair(TRACE_PUSH, at + 200000, at + 560000, (int64_t)i, 1); /* no such server exists */
        write_pair(TRACE_PULL, at + 560000, at + 800000, (int64_t)i, 0);
    }
}

static void test_timeline_pushes_lead_through_commits_to_pulls_on_one_clock(void **state)
{
    char text[400];
    (void)state;
    in_child(be_scheduler, NULL);
    in_child(be_server, NULL);
    for (int rank = 0; rank < 2; rank++) in_child(be_worker, &rank);
    json_t *all          = merged(text, sizeof text);
    const json_t *events = json_object_get(all, "traceEvents");
    check_nesting(all);
    assert_int_equal(count(all, "s", NULL), 10);
    assert_int_equal(count(all, "t", NULL), 10);
    assert_int_equal(count(all, "f", NULL), 10);
    assert_int_equal(count(all, "M", "process_name"), 4);
    double began[10] = {0}, passed[10] = {0}, ended[10] = {0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        double *to      = strcmp(word(e, "ph"), "s") == 0   ? began
                          : strcmp(word(e, "ph"), "t") == 0 ? passed
                          : strcmp(word(e, "ph"), "f") == 0 ? ended
                                                            : NULL;
        if (to == NULL) continue;
        const int id = (int)value(e, "id");
        assert_in_range(id, 1, 10 * 2);
        to[(id - 1) % 10] = value(e, "ts");
    }
    for (int i = 0; i < 10; i++) {
        assert_true(passed[i] - began[i] > 399.9 && passed[i] - began[i] < 400.1);
        assert_true(ended[i] - passed[i] > 299.9 && ended[i] - passed[i] < 300.1);
    }
    json_decref(all);
}

enum { CROWD = 100, STEPS = 6, SLOW_RANK = 61, LAZY_RANK = 62 };

/* One is slow by itself; another waits as long. */
static void be_one_of_many(void *user)
{
    const int rank = *(int *)user;
    open_as(PEN_WORKER, rank, "job");
    trace_clock_heard(1000, 1000, 1000);
    for (uint64_t i = 0; i < STEPS; i++) {
        const uint64_t at = 1 + i * 10 * STEP_NS, long_ns = 5 * STEP_NS;
        const uint64_t ended = at + (rank == SLOW_RANK || rank == LAZY_RANK ? long_ns : STEP_NS);
        if (rank == LAZY_RANK) write_pair(TRACE_END, at + STEP_NS, ended, (int64_t)i, -1);
        write_pair(TRACE_STEP, at, ended, (int64_t)i, -1);
    }
}

static bool is_shown(const json_t *all, const char *name)
{
    const json_t *events = json_object_get(all, "traceEvents");
    bool is              = false;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        is |= strcmp(word(e, "name"), "process_name") == 0 &&
              strcmp(word(json_object_get(e, "args"), "name"), name) == 0;
    }
    return is;
}

static void
test_timeline_of_many_workers_shows_some_and_the_slowest_and_sums_up_the_others(void **state)
{
    char text[400];
    size_t sums = 0;
    (void)state;
    for (int rank = 0; rank < CROWD; rank++) in_child(be_one_of_many, &rank);
    json_t *all          = merged(text, sizeof text);
    const json_t *events = json_object_get(all, "traceEvents");
    check_nesting(all);
    assert_int_equal(count(all, "M", "process_name"), 32 + 1);
    assert_true(is_shown(all, "worker 0") && is_shown(all, "worker 61"));
    assert_true(is_shown(all, "other workers") && !is_shown(all, "worker 62"));
    assert_int_equal(count(all, "X", "step"), 33 * STEPS);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const char *what = word(json_object_get(json_array_get(events, i), "args"), "what");
        sums += strcmp(what, "68 workers, mean 1.059 ms, longest 5.000 ms (rank 62)") == 0;
    }
    assert_int_equal(sums, STEPS);
    assert_non_null(strstr(text, "; 68 of them are only summed up"));
    json_decref(all);
}

static void test_timeline_of_two_jobs_is_refused(void **state)
{
    char text[400], *from[] = {parts};
    pen_error why;
    (void)state;
    in_child(write_many, NULL);
    in_child(be_server, NULL);
    assert_int_equal(timeline_merge(out, from, 1, text, sizeof text, &why), PEN_MISMATCH);
    assert_non_null(strstr(why.text, "belongs to job job, but"));
}

/* ---- parts that cannot be trusted ------------------------------------------------------------ */
static void first_part(char *path, size_t size)
{
    DIR *d = opendir(parts);
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        if (strstr(e->d_name, TRACE_PART_SUFFIX) != NULL)
            snprintf(path, size, "%.150s/%.200s", parts, e->d_name);
    closedir(d);
}

static void test_timeline_a_damaged_part_is_refused_or_read_in_part(void **state)
{
    char path[400], text[400], *from[] = {path};
    pen_error why;
    unsigned draws = 17;
    (void)state;
    in_child(be_server, NULL);
    first_part(path, sizeof path);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (int i = 0; i < FUZZED; i++) {
        const off_t at = rand_r(&draws) % (i % 2 ? 256 : (int)lseek(fd, 0, SEEK_END));
        uint8_t was, is = (uint8_t)rand_r(&draws);
        assert_int_equal(pread(fd, &was, 1, at), 1);
        assert_int_equal(pwrite(fd, &is, 1, at), 1);
        if (timeline_merge(out, from, 1, text, sizeof text, &why) == PEN_OK) {
            json_error_t error;
            json_t *all = json_load_file(out, 0, &error);
            assert_non_null(all);
            json_decref(all);
        } else {
            assert_int_equal(why.status, PEN_CORRUPT);
        }
        assert_int_equal(pwrite(fd, &was, 1, at), 1);
    }
    assert_int_equal(ftruncate(fd, 5000), 0);
    assert_int_equal(timeline_merge(out, from, 1, text, sizeof text, &why), PEN_CORRUPT);
    assert_non_null(strstr(why.text, ": it is too short"));
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(timeline_merge(out, from, 1, text, sizeof text, &why), PEN_CORRUPT);
    close(fd);
}

static void test_timeline_without_parts_names_the_searched_folder(void **state)
{
    char text[400], *from[] = {folder};
    pen_error why;
    (void)state;
    assert_int_equal(timeline_merge(out, from, 1, text, sizeof text, &why), PEN_NOT_FOUND);
    assert_non_null(strstr(why.text, folder));
}

/* ---- lanes ----------------------------------------------------------------------------------- */
static void test_lanes_share_nested_spans_and_separate_overlapping_ones(void **state)
{
    static lanes l;
    (void)state;
    l.n = 0;
    assert_int_equal(lanes_place(&l, 0, 100, true), 0);
    assert_int_equal(lanes_place(&l, 10, 50, true), 0); /* inside */
    assert_int_equal(lanes_place(&l, 20, 60, true), 1); /* crosses */
    assert_int_equal(lanes_place(&l, 50, 100, true),
                     0); /* after its sister, up to its parent's end */
    assert_int_equal(lanes_place(&l, 100, 110, true), 0);
    l.n = 0;
    assert_int_equal(lanes_place(&l, 0, 100, false), 0);
    assert_int_equal(lanes_place(&l, 10, 50, false), 1);
    assert_int_equal(lanes_place(&l, 60, 70, false), 1);
    assert_int_equal(lanes_place(&l, 100, 120, false), 0);
}

static void test_lanes_that_run_out_lose_no_other_span(void **state)
{
    static lanes l;
    (void)state;
    l.n = 0;
    for (int i = 0; i < LANES_MAX; i++) assert_int_equal(lanes_place(&l, 0, 10, false), i);
    assert_int_equal(lanes_place(&l, 0, 10, false), -1);
    assert_int_equal(lanes_place(&l, 10, 20, false), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_timeline_nothing_is_written_unless_asked_for),
        TEST(test_timeline_a_full_ring_keeps_the_newest_and_counts_the_rest),
        TEST(test_timeline_threads_beyond_the_last_ring_are_counted),
        TEST(test_timeline_marks_nest_even_if_the_program_crosses_them),
        TEST(test_timeline_pushes_lead_through_commits_to_pulls_on_one_clock),
        TEST(test_timeline_of_many_workers_shows_some_and_the_slowest_and_sums_up_the_others),
        TEST(test_timeline_of_two_jobs_is_refused),
        TEST(test_timeline_a_damaged_part_is_refused_or_read_in_part),
        TEST(test_timeline_without_parts_names_the_searched_folder),
        cmocka_unit_test(test_lanes_share_nested_spans_and_separate_overlapping_ones),
        cmocka_unit_test(test_lanes_that_run_out_lose_no_other_span),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
