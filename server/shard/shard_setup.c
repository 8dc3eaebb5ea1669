/* shard_setup.c - allocates a shard by its plan, and loads it from a snapshot. */
#include "server/shard/shard_state.h"

#include "proto/snapshot_part.h"
#include "proto/settings.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- settings of the model ------------------------------------------------------------------- */
/* The workers' settings that a shard needs. */
typedef struct {
    int commit;
    int deterministic; /* sum_order */
    uint64_t park_bytes_max;
    uint64_t seed;
} agreed;

static const char *const commit_choices[] = {"decide", "eager", NULL};

static const config_row agreed_rows[] = {
    {"commit", CONFIG_ENUM, offsetof(agreed, commit), "decide", 0, 0, commit_choices, ""},
    {"deterministic", CONFIG_ENUM, offsetof(agreed, deterministic), "yes", 0, 0, settings_orders,
     ""},
    {"park_bytes_max", CONFIG_U64, offsetof(agreed, park_bytes_max), "64m", 0, 1ull << 40, NULL,
     ""},
    {"seed", CONFIG_U64, offsetof(agreed, seed), "0", 0, 9e15, NULL, ""},
    {0}};

static bool is_agreed(const char *key)
{
    for (const config_row *row = agreed_rows; row->name != NULL; row++)
        if (strcmp(row->name, key) == 0) return true;
    return false;
}

static pen_status read_agreed(const shard *s, agreed *a, pen_error *why)
{
    const wire_model *model = s->setup.model;
    config_defaults(agreed_rows, a);
    if (s->options.park_bytes_max != 0) a->park_bytes_max = s->options.park_bytes_max;
    for (uint32_t i = 0; i < model->n_settings; i++) {
        if (!is_agreed(model->setting[i].key)) continue;
        const pen_status status =
            config_set(agreed_rows, a, model->setting[i].key, model->setting[i].value, why);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

/* ---- groups ---------------------------------------------------------------------------------- */
static pen_status parse_group(shard *s, uint32_t g, shard_core_group *rule, pen_error *why)
{
    const wire_group *group = &s->setup.model->group[g];
    const char *optim       = group->optim != NULL ? group->optim : "";
    pen_status status       = optim_parse(optim, &s->group[g].optim, &s->group[g].hyper, why);
    if (status != PEN_OK) return status;
    rule->whole_tensor = s->group[g].optim->whole_tensor;
    status             = sync_parse(group->sync, &rule->ops, &rule->hyper, why);
    if (status != PEN_OK || rule->ops->averages == plan_group_averages(group)) return status;
    return why_set(why, PEN_INTERNAL,
                   "the plan and the consistency rule '%s' disagree about whether it averages",
                   rule->ops->name); /* whether the plan reserves room for sums */
}

static pen_status push_dtype(const wire_group *group, const wire_tensor *t, pen_dtype *dtype,
                             pen_error *why)
{
    *dtype = plan_push_dtype(group, t);
    if (*dtype != PEN_DTYPE_DEFAULT) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "parameter group '%s' has wire=%s; expected raw, bf16 or f16", group->name,
                   group->wire);
}

static bool is_float(pen_dtype dtype)
{
    return dtype == PEN_F32 || dtype == PEN_F16 || dtype == PEN_BF16;
}

/* ---- chunks ---------------------------------------------------------------------------------- */
static pen_status describe(shard *s, uint32_t number, shard_chunk *k, pen_error *why)
{
    const plan_chunk *c     = &s->setup.plan->chunk[number];
    const wire_tensor *t    = &s->setup.model->tensor[c->tensor];
    const bool trained      = (t->flags & PEN_FROZEN) == 0;
    const int slots         = s->group[t->group].optim->slot_count;
    *k                      = (shard_chunk){.number      = number,
                                            .index       = s->index_of[number],
                                            .partition   = s->partition_index[c->partition],
                                            .slots       = trained ? (uint32_t)slots : 0,
                                            .tensor      = c->tensor,
                                            .group       = t->group,
                                            .start       = c->start,
                                            .count       = c->count,
                                            .first_block = c->first_block,
                                            .blocks      = c->blocks,
                                            .dtype       = t->dtype,
                                            .trained     = trained,
                                            .is_filled   = !s->setup.is_empty,
                                            .bad_rank    = -1};
    const pen_status status = push_dtype(&s->setup.model->group[t->group], t, &k->push_dtype, why);
    if (status != PEN_OK) return status;
    if (trained && s->group[t->group].optim->update_row != NULL)
        return why_set(why, PEN_UNSUPPORTED, "'%s': %s is a rule of tables by key only", t->name,
                       s->group[t->group].optim->name);
    if (!is_float(k->dtype) || !is_float(k->push_dtype))
        return why_set(
            why, PEN_UNSUPPORTED,
            "'%s' has values of %s and gradients of %s; servers support f32, f16 and bf16", t->name,
            plan_dtype_name(k->dtype), plan_dtype_name(k->push_dtype));
    return PEN_OK;
}

static bool is_mine(const shard *s, uint32_t partition)
{
    return s->setup.shard_of[partition] == s->setup.self;
}

static void number_all(shard *s)
{
    const plan *capture = s->setup.plan;
    for (uint32_t i = 0; i < capture->n_partitions; i++) {
        s->partition_index[i] = is_mine(s, i) ? s->n_partitions : SHARD_NONE;
        if (!is_mine(s, i)) continue;
        s->partition[s->n_partitions++] =
            (shard_partition){.number = i, .blocks = capture->partition[i].blocks};
    }
    for (uint32_t i = 0; i < capture->n_chunks; i++)
        s->index_of[i] = is_mine(s, capture->chunk[i].partition) ? s->n_chunks++ : SHARD_NONE;
}

static bool allocate_tables(shard *s)
{
    const plan *capture = s->setup.plan;
    s->index_of         = calloc(capture->n_chunks + 1, sizeof *s->index_of);
    s->partition_index  = calloc(capture->n_partitions + 1, sizeof *s->partition_index);
    s->partition        = calloc(capture->n_partitions + 1, sizeof *s->partition);
    s->group            = calloc(s->setup.model->n_groups + 1, sizeof *s->group);
    s->incarnation      = calloc(s->setup.world_size + 1, sizeof *s->incarnation);
    s->node             = calloc(s->setup.world_size + 1, sizeof *s->node);
    s->peer_of          = calloc(s->setup.world_size + 1, sizeof *s->peer_of);
    s->missing          = calloc(s->setup.world_size + 1, sizeof *s->missing);
    s->parked_bytes     = calloc(s->setup.world_size + 1, sizeof *s->parked_bytes);
    return s->index_of != NULL && s->partition_index != NULL && s->partition != NULL &&
           s->group != NULL && s->incarnation != NULL && s->node != NULL && s->peer_of != NULL &&
           s->missing != NULL && s->parked_bytes != NULL;
}

/* Scratch for the chunks of the largest tensor, for whole-tensor rules. */
static bool allocate_scratch(shard *s)
{
    const plan *capture = s->setup.plan;
    uint32_t chunks     = 1;
    uint64_t blocks     = 1;
    for (uint32_t t = 0; t < capture->n_tensors; t++) {
        const uint32_t first = capture->first_chunk[t], n = capture->first_chunk[t + 1] - first;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n; i++) sum += capture->chunk[first + i].blocks;
        if (n > chunks) chunks = n;
        if (sum > blocks) blocks = sum;
    }
    s->span    = calloc(chunks, sizeof *s->span);
    s->scratch = calloc(2 * blocks, sizeof *s->scratch);
    return s->span != NULL && s->scratch != NULL;
}

