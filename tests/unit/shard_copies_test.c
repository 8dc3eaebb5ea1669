/* shard_copies_test.c - a shard on several servers: equal bits, no answer too early, and the same
 * result if any of them dies. */
#include "common/base/crc.h"
#include "server/shard/shard_test.h"
#include "tests/support/copies_rig.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { W0, B0, ICE, TENSORS };

static const wire_tensor tensors[TENSORS] = {
    [W0]  = {.name = "w0", .dtype = PEN_F32, .ndim = 2, .shape = {190, 300}, .init = ""},
    [B0]  = {.name = "b0", .dtype = PEN_F32, .ndim = 1, .shape = {10}, .group = 1, .init = ""},
    [ICE] = {.name  = "ice",
             .dtype = PEN_F32,
             .ndim  = 1,
             .shape = {5000},
             .flags = PEN_FROZEN,
             .init  = ""},
};

static wire_group groups[2];

static wire_model model_of(const char *optim, const char *sync)
{
    groups[0] = (wire_group){.name = "a", .optim = optim, .sync = sync};
    groups[1] = (wire_group){.name = "b", .optim = optim, .sync = sync};
    return (wire_model){.n_tensors = TENSORS, .tensor = tensors, .n_groups = 2, .group = groups};
}

static copies *start(const char *optim, const char *sync, uint32_t world_size, uint32_t n_backups)
{
    const wire_model model = model_of(optim, sync);
    copies *c =
        copies_create(&model, &(rig_options){.n_shards = 1, .world_size = world_size}, n_backups);
    rig_init(c->r);
    return c;
}

static uint32_t count_copies(const copies *c, shard_role role)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) n += c->at[i] != NULL && c->role[i] == role;
    return n;
}

/* ---- equal bits ------------------------------------------------------------------------------ */
/* A worker's calls under rules that apply each push by itself. */
static void push_and_want(rig *r, uint64_t seq, uint32_t flags)
{
    for (int32_t rank = 0; rank < (int32_t)r->world_size; rank++)
        rig_push_all(r, (int32_t)((uint32_t)(rank + (int32_t)seq) % r->world_size), seq, flags,
                     rig_noise);
    rig_flush(r);
    rig_forget_sent(r);
}

static void check_rule(const char *optim, const char *sync, bool is_decided)
{
    copies *c = start(optim, sync, 3, 2);
    rig_decision decision;
    for (uint64_t step = 0; step < 4; step++) {
        if (is_decided)
            rig_step(c->r, step, (int64_t)step, rig_noise, &decision);
        else
            push_and_want(c->r, step, step % 2 == 0 ? WIRE_WANT_VALUES : 0);
        assert_true(copies_are_equal(c, 0, 1));
        assert_true(copies_are_equal(c, 0, 2));
    }
    assert_true(shard_index(c->at[1], NULL) > 8);
    assert_int_equal(shard_log_bytes(c->at[0]), 0);
    assert_int_equal(c->r->reports, 0);
    copies_destroy(c);
}

static void test_copies_have_the_primarys_bits_after_every_step_of_every_rule(void **state)
{
    (void)state;
    for (size_t i = 0; optim_all[i] != NULL; i++) {
        char words[64];
        snprintf(words, sizeof words, "%s%s", optim_all[i]->name,
                 strcmp(optim_all[i]->name, "sum") == 0 ? "" : " lr=0.01");
        check_rule(words, "bsp", true);
        if (optim_all[i]->whole_tensor) continue;
        check_rule(words, "ssp s=3", false);
        check_rule(words, "async", false);
    }
}

static void test_copies_have_the_primarys_bits_when_chunks_close_by_themselves(void **state)
{
    (void)state;
    copies *c = start("adam", "bsp", 3, 1);
    for (uint64_t step = 0; step < 4; step++) {
        push_and_want(c->r, step, WIRE_WANT_VALUES);
        assert_true(copies_are_equal(c, 0, 1));
    }
    uint64_t version;
    (void)shard_values(c->at[1], 0, &version);
    assert_int_equal(version, 4);
    copies_destroy(c);
}

static void test_a_shard_without_copies_writes_no_log(void **state)
{
    (void)state;
    copies *c = start("adam", "bsp", 2, 0);
    rig_decision decision;
    for (uint64_t step = 0; step < 3; step++)
        rig_step(c->r, step, (int64_t)step, rig_noise, &decision);
    assert_int_equal(shard_index(c->at[0], NULL), 0);
    assert_int_equal(c->n_frames, 0);
    copies_destroy(c);
}

