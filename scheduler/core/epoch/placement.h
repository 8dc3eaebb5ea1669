/* placement.h - which server holds which copy of which shard, and which move comes next.
 *
 * DESIGN.  Pure functions of tables.  A shard has one primary, backups and learners.  Nothing is sent to workers before
 * the primary and all backups (together: R) have acknowledged it; learners are being filled and do not count.  The goal
 * is recomputed when servers come, go or are drained.  Every epoch change then goes as far towards it as is safe: a
 * copy is added as a learner, a learner that has everything becomes a backup, a backup becomes the primary, and surplus
 * copies go once all of a shard's goal is in R.  Moving a shard, draining a server and repairing after a death are
 * these moves.
 *
 * Servers are numbered by rank.  Rows are ordered by shard; in a shard the primary is first.
 */
#ifndef SCHEDULER_PLACEMENT_H
#define SCHEDULER_PLACEMENT_H

#include "proto/wire/wire.h"

typedef struct {
    wire_replica at;
    bool is_caught_up; /* learner: its primary reports that it has everything */
    bool is_suspect;   /* backup: its primary reports that it acknowledges nothing */
} placement_row;

typedef struct { /* zero is an empty one */
    uint32_t n;
    size_t capacity;
    placement_row *row;
} placement;

typedef struct {
    uint32_t places;     /* threads that hold shards; 0: the server does not exist or is gone */
    bool is_draining;    /* it must become empty */
    const char *machine; /* copies of a shard go to different machines where possible; NULL: "" */
} placement_server;

void placement_fini(placement *table);
bool placement_copy(const placement *from, placement *to); /* false: no memory */

/* The row of this shard on this server, or of its primary; NULL: none. */
placement_row *placement_find(const placement *table, uint32_t shard, int32_t server);
placement_row *placement_primary(const placement *table, uint32_t shard);

/* Appends and orders.  False: no memory. */
bool placement_add(placement *table, const wire_replica *copy);
void placement_remove(placement *table, const placement_row *row); /* rows behind it move up */
void placement_sort(placement *table);                             /* after changes of roles */

/* The goal for shards 0 .. n_shards - 1: each has 1 + replicas copies (fewer where there are fewer servers) on
 * different servers, and on different machines where possible.  Servers differ by at most one copy and one primary.
 * With as few moves from `now` as possible.  With an empty `now` and as many shards as threads, shard k is on thread k
 * in rank order.
 * Errors  WRONG_STATE  no server can hold a shard.   NO_MEMORY.  *goal is then unchanged. */
pen_status placement_goal(const placement *now, uint32_t n_shards, const placement_server *server,
                          uint32_t n_servers, uint32_t replicas, placement *goal);

/* Goes as far towards the goal as one epoch change may; backups must be level with their primaries.  False: no memory,
 * and the table is unchanged. */
bool placement_follow(placement *table, const placement *goal);

/* Whether placement_follow() would change anything once caught-up learners are backups. */
bool placement_can_move(const placement *table, const placement *goal);

/* The number of copies on that server. */
uint32_t placement_count(const placement *table, int32_t server);

#endif
