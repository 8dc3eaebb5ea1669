/* store_crash_test.c - a server dies, or its disk fails, at every call that changes the store, in turn.
 *
 * The store holds snapshot A, of step 10, in two parts.  A child writes snapshot B over it, part by part, and then
 * deletes A, while a preloaded library (tests/support/iofault.c) makes its k-th call on a file of the store fail in one
 * of six ways; for every k until the child ends without a fault.  Afterwards the store holds A or B, whole; a child
 * that reported success has left B; and the next snapshot can be written as usual.
 */
#include "common/snapshot/store_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 30000, CHUNK = 5000, PARTS = 2, FAILED = 3, CALLS_MAX = 400, GROUP_BYTES = 50000 };
enum { A = 10, B = 20, C = 30 };

static char base[200], self[512], shim[512];

static const store_tensor tensors[] = {
    {.name = "w", .elements = N, .slots = 1, .slot_names = {"momentum"}, .optim = "sgd lr=0.1"},
    {.name = "b", .elements = 3, .slots = 0, .optim = "sgd lr=0.1"},
};

static float value_of(int64_t step, int what, uint64_t i)
{
    return (float)(step * 100 + what) + (float)i * 0.25f;
}

static store_manifest manifest(int64_t step)
{
    return (store_manifest){.step      = step,
                            .applied   = step,
                            .id        = 7000 + (uint64_t)step,
                            .job       = "crash",
                            .n_tensors = 2,
                            .tensor    = tensors};
}

/* ---- the writer ------------------------------------------------------------------------------ */
static pen_status put_values(store *s, const char *name, const char *what, int number, int64_t step,
                             uint64_t start, uint64_t count, pen_error *why)
{
    static float values[CHUNK];
    for (uint64_t i = 0; i < count; i++) values[i] = value_of(step, number, start + i);
    return store_put(s, name, what, start, count, values, why);
}

static pen_status put_part(store *s, int part, int64_t step, pen_error *why)
{
    pen_status status = PEN_OK;
    for (int i = part; i < N / CHUNK && status == PEN_OK; i += PARTS) {
        status = put_values(s, "w", "param", 0, step, (uint64_t)i * CHUNK, CHUNK, why);
        if (status == PEN_OK)
            status = put_values(s, "w", "momentum", 1, step, (uint64_t)i * CHUNK, CHUNK, why);
    }
    if (status == PEN_OK && part == 0) status = put_values(s, "b", "param", 2, step, 0, 3, why);
    return status == PEN_OK ? store_put_blob(s, "versions", &part, sizeof part, why) : status;
}

static pen_status write_part(const char *dir, int part, int64_t step, pen_error *why)
{
    store *s;
    const store_manifest m = manifest(step);
    pen_status status      = store_open(dir, part, &s, why);
    if (status != PEN_OK) return status;
    store_group(s, GROUP_BYTES);
    status = store_begin(s, &m, why);
    if (status == PEN_OK) status = put_part(s, part, step, why);
    if (status == PEN_OK) status = store_commit(s, why);
    store_close(s);
    return status;
}

static pen_status forget(const char *dir, int part, int64_t keep, pen_error *why)
{
    store *s;
    pen_status status = store_open(dir, part, &s, why);
    if (status != PEN_OK) return status;
    status = store_forget(s, &keep, 1, why);
    store_close(s);
    return status;
}

/* The servers' work, in its order: A is deleted when all parts of B are there. */
static pen_status replace(const char *dir, int64_t step, pen_error *why)
{
    pen_status status = PEN_OK;
    for (int part = 0; part < PARTS && status == PEN_OK; part++)
        status = write_part(dir, part, step, why);
    for (int part = 0; part < PARTS && status == PEN_OK; part++)
        status = forget(dir, part, step, why);
    return status;
}

static int writer(const char *dir)
{
    pen_error why = {0};
    if (replace(dir, B, &why) == PEN_OK) return 0;
    fprintf(stderr, "%s\n", why.text);
    return FAILED;
}

/* ---- starting it ----------------------------------------------------------------------------- */
static char dir[300], count_file[320], said_file[320];

static void run(const char *command)
{
    if (system(command) != 0) fail_msg("%s", command);
}