static bool allocate_values(shard *s)
{
    for (uint32_t i = 0; i < s->n_partitions; i++) {
        s->partition[i].squares = calloc(s->partition[i].blocks + 1, sizeof(double));
        if (s->partition[i].squares == NULL) return false;
    }
    uint64_t param = 0, slot = 0, most = 0;
    for (uint32_t i = 0; i < s->n_chunks; i++)
        most += s->chunk[i].count * sizeof(float) * (1 + OPTIM_SLOTS_MAX);
    s->recycler = recycler_create(most);
    if (s->recycler == NULL) return false;
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        shard_chunk *k = &s->chunk[i];
        if (!shard_chunk_allocate(s, k)) return false;
        if (k->values != NULL) param += k->values->size;
        for (uint32_t j = 0; j < k->slots; j++)
            if (k->slot[j] != NULL) slot += k->slot[j]->size;
    }
    stat_add(s->options.stats, STAT_PARAM_BYTES, param);
    stat_add(s->options.stats, STAT_SLOT_BYTES, slot);
    return true;
}

/* ---- the core -------------------------------------------------------------------------------- */
static pen_status create_core(shard *s, const shard_core_group *groups,
                              shard_core_chunk_desc *descs, pen_error *why)
{
    agreed a;
    pen_status status = read_agreed(s, &a, why);
    if (status != PEN_OK) return status;
    s->is_eager           = a.commit != 0;
    s->seed               = a.seed;
    const wire_inputs sum = {.is_node_sum = true};
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        shard_chunk *k      = &s->chunk[i];
        const bool is_table = plan_is_table(&s->setup.model->tensor[k->tensor]);
        k->decided          = k->trained && groups[k->group].ops->averages;
        s->n_trained += k->trained;
        const bool has_handler = plan_has_handler(&s->setup.model->tensor[k->tensor]);
        if (has_handler)
            status = shard_handler_new(s, k, why);
        else if (is_table)
            status = shard_table_new(s, k, why);
        if (status != PEN_OK) return status;
        descs[i] = (shard_core_chunk_desc){
            .tensor    = shard_tensor_name(s, k),
            .partition = k->partition,
            .group     = k->group,
            .bytes     = k->count * plan_dtype_bytes(k->push_dtype),
            .trained   = k->trained || is_table,
            .is_table  = is_table,
            .is_served = has_handler,
            .number    = k->number,
            .sum_bytes = k->count * plan_dtype_bytes(shard_push_dtype(s, k, &sum))};
    }
    const shard_core_config config = {.n_chunks       = s->n_chunks,
                                      .n_partitions   = s->n_partitions,
                                      .n_groups       = s->setup.model->n_groups,
                                      .chunk          = descs,
                                      .group          = groups,
                                      .first_step     = s->setup.first_step,
                                      .applied        = s->setup.applied,
                                      .order          = (sum_order)a.deterministic,
                                      .eager          = a.commit != 0,
                                      .park_bytes_max = a.park_bytes_max};
    return shard_core_create(&config, s->setup.world_size, &s->core, why);
}

