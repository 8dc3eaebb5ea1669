/* snapshot_writer_internal.h - shared by snapshot_writer.c and snapshot_writer_restore.c only. */
#ifndef WORKER_TRAIN_SNAPSHOT_WRITER_INTERNAL_H
#define WORKER_TRAIN_SNAPSHOT_WRITER_INTERNAL_H

#include "proto/plan.h"
#include "proto/snapshot_part.h"
#include "worker/train/snapshot/snapshot_writer.h"
#include "worker/train/state_ranges.h"

enum {
    SNAPSHOT_WRITER_KEEP_MAX = 64,
    SNAPSHOT_WRITER_PIECE    = 1 << 20, /* elements written at a time */
    SNAPSHOT_WRITER_TEXT     = 240
};

struct snapshot_writer {
    pen_ctx *ctx;
    group_calls *group_calls; /* from snapshot_writer_commit() on; NULL: alone */
    plan *plan;               /* how chunks are numbered; made at commit */
    part_writer writer;
    uint64_t run; /* unique to this run, the same on all ranks: ids of snapshots begin with it */
    int64_t kept[SNAPSHOT_WRITER_KEEP_MAX + 1]; /* complete snapshots, in the order of writing */
    uint32_t n_kept;
    /* the disk was full for the newest part; after snapshot_writer_agree(): on any rank */
    bool lacks_room;
    uint64_t said;        /* hash of why the newest failed; 0: it is complete */
    pthread_mutex_t lock; /* of all below */
    request *asked;       /* linked */
};

int snapshot_writer_position(const snapshot_writer *k); /* among the writers: 0 decides */
int snapshot_writer_members(const snapshot_writer *k);

/* Sets *why to the failure of a member, as it came: any number, any bytes.  `before` goes before its text. */
pen_status snapshot_writer_heard(const char *before, int32_t status, const char *text, size_t size,
                                 pen_error *why);

/* Exchanges the results of all ranks: all return the first failure in rank order.
 * *is_told: the result is the same on all ranks; else the exchange itself failed. */
pen_status snapshot_writer_agree(snapshot_writer *k, pen_status own, bool *is_told, pen_error *why);

#endif
