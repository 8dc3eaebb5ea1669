/* scheduler_command_test.c - commands that the scheduler forwards, and their replies. */
#include "scheduler_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* ---- commands -------------------------------------------------------------------------------- */
static void commands(job *j, int32_t from, uint64_t id, int32_t role, int32_t rank)
{
    wire_control c = {
        .kind      = WIRE_COMMAND,
        .u.command = {
            .id = id, .role = role, .rank = rank, .head = 7, .body = "abc", .body_size = 3}};
    say_worker(j, from, &c);
}

static void assert_answer(const job *j, int32_t rank, pen_status status, const char *text)
{
    const letter *l = must(j, WORKER_PEER, WIRE_REPLY);
    assert_string_equal(l->text, text);
    assert_int_equal(l->status, status);
    assert_int_equal(l->generation, 9);
    assert_int_equal(l->rank, rank);
    assert_int_equal(l->incarnation, j->worker[0]);
}

static void test_core_passes_a_command_and_its_reply_on(void **state)
{
    (void)state;
    job *j = training(2, 1);
    commands(j, 0, 9, PEN_WORKER, 1);
    assert_int_equal(count(j, WIRE_COMMAND), 1);
    const letter *l = must(j, WORKER_PEER + 1, WIRE_COMMAND);
    assert_int_equal(l->rank, 0); /* the asker */
    assert_int_equal(l->generation, 9);
    assert_int_equal(l->step, 7);
    assert_memory_equal(l->data, "abc", 3);

    wire_control c = {.kind    = WIRE_REPLY,
                      .u.reply = {.id        = 9,
                                  .role      = PEN_WORKER,
                                  .rank      = 0,
                                  .asker     = l->incarnation,
                                  .data      = "de",
                                  .data_size = 2}};
    say_worker(j, 1, &c);
    assert_answer(j, 1, PEN_OK, "");
    assert_memory_equal(must(j, WORKER_PEER, WIRE_REPLY)->data, "de", 2);
    drop_job(j);
}

static void test_core_passes_a_command_on_to_all_of_a_role(void **state)
{
    (void)state;
    job *j = training(3, 2);
    commands(j, 0, 9, PEN_WORKER, -1);
    assert_int_equal(count(j, WIRE_COMMAND), 3);
    commands(j, 0, 10, PEN_SERVER, -1);
    assert_int_equal(count(j, WIRE_COMMAND), 5);
    must(j, SERVER_PEER + 1, WIRE_COMMAND);
    drop_job(j);
}

static void test_core_answers_commands_to_absent_members(void **state)
{
    (void)state;
    job *j = training(2, 1);
    commands(j, 0, 9, PEN_WORKER, 2);
    assert_answer(j, 2, PEN_NOT_FOUND, "there is no worker 2; the job has 2");
    commands(j, 0, 9, PEN_SCHEDULER, 0);
    assert_answer(j, 0, PEN_NOT_FOUND, "the scheduler has no handler for command 7");
    leaves(j, 1);
    commands(j, 0, 9, PEN_WORKER, 1);
    assert_answer(j, 1, PEN_NOT_FOUND, "worker 1 (devbox) has left the job");
    assert_int_equal(count(j, WIRE_COMMAND), 0);
    drop_job(j);
}

static void test_core_reports_that_the_commanded_member_is_gone(void **state)
{
    (void)state;
    job *j = training(2, 1);
    breaks(j, WORKER_PEER + 1);
    commands(j, 0, 9, PEN_WORKER, 1);
    assert_int_equal(count(j, WIRE_REPLY), 0); /* it may come back and get the command again */
    pass(j, 1000);                             /* its death is being checked */
    commands(j, 0, 9, PEN_WORKER, 1);
    assert_answer(j, 1, PEN_PEER_LOST, "worker 1 (devbox) is gone");
    drop_job(j);
}

static void test_core_drops_a_reply_without_a_request(void **state)
{
    (void)state;
    job *j         = training(2, 1);
    wire_control c = {.kind    = WIRE_REPLY,
                      .u.reply = {.id = 9, .role = PEN_WORKER, .rank = 0, .asker = 12345}};
    say_worker(j, 1, &c);
    c.u.reply.rank = 7;
    say_worker(j, 1, &c);
    assert_int_equal(count(j, WIRE_REPLY), 0);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_passes_a_command_and_its_reply_on),
        cmocka_unit_test(test_core_passes_a_command_on_to_all_of_a_role),
        cmocka_unit_test(test_core_answers_commands_to_absent_members),
        cmocka_unit_test(test_core_reports_that_the_commanded_member_is_gone),
        cmocka_unit_test(test_core_drops_a_reply_without_a_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
