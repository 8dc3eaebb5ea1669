/* scheduler_restart_test.c - a scheduler that restarts: what it persists, and how its members continue. */
#include "tests/support/scheduler_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a scheduler that dies ------------------------------------------------------------------- */
static void a_record_is_persisted_before_it_is_sent(void **state)
{
    (void)state;
    scene *r = scene_train(2, 3, "replicas=1", "state=here", NULL);
    scene_server_dies(r, 1);
    scene_seals(r, 0, 5);
    scene_forget(r);
    r->keep_fails = true;
    scene_seals(r, 2, 5);
    assert_int_equal(scene_count(r, WIRE_EPOCH), 0);
    const pen_error *why = &scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict;
    assert_int_equal(why->status, PEN_STORE);
    assert_non_null(strstr(why->text, "cannot write the scheduler's state to here"));
    scene_drop(r);
}

static void members_are_told_how_long_to_go_on_alone(void **state)
{
    (void)state;
    scene *r = scene_train(1, 1, "state=here", NULL);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_WELCOME)->u.welcome.grace_ms, 60000);
    scene_drop(r);
    r = scene_train(1, 1, NULL, NULL);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_WELCOME)->u.welcome.grace_ms, 0);
    scene_drop(r);
}

static void a_restarted_scheduler_knows_all_members_and_begins_a_new_epoch(void **state)
{
    (void)state;
    scene *r              = scene_train(2, 2, "replicas=1", "state=here", NULL);
    const uint64_t before = r->incarnation[SCENE_WORKER(1)];
    scene_restart(r);
    scene_comes_back(r, SCENE_SERVER(0));
    assert_int_equal(scene_must(r, SCENE_SERVER(0), WIRE_EPOCH)->u.epoch.term, 7); /* as before */
    const wire_control *seal = scene_must(r, SCENE_SERVER(0), WIRE_SEAL);
    assert_int_equal(seal->u.seal.term, 8);
    assert_int_equal(seal->u.seal.epoch, 2);
    scene_comes_back(r, SCENE_WORKER(0));
    scene_comes_back(r, SCENE_WORKER(1));
    scene_comes_back(r, SCENE_SERVER(1));
    assert_int_equal(r->incarnation[SCENE_WORKER(1)], before);
    scene_seals(r, 0, 11);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_EPOCH)->u.epoch.epoch, 1);
    scene_seals(r, 1, 11);
    const wire_control *e = scene_must(r, SCENE_WORKER(1), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.term, 8);
    assert_int_equal(e->u.epoch.epoch, 2);
    assert_int_equal(e->u.epoch.step, 11);
    assert_false(e->u.epoch.members_changed);
    assert_int_equal(e->u.epoch.n_replicas, 8);
    scene_leaves(r, SCENE_WORKER(0));
    scene_leaves(r, SCENE_WORKER(1));
    scene_must(r, SCENE_SERVER(1), WIRE_STOP);
    scene_drop(r);
}

static void no_member_is_declared_dead_in_the_first_lease_of_a_restarted_scheduler(void **state)
{
    (void)state;
    scene *r = scene_train(2, 2, "replicas=1", "state=here", NULL);
    scene_restart(r);
    scene_comes_back(r, SCENE_WORKER(0));
    scene_comes_back(r, SCENE_WORKER(1));
    scene_comes_back(r, SCENE_SERVER(0));
    scene_seals(r, 0, 4);
    scene_forget(r);
    scene_pass(r, 9900);
    assert_int_equal(scene_count(r, WIRE_EPOCH) + scene_count(r, WIRE_VERDICT), 0);
    scene_beat_all(r, 4);
    scene_pass(r, 200); /* server 1 has not come back */
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_EPOCH)->u.epoch.n_servers, 1);
    scene_drop(r);
}

static void a_record_persisted_but_not_sent_is_sent_first(void **state)
{
    (void)state;
    scene *r = scene_train(1, 3, "replicas=1", "state=here", NULL);
    scene_server_dies(r, 1);
    scene_seals_all(r, 5); /* persisted; assume that no member received it */
    scene_restart(r);
    scene_comes_back(r, SCENE_SERVER(2));
    const wire_control *e = scene_must(r, SCENE_SERVER(2), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.epoch, 2);
    assert_int_equal(e->u.epoch.term, 7);
    assert_int_equal(e->u.epoch.step, 5);
    assert_int_equal(scene_must(r, SCENE_SERVER(2), WIRE_SEAL)->u.seal.epoch, 3);
    assert_true(scene_position(r, SCENE_SERVER(2), WIRE_EPOCH) <
                scene_position(r, SCENE_SERVER(2), WIRE_SEAL));
    scene_drop(r);
}

