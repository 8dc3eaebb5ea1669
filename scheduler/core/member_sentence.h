/* member_sentence.h - the scheduler's sentences for people: which member is gone or missing, what differs.
 *
 * All members print the same text, so it is written once, here.  Texts that do not fit are truncated.
 */
#ifndef SCHEDULER_MEMBER_SENTENCE_H
#define SCHEDULER_MEMBER_SENTENCE_H

#include "common/base/sentence.h"
#include "scheduler/core/membership/roster.h"

enum { SENTENCE_MEMBER_BYTES = 300 };
const char *sentence_member(char text[SENTENCE_MEMBER_BYTES],
                            const member_slot *s); /* "worker 1 (devbox)" */
/* The same, in memory of the enclosing block. */
#define MEMBER_NAME(s) sentence_member((char[SENTENCE_MEMBER_BYTES]){0}, s)

/* Why this member cannot answer: "worker 1 (devbox) has left the job", and PEER_LOST or NOT_FOUND. */
pen_status sentence_absent(char *text, size_t size, const member_slot *s);

/* The first push that a dead worker owes; step -1: no server knows. */
typedef struct {
    int64_t step;
    const char *tensor;
} sentence_owed_push;

/* PEER_LOST: "worker 1 (devbox) is gone: it has not pushed 'fc1.weight' for step 418; last seen 0.1 s ago", "worker 1
 * (devbox) is gone in step 418, in pen_barrier 'epoch end'; last seen 0.1 s ago" or "server 0 (devbox) is gone: it held
 * 'fc1.weight' and 3 more tensors; step 418; last seen 0.1 s ago". */
void sentence_worker_gone(const member_slot *s, const sentence_owed_push *owed_push,
                          uint64_t now_ms, pen_error *why);
void sentence_server_gone(const member_slot *s, const char *tensor, uint32_t n_tensors,
                          int64_t step, uint64_t now_ms, pen_error *why);

/* What is added for a silent member on another host: " by the scheduler at node0:29500; worker 0 (a) cannot reach it at
 * 10.0.0.7:4711: no answer, timed out; `penstock doctor --master-addr node0` on b tests the connection". */
typedef struct {
    const char *scheduler, *host, *master; /* "node0:29500", its host, and its address alone */
    const member_slot *from;               /* a member that cannot reach it either; NULL: none */
    const char *address, *words;
} sentence_silence;

void sentence_add_silence(const member_slot *s, const sentence_silence *silence, pen_error *why);

/* "worker 1 (b) is gone before the job began; last seen 10.0 s ago by the scheduler at node0:29500; ... on b tests the connection;
 * the job waits 290 s for it to come back". */
void sentence_missed(const member_slot *s, const sentence_silence *silence, uint64_t waits_ms,
                     uint64_t now_ms, pen_error *why);

/* UNREACHABLE: "the scheduler at 10.0.0.7:29500 is gone: it ran on devbox; at its last message the job was in step 418,
 * worker 0 in pen_step_end".  `ahead`: a worker in that step; NULL: none is in a step. */
void sentence_scheduler_gone(const char *address, const char *host, const member_slot *ahead,
                             pen_error *why);

typedef struct {
    const member_slot *from, *to;
    const char *address, *words; /* "tcp://10.0.0.7:4711"; "connection refused" */
    uint32_t n_more;             /* number of other failing connections */
    const member_slot *common;   /* an end common to all; NULL: none */
} sentence_gap;

/* UNREACHABLE: "worker 1 (b) cannot reach server 0 (a) at 10.0.0.7:4711: connection refused; open the TCP ports between these
 * hosts, or start server 0 with a --host ADDRESS that all hosts reach".  The culprit is the common end, or `to`. */
void sentence_unreached(const sentence_gap *gap, pen_error *why);

/* TIMED_OUT: "1 of 4 workers has not joined after 300 s: rank 3.  Joined: 0 (a) 1 (a) 2 (b).
 * `penstock doctor --master-addr a` on its host tests the connection".  n_servers 0: not known yet. */
void sentence_not_joined(const roster *r, uint32_t n_servers, uint64_t waited_ms,
                         const char *master, pen_error *why);

/* "It is alive: in user code for 31 s, last call pen_metric". */
void sentence_alive(sentence *text, const member_slot *s, const char *subject, uint64_t now_ms);

#endif
