/* transport_auth_test.c - connections of members with keys: who may connect. */
#include "tests/unit/transport_auth_rig.h"

#include <stdlib.h>
#include <sys/wait.h>

/* ---- tools ----------------------------------------------------------------------------------- */
static bool is_one_of(const char *note, const char *one, const char *other)
{
    return strcmp(note, one) == 0 || strcmp(note, other) == 0;
}

/* Either side may detect it first; the other then sees only that the connection ended. */
static void check_refused(transport *l, transport *d, const char *dialler_hears,
                          const char *or_only)
{
    transport_event event = {0}, heard = {0}, newest;
    for (const uint64_t until = now_ms() + PATIENCE_MS; now_ms() < until;) {
        if (next(l, &newest, 1) && newest.kind == TRANSPORT_REFUSED) event = newest;
        if (next(d, &newest, 1) && newest.kind == TRANSPORT_REFUSED) heard = newest;
        if (event.kind == TRANSPORT_REFUSED && heard.kind == TRANSPORT_REFUSED) break;
    }
    if (!is_one_of(event.note, "a connection without a key of this job",
                   "a connection that ended without a message") &&
        strcmp(event.note, "the other end encrypts, but this side does not") != 0)
        fail_msg("the listener says: %s", event.note);
    if (!is_one_of(heard.note, dialler_hears, or_only))
        fail_msg("the dialler hears: %s", heard.note);
    assert_int_equal(transport_send(d, 0, "x", 1, NULL), PEN_AGAIN);
}

/* ---- keys ------------------------------------------------------------------------------------ */
static void test_transport_members_of_a_job_connect_and_strangers_do_not(void **state)
{
    (void)state;
    auth *server = open_auth(0, AUTH_SERVER, 0), *worker = open_auth(0, AUTH_WORKER, 3),
         *foreign = open_auth(1, AUTH_WORKER, 3);
    transport *l  = listen_with(server, (transport_options){0});
    transport *d  = dial_with(worker, AUTH_SERVER, l);
    check_talk(l, d);

    transport *other = dial_with(foreign, AUTH_SERVER, l);
    check_refused(l, other, "the other end does not know this job's secret", "");
    transport_close(other, 0);
    transport *clear = dial_with(NULL, AUTH_SERVER, l);
    check_refused(l, clear, "the other end encrypts, but this side does not",
                  "the other end does not speak ZeroMQ, or encrypts while this side does not");
    transport_close(clear, 0);

    assert_int_equal(transport_send(d, 0, "still here", 10, NULL), PEN_OK);
    await(l, TRANSPORT_MESSAGE);
    transport_close(d, 0);
    transport_close(l, 0);
    auth_close(server);
    auth_close(worker);
    auth_close(foreign);
}

/* It knows the secret and therefore the listener's key, but a worker's port is for workers only. */
static void test_transport_member_of_the_wrong_role_is_refused_by_its_key(void **state)
{
    (void)state;
    auth *worker = open_auth(0, AUTH_WORKER, 0), *tool = open_auth(0, AUTH_TOOL, -1);
    transport *l = listen_with(worker, (transport_options){0});
    transport *d = dial_with(tool, AUTH_WORKER, l);
    check_refused(l, d, "the other end does not admit this key",
                  "the other end does not know this job's secret");
    transport_close(d, 0);
    transport_close(l, 0);
    auth_close(worker);
    auth_close(tool);
}

static void test_transport_encrypting_dialler_refuses_a_listener_in_clear_text(void **state)
{
    (void)state;
    auth *worker = open_auth(0, AUTH_WORKER, 0);
    transport *l = listen_with(NULL, (transport_options){0}),
              *d = dial_with(worker, AUTH_SERVER, l);
    check_refused(l, d, "the other end does not encrypt, but this side does",
                  "the other end does not know this job's secret");
    transport_close(d, 0);
    transport_close(l, 0);
    auth_close(worker);
}

/* Local sockets beside TCP with keys: a process of this user needs no key, and has no identity that could contradict it. */
static void test_transport_local_peer_of_an_encrypting_listener_has_no_identity(void **state)
{
    (void)state;
    auth *server = open_auth(0, AUTH_SERVER, 0), *foreign = open_auth(1, AUTH_WORKER, 3);
    transport_options at = {0}, to = {0};
    transport *l, *d;
    transport_identity is;
    pen_error why;
    auth_listen(server, &at);
    auth_dial(foreign, AUTH_SERVER, &to);
    at.sockets = to.sockets = TRANSPORT_LOCAL_TOO;
    if (transport_listen(rig_address, &at, &l, &why) != PEN_OK) fail_msg("%s", why.text);
    if (transport_dial(transport_address(l), &to, &d, &why) != PEN_OK) fail_msg("%s", why.text);
    await(d, TRANSPORT_UP);
    assert_int_equal(transport_send(d, 0, "ping", 4, NULL), PEN_OK);
    assert_false(transport_who(l, await(l, TRANSPORT_MESSAGE).peer, &is));
    to.sockets = TRANSPORT_TCP; /* over TCP the same key is a stranger's */
    transport *stranger;
    if (transport_dial(transport_address(l), &to, &stranger, &why) != PEN_OK)
        fail_msg("%s", why.text);
    check_refused(l, stranger, "the other end does not know this job's secret", "");
    transport_close(stranger, 0);
    transport_close(d, 0);
    transport_close(l, 0);
    auth_close(server);
    auth_close(foreign);
}

