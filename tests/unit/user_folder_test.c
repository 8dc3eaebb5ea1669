/* user_folder_test.c - the folder of a user's notes and keys: its owner, its mode, and what replaces it.
 * Only root can make a folder for another user: those tests are skipped for others. */
#include "common/system/user_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SOMEBODY_ELSE = 54321 };

static char root[64], place[100], path[USER_FOLDER_BYTES];
static pen_error why;

static int begin(void **state)
{
    (void)state;
    strcpy(root, "/tmp/pen-folder-XXXXXX");
    if (mkdtemp(root) == NULL) return -1;
    setenv("XDG_RUNTIME_DIR", root, 1);
    setenv("HOME", root, 1);
    snprintf(place, sizeof place, "%s/penstock", root);
    return 0;
}

static int end(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static mode_t mode_of(const char *folder)
{
    struct stat st;
    assert_int_equal(lstat(folder, &st), 0);
    return st.st_mode & 07777;
}

static void test_user_folder_is_made_in_the_runtime_folder_and_closed_to_others(void **state)
{
    (void)state;
    const mode_t before = umask(0);
    assert_int_equal(user_folder(path, &why), PEN_OK);
    umask(before);
    assert_string_equal(path, place);
    assert_int_equal(mode_of(path), 0700);
    assert_int_equal(user_folder(path, &why), PEN_OK);
    assert_string_equal(path, place);
}

static void test_user_folder_that_others_can_enter_is_refused_with_the_remedy(void **state)
{
    (void)state;
    static const mode_t modes[] = {0777, 01777, 0701, 0710, 0750, 0755};
    assert_int_equal(mkdir(place, 0700), 0);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(place, modes[i]), 0);
        assert_int_equal(user_folder(path, &why), PEN_STORE);
        assert_non_null(strstr(why.text, place));
        assert_non_null(strstr(why.text, "chmod 700"));
    }
    assert_int_equal(chmod(place, 0700), 0);
    assert_int_equal(user_folder(path, &why), PEN_OK);
}

static void test_user_folder_is_neither_a_link_nor_a_file(void **state)
{
    (void)state;
    assert_int_equal(symlink(root, place), 0);
    assert_int_equal(user_folder(path, &why), PEN_OK);
    assert_string_not_equal(path, place);
    assert_int_equal(unlink(place), 0);
    FILE *f = fopen(place, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(user_folder(path, &why), PEN_OK);
    assert_string_not_equal(path, place);
}

static void test_user_folder_of_another_user_is_skipped(void **state)
{
    (void)state;
    if (geteuid() != 0) skip();
    assert_int_equal(mkdir(place, 0777), 0);
    assert_int_equal(chown(place, SOMEBODY_ELSE, SOMEBODY_ELSE), 0);
    assert_int_equal(user_folder(path, &why), PEN_OK);
    assert_string_not_equal(path, place);
    assert_int_equal(mode_of(path), 0700);
}

/* In a child, which gives up being root: /tmp/penstock-UID of that number is taken by root. */
static int as_a_user_whose_place_in_tmp_is_taken(void)
{
    char taken[64], home[100];
    snprintf(taken, sizeof taken, "/tmp/penstock-%d", SOMEBODY_ELSE);
    snprintf(home, sizeof home, "%s/.cache/penstock-", root);
    (void)mkdir(taken, 0777);
    const int gave = chown(root, SOMEBODY_ELSE, SOMEBODY_ELSE);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        unsetenv("XDG_RUNTIME_DIR");
        const bool is = gave == 0 && setuid(SOMEBODY_ELSE) == 0 &&
                        user_folder(path, &why) == PEN_OK &&
                        strncmp(path, home, strlen(home)) == 0 && mode_of(path) == 0700;
        unsetenv("HOME");
        const bool is_told = user_folder(path, &why) == PEN_STORE &&
                             strstr(why.text, taken) != NULL &&
                             strstr(why.text, "somebody else's") != NULL &&
                             strstr(why.text, "XDG_RUNTIME_DIR") != NULL;
        _exit(is ? is_told ? 0 : 2 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    rmdir(taken);
    return status;
}

static void
test_user_folder_in_tmp_taken_by_another_user_does_not_block_users_with_a_home(void **state)
{
    (void)state;
    if (geteuid() != 0) skip();
    assert_int_equal(as_a_user_whose_place_in_tmp_is_taken(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_user_folder_is_made_in_the_runtime_folder_and_closed_to_others, begin, end),
        cmocka_unit_test_setup_teardown(
            test_user_folder_that_others_can_enter_is_refused_with_the_remedy, begin, end),
        cmocka_unit_test_setup_teardown(test_user_folder_is_neither_a_link_nor_a_file, begin, end),
        cmocka_unit_test_setup_teardown(test_user_folder_of_another_user_is_skipped, begin, end),
        cmocka_unit_test_setup_teardown(
            test_user_folder_in_tmp_taken_by_another_user_does_not_block_users_with_a_home, begin,
            end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