static pen_status fill_chunks(shard *s, shard_core_group *groups, shard_core_chunk_desc *descs,
                              pen_error *why)
{
    for (uint32_t g = 0; g < s->setup.model->n_groups; g++) {
        const pen_status status = parse_group(s, g, &groups[g], why);
        if (status != PEN_OK) return status;
    }
    for (uint32_t i = 0; i < s->setup.plan->n_chunks; i++) {
        if (s->index_of[i] == SHARD_NONE) continue;
        const pen_status status = describe(s, i, &s->chunk[s->index_of[i]], why);
        if (status != PEN_OK) return status;
    }
    const pen_status status = shard_offload_open(s, why);
    if (status != PEN_OK) return status;
    if (!allocate_values(s))
        return why_set(why, PEN_NO_MEMORY, "no memory for %u chunks of parameters", s->n_chunks);
    return create_core(s, groups, descs, why);
}

pen_status shard_configure(shard *s, const shard_setup *setup, pen_error *why)
{
    if (s->chunk != NULL) return why_set(why, PEN_WRONG_STATE, "this shard already has a plan");
    if (setup->model->n_groups == 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "a model trained by servers needs at least one parameter group");
    s->setup = *setup;
    if (!allocate_tables(s) || !allocate_scratch(s))
        return why_set(why, PEN_NO_MEMORY, "no memory for a shard's tables");
    for (uint32_t r = 0; r < setup->world_size; r++) s->peer_of[r] = SHARD_NONE;
    number_all(s);
    if (!shard_scalars_init(s))
        return why_set(why, PEN_NO_MEMORY, "no memory for the scalars of %u ranks",
                       setup->world_size);
    s->is_whole   = !setup->is_empty;
    s->n_unfilled = setup->is_empty ? s->n_chunks : 0;

    s->chunk                     = calloc(s->n_chunks + 1, sizeof *s->chunk);
    shard_core_group *groups     = calloc(setup->model->n_groups, sizeof *groups);
    shard_core_chunk_desc *descs = calloc(s->n_chunks + 1, sizeof *descs);
    const pen_status status =
        s->chunk != NULL && groups != NULL && descs != NULL
            ? fill_chunks(s, groups, descs, why)
            : why_set(why, PEN_NO_MEMORY, "no memory for the tables of %u chunks", s->n_chunks);
    free(groups);
    free(descs);
    return status;
}

/* ---- restoring ------------------------------------------------------------------------------- */
static pen_status load_arrays(shard *s, shard_chunk *k, store_reader *reader, int64_t step,
                              pen_error *why)
{
    const char *tensor = shard_tensor_name(s, k);
    const store_manifest *kept;
    pen_status status =
        store_read(reader, step, tensor, "param", k->start, k->count, k->values->data, why);
    if (status == PEN_OK) status = store_reader_manifest(reader, step, &kept, why);
    if (status != PEN_OK || !k->trained) return status;
    if (kept->is_import) { /* parameters only: the rule starts as in a new job */
        shard_chunk_first_slots(s, k);
        return PEN_OK;
    }
    const optim_ops *optim = s->group[k->group].optim;
    for (int i = 0; status == PEN_OK && i < optim->slot_count; i++)
        status = store_read(reader, step, tensor, optim->slot_names[i], k->start, k->count,
                            k->slot[i]->data, why);
    return status;
}

