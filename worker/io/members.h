/* members.h - who is in the job, as the program sees it.
 *
 * Records of epochs come while a step is open, on one rank sooner than on another.  A program that
 * divides its data by the members must see a change between the same two steps on every rank: a
 * change of step S is seen from S + 1 on, for nobody ends S without having heard of it.  Who joins
 * sees it at once, with its first step.
 * Threads: "pen-io" tells, the program's threads look; a lock is inside.
 */
#ifndef WORKER_MEMBERS_H
#define WORKER_MEMBERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { MEMBERS_PENDING_MAX = 16 };

typedef struct {
    uint64_t epoch;
    int64_t after; /* seen once a later step begins; -1: once any does */
    uint32_t n;
    int32_t *rank; /* [n] RANKs, ascending */
} members_view;

typedef struct {
    pthread_mutex_t lock;
    members_view now, pending[MEMBERS_PENDING_MAX]; /* oldest first */
    uint32_t n_pending;
} member_list;

void members_init(member_list *m);
void members_fini(member_list *m);

/* What is known of the members when training begins: seen at once.  False: no memory. */
bool members_set(member_list *m, uint64_t epoch, const int32_t *rank, uint32_t n);

/* A change.  rank [n] in any order.  False: no memory, the change is not seen. */
bool members_change(member_list *m, uint64_t epoch, int64_t after, const int32_t *rank, uint32_t n);

/* Step `index` begins: true when members changed since the step before. */
bool members_advance(member_list *m, int64_t index);

uint64_t members_epoch(member_list *m);
uint32_t members_count(member_list *m); /* 0: nobody was told */
uint32_t members_ranks(member_list *m, int32_t *rank,
                       uint32_t n); /* the first n; returns the count */

#endif
