/* proof_test.c - both ends of a connection prove that they belong to the job, and no other peer gets in: every
 * flipped bit of every message, other tokens, roles and places, replays and reflections. */
#include "common/net/auth/secret.h"
#include "common/net/transport/proof.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

enum { MESSAGES = 4, GUESTS = 8 };

typedef struct { /* what one end knows */
    secret secret;
    bool has_none;
    transport_proof with;
} side;

static bool listener_key(void *user, uint8_t key[TRANSPORT_KEY_BYTES])
{
    const side *s = user;
    if (!s->has_none) secret_proof_key(&s->secret, 1, 0, key);
    return !s->has_none;
}

static bool dialler_key(void *user, uint32_t who, uint32_t index, uint8_t key[TRANSPORT_KEY_BYTES])
{
    const side *s = user;
    if (who > 1 || index >= GUESTS) return false;
    secret_proof_key(&s->secret, 2 + who, index, key);
    return true;
}

static void make(side *s, int seed, uint32_t who, uint32_t index)
{
    *s = (side){.with = {.user         = s,
                         .who          = who,
                         .index        = index,
                         .listener_key = listener_key,
                         .dialler_key  = dialler_key}};
    memset(s->secret.bytes, seed, SECRET_BYTES);
}

typedef struct {
    side listener, dialler;
    proof l, d;
    proof_message said[MESSAGES]; /* asked, answered, claimed, welcomed */
    int n;
} meeting;

static const proof_place here = {{1, 2, 3}}, there = {{1, 2, 4}};

static void begin(meeting *m, int seed, uint32_t who, uint32_t index, const proof_place *place)
{
    memset(m, 0, sizeof *m);
    make(&m->listener, 7, 0, 0);
    make(&m->dialler, seed, who, index);
    proof_listen(&m->l, &m->listener.with, &here);
    proof_dial(&m->d, &m->dialler.with, place, &m->said[0]);
    m->n = 1;
}

/* The next message, with one bit of it flipped (-1: none).  False: there is none. */
static bool turn(meeting *m, int bit)
{
    proof_message *last = &m->said[m->n - 1];
    if (last->size == 0 || m->n == MESSAGES + 1) return false;
    if (bit >= 0) last->data[bit / 8] ^= (uint8_t)(1 << (bit % 8));
    proof_message out;
    proof *to = m->n % 2 == 1 ? &m->l : &m->d;
    (void)proof_take(to, last->data, last->size, &out);
    if (m->n < MESSAGES) m->said[m->n] = out;
    m->n++;
    return out.size > 0 && m->n <= MESSAGES;
}

static void run(meeting *m)
{
    while (turn(m, -1)) continue;
}

static void assert_both(const meeting *m, proof_stage listener, proof_stage dialler)
{
    assert_int_equal(m->l.stage, listener);
    assert_int_equal(m->d.stage, dialler);
}

static void test_proof_of_two_members_succeeds_after_four_messages(void **state)
{
    (void)state;
    meeting m;
    begin(&m, 7, 1, 5, &here);
    run(&m);
    assert_both(&m, PROOF_DONE, PROOF_DONE);
    for (int i = 0; i < MESSAGES; i++) {
        assert_memory_equal(m.said[i].data, "\0PenProv", 8); /* not the start of any head */
        assert_null(memmem(m.said[i].data, m.said[i].size, m.dialler.secret.bytes, 8));
    }
}

static void test_proof_with_another_token_fails_before_the_dialler_names_itself(void **state)
{
    (void)state;
    meeting m;
    begin(&m, 8, 1, 5, &here);
    run(&m);
    assert_both(&m, PROOF_ANSWERED, PROOF_FAILED);
    assert_string_equal(proof_end(&m.d), "the other end does not have this job's token");
    assert_int_equal(m.n, 3); /* asked, answered; nothing more */
    assert_int_equal(m.said[2].size, 0);
}

/* A peer with a listener's key and no dialler's: it does not occur, but must be refused. */
static void test_proof_without_the_key_of_the_role_it_names_is_refused(void **state)
{
    (void)state;
    meeting m;
    begin(&m, 7, 1, 5, &here);
    assert_true(turn(&m, -1));
    assert_true(turn(&m, -1));
    m.said[2].data[16] = 0; /* role 0 instead of 1, with the tag of 1 */
    (void)turn(&m, -1);
    assert_int_equal(m.l.stage, PROOF_FAILED);
    assert_string_equal(m.l.fault, "a connection without this job's token");
}

