/* handler_part_test.c - requests to a handler and their answers: inside, later, from other threads, moved and damaged. */
#include "proto/rows.h"
#include "server/shard/handler/handler_part.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 3, KEPT_MAX = 64, POSTED_MAX = 8 };

/* ---- a handler that counts ------------------------------------------------------------------- */
typedef struct {
    float sum;
    uint32_t runs;
} counter;

static struct {
    pen_call *call[KEPT_MAX]; /* with cmd 1: not answered by request() */
    int n_calls, n_open, n_closed, saves;
    pen_status status; /* of the last pen_reply() */
    char text[640];
    pen_call *answer_in_save; /* as if by another thread */
} seen;

static pen_status answer(pen_call *call, pen_status status, const void *data, size_t n,
                         const uint32_t *lens)
{
    pen_error why = {0};
    seen.status   = call->reply(call, status, data, n, lens, &why);
    snprintf(seen.text, sizeof seen.text, "%s", why.text);
    return seen.status;
}

static void *open_counter(int part, int parts, void *user)
{
    assert_int_equal(part, 2);
    assert_int_equal(parts, 16);
    seen.n_open++;
    return user != NULL ? NULL : calloc(1, sizeof(counter));
}

static void close_counter(void *state)
{
    seen.n_closed++;
    free(state);
}

static void on_request(void *state, pen_call *call, const pen_kv_msg *m)
{
    counter *c         = state;
    const float *value = m->vals;
    assert_int_equal((uintptr_t)m->keys % 8, 0);
    if (m->cmd == 1) { /* it counts when it is answered */
        seen.call[seen.n_calls++] = call;
        return;
    }
    c->runs++;
    for (size_t i = 0; i < m->vals_n; i++) c->sum += value[i];
    if (m->cmd == 0) answer(call, PEN_OK, m->pull ? &c->sum : NULL, m->pull ? 4 : 0, NULL);
    if (m->cmd == 2) seen.call[seen.n_calls++] = call;
}

static void on_command(void *state, pen_call *call, int head, const void *body, size_t size)
{
    assert_memory_equal(body, "body", size);
    if (head == 1) answer(call, PEN_OK, &((counter *)state)->runs, 4, NULL);
    if (head == 2) seen.call[seen.n_calls++] = call;
}

static void *answer_one(void *call)
{
    answer(call, PEN_OK, NULL, 0, NULL);
    return NULL;
}

static void in_another_thread(pen_call *call)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer_one, call), 0);
    pthread_join(thread, NULL);
}

static pen_status on_save(void *state, pen_bytes *out)
{
    seen.saves++;
    *out = (pen_bytes){malloc(sizeof(counter)), sizeof(counter)};
    memcpy(out->data, state, out->size);
    if (seen.answer_in_save != NULL) in_another_thread(seen.answer_in_save);
    seen.answer_in_save = NULL;
    return PEN_OK;
}

static pen_status on_load(void *state, const void *data, size_t size)
{
    if (size != sizeof(counter)) return PEN_CORRUPT;
    memcpy(state, data, size);
    return PEN_OK;
}

static const pen_handler counting = {.name    = "counting",
                                     .open    = open_counter,
                                     .close   = close_counter,
                                     .request = on_request,
                                     .command = on_command,
                                     .save    = on_save,
                                     .load    = on_load};

/* ---- its owner ------------------------------------------------------------------------------- */
static struct {
    int n_answered;
    handler_call *posted[POSTED_MAX];
    int n_posted;
    bool is_full;
} owner;

static void on_answered(void *of, handler_call *call)
{
    assert_ptr_equal(of, &owner);
    if (handler_call_settle(call) != NULL) owner.n_answered++;
}

static bool on_post(void *of, handler_call *call)
{
    assert_ptr_equal(of, &owner);
    if (owner.is_full) return false;
    owner.posted[owner.n_posted++] = call;
    return true;
}

