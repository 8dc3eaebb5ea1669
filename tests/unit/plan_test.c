/* plan_test.c - partitions end on chunk borders, cover everything once, balance, and do not depend on the servers. */
#include "proto/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pen_error why;

#define MODEL(tensors, groups)                                                                     \
    ((wire_model){.n_tensors = sizeof(tensors) / sizeof *(tensors),                                \
                  .tensor    = (tensors),                                                          \
                  .n_groups  = sizeof(groups) / sizeof *(groups),                                  \
                  .group     = (groups)})

static const wire_group sgd[] = {
    {.name = "default", .optim = "sgd lr=0.1", .sync = "bsp", .wire = "raw"}};

static const wire_tensor mlp[] = {
    {.name = "fc1.weight", .dtype = PEN_F32, .ndim = 2, .shape = {256, 784}},
    {.name = "fc1.bias", .dtype = PEN_F32, .ndim = 1, .shape = {256}},
    {.name = "fc2.weight", .dtype = PEN_F32, .ndim = 2, .shape = {128, 256}},
    {.name = "fc2.bias", .dtype = PEN_F32, .ndim = 1, .shape = {128}},
    {.name = "fc3.weight", .dtype = PEN_F32, .ndim = 2, .shape = {10, 128}},
    {.name = "fc3.bias", .dtype = PEN_F32, .ndim = 1, .shape = {10}},
};

static plan *capture(const wire_model *model)
{
    plan *p           = NULL;
    pen_status status = plan_create(model, &p, &why);
    if (status != PEN_OK) fail_msg("%s", why.text);
    return p;
}

static void check_refused(const wire_model *model, const char *sentence)
{
    plan *p = NULL;
    assert_int_equal(plan_create(model, &p, &why), PEN_INVALID_ARGUMENT);
    assert_null(p);
    assert_string_equal(why.text, sentence);
}

/* ---- dtypes and counts ----------------------------------------------------------------------- */
static void test_plan_knows_the_size_and_name_of_every_dtype(void **state)
{
    (void)state;
    static const size_t bytes[] = {0, 4, 2, 2, 8, 1, 1, 4, 4, 8, 8, 1, 1};
    for (int t = PEN_F32; t <= PEN_F8E5M2; t++) {
        assert_int_equal(plan_dtype_bytes((pen_dtype)t), bytes[t]);
        assert_string_not_equal(plan_dtype_name((pen_dtype)t), "?");
    }
    assert_string_equal(plan_dtype_name(PEN_BF16), "bf16");
    assert_int_equal(plan_dtype_bytes((pen_dtype)13), 0);
    assert_int_equal(plan_dtype_bytes((pen_dtype)-1), 0);
    assert_string_equal(plan_dtype_name((pen_dtype)13), "?");
}

static void test_plan_counts_elements_and_sees_overflow(void **state)
{
    (void)state;
    wire_tensor t = {.ndim = 0};
    assert_int_equal(plan_tensor_elements(&t), 1);
    t = (wire_tensor){.ndim = 2, .shape = {3, 5}};
    assert_int_equal(plan_tensor_elements(&t), 15);
    t.shape[1] = 0;
    assert_int_equal(plan_tensor_elements(&t), 0);
    t = (wire_tensor){.ndim = 8};
    for (int i = 0; i < 8; i++) t.shape[i] = 256; /* 2^64 */
    assert_int_equal(plan_tensor_elements(&t), 0);
    t = (wire_tensor){.ndim = 2, .shape = {INT64_MAX, INT64_MAX}};
    assert_int_equal(plan_tensor_elements(&t), 0);
    t.ndim = 9;
    assert_int_equal(plan_tensor_elements(&t), 0);
}

/* ---- partitions ------------------------------------------------------------------------------ */
static bool is_decided(const wire_model *model, const wire_tensor *tensor)
{
    if (tensor->flags & PEN_FROZEN) return false;
    return model->n_groups == 0 || plan_group_averages(&model->group[tensor->group]);
}

