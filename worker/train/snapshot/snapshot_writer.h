/* snapshot_writer.h - snapshots of jobs without servers: every worker writes its share of the state.
 *
 * DESIGN.  The files are those of servers (common/snapshot/store.h), so a job can resume with any number of workers and
 * servers.  A snapshot is written between two steps, in the thread that ends the step: training waits for the disk.  All
 * ranks write at the same step, then exchange results; older snapshots are deleted when all have succeeded.  A failed
 * snapshot never fails the job.  If the disk is full and holds two or more snapshots, the oldest is deleted and the write
 * is repeated once.
 * Thread: the program's, with the step's lock; snapshot_writer_start() from any.
 */
#ifndef WORKER_TRAIN_SNAPSHOT_WRITER_H
#define WORKER_TRAIN_SNAPSHOT_WRITER_H

#include "worker/train/group_calls.h"

typedef struct snapshot_writer snapshot_writer;

/* In pen_init() without servers: sets ctx->snapshot_writer.
 * Errors  BAD_SETTING  snapshot_every without a store. */
pen_status snapshot_writer_create(pen_ctx *ctx, pen_error *why);
/* After all requests have ended; ctx->snapshot_writer NULL is fine. */
void snapshot_writer_destroy(pen_ctx *ctx);

/* At the end of strategy_open(), collective.  t is BORROWED; NULL: alone.  With resume=yes restores the newest snapshot
 * (state ranges, step, updates, the program's states) and calls strategy_ops.restored. */
pen_status snapshot_writer_commit(pen_ctx *ctx, group_calls *t, pen_error *why);

/* Between steps, collective: restores a snapshot of the store; -1: the newest.
 * Errors  NOT_FOUND, STORE, CORRUPT, the same on all ranks. */
pen_status snapshot_writer_go_back(pen_ctx *ctx, int64_t step, pen_error *why);

/* Begins a REQUEST_SNAPSHOT: it ends with the next snapshot; alone the snapshot is written at once. */
void snapshot_writer_start(snapshot_writer *k, request *r);

/* After a step whose values are in place, on all ranks alike: if wanted, writes the snapshot of `step`, the number of
 * steps that have ended.
 * Errors  PEER_LOST and others of group calls; not those of the disk. */
pen_status snapshot_writer_step(pen_ctx *ctx, int64_t step, bool is_wanted, pen_error *why);

#endif
