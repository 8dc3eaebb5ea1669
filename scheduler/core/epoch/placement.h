/* placement.h - which server holds which copy of which shard, and which move comes next.
 *
 * DESIGN.  Pure functions of tables.  A shard has one primary, backups that acknowledge everything before
 * it is told to anybody (with the primary: R), and learners, which are being filled and count for
 * nothing.  What a job should look like is a goal; it is computed anew when servers come, go or are
 * drained, and from then on every epoch change goes as far towards it as is safe: a copy is added as a
 * learner, a learner that has everything becomes a backup, a backup becomes the primary, and only when all
 * of a shard's goal is in R do the copies go that are no part of it.  So moving a shard, draining a
 * server and repairing after a death are the same few moves.
 *
 * Servers are numbered by rank.  Rows are ordered by shard; in a shard the primary is first.
 */
#ifndef SCHEDULER_PLACEMENT_H
#define SCHEDULER_PLACEMENT_H

#include "proto/wire.h"

typedef struct {
    wire_replica at;
    bool is_caught_up; /* a learner of which its primary said that it has everything     */
    bool is_suspect;   /* a backup of which its primary said that it acknowledges nothing */
} placement_row;

typedef struct { /* zero is an empty one */
    uint32_t n;
    size_t capacity;
    placement_row *row;
} placement;

typedef struct {
    uint32_t places;  /* threads that hold shards; 0: there is no such server, or it is gone */
    bool is_draining; /* it shall hold nothing */
    const char
        *machine; /* copies of a shard lie on different ones where there are several; NULL: "" */
} placement_server;

void placement_fini(placement *table);
bool placement_copy(const placement *from, placement *to); /* false: no memory */

/* The row of this shard on this server, of its primary; NULL: there is none. */
placement_row *placement_find(const placement *table, uint32_t shard, int32_t server);
placement_row *placement_primary(const placement *table, uint32_t shard);

/* Appends and orders.  False: no memory. */
bool placement_add(placement *table, const wire_replica *copy);
void placement_remove(placement *table, const placement_row *row); /* rows behind it move up */
void placement_sort(placement *table);                             /* after roles were changed */

/* How the shards 0 .. n_shards - 1 shall lie: 1 + replicas copies each (fewer where there are fewer
 * servers), on different servers, machines where possible; numbers of copies, and of primaries, that differ
 * by at most one between servers; as few moves from `now` as that allows.  Without `now`, and with as many
 * shards as there are threads, shard k lies on thread k in rank order.
 * Errors  WRONG_STATE  there is no server to lie on.   NO_MEMORY.  *goal is then unchanged. */
pen_status placement_goal(const placement *now, uint32_t n_shards, const placement_server *server,
                          uint32_t n_servers, uint32_t replicas, placement *goal);

/* Goes as far towards the goal as an epoch change may; its backups must be level with their
 * primaries.  False: no memory, and the table is as it was. */
bool placement_follow(placement *table, const placement *goal);

/* Whether placement_follow() would change anything, were learners that have caught up backups. */
bool placement_can_move(const placement *table, const placement *goal);

/* Copies of any role on that server; of any shard. */
uint32_t placement_count(const placement *table, int32_t server);

#endif