static void check_chunks_of(const plan *p, uint32_t t, const wire_model *model)
{
    const wire_tensor *tensor = &model->tensor[t];
    uint64_t next             = 0;
    for (uint32_t c = p->first_chunk[t]; c < p->first_chunk[t + 1]; c++) {
        const plan_chunk *chunk = &p->chunk[c];
        assert_int_equal(chunk->tensor, t);
        assert_int_equal(chunk->start, next);
        assert_int_equal(chunk->start % 4096, 0);
        assert_in_range(chunk->count, 1, p->chunk_elements);
        assert_int_equal(chunk->trained, !(tensor->flags & PEN_FROZEN));
        assert_int_equal(chunk->blocks,
                         is_decided(model, tensor) ? (chunk->count + 4095) / 4096 : 0);
        next += chunk->count;
    }
    assert_int_equal(next, plan_tensor_elements(tensor));
}

static void check_partition(const plan *p, uint32_t index, const wire_model *model, uint32_t *seen)
{
    const plan_partition *part = &p->partition[index];
    uint64_t elements = 0, bytes = 0;
    uint32_t blocks = 0, trained = 0, decided = 0;
    assert_true(part->n_chunks > 0);
    for (uint32_t i = 0; i < part->n_chunks; i++) {
        const plan_chunk *chunk = &p->chunk[part->chunk[i]];
        assert_true(i == 0 || part->chunk[i] > part->chunk[i - 1]);
        assert_int_equal(chunk->partition, index);
        assert_int_equal(chunk->index_in_partition, i);
        assert_int_equal(chunk->first_block, blocks);
        seen[part->chunk[i]]++;
        elements += chunk->count;
        bytes += chunk->count * plan_dtype_bytes(model->tensor[chunk->tensor].dtype);
        blocks += chunk->blocks;
        trained += !(model->tensor[chunk->tensor].flags & PEN_FROZEN);
        decided += is_decided(model, &model->tensor[chunk->tensor]);
    }
    assert_int_equal(part->elements, elements);
    assert_int_equal(part->bytes, bytes);
    assert_int_equal(part->blocks, blocks);
    assert_int_equal(part->n_trained, trained);
    assert_int_equal(part->n_decided, decided);
}

/* Every promise of plan.h that holds for any model. */
static void check_plan(const plan *p, const wire_model *model)
{
    assert_int_equal(p->n_tensors, model->n_tensors);
    assert_int_equal(p->first_chunk[0], 0);
    assert_int_equal(p->first_chunk[p->n_tensors], p->n_chunks);
    assert_int_equal(p->chunk_elements % 4096, 0);
    assert_in_range(p->chunk_elements, 4096, 1 << 20);
    for (uint32_t t = 0; t < p->n_tensors; t++) check_chunks_of(p, t, model);

    assert_in_range(p->n_partitions, 1, PLAN_PARTITIONS_MAX);
    uint32_t *seen = calloc(p->n_chunks, sizeof *seen);
    for (uint32_t i = 0; i < p->n_partitions; i++) check_partition(p, i, model, seen);
    for (uint32_t c = 0; c < p->n_chunks; c++) assert_int_equal(seen[c], 1);
    free(seen);
}

static uint64_t draw(uint64_t *seed) /* splitmix64 */
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z          = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z          = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint32_t draw_model(uint64_t seed, wire_tensor *tensors, uint32_t max)
{
    static const pen_dtype dtypes[] = {PEN_F32, PEN_F16, PEN_BF16, PEN_F64};
    uint32_t n                      = 1 + (uint32_t)(draw(&seed) % max);
    for (uint32_t t = 0; t < n; t++) {
        tensors[t] = (wire_tensor){.name  = "t",
                                   .dtype = dtypes[draw(&seed) % 4],
                                   .ndim  = (int32_t)(draw(&seed) % 4),
                                   .group = (uint32_t)(draw(&seed) % 2),
                                   .flags = draw(&seed) % 5 == 0 ? PEN_FROZEN : 0};
        for (int32_t d = 0; d < tensors[t].ndim; d++)
            tensors[t].shape[d] = 1 + (int64_t)(draw(&seed) % 300);
    }
    return n;
}