static void deliver(void)
{
    for (int i = 0; i < owner.n_posted; i++) on_answered(&owner, owner.posted[i]);
    owner.n_posted = 0;
}

static handler_part *open_part(const pen_handler *handler, uint32_t dim)
{
    const handler_setup setup = {.handler    = handler,
                                 .table      = "t",
                                 .part       = 2,
                                 .parts      = 16,
                                 .dim        = dim,
                                 .world_size = WORLD,
                                 .dtype      = PEN_F32,
                                 .owner      = &owner,
                                 .answered   = on_answered,
                                 .post       = on_post};
    handler_part *part;
    pen_error why;
    if (handler_part_open(&setup, &part, &why) != PEN_OK) fail_msg("%s", why.text);
    return part;
}

static handler_part *begin(uint32_t dim)
{
    memset(&seen, 0, sizeof seen);
    memset(&owner, 0, sizeof owner);
    return open_part(&counting, dim);
}

/* A request of one key, with one value if it pushes. */
static void ask(handler_part *part, int32_t rank, uint64_t incarnation, uint64_t seq, int32_t cmd,
                uint32_t verbs)
{
    uint64_t room[16];
    uint8_t *bytes     = (uint8_t *)room + (seq % 2 != 0 ? 4 : 0); /* messages lie anywhere */
    const uint64_t key = 5;
    const float one    = 1;
    const bool pushes  = (verbs & ROWS_PUSHES) != 0;
    rows r             = rows_lay(bytes, pushes ? ROWS_PUSHED : ROWS_ASKED, 1, pushes, 1);
    memcpy((uint8_t *)(uintptr_t)r.key, &key, sizeof key);
    if (pushes) memcpy((uint8_t *)(uintptr_t)r.value, &one, sizeof one);
    const rows_call c       = {.cmd = cmd, .verbs = verbs};
    const handler_call from = {.rank = rank, .incarnation = incarnation, .seq = seq};
    pen_error why;
    assert_int_equal(handler_part_request(part, &from, &c, &r, &why), PEN_OK);
}

static float value_of(const handler_call *c)
{
    rows r;
    bool is_bad;
    pen_error why;
    float value;
    assert_int_equal(
        rows_read_reply(c->answer->data, c->answer->size, true, 1, 4, &r, &is_bad, &why), PEN_OK);
    memcpy(&value, r.value, sizeof value);
    return value;
}

/* ---- answers --------------------------------------------------------------------------------- */
static void test_an_answer_is_kept_until_the_rank_cannot_ask_for_it_again(void **state)
{
    (void)state;
    handler_part *part = begin(1);
    for (uint64_t seq = 0; seq < 40; seq++) ask(part, 1, 9, seq, 0, ROWS_PUSHES | ROWS_PULLS);
    assert_int_equal(owner.n_answered, 40);
    assert_null(handler_part_find(part, 1, 9, 7));
    for (uint64_t seq = 8; seq < 40; seq++) {
        handler_call *c = handler_part_find(part, 1, 9, seq);
        assert_non_null(c);
        assert_true(value_of(c) == (float)(seq + 1));
    }
    assert_null(handler_part_find(part, 1, 8, 39)); /* of another incarnation */
    assert_null(handler_part_find(part, 0, 9, 39));
    handler_part_close(part);
    assert_int_equal(seen.n_closed, 1);
}

static void expect_refused(pen_call *call, pen_status answer_status, size_t n, const uint32_t *lens,
                           pen_status status, const char *sentence)
{
    static const float data[8];
    assert_int_equal(answer(call, answer_status, data, n, lens), status);
    assert_string_equal(seen.text, sentence);
}

