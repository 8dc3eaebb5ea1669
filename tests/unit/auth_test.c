/* auth_test.c - which connections need a secret, which keys each member gets, and which peers a role accepts. */
#include "common/base/log.h"
#include "common/net/auth/auth.h"
#include "common/net/auth/secret.h"
#include "tests/support/transports.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64];

static int make_secret(void **state)
{
    (void)state;
    secret s;
    pen_error why;
    log_level_set(-1);
    snprintf(path, sizeof path, "/tmp/guard-test-%d.key", (int)getpid());
    return secret_make(&s, &why) != PEN_OK || secret_write(path, &s, &why) != PEN_OK;
}

static int remove_secret(void **state)
{
    (void)state;
    return unlink(path);
}

static auth *open_as(auth_role role, int32_t rank)
{
    auth *g;
    pen_error why;
    const auth_options o = {.encryption = AUTH_ON, .secret_file = path, .role = role, .rank = rank};
    if (auth_open(&o, &g, &why) != PEN_OK) fail_msg("%s", why.text);
    assert_non_null(g);
    return g;
}

static void test_auth_knows_what_stays_on_this_host(void **state)
{
    (void)state;
    static const char *const near[] = {
        "",           "127.0.0.1",         "127.0.1.1",     "127.0.0.1:29500",
        "localhost",  "localhost:1",       "::1",           "[::1]",
        "[::1]:4711", "tcp://127.0.0.1:0", "tcp://[::1]:7", "tcp://localhost:7",
        "inproc://x", "ipc://*",           "sim://1/x"};
    static const char *const far[] = {"0.0.0.0",        "*",           "::",
                                      "10.0.0.7",       "a",           "127.example.org",
                                      "127.0.0.1.evil", "localhost.x", "localhosts",
                                      "fe80::1",        "[fe80::1]:7", "tcp://10.0.0.7:29500",
                                      "tcp://*:0",      "node-0:29500"};
    for (size_t i = 0; i < sizeof near / sizeof *near; i++)
        if (!auth_is_loopback(near[i])) fail_msg("'%s' was taken for far", near[i]);
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        if (auth_is_loopback(far[i])) fail_msg("'%s' was taken for near", far[i]);
}

typedef struct {
    int encryption;
    const char *secret_file, *address, *other;
    bool local_sockets, encrypts;
    transport_sockets sockets;
} choice;

static void test_auth_uses_local_sockets_on_this_host_and_keys_beyond_it(void **state)
{
    (void)state;
    const choice choices[] = {
        {AUTH_AUTO, NULL, "127.0.0.1", NULL, true, false, TRANSPORT_LOCAL_ONLY},
        {AUTH_AUTO, "", "localhost", "", true, false, TRANSPORT_LOCAL_ONLY},
        {AUTH_AUTO, path, "127.0.0.1", NULL, true, true, TRANSPORT_LOCAL_TOO},
        {AUTH_AUTO, path, "10.0.0.7", NULL, true, true, TRANSPORT_LOCAL_TOO},
        {AUTH_AUTO, path, "127.0.0.1", "b", true, true, TRANSPORT_LOCAL_TOO},
        {AUTH_AUTO, path, "127.0.0.1", NULL, false, true, TRANSPORT_TCP},
        {AUTH_ON, path, "127.0.0.1", NULL, true, true, TRANSPORT_LOCAL_TOO},
        {AUTH_CLEAR, NULL, "127.0.0.1", NULL, true, false, TRANSPORT_LOCAL_ONLY},
        {AUTH_CLEAR, NULL, "127.0.0.1", NULL, false, false, TRANSPORT_TCP},
        {AUTH_CLEAR, NULL, "10.0.0.7", NULL, true, false, TRANSPORT_LOCAL_TOO},
        {AUTH_CLEAR, path, "*", NULL, true, false, TRANSPORT_LOCAL_TOO},
        {AUTH_CLEAR, path, "127.0.0.1", NULL, true, false, TRANSPORT_LOCAL_ONLY},
    };
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const choice *c = &choices[i];
        auth *g         = NULL;
        pen_error why;
        const auth_options o = {.encryption    = c->encryption,
                                .secret_file   = c->secret_file,
                                .local_sockets = c->local_sockets,
                                .role          = AUTH_WORKER,
                                .scheduler     = c->address,
                                .address       = {c->address, c->other}};
        if (auth_open(&o, &g, &why) != PEN_OK) fail_msg("%zu: %s", i, why.text);
        transport_options of = {0};
        auth_listen(g, &of);
        assert_int_equal(auth_encrypts(g), c->encrypts);
        assert_int_equal(of.keys != NULL, c->encrypts);
        assert_int_equal(of.sockets, c->sockets);
        assert_null(auth_hint(g, "tcp://127.0.0.1:1")); /* nobody has that port */
        auth_close(g);
    }
}

static void test_auth_inside_one_process_is_none(void **state)
{
    (void)state;
    auth *g              = NULL;
    const auth_options o = {
        .local_sockets = true, .scheduler = "inproc://x", .address = {"inproc://x"}};
    assert_int_equal(auth_open(&o, &g, NULL), PEN_OK);
    assert_null(g);
}

