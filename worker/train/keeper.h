/* keeper.h - snapshots of jobs without servers: every worker writes its share of what they hold.
 *
 * DESIGN.  The files are those of servers (common/snapshot/store.h), so that what is written here goes on with any number
 * of workers and servers, and the other way round.  A snapshot is written between two steps, in the thread that ends
 * the step: training waits for the disk.  All ranks write at the same step, then hear of each other how it went; what
 * is older goes when all have succeeded.  A snapshot that fails costs itself, never the job.  Where the disk has no
 * room for it and holds two or more, the oldest goes first, and it is tried once more.
 * Thread: the program's, with the step's lock; keeper_start() from any.
 */
#ifndef WORKER_TRAIN_KEEPER_H
#define WORKER_TRAIN_KEEPER_H

#include "worker/train/talk.h"

typedef struct keeper keeper;

/* In pen_init(), where there are no servers: sets ctx->keeper.
 * Errors  BAD_SETTING  snapshots are wanted and there is no store. */
pen_status keeper_create(pen_ctx *ctx, pen_error *why);
void keeper_destroy(pen_ctx *ctx); /* ctx->keeper NULL is fine; requests have ended before */

/* At the end of a strategy's opening: collective.  t is BORROWED; NULL: alone.  Goes on from the newest snapshot where
 * resume=yes: holding, step, updates, the program's states; then calls strategy_ops.restored. */
pen_status keeper_commit(pen_ctx *ctx, talk *t, pen_error *why);

/* Between steps, collective: goes back to a snapshot of the store; -1: the newest.
 * Errors  NOT_FOUND, STORE, CORRUPT, the same on all ranks. */
pen_status keeper_go_back(pen_ctx *ctx, int64_t step, pen_error *why);

/* A REQUEST_SNAPSHOT: ends with the snapshot that is written next.  Alone that is at once, for nobody else has to be in
 * the same step. */
void keeper_start(keeper *k, request *r);

/* After a step whose values are in place, on all ranks alike: writes the snapshot of `step`, which is the number of
 * steps that have ended, when it is wanted.
 * Errors  PEER_LOST and others of talking; a disk that fails is none. */
pen_status keeper_step(pen_ctx *ctx, int64_t step, bool is_wanted, pen_error *why);

#endif
