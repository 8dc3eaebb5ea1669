/* placement_test.c - where copies are and how they move: the goal, the steps to it, the result of sealed copies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/core/epoch/placement.h"
#include "scheduler/core/epoch/resolve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERVERS_MAX = 16, SHARDS_MAX = 64 };

/* ---- helpers --------------------------------------------------------------------------------- */
static void make_servers(placement_server *server, uint32_t n, uint32_t places)
{
    static const char *const machines[] = {"a", "b", "c", "d", "e", "f", "g", "h",
                                           "i", "j", "k", "l", "m", "n", "o", "p"};
    for (uint32_t i = 0; i < n; i++)
        server[i] = (placement_server){.places = places, .machine = machines[i]};
}

static void goal_of(const placement *now, uint32_t shards, const placement_server *server,
                    uint32_t n, uint32_t replicas, placement *goal)
{
    assert_int_equal(placement_goal(now, shards, server, n, replicas, goal), PEN_OK);
}

static uint32_t count(const placement *table, int32_t server, int32_t role)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < table->n; i++)
        n += table->row[i].at.server == server && (!role || table->row[i].at.role == role);
    return n;
}

/* One primary per shard, copies on different servers, none on a server without places, evenly spread. */
static void assert_sound(const placement *table, uint32_t shards, const placement_server *server,
                         uint32_t n, uint32_t copies)
{
    uint32_t most[2] = {0, 0}, least[2] = {UINT32_MAX, UINT32_MAX};
    assert_int_equal(table->n, shards * copies);
    for (uint32_t s = 0; s < shards; s++) {
        uint32_t primaries = 0;
        for (uint32_t i = 0; i < table->n; i++) {
            if (table->row[i].at.shard != s) continue;
            primaries += table->row[i].at.role == WIRE_PRIMARY;
            assert_true(table->row[i].at.place < server[table->row[i].at.server].places);
            assert_false(server[table->row[i].at.server].is_draining);
            assert_ptr_equal(placement_find(table, s, table->row[i].at.server), &table->row[i]);
        }
        assert_int_equal(primaries, 1);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!server[i].places || server[i].is_draining) continue;
        const uint32_t number[2] = {count(table, (int32_t)i, 0),
                                    count(table, (int32_t)i, WIRE_PRIMARY)};
        for (int k = 0; k < 2; k++) {
            if (number[k] > most[k]) most[k] = number[k];
            if (number[k] < least[k]) least[k] = number[k];
        }
    }
    assert_in_range(most[0] - least[0], 0, 1);
    assert_in_range(most[1] - least[1], 0, 1);
}

/* As if every learner had caught up and all copies were equal.  Returns the number of changes. */
static uint32_t travel(placement *table, const placement *goal, uint32_t shards)
{
    uint32_t changes = 0;
    for (uint32_t i = 0; i < table->n; i++) table->row[i].is_caught_up = true;
    while (placement_can_move(table, goal)) {
        for (uint32_t i = 0; i < table->n; i++)
            if (table->row[i].at.role == WIRE_LEARNER) table->row[i].at.role = WIRE_BACKUP;
        placement_sort(table);
        assert_true(placement_follow(table, goal));
        for (uint32_t s = 0; s < shards; s++) assert_non_null(placement_primary(table, s));
        for (uint32_t i = 0; i < table->n; i++) table->row[i].is_caught_up = true;
        assert_in_range(++changes, 0, 8);
    }
    return changes;
}

static void assert_same(const placement *a, const placement *b)
{
    assert_int_equal(a->n, b->n);
    for (uint32_t i = 0; i < a->n; i++) {
        assert_int_equal(a->row[i].at.shard, b->row[i].at.shard);
        assert_int_equal(a->row[i].at.server, b->row[i].at.server);
        assert_int_equal(a->row[i].at.role, b->row[i].at.role);
    }
}

/* ---- the goal -------------------------------------------------------------------------------- */
static void without_copies_shard_k_is_on_thread_k(void **state)
{
    (void)state;
    placement_server server[3];
    placement goal = {0};
    make_servers(server, 3, 2);
    goal_of(&(placement){0}, 6, server, 3, 0, &goal);
    assert_int_equal(goal.n, 6);
    for (uint32_t k = 0; k < 6; k++) {
        assert_int_equal(goal.row[k].at.shard, k);
        assert_int_equal(goal.row[k].at.server, k / 2);
        assert_int_equal(goal.row[k].at.place, k % 2);
        assert_int_equal(goal.row[k].at.role, WIRE_PRIMARY);
    }
    placement_fini(&goal);
}