static void
test_an_answer_that_does_not_fit_is_refused_and_the_request_can_still_be_answered(void **state)
{
    (void)state;
    static const uint32_t two = 2, one = 1, huge = ROWS_LENGTH_MAX + 1;
    handler_part *part = begin(1);
    ask(part, 0, 9, 0, 1, ROWS_PULLS);
    ask(part, 0, 9, 1, 1, ROWS_PUSHES);
    pen_call *pull = seen.call[0], *push = seen.call[1];
    expect_refused(pull, PEN_OK, 0, NULL, PEN_INVALID_ARGUMENT,
                   "pen_reply: 0 values for 1 keys; expected 1");
    expect_refused(pull, PEN_OK, 6, NULL, PEN_INVALID_ARGUMENT,
                   "pen_reply: 6 bytes are no whole number of values of 4 bytes");
    expect_refused(pull, PEN_OK, 8, &two, PEN_INVALID_ARGUMENT,
                   "pen_reply: lens[0] is 2; expected 1");
    expect_refused(pull, (pen_status)77, 4, NULL, PEN_INVALID_ARGUMENT,
                   "pen_reply: invalid status 77; expected PEN_OK or an error");
    expect_refused(push, PEN_OK, 4, NULL, PEN_INVALID_ARGUMENT,
                   "pen_reply: the request is a push and takes no values; n must be 0 and lens "
                   "NULL");
    assert_int_equal(answer(pull, PEN_OK, NULL, 4, NULL), PEN_INVALID_ARGUMENT);
    assert_int_equal(owner.n_posted, 0);
    owner.is_full = true;
    in_another_thread(push);
    assert_int_equal(seen.status, PEN_NO_MEMORY); /* it can still be answered */
    owner.is_full = false;
    in_another_thread(push);
    assert_int_equal(seen.status, PEN_OK);
    expect_refused(pull, PEN_NOT_FOUND, 0, NULL, PEN_OK, "");
    expect_refused(pull, PEN_OK, 4, &one, PEN_WRONG_STATE,
                   "pen_reply: the request was already answered");
    deliver();
    rows r;
    bool is_bad;
    pen_error why;
    const handler_call *c = handler_part_find(part, 0, 9, 0);
    assert_int_equal(
        rows_read_reply(c->answer->data, c->answer->size, true, 1, 4, &r, &is_bad, &why),
        PEN_NOT_FOUND);
    assert_false(is_bad);
    assert_string_equal(why.text,
                        "handler 'counting' on server 0 refused a request to 't': no such "
                        "tensor, table, key, snapshot or file");
    handler_part_close(part);

    part = begin(0);
    ask(part, 0, 9, 0, 1, ROWS_PULLS);
    expect_refused(seen.call[0], PEN_OK, 8, &one, PEN_INVALID_ARGUMENT,
                   "pen_reply: 2 values for 1 keys; expected 1");
    expect_refused(seen.call[0], PEN_OK, 8, &huge, PEN_INVALID_ARGUMENT,
                   "pen_reply: lens[0] is 1048577; expected at most 1048576");
    expect_refused(seen.call[0], PEN_OK, 8, NULL, PEN_OK, ""); /* equally many each */
    handler_part_close(part);
    deliver();
}

static void test_answers_of_other_threads_come_by_post_also_after_the_part_is_closed(void **state)
{
    (void)state;
    handler_part *part = begin(1);
    for (uint64_t seq = 0; seq < 3; seq++) ask(part, 2, 9, seq, 1, ROWS_PUSHES);
    in_another_thread(seen.call[1]);
    assert_int_equal(owner.n_answered, 0);
    deliver();
    assert_int_equal(owner.n_answered, 1);
    in_another_thread(seen.call[0]);
    handler_part_close(part); /* one is on its way, one was never answered */
    deliver();
    assert_int_equal(owner.n_answered, 1);
}

