/* state_test.c - a few kilobytes that outlive their process: stored whole, or the old contents remain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/snapshot/state.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    char dir[64], file[80], next[80];
    state_file *state;
    pen_error why;
} place;

static int make_place(void **state)
{
    static place p;
    p = (place){.dir = "/tmp/penstock-state-XXXXXX"};
    if (!mkdtemp(p.dir)) return -1;
    snprintf(p.file, sizeof p.file, "%s/state", p.dir);
    snprintf(p.next, sizeof p.next, "%s/state.next", p.dir);
    *state = &p;
    return state_open(p.dir, &p.state, &p.why) == PEN_OK ? 0 : -1;
}

static int drop_place(void **state)
{
    place *p = *state;
    char lock[80];
    state_close(p->state);
    snprintf(lock, sizeof lock, "%s/lock", p->dir);
    unlink(p->file);
    unlink(p->next);
    rmdir(p->next);
    unlink(lock);
    return rmdir(p->dir);
}

static void assert_kept(place *p, const char *text)
{
    void *data;
    size_t size;
    assert_int_equal(state_read(p->state, &data, &size, &p->why), PEN_OK);
    assert_int_equal(size, text ? strlen(text) : 0);
    if (text) assert_memory_equal(data, text, size);
    if (!text) assert_null(data);
    free(data);
}

static void keep(place *p, const char *text)
{
    assert_int_equal(state_keep(p->state, text, strlen(text), &p->why), PEN_OK);
}

static void the_last_state_written_is_read(void **state)
{
    place *p = *state;
    assert_kept(p, NULL);
    keep(p, "one");
    assert_kept(p, "one");
    keep(p, "another, and longer");
    keep(p, "two");
    assert_kept(p, "two");
    assert_int_equal(access(p->next, F_OK), -1);
    state_close(p->state);
    assert_int_equal(state_open(p->dir, &p->state, &p->why), PEN_OK);
    assert_kept(p, "two");
}

static void forgotten_state_is_gone(void **state)
{
    place *p = *state;
    keep(p, "one");
    assert_int_equal(state_forget(p->state, &p->why), PEN_OK);
    assert_int_equal(state_forget(p->state, &p->why), PEN_OK);
    assert_kept(p, NULL);
}

static void a_crash_while_writing_leaves_the_old_state(void **state)
{
    place *p = *state;
    keep(p, "one");
    const int fd = open(p->next, O_WRONLY | O_CREAT, 0600); /* truncated by the crash */
    assert_int_equal(write(fd, "PENSTATE", 8), 8);
    close(fd);
    assert_kept(p, "one");
    keep(p, "two");
    assert_kept(p, "two");
}

static void a_failed_write_is_reported_and_the_old_state_stays(void **state)
{
    place *p = *state;
    keep(p, "one");
    assert_int_equal(mkdir(p->next, 0700), 0); /* in its way */
    assert_int_equal(state_keep(p->state, "two", 3, &p->why), PEN_STORE);
    char text[300];
    snprintf(text, sizeof text,
             "writing %s: Is a directory; give another --state, or make room there", p->next);
    assert_string_equal(p->why.text, text);
    assert_kept(p, "one");
}

static void every_changed_or_missing_byte_is_detected(void **state)
{
    place *p = *state;
    char whole[256];
    keep(p, "what a scheduler must know");
    int fd               = open(p->file, O_RDONLY);
    const ssize_t length = read(fd, whole, sizeof whole);
    close(fd);
    assert_true(length > 24);
    for (ssize_t i = 0; i < 2 * length; i++) {
        char damaged[256];
        memcpy(damaged, whole, sizeof damaged);
        const ssize_t left = i < length ? i : length;
        if (i >= length) damaged[i - length] ^= 4;
        fd = open(p->file, O_WRONLY | O_TRUNC);
        assert_int_equal(write(fd, damaged, (size_t)left), left);
        close(fd);
        void *data;
        size_t size;
        assert_int_equal(state_read(p->state, &data, &size, &p->why), PEN_CORRUPT);
        assert_null(data);
    }
    char text[300];
    snprintf(text, sizeof text, "%s is damaged, or of another version; move it away to start anew",
             p->file);
    assert_string_equal(p->why.text, text);
}

static void a_second_process_cannot_open_the_same_state(void **state)
{
    place *p        = *state;
    const pid_t pid = fork();
    if (pid == 0) {
        state_file *second;
        pen_error why;
        char text[300];
        snprintf(text, sizeof text,
                 "another scheduler uses %s; end it first, or give another --state", p->dir);
        const bool is_refused = state_open(p->dir, &second, &why) == PEN_STORE;
        _exit(is_refused && strcmp(why.text, text) == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void an_impossible_folder_is_refused(void **state)
{
    place *p = *state;
    state_file *other;
    pen_error why;
    char dir[128];
    keep(p, "a file, not a folder");
    snprintf(dir, sizeof dir, "%s/in", p->file);
    assert_int_equal(state_open(dir, &other, &why), PEN_STORE);
    assert_non_null(strstr(why.text, "Not a directory; give another --state"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_place, drop_place)
    const struct CMUnitTest tests[] = {
        TEST(the_last_state_written_is_read),
        TEST(forgotten_state_is_gone),
        TEST(a_crash_while_writing_leaves_the_old_state),
        TEST(a_failed_write_is_reported_and_the_old_state_stays),
        TEST(every_changed_or_missing_byte_is_detected),
        TEST(a_second_process_cannot_open_the_same_state),
        TEST(an_impossible_folder_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
