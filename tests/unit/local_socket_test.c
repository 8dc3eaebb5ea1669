/* local_socket_test.c - which listener a dialler finds, and what the dead leave. */
#include "common/net/local_socket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BACKLOG = 8 };

static char root[64], folder[80];
static char path[LOCAL_SOCKET_PATH_BYTES];
static pen_error why;

static int begin(void **state)
{
    (void)state;
    strcpy(root, "/tmp/pen-local-XXXXXX");
    if (mkdtemp(root) == NULL) return -1;
    snprintf(folder, sizeof folder, "%s/penstock", root);
    setenv("XDG_RUNTIME_DIR", root, 1);
    setenv("HOME", root, 1);
    return 0;
}

static int end(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static local_socket *listen_for(const char *address)
{
    local_socket *s = NULL;
    if (local_socket_listen(address, BACKLOG, &s, &why) != PEN_OK) fail_msg("%s", why.text);
    return s;
}

static int count_files(void)
{
    DIR *dir = opendir(folder);
    int n    = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static bool connects(const char *to)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int fd          = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", to);
    const bool is = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return is;
}

/* ---- finding --------------------------------------------------------------------------------- */
static void a_dialler_finds_the_listener_of_its_address_and_no_other(void **state)
{
    (void)state;
    static const char *const others[] = {"tcp://127.0.0.1:7001", "tcp://127.0.0.2:7000",
                                         "tcp://[::1]:7000", "tcp://10.1.2.3:7000"};
    local_socket *s                   = listen_for("tcp://127.0.0.1:7000");
    assert_true(local_socket_find("tcp://127.0.0.1:7000", path));
    assert_true(connects(path));
    assert_true(local_socket_is_of(path, 7000));
    assert_false(local_socket_is_of(path, 700));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(local_socket_find(others[i], path));
    local_socket_close(s);
    assert_false(local_socket_find("tcp://127.0.0.1:7000", path));
    assert_int_equal(count_files(), 0);
}

static void a_listener_at_all_addresses_is_found_by_those_of_this_host_only(void **state)
{
    (void)state;
    static const char *const all[] = {"tcp://0.0.0.0:7000", "tcp://[::]:7000"};
    for (int i = 0; i < 2; i++) {
        local_socket *s = listen_for(all[i]);
        assert_true(local_socket_find("tcp://127.0.0.1:7000", path));
        assert_true(local_socket_find("tcp://127.9.9.9:7000", path));
        assert_false(local_socket_find("tcp://192.0.2.1:7000", path)); /* another host's */
        assert_false(local_socket_find("tcp://[2001:db8::1]:7000", path));
        local_socket_close(s);
    }
}

static void what_is_no_numeric_address_finds_nothing(void **state)
{
    (void)state;
    static const char *const odd[] = {
        "",          "tcp://",           "tcp://localhost:1", "ipc://x", "tcp://[fe80::1%eth0]:7",
        "127.0.0.1", "tcp://127.0.0.1:", "tcp://[::1",        "tcp://::"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        assert_false(local_socket_find(odd[i], path));
}

/* ---- the living and the dead ------------------------------------------------------------------ */
static void
a_second_listener_is_told_that_the_port_is_in_use_and_the_first_is_unharmed(void **state)
{
    (void)state;
    local_socket *s = listen_for("tcp://127.0.0.1:7000"), *other = NULL;
    assert_int_equal(local_socket_listen("tcp://127.0.0.1:7000", BACKLOG, &other, &why),
                     PEN_UNREACHABLE);
    assert_string_equal(
        why.text,
        "port 7000 is in use (tcp://127.0.0.1:7000); choose another, or 0 for a free one");
    assert_true(local_socket_find("tcp://127.0.0.1:7000", path));
    assert_true(connects(path));
    local_socket_close(s);
}

/* A child listens there and is killed. */
static void leave_dead(const char *address)
{
    int ends[2];
    char ready;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        (void)listen_for(address);
        (void)!write(ends[1], "x", 1);
        for (;;) pause();
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ends[0]);
    close(ends[1]);
}

static void a_killed_listener_is_not_found_and_the_next_one_takes_its_place(void **state)
{
    (void)state;
    leave_dead("tcp://127.0.0.1:7001");
    leave_dead("tcp://127.0.0.1:7000");
    assert_int_equal(count_files(), 1); /* the second one had removed the file of the first */
    assert_false(local_socket_find("tcp://127.0.0.1:7000", path));
    local_socket *s = listen_for("tcp://127.0.0.1:7000");
    assert_int_equal(count_files(), 1);
    assert_true(local_socket_find("tcp://127.0.0.1:7000", path));
    local_socket_sweep();
    assert_true(connects(path));
    local_socket_close(s);
    leave_dead("tcp://127.0.0.1:7002");
    local_socket_sweep();
    assert_int_equal(count_files(), 0);
}

static void listeners_at_one_time_wait_for_nobody_and_leave_the_dead_to_a_later_one(void **state)
{
    (void)state;
    leave_dead("tcp://127.0.0.1:7001");
    const int other = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(other, LOCK_SH), 0); /* as a listener that is at it */
    local_socket *s = listen_for("tcp://127.0.0.1:7000");
    assert_int_equal(count_files(), 2);
    local_socket_close(s);
    assert_int_equal(count_files(), 1);
    close(other);
    s = listen_for("tcp://127.0.0.1:7000");
    assert_int_equal(count_files(), 1);
    assert_true(local_socket_find("tcp://127.0.0.1:7000", path));
    local_socket_close(s);
}