static void test_a_rank_that_begins_anew_leaves_its_requests_to_the_handler(void **state)
{
    (void)state;
    handler_part *part = begin(1);
    ask(part, 1, 9, 4, 1, ROWS_PUSHES);
    ask(part, 1, 9, 5, 1, ROWS_PUSHES);
    assert_false(handler_part_has_room(part, 1, 9, 36));
    assert_true(handler_part_has_room(part, 1, 10, 4));
    ask(part, 1, 10, 4, 0, ROWS_PUSHES);
    ask(part, 1, 10, 5, 0, ROWS_PUSHES);
    assert_int_equal(owner.n_answered, 2);
    in_another_thread(seen.call[0]); /* nobody waits for it, and it is freed */
    deliver();
    assert_int_equal(owner.n_answered, 2);
    assert_non_null(handler_part_find(part, 1, 10, 4));
    handler_part_close(part); /* frees the other */
}

/* ---- moving ---------------------------------------------------------------------------------- */
typedef struct {
    buf **block;
    uint32_t n;
    uint64_t clock[WORLD];
} saved;

static saved save_part(handler_part *part, uint64_t clock)
{
    saved s = {.clock = {clock, clock, clock}};
    pen_error why;
    if (handler_part_save(part, s.clock, &s.block, &s.n, &why) != PEN_OK) fail_msg("%s", why.text);
    return s;
}

static void drop(saved *s)
{
    for (uint32_t i = 0; i < s->n; i++) buf_release(s->block[i]);
    free(s->block);
}

static void test_a_state_that_moves_has_its_answers_and_goes_back_to_what_has_none(void **state)
{
    (void)state;
    handler_part *part = begin(1), *other = open_part(&counting, 1);
    ask(part, 0, 9, 0, 0, ROWS_PUSHES | ROWS_PULLS);
    ask(part, 0, 9, 1, 1, ROWS_PUSHES | ROWS_PULLS); /* waits */
    ask(part, 0, 9, 2, 0, ROWS_PUSHES | ROWS_PULLS);
    ask(part, 1, 9, 0, 0, ROWS_PUSHES | ROWS_PULLS);
    saved s = save_part(part, 3);
    assert_int_equal(s.clock[0], 1);
    assert_int_equal(s.clock[1], 3);
    assert_int_equal(s.n, 1);
    pen_error why;
    assert_int_equal(handler_part_take(other, 0, s.block[0]->data, s.block[0]->size, true, &why),
                     PEN_OK);
    assert_null(handler_part_find(other, 0, 9, 1));
    assert_true(value_of(handler_part_find(other, 0, 9, 2)) == 2);
    assert_true(value_of(handler_part_find(other, 1, 9, 0)) == 3);
    ask(other, 0, 9, 1, 0, ROWS_PUSHES | ROWS_PULLS); /* it comes again, and once */
    assert_true(value_of(handler_part_find(other, 0, 9, 1)) == 4);
    drop(&s);

    buf **block;
    uint32_t n;
    assert_int_equal(handler_part_save(part, NULL, &block, &n, &why), PEN_OK); /* a snapshot */
    assert_int_equal(handler_part_take(other, 0, block[0]->data, block[0]->size, true, &why),
                     PEN_OK);
    assert_null(handler_part_find(other, 0, 9, 2));
    buf_release(block[0]);
    free(block);
    handler_part_close(part);
    handler_part_close(other);
}

static void test_a_state_is_saved_again_if_another_thread_answered_meanwhile(void **state)
{
    (void)state;
    handler_part *part = begin(1);
    ask(part, 0, 9, 0, 1, ROWS_PUSHES);
    seen.answer_in_save = seen.call[0];
    saved s             = save_part(part, 1);
    assert_int_equal(seen.saves, 2);
    assert_int_equal(s.clock[0], 1);
    drop(&s);
    handler_part_close(part);
    deliver();
}

