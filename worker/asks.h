/* asks.h - questions of this worker to the scheduler that are said until they are answered.
 *
 * DESIGN.  A pure state machine inside the liaison: FAULT and SHRINK of collectives, STORE of the
 * key-value store.  Each is sent when it is made and again whenever asks_say() is called, until its
 * answer comes; the scheduler knows a repeat by (group, call), group, or number.  Sets and adds are
 * numbered one after another and sent only within ASKS_WINDOW of the oldest that is not answered, so
 * that the scheduler needs to remember no more than that.  Gets have numbers of their own.
 */
#ifndef WORKER_ASKS_H
#define WORKER_ASKS_H

#include "proto/wire.h"

enum { ASKS_WINDOW = 64, ASKS_FAULTS_MAX = 64, ASKS_SHRINKS_MAX = 64 };

typedef struct asks asks;

/* Called from within the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, wire_control *message);
    /* What all members of the group were told; asked for here or by another. */
    void (*faulted)(void *user, uint64_t group, uint64_t call, const pen_error *why);
    /* Of asks_shrink(); why not NULL: there is no agreement. */
    void (*shrunk)(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks, uint32_t n,
                   const pen_error *why);
    /* Of asks_store(), once; why NULL when PEN_OK. */
    void (*stored)(void *user, void *token, const void *data, size_t size, int64_t value,
                   const pen_error *why);
} asks_actions;

typedef struct { /* data: of WIRE_STORE_SET, delta: of WIRE_STORE_ADD */
    wire_store_op op;
    const char *key;
    const void *data;
    size_t size;
    int64_t delta;
    uint64_t deadline_ms; /* a time; 0 = none */
} asks_change;

asks *asks_create(const asks_actions *actions, void *user); /* NULL: no memory */
void asks_destroy(asks *self);                              /* NULL is fine    */

/* Everything given is copied.  Of too many FAULTs and SHRINKs the oldest is forgotten.  Not PEN_OK: no
 * memory, nothing was begun. */
pen_status asks_fault(asks *self, uint64_t group, uint64_t call, const pen_error *why);
pen_status asks_shrink(asks *self, uint64_t group, const int32_t *ranks, uint32_t n);
pen_status asks_store(asks *self, const asks_change *change, void *token, uint64_t now_ms);

void asks_say(asks *self);                                  /* all that is not answered, again */
void asks_receive(asks *self, const wire_control *message); /* FAULTED, SHRUNK, STORED        */
void asks_fail(asks *self, const pen_error *why);           /* ends all                        */
void asks_tick(asks *self, uint64_t now_ms);
uint64_t asks_due(const asks *self);

#endif
