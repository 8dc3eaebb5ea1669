/* scheduler_events_test.c - the events in STATUS, the weight of shards, and records that an operator asks for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/scheduler_scene.h"

#include <stdlib.h>
#include <string.h>

static const wire_control *status_of(scene *r)
{
    wire_control ask = {.kind = WIRE_STATUS_ASK};
    scene_forget(r);
    scene_say(r, SCENE_OBSERVER, &ask);
    return scene_must(r, SCENE_OBSERVER, WIRE_STATUS);
}

static const wire_event *event_with(const wire_control *status, const char *text)
{
    for (uint32_t i = 0; i < status->u.status.n_events; i++)
        if (strstr(status->u.status.event[i].text, text)) return &status->u.status.event[i];
    fail_msg("no event says '%s'", text);
    return NULL;
}

static void joins_and_deaths_are_events_with_a_time(void **state)
{
    (void)state;
    scene *r                = scene_train(2, 3, "replicas=1", NULL);
    const wire_event *comes = event_with(status_of(r), "server 1 (");
    assert_non_null(strstr(comes->text, "has connected"));
    r->now += 2500;
    scene_server_dies(r, 1);
    const wire_control *status = status_of(r);
    const wire_event *dies     = event_with(status, "is dead");
    assert_non_null(strstr(dies->text, "server 1 ("));
    assert_int_equal(dies->level, 1); /* a warning */
    assert_true(dies->at_s >= 2.5 && dies->at_s <= status->u.status.uptime_s);
    scene_drop(r);
}

static void the_newest_events_are_kept_and_numbers_continue(void **state)
{
    (void)state;
    scene *r = scene_train(1, 1, NULL, NULL);
    for (uint64_t i = 0; i < 300; i++) { /* an observer that comes and goes is not an event */
        scene_guest_comes(r, WIRE_OBSERVER, SCENE_OBSERVER);
        scene_leaves(r, SCENE_OBSERVER);
    }
    const uint32_t before = status_of(r)->u.status.n_events;
    assert_true(before < 64);
    pen_error why = {.status = PEN_ABORTED, .text = "enough"};
    for (int i = 0; i < 300; i++) { /* the scheduler was held up this many times */
        scheduler_core_next_ms(r->core);
        r->now += 100000;
        scheduler_core_tick(r->core, r->now);
    }
    scheduler_core_fail(r->core, &why, r->now);
    const wire_control *status = status_of(r);
    const uint32_t n           = status->u.status.n_events;
    assert_int_equal(n, 128);
    for (uint32_t i = 1; i < n; i++)
        assert_int_equal(status->u.status.event[i].number,
                         status->u.status.event[i - 1].number + 1);
    assert_true(status->u.status.event[0].number > 100);
    assert_string_equal(status->u.status.event[n - 1].text, "enough");
    scene_drop(r);
}

static void the_bytes_of_all_shards_are_those_of_the_model(void **state)
{
    (void)state;
    scene *r                   = scene_train(1, 2, NULL, NULL);
    const wire_control *status = status_of(r);
    uint64_t bytes             = 0;
    assert_true(status->u.status.n_shards >= 2);
    for (uint32_t i = 0; i < status->u.status.n_shards; i++)
        bytes += status->u.status.shard_bytes[i];
    assert_true(bytes > 0);
    assert_int_equal(status->u.status.scheduler.role, PEN_SCHEDULER);
    assert_true(status->u.status.scheduler.n_addresses == 1);
    scene_drop(r);
}

static void records_asked_for_here_are_merged_here(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, NULL, NULL);
    scene_forget(r);
    assert_null(scheduler_core_recorders(r->core));
    scheduler_core_ask_recorders(r->core, r->now);
    const wire_control *ask = scene_must(r, SCENE_WORKER(0), WIRE_RECORD_ASK);
    assert_int_equal(ask->u.record_ask.asker, 0);
    static const char line[] = "{\"group\":\"0\",\"size\":2,\"call\":7,\"kind\":\"all_reduce\","
                               "\"label\":\"loss\",\"state\":"
                               "\"RUNNING\",\"age_ms\":1500}\n";
    const uint64_t id        = ask->u.record_ask.id;
    for (int32_t rank = 0; rank < 2; rank++) {
        assert_false(stuck_is_whole(scheduler_core_recorders(r->core)));
        wire_control view = {.kind     = WIRE_RECORD,
                             .u.record = {.id        = id,
                                          .text      = "",
                                          .data      = rank == 0 ? line : NULL,
                                          .data_size = rank == 0 ? sizeof line - 1 : 0}};
        scene_say(r, SCENE_WORKER(rank), &view);
    }
    assert_true(stuck_is_whole(scheduler_core_recorders(r->core)));
    char *text  = NULL;
    size_t size = 0;
    FILE *out   = open_memstream(&text, &size);
    assert_non_null(out);
    stuck_print_json(scheduler_core_recorders(r->core), out);
    fclose(out);
    assert_non_null(strstr(text, "\"missing\":[1]"));
    free(text);
    scene_drop(r);
}

static void the_curve_of_a_job_keeps_its_start_and_stays_small(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "lease_ms=3600000", NULL);
    scheduler_history all;
    for (int i = 0; i < 1000; i++) {
        for (int32_t rank = 0; rank < 2; rank++) {
            const wire_stat stat[] = {{"push.bytes", 100.0 * i}, {"loss", 1.0 + rank}};
            wire_control c         = {
                        .kind   = WIRE_BEAT,
                        .u.beat = {
                            .step = 10 * i + rank, .call = "pen_step_end", .n_stats = 2, .stat = stat}};
            scene_say(r, SCENE_WORKER(rank), &c);
        }
        r->now += 1000;
        scene_forget(r);
    }
    scheduler_core_history(r->core, &all);
    assert_in_range(all.n, 128, SCHEDULER_POINTS_MAX);
    assert_int_equal(all.n_metrics, 1);
    assert_string_equal(all.metric[0], "loss");
    assert_true(all.point[0].at_s < 60);
    for (uint32_t i = 1; i < all.n; i++) assert_true(all.point[i].at_s > all.point[i - 1].at_s);
    const scheduler_point *last = &all.point[all.n - 1];
    assert_true(last->step > 9000 && last->push_bytes > 180000);
    assert_true(last->metric[0] > 1.49 && last->metric[0] < 1.51);
    scene_drop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_and_deaths_are_events_with_a_time),
        cmocka_unit_test(the_newest_events_are_kept_and_numbers_continue),
        cmocka_unit_test(the_bytes_of_all_shards_are_those_of_the_model),
        cmocka_unit_test(the_curve_of_a_job_keeps_its_start_and_stays_small),
        cmocka_unit_test(records_asked_for_here_are_merged_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