/* Any byte changed, any length: refused, or a state; never a read or write beyond. */
static void test_damaged_states_are_refused_or_loaded_whole(void **state)
{
    (void)state;
    handler_part *part = begin(1), *other = open_part(&counting, 1);
    for (uint64_t seq = 0; seq < 3; seq++) ask(part, 1, 9, seq, 0, ROWS_PUSHES | ROWS_PULLS);
    saved s           = save_part(part, 3);
    const size_t size = s.block[0]->size;
    int refused       = 0;
    pen_error why;
    for (size_t at = 0; at < size; at++) {
        uint8_t *bytes = malloc(size); /* of exactly that size, for the sanitizer */
        memcpy(bytes, s.block[0]->data, size);
        bytes[at] ^= 0x80;
        refused += handler_part_take(other, 0, bytes, size, true, &why) != PEN_OK;
        free(bytes);
        uint8_t *shorter = malloc(at + 1);
        memcpy(shorter, s.block[0]->data, at);
        assert_int_not_equal(handler_part_take(other, 0, shorter, at, true, &why), PEN_OK);
        free(shorter);
    }
    assert_true(refused > 0);
    assert_int_equal(handler_part_take(other, 1, "12345678", 8, true, &why), PEN_CORRUPT);
    assert_string_equal(why.text, "load() of handler 'counting' failed on part 2 of table 't': a "
                                  "checksum or format does not match");
    assert_int_equal(handler_part_take(other, 0, s.block[0]->data, size, true, &why), PEN_OK);
    drop(&s);
    handler_part_close(part);
    handler_part_close(other);
}

static void test_a_handler_without_save_or_that_cannot_open_is_named(void **state)
{
    (void)state;
    static int any;
    pen_handler bare   = counting;
    bare.save          = NULL;
    bare.load          = NULL;
    handler_part *part = begin(1);
    handler_part_close(part);
    part = open_part(&bare, 1);
    pen_error why;
    buf **block;
    uint32_t n;
    assert_false(handler_part_can_save(part));
    assert_int_equal(handler_part_save(part, NULL, &block, &n, &why), PEN_UNSUPPORTED);
    assert_int_equal(handler_part_take(part, 0, "", 0, true, &why), PEN_UNSUPPORTED);
    handler_part_close(part);
    bare.user                 = &any;
    const handler_setup setup = {
        .handler = &bare, .table = "t", .part = 2, .parts = 16, .world_size = WORLD};
    assert_int_equal(handler_part_open(&setup, &part, &why), PEN_NO_MEMORY);
    assert_string_equal(why.text,
                        "open() of handler 'counting' failed on part 2 of table 't': memory "
                        "ran out");
}

/* ---- bytes that travel ----------------------------------------------------------------------- */
static void test_requests_and_answers_that_lie_are_refused(void **state)
{
    (void)state;
    uint64_t room[16] = {0};
    rows_call c       = {.verbs = ROWS_PUSHES}, got;
    rows_reply a      = {.status = PEN_OK};
    rows r;
    bool is_bad;
    pen_error why;
    memcpy(room, &c, sizeof c);
    (void)rows_lay(room + 2, ROWS_PUSHED, 0, 0, 1);
    assert_int_equal(rows_read_call(room, 24, 1, 4, &got, &r, &why), PEN_OK);
    for (size_t size = 0; size < 24; size++)
        assert_int_equal(rows_read_call(room, size, 1, 4, &got, &r, &why), PEN_CORRUPT);
    for (uint32_t verbs = 0; verbs < 9; verbs += 4) {
        c.verbs = verbs;
        memcpy(room, &c, sizeof c);
        assert_int_equal(rows_read_call(room, 24, 1, 4, &got, &r, &why), PEN_CORRUPT);
    }
    c = (rows_call){.verbs = ROWS_PULLS, .zero = 1};
    memcpy(room, &c, sizeof c);
    assert_int_equal(rows_read_call(room, 24, 1, 4, &got, &r, &why), PEN_CORRUPT);

    assert_int_equal(rows_read_reply(&a, sizeof a, false, 1, 4, &r, &is_bad, &why), PEN_OK);
    assert_false(is_bad);
    (void)rows_read_reply(&a, sizeof a, true, 1, 4, &r, &is_bad, &why);
    assert_true(is_bad); /* a pull has rows */
    (void)rows_read_reply(&a, sizeof a - 1, false, 1, 4, &r, &is_bad, &why);
    assert_true(is_bad);
    static const rows_reply bad[] = {{.status = 5},
                                     {.status = -99999},
                                     {.status = PEN_NOT_FOUND, .text = 481},
                                     {.status = PEN_NOT_FOUND, .text = 8},
                                     {.status = PEN_OK, .text = 8}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)rows_read_reply(&bad[i], sizeof bad[i], false, 1, 4, &r, &is_bad, &why);
        assert_true(is_bad);
    }
    struct {
        rows_reply head;
        char text[8];
    } said = {{.status = PEN_NOT_FOUND, .text = 3},
              "a\x1b"
              "b"};
    (void)rows_read_reply(&said, sizeof said, false, 1, 4, &r, &is_bad, &why);
    assert_true(is_bad); /* nothing that a terminal would obey */
}

