/* requests.h - unanswered requests of this worker to the scheduler.
 *
 * DESIGN.  A pure table of requests to the scheduler, or through it to other processes: FAULT and
 * SHRINK of collectives, STORE of the key-value store, COMMAND of the program.  Each is sent at
 * once, and again after REQUESTS_AGAIN_MS and with every WELCOME, until it is answered or its
 * deadline has passed.  The receiver recognises repeats by (group, call), group, or number.
 * Sets and adds are numbered in order and sent only within REQUESTS_CHANGES_MAX of the oldest
 * unanswered one.  At most REQUESTS_COMMANDS_MAX commands are in flight.  Both carry the number below
 * which all are answered, so the receiver can forget those.  Gets have their own numbers.
 */
#ifndef WORKER_REQUESTS_H
#define WORKER_REQUESTS_H

#include "proto/wire/wire.h"

enum {
    REQUESTS_AGAIN_MS     = 1000,
    REQUESTS_CHANGES_MAX  = 64,
    REQUESTS_COMMANDS_MAX = 8,
    REQUESTS_FAULTS_MAX   = 64,
    REQUESTS_SHRINKS_MAX  = 64
};

typedef struct requests requests;

typedef struct { /* of STORE and COMMAND */
    /* [n] in rank order; data is OWNED by the callee, NULL for an empty reply.  STORE: one, never NULL. */
    const pen_bytes *replies;
    uint32_t n;
    int64_t value; /* of WIRE_STORE_ADD */
} requests_answer;

/* Called by the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, const wire_control *message); /* may be lost */
    /* The verdict for all members of the group; this or another member asked for it. */
    void (*faulted)(void *user, uint64_t group, uint64_t call, const pen_error *why);
    /* Answer to requests_shrink(); why not NULL: no agreement. */
    void (*shrunk)(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks, uint32_t n,
                   const pen_error *why);
    /* End of requests_kv() and requests_command(), once each. answer is NULL when why is not. */
    void (*ended)(void *user, void *token, const requests_answer *answer, const pen_error *why);
} requests_actions;

typedef struct { /* data: of WIRE_STORE_SET, delta: of WIRE_STORE_ADD */
    wire_store_op op;
    const char *key;
    const void *data;
    size_t size;
    int64_t delta;
} requests_change;

typedef struct {
    int32_t role, rank, head; /* rank -1: all n of that role */
    uint32_t n;
    const void *body;
    size_t size;
} requests_question;

requests *requests_create(const requests_actions *actions, void *user); /* NULL: no memory */
void requests_destroy(requests *self);                                  /* NULL is fine */

/* Arguments are copied.  If there are too many FAULTs or SHRINKs, the oldest is dropped.
 * deadline_ms is a point in time, 0: none.  NO_MEMORY: nothing was begun. */
pen_status requests_fault(requests *self, uint64_t group, uint64_t call, const pen_error *why,
                          uint64_t now_ms);
pen_status requests_shrink(requests *self, uint64_t group, const int32_t *ranks, uint32_t n,
                           uint64_t now_ms);
pen_status requests_kv(requests *self, const requests_change *change, void *token,
                       uint64_t deadline_ms, uint64_t now_ms);
pen_status requests_command(requests *self, const requests_question *question, void *token,
                            uint64_t deadline_ms, uint64_t now_ms);

/* WELCOME, FAULTED, SHRUNK, STORED, REPLY; ignores others. */
void requests_receive(requests *self, const wire_control *message, uint64_t now_ms);
/* Ends all requests, and ignores messages from here on. */
void requests_fail(requests *self, const pen_error *why);
void requests_tick(requests *self, uint64_t now_ms);
uint64_t requests_due(const requests *self);

#endif