static void the_first_placement_is_even_for_every_number_of_servers_shards_and_copies(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 9; n++)
        for (uint32_t shards = 1; shards <= 33; shards += 4)
            for (uint32_t replicas = 0; replicas <= 2; replicas++) {
                placement_server server[SERVERS_MAX];
                placement goal = {0};
                make_servers(server, n, 2);
                goal_of(&(placement){0}, shards, server, n, replicas, &goal);
                assert_sound(&goal, shards, server, n, replicas + 1 < n ? replicas + 1 : n);
                placement_fini(&goal);
            }
}

static void copies_are_on_different_machines_if_possible(void **state)
{
    (void)state;
    placement_server server[4];
    placement goal = {0};
    make_servers(server, 4, 1);
    server[1].machine = server[0].machine; /* two on each machine */
    server[3].machine = server[2].machine;
    goal_of(&(placement){0}, 4, server, 4, 1, &goal);
    assert_sound(&goal, 4, server, 4, 2);
    for (uint32_t s = 0; s < 4; s++) {
        const int32_t lead = placement_primary(&goal, s)->at.server;
        for (uint32_t i = 0; i < goal.n; i++)
            if (goal.row[i].at.shard == s && goal.row[i].at.server != lead)
                assert_string_not_equal(server[goal.row[i].at.server].machine,
                                        server[lead].machine);
    }
    placement_fini(&goal);
}

static void there_is_no_goal_without_a_server(void **state)
{
    (void)state;
    placement_server server[2];
    placement goal = {0};
    make_servers(server, 2, 1);
    server[0].places      = 0;
    server[1].is_draining = true;
    assert_int_equal(placement_goal(&(placement){0}, 2, server, 2, 1, &goal), PEN_WRONG_STATE);
    assert_int_equal(goal.n, 0);
}

/* ---- moving ---------------------------------------------------------------------------------- */
static void a_reached_goal_needs_no_change(void **state)
{
    (void)state;
    placement_server server[4];
    placement now = {0}, goal = {0};
    make_servers(server, 4, 2);
    goal_of(&(placement){0}, 8, server, 4, 1, &now);
    goal_of(&now, 8, server, 4, 1, &goal);
    assert_same(&now, &goal);
    assert_false(placement_can_move(&now, &goal));
    placement_fini(&now);
    placement_fini(&goal);
}

static void
a_new_copy_is_a_learner_until_it_has_caught_up_and_no_copy_is_removed_before(void **state)
{
    (void)state;
    placement_server server[2];
    placement now = {0}, goal = {0};
    make_servers(server, 2, 1);
    server[1].places = 0;
    goal_of(&(placement){0}, 2, server, 2, 1, &now);
    assert_int_equal(now.n, 2);

    server[1].places = 1; /* it joins */
    goal_of(&now, 2, server, 2, 1, &goal);
    assert_sound(&goal, 2, server, 2, 2);
    assert_true(placement_can_move(&now, &goal));
    assert_true(placement_follow(&now, &goal));
    assert_int_equal(count(&now, 1, WIRE_LEARNER), 2);
    assert_int_equal(count(&now, 0, WIRE_PRIMARY), 2);
    assert_false(placement_can_move(&now, &goal)); /* it is being filled */

    for (uint32_t i = 0; i < now.n; i++) now.row[i].is_caught_up = true;
    assert_true(placement_can_move(&now, &goal));
    assert_in_range(travel(&now, &goal, 2), 1, 2);
    assert_same(&now, &goal);
    placement_fini(&now);
    placement_fini(&goal);
}

