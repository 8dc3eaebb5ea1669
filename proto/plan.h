/* plan.h - how a model is partitioned: tensors into chunks, chunks into partitions, partitions onto shards.
 *
 * DESIGN.  Pure functions of the registered tensors, computed alike by scheduler, servers and workers: only the shard of
 * each partition has to travel.
 *   chunk      a range of one tensor, on 4,096-element borders, of at most chunk_elements = clamp(round_up(total / 64,
 *              4096), 4096, 2^20) elements.  It depends on the tensors only, never on the number of servers, so sums, norms
 *              and snapshots are the same for any number of them.  Even a small model has enough chunks to balance.
 *              A part of a table by key is a chunk of one element, and counts as 4,096 rows when chunks are dealt.
 *   partition  at most 256.  Chunks are dealt, largest first, to the partition with the least bytes (ties: lowest index).
 *              The chunks of a tensor whose rule needs whole-tensor norms stay together.  A partition is the unit of route,
 *              record and snapshot part.
 *   shard      partitions are dealt to shards in the same way, so servers differ by less than one partition.
 * Chunks are numbered in (registration, offset) order, in which the norm is added.  Frozen tensors are placed like others
 * but never pushed.  A partition may hold chunks of groups that average and of others: records, sums and decisions are
 * about the former only.
 */
#ifndef PROTO_PLAN_H
#define PROTO_PLAN_H

#include "proto/wire/wire.h"

enum {
    PLAN_PARTITIONS_MAX = WIRE_PARTITIONS_MAX,
    PLAN_CHUNKS_MAX     = 1 << 20,
    PLAN_BLOCK          = 4096 /* elements; every cut lies on such a border */
};
#define PLAN_ELEMENTS_MAX ((uint64_t)1 << 40) /* of a model: PLAN_CHUNKS_MAX largest chunks */

typedef struct {
    uint32_t tensor;
    uint32_t partition;
    uint64_t start, count; /* elements of its tensor */
    bool trained;          /* it is pushed: its tensor is not frozen */
    /* sums of squares: ceil(count / 4096); 0: frozen, or in a group that does not average */
    uint32_t blocks;
    uint32_t first_block; /* index of the first among the sums of its partition */
    uint32_t index_in_partition;
} plan_chunk;

typedef struct {
    uint32_t n_chunks;
    uint32_t *chunk; /* [n_chunks] global chunk numbers, ascending */
    uint64_t elements, bytes;
    uint32_t blocks;    /* of all its chunks */
    uint32_t n_trained; /* chunks that are pushed */
    uint32_t n_decided; /* of these, in groups that average: one decision closes them */
} plan_partition;

typedef struct {
    uint32_t n_chunks, n_partitions, n_tensors;
    plan_chunk *chunk;
    plan_partition *partition;
    /* [n_tensors + 1]; tensor t has chunks first_chunk[t] .. first_chunk[t + 1] - 1 */
    uint32_t *first_chunk;
    uint64_t chunk_elements;
} plan;

/* INVALID_ARGUMENT with a sentence: no tensors, too many elements or chunks, an unknown group or update rule.  A model
 * without groups is partitioned as if no rule needed whole tensors.  The caller destroys; *p is set on PEN_OK only.
 * Cost  O(chunks x partitions); allocates. */
pen_status plan_create(const wire_model *model, plan **p, pen_error *why);
void plan_destroy(plan *p); /* NULL is fine */

/* shard[n_partitions] for n_shards > 0 shards. */
void plan_place(const plan *p, uint32_t n_shards, uint32_t *shard);

/* Whether the consistency rule of a group averages, so that its steps may be decided over the whole model: bsp ("" and NULL
 * are bsp) does, ssp and async do not. */
bool plan_group_averages(const wire_group *group);

/* The type in which gradients travel: their own with wire "raw" (or "" or NULL); "bf16" and "f16" halve those of float32.
 * PEN_DTYPE_DEFAULT: unknown word. */
pen_dtype plan_push_dtype(const wire_group *group, const wire_tensor *t);

/* Whether sums of nodes travel as float32 whatever plan_push_dtype() says: with deterministic=node, so that they are not
 * rounded and every mode gives the same bits. */
bool plan_sums_are_wide(const wire_model *m);

/* A table by key: one chunk for each part. */
bool plan_is_table(const wire_tensor *t);
bool plan_has_handler(const wire_tensor *t);   /* a table whose rows are the program's own */
uint32_t plan_table_dim(const wire_tensor *t); /* values per key; 0: differs by key */

/* 1 for a scalar (ndim 0); of a table, the number of its parts; 0 for an invalid shape: a dimension below 1, more than 8 of them, over PLAN_ELEMENTS_MAX. */
uint64_t plan_tensor_elements(const wire_tensor *t);
size_t plan_dtype_bytes(pen_dtype dtype);     /* 0 when unknown */
const char *plan_dtype_name(pen_dtype dtype); /* "f32"; "?" when unknown */

/* MISMATCH unless both models are equal.  The sentence names the first difference, tensors first: "'fc1.weight' is
 * f32[128,784] on rank 1 (devbox) and f32[256,784] on rank 0 (devbox); all ranks must register the same".  The culprit is
 * rank_a.  NULL equals "". */
pen_status plan_compare(const wire_model *a, int32_t rank_a, const char *host_a,
                        const wire_model *b, int32_t rank_b, const char *host_b, pen_error *why);

#endif
