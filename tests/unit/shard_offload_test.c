/* shard_offload_test.c - shards whose state is in a file give the same bits as shards in memory. */
#include "tests/support/copies_rig.h"

#include "common/base/crc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

/* Large enough that chunks have more than one block: 700,000 elements give chunks of 12,288. */
enum { W, B, H, ICE, TENSORS, STEPS = 3 };

/* A thread sanitizer makes arithmetic some fifty times slower, and this test has one thread: it gets two rules only. */
#ifdef __SANITIZE_THREAD__
enum { EVERY_RULE = 5 };
#else
enum { EVERY_RULE = 1 };
#endif

static const wire_tensor tensors[TENSORS] = {
    [W]   = {.name = "w", .dtype = PEN_F32, .ndim = 2, .shape = {600, 1000}, .init = ""},
    [B]   = {.name  = "b",
             .dtype = PEN_F32,
             .ndim  = 1,
             .shape = {300},
             .flags = PEN_NO_DECAY,
             .init  = ""},
    [H]   = {.name = "h", .dtype = PEN_BF16, .ndim = 1, .shape = {60000}, .init = ""},
    [ICE] = {.name  = "ice",
             .dtype = PEN_F32,
             .ndim  = 1,
             .shape = {40000},
             .flags = PEN_FROZEN,
             .init  = ""},
};

static wire_group group;
static char folder[64];

typedef enum { MEMORY, SLOTS, EVERYTHING, VALUES } place;

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "./tier-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static shard_offload offload_to(place p, const char *member)
{
    if (p == MEMORY) return (shard_offload){0};
    return (shard_offload){.ops        = offload_find(member),
                           .dir        = folder,
                           .has_values = p != SLOTS,
                           .has_slots  = p != VALUES,
                           .sub_group  = 30000};
}

static wire_model model_of(const char *optim, const char *sync)
{
    group = (wire_group){.name = "all", .optim = optim, .sync = sync};
    return (wire_model){.n_tensors = TENSORS, .tensor = tensors, .n_groups = 1, .group = &group};
}

static rig *start(const char *optim, const char *sync, uint32_t world_size, place p,
                  const char *member)
{
    const wire_model model = model_of(optim, sync);
    const rig_options o    = {
           .n_shards = 2, .world_size = world_size, .offload = offload_to(p, member)};
    rig *r = rig_create(&model, &o);
    rig_init(r);
    return r;
}

static uint64_t stat_of(const rig *r, stat_id id)
{
    return stat_get(&r->stats, id);
}

typedef struct {
    uint32_t params, slots, told; /* told: messages to a rank */
} fingerprint;

static uint32_t told_crc(const rig *r)
{
    uint32_t crc = 0;
    for (size_t i = 0; i < r->n_sent; i++)
        if (r->sent[i].d.kind == WIRE_VALUES && r->sent[i].payload != NULL)
            crc = crc32c(crc, r->sent[i].payload->data, r->sent[i].payload->size);
    return crc;
}

static fingerprint take(rig *r)
{
    return (fingerprint){rig_params_crc(r), rig_slots_crc(r), told_crc(r)};
}

static void expect_same(const fingerprint *a, const fingerprint *b, const char *what)
{
    if (a->params != b->params || a->slots != b->slots || a->told != b->told)
        fail_msg("%s: parameters %08x %08x, slots %08x %08x, told %08x %08x", what, a->params,
                 b->params, a->slots, b->slots, a->told, b->told);
}

/* ---- steps ----------------------------------------------------------------------------------- */
static fingerprint train(const char *optim, place p, const char *member)
{
    rig *r = start(optim, "bsp", 2, p, member);
    rig_decision decision;
    for (uint64_t step = 0; step < STEPS; step++) {
        rig_forget_sent(r);
        rig_step(r, step, (int64_t)step, rig_noise, &decision);
    }
    const fingerprint all = take(r);
    assert_int_equal(r->reports, 0);
    rig_destroy(r);
    return all;
}

static void
test_shard_in_a_file_trains_bit_for_bit_as_in_memory_with_every_kind_of_rule(void **state)
{
    static const char *const rules[] = {"adamw lr=1e-2 weight_decay=0.1",
                                        "adagrad lr=1e-2 initial_accumulator=0.1",
                                        "rmsprop lr=1e-3 momentum=0.9 centered=yes",
                                        "lamb lr=1e-2",
                                        "sum",
                                        "sgd lr=0.1 momentum=0.9"};
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i += EVERY_RULE) {
        const fingerprint memory = train(rules[i], MEMORY, "file");
        for (place p = SLOTS; p <= VALUES; p++) {
            const fingerprint file  = train(rules[i], p, "file"),
                              other = train(rules[i], p, "memory");
            expect_same(&memory, &file, rules[i]);
            expect_same(&memory, &other, rules[i]);
        }
    }
}

static fingerprint train_freely(const char *sync, place p)
{
    rig *r = start("adamw lr=1e-2", sync, 2, p, "file");
    for (uint64_t step = 0; step < STEPS; step++)
        for (int32_t rank = 0; rank < 2; rank++) {
            rig_push_all(r, rank, step, WIRE_WANT_VALUES, rig_noise);
            rig_flush(r);
        }
    const fingerprint all = take(r);
    rig_destroy(r);
    return all;
}

static void test_shard_in_a_file_updates_by_single_pushes_as_in_memory(void **state)
{
    (void)state;
    const char *const syncs[] = {"async", "ssp s=1"};
    for (int i = 0; i < 2; i++) {
        const fingerprint memory = train_freely(syncs[i], MEMORY);
        for (place p = SLOTS; p <= VALUES; p++) {
            const fingerprint file = train_freely(syncs[i], p);
            expect_same(&memory, &file, syncs[i]);
        }
    }
}

