/* own_files_test.c - folders and files where somebody else was first: links, owners, modes.
 * Only root can make files of another user: those tests are skipped for others. */
#include "common/system/own_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SOMEBODY_ELSE = 54321 };

static char root[64], place[100], victim[100];
static pen_error why;

static int begin(void **state)
{
    (void)state;
    strcpy(root, "/tmp/pen-own-XXXXXX");
    if (mkdtemp(root) == NULL) return -1;
    snprintf(place, sizeof place, "%s/place", root);
    snprintf(victim, sizeof victim, "%s/victim", root);
    return 0;
}

static int end(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void write_to(const char *path, const char *text, mode_t mode)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static void assert_reads(const char *path, const char *text)
{
    char found[64] = "";
    FILE *f        = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fread(found, 1, sizeof found - 1, f), strlen(text));
    fclose(f);
    assert_string_equal(found, text);
}

static void assert_folder_refused(own_folder_kind kind, const char *sentence)
{
    assert_int_equal(own_folder_open(AT_FDCWD, place, place, kind, &why), -1);
    assert_int_equal(why.status, PEN_STORE);
    assert_non_null(strstr(why.text, place));
    if (strstr(why.text, sentence) == NULL) fail_msg("%s", why.text);
}

/* ---- folders --------------------------------------------------------------------------------- */
static void a_folder_is_made_closed_to_others_and_found_again(void **state)
{
    (void)state;
    struct stat st;
    for (int i = 0; i < 2; i++) {
        const int fd = own_folder_open(AT_FDCWD, place, place, OWN_FOLDER, &why);
        assert_true(fd >= 0);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0700);
        close(fd);
    }
}

static void a_folder_that_is_a_link_is_refused_unless_the_user_named_it(void **state)
{
    (void)state;
    assert_int_equal(symlink(root, place), 0);
    assert_folder_refused(OWN_FOLDER, "is a link, which may lead anywhere");
    const int fd = own_folder_open(AT_FDCWD, place, place, OWN_FOLDER_GIVEN, &why);
    assert_true(fd >= 0);
    close(fd);
}

static void a_folder_that_others_may_write_to_is_refused_unless_the_user_named_it(void **state)
{
    (void)state;
    static const mode_t modes[] = {0777, 01777, 0770, 0722};
    assert_int_equal(mkdir(place, 0700), 0);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(place, modes[i]), 0);
        assert_folder_refused(OWN_FOLDER, "chmod 700");
        const int fd = own_folder_open(AT_FDCWD, place, place, OWN_FOLDER_GIVEN, &why);
        assert_true(fd >= 0);
        close(fd);
    }
}

static void a_folder_of_another_user_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0) skip();
    assert_int_equal(mkdir(place, 0777), 0);
    assert_int_equal(chown(place, SOMEBODY_ELSE, SOMEBODY_ELSE), 0);
    assert_folder_refused(OWN_FOLDER, "belongs to another user (uid 54321)");
    assert_folder_refused(OWN_FOLDER_GIVEN, "belongs to another user (uid 54321)");
    assert_int_equal(chown(place, 65534, 65534), 0); /* as a network file system shows root's */
    assert_folder_refused(OWN_FOLDER, "belongs to another user (uid 65534)");
    const int fd = own_folder_open(AT_FDCWD, place, place, OWN_FOLDER_GIVEN, &why);
    assert_true(fd >= 0);
    close(fd);
}

static void a_file_where_a_folder_should_be_is_named(void **state)
{
    (void)state;
    write_to(place, "x", 0600);
    assert_folder_refused(OWN_FOLDER, "Not a directory");
}

/* ---- files ----------------------------------------------------------------------------------- */
static int open_in(int flags)
{
    const int folder = open(root, O_RDONLY | O_DIRECTORY);
    assert_true(folder >= 0);
    const int fd    = own_file_open(folder, "place", flags);
    const int error = errno;
    close(folder);
    errno = error;
    return fd;
}

static void a_file_is_new_or_truncated_or_continued(void **state)
{
    (void)state;
    static const struct {
        int flags;
        const char *then;
    } rows[] = {{0, "one"}, {O_TRUNC, "one"}, {O_APPEND, "oneone"}, {O_TRUNC, "one"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int fd = open_in(rows[i].flags);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "one", 3), 3);
        close(fd);
        assert_reads(place, rows[i].then);
    }
}

