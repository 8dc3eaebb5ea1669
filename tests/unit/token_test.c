/* token_test.c - the token that a scheduler leaves for other processes of its user: where and when it is found. */
#include "common/net/auth/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <dirent.h>
#include <unistd.h>
#include <utime.h>

#include <cmocka.h>

static char root[64], folder[100], file[400];
static pen_error why;

static int begin(void **state)
{
    (void)state;
    strcpy(root, "/tmp/pen-token-XXXXXX");
    if (mkdtemp(root) == NULL) return -1;
    setenv("XDG_RUNTIME_DIR", root, 1);
    snprintf(folder, sizeof folder, "%s/penstock", root);
    return 0;
}

static int end(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static secret make(void)
{
    secret s;
    if (secret_make(&s, &why) != PEN_OK) fail_msg("%s", why.text);
    return s;
}

/* The number of files; `file` is the last one. */
static int count(void)
{
    int n    = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "%s/%s", folder, entry->d_name);
        n++;
    }
    closedir(dir);
    return n;
}

static token *publish(const char *address, const secret *s)
{
    token *t;
    if (token_publish(address, s, &t, &why) != PEN_OK) fail_msg("%s", why.text);
    return t;
}

static void assert_finds(const char *address, const secret *s)
{
    secret found;
    assert_true(token_find(address, &found));
    assert_memory_equal(&found, s, sizeof found);
}

static void test_token_is_found_by_the_address_until_it_is_withdrawn(void **state)
{
    (void)state;
    const secret s = make();
    secret found;
    struct stat st;
    assert_false(token_find("tcp://127.0.0.1:4711", &found));
    token *t = publish("tcp://127.0.0.1:4711", &s);
    assert_finds("tcp://127.0.0.1:4711", &s);
    assert_finds("tcp://localhost:4711", &s);
    assert_finds("tcp://[::1]:4711", &s);
    assert_false(token_find("tcp://127.0.0.1:4712", &found));
    assert_false(token_find("tcp://127.0.0.2:4711", &found));
    assert_int_equal(count(), 1);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    token_withdraw(t);
    token_withdraw(NULL);
    assert_false(token_find("tcp://127.0.0.1:4711", &found));
    assert_int_equal(count(), 0);
}

static void test_token_of_the_next_scheduler_replaces_that_of_the_last(void **state)
{
    (void)state;
    const secret first = make(), second = make();
    token *a = publish("tcp://127.0.0.1:4711", &first);
    token *b = publish("tcp://127.0.0.1:4711", &second);
    assert_finds("tcp://127.0.0.1:4711", &second);
    token_withdraw(a); /* no longer its own */
    assert_finds("tcp://127.0.0.1:4711", &second);
    token_withdraw(b);
    assert_int_equal(count(), 0);
}

static void make_old(void)
{
    const struct utimbuf then = {.actime = 1000, .modtime = 1000};
    assert_int_equal(count(), 1);
    assert_int_equal(utime(file, &then), 0);
}

static void
test_token_of_a_killed_process_is_removed_by_the_next_job_and_a_live_one_stays(void **state)
{
    (void)state;
    const secret s    = make();
    const pid_t child = fork();
    if (child == 0) {
        token *t;
        _exit(token_publish("tcp://127.0.0.1:1", &s, &t, &why) == PEN_OK ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    make_old();
    token *t = publish("tcp://127.0.0.1:2", &s);
    secret found;
    assert_false(token_find("tcp://127.0.0.1:1", &found));
    make_old(); /* the only one left, and it is locked */
    token *u = publish("tcp://127.0.0.1:3", &s);
    assert_finds("tcp://127.0.0.1:2", &s);
    token_withdraw(t);
    token_withdraw(u);
}

static void test_token_of_a_strange_address_is_a_plain_file_in_the_folder(void **state)
{
    (void)state;
    static const char *const strange[] = {
        "ipc:///tmp/../x", "ipc://@a/b", "tcp://[fe80::1%eth0]:5", "..", "/", ""};
    const secret s = make();
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        token *t = publish(strange[i], &s);
        assert_finds(strange[i], &s);
        assert_int_equal(count(), 1);
        token_withdraw(t);
    }
}

static void test_token_readable_by_others_is_ignored(void **state)
{
    (void)state;
    const secret s = make();
    secret found;
    token *t = publish("tcp://127.0.0.1:4711", &s);
    assert_int_equal(count(), 1);
    assert_int_equal(chmod(file, 0644), 0);
    assert_false(token_find("tcp://127.0.0.1:4711", &found));
    assert_int_equal(chmod(file, 0600), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_false(token_find("tcp://127.0.0.1:4711", &found));
    token *u = NULL;
    assert_int_equal(token_publish("tcp://127.0.0.1:5", &s, &u, &why), PEN_STORE);
    assert_non_null(strstr(why.text, "chmod 700"));
    token_withdraw(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_token_is_found_by_the_address_until_it_is_withdrawn,
                                        begin, end),
        cmocka_unit_test_setup_teardown(test_token_of_the_next_scheduler_replaces_that_of_the_last,
                                        begin, end),
        cmocka_unit_test_setup_teardown(
            test_token_of_a_killed_process_is_removed_by_the_next_job_and_a_live_one_stays, begin,
            end),
        cmocka_unit_test_setup_teardown(
            test_token_of_a_strange_address_is_a_plain_file_in_the_folder, begin, end),
        cmocka_unit_test_setup_teardown(test_token_readable_by_others_is_ignored, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
