/* snapshot_part.h - writes a process's parts of snapshots: for servers, and for workers without servers.
 *
 * The first part removes snapshots that an earlier run wrote after the step that this run resumed from.  A part that fails
 * leaves nothing behind.  Thread: one at a time.
 */
#ifndef PROTO_SNAPSHOT_PART_H
#define PROTO_SNAPSHOT_PART_H

#include "proto/describe.h"

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

#endif
