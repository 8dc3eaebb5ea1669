/* copies_rig.h - one shard on up to four servers, the network between them, and epoch changes as the
 * scheduler makes them.
 *
 * The ranks are those of shard_rig.h.  Frames between servers are bytes; rig_flush() carries them,
 * unless the test delays, loses, repeats or reorders them.
 */
#ifndef TESTS_COPIES_RIG_H
#define TESTS_COPIES_RIG_H

#include "tests/support/shard_rig.h"

enum { COPIES_MAX = 4 };

typedef struct copies copies;
typedef struct {
    copies *copies;
    uint32_t server;
} copies_outside;

typedef struct {
    uint32_t from, to; /* servers */
    wire_out head;
    buf *payload;
} copies_frame;

struct copies {
    rig *r;                /* r->shard[0] is the primary, on any server */
    shard *at[COPIES_MAX]; /* by server; NULL: dead, or never there */
    shard_role role[COPIES_MAX];
    uint32_t n;
    uint64_t now_ms;

    copies_frame *frame;
    size_t n_frames, capacity;
    bool is_held;                   /* frames are not delivered */
    uint32_t lost, repeated, mixed; /* per cent */
    uint64_t seed;

    int caught_up[COPIES_MAX], suspected[COPIES_MAX];
    rig_outside outside[COPIES_MAX];
    wire_arena *arena;
};

/* Server 0 has the primary, 1 to n_backups have backups, all without values; all ranks are members. */
copies *copies_create(const wire_model *model, const rig_options *o, uint32_t n_backups);
void copies_destroy(copies *c);

void copies_add_learner(copies *c, uint32_t server); /* from the next change on */
void copies_kill(copies *c, uint32_t server);        /* and its messages are lost */

/* Delivers what is in flight, and what follows from it, until nothing is left; time passes while a loss
 * is repaired. */
void copies_carry(copies *c);
void copies_lose(copies *c); /* what is in flight */

/* One epoch change.  Copies are sealed once they are equal (unless `at_once`).  The primary stays, or
 * the most advanced backup replaces it; a copy not equal to it becomes a learner; learners that are
 * equal become backups.  Returns the step that was settled. */
typedef struct {
    bool at_once, members_changed;
} copies_how;
int64_t copies_change(copies *c, copies_how how);
void copies_change_roles(copies *c, copies_how how, uint32_t primary); /* to a live backup */

/* Values, slots, versions, counters, index and digest. */
bool copies_are_equal(const copies *c, uint32_t a, uint32_t b);

#endif
