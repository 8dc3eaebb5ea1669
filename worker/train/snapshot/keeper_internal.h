/* keeper_internal.h - shared by keeper.c and keeper_restore.c only. */
#ifndef WORKER_TRAIN_KEEPER_INTERNAL_H
#define WORKER_TRAIN_KEEPER_INTERNAL_H

#include "proto/plan.h"
#include "proto/snapshot_part.h"
#include "worker/train/holding.h"
#include "worker/train/snapshot/keeper.h"

enum {
    KEEPER_KEEP_MAX = 64,
    KEEPER_PIECE    = 1 << 20, /* elements written at a time */
    KEEPER_TEXT     = 240
};

struct keeper {
    pen_ctx *ctx;
    talk *talk; /* from keeper_commit() on; NULL: alone */
    plan *plan; /* how chunks are numbered; made at commit */
    part_writer writer;
    uint64_t run; /* the same on all ranks and in no other run: ids of snapshots begin with it */
    int64_t kept[KEEPER_KEEP_MAX + 1]; /* complete ones, in the order they were written */
    uint32_t n_kept;
    bool lacks_room; /* the disk was full for the newest part; after keeper_agree(): on any rank */
    pthread_mutex_t lock; /* of what follows */
    request *asked;       /* linked */
};

int keeper_position(const keeper *k); /* among the writers: 0 decides */
int keeper_members(const keeper *k);

/* All exchange their results: all return the first failure in rank order.
 * *is_told: the result is the same on all; else the exchange itself failed. */
pen_status keeper_agree(keeper *k, pen_status own, bool *is_told, pen_error *why);

#endif