/* The thread that checks keys lives as long as ZeroMQ's context; both kinds of listener share it. */
static void test_transport_keys_work_in_every_context_and_beside_clear_text(void **state)
{
    (void)state;
    auth *server = open_auth(0, AUTH_SERVER, 0), *worker = open_auth(0, AUTH_WORKER, 0);
    for (int i = 0; i < 10; i++) {
        transport *plain = listen_with(NULL, (transport_options){0});
        transport *l     = listen_with(server, (transport_options){0}),
                  *d = dial_with(worker, AUTH_SERVER, l), *e = dial_with(NULL, AUTH_SERVER, plain);
        check_talk(l, d);
        check_talk(plain, e);
        transport_close(d, 0);
        transport_close(e, 0);
        transport_close(l, 0);
        transport_close(plain, 0);
    }
    auth_close(server);
    auth_close(worker);
}

static void test_transport_keys_work_in_a_forked_child(void **state)
{
    (void)state;
    auth *server = open_auth(0, AUTH_SERVER, 0), *worker = open_auth(0, AUTH_WORKER, 0);
    transport *l = listen_with(server, (transport_options){0});
    transport *d = dial_with(worker, AUTH_SERVER, l);
    check_talk(l, d);
#ifdef __SANITIZE_THREAD__
    skip(); /* it has no threads after a fork */
#endif
    const pid_t child = fork();
    if (child == 0) {
        transport *mine = listen_with(server, (transport_options){0});
        transport *to   = dial_with(worker, AUTH_SERVER, mine);
        check_talk(mine, to);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(transport_send(d, 0, "the parent goes on", 18, NULL), PEN_OK);
    await(l, TRANSPORT_MESSAGE);
    transport_close(d, 0);
    transport_close(l, 0);
    auth_close(server);
    auth_close(worker);
}

/* An encrypted body may be inside the library: not queued any more, and not written yet. */
static void test_transport_last_body_of_an_end_that_closes_arrives_whole(void **state)
{
    (void)state;
    enum { BYTES = 16 * MIB, ROUNDS = 4, LINGER_MS = 10000 };
    const transport_options large = {.head_bytes_max = 64, .body_bytes_max = BYTES};
    auth *server = open_auth(0, AUTH_SERVER, 0), *worker = open_auth(0, AUTH_WORKER, 0);
    for (int i = 0; i < ROUNDS; i++) {
        transport *l = listen_with(server, large);
        transport *d = dial_with(worker, AUTH_SERVER, l);
        check_talk(l, d);
        assert_int_equal(transport_send(d, 0, "hello", 5, NULL), PEN_OK);
        const uint32_t peer = await(l, TRANSPORT_MESSAGE).peer;
        transport *leaves = i % 2 == 0 ? l : d, *stays = i % 2 == 0 ? d : l;
        assert_int_equal(transport_send(leaves, leaves == l ? peer : 0, "x", 1, buf_new(BYTES)),
                         PEN_OK);
        transport_close(leaves, LINGER_MS);
        assert_int_equal(await(stays, TRANSPORT_MESSAGE).head_size, 1);
        await(stays, TRANSPORT_DOWN);
        transport_close(stays, 0);
    }
    auth_close(server);
    auth_close(worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport_members_of_a_job_connect_and_strangers_do_not),
        cmocka_unit_test(test_transport_member_of_the_wrong_role_is_refused_by_its_key),
        cmocka_unit_test(test_transport_encrypting_dialler_refuses_a_listener_in_clear_text),
        cmocka_unit_test(test_transport_local_peer_of_an_encrypting_listener_has_no_identity),
        cmocka_unit_test(test_transport_keys_work_in_every_context_and_beside_clear_text),
        cmocka_unit_test(test_transport_keys_work_in_a_forked_child),
        cmocka_unit_test(test_transport_last_body_of_an_end_that_closes_arrives_whole),
    };
    const int failed = cmocka_run_group_tests_name("CURVE", tests, make_secrets, remove_secrets);
    rig_address      = "socket://127.0.0.1:0";
    return failed + cmocka_run_group_tests_name("TLS", tests, make_secrets, remove_secrets);
}