/* ---- what is in memory ----------------------------------------------------------------------- */
static void test_shard_in_a_file_holds_only_small_chunks_in_memory_and_counts_the_rest(void **state)
{
    (void)state;
    rig *r           = start("adamw lr=1e-2", "bsp", 1, EVERYTHING, "file");
    uint64_t trained = 0, all = 0;
    for (uint32_t c = 0; c < r->plan->n_chunks; c++) {
        const bool is_trained = !(tensors[r->plan->chunk[c].tensor].flags & PEN_FROZEN);
        all += r->plan->chunk[c].count * sizeof(float);
        if (is_trained) trained += 2 * r->plan->chunk[c].count * sizeof(float);
    }
    const uint64_t here  = stat_of(r, STAT_PARAM_BYTES) + stat_of(r, STAT_SLOT_BYTES);
    const uint64_t there = stat_of(r, STAT_TIER_BYTES);
    print_message("%llu bytes in memory, %llu in files\n", (unsigned long long)here,
                  (unsigned long long)there);
    assert_true(here + there >= all + trained);
    assert_true(here * 20 < all + trained);
    rig_decision decision;
    rig_step(r, 0, 0, rig_noise, &decision);
    rig_step(r, 1, 1, rig_noise, &decision);
    assert_true(stat_of(r, STAT_TIER_READ_BYTES) >= trained - trained / 10);
    rig_destroy(r);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static uint32_t cut_crc(const rig *r)
{
    uint32_t crc = 0;
    for (uint32_t s = 0; s < r->n_shards; s++)
        for (uint32_t i = 0; i < r->capture[s]->n; i++)
            for (uint32_t a = 0; a <= r->capture[s]->chunk[i].n_slots; a++) {
                buf *numbers = NULL;
                assert_int_equal(shard_capture_read(&r->capture[s]->chunk[i], a, &numbers, NULL),
                                 PEN_OK);
                crc = crc32c(crc, numbers->data, numbers->size);
                buf_release(numbers);
            }
    return crc;
}

static uint32_t snapshot_amid(place p, bool reads_late)
{
    rig *r = start("adamw lr=1e-2", "bsp", 2, p, "file");
    rig_decision decision;
    rig_step(r, 0, 0, rig_noise, &decision);
    r->inputs.snapshot = true;
    rig_step(r, 1, 1, rig_noise, &decision);
    r->inputs.snapshot = false;
    assert_int_equal(r->cuts, 2);
    uint32_t crc = reads_late ? 0 : cut_crc(r);
    for (uint64_t step = 2; step < 5; step++)
        rig_step(r, step, (int64_t)step, rig_noise, &decision);
    if (reads_late) crc = cut_crc(r);
    rig_destroy(r);
    return crc;
}

static void test_shard_in_a_file_keeps_a_snapshot_as_it_was_while_training_goes_on(void **state)
{
    (void)state;
    const uint32_t at_once = snapshot_amid(MEMORY, false);
    for (place p = SLOTS; p <= VALUES; p++) assert_int_equal(snapshot_amid(p, true), at_once);
}

/* ---- copies ---------------------------------------------------------------------------------- */
static void train_with_copies(place primary, place backup)
{
    const wire_model model = model_of("adamw lr=1e-2", "bsp");
    const rig_options o    = {.n_shards          = 1,
                              .world_size        = 2,
                              .offload           = offload_to(primary, "file"),
                              .offload_of_copies = offload_to(backup, "memory")};
    copies *c              = copies_create(&model, &o, 1);
    rig_decision decision;
    rig_init(c->r);
    copies_carry(c);
    for (uint64_t step = 0; step < 2; step++)
        rig_step(c->r, step, (int64_t)step, rig_noise, &decision);
    copies_carry(c);
    assert_true(copies_are_equal(c, 0, 1));
    copies_add_learner(c, 2); /* filled while training goes on */
    copies_change(c, (copies_how){0});
    for (uint64_t step = 2; step < 5; step++)
        rig_step(c->r, step, (int64_t)step, rig_noise, &decision);
    copies_carry(c);
    shard_resend(c->at[0], 500);
    assert_int_equal(c->caught_up[2], 1);
    assert_true(copies_are_equal(c, 0, 1));
    assert_true(copies_are_equal(c, 0, 2));
    copies_change(c, (copies_how){0});
    copies_kill(c, 0);
    copies_change(c, (copies_how){0}); /* a copy is the primary now and continues */
    rig_step(c->r, 5, 5, rig_noise, &decision);
    copies_carry(c);
    assert_true(copies_are_equal(c, 1, 2));
    assert_int_equal(c->r->reports, 0);
    copies_destroy(c);
}

static void test_shard_in_a_file_has_copies_in_memory_and_vice_versa(void **state)
{
    (void)state;
    train_with_copies(EVERYTHING, MEMORY);
    train_with_copies(MEMORY, EVERYTHING);
    train_with_copies(SLOTS, EVERYTHING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_shard_in_a_file_trains_bit_for_bit_as_in_memory_with_every_kind_of_rule),
        cmocka_unit_test(test_shard_in_a_file_updates_by_single_pushes_as_in_memory),
        cmocka_unit_test(
            test_shard_in_a_file_holds_only_small_chunks_in_memory_and_counts_the_rest),
        cmocka_unit_test(test_shard_in_a_file_keeps_a_snapshot_as_it_was_while_training_goes_on),
        cmocka_unit_test(test_shard_in_a_file_has_copies_in_memory_and_vice_versa),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
