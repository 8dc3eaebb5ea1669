/* snapshot_part.h - writes a process's parts of snapshots, for servers and for workers without servers; and a model as the
 * rows of a manifest.
 *
 * The first part removes snapshots that an earlier run wrote after the step that this run resumed from.  A part that fails
 * leaves nothing behind.  Thread: one at a time.
 */
#ifndef PROTO_SNAPSHOT_PART_H
#define PROTO_SNAPSHOT_PART_H

#include "common/snapshot/store.h"
#include "proto/wire/wire.h"

typedef struct {
    const char *dir; /* BORROWED */
    int32_t rank;
    int64_t restored;  /* the step that this run resumed from; -1: none */
    bool is_settled;   /* later snapshots have been removed */
    store *store;      /* NULL: opened with the next part */
    store_tensor *row; /* [tensors of the model] between begin and end */
} part_writer;

/* Equal for all parts of one snapshot; `run` identifies the run. */
uint64_t snapshot_id(uint64_t run, int64_t step);

pen_status part_writer_open(part_writer *w, pen_error *why); /* opens w->store if it is closed */

/* begin fills in tensors and settings of the manifest.  Then the caller puts arrays and blobs into w->store.  end always
 * follows: it commits the part, or drops it if `status` or the commit is not OK. */
pen_status part_writer_begin(part_writer *w, const wire_model *model, const store_manifest *head,
                             pen_error *why);
pen_status part_writer_end(part_writer *w, pen_status status, pen_error *why);

/* Whether the snapshot in dir is of this model. */
pen_status snapshot_is_of(const store_manifest *kept, const wire_model *model, const char *dir,
                          pen_error *why);

/* ---- rows of a manifest, from what workers register ------------------------------------------ */
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