static void test_plan_covers_random_models_once_on_block_borders(void **state)
{
    (void)state;
    static const wire_group groups[] = {{.name = "a", .optim = "adamw lr=1e-3"},
                                        {.name = "b", .optim = "lamb lr=1e-3"}};
    wire_tensor tensors[40];
    for (uint64_t seed = 1; seed <= 200; seed++) {
        wire_model model = MODEL(tensors, groups);
        model.n_tensors  = draw_model(seed, tensors, 40);
        plan *p          = capture(&model);
        check_plan(p, &model);
        plan_destroy(p);
    }
}

static void test_plan_partitions_a_small_model_finely_and_a_large_one_coarsely(void **state)
{
    (void)state;
    wire_model model = MODEL(mlp, sgd);
    plan *p          = capture(&model);
    assert_int_equal(p->chunk_elements, 4096);
    assert_int_equal(p->n_chunks, 49 + 1 + 8 + 1 + 1 + 1);
    assert_int_equal(p->n_partitions, 61);
    plan_destroy(p);

    static const wire_tensor large[] = {
        {.name = "w", .dtype = PEN_F32, .ndim = 2, .shape = {1 << 15, 1 << 15}}};
    model = MODEL(large, sgd);
    p     = capture(&model);
    check_plan(p, &model);
    assert_int_equal(p->chunk_elements, 1 << 20);
    assert_int_equal(p->n_chunks, 1024);
    assert_int_equal(p->n_partitions, 256);
    plan_destroy(p);
}

static void test_plan_of_a_scalar_is_one_chunk(void **state)
{
    (void)state;
    static const wire_tensor scalar[] = {{.name = "temperature", .dtype = PEN_F64}};
    wire_model model                  = MODEL(scalar, sgd);
    plan *p                           = capture(&model);
    check_plan(p, &model);
    assert_int_equal(p->n_chunks, 1);
    assert_int_equal(p->partition[0].bytes, 8);
    plan_destroy(p);
}

static void test_plan_numbers_chunks_in_registration_and_offset_order(void **state)
{
    (void)state;
    wire_model model = MODEL(mlp, sgd);
    plan *p          = capture(&model);
    for (uint32_t c = 1; c < p->n_chunks; c++) {
        const plan_chunk *a = &p->chunk[c - 1], *b = &p->chunk[c];
        assert_true(a->tensor < b->tensor || (a->tensor == b->tensor && a->start < b->start));
    }
    plan_destroy(p);
}

static void test_plan_deals_the_largest_chunks_first(void **state)
{
    (void)state;
    wire_model model = MODEL(mlp, sgd);
    plan *p          = capture(&model);
    assert_int_equal(p->chunk[0].partition, 0);
    assert_int_equal(p->chunk[p->first_chunk[4]].partition, 57); /* 1,280 elements, then 256, ... */
    assert_int_equal(p->chunk[p->first_chunk[1]].partition, 58);
    assert_int_equal(p->chunk[p->first_chunk[3]].partition, 59);
    assert_int_equal(p->chunk[p->first_chunk[5]].partition, 60);
    plan_destroy(p);
}

static void test_plan_keeps_tensors_with_whole_tensor_rules_in_one_partition(void **state)
{
    (void)state;
    static const wire_group groups[]   = {{.name = "a", .optim = "sgd lr=0.1"},
                                          {.name = "b", .optim = "  lamb lr=1e-3"}};
    static const wire_tensor tensors[] = {
        {.name = "free", .dtype = PEN_F32, .ndim = 1, .shape = {100000}},
        {.name = "whole", .dtype = PEN_F32, .ndim = 1, .shape = {100000}, .group = 1},
        {.name  = "frozen",
         .dtype = PEN_F32,
         .ndim  = 1,
         .shape = {100000},
         .group = 1,
         .flags = PEN_FROZEN},
        {.name = "whole too", .dtype = PEN_BF16, .ndim = 2, .shape = {300, 500}, .group = 1}};
    wire_model model = MODEL(tensors, groups);
    plan *p          = capture(&model);
    check_plan(p, &model);
    bool is_split[4] = {false};
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t c = p->first_chunk[t]; c < p->first_chunk[t + 1]; c++)
            is_split[t] |= p->chunk[c].partition != p->chunk[p->first_chunk[t]].partition;
    assert_true(is_split[0] && is_split[2]);
    assert_false(is_split[1] || is_split[3]);
    assert_int_not_equal(p->chunk[p->first_chunk[1]].partition,
                         p->chunk[p->first_chunk[3]].partition);
    plan_destroy(p);
}