static void test_auth_without_a_required_secret_names_the_remedy(void **state)
{
    (void)state;
    auth *g                    = NULL;
    const auth_options o       = {.role          = AUTH_SERVER,
                                  .local_sockets = true,
                                  .address       = {"127.0.0.1", "node-3"}},
                       tcp     = {.role = AUTH_SERVER, .address = {"127.0.0.1"}},
                       on      = {.encryption = AUTH_ON, .address = {"127.0.0.1"}},
                       missing = {.secret_file = "/nowhere/key", .address = {"127.0.0.1"}};
    pen_error why;
    assert_int_equal(auth_open(&o, &g, &why), PEN_BAD_SETTING);
    assert_string_equal(
        why.text,
        "node-3 is not loopback, so traffic is encrypted, but the job's secret is missing: "
        "`penstock keygen FILE` makes one; set secret_file=FILE for every process "
        "(PENSTOCK_SECRET_FILE), or encryption=clear");
    assert_int_equal(auth_open(&tcp, &g, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(
        why.text, "with local_sockets=no traffic is encrypted, but the job's secret is missing"));
    assert_int_equal(auth_open(&on, &g, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, "encryption=on needs the job's secret"));
    assert_int_equal(auth_open(&missing, &g, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, "/nowhere/key"));
    assert_null(g);
}

static void test_auth_of_none_leaves_options_alone(void **state)
{
    (void)state;
    transport_options o = {0};
    auth_listen(NULL, &o);
    auth_dial(NULL, AUTH_SERVER, &o);
    auth_close(NULL);
    assert_null(o.keys);
    assert_int_equal(o.io_threads, 0);
    assert_int_equal(auth_lanes(NULL), 1);
}

static bool lets_in(auth_role listener, auth_role role, int32_t rank)
{
    auth *l = open_as(listener, 0), *d = open_as(role, rank);
    transport_options at = {0}, to = {0};
    auth_listen(l, &at);
    auth_dial(d, listener, &to);
    assert_memory_equal(to.keys->peer, at.keys->own_public, TRANSPORT_KEY_BYTES);
    transport_identity is;
    const bool is_in = at.keys->admits(at.keys->user, to.keys->own_public, &is);
    if (is_in) assert_true(auth_is(&is, role, rank));
    uint8_t shared[TRANSPORT_KEY_BYTES]; /* of TLS: the same are let in */
    assert_int_equal(at.keys->shares(at.keys->user, to.keys->self, shared), is_in);
    if (is_in) assert_memory_equal(shared, to.keys->shared, TRANSPORT_KEY_BYTES);
    if (is_in) assert_true(auth_is(&to.keys->self, role, rank));
    auth_close(l);
    auth_close(d);
    return is_in;
}

static void test_auth_admits_the_roles_that_a_role_serves(void **state)
{
    (void)state;
    static const int32_t ranks[] = {-1, 0, 1, 14, 15, 16, 200};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        assert_true(lets_in(AUTH_SCHEDULER, AUTH_WORKER, ranks[i]));
        assert_true(lets_in(AUTH_SCHEDULER, AUTH_SERVER, ranks[i]));
        assert_true(lets_in(AUTH_SERVER, AUTH_WORKER, ranks[i]));
        assert_true(lets_in(AUTH_SERVER, AUTH_SERVER, ranks[i]));
        assert_true(lets_in(AUTH_WORKER, AUTH_WORKER, ranks[i]));
    }
    assert_true(lets_in(AUTH_SCHEDULER, AUTH_TOOL, -1));
    assert_true(lets_in(AUTH_SERVER, AUTH_WORKER, 16383));
}

static void test_auth_key_of_both_ends_differs_for_each_rank_role_and_listener(void **state)
{
    (void)state;
    static const struct {
        auth_role role;
        int32_t rank;
        auth_role listener;
    } of[] = {{AUTH_WORKER, 0, AUTH_SERVER},    {AUTH_WORKER, 1, AUTH_SERVER},
              {AUTH_SERVER, 0, AUTH_SERVER},    {AUTH_WORKER, 0, AUTH_WORKER},
              {AUTH_WORKER, 0, AUTH_SCHEDULER}, {AUTH_WORKER, -1, AUTH_SERVER}};
    enum { N = sizeof of / sizeof *of };
    uint8_t key[N][TRANSPORT_KEY_BYTES];
    for (size_t i = 0; i < N; i++) {
        transport_options o = {0};
        auth *g             = open_as(of[i].role, of[i].rank);
        auth_dial(g, of[i].listener, &o);
        memcpy(key[i], o.keys->shared, TRANSPORT_KEY_BYTES);
        assert_memory_not_equal(key[i], o.keys->own, TRANSPORT_KEY_BYTES);
        auth_close(g);
        for (size_t k = 0; k < i; k++) assert_memory_not_equal(key[i], key[k], TRANSPORT_KEY_BYTES);
    }
}

