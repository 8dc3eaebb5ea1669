/* kv.h - the small key-value store of a job: values, who waits for one, and answers that may be asked for again.
 *
 * DESIGN.  Sets and adds are carried out once: what was answered to a number is kept until the asker says, by
 * done_below, that it has it.  An asker has at most KV_AT_ONCE on their way, numbered one after another, so what is
 * kept is bounded.  Of those who wait the oldest is forgotten when there are too many, for it comes again.
 */
#ifndef SCHEDULER_KV_H
#define SCHEDULER_KV_H

#include "scheduler/core/membership/roster.h"
#include "scheduler/core/services/value_table.h"

enum {
    KV_AT_ONCE     = 64, /* of one worker: numbers from the oldest unanswered on */
    KV_WAITERS_MAX = 4096
};

typedef struct
{ /* answered, and perhaps to be answered again; id 0: none.  Kept as three numbers. */
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

typedef struct { /* zero is an empty one */
    value_table *values;
    kv_memory **memory; /* [n_workers] */
    uint32_t n_workers, n_waiters;
    size_t n_memories, capacity; /* room for so many of them, and waiters */
    kv_waiter *waiter;           /* oldest first */
} kv;

void kv_fini(kv *self);

/* Before anything below: makes room for so many workers, of whom there may be more than there were.  False: no
 * memory. */
bool kv_reserve(kv *self, uint32_t n_workers);

/* Where the answer to this number is or will be; NULL: no memory, or the number is from before. */
kv_answer *kv_answer_of(kv *self, const seat *s, uint64_t id);

void kv_wait(kv *self, const seat *s, uint64_t id, const char *key);
void kv_drop_waiter(kv *self, uint32_t index);

/* Everything in it, for keeping; and back.  False: it cannot be ours, or there is no memory. */
void kv_each(const kv *self,
             void (*value)(void *user, const char *key, const void *data, size_t size),
             void (*answers)(void *user, const int64_t *number, size_t n), void *user);
bool kv_adopt(kv *self, const wire_control *set, uint32_t n_workers);
bool kv_adopt_answers(kv *self, const void *data, size_t size, uint32_t n_workers);

#endif
