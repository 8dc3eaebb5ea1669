/* machines_test.c - nodes and local ranks: from the launcher, or else from the machine. */
#include "scheduler/core/membership/machines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS_MAX = 8 };

/* A worker as text: "MACHINE LOCAL_RANK LOCAL_SIZE NODE"; -1 for a missing number. */
static uint32_t read_workers(const char *const *text, member_slot *w, member_slot **at)
{
    uint32_t n = 0;
    for (; text[n] != NULL; n++) {
        w[n] = (member_slot){.rank = (int32_t)n};
        assert_int_equal(sscanf(text[n], "%7s %d %d %d", w[n].machine, &w[n].said_local_rank,
                                &w[n].said_local_size, &w[n].said_node),
                         4);
        memcpy(w[n].host, w[n].machine, sizeof w[n].host);
        at[n] = &w[n];
    }
    return n;
}

/* "NODE:LOCAL_RANK ..." of all, or the error sentence. */
static const char *place(const char *const *text)
{
    static char out[1024];
    member_slot w[WORKERS_MAX], *list[WORKERS_MAX];
    pen_error why;
    const uint32_t n = read_workers(text, w, list);
    size_t at        = 0;
    if (machines_place(&(member_slots){list, n}, &why) != PEN_OK) {
        assert_int_equal(why.status, PEN_MISMATCH);
        assert_int_equal(why.role, PEN_WORKER);
        (void)snprintf(out, sizeof out, "%s", why.text);
        return out;
    }
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(out + at, sizeof out - at, "%s%d:%d", i > 0 ? " " : "", w[i].node,
                               w[i].local_rank);
    return out;
}
#define PLACE(...) place((const char *const[]){__VA_ARGS__, NULL})

static void missing_values_follow_from_the_machines(void **state)
{
    (void)state;
    assert_string_equal(PLACE("a -1 -1 -1"), "0:0");
    assert_string_equal(PLACE("a -1 -1 -1", "a -1 -1 -1"), "0:0 0:1");
    assert_string_equal(PLACE("b -1 -1 -1", "a -1 -1 -1", "b -1 -1 -1", "a -1 -1 -1", "a -1 0 -1"),
                        "0:0 1:0 0:1 1:1 1:2");
}

static void a_local_rank_without_the_number_of_local_ranks_is_kept(void **state)
{
    (void)state;
    assert_string_equal(PLACE("a 0 -1 -1", "a 1 -1 -1", "b 0 -1 -1"), "0:0 0:1 1:0");
    assert_string_equal(PLACE("a 1 -1 -1", "a 0 -1 -1"), "0:1 0:0");
    assert_string_equal(PLACE("a -1 -1 -1", "a 0 -1 -1", "a -1 -1 -1"), "0:1 0:0 0:2");
}

static void complete_values_of_a_launcher_are_kept(void **state)
{
    (void)state;
    assert_string_equal(PLACE("a 0 1 0", "a 0 1 1"), "0:0 1:0"); /* torchrun, two on one machine */
    assert_string_equal(PLACE("a 1 2 7", "b 0 2 7"), "7:1 7:0");
    assert_string_equal(PLACE("a 0 2 -1", "a 1 2 -1", "b 0 1 -1"), "0:0 0:1 1:0"); /* mpirun */
    assert_string_equal(PLACE("a 0 1 -1", "a 0 1 -1"), "0:0 1:0"); /* two hosts with one name */
    assert_string_equal(PLACE("a 0 2 -1", "a 1 2 -1", "a 0 2 -1", "a 1 2 -1"), "0:0 0:1 1:0 1:1");
    assert_string_equal(PLACE("a -1 -1 3", "b -1 -1 5", "a -1 -1 3"), "3:0 5:0 3:1"); /* PET_* */
}

static void contradictory_values_are_refused_with_a_sentence(void **state)
{
    (void)state;
    assert_string_equal(PLACE("a 0 -1 -1", "a 0 -1 -1"),
                        "worker 0 (a) and worker 1 (a) are on one node and both have LOCAL_RANK 0; "
                        "set a different one for each, or none at all");
    assert_string_equal(PLACE("a 0 2 0", "b 0 2 0"),
                        "worker 0 (a) and worker 1 (b) are on one node and both have LOCAL_RANK 0; "
                        "set a different one for each, or none at all");
    assert_string_equal(PLACE("a 0 -1 -1", "b 1 -1 -1"),
                        "worker 1 (b) has LOCAL_RANK 1, but its node has 1 workers; count from 0 "
                        "on each node, or set none at all");
    assert_string_equal(PLACE("a 0 2 -1", "b 0 1 -1"),
                        "worker 0 (a) has LOCAL_WORLD_SIZE 2, but its node has 1 workers; correct "
                        "it on all, or set none at all");
    assert_string_equal(PLACE("a 0 3 -1", "a -1 -1 -1"),
                        "worker 0 (a) has LOCAL_WORLD_SIZE 3, but its node has 2 workers; correct "
                        "it on all, or set none at all");
    assert_string_equal(PLACE("a -1 -1 1", "a -1 -1 -1"),
                        "worker 0 (a) has GROUP_RANK 1, but its machine is node 0 of the job; set "
                        "it for all workers, or for none");
    assert_string_equal(PLACE("a 2147483647 -1 -1"),
                        "worker 0 (a) has LOCAL_RANK 2147483647, but its node has 1 workers; count "
                        "from 0 on each node, or set none at all");
}

static void a_latecomer_takes_the_lowest_free_local_rank_of_its_machine(void **state)
{
    (void)state;
    member_slot others[] = {
        {.rank = 0, .machine = "a", .node = 0, .local_rank = 0, .in_view = 1},
        {.rank = 2, .machine = "a", .node = 0, .local_rank = 2, .in_view = 1},
        {.rank = 3, .machine = "b", .node = 1, .local_rank = 0, .in_view = 1},
        {.rank = 4, .machine = "a", .node = 0, .local_rank = 1}, /* about to join as well */
    };
    member_slot late = {
        .rank = 1, .machine = "a", .said_local_rank = -1, .said_local_size = -1, .said_node = -1};
    const member_slots all = {
        (member_slot *[]){&others[0], &late, &others[1], &others[2], &others[3]}, 5};
    machines_place_late(&late, &all);
    assert_true(late.node == 0 && late.local_rank == 1);
    late.machine[0] = 'c';
    machines_place_late(&late, &all);
    assert_true(late.node == 2 && late.local_rank == 0);
    late.said_local_rank = 5;
    late.said_node       = 1;
    machines_place_late(&late, &all);
    assert_true(late.node == 1 && late.local_rank == 5);
    machines_place_late(&late, &(member_slots){0});
    assert_true(late.node == 1 && late.local_rank == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_values_follow_from_the_machines),
        cmocka_unit_test(a_local_rank_without_the_number_of_local_ranks_is_kept),
        cmocka_unit_test(complete_values_of_a_launcher_are_kept),
        cmocka_unit_test(contradictory_values_are_refused_with_a_sentence),
        cmocka_unit_test(a_latecomer_takes_the_lowest_free_local_rank_of_its_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