static void test_plan_places_frozen_tensors_but_never_trains_them(void **state)
{
    (void)state;
    static const wire_tensor tensors[] = {
        {.name = "w", .dtype = PEN_F32, .ndim = 1, .shape = {9000}, .flags = PEN_FROZEN}};
    wire_model model = MODEL(tensors, sgd);
    plan *p          = capture(&model);
    check_plan(p, &model);
    for (uint32_t i = 0; i < p->n_partitions; i++) assert_int_equal(p->partition[i].n_trained, 0);
    plan_destroy(p);
}

/* Chunks of groups that do not average are pushed and have no sums; the place of all chunks stays the
 * same. */
static void test_plan_has_sums_for_groups_that_average_only(void **state)
{
    (void)state;
    static wire_group groups[]         = {{.name = "a", .optim = "sgd lr=0.1", .sync = "bsp"},
                                          {.name = "b", .optim = "sgd lr=0.1", .sync = "ssp s=2"},
                                          {.name = "c", .optim = "sgd lr=0.1", .sync = "async"},
                                          {.name = "d", .optim = "sgd lr=0.1", .sync = ""}};
    static const wire_tensor tensors[] = {
        {.name = "a", .dtype = PEN_F32, .ndim = 1, .shape = {9000}, .group = 0},
        {.name = "b", .dtype = PEN_F32, .ndim = 1, .shape = {9000}, .group = 1},
        {.name = "c", .dtype = PEN_F32, .ndim = 1, .shape = {9000}, .group = 2},
        {.name = "d", .dtype = PEN_F32, .ndim = 1, .shape = {9000}, .group = 3},
        {.name = "f", .dtype = PEN_F32, .ndim = 1, .shape = {9}, .flags = PEN_FROZEN}};
    wire_model model = MODEL(tensors, groups);
    plan *p          = capture(&model);
    check_plan(p, &model);
    uint32_t trained = 0, decided = 0;
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        trained += p->partition[i].n_trained;
        decided += p->partition[i].n_decided;
    }
    assert_int_equal(trained, 12);
    assert_int_equal(decided, 6);
    groups[1].sync = groups[2].sync = "bsp";
    plan *q                         = capture(&model);
    for (uint32_t c = 0; c < p->n_chunks; c++)
        assert_int_equal(p->chunk[c].partition, q->chunk[c].partition);
    plan_destroy(p);
    plan_destroy(q);
}

static void test_plan_knows_how_gradients_travel(void **state)
{
    (void)state;
    static const struct {
        const char *wire;
        pen_dtype dtype, grad_dtype, travels;
    } row[] = {
        {NULL, PEN_F32, PEN_DTYPE_DEFAULT, PEN_F32}, {"", PEN_BF16, PEN_F32, PEN_F32},
        {"raw", PEN_F32, PEN_F16, PEN_F16},          {"bf16", PEN_F32, PEN_F32, PEN_BF16},
        {"f16", PEN_BF16, PEN_F32, PEN_F16},         {"f16", PEN_BF16, PEN_BF16, PEN_BF16},
        {"bf16", PEN_F32, PEN_F16, PEN_F16},         {"f8", PEN_F32, PEN_F32, PEN_DTYPE_DEFAULT}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const wire_group group = {.wire = row[i].wire};
        const wire_tensor t    = {.dtype = row[i].dtype, .grad_dtype = row[i].grad_dtype};
        assert_int_equal(plan_push_dtype(&group, &t), row[i].travels);
    }
}