static void a_drained_server_hands_its_primaries_over_before_it_loses_them(void **state)
{
    (void)state;
    placement_server server[3];
    placement now = {0}, goal = {0};
    make_servers(server, 3, 2);
    goal_of(&(placement){0}, 6, server, 3, 0, &now);
    server[1].is_draining = true;
    goal_of(&now, 6, server, 3, 0, &goal);
    assert_sound(&goal, 6, server, 3, 1);
    assert_true(placement_follow(&now, &goal));
    assert_int_equal(count(&now, 1, WIRE_PRIMARY), 2); /* it still serves */
    assert_int_equal(count(&now, 0, WIRE_LEARNER) + count(&now, 2, WIRE_LEARNER), 2);
    travel(&now, &goal, 6);
    assert_int_equal(placement_count(&now, 1), 0);
    assert_same(&now, &goal);
    placement_fini(&now);
    placement_fini(&goal);
}

static void copies_of_a_shard_that_does_not_move_stay_where_they_are(void **state)
{
    (void)state;
    placement_server server[5];
    placement now = {0}, goal = {0};
    make_servers(server, 5, 2);
    server[4].places = 0;
    goal_of(&(placement){0}, 8, server, 5, 1, &now);
    server[4].places = 2;
    goal_of(&now, 8, server, 5, 1, &goal);
    assert_sound(&goal, 8, server, 5, 2);
    uint32_t moved = 0;
    for (uint32_t i = 0; i < goal.n; i++)
        moved += !placement_find(&now, goal.row[i].at.shard, goal.row[i].at.server);
    assert_int_equal(moved, 3); /* 16 copies on 5 servers: the fifth gets three, no other moves */
    placement_fini(&now);
    placement_fini(&goal);
}

/* Servers join, leave and are drained at random; every goal is valid and is reached. */
static void any_history_ends_in_an_even_placement(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 200; seed++) {
        srand(seed);
        placement_server server[8];
        placement now = {0}, goal = {0};
        const uint32_t shards = 1 + (uint32_t)rand() % 24, replicas = (uint32_t)rand() % 3;
        make_servers(server, 8, 1 + (uint32_t)rand() % 3);
        goal_of(&now, shards, server, 8, replicas, &now);
        for (int change = 0; change < 12; change++) {
            const uint32_t who      = (uint32_t)rand() % 8;
            server[who].is_draining = rand() % 2;
            uint32_t usable         = 0;
            for (uint32_t i = 0; i < 8; i++) usable += !server[i].is_draining;
            if (usable < 1) server[who].is_draining = false;
            if (usable < 1) usable = 1;
            goal_of(&now, shards, server, 8, replicas, &goal);
            travel(&now, &goal, shards);
            assert_same(&now, &goal);
            assert_sound(&now, shards, server, 8, replicas + 1 < usable ? replicas + 1 : usable);
        }
        placement_fini(&now);
        placement_fini(&goal);
    }
}

/* ---- the result of sealed copies ------------------------------------------------------------- */
typedef struct {
    placement table;
    wire_sealed_report report[SERVERS_MAX][SHARDS_MAX];
    resolve_holder server[SERVERS_MAX];
    resolved out;
    pen_error why;
} sealed;

/* Shards 0 and 1, primaries on servers 0 and 1, a backup of each on the other, a learner of shard 0 on 2. */
static void make_sealed(sealed *s)
{
    *s                          = (sealed){0};
    const wire_replica copies[] = {{0, 0, 0, WIRE_PRIMARY},
                                   {0, 0, 1, WIRE_BACKUP},
                                   {0, 0, 2, WIRE_LEARNER},
                                   {1, 0, 1, WIRE_PRIMARY},
                                   {1, 0, 0, WIRE_BACKUP}};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        assert_true(placement_add(&s->table, &copies[i]));
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t shard = 0; shard < 2; shard++)
            s->report[i][shard] = (wire_sealed_report){.shard        = shard,
                                                       .role         = WIRE_BACKUP,
                                                       .index        = 40 + shard,
                                                       .digest       = 7,
                                                       .step         = 12,
                                                       .clock        = -1,
                                                       .has_decision = true,
                                                       .decision     = {.applied = 11}};
        s->server[i] = (resolve_holder){true, i == 2 ? 1 : 2, s->report[i]};
    }
}

static pen_status decide(sealed *s)
{
    return resolve_epoch(&s->table, 2, s->server, 3, &s->out, &s->why);
}

static int32_t role_of(const sealed *s, uint32_t shard, int32_t server)
{
    const placement_row *row = placement_find(&s->table, shard, server);
    return row ? row->at.role : 0;
}

