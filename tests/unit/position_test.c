/* position_test.c - the page that tells a launcher where its worker was when it died. */
#include "common/launch/position.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char number[16];

static const char *text_of(int fd)
{
    snprintf(number, sizeof number, "%d", fd);
    return number;
}

static void a_killed_worker_leaves_its_newest_step_and_call(void **state)
{
    (void)state;
    int fd;
    int64_t step;
    char call[POSITION_CALL_BYTES];
    launch_position *page = position_create(&fd);
    assert_non_null(page);
    assert_false(position_read(page, &step, call)); /* nobody has written */
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        launch_position *own = position_open(text_of(fd));
        position_set_step(own, 41);
        position_set_call(own, "pen_step_end", true);
        position_set_call(own, "pen_step_end", false);
        position_set_step(own, 42);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(position_read(page, &step, call));
    assert_int_equal(step, 42);
    assert_string_equal(call, "after pen_step_end");
    position_close(page);
    close(fd);
}

static void a_worker_that_is_in_a_call_is_in_it(void **state)
{
    (void)state;
    int fd;
    int64_t step;
    char call[POSITION_CALL_BYTES];
    launch_position *page = position_create(&fd), *own = position_open(text_of(fd));
    assert_non_null(own);
    position_set_call(own, "pen_commit", true);
    assert_true(position_read(page, &step, call));
    assert_int_equal(step, -1);
    assert_string_equal(call, "pen_commit");
    position_close(own);
    position_close(page);
    close(fd);
}

static void a_worker_without_a_launcher_has_no_page(void **state)
{
    (void)state;
    int ends[2], fd, plain = memfd_create("plain", 0);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(ftruncate(plain, 4096), 0);
    assert_null(position_open(NULL));
    assert_null(position_open(""));
    assert_null(position_open("0"));
    assert_null(position_open("-1"));
    assert_null(position_open("7x"));
    assert_null(position_open("99999999999999999999"));
    assert_null(position_open(text_of(ends[0]))); /* not memory */
    assert_null(position_open(text_of(plain)));   /* not sealed: it could be cut under us */
    launch_position *page = position_create(&fd);
    memset(page, 0, 8);
    assert_null(position_open(text_of(fd))); /* not such a page */
    position_close(page);
    close(fd);
    position_set_step(NULL, 1);
    position_set_call(NULL, "pen_view", true);
    close(plain);
    close(ends[0]);
    close(ends[1]);
}

static void nothing_in_the_page_is_trusted(void **state)
{
    (void)state;
    int fd;
    int64_t step;
    char call[POSITION_CALL_BYTES];
    launch_position *page = position_create(&fd), *own = position_open(text_of(fd));
    position_set_call(own, "x\033[2J", true);
    assert_true(position_read(page, &step, call));
    assert_string_equal(call, ""); /* not the name of a function */
    memset((char *)own + 8, 0xff, 4096 - 8);
    assert_true(position_read(page, &step, call));
    assert_int_equal(step, -1);
    assert_string_equal(call, "");
    position_close(own);
    position_close(page);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker_leaves_its_newest_step_and_call),
        cmocka_unit_test(a_worker_that_is_in_a_call_is_in_it),
        cmocka_unit_test(a_worker_without_a_launcher_has_no_page),
        cmocka_unit_test(nothing_in_the_page_is_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