static void test_proof_of_a_role_or_rank_without_access_is_refused(void **state)
{
    (void)state;
    static const uint32_t bad[][2] = {{1, GUESTS}, {1, UINT32_MAX}, {2, 0}, {UINT32_MAX, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        meeting m;
        begin(&m, 7, 1, 5, &here);
        assert_true(turn(&m, -1));
        assert_true(turn(&m, -1));
        for (int k = 0; k < 4; k++) {
            m.said[2].data[16 + k] = (uint8_t)(bad[i][0] >> (8 * k));
            m.said[2].data[20 + k] = (uint8_t)(bad[i][1] >> (8 * k));
        }
        (void)turn(&m, -1);
        assert_int_equal(m.l.stage, PROOF_FAILED);
        assert_string_equal(m.l.fault, "a connection in a role that may not come in here");
        assert_string_equal(proof_end(&m.d), "the other end does not admit this process");
    }
}

static void test_proof_fails_if_any_bit_of_any_message_is_flipped(void **state)
{
    (void)state;
    for (int message = 0; message < MESSAGES; message++) {
        meeting whole;
        begin(&whole, 7, 1, 5, &here);
        run(&whole);
        const int bits = (int)whole.said[message].size * 8;
        for (int bit = 0; bit < bits; bit++) {
            meeting m;
            begin(&m, 7, 1, 5, &here);
            for (int i = 0; i < message; i++) assert_true(turn(&m, -1));
            while (turn(&m, m.n == message + 1 ? bit : -1)) continue;
            if (m.d.stage == PROOF_DONE || (m.l.stage == PROOF_DONE && message < MESSAGES - 1))
                fail_msg("bit %d of message %d", bit, message);
        }
    }
}

static void test_proof_accepts_messages_of_the_right_size_and_order_only(void **state)
{
    (void)state;
    meeting whole;
    begin(&whole, 7, 1, 5, &here);
    run(&whole);
    for (int message = 0; message < MESSAGES; message++)
        for (size_t size = 0; size <= PROOF_MESSAGE_MAX; size++) {
            proof l, d;
            proof_message out, any = whole.said[message];
            proof_listen(&l, &whole.listener.with, &here);
            proof_dial(&d, &whole.dialler.with, &here, &out);
            const bool is_ask = message == 0 && size == any.size;
            assert_int_equal(proof_take(&l, any.data, size, &out) == PROOF_FAILED, !is_ask);
            assert_int_equal(proof_take(&d, any.data, size, &out), PROOF_FAILED);
            assert_int_equal(out.size, 0);
        }
}

static void test_proof_accepts_nothing_after_a_failure(void **state)
{
    (void)state;
    meeting m;
    begin(&m, 7, 1, 5, &here);
    proof_message out;
    assert_int_equal(proof_take(&m.l, "x", 1, &out), PROOF_FAILED);
    assert_int_equal(proof_take(&m.l, m.said[0].data, m.said[0].size, &out), PROOF_FAILED);
    assert_int_equal(out.size, 0);
}

static void test_proof_rejects_a_replay(void **state)
{
    (void)state;
    meeting old, m;
    proof_message out;
    begin(&old, 7, 1, 5, &here);
    run(&old);
    begin(&m, 7, 1, 5, &here);
    (void)proof_take(&m.l, old.said[0].data, old.said[0].size, &out);
    (void)proof_take(&m.l, old.said[2].data, old.said[2].size, &out);
    assert_int_equal(m.l.stage, PROOF_FAILED); /* the listener's nonce differs */
    (void)proof_take(&m.d, old.said[1].data, old.said[1].size, &out);
    assert_int_equal(m.d.stage, PROOF_FAILED); /* and so does the dialler's */
}

static void test_proof_rejects_a_reflection(void **state)
{
    (void)state;
    meeting m;
    proof_message out, back;
    begin(&m, 7, 1, 5, &here);
    back = m.said[0];
    assert_int_equal(proof_take(&m.d, back.data, back.size, &out), PROOF_FAILED);
    begin(&m, 7, 1, 5, &here);
    assert_true(turn(&m, -1));
    back = m.said[1];
    assert_int_equal(proof_take(&m.l, back.data, back.size, &out), PROOF_FAILED);
    /* a listener's answer in place of its welcome */
    begin(&m, 7, 1, 5, &here);
    assert_true(turn(&m, -1));
    back = m.said[1];
    assert_true(turn(&m, -1));
    assert_int_equal(proof_take(&m.d, back.data, back.size, &out), PROOF_FAILED);
    /* a dialler that has not asked does not answer */
    proof idle = {.stage = PROOF_NEW};
    begin(&m, 7, 1, 5, &here);
    assert_int_equal(proof_take(&idle, m.said[0].data, m.said[0].size, &out), PROOF_FAILED);
    assert_int_equal(out.size, 0);
}

/* A squatter relays every byte between a member and a listener elsewhere. */
static void test_proof_that_is_relayed_to_another_port_fails(void **state)
{
    (void)state;
    meeting m;
    begin(&m, 7, 1, 5, &there);
    run(&m);
    assert_both(&m, PROOF_ANSWERED, PROOF_FAILED);
}

static void test_proof_without_a_token_fails_with_a_sentence_and_sends_nothing(void **state)
{
    (void)state;
    side s;
    proof d, l;
    proof_message out;
    make(&s, 7, 0, 0);
    s.has_none = true;
    proof_dial(&d, &s.with, &here, &out);
    assert_int_equal(d.stage, PROOF_FAILED);
    assert_int_equal(out.size, 0);
    assert_string_equal(proof_end(&d), "this side does not have the job's token yet");
    meeting m;
    begin(&m, 7, 1, 5, &here);
    proof_listen(&l, &s.with, &here);
    assert_int_equal(proof_take(&l, m.said[0].data, m.said[0].size, &out), PROOF_FAILED);
    assert_int_equal(out.size, 0);
}

static proof_place place_in(int family, const char *number, int port)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    proof_place place;
    if (family == AF_INET) {
        assert_int_equal(inet_pton(AF_INET, number, &four.sin_addr), 1);
        proof_place_of(&place, &four, sizeof four);
    } else {
        assert_int_equal(inet_pton(AF_INET6, number, &six.sin6_addr), 1);
        proof_place_of(&place, &six, sizeof six);
    }
    return place;
}