typedef struct {
    const shard_chunk *of;
    describe_part part;
    uint32_t block, taken; /* block: to add next */
    pen_status status;
    pen_error *why;
} loading;

static void take_part(const void *data, size_t size, void *user)
{
    loading *l = user;
    if (size == sizeof l->part) memcpy(&l->part, data, size);
}

static void take_block(const void *data, size_t size, void *user)
{
    loading *l = user;
    if (l->status != PEN_OK || l->taken > l->block) return; /* another part had it */
    l->taken++;
    l->status = l->of->handler != NULL
                    ? handler_part_take(l->of->handler, l->block, data, size,
                                        l->taken == l->part.blocks, l->why)
                    : row_store_add_block(shard_table_rows(l->of), data, size, l->why);
}

static pen_status load_rows(shard *s, const shard_chunk *k, store_reader *reader, int64_t step,
                            pen_error *why)
{
    char name[STORE_NAME_BYTES];
    const char *table  = shard_tensor_name(s, k);
    const uint32_t dim = plan_table_dim(&s->setup.model->tensor[k->tensor]);
    loading l          = {.of = k, .part.blocks = UINT64_MAX, .why = why};
    pen_status status  = store_read_blobs(reader, step, describe_rows(name, table, k->start, NULL),
                                          take_part, &l, why);
    if (status == PEN_OK && l.part.blocks > UINT32_MAX) l.status = PEN_CORRUPT;
    if (status == PEN_OK && l.status == PEN_OK && l.part.dim != dim)
        return why_set(why, PEN_MISMATCH,
                       "snapshot %" PRId64
                       " has table '%s' with dim %u, and the program has it with "
                       "dim %u; 0 is a length for each key",
                       step, table, l.part.dim, dim);
    if (status == PEN_OK && l.status == PEN_OK && l.part.has_handler != (k->handler != NULL))
        return why_set(
            why, PEN_MISMATCH,
            "snapshot %" PRId64 " has table '%s' with%s a handler, and the program with%s", step,
            table, l.part.has_handler ? "" : "out", k->handler != NULL ? "" : "out");
    for (; status == PEN_OK && l.status == PEN_OK && l.block < l.part.blocks; l.block++) {
        status = store_read_blobs(reader, step, describe_rows(name, table, k->start, &l.block),
                                  take_block, &l, why);
        if (status == PEN_OK && l.status == PEN_OK && l.taken == l.block) l.status = PEN_NOT_FOUND;
    }
    if (status != PEN_OK || l.status == PEN_OK) return status;
    if (k->handler != NULL && l.status != PEN_NOT_FOUND) return l.status; /* *why has its words */
    return why_set(why, PEN_CORRUPT,
                   "snapshot %" PRId64 " lacks rows of part %" PRIu64
                   " of table '%s', or they are damaged; restore an earlier one",
                   step, k->start, table);
}

static pen_status load_chunk(shard *s, shard_chunk *k, store_reader *reader, int64_t step,
                             pen_error *why)
{
    pen_status status = shard_offload_bring_in(s, k, why);
    if (status == PEN_OK) status = load_arrays(s, k, reader, step, why);
    if (status == PEN_OK && shard_is_part(k)) status = load_rows(s, k, reader, step, why);
    return status == PEN_OK ? shard_offload_bring_out(s, k, why) : status;
}

/* A blob is raw bytes from a disk: any length, any alignment. */
static void adopt_versions(const void *data, size_t size, void *user)
{
    shard *s = user;
    for (size_t at = 0; size - at >= sizeof(describe_version); at += sizeof(describe_version)) {
        describe_version row;
        memcpy(&row, (const char *)data + at, sizeof row);
        shard_chunk *k = shard_find(s, row.chunk);
        if (k != NULL) k->version = row.version;
    }
}

/* All values of averaged groups have the same number of updates; a shard without such groups is given the number. */
static void adopt_applied(shard *s)
{
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        if (!s->chunk[i].decided) continue;
        shard_core_restored(s->core, (int64_t)s->chunk[i].version);
        return;
    }
}

pen_status shard_load(shard *s, store_reader *reader, int64_t step, pen_error *why)
{
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        const pen_status status = load_chunk(s, &s->chunk[i], reader, step, why);
        if (status != PEN_OK) return status;
        s->chunk[i].version = (uint64_t)s->setup.applied;
    }
    const pen_status status =
        store_read_blobs(reader, step, DESCRIBE_VERSIONS_BLOB, adopt_versions, s, why);
    if (status != PEN_OK && status != PEN_NOT_FOUND) return status;
    adopt_applied(s);
    for (uint32_t i = 0; i < s->n_chunks; i++) shard_core_first_values(s->core, i);
    return PEN_OK;
}