static void a_listener_removes_its_own_file_and_not_that_of_its_successor(void **state)
{
    (void)state;
    local_socket *old = listen_for("tcp://127.0.0.1:7000");
    assert_true(local_socket_find("tcp://127.0.0.1:7000", path));
    close(local_socket_take(old)); /* it no longer listens, and has not removed its file */
    local_socket *now = listen_for("tcp://127.0.0.1:7000");
    local_socket_close(old);
    assert_true(local_socket_find("tcp://127.0.0.1:7000", path));
    local_socket_close(now);
    assert_int_equal(count_files(), 0);
}

static void nothing_is_removed_for_lack_of_descriptors(void **state)
{
    (void)state;
    struct rlimit before;
    local_socket *s = listen_for("tcp://127.0.0.1:7000"), *other = NULL;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t more = 0; more < 6; more++) {
        const int next          = dup(0); /* the lowest free one */
        const struct rlimit few = {(rlim_t)next + more, before.rlim_max};
        close(next);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        local_socket_sweep();
        const pen_status status =
            local_socket_listen("tcp://127.0.0.1:7000", BACKLOG, &other, &why);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_not_equal(status, PEN_OK);
        assert_true(local_socket_find("tcp://127.0.0.1:7000", path));
        assert_true(connects(path));
    }
    local_socket_close(s);
}

/* ---- the folder ------------------------------------------------------------------------------- */
static void a_folder_that_others_can_enter_is_refused_and_not_searched(void **state)
{
    (void)state;
    local_socket *s = listen_for("tcp://127.0.0.1:7000"), *other = NULL;
    assert_int_equal(chmod(folder, 0711), 0);
    assert_false(local_socket_find("tcp://127.0.0.1:7000", path));
    assert_int_equal(local_socket_listen("tcp://127.0.0.1:7001", BACKLOG, &other, &why), PEN_STORE);
    assert_non_null(strstr(why.text, "is open to others"));
    assert_int_equal(chmod(folder, 0700), 0);
    local_socket_close(s);
}

static void a_folder_with_a_name_too_long_for_a_socket_is_named(void **state)
{
    (void)state;
    char longer[200];
    local_socket *s = NULL;
    const int n     = snprintf(longer, sizeof longer, "%s/", root);
    memset(longer + n, 'x', 90);
    longer[n + 90] = '\0';
    assert_int_equal(mkdir(longer, 0700), 0);
    setenv("XDG_RUNTIME_DIR", longer, 1);
    assert_int_equal(local_socket_listen("tcp://127.0.0.1:7000", BACKLOG, &s, &why), PEN_STORE);
    assert_non_null(strstr(why.text, "is too long for a socket in it"));
    assert_non_null(strstr(why.text, "XDG_RUNTIME_DIR"));
}

static void a_reserved_port_refuses_connections_and_other_listeners(void **state)
{
    (void)state;
    char numeric[64], again[64];
    const int fd = local_socket_reserve("tcp://localhost:0", numeric, sizeof numeric);
    assert_true(fd >= 0);
    assert_memory_equal(numeric, "tcp://127.0.0.1:", 16);
    const struct sockaddr_in at = {.sin_family      = AF_INET,
                                   .sin_port        = htons((uint16_t)atoi(numeric + 16)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int to = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    assert_int_equal(connect(to, (const struct sockaddr *)&at, sizeof at), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(to);
    const int squatter = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(squatter, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    assert_true(bind(squatter, (const struct sockaddr *)&at, sizeof at) != 0 ||
                listen(squatter, 1) != 0);
    close(squatter);
    close(fd);
    const int next = local_socket_reserve(numeric, again, sizeof again);
    assert_true(next >= 0);
    assert_string_equal(again, numeric);
    close(next);
    assert_int_equal(local_socket_reserve("tcp://no.such.host.invalid:1", again, sizeof again), -1);
    assert_int_equal(errno, EINVAL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_dialler_finds_the_listener_of_its_address_and_no_other),
        TEST(a_listener_at_all_addresses_is_found_by_those_of_this_host_only),
        TEST(what_is_no_numeric_address_finds_nothing),
        TEST(a_second_listener_is_told_that_the_port_is_in_use_and_the_first_is_unharmed),
        TEST(a_killed_listener_is_not_found_and_the_next_one_takes_its_place),
        TEST(listeners_at_one_time_wait_for_nobody_and_leave_the_dead_to_a_later_one),
        TEST(a_listener_removes_its_own_file_and_not_that_of_its_successor),
        TEST(nothing_is_removed_for_lack_of_descriptors),
        TEST(a_folder_that_others_can_enter_is_refused_and_not_searched),
        TEST(a_folder_with_a_name_too_long_for_a_socket_is_named),
        TEST(a_reserved_port_refuses_connections_and_other_listeners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