/* ---- commands -------------------------------------------------------------------------------- */
static struct {
    int n;
    pen_status status;
    uint32_t value;
    bool lacks_memory;
} told;

static bool on_told(void *user, uint32_t token, pen_status status, void *data, size_t size)
{
    assert_ptr_equal(user, &told);
    assert_int_equal(token, 77);
    if (told.lacks_memory) return false;
    told.n++;
    told.status = status;
    if (size == sizeof told.value) memcpy(&told.value, data, size);
    free(data);
    return true;
}

static void test_commands_are_answered_once_at_the_latest_when_the_part_is_closed(void **state)
{
    (void)state;
    static uint8_t much[70000];
    handler_part *part = begin(1);
    handler_command c  = {
         .head = 1, .body = "body", .size = 4, .user = &told, .token = 77, .answered = on_told};
    told.n = 0;
    ask(part, 0, 9, 0, 0, ROWS_PUSHES);
    assert_int_equal(handler_part_command(part, &c), PEN_OK);
    assert_int_equal(told.n, 1);
    assert_int_equal(told.value, 1);
    c.head = 2;
    for (int i = 0; i < 3; i++) assert_int_equal(handler_part_command(part, &c), PEN_OK);
    assert_int_equal(answer(seen.call[0], PEN_OK, much, sizeof much, NULL), PEN_UNSUPPORTED);
    told.lacks_memory = true;
    assert_int_equal(answer(seen.call[0], PEN_OK, much, 8, NULL), PEN_NO_MEMORY);
    told.lacks_memory = false;
    in_another_thread(seen.call[0]);
    assert_int_equal(answer(seen.call[0], PEN_OK, NULL, 0, NULL), PEN_WRONG_STATE);
    assert_int_equal(told.n, 2);
    handler_part_close(part);
    assert_int_equal(told.n, 4);
    assert_int_equal(told.status, PEN_AGAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_is_kept_until_the_rank_cannot_ask_for_it_again),
        cmocka_unit_test(
            test_an_answer_that_does_not_fit_is_refused_and_the_request_can_still_be_answered),
        cmocka_unit_test(test_answers_of_other_threads_come_by_post_also_after_the_part_is_closed),
        cmocka_unit_test(test_a_rank_that_begins_anew_leaves_its_requests_to_the_handler),
        cmocka_unit_test(test_a_state_that_moves_has_its_answers_and_goes_back_to_what_has_none),
        cmocka_unit_test(test_a_state_is_saved_again_if_another_thread_answered_meanwhile),
        cmocka_unit_test(test_damaged_states_are_refused_or_loaded_whole),
        cmocka_unit_test(test_a_handler_without_save_or_that_cannot_open_is_named),
        cmocka_unit_test(test_requests_and_answers_that_lie_are_refused),
        cmocka_unit_test(test_commands_are_answered_once_at_the_latest_when_the_part_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