/* ---- placing --------------------------------------------------------------------------------- */
static void load(const plan *p, uint32_t n_shards, uint64_t *least, uint64_t *most)
{
    uint32_t shard[PLAN_PARTITIONS_MAX];
    uint64_t bytes[8] = {0};
    plan_place(p, n_shards, shard);
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        assert_in_range(shard[i], 0, n_shards - 1);
        bytes[shard[i]] += p->partition[i].bytes;
    }
    *least = UINT64_MAX, *most = 0;
    for (uint32_t s = 0; s < n_shards; s++) {
        if (bytes[s] < *least) *least = bytes[s];
        if (bytes[s] > *most) *most = bytes[s];
    }
}

static void test_plan_balances_a_small_model_on_few_shards(void **state)
{
    (void)state;
    wire_model model = MODEL(mlp, sgd);
    plan *p          = capture(&model);
    for (uint32_t n = 1; n <= 8; n++) {
        uint64_t least, most;
        load(p, n, &least, &most);
        assert_true(most - least <= 4096 * 4); /* less than one partition */
        if (n <= 3) assert_true((double)(most - least) < 0.1 * (double)most);
    }
    plan_destroy(p);
}

static void test_plan_leaves_shards_empty_when_there_are_more_than_partitions(void **state)
{
    (void)state;
    static const wire_tensor tensors[] = {
        {.name = "w", .dtype = PEN_F32, .ndim = 1, .shape = {9000}}};
    wire_model model = MODEL(tensors, sgd);
    plan *p          = capture(&model);
    uint32_t shard[PLAN_PARTITIONS_MAX];
    plan_place(p, 5000, shard);
    assert_int_equal(p->n_partitions, 3);
    assert_int_equal(shard[0], 0);
    assert_int_equal(shard[1], 1);
    assert_int_equal(shard[2], 2);
    plan_destroy(p);
}

static void test_plan_is_the_same_each_time(void **state)
{
    (void)state;
    wire_tensor tensors[40];
    wire_model model = MODEL(tensors, sgd);
    model.n_tensors  = draw_model(7, tensors, 40);
    for (uint32_t t = 0; t < model.n_tensors; t++) tensors[t].group = 0;
    plan *a = capture(&model), *b = capture(&model);
    assert_int_equal(a->n_chunks, b->n_chunks);
    assert_memory_equal(a->chunk, b->chunk, a->n_chunks * sizeof *a->chunk);
    plan_destroy(a);
    plan_destroy(b);
}

/* ---- what cannot be partitioned -------------------------------------------------------------- */
static void test_plan_refuses_an_impossible_model_with_a_reason(void **state)
{
    (void)state;
    wire_tensor t    = {.name = "w", .dtype = PEN_F32, .ndim = 1, .shape = {5}};
    wire_model model = {.n_tensors = 1, .tensor = &t, .n_groups = 1, .group = sgd};

    t.dtype = PEN_DTYPE_DEFAULT;
    check_refused(&model, "'w' has no element type that servers can store");
    t.dtype    = PEN_F32;
    t.shape[0] = -5;
    check_refused(&model, "invalid shape of 'w': expected at most 8 dimensions, each at least 1, "
                          "and at most 1099511627776 elements");
    t.shape[0] = 5;
    t.group    = 1;
    check_refused(&model, "invalid parameter group 1 of 'w': the model has 1");
    t.group                = 0;
    const wire_group odd[] = {{.name = "decay", .optim = "adamx lr=1"}};
    model.group            = odd;
    check_refused(&model, "parameter group 'decay' has unknown update rule 'adamx lr=1'");
    model.n_tensors = 0;
    model.group     = sgd;
    check_refused(&model, "nothing to train: no tensor was registered");

    wire_tensor halves[3];
    for (int i = 0; i < 3; i++)
        halves[i] = (wire_tensor){.name = "half", .dtype = PEN_I8, .ndim = 1, .shape = {1ll << 39}};
    model.tensor    = halves;
    model.n_tensors = 3;
    check_refused(&model, "the model has more than 1099511627776 elements; 'half' exceeds that");
}