/* ---- the gate -------------------------------------------------------------------------------- */
static void test_gate_holds_back_what_a_backup_has_not_acknowledged(void **state)
{
    (void)state;
    copies *c = start("sgd lr=1", "bsp", 2, 1);
    rig *r    = c->r;
    rig_decision decision;
    rig_forget_sent(r);
    c->is_held = true;
    rig_push_all(r, 0, 0, 0, rig_noise);
    rig_push_all(r, 1, 0, 0, rig_noise);
    rig_flush(r);
    assert_null(rig_find(r, WIRE_PREPARED, 0, UINT32_MAX));
    assert_non_null(rig_find(r, WIRE_RECEIPT, 0, UINT32_MAX)); /* which is not a promise */
    assert_false(rig_decide(r, 0, 0, 0, &decision));
    c->is_held = false;
    copies_carry(c);
    assert_true(rig_decide(r, 0, 0, 0, &decision));

    c->is_held = true;
    rig_pull(r, 1, 0, &decision);
    rig_flush(r);
    assert_null(rig_find(r, WIRE_VALUES, 1, UINT32_MAX));
    c->is_held = false;
    copies_carry(c);
    assert_non_null(rig_find(r, WIRE_VALUES, 1, UINT32_MAX));
    copies_destroy(c);
}

/* Rank 0 asks for what is not there, again and again. */
static void test_gate_keeps_little_for_a_rank_that_asks_for_ever(void **state)
{
    (void)state;
    enum { QUESTIONS = 4000, CHUNKS = 4096 };
    copies *c = start("sgd lr=1", "async", 2, 1);
    uint32_t chunk[CHUNKS];
    uint64_t seq[CHUNKS] = {1};
    for (int i = 0; i < CHUNKS; i++) chunk[i] = 1 << 20;
    c->is_held = true;
    rig_push(c->r, 0, 0, 0, 0, rig_noise);
    rig_flush(c->r);
    rig_forget_sent(c->r);
    const size_t before = mallinfo2().uordblks;
    wire_data lie       = {.kind = WIRE_PULL, .n = CHUNKS, .chunk = chunk, .seq = seq};
    for (int i = 0; i < QUESTIONS; i++) rig_deliver(c->r, 0, 0, &lie, NULL);
    assert_in_range(mallinfo2().uordblks - before, 0, 80 << 20);
    wire_data other = {
        .kind = WIRE_PULL, .n = 1, .chunk = chunk}; /* of a rank that is kept apart */
    rig_deliver(c->r, 0, 1, &other, NULL);
    assert_int_equal(rig_count_sent(c->r, WIRE_REFUSED, 1), 0);
    c->is_held = false;
    copies_carry(c);
    assert_int_equal(rig_count_sent(c->r, WIRE_REFUSED, 1), 1);
    assert_in_range(rig_count_sent(c->r, WIRE_REFUSED, 0), 1, QUESTIONS - 1);
    copies_destroy(c);
}

