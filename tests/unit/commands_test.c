/* commands_test.c - commands that arrive, some of them twice, and their replies. */
#include "common/base/why.h"
#include "membership/commands.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SENT_MAX = 64, ME = 700 };

typedef struct {
    uint64_t id, asker;
    int32_t role, rank;
    pen_status status;
    char text[256], data[64];
    size_t size;
} sent;

typedef struct {
    commands *commands;
    sent sent[SENT_MAX];
    int n_sent, n_run;
    bool has_handler, lacks_memory;
    command_call *call;
    char body[64];
} end;

/* ---- actions --------------------------------------------------------------------------------- */
static void copy(char *to, size_t room, const void *from, size_t size)
{
    assert_true(size < room);
    if (size > 0) memcpy(to, from, size);
    to[size] = '\0';
}

static void on_send(void *user, const wire_control *m)
{
    end *e = user;
    assert_true(e->n_sent < SENT_MAX);
    assert_int_equal(m->kind, WIRE_REPLY);
    sent *s = &e->sent[e->n_sent++];
    s->id = m->u.reply.id, s->asker = m->u.reply.asker;
    s->role = m->u.reply.role, s->rank = m->u.reply.rank, s->status = m->u.reply.status;
    s->size = m->u.reply.data_size;
    copy(s->data, sizeof s->data, m->u.reply.data, s->size);
    snprintf(s->text, sizeof s->text, "%s", m->u.reply.text);
}

static pen_status on_run(void *user, command_call *call, const void *body, size_t size)
{
    end *e = user;
    if (e->lacks_memory) return PEN_NO_MEMORY;
    if (!e->has_handler) return PEN_NOT_FOUND;
    e->n_run++;
    e->call = call;
    copy(e->body, sizeof e->body, body, size);
    return PEN_OK;
}

static void open_end(end *e, int32_t rank)
{
    static const commands_actions actions = {on_send, on_run};
    *e                                    = (end){.has_handler = true};
    e->commands                           = commands_create(PEN_WORKER, rank, &actions, e);
    assert_non_null(e->commands);
}

static void hear_command(end *e, uint64_t asker, uint64_t id, uint64_t done_below, const char *body)
{
    const wire_control c = {.kind      = WIRE_COMMAND,
                            .u.command = {.id         = id,
                                          .asker      = asker,
                                          .role       = PEN_WORKER,
                                          .rank       = 3,
                                          .head       = 7,
                                          .done_below = done_below,
                                          .body       = body,
                                          .body_size  = strlen(body)}};
    commands_receive(e->commands, &c);
}

static void answer(end *e, command_call *call, pen_status status, const char *text)
{
    assert_false(atomic_exchange(&call->is_answered, true));
    call->status = status;
    call->data   = strdup(text);
    call->size   = strlen(text);
    commands_answer(e->commands, call);
}

/* ---- answering ------------------------------------------------------------------------------- */
static void test_commands_run_a_command_once_and_answer_repeats_from_memory(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 5, 5, "do");
    hear_command(&e, ME, 5, 5, "do"); /* while the reply is pending */
    assert_int_equal(e.n_run, 1);
    assert_int_equal(e.n_sent, 0);
    assert_string_equal(e.body, "do");
    answer(&e, e.call, PEN_OK, "done");
    hear_command(&e, ME, 5, 5, "do");
    assert_int_equal(e.n_run, 1);
    assert_int_equal(e.n_sent, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(e.sent[i].data, "done");
        assert_int_equal(e.sent[i].asker, ME);
        assert_int_equal(e.sent[i].id, 5);
        assert_int_equal(e.sent[i].rank, 3);
    }
    hear_command(&e, ME + 1, 5, 5, "of another"); /* the same number from another asker */
    assert_int_equal(e.n_run, 2);
    commands_destroy(e.commands);
}

static void test_commands_do_not_run_after_their_asker_is_done(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 1, 1, "a");
    answer(&e, e.call, PEN_OK, "A");
    hear_command(&e, ME, 2, 2, "b"); /* evicts the first */
    hear_command(&e, ME, 1, 1, "a"); /* a late repeat */
    assert_int_equal(e.n_run, 2);
    assert_int_equal(e.n_sent, 1);
    commands_destroy(e.commands);
}

static void test_commands_accept_a_reply_after_its_asker_gave_up(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 1, 1, "a");
    command_call *slow = e.call;
    hear_command(&e, ME, 2, 2, "b"); /* the asker's deadline has passed */
    answer(&e, slow, PEN_OK, "A");
    assert_int_equal(e.n_sent, 0);
    answer(&e, e.call, PEN_OK, "B");
    assert_string_equal(e.sent[0].data, "B");
    commands_destroy(e.commands);
}

static void test_commands_without_a_handler_are_reported(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    e.has_handler = false;
    hear_command(&e, ME, 1, 1, "a");
    assert_int_equal(e.sent[0].status, PEN_NOT_FOUND);
    assert_string_equal(e.sent[0].text, "worker 1 has no handler for command 7");
    commands_destroy(e.commands);
}

static void test_commands_send_a_refusal_without_its_data(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 1, 1, "a");
    answer(&e, e.call, PEN_UNSUPPORTED, "bytes");
    assert_int_equal(e.sent[0].status, PEN_UNSUPPORTED);
    assert_int_equal(e.sent[0].size, 0);
    assert_string_equal(e.sent[0].text,
                        "worker 1 refused command 7: not possible with this build, device or mode");
    commands_destroy(e.commands);
}

static void test_commands_are_ignored_after_the_job_failed(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    hear_command(&e, ME, 1, 1, "slow");
    commands_fail(e.commands);
    hear_command(&e, ME, 2, 1, "late");
    assert_int_equal(e.n_run, 1);
    answer(&e, e.call, PEN_OK, "to nobody");
    assert_int_equal(e.n_sent, 0);
    commands_destroy(e.commands);
}

static void test_commands_bound_what_one_asker_can_leave_behind(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    for (uint64_t id = 1; id <= 200; id++) hear_command(&e, ME, id, 1, "a");
    assert_int_equal(e.n_run, 64);
    hear_command(&e, ME + 1, 1, 1, "a"); /* from another asker */
    assert_int_equal(e.n_run, 65);
    commands_destroy(e.commands);
}

static void test_commands_run_when_they_come_again_if_there_was_no_memory(void **state)
{
    (void)state;
    end e;
    open_end(&e, 1);
    e.lacks_memory = true;
    hear_command(&e, ME, 5, 5, "do");
    assert_int_equal(e.n_run + e.n_sent, 0);
    e.lacks_memory = false;
    hear_command(&e, ME, 5, 5, "do");
    assert_int_equal(e.n_run, 1);
    answer(&e, e.call, PEN_OK, "done");
    assert_int_equal(e.n_sent, 1);
    commands_destroy(e.commands);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands_run_a_command_once_and_answer_repeats_from_memory),
        cmocka_unit_test(test_commands_do_not_run_after_their_asker_is_done),
        cmocka_unit_test(test_commands_accept_a_reply_after_its_asker_gave_up),
        cmocka_unit_test(test_commands_without_a_handler_are_reported),
        cmocka_unit_test(test_commands_send_a_refusal_without_its_data),
        cmocka_unit_test(test_commands_are_ignored_after_the_job_failed),
        cmocka_unit_test(test_commands_run_when_they_come_again_if_there_was_no_memory),
        cmocka_unit_test(test_commands_bound_what_one_asker_can_leave_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
