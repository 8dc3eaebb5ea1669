/* describe.h - a model as snapshots describe it, for servers and workers that write them. */
#ifndef PROTO_DESCRIBE_H
#define PROTO_DESCRIBE_H

#include "common/snapshot/store.h"
#include "proto/wire/wire.h"

/* `rows` has room for all tensors of the model; their names are BORROWED from it. */
void describe_model(const wire_model *model, store_tensor *rows);

/* The blob with the number of updates of each chunk: rows of these, in any order. */
#define DESCRIBE_VERSIONS_BLOB "versions"
typedef struct {
    uint32_t chunk, zero; /* number in the plan */
    uint64_t version;
} describe_version;

/* A table by key is a row of dtype 0 with one element for each part; its rows are in blobs of their own. */
typedef struct {
    uint64_t blocks;           /* of the part's rows */
    uint32_t dim, has_handler; /* 1: the blocks are the state of a handler */
} describe_part;

/* The name of the blob with the describe_part, or, unless block is NULL, of block *block (row_store.h). */
const char *describe_rows(char name[STORE_NAME_BYTES], const char *table, uint64_t part,
                          const uint32_t *block);
static inline bool describe_is_table(const store_tensor *row)
{
    return row->dtype == PEN_DTYPE_DEFAULT;
}

/* The blob of states that are not tensors: bundles (common/snapshot/bundle.h). */
#define DESCRIBE_STATES_BLOB "states"

#endif