static void a_link_is_not_followed_and_what_it_names_stays(void **state)
{
    (void)state;
    write_to(victim, "mine", 0600);
    assert_int_equal(symlink(victim, place), 0);
    assert_int_equal(open_in(O_TRUNC), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(unlink(place), 0);
    assert_int_equal(link(victim, place), 0); /* a second name of the same file */
    assert_int_equal(open_in(O_TRUNC), -1);
    assert_int_equal(errno, EPERM);
    assert_reads(victim, "mine");
    assert_int_equal(unlink(place), 0);
    assert_int_equal(symlink("nowhere", place), 0); /* nothing is made there either */
    assert_int_equal(open_in(0), -1);
}

static void a_file_of_another_user_and_a_pipe_are_refused(void **state)
{
    (void)state;
    if (geteuid() != 0) skip();
    write_to(place, "theirs", 0666);
    assert_int_equal(chown(place, SOMEBODY_ELSE, SOMEBODY_ELSE), 0);
    assert_int_equal(open_in(O_TRUNC), -1);
    assert_int_equal(errno, EPERM);
    assert_reads(place, "theirs");
    assert_int_equal(unlink(place), 0);
    assert_int_equal(mkfifo(place, 0600), 0);
    assert_int_equal(open_in(O_TRUNC), -1); /* and does not wait for a reader */
}

static void a_file_beside_another_replaces_a_link_in_its_place(void **state)
{
    (void)state;
    char making[200];
    write_to(victim, "mine", 0600);
    assert_int_equal(symlink(victim, place), 0);
    FILE *f = own_file_beside(place, making, sizeof making);
    assert_non_null(f);
    fputs("new", f);
    fclose(f);
    assert_int_equal(rename(making, place), 0);
    assert_reads(place, "new");
    assert_reads(victim, "mine");
    char narrow[8];
    assert_null(own_file_beside(place, narrow, sizeof narrow));
    assert_int_equal(errno, ENAMETOOLONG);
}

/* ---- secrets --------------------------------------------------------------------------------- */
static void assert_secret_refused(const char *sentence)
{
    char text[32];
    assert_int_equal(own_secret_read("the secret", place, text, sizeof text, &why),
                     PEN_BAD_SETTING);
    if (strstr(why.text, sentence) == NULL) fail_msg("%s", why.text);
}

static void a_secret_is_read_if_it_is_closed_to_others(void **state)
{
    (void)state;
    static const mode_t open_to_others[] = {0644, 0640, 0604, 0660, 0601};
    char text[32];
    write_to(place, "hush\n", 0600);
    assert_int_equal(own_secret_read("the secret", place, text, sizeof text, &why), PEN_OK);
    assert_string_equal(text, "hush\n");
    for (size_t i = 0; i < sizeof open_to_others / sizeof *open_to_others; i++) {
        assert_int_equal(chmod(place, open_to_others[i]), 0);
        assert_secret_refused("is open to others");
    }
}

static void a_secret_of_another_user_is_refused_and_one_of_root_is_not(void **state)
{
    (void)state;
    char text[32];
    if (geteuid() != 0) skip();
    write_to(place, "hush", 0600);
    assert_int_equal(chown(place, SOMEBODY_ELSE, SOMEBODY_ELSE), 0);
    assert_secret_refused("belongs to another user (uid 54321)");
    assert_int_equal(chown(place, 0, SOMEBODY_ELSE), 0);
    assert_int_equal(chmod(place, 0440), 0); /* as Kubernetes mounts it */
    assert_int_equal(chmod(root, 0711), 0);
    assert_int_equal(setegid(SOMEBODY_ELSE), 0);
    assert_int_equal(seteuid(SOMEBODY_ELSE), 0);
    const pen_status status = own_secret_read("the secret", place, text, sizeof text, &why);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(setegid(0), 0);
    assert_int_equal(status, PEN_OK);
    assert_string_equal(text, "hush");
}

static void a_secret_that_is_missing_empty_long_or_no_file_is_named(void **state)
{
    (void)state;
    assert_secret_refused("cannot read the secret /tmp/pen-own-");
    write_to(place, "", 0600);
    assert_secret_refused("is empty");
    write_to(place, "01234567890123456789012345678901", 0600);
    assert_secret_refused("is too long");
    assert_int_equal(unlink(place), 0);
    assert_int_equal(mkfifo(place, 0600), 0);
    assert_secret_refused("is not a file");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_folder_is_made_closed_to_others_and_found_again),
        TEST(a_folder_that_is_a_link_is_refused_unless_the_user_named_it),
        TEST(a_folder_that_others_may_write_to_is_refused_unless_the_user_named_it),
        TEST(a_folder_of_another_user_is_refused),
        TEST(a_file_where_a_folder_should_be_is_named),
        TEST(a_file_is_new_or_truncated_or_continued),
        TEST(a_link_is_not_followed_and_what_it_names_stays),
        TEST(a_file_of_another_user_and_a_pipe_are_refused),
        TEST(a_file_beside_another_replaces_a_link_in_its_place),
        TEST(a_secret_is_read_if_it_is_closed_to_others),
        TEST(a_secret_of_another_user_is_refused_and_one_of_root_is_not),
        TEST(a_secret_that_is_missing_empty_long_or_no_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
