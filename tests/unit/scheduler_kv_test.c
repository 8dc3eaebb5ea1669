/* scheduler_kv_test.c - the key-value store of a job. */
#include "tests/unit/scheduler_alone.h"

/* ---- the store ------------------------------------------------------------------------------- */
static void stores(job *j, int32_t rank, uint64_t id, wire_store_op op, const char *key,
                   const char *data, int64_t delta)
{
    wire_control c       = {.kind = WIRE_STORE};
    c.u.store.id         = id;
    c.u.store.done_below = 1;
    c.u.store.op         = (int32_t)op;
    c.u.store.key        = key;
    c.u.store.data       = data;
    c.u.store.data_size  = data ? strlen(data) : 0;
    c.u.store.delta      = delta;
    say(j, rank, c);
}

static void a_get_waits_until_the_key_is_set(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    stores(j, 1, 1, WIRE_STORE_GET, "address", NULL, 0);
    stores(j, 1, 1, WIRE_STORE_GET, "address", NULL, 0); /* asked again */
    stores(j, 2, 1, WIRE_STORE_GET, "other", NULL, 0);
    assert_int_equal(count(j, WIRE_STORED), 0);
    stores(j, 0, 1, WIRE_STORE_SET, "address", "devbox:7", 0);
    assert_int_equal(must(j, 0, WIRE_STORED)->status, PEN_OK);
    assert_int_equal(must(j, 1, WIRE_STORED)->size, 8);
    assert_memory_equal(must(j, 1, WIRE_STORED)->data, "devbox:7", 8);
    assert_int_equal(count(j, WIRE_STORED), 2);
    forget(j);
    stores(j, 3, 1, WIRE_STORE_GET, "address", NULL, 0);
    assert_int_equal(must(j, 3, WIRE_STORED)->size, 8);
    drop_job(j);
}

static void an_add_is_applied_once_however_often_it_is_sent(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    for (int i = 0; i < 3; i++) {
        stores(j, 0, 1, WIRE_STORE_ADD, "tickets", NULL, 5);
        assert_int_equal(must(j, 0, WIRE_STORED)->value, 5);
    }
    stores(j, 1, 1, WIRE_STORE_ADD, "tickets", NULL, -2);
    assert_int_equal(must(j, 1, WIRE_STORED)->value, 3);
    stores(j, 0, 1, WIRE_STORE_ADD, "tickets", NULL, 5);
    assert_int_equal(must(j, 0, WIRE_STORED)->value, 5); /* the same answer as before */
    stores(j, 0, 2, WIRE_STORE_ADD, "tickets", NULL, 1);
    assert_int_equal(must(j, 0, WIRE_STORED)->value, 4);
    drop_job(j);
}

static void a_late_repeat_of_a_set_does_not_undo_a_newer_one(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    stores(j, 0, 1, WIRE_STORE_SET, "k", "old", 0);
    stores(j, 1, 1, WIRE_STORE_SET, "k", "new", 0);
    stores(j, 0, 1, WIRE_STORE_SET, "k", "old", 0);
    stores(j, 2, 1, WIRE_STORE_GET, "k", NULL, 0);
    assert_memory_equal(must(j, 2, WIRE_STORED)->data, "new", 3);
    drop_job(j);
}

static void an_add_to_a_value_that_is_not_a_counter_is_refused(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    stores(j, 0, 1, WIRE_STORE_SET, "k", "three", 0);
    stores(j, 0, 2, WIRE_STORE_ADD, "k", NULL, 1);
    assert_int_equal(must(j, 0, WIRE_STORED)->status, PEN_MISMATCH);
    assert_string_equal(must(j, 0, WIRE_STORED)->text, "'k' holds 5 bytes, a counter has 8");
    drop_job(j);
}

static void too_many_waiting_gets_do_no_harm(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    for (uint64_t id = 1; id <= 5000; id++) stores(j, 1, id, WIRE_STORE_GET, "k", NULL, 0);
    stores(j, 0, 1, WIRE_STORE_SET, "k", "v", 0);
    assert_int_equal(count(j, WIRE_STORED), 4096 + 1);
    assert_int_equal(must(j, 1, WIRE_STORED)->id, 5000);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_get_waits_until_the_key_is_set),
        cmocka_unit_test(an_add_is_applied_once_however_often_it_is_sent),
        cmocka_unit_test(a_late_repeat_of_a_set_does_not_undo_a_newer_one),
        cmocka_unit_test(an_add_to_a_value_that_is_not_a_counter_is_refused),
        cmocka_unit_test(too_many_waiting_gets_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
