/* kv.h - the small key-value store of a job: values, waiting gets, and answers that may be requested again.
 *
 * DESIGN.  Sets and adds are executed once: the answer to a number is kept until the asker has it (done_below).  An
 * asker has at most KV_AT_ONCE outstanding, numbered consecutively, so memory is bounded.  If too many gets wait, the
 * oldest is dropped; its asker repeats it.
 */
#ifndef SCHEDULER_KV_H
#define SCHEDULER_KV_H

#include "scheduler/core/membership/roster.h"
#include "common/containers/value_table.h"

enum {
    KV_AT_ONCE     = 64, /* outstanding sets and adds of one worker */
    KV_WAITERS_MAX = 4096
};

typedef struct { /* persisted as three numbers; id 0: none */
    uint64_t id;
    int64_t status, value;
} kv_answer;

typedef struct {
    uint64_t incarnation;
    kv_answer answer[KV_AT_ONCE];
} kv_memory;

typedef struct {
    uint64_t incarnation, id;
    int32_t rank;
    char key[VALUE_KEY_BYTES];
} kv_waiter;

typedef struct { /* zero is empty */
    value_table *values;
    kv_memory **memory; /* [n_workers] */
    uint32_t n_workers, n_waiters;
    size_t n_memories, capacity; /* of memory and waiter */
    kv_waiter *waiter;           /* oldest first */
} kv;

void kv_fini(kv *self);

/* Makes room for this many workers; call it before the functions below.  False: no memory. */
bool kv_reserve(kv *self, uint32_t n_workers);

/* Where the answer to this number is kept; NULL: no memory, or the number is too old. */
kv_answer *kv_answer_of(kv *self, const member_slot *s, uint64_t id);

void kv_wait(kv *self, const member_slot *s, uint64_t id, const char *key);
void kv_drop_waiter(kv *self, uint32_t index);

/* Its whole content, to persist and load.  False: not our format, or no memory. */
void kv_each(const kv *self,
             void (*value)(void *user, const char *key, const void *data, size_t size),
             void (*answers)(void *user, const int64_t *number, size_t n), void *user);
bool kv_adopt(kv *self, const wire_control *set, uint32_t n_workers);
bool kv_adopt_answers(kv *self, const void *data, size_t size, uint32_t n_workers);

#endif
