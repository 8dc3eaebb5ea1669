/* snapshot_part.h - a process writes its parts of snapshots: alike for servers, and for workers without them.
 *
 * The first time, what an earlier run wrote after the step that this one goes on from goes.  A part that fails leaves
 * nothing, and the next one begins as if nothing had been.  Thread: one at a time.
 */
#ifndef PROTO_SNAPSHOT_PART_H
#define PROTO_SNAPSHOT_PART_H

#include "proto/describe.h"

typedef struct {
    const char *dir; /* BORROWED */
    int32_t rank;
    int64_t restored;  /* the step this run goes on from; -1: from none */
    bool is_settled;   /* what came after it has been forgotten */
    store *store;      /* NULL: opened with the next part */
    store_tensor *row; /* [tensors of the model] between begin and end */
} part_writer;

/* Equal on all parts of one snapshot; `run` is the same for them all, and in no other run. */
uint64_t snapshot_id(uint64_t run, int64_t step);

pen_status part_writer_open(part_writer *w, pen_error *why); /* w->store; again is fine */

/* begin fills tensors and settings of the manifest in.  Then arrays and blobs are put into w->store.  end, which follows
 * whatever they say, makes the part whole; or forgets it, where `status` or its own work is not OK. */
pen_status part_writer_begin(part_writer *w, const wire_model *model, const store_manifest *head,
                             pen_error *why);
pen_status part_writer_end(part_writer *w, pen_status status, pen_error *why);

/* Whether what was kept in dir is what these workers train. */
pen_status snapshot_is_of(const store_manifest *kept, const wire_model *model, const char *dir,
                          pen_error *why);

#endif