static void fresh_store(void)
{
    char command[1400];
    snprintf(command, sizeof command, "rm -rf '%s' && cp -a '%s' '%s'", dir, base, dir);
    run(command);
}

/* The child's wait status; *calls is how many it made, 0 if it died. */
static int run_writer(const char *how, long at, uint64_t seed, long *calls)
{
    char number[24], which[24];
    snprintf(number, sizeof number, "%ld", at);
    snprintf(which, sizeof which, "%llu", (unsigned long long)seed);
    unlink(count_file);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)!freopen(said_file, "w", stderr);
        setenv("IOFAULT_DIR", dir, 1);
        setenv("IOFAULT_HOW", how, 1);
        setenv("IOFAULT_AT", number, 1);
        setenv("IOFAULT_SEED", which, 1);
        setenv("IOFAULT_COUNT", count_file, 1);
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
        setenv("LD_PRELOAD", shim, 1);
        execl(self, self, "writer", dir, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    *calls    = 0;
    FILE *out = fopen(count_file, "r");
    if (out != NULL) {
        if (fscanf(out, "%ld", calls) != 1) *calls = 0;
        fclose(out);
    }
    return status;
}

static void said(char *text, size_t size)
{
    text[0]   = '\0';
    FILE *out = fopen(said_file, "r");
    if (out == NULL) return;
    if (fgets(text, (int)size, out) == NULL) text[0] = '\0';
    fclose(out);
}

/* ---- what must hold afterwards --------------------------------------------------------------- */
static void check_values(store_reader *r, int64_t step, const char *context)
{
    static float back[N];
    pen_error why = {0};
    if (store_verify(r, step, NULL, &why) != PEN_OK) fail_msg("%s: %s", context, why.text);
    for (int what = 0; what < 2; what++) {
        assert_int_equal(
            store_read(r, step, "w", what == 0 ? "param" : "momentum", 0, N, back, &why), PEN_OK);
        for (uint64_t i = 0; i < N; i++)
            if (back[i] != value_of(step, what, i))
                fail_msg("%s: step %d, element %d", context, (int)step, (int)i);
    }
    assert_int_equal(store_read(r, step, "b", "param", 0, 3, back, &why), PEN_OK);
    if (back[2] != value_of(step, 2, 2)) fail_msg("%s: b of step %d", context, (int)step);
}

/* A or B is there, whole, and no partial snapshot. */
static void check_store(bool must_have_b, const char *context)
{
    store_reader *r;
    pen_error why = {0};
    int64_t steps[8];
    if (store_reader_open(dir, &r, &why) != PEN_OK) fail_msg("%s: %s", context, why.text);
    if (store_reader_trouble(r, &why) != PEN_OK) fail_msg("%s: %s", context, why.text);
    const size_t n = store_reader_steps(r, steps, 8);
    if (n < 1 || n > 2) fail_msg("%s: %zu complete snapshots", context, n);
    for (size_t i = 0; i < n; i++) {
        if (steps[i] != A && steps[i] != B) fail_msg("%s: step %d", context, (int)steps[i]);
        check_values(r, steps[i], context);
    }
    if (must_have_b && steps[n - 1] != B) fail_msg("%s: B was promised and is not there", context);
    store_reader_close(r);
}

static int count_files(const char *part)
{
    char path[400];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", dir, part);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        n += entry->d_name[0] != '.' && strcmp(entry->d_name, "owner") != 0;
    closedir(folder);
    return n;
}

/* The next one can be written, and nothing else is left then. */
static void check_goes_on(const char *context)
{
    store_reader *r;
    pen_error why = {0};
    int64_t steps[8];
    if (replace(dir, C, &why) != PEN_OK) fail_msg("%s, and then: %s", context, why.text);
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_reader_steps(r, steps, 8), 1);
    assert_int_equal(steps[0], C);
    check_values(r, C, context);
    store_reader_close(r);
    assert_int_equal(count_files("part-0"), 1);
    assert_int_equal(count_files("part-1"), 1);
}

