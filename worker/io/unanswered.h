/* unanswered.h - unanswered requests of this worker to the scheduler.
 *
 * DESIGN.  A pure table of requests to the scheduler, or through it to other processes: FAULT and
 * SHRINK of collectives, STORE of the key-value store, COMMAND of the program.  Each is sent at
 * once, and again after UNANSWERED_AGAIN_MS and with every WELCOME, until it is answered or its
 * deadline has passed.  The receiver recognises repeats by (group, call), group, or number.
 * Sets and adds are numbered in order and sent only within UNANSWERED_CHANGES_MAX of the oldest
 * unanswered one.  At most UNANSWERED_COMMANDS_MAX commands are in flight.  Both carry the number below
 * which all are answered, so the receiver can forget those.  Gets have their own numbers.
 */
#ifndef WORKER_UNANSWERED_H
#define WORKER_UNANSWERED_H

#include "proto/wire/wire.h"

enum {
    UNANSWERED_AGAIN_MS     = 1000,
    UNANSWERED_CHANGES_MAX  = 64,
    UNANSWERED_COMMANDS_MAX = 8,
    UNANSWERED_FAULTS_MAX   = 64,
    UNANSWERED_SHRINKS_MAX  = 64
};

typedef struct unanswered unanswered;

typedef struct { /* of STORE and COMMAND */
    /* [n] in rank order; data is OWNED by the callee, NULL for an empty reply.  STORE: one, never NULL. */
    const pen_bytes *replies;
    uint32_t n;
    int64_t value; /* of WIRE_STORE_ADD */
} unanswered_answer;

/* Called by the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, const wire_control *message); /* may be lost */
    /* The verdict for all members of the group; this or another member asked for it. */
    void (*faulted)(void *user, uint64_t group, uint64_t call, const pen_error *why);
    /* Answer to unanswered_shrink(); why not NULL: no agreement. */
    void (*shrunk)(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks, uint32_t n,
                   const pen_error *why);
    /* End of unanswered_kv() and unanswered_command(), once each. answer is NULL when why is not. */
    void (*ended)(void *user, void *token, const unanswered_answer *answer, const pen_error *why);
} unanswered_actions;

typedef struct { /* data: of WIRE_STORE_SET, delta: of WIRE_STORE_ADD */
    wire_store_op op;
    const char *key;
    const void *data;
    size_t size;
    int64_t delta;
} unanswered_change;

typedef struct {
    int32_t role, rank, head; /* rank -1: all n of that role */
    uint32_t n;
    const void *body;
    size_t size;
} unanswered_question;

unanswered *unanswered_create(const unanswered_actions *actions, void *user); /* NULL: no memory */
void unanswered_destroy(unanswered *self);                                    /* NULL is fine */

/* Arguments are copied.  If there are too many FAULTs or SHRINKs, the oldest is dropped.
 * deadline_ms is a point in time, 0: none.  NO_MEMORY: nothing was begun. */
pen_status unanswered_fault(unanswered *self, uint64_t group, uint64_t call, const pen_error *why,
                            uint64_t now_ms);
pen_status unanswered_shrink(unanswered *self, uint64_t group, const int32_t *ranks, uint32_t n,
                             uint64_t now_ms);
pen_status unanswered_kv(unanswered *self, const unanswered_change *change, void *token,
                         uint64_t deadline_ms, uint64_t now_ms);
pen_status unanswered_command(unanswered *self, const unanswered_question *question, void *token,
                              uint64_t deadline_ms, uint64_t now_ms);

/* WELCOME, FAULTED, SHRUNK, STORED, REPLY; ignores others. */
void unanswered_receive(unanswered *self, const wire_control *message, uint64_t now_ms);
/* Ends all requests, and ignores messages from here on. */
void unanswered_fail(unanswered *self, const pen_error *why);
void unanswered_tick(unanswered *self, uint64_t now_ms);
uint64_t unanswered_due(const unanswered *self);

#endif
