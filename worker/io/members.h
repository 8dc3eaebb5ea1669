/* members.h - the members of the job, as visible to the program.
 *
 * Views arrive while a step is open, on some ranks earlier than on others.  A program that divides
 * its data by the members must see a change between the same two steps on every rank.  So a change
 * of step S is visible from S + 1 on: no rank ends S before it has the view.  A new worker sees the
 * members at once.
 * Threads: "pen-io" writes, threads of the program read; locked inside.
 */
#ifndef WORKER_MEMBERS_H
#define WORKER_MEMBERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { MEMBERS_PENDING_MAX = 16 };

typedef struct {
    uint64_t epoch;
    int64_t after; /* visible once a later step begins; -1: once any does */
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

/* The members when training begins: visible at once. False: no memory. */
bool members_set(member_list *m, uint64_t epoch, const int32_t *rank, uint32_t n);

/* A change. rank [n] in any order. False: no memory, and the change is lost. */
bool members_change(member_list *m, uint64_t epoch, int64_t after, const int32_t *rank, uint32_t n);

/* Step `index` begins: true when members changed since the step before. */
bool members_advance(member_list *m, int64_t index);

uint64_t members_epoch(member_list *m);
uint32_t members_count(member_list *m); /* 0: unknown yet */
/* The first n; returns the count. */
uint32_t members_ranks(member_list *m, int32_t *rank, uint32_t n);

#endif