static void test_gate_waits_for_every_backup_and_for_no_learner(void **state)
{
    (void)state;
    copies *c = start("sgd lr=1", "async", 1, 1);
    copies_add_learner(c, 2);
    copies_change(c, (copies_how){0});
    assert_int_equal(c->role[2], SHARD_LEARNER);
    shard_destroy(c->at[2]); /* it receives nothing from here on */
    c->at[2] = NULL;
    rig_forget_sent(c->r);
    rig_push(c->r, 0, 0, 0, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    assert_non_null(rig_find(c->r, WIRE_VALUES, 0, 0));

    shard_destroy(c->at[1]);
    c->at[1] = NULL;
    rig_forget_sent(c->r);
    rig_push(c->r, 0, 1, 0, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    assert_null(rig_find(c->r, WIRE_VALUES, 0, 0));
    shard_resend(c->at[0], 1000);
    shard_resend(c->at[0], 12000);
    assert_int_equal(c->suspected[1], 1);
    assert_int_equal(c->suspected[2], 0);
    copies_destroy(c);
}

/* ---- the primary dies ------------------------------------------------------------------------ */
static uint32_t reference(const char *optim, uint64_t steps, uint32_t *slots)
{
    const wire_model model = model_of(optim, "bsp");
    rig *r                 = rig_create(&model, &(rig_options){.n_shards = 1, .world_size = 2});
    rig_init(r);
    rig_decision decision;
    for (uint64_t step = 0; step < steps; step++)
        rig_step(r, step, (int64_t)step, rig_noise, &decision);
    const uint32_t crc = rig_params_crc(r);
    *slots             = rig_slots_crc(r);
    rig_destroy(r);
    return crc;
}

enum { DEATHS = 8 };

/* One step, up to the point at which the primary dies; true: rank 0 has a decision by then. */
static bool step_until(copies *c, uint64_t step, int death, rig_decision *decision)
{
    rig *r = c->r;
    rig_forget_sent(r);
    if (death == 0) return false;
    rig_push_all(r, 0, step, 0, rig_noise);
    if (death == 1) return false;
    c->is_held = death == 2 || death == 3;
    for (uint32_t k = 0; k < r->plan->n_chunks; k++)
        if (r->plan->chunk[k].trained && (death > 2 || k % 2 == 0))
            rig_push(r, 1, step, k, 0, rig_noise);
    rig_flush(r); /* 2: some sums exist here only; 3: prepared, not sent */
    if (death <= 3) return false;
    assert_true(rig_decide(r, 0, step, (int64_t)step, decision)); /* 4: prepared */
    if (death == 4) return true;
    c->is_held = death == 5;
    rig_pull(r, 0, step, decision); /* 5: committed, not sent */
    rig_flush(r);
    if (death <= 6) return true; /* 6: committed on both */
    rig_pull(r, 1, step, decision);
    rig_flush(r);
    return true;
}

static void finish_step(copies *c, uint64_t step)
{
    rig_decision decision;
    rig_forget_sent(c->r);
    for (int32_t rank = 0; rank < 2; rank++) rig_push_all(c->r, rank, step, 0, rig_noise);
    rig_flush(c->r);
    assert_true(rig_decide(c->r, 0, step, (int64_t)step, &decision));
    assert_true(rig_decide(c->r, 1, step, (int64_t)step, &decision));
    for (int32_t rank = 0; rank < 2; rank++) rig_pull(c->r, rank, step, &decision);
    rig_flush(c->r);
    assert_non_null(rig_find(c->r, WIRE_VALUES, 0, UINT32_MAX));
}

static void check_death(const char *optim, int death, uint32_t n_backups, bool at_once)
{
    enum { STEPS = 4, KILLED_AT = 2 };
    uint32_t slots;
    const uint32_t params = reference(optim, STEPS, &slots);
    copies *c             = start(optim, "bsp", 2, n_backups);
    rig_decision decision;
    for (uint64_t step = 0; step < STEPS; step++) {
        if (step != KILLED_AT) {
            rig_step(c->r, step, (int64_t)step, rig_noise, &decision);
            continue;
        }
        step_until(c, step, death, &decision);
        copies_kill(c, 0);
        copies_lose(c);
        c->is_held            = false;
        const int64_t settled = copies_change(c, (copies_how){.at_once = at_once});
        assert_int_equal(settled, death >= 6 ? KILLED_AT + 1 : KILLED_AT);
        finish_step(c, step);
    }
    assert_int_equal(c->r->reports, 0);
    assert_int_equal(rig_params_crc(c->r), params);
    assert_int_equal(rig_slots_crc(c->r), slots);
    if (n_backups == 2) assert_true(copies_are_equal(c, 1, 2));
    copies_destroy(c);
}

static void test_death_of_the_primary_at_any_moment_of_a_step_changes_no_bit(void **state)
{
    (void)state;
    for (int death = 0; death < DEATHS; death++) {
        check_death("adam lr=0.01", death, 1, false);
        check_death("sgd lr=0.1 momentum=0.9", death, 2, true);
        check_death("lamb", death, 1, false);
    }
}

static void test_death_of_a_backup_does_not_disturb_the_primary(void **state)
{
    (void)state;
    for (int death = 0; death < DEATHS; death++) {
        uint32_t slots;
        const uint32_t params = reference("adam", 3, &slots);
        copies *c             = start("adam", "bsp", 2, 1);
        rig_decision decision;
        rig_step(c->r, 0, 0, rig_noise, &decision);
        step_until(c, 1, death, &decision);
        copies_kill(c, 1);
        copies_lose(c);
        c->is_held = false;
        copies_change(c, (copies_how){0});
        finish_step(c, 1);
        rig_step(c->r, 2, 2, rig_noise, &decision);
        assert_int_equal(rig_params_crc(c->r), params);
        assert_int_equal(c->r->reports, 0);
        copies_destroy(c);
    }
}

/* Pushes that were applied and acknowledged, and others that were not, after the primary's death. */
static void test_death_of_the_primary_neither_loses_nor_doubles_single_pushes(void **state)
{
    (void)state;
    for (uint64_t lost = 0; lost < 2; lost++) {
        const wire_model model = model_of("adam", "async");
        rig *alone             = rig_create(&model, &(rig_options){.n_shards = 1, .world_size = 1});
        rig_init(alone);
        for (uint64_t seq = 0; seq < 6; seq++) rig_push_all(alone, 0, seq, 0, rig_noise);

        copies *c = start("adam", "async", 1, 1);
        for (uint64_t seq = 0; seq < 5; seq++) {
            c->is_held = lost > 0 && seq == 4;
            rig_push_all(c->r, 0, seq, WIRE_WANT_VALUES, rig_noise);
            rig_flush(c->r);
        }
        copies_kill(c, 0);
        copies_lose(c);
        c->is_held = false;
        copies_change(c, (copies_how){0});
        rig_push_all(c->r, 0, 4, WIRE_WANT_VALUES, rig_noise); /* again: it had no answer */
        rig_push_all(c->r, 0, 5, WIRE_WANT_VALUES, rig_noise);
        rig_flush(c->r);
        assert_int_equal(rig_params_crc(c->r), rig_params_crc(alone));
        assert_int_equal(rig_slots_crc(c->r), rig_slots_crc(alone));
        rig_destroy(alone);
        copies_destroy(c);
    }
}

static void test_primary_handover_during_a_step_loses_nothing(void **state)
{
    (void)state;
    for (int moment = 0; moment < DEATHS; moment++) {
        uint32_t slots;
        const uint32_t params = reference("adam", 3, &slots);
        copies *c             = start("adam", "bsp", 2, 1);
        rig_decision decision;
        rig_step(c->r, 0, 0, rig_noise, &decision);
        step_until(c, 1, moment, &decision);
        c->is_held = false;
        copies_carry(c);
        copies_change_roles(c, (copies_how){0}, 1);
        assert_ptr_equal(c->r->shard[0], c->at[1]);
        finish_step(c, 1);
        rig_step(c->r, 2, 2, rig_noise, &decision);
        assert_int_equal(rig_params_crc(c->r), params);
        assert_true(copies_are_equal(c, 0, 1));
        copies_destroy(c);
    }
}

/* ---- learners -------------------------------------------------------------------------------- */
static void check_learner(const char *optim, const char *sync, bool is_decided, int moment)
{
    copies *c = start(optim, sync, 2, 0);
    rig_decision decision;
    for (uint64_t step = 0; step < 9; step++) {
        if (!is_decided) {
            push_and_want(c->r, step, WIRE_WANT_VALUES);
        } else if (step == 3) {
            step_until(c, step, moment, &decision);
            copies_add_learner(c, 1);
            c->is_held = true; /* its fill is in flight while the step goes on */
            copies_change(c, (copies_how){0});
            for (int32_t rank = 0; rank < 2; rank++) rig_push_all(c->r, rank, step, 0, rig_noise);
            rig_flush(c->r);
            assert_true(rig_decide(c->r, 0, step, 3, &decision));
            rig_pull(c->r, 0, step, &decision);
            rig_flush(c->r);
            shard_resend(c->at[0], 100);
            assert_int_equal(c->caught_up[1], 0);
            c->is_held = false;
            copies_carry(c);
        } else {
            rig_step(c->r, step, (int64_t)step, rig_noise, &decision);
        }
        if (!is_decided && step == 3) {
            copies_add_learner(c, 1);
            copies_change(c, (copies_how){0});
        }
    }
    shard_resend(c->at[0], 500);
    assert_int_equal(c->caught_up[1], 1);
    assert_true(copies_are_equal(c, 0, 1));
    copies_change(c, (copies_how){0});
    assert_int_equal(c->role[1], SHARD_BACKUP);
    copies_kill(c, 0);
    copies_change(c, (copies_how){0});
    if (is_decided) {
        uint32_t slots;
        const uint32_t params = reference(optim, 10, &slots);
        rig_step(c->r, 9, 9, rig_noise, &decision);
        assert_int_equal(rig_params_crc(c->r), params);
        assert_int_equal(rig_slots_crc(c->r), slots);
    }
    assert_int_equal(c->r->reports, 0);
    copies_destroy(c);
}

static void test_learner_is_filled_while_training_goes_on(void **state)
{
    (void)state;
    for (int moment = 0; moment < DEATHS; moment++) {
        check_learner("adam", "bsp", true, moment);
        check_learner("lamb", "bsp", true, moment);
    }
    check_learner("adam", "ssp s=2", false, 0);
    check_learner("rmsprop", "async", false, 0);
}

static void test_learner_continues_a_half_received_fill_in_the_next_epoch(void **state)
{
    (void)state;
    copies *c = start("adam", "async", 2, 0);
    push_and_want(c->r, 0, WIRE_WANT_VALUES);
    copies_add_learner(c, 1);
    c->is_held = true;
    copies_change(c, (copies_how){0});
    rig_push_all(c->r, 0, 1, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    copies_lose(c);
    c->r->is_absent[1] = true; /* rank 1 dies: the log carries the notice to the learner in order */
    copies_change(c, (copies_how){.at_once = true});
    rig_push_all(c->r, 0, 2, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    copies_lose(c);
    c->r->is_absent[1] = false; /* and is back */
    copies_change(c, (copies_how){.at_once = true});
    c->is_held = false;
    rig_push_all(c->r, 0, 3, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    shard_resend(c->at[0], 300);
    shard_resend(c->at[0], 600);
    copies_carry(c);
    assert_true(copies_are_equal(c, 0, 1));
    copies_destroy(c);
}

static void test_backup_that_lags_is_a_learner_until_it_is_level_and_needs_no_new_fill(void **state)
{
    (void)state;
    copies *c  = start("adam", "async", 1, 1);
    c->is_held = true;
    rig_push_all(c->r, 0, 0, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    const uint64_t index = shard_index(c->at[1], NULL);
    copies_lose(c);
    c->is_held = false;
    copies_change(c, (copies_how){.at_once = true});
    assert_int_equal(c->role[1], SHARD_LEARNER);
    copies_carry(c);
    shard_resend(c->at[0], 300);
    shard_resend(c->at[0], 600);
    copies_carry(c);
    assert_true(shard_index(c->at[1], NULL) > index);
    assert_true(copies_are_equal(c, 0, 1));
    copies_change(c, (copies_how){0});
    assert_int_equal(c->role[1], SHARD_BACKUP);
    copies_destroy(c);
}

/* ---- a bad network --------------------------------------------------------------------------- */
/* Each chunk's entries in a frame of their own, so that they can be reordered. */
static void step_in_pieces(copies *c, uint64_t step)
{
    rig *r = c->r;
    rig_decision decision;
    rig_forget_sent(r);
    c->is_held = true;
    for (int32_t rank = 0; rank < 2; rank++)
        for (uint32_t k = 0; k < r->plan->n_chunks; k++) {
            if (r->plan->chunk[k].trained) rig_push(r, rank, step, k, 0, rig_noise);
            rig_flush(r);
        }
    assert_true(c->n_frames > 10);
    c->is_held = false;
    copies_carry(c);
    assert_true(rig_decide(r, 0, step, (int64_t)step, &decision));
    for (int32_t rank = 0; rank < 2; rank++) rig_pull(r, rank, step, &decision);
    rig_flush(r);
}

static void test_log_entries_lost_repeated_or_reordered_are_applied_once_and_in_order(void **state)
{
    (void)state;
    uint32_t slots;
    const uint32_t params = reference("adam", 6, &slots);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        copies *c = start("adam", "bsp", 2, 2);
        c->seed   = seed * 0x9e3779b97f4a7c15u;
        c->lost = c->repeated = c->mixed = 30;
        for (uint64_t step = 0; step < 6; step++) step_in_pieces(c, step);
        assert_int_equal(c->r->reports, 0);
        assert_int_equal(rig_params_crc(c->r), params);
        assert_true(copies_are_equal(c, 0, 1));
        assert_true(copies_are_equal(c, 0, 2));
        copies_destroy(c);
    }
}

static void test_log_of_another_epoch_or_server_changes_nothing(void **state)
{
    (void)state;
    copies *c  = start("sgd lr=1", "async", 1, 1);
    c->is_held = true;
    rig_push(c->r, 0, 0, 0, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    assert_int_equal(c->n_frames, 1);
    wire_data d;
    pen_error why;
    assert_int_equal(
        wire_data_decode(c->frame[0].head.data, c->frame[0].head.size, c->arena, &d, &why), PEN_OK);
    const uint64_t index = shard_index(c->at[1], NULL);
    wire_data changed[]  = {d, d, d, d};
    changed[0].epoch--;
    changed[1].term++;
    changed[2].from++;
    changed[3].to++;
    for (size_t i = 0; i < 4; i++) {
        shard_receive(c->at[1], 50, &changed[i], c->frame[0].payload);
        assert_int_equal(shard_index(c->at[1], NULL), index);
    }
    shard_receive(c->at[1], 50, &d, c->frame[0].payload);
    assert_int_equal(shard_index(c->at[1], NULL), index + d.n_entries);
    copies_destroy(c);
}

static void test_copy_with_other_bits_is_reported_by_name(void **state)
{
    (void)state;
    copies *c = start("sgd lr=1", "async", 1, 1);
    ((float *)(uintptr_t)shard_values(c->at[1], 0, NULL))[3] += 1;
    rig_push(c->r, 0, 0, 0, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    assert_int_equal(c->r->reports, 1);
    assert_int_equal(c->r->report.status, PEN_MISMATCH);
    assert_string_equal(
        c->r->report.text,
        "shard 0 differs between server 0 and its copy on server 1: after entry 19 ('w0', "
        "step 0) their values differ; a machine computes wrong results, or the versions differ");
    copies_destroy(c);
}

/* A backup lies at the nth entry of the log that fills a learner.  False: there are fewer.  Partitions of "lamb" have
 * several chunks, so there are more chunks than partitions. */
static bool is_lie_reported(uint64_t nth)
{
    copies *c = start("lamb lr=0.01", "bsp", 1, 1);
    copies_add_learner(c, 2);
    c->is_held = true;
    copies_change(c, (copies_how){.at_once = true});
    shard *backup = c->at[1]; /* it acknowledges nothing while the learner is filled */
    c->at[1]      = NULL;
    c->is_held    = false;
    copies_carry(c);
    c->at[1]             = backup;
    const uint64_t index = shard_index(backup, NULL) + nth;
    const bool is_there  = index <= shard_index(c->at[0], NULL);
    const wire_data lie  = {.kind   = WIRE_LOGGED,
                            .term   = RIG_TERM,
                            .epoch  = c->r->epoch,
                            .from   = RIG_SERVER + 1,
                            .to     = RIG_SERVER,
                            .rank   = 1,
                            .index  = index,
                            .digest = UINT64_MAX,
                            .text   = ""};
    shard_receive(c->at[0], 51, &lie, NULL);
    assert_int_equal(c->r->reports, is_there);
    if (is_there) {
        assert_int_equal(c->r->report.status, PEN_MISMATCH);
        assert_non_null(strstr(c->r->report.text, "its copy on server 1: after entry"));
        assert_non_null(c->r->report.tensor);
    }
    copies_destroy(c);
    return is_there;
}

static void test_copy_that_lies_at_any_entry_of_a_fill_is_reported(void **state)
{
    (void)state;
    uint64_t n = 1;
    while (is_lie_reported(n)) n++;
    assert_true(n > 10);
}

/* Sums of nodes are wider than what a rank pushes alone, and so a copy would not know their size. */
static void test_sum_of_a_node_is_refused_where_each_push_is_applied(void **state)
{
    (void)state;
    static const wire_pair by_node = {"deterministic", "node"};
    wire_model model               = model_of("sgd lr=1", "async");
    groups[0].wire                 = "bf16";
    model.n_settings               = 1;
    model.setting                  = &by_node;
    copies *c = copies_create(&model, &(rig_options){.n_shards = 1, .world_size = 2}, 1);
    rig_init(c->r);
    buf *wide          = buf_new(c->r->plan->chunk[0].count * sizeof(float));
    const uint32_t crc = crc32c(0, memset(wide->data, 0, wide->size), wide->size), chunk = 0;
    c->r->inputs.is_node_sum = true;
    wire_data lie            = {.kind       = WIRE_PUSH,
                                .n          = 1,
                                .chunk      = &chunk,
                                .crc        = &crc,
                                .has_inputs = true,
                                .inputs     = c->r->inputs};
    rig_forget_sent(c->r);
    rig_deliver(c->r, 0, 1, &lie, wide);
    rig_flush(c->r);
    const rig_message *m = rig_find(c->r, WIRE_REFUSED, 1, 0);
    assert_non_null(m);
    assert_string_equal(m->d.text, "the sum of a node cannot be applied by itself");
    assert_int_equal(c->r->reports, 0);
    assert_true(copies_are_equal(c, 0, 1));
    buf_release(wide);
    copies_destroy(c);
}

/* ---- epochs ---------------------------------------------------------------------------------- */
static void test_sealed_shard_does_nothing_more(void **state)
{
    (void)state;
    copies *c = start("sgd lr=1", "async", 1, 1);
    wire_sealed_report report;
    const uint32_t crc = rig_params_crc(c->r);
    rig_forget_sent(c->r);
    shard_seal(c->at[1], RIG_TERM, c->r->epoch + 1, &report);
    const uint64_t index = report.index;
    rig_push(c->r, 0, 0, 0, WIRE_WANT_VALUES, rig_noise);
    rig_flush(c->r);
    assert_int_equal(shard_index(c->at[1], NULL), index);
    assert_null(rig_find(c->r, WIRE_VALUES, 0, 0));

    shard_seal(c->at[0], RIG_TERM, c->r->epoch + 1, &report);
    rig_push(c->r, 0, 1, 0, WIRE_WANT_VALUES, rig_noise);
    const rig_message *m = rig_find(c->r, WIRE_REFUSED, 0, UINT32_MAX);
    assert_non_null(m);
    assert_int_equal(m->d.status, PEN_AGAIN);
    assert_string_equal(m->d.text, "an epoch change is in progress");
    assert_int_equal(shard_index(c->at[0], NULL), index + 1);
    assert_int_not_equal(rig_params_crc(c->r), crc); /* of push 0, acknowledged to no rank */
    copies_destroy(c);
}

static void test_a_membership_change_drops_staged_sums_on_every_copy(void **state)
{
    (void)state;
    for (int moment = 1; moment < 5; moment++) { /* a step that was committed nowhere */
        copies *c = start("sgd lr=1", "bsp", 2, 1);
        rig_decision decision;
        rig_step(c->r, 0, 0, rig_noise, &decision);
        step_until(c, 1, moment, &decision);
        c->is_held         = false;
        c->r->is_absent[1] = true;
        copies_change(c, (copies_how){.members_changed = true});
        copies_kill(c, 0);
        copies_change(c, (copies_how){0});
        rig_step(c->r, 1, 1, rig_noise, &decision); /* rank 0 alone: no bit of rank 1 is in it */
        const float expected = rig_param(c->r, W0, 7);
        assert_true(decision.vote[0].weight_sum == 1);
        copies_destroy(c);

        rig *r = rig_create(
            &(wire_model){.n_tensors = TENSORS, .tensor = tensors, .n_groups = 2, .group = groups},
            &(rig_options){.n_shards = 1, .world_size = 2});
        rig_init(r);
        rig_step(r, 0, 0, rig_noise, &decision);
        const wire_member left = {.rank = 0, .incarnation = rig_incarnation(0)};
        shard_epoch(r->shard[0], RIG_TERM, ++r->epoch, &left, 1);
        r->is_absent[1] = true;
        rig_step(r, 1, 1, rig_noise, &decision);
        assert_float_equal(rig_param(r, W0, 7), expected, 0);
        rig_destroy(r);
    }
}

static void pull_initial(rig *r, int32_t rank)
{
    uint32_t chunk[64];
    for (uint32_t k = 0; k < r->plan->n_chunks; k++) chunk[k] = k;
    wire_data d = {
        .kind = WIRE_PULL, .flags = WIRE_INITIAL, .n = r->plan->n_chunks, .chunk = chunk};
    rig_deliver(r, 0, rank, &d, NULL);
    rig_flush(r);
}

static uint64_t next_push(rig *r, int32_t rank, uint32_t chunk, uint64_t *version)
{
    const rig_message *m = rig_find(r, WIRE_VALUES, rank, chunk);
    assert_non_null(m);
    assert_true(m->d.flags & WIRE_INITIAL);
    for (uint32_t i = 0; i < m->d.n; i++) {
        if (m->d.chunk[i] != chunk) continue;
        *version = m->d.version[i];
        return m->d.seq != NULL ? m->d.seq[i] : m->d.step;
    }
    return UINT64_MAX;
}

static void test_joiner_learns_where_its_pushes_begin(void **state)
{
    (void)state;
    uint64_t version;
    copies *c = start("sgd lr=1", "bsp", 3, 1);
    rig_decision decision;
    c->r->is_absent[2] = true;
    copies_change(c, (copies_how){0});
    for (uint64_t step = 0; step < 3; step++)
        rig_step(c->r, step, (int64_t)step, rig_noise, &decision);
    c->r->is_absent[2] = false;
    assert_int_equal(copies_change(c, (copies_how){.members_changed = true}), 3);
    rig_forget_sent(c->r);
    pull_initial(c->r, 2);
    assert_int_equal(next_push(c->r, 2, 0, &version), 3);
    assert_int_equal(version, 3);
    rig_step(c->r, 3, 3, rig_noise, &decision);
    assert_true(decision.vote[0].weight_sum == 3);
    copies_destroy(c);

    c                  = start("sgd lr=1", "ssp s=9", 3, 1);
    c->r->is_absent[2] = true;
    copies_change(c, (copies_how){0});
    for (uint64_t seq = 0; seq < 5; seq++) rig_push(c->r, 0, seq, 0, 0, rig_noise);
    for (uint64_t seq = 0; seq < 2; seq++) rig_push(c->r, 1, seq, 0, 0, rig_noise);
    c->r->is_absent[2] = false;
    copies_change(c, (copies_how){.members_changed = true});
    pull_initial(c->r, 2);
    assert_int_equal(next_push(c->r, 2, 0, &version), 2); /* beside the slowest */
    assert_int_equal(version, 7);
    assert_true(copies_are_equal(c, 0, 1));
    copies_destroy(c);
}

static void test_record_that_contradicts_the_shard_is_reported(void **state)
{
    (void)state;
    copies *c                   = start("sgd lr=1", "bsp", 1, 0);
    const wire_member worker    = {.rank = 0, .incarnation = rig_incarnation(0)};
    const shard_view impossible = {.term      = RIG_TERM,
                                   .epoch     = c->r->epoch + 1,
                                   .worker    = &worker,
                                   .n_workers = 1,
                                   .step      = 1,
                                   .role      = SHARD_PRIMARY,
                                   .primary   = RIG_SERVER};
    shard_install(c->at[0], &impossible);
    assert_int_equal(c->r->reports, 1);
    assert_int_equal(c->r->report.status, PEN_INTERNAL);
    assert_non_null(strstr(c->r->report.text, "it was never prepared for the step before"));
    copies_destroy(c);
}

static void test_copies_sealed_when_equal_stay_backups_under_load(void **state)
{
    (void)state;
    copies *c = start("sgd lr=1", "async", 2, 2);
    for (uint64_t seq = 0; seq < 20; seq++) {
        c->is_held = true; /* entries are in flight when the change begins */
        rig_push_all(c->r, 0, seq, WIRE_WANT_VALUES, rig_noise);
        rig_flush(c->r);
        c->is_held = false;
        copies_change(c, (copies_how){0});
        assert_int_equal(count_copies(c, SHARD_BACKUP), 2);
    }
    assert_true(copies_are_equal(c, 0, 1));
    copies_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_have_the_primarys_bits_after_every_step_of_every_rule),
        cmocka_unit_test(test_copies_have_the_primarys_bits_when_chunks_close_by_themselves),
        cmocka_unit_test(test_a_shard_without_copies_writes_no_log),
        cmocka_unit_test(test_gate_holds_back_what_a_backup_has_not_acknowledged),
        cmocka_unit_test(test_gate_keeps_little_for_a_rank_that_asks_for_ever),
        cmocka_unit_test(test_gate_waits_for_every_backup_and_for_no_learner),
        cmocka_unit_test(test_death_of_the_primary_at_any_moment_of_a_step_changes_no_bit),
        cmocka_unit_test(test_death_of_a_backup_does_not_disturb_the_primary),
        cmocka_unit_test(test_death_of_the_primary_neither_loses_nor_doubles_single_pushes),
        cmocka_unit_test(test_primary_handover_during_a_step_loses_nothing),
        cmocka_unit_test(test_learner_is_filled_while_training_goes_on),
        cmocka_unit_test(test_learner_continues_a_half_received_fill_in_the_next_epoch),
        cmocka_unit_test(
            test_backup_that_lags_is_a_learner_until_it_is_level_and_needs_no_new_fill),
        cmocka_unit_test(test_log_entries_lost_repeated_or_reordered_are_applied_once_and_in_order),
        cmocka_unit_test(test_log_of_another_epoch_or_server_changes_nothing),
        cmocka_unit_test(test_copy_with_other_bits_is_reported_by_name),
        cmocka_unit_test(test_copy_that_lies_at_any_entry_of_a_fill_is_reported),
        cmocka_unit_test(test_sum_of_a_node_is_refused_where_each_push_is_applied),
        cmocka_unit_test(test_sealed_shard_does_nothing_more),
        cmocka_unit_test(test_a_membership_change_drops_staged_sums_on_every_copy),
        cmocka_unit_test(test_joiner_learns_where_its_pushes_begin),
        cmocka_unit_test(test_record_that_contradicts_the_shard_is_reported),
        cmocka_unit_test(test_copies_sealed_when_equal_stay_backups_under_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