static void check_sentence(const char *how, const char *context)
{
    char text[700];
    said(text, sizeof text);
    if (strstr(text, dir) == NULL) fail_msg("%s: the sentence names no file: '%s'", context, text);
    const char *cause = strcmp(how, "enospc") == 0 ? "No space left on device"
                        : strcmp(how, "eio") == 0  ? "Input/output error"
                                                   : "";
    if (strstr(text, cause) == NULL) fail_msg("%s: the sentence says '%s'", context, text);
}

static void every_call(const char *how, uint64_t seed, bool dies)
{
    long calls = 0, k = 1;
    int died = 0, failed = 0;
    for (; k < CALLS_MAX; k++) {
        char context[80];
        snprintf(context, sizeof context, "%s at call %ld, seed %d", how, k, (int)seed);
        fresh_store();
        const int status = run_writer(how, k, seed, &calls);
        const bool ended = WIFEXITED(status), well = ended && WEXITSTATUS(status) == 0;
        if (ended && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != FAILED)
            fail_msg("%s: exit %d", context, WEXITSTATUS(status));
        if (!ended && (!dies || WTERMSIG(status) != SIGKILL))
            fail_msg("%s: signal %d", context, WTERMSIG(status));
        died += !ended;
        failed += ended && !well;
        if (ended && !well) check_sentence(how, context);
        check_store(well, context);
        if (k % 3 == 0 || !well) check_goes_on(context);
        if (well && calls < k) break; /* no fault was due any more */
    }
    print_message("%s: %ld calls, died %d times, refused %d times\n", how, k - 1, died, failed);
    assert_true(k > 20 && k < CALLS_MAX);
    assert_true(dies ? died == k - 1 : failed > 10);
}

/* ---- tests ----------------------------------------------------------------------------------- */
static int setup(void **state)
{
    (void)state;
    pen_error why   = {0};
    const char *tmp = getenv("TMPDIR");
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return -1;
    self[n] = '\0';
    snprintf(shim, sizeof shim, "%.*s/support/libiofault.so", (int)(strrchr(self, '/') - self),
             self);
    snprintf(base, sizeof base, "%s/crash-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(base) == NULL || access(shim, R_OK) != 0) return -1;
    snprintf(dir, sizeof dir, "%s.copy", base);
    snprintf(count_file, sizeof count_file, "%s.count", base);
    snprintf(said_file, sizeof said_file, "%s.said", base);
    for (int part = 0; part < PARTS; part++)
        if (write_part(base, part, A, &why) != PEN_OK) return -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[1400];
    snprintf(command, sizeof command, "rm -rf '%s' '%s' '%s' '%s'", base, dir, count_file,
             said_file);
    return system(command);
}

static void test_a_writer_killed_at_any_call_leaves_the_old_snapshot_or_the_new_one(void **state)
{
    (void)state;
    every_call("kill", 0, true);
}

static void
test_a_writer_killed_during_any_write_leaves_the_old_snapshot_or_the_new_one(void **state)
{
    (void)state;
    every_call("torn", 0, true);
}

static void test_a_power_failure_at_any_call_leaves_the_old_snapshot_or_the_new_one(void **state)
{
    (void)state;
    every_call("lose", 0, true);
    every_call("lose", 1, true);
    every_call("lose", 2, true);
}

static void test_a_disk_full_at_any_call_is_reported_and_leaves_the_store_whole(void **state)
{
    (void)state;
    every_call("enospc", 0, false);
}

static void test_any_failing_call_is_reported_and_leaves_the_store_whole(void **state)
{
    (void)state;
    every_call("eio", 0, false);
}

static void test_a_short_write_at_any_call_is_reported_and_leaves_the_store_whole(void **state)
{
    (void)state;
    every_call("short", 0, false);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "writer") == 0) return writer(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_writer_killed_at_any_call_leaves_the_old_snapshot_or_the_new_one),
        cmocka_unit_test(
            test_a_writer_killed_during_any_write_leaves_the_old_snapshot_or_the_new_one),
        cmocka_unit_test(test_a_power_failure_at_any_call_leaves_the_old_snapshot_or_the_new_one),
        cmocka_unit_test(test_a_disk_full_at_any_call_is_reported_and_leaves_the_store_whole),
        cmocka_unit_test(test_any_failing_call_is_reported_and_leaves_the_store_whole),
        cmocka_unit_test(test_a_short_write_at_any_call_is_reported_and_leaves_the_store_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