static void nothing_changes_when_all_copies_are_equal(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(s.out.step, 12);
    assert_true(s.out.has_decision);
    assert_int_equal(s.out.decision.applied, 11);
    assert_int_equal(s.out.n_moved, 0);
    assert_int_equal(role_of(&s, 0, 0), WIRE_PRIMARY);
    assert_int_equal(role_of(&s, 0, 1), WIRE_BACKUP);
    assert_int_equal(role_of(&s, 0, 2), WIRE_LEARNER);
    placement_fini(&s.table);
}

static void a_backup_takes_the_place_of_a_dead_primary(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    s.server[0].is_alive = false;
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(s.out.n_moved, 1);
    assert_int_equal(role_of(&s, 0, 1), WIRE_PRIMARY);
    assert_int_equal(role_of(&s, 0, 0), 0);
    assert_int_equal(role_of(&s, 1, 1), WIRE_PRIMARY);
    placement_fini(&s.table);
}

static void of_several_backups_the_one_that_applied_the_most_leads_and_others_learn(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    placement_find(&s.table, 0, 2)->at.role = WIRE_BACKUP;
    s.server[0].is_alive                    = false;
    s.report[2][0].index                    = 41;
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(role_of(&s, 0, 2), WIRE_PRIMARY);
    assert_int_equal(role_of(&s, 0, 1), WIRE_LEARNER);
    placement_fini(&s.table);
}

static void a_learner_never_becomes_primary(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    s.report[2][0].index                         = 99;
    placement_find(&s.table, 0, 2)->is_caught_up = true;
    s.server[0].is_alive                         = false;
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(role_of(&s, 0, 1), WIRE_PRIMARY);
    placement_fini(&s.table);

    make_sealed(&s);
    s.server[0].is_alive = s.server[1].is_alive = false;
    assert_int_equal(decide(&s), PEN_PEER_LOST);
    assert_string_equal(s.why.text, "no copy of shard 0 is left");
    placement_fini(&s.table);
}

static void a_learner_that_has_caught_up_becomes_a_backup(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    placement_find(&s.table, 0, 2)->is_caught_up = true;
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(role_of(&s, 0, 2), WIRE_BACKUP);
    placement_fini(&s.table);

    make_sealed(&s);
    placement_find(&s.table, 0, 2)->is_caught_up = true;
    s.report[2][0].index                         = 39; /* no longer */
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(role_of(&s, 0, 2), WIRE_LEARNER);
    assert_false(placement_find(&s.table, 0, 2)->is_caught_up);
    placement_fini(&s.table);
}

static void a_backup_with_other_bits_or_fewer_entries_learns_again(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    s.report[1][0].digest = 8;
    s.report[0][1].index  = 40;
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(role_of(&s, 0, 1), WIRE_LEARNER);
    assert_int_equal(role_of(&s, 1, 0), WIRE_LEARNER);
    placement_fini(&s.table);
}

static void a_backup_under_suspicion_learns_again_unless_it_is_needed(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    placement_find(&s.table, 0, 1)->is_suspect = true;
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(role_of(&s, 0, 1), WIRE_LEARNER);
    placement_fini(&s.table);

    make_sealed(&s);
    placement_find(&s.table, 0, 1)->is_suspect = true;
    s.server[0].is_alive                       = false;
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(role_of(&s, 0, 1), WIRE_PRIMARY);
    placement_fini(&s.table);
}

static void the_furthest_step_is_settled_where_others_are_prepared_for_it(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    for (int i = 0; i < 2; i++) { /* shard 1 has not received the decision of step 11 */
        s.report[i][1].step         = 11;
        s.report[i][1].all_prepared = true;
        s.report[i][1].decision     = (wire_decision){.applied = 10};
    }
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(s.out.step, 12);
    assert_int_equal(s.out.decision.applied, 11);
    placement_fini(&s.table);
}

static void a_step_committed_on_one_shard_and_not_prepared_on_another_ends_the_job(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    for (int i = 0; i < 2; i++) s.report[i][1].step = 11;
    assert_int_equal(decide(&s), PEN_INTERNAL);
    assert_string_equal(
        s.why.text, "shard 1 has committed 11 steps and is not prepared for the next, another has "
                    "committed 12; the job cannot go on from there");
    placement_fini(&s.table);
}