static void values_set_and_added_survive_a_restart_and_are_not_added_again(void **state)
{
    (void)state;
    scene *r        = scene_train(1, 1, "state=here", NULL);
    wire_control c  = {.kind = WIRE_STORE};
    c.u.store.id    = 1;
    c.u.store.op    = WIRE_STORE_ADD;
    c.u.store.key   = "tickets";
    c.u.store.delta = 5;
    scene_say(r, SCENE_WORKER(0), &c);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_STORED)->u.stored.value, 5);
    scene_restart(r);
    scene_comes_back(r, SCENE_WORKER(0));
    scene_say(r, SCENE_WORKER(0), &c); /* the answer was lost */
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_STORED)->u.stored.value, 5);
    c.u.store.id = 2;
    scene_say(r, SCENE_WORKER(0), &c);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_STORED)->u.stored.value, 10);
    scene_drop(r);
}

static void a_worker_that_died_while_an_epoch_changed_is_judged_after_a_restart(void **state)
{
    (void)state;
    scene *r = scene_train(2, 3, "replicas=1", "state=here", NULL);
    scene_server_dies(r, 1);
    scene_worker_dies(r, 1);
    scene_must(r, SCENE_SERVER(0), WIRE_ENQUIRE);
    scene_seals_all(r, 5);
    scene_restart(r);
    scene_comes_back(r, SCENE_WORKER(0));
    scene_comes_back(r, SCENE_SERVER(0));
    scene_comes_back(r, SCENE_SERVER(2));
    scene_pass(r, 25000);
    assert_non_null(
        strstr(scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict.text, "worker 1"));
    scene_drop(r);
}

static void a_verdict_is_the_same_after_a_restart(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "state=here", NULL);
    scene_server_dies(r, 0);
    char text[640];
    snprintf(text, sizeof text, "%s", scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict.text);
    scene_restart(r);
    scene_comes_back(r, SCENE_WORKER(1));
    assert_string_equal(scene_must(r, SCENE_WORKER(1), WIRE_VERDICT)->u.verdict.text, text);
    scene_drop(r);
}

static void a_job_that_has_ended_leaves_nothing_behind(void **state)
{
    (void)state;
    scene *r = scene_train(1, 1, "state=here", NULL);
    assert_true(r->kept_size > 0);
    scene_leaves(r, SCENE_WORKER(0));
    scene_leaves(r, SCENE_SERVER(0));
    assert_true(r->has_ended);
    assert_int_equal(r->kept_size, 0);
    scene_drop(r);
}

/* Truncated anywhere, or with any byte changed: read or refused, never trusted. */
static void damaged_state_does_no_harm(void **state)
{
    (void)state;
    scene *r         = scene_train(2, 2, "replicas=1", "state=here", NULL);
    uint8_t *copy    = malloc(r->kept_size);
    uint32_t refused = 0, tried = 0;
    for (size_t i = 0; i < r->kept_size; i += 1 + i % 3) {
        const size_t size = i % 2 ? r->kept_size : i;
        memcpy(copy, r->kept, r->kept_size);
        copy[i] ^= (uint8_t)(1u << i % 8);
        refused += scene_load(r, copy, size) != PEN_OK;
        tried++;
    }
    assert_true(refused > tried / 2); /* all truncated ones among them */
    assert_int_equal(scene_load(r, r->kept, r->kept_size), PEN_OK);
    free(copy);
    scene_drop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_persisted_before_it_is_sent),
        cmocka_unit_test(members_are_told_how_long_to_go_on_alone),
        cmocka_unit_test(a_restarted_scheduler_knows_all_members_and_begins_a_new_epoch),
        cmocka_unit_test(no_member_is_declared_dead_in_the_first_lease_of_a_restarted_scheduler),
        cmocka_unit_test(a_record_persisted_but_not_sent_is_sent_first),
        cmocka_unit_test(values_set_and_added_survive_a_restart_and_are_not_added_again),
        cmocka_unit_test(a_worker_that_died_while_an_epoch_changed_is_judged_after_a_restart),
        cmocka_unit_test(a_verdict_is_the_same_after_a_restart),
        cmocka_unit_test(a_job_that_has_ended_leaves_nothing_behind),
        cmocka_unit_test(damaged_state_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