static void test_auth_transport_says_what_carries_control_and_data(void **state)
{
    (void)state;
    static const struct {
        auth_transport transport;
        transport_carrier control, data;
        bool has_lanes;
    } of[] = {{AUTH_TRANSPORT_TCP, TRANSPORT_SOCKET, TRANSPORT_SOCKET, false},
              {AUTH_TRANSPORT_ZMQ, TRANSPORT_ZMQ, TRANSPORT_ZMQ, true}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        auth *g;
        transport_options control = {0}, data = {0}, own = {0};
        const auth_options o = {.encryption  = AUTH_ON,
                                .secret_file = path,
                                .role        = AUTH_SERVER,
                                .transport   = (int)of[i].transport};
        assert_int_equal(auth_open(&o, &g, NULL), PEN_OK);
        auth_dial(g, AUTH_SCHEDULER, &control);
        auth_dial(g, AUTH_SERVER, &data);
        auth_listen(g, &own);
        assert_int_equal(control.carrier, of[i].control);
        assert_int_equal(data.carrier, of[i].data);
        assert_int_equal(own.carrier, of[i].data);
        assert_true(of[i].has_lanes || auth_lanes(g) == 1);
        auth_close(g);
    }
}

static void test_auth_refuses_other_roles_ranks_beyond_the_job_and_strangers(void **state)
{
    (void)state;
    assert_false(lets_in(AUTH_SERVER, AUTH_TOOL, -1));
    assert_false(lets_in(AUTH_WORKER, AUTH_SERVER, 0));
    assert_false(lets_in(AUTH_SCHEDULER, AUTH_SCHEDULER, 0));
    assert_false(lets_in(AUTH_WORKER, AUTH_WORKER, 16384));
    auth *g             = open_as(AUTH_WORKER, 0);
    transport_options o = {0};
    auth_listen(g, &o);
    uint8_t key[TRANSPORT_KEY_BYTES] = {9};
    transport_identity is;
    assert_false(o.keys->admits(o.keys->user, key, &is));
    assert_false(
        o.keys->admits(o.keys->user, o.keys->own_public, &is)); /* a listener's key cannot dial */
    auth_close(g);
}

static void test_auth_refuses_a_role_or_rank_other_than_the_keys(void **state)
{
    (void)state;
    const transport_identity worker_3 = {AUTH_WORKER, 4}, any_server = {AUTH_SERVER, 0};
    assert_true(auth_is(&worker_3, AUTH_WORKER, 3));
    assert_true(auth_is(&worker_3, AUTH_WORKER, -1));
    assert_false(auth_is(&worker_3, AUTH_WORKER, 2));
    assert_false(auth_is(&worker_3, AUTH_SERVER, 3));
    assert_false(auth_is(&worker_3, AUTH_TOOL, -1));
    assert_true(auth_is(&any_server, AUTH_SERVER, 12));
    assert_false(auth_is(&any_server, AUTH_WORKER, 12));
}

static void test_auth_keys_of_ranks_and_roles_are_all_different(void **state)
{
    (void)state;
    enum { N = 6 };
    auth *g[N] = {open_as(AUTH_WORKER, -1), open_as(AUTH_WORKER, 0), open_as(AUTH_WORKER, 1),
                  open_as(AUTH_SERVER, 0),  open_as(AUTH_TOOL, -1),  open_as(AUTH_SCHEDULER, 0)};
    transport_options o[2 * N];
    memset(o, 0, sizeof o);
    for (int i = 0; i < N; i++) auth_dial(g[i], AUTH_SERVER, &o[i]);
    for (int i = 3; i < N; i++) auth_listen(g[i], &o[N + i]); /* all roles listen alike */
    for (int i = 0; i < 2 * N; i++)
        for (int j = 0; j < i; j++)
            if (o[i].keys != NULL && o[j].keys != NULL)
                assert_memory_not_equal(o[i].keys->own, o[j].keys->own, TRANSPORT_KEY_BYTES);
    for (int i = 0; i < N; i++) auth_close(g[i]);
}

int main(void)
{
    add_test_transports();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auth_knows_what_stays_on_this_host),
        cmocka_unit_test(test_auth_uses_local_sockets_on_this_host_and_keys_beyond_it),
        cmocka_unit_test(test_auth_inside_one_process_is_none),
        cmocka_unit_test(test_auth_without_a_required_secret_names_the_remedy),
        cmocka_unit_test(test_auth_of_none_leaves_options_alone),
        cmocka_unit_test(test_auth_admits_the_roles_that_a_role_serves),
        cmocka_unit_test(test_auth_key_of_both_ends_differs_for_each_rank_role_and_listener),
        cmocka_unit_test(test_auth_transport_says_what_carries_control_and_data),
        cmocka_unit_test(test_auth_refuses_other_roles_ranks_beyond_the_job_and_strangers),
        cmocka_unit_test(test_auth_refuses_a_role_or_rank_other_than_the_keys),
        cmocka_unit_test(test_auth_keys_of_ranks_and_roles_are_all_different),
    };
    return cmocka_run_group_tests(tests, make_secret, remove_secret);
}