static void two_decisions_of_one_step_end_the_job(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    for (int i = 0; i < 2; i++) s.report[i][1].decision.clip = 0.5;
    assert_int_equal(decide(&s), PEN_INTERNAL);
    assert_non_null(strstr(s.why.text, "shard 1 has committed step 11 with another decision"));
    placement_fini(&s.table);
}

static void without_two_phase_partitions_others_begin_at_the_least_clock(void **state)
{
    (void)state;
    sealed s;
    make_sealed(&s);
    for (int i = 0; i < 3; i++)
        for (int shard = 0; shard < 2; shard++) {
            s.report[i][shard].step         = -1;
            s.report[i][shard].has_decision = false;
            s.report[i][shard].clock        = 20 + shard;
        }
    assert_int_equal(decide(&s), PEN_OK);
    assert_int_equal(s.out.step, -1);
    assert_int_equal(s.out.clock, 20);
    assert_false(s.out.has_decision);
    placement_fini(&s.table);
}

/* ---- without servers ------------------------------------------------------------------------- */
static void without_servers_the_job_continues_from_the_most_advanced_live_worker(void **state)
{
    (void)state;
    const wire_sealed_report report[] = {
        {.step = 7}, {.step = 8, .has_decision = true, .decision = {.applied = 6}}, {.step = 9}};
    const resolve_holder worker[] = {
        {true, 1, &report[0]}, {true, 1, &report[1]}, {false, 1, &report[2]}};
    resolved out;
    pen_error why;
    assert_int_equal(resolve_workers(worker, 3, &out, &why), PEN_OK);
    assert_int_equal(out.step, 8);
    assert_true(out.has_decision);
    assert_int_equal(out.decision.applied, 6);
}

static void without_servers_a_sealed_worker_without_a_step_ends_the_job(void **state)
{
    (void)state;
    const wire_sealed_report report[] = {{.step = 7}, {.step = -1}};
    resolve_holder worker[]           = {{true, 1, &report[0]}, {true, 1, &report[1]}};
    resolved out;
    pen_error why;
    assert_int_equal(resolve_workers(worker, 2, &out, &why), PEN_INTERNAL);
    assert_string_equal(why.text, "sealed worker 1 did not report its step");
    worker[0].is_alive = worker[1].is_alive = false;
    assert_int_equal(resolve_workers(worker, 2, &out, &why), PEN_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_copies_shard_k_is_on_thread_k),
        cmocka_unit_test(the_first_placement_is_even_for_every_number_of_servers_shards_and_copies),
        cmocka_unit_test(copies_are_on_different_machines_if_possible),
        cmocka_unit_test(there_is_no_goal_without_a_server),
        cmocka_unit_test(a_reached_goal_needs_no_change),
        cmocka_unit_test(
            a_new_copy_is_a_learner_until_it_has_caught_up_and_no_copy_is_removed_before),
        cmocka_unit_test(a_drained_server_hands_its_primaries_over_before_it_loses_them),
        cmocka_unit_test(copies_of_a_shard_that_does_not_move_stay_where_they_are),
        cmocka_unit_test(any_history_ends_in_an_even_placement),
        cmocka_unit_test(nothing_changes_when_all_copies_are_equal),
        cmocka_unit_test(a_backup_takes_the_place_of_a_dead_primary),
        cmocka_unit_test(of_several_backups_the_one_that_applied_the_most_leads_and_others_learn),
        cmocka_unit_test(a_learner_never_becomes_primary),
        cmocka_unit_test(a_learner_that_has_caught_up_becomes_a_backup),
        cmocka_unit_test(a_backup_with_other_bits_or_fewer_entries_learns_again),
        cmocka_unit_test(a_backup_under_suspicion_learns_again_unless_it_is_needed),
        cmocka_unit_test(the_furthest_step_is_settled_where_others_are_prepared_for_it),
        cmocka_unit_test(a_step_committed_on_one_shard_and_not_prepared_on_another_ends_the_job),
        cmocka_unit_test(two_decisions_of_one_step_end_the_job),
        cmocka_unit_test(without_servers_the_job_continues_from_the_most_advanced_live_worker),
        cmocka_unit_test(without_servers_a_sealed_worker_without_a_step_ends_the_job),
        cmocka_unit_test(without_two_phase_partitions_others_begin_at_the_least_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