static void test_proof_place_is_address_and_port_on_this_host_and_nothing_beyond(void **state)
{
    (void)state;
    static const proof_place nowhere;
    const proof_place a    = place_in(AF_INET, "127.0.0.1", 5),
                      same = place_in(AF_INET6, "::ffff:127.0.0.1", 5),
                      port = place_in(AF_INET, "127.0.0.1", 6),
                      host = place_in(AF_INET, "127.0.0.2", 5), six = place_in(AF_INET6, "::1", 5),
                      far  = place_in(AF_INET, "10.0.0.1", 5),
                      far6 = place_in(AF_INET6, "fe80::1", 5);
    assert_memory_equal(&a, &same, sizeof a);
    assert_memory_not_equal(&a, &port, sizeof a);
    assert_memory_not_equal(&a, &host, sizeof a);
    assert_memory_not_equal(&a, &six, sizeof a);
    assert_memory_not_equal(&a, &nowhere, sizeof a);
    assert_memory_equal(&far, &nowhere, sizeof a);
    assert_memory_equal(&far6, &nowhere, sizeof a);
    struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "/tmp/x"};
    proof_place local, other;
    proof_place_of(&local, &un, sizeof un);
    un.sun_path[5] = 'y';
    proof_place_of(&other, &un, sizeof un);
    assert_memory_not_equal(&local, &other, sizeof local);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proof_of_two_members_succeeds_after_four_messages),
        cmocka_unit_test(test_proof_with_another_token_fails_before_the_dialler_names_itself),
        cmocka_unit_test(test_proof_without_the_key_of_the_role_it_names_is_refused),
        cmocka_unit_test(test_proof_of_a_role_or_rank_without_access_is_refused),
        cmocka_unit_test(test_proof_fails_if_any_bit_of_any_message_is_flipped),
        cmocka_unit_test(test_proof_accepts_messages_of_the_right_size_and_order_only),
        cmocka_unit_test(test_proof_accepts_nothing_after_a_failure),
        cmocka_unit_test(test_proof_rejects_a_replay),
        cmocka_unit_test(test_proof_rejects_a_reflection),
        cmocka_unit_test(test_proof_that_is_relayed_to_another_port_fails),
        cmocka_unit_test(test_proof_without_a_token_fails_with_a_sentence_and_sends_nothing),
        cmocka_unit_test(test_proof_place_is_address_and_port_on_this_host_and_nothing_beyond),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