/* ---- comparing ------------------------------------------------------------------------------- */
static wire_tensor tensors_a[2], tensors_b[2];
static wire_group groups_a[2], groups_b[2];
static wire_pair settings_a[1], settings_b[1];
static wire_model model_a, model_b;

/* Two equal models, each in its own memory. */
static void make_equal(void)
{
    tensors_a[0] = (wire_tensor){.name       = "fc1.weight",
                                 .dtype      = PEN_F32,
                                 .grad_dtype = PEN_F32,
                                 .ndim       = 2,
                                 .shape      = {128, 784},
                                 .init       = ""};
    tensors_a[1] = (wire_tensor){
        .name = "scale", .dtype = PEN_F32, .grad_dtype = PEN_F32, .group = 1, .init = "ones"};
    groups_a[0]   = (wire_group){"decay", "adamw lr=3e-4", "bsp", "raw", ""};
    groups_a[1]   = (wire_group){"no_decay", "sgd lr=0.1", "bsp", "raw", ""};
    settings_a[0] = (wire_pair){"clip", "1.0"};
    memcpy(tensors_b, tensors_a, sizeof tensors_a);
    memcpy(groups_b, groups_a, sizeof groups_a);
    memcpy(settings_b, settings_a, sizeof settings_a);
    model_a = (wire_model){2, 2, 1, tensors_a, groups_a, settings_a};
    model_b = (wire_model){2, 2, 1, tensors_b, groups_b, settings_b};
}

static void check_differs(const char *sentence, const char *tensor)
{
    assert_int_equal(plan_compare(&model_a, 1, "devbox", &model_b, 0, "tower", &why), PEN_MISMATCH);
    assert_string_equal(why.text, sentence);
    assert_int_equal(why.status, PEN_MISMATCH);
    assert_int_equal(why.role, PEN_WORKER);
    assert_int_equal(why.rank, 1);
    assert_string_equal(why.tensor, tensor);
    make_equal();
}

static void test_plan_compare_accepts_equal_models_in_other_memory(void **state)
{
    (void)state;
    make_equal();
    groups_b[0].schedule = NULL; /* absent is the same as empty */
    assert_int_equal(plan_compare(&model_a, 1, "devbox", &model_b, 0, "devbox", &why), PEN_OK);
}

static void test_plan_compare_names_the_first_difference_between_tensors(void **state)
{
    (void)state;
    make_equal();
    tensors_b[0].shape[0] = 256;
    check_differs(
        "'fc1.weight' is f32[128,784] on rank 1 (devbox) and f32[256,784] on rank 0 (tower); "
        "all ranks must register "
        "the same",
        "fc1.weight");
    tensors_a[1].dtype = PEN_BF16;
    check_differs(
        "'scale' is bf16[] on rank 1 (devbox) and f32[] on rank 0 (tower); all ranks must "
        "register the same",
        "scale");
    tensors_b[0].name = "fc1.bias";
    check_differs(
        "tensor 0 is 'fc1.weight' on rank 1 (devbox) and 'fc1.bias' on rank 0 (tower); all "
        "ranks must register the same",
        "fc1.weight");
    tensors_a[0].grad_dtype = PEN_F16;
    check_differs("the gradient type of 'fc1.weight' is f16 on rank 1 (devbox) and f32 on rank 0 "
                  "(tower); all ranks must register "
                  "the same",
                  "fc1.weight");
    tensors_b[1].group = 0;
    check_differs(
        "the parameter group of 'scale' is 'no_decay' on rank 1 (devbox) and 'decay' on rank 0 "
        "(tower); all ranks must "
        "register the same",
        "scale");
    tensors_a[1].flags = PEN_FROZEN;
    check_differs(
        "flags of 'scale' is 2 on rank 1 (devbox) and 0 on rank 0 (tower); all ranks must "
        "register the same",
        "scale");
    tensors_a[1].init = "zeros";
    check_differs(
        "init of 'scale' is 'zeros' on rank 1 (devbox) and 'ones' on rank 0 (tower); all ranks "
        "must register the same",
        "scale");
    tensors_a[0].priority = -2;
    check_differs(
        "priority of 'fc1.weight' is -2 on rank 1 (devbox) and 0 on rank 0 (tower); all ranks "
        "must register the same",
        "fc1.weight");
    model_a.n_tensors = 1;
    check_differs("rank 1 (devbox) registers 1 tensors and rank 0 (tower) 2, and 'scale' is the "
                  "first that is missing; all ranks "
                  "must register the same",
                  "scale");
}

static void test_plan_compare_names_the_first_difference_between_groups_and_settings(void **state)
{
    (void)state;
    make_equal();
    groups_b[0].optim = "adamw lr=3e-5";
    check_differs(
        "optim of parameter group 'decay' is 'adamw lr=3e-4' on rank 1 (devbox) and 'adamw "
        "lr=3e-5' on rank 0 (tower); "
        "all ranks must register the same",
        "");
    groups_b[1].sync = "async";
    check_differs(
        "sync of parameter group 'no_decay' is 'bsp' on rank 1 (devbox) and 'async' on rank 0 "
        "(tower); all ranks must "
        "register the same",
        "");
    groups_a[1].wire = "bf16";
    check_differs(
        "wire of parameter group 'no_decay' is 'bf16' on rank 1 (devbox) and 'raw' on rank 0 "
        "(tower); all ranks must register the same",
        "");
    groups_a[1].schedule = "WarmupLR";
    check_differs(
        "schedule of parameter group 'no_decay' is 'WarmupLR' on rank 1 (devbox) and '' on "
        "rank 0 (tower); all ranks "
        "must register the same",
        "");
    groups_a[0].name = "deca";
    check_differs(
        "a parameter group is 'deca' on rank 1 (devbox) and 'decay' on rank 0 (tower); all "
        "ranks must register the same",
        "");
    model_b.n_groups = 1;
    check_differs(
        "the number of parameter groups is 2 on rank 1 (devbox) and 1 on rank 0 (tower); all "
        "ranks must register the "
        "same",
        "");
    settings_a[0].value = "2.0";
    check_differs(
        "setting 'clip' is '2.0' on rank 1 (devbox) and '1.0' on rank 0 (tower); all ranks "
        "must register the same",
        "");
    settings_a[0].key = "skip";
    check_differs(
        "a setting that must agree is 'skip' on rank 1 (devbox) and 'clip' on rank 0 (tower); "
        "all ranks must register "
        "the same",
        "");
    model_a.n_settings = 0;
    check_differs("the number of settings that must agree is 0 on rank 1 (devbox) and 1 on rank 0 "
                  "(tower); all ranks must "
                  "register the same",
                  "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_knows_the_size_and_name_of_every_dtype),
        cmocka_unit_test(test_plan_counts_elements_and_sees_overflow),
        cmocka_unit_test(test_plan_covers_random_models_once_on_block_borders),
        cmocka_unit_test(test_plan_partitions_a_small_model_finely_and_a_large_one_coarsely),
        cmocka_unit_test(test_plan_of_a_scalar_is_one_chunk),
        cmocka_unit_test(test_plan_numbers_chunks_in_registration_and_offset_order),
        cmocka_unit_test(test_plan_deals_the_largest_chunks_first),
        cmocka_unit_test(test_plan_keeps_tensors_with_whole_tensor_rules_in_one_partition),
        cmocka_unit_test(test_plan_places_frozen_tensors_but_never_trains_them),
        cmocka_unit_test(test_plan_has_sums_for_groups_that_average_only),
        cmocka_unit_test(test_plan_knows_how_gradients_travel),
        cmocka_unit_test(test_plan_balances_a_small_model_on_few_shards),
        cmocka_unit_test(test_plan_leaves_shards_empty_when_there_are_more_than_partitions),
        cmocka_unit_test(test_plan_is_the_same_each_time),
        cmocka_unit_test(test_plan_refuses_an_impossible_model_with_a_reason),
        cmocka_unit_test(test_plan_compare_accepts_equal_models_in_other_memory),
        cmocka_unit_test(test_plan_compare_names_the_first_difference_between_tensors),
        cmocka_unit_test(test_plan_compare_names_the_first_difference_between_groups_and_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
