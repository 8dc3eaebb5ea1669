/* membership.h - the life of a member of a job: it joins, beats, is sealed and leaves.
 *
 * DESIGN.  A pure state machine: no socket, clock, thread or file.  Connection events, decoded messages and the time go
 * in; messages and what they mean come out.  Worker, server and simulator all run this one.
 *   Joining   HELLO, once a second until WELCOME came on this connection, and again after each reconnect.  A WELCOME for
 *             another incarnation ends the member: the scheduler does not know it any more.
 *   Silence   Ten BEATs a lease.  Only an answer (BEAT_ACK, WELCOME) proves both directions, so silence counts from the
 *             newest answer.  After each quarter of a lease the member asks for another connection.  The scheduler is
 *             lost after a lease, or when a broken connection has not brought WELCOME in time.  A scheduler that
 *             promised to come back (grace_ms of WELCOME) may be away for that long.  Time in which this process itself
 *             was stopped does not count.
 *   Epochs    Only a newer EPOCH is passed on.  A scheduler of a later term continues with later epochs.  One that
 *             starts over has lost the job: a member that has begun (membership_begun()) does not follow it.
 *   Sealing   A holder of state is asked to stop (SEAL), reports its position (membership_sealed(), once for each
 *             of its parts), and repeats SEALED until an epoch as new has come.
 *   Leaving   BYE, until BYED.
 * The first failure is final.  The owner repeats everything else that is unanswered; resend tells it when.
 */
#ifndef MEMBERSHIP_MEMBERSHIP_H
#define MEMBERSHIP_MEMBERSHIP_H

#include "proto/wire/wire.h"

enum { MEMBERSHIP_DOWN_MS = 1000 }; /* default of down_ms */

typedef struct {
    uint64_t lease_ms;     /* until WELCOME sets another */
    uint64_t answer_ms;    /* longest wait for the scheduler's first answer */
    uint64_t patience_ms;  /* how much of that passes before `waiting` is called */
    uint64_t join_ms;      /* longest wait for the first EPOCH; 0: unlimited */
    uint64_t down_ms;      /* how long a connection may be broken */
    uint64_t beat_ms_max;  /* longest time between beats; 0: derived from the lease */
    uint32_t n_parts;      /* parts that are sealed one by one; 0: it holds no state */
    bool waits_to_leave;   /* BYE waits for a scheduler that is away */
    const char *scheduler; /* "10.0.0.7:29500", for sentences; copied */
    const char *self;      /* "this worker", for sentences; copied */
} membership_setup;

/* Called from within the functions below; must not call these functions, except membership_send() and
 * membership_sealed().  Messages are BORROWED for the call. */
typedef struct {
    void (*send)(void *user, const wire_control *message); /* may be lost */
    void (*log)(void *user, int level, const char *line);
    void (*fill_hello)(void *user, wire_control *hello);
    void (*fill_beat)(void *user, wire_control *beat); /* all but seq */

    /* These four may be NULL. */
    void (*renew)(void *user);                     /* opens another connection beside this one */
    void (*waiting)(void *user, uint64_t left_ms); /* no answer yet */
    void (*welcome)(void *user, const wire_control *m, bool is_first);
    void (*resend)(void *user, bool is_anew); /* is_anew: the scheduler may not know it */

    void (*unanswered)(void *user, pen_error *why); /* writes the sentence of a failure to join */
    void (*epoch)(void *user, const wire_control *message);
    void (*seal)(void *user, uint64_t term,
                 uint64_t epoch); /* membership_sealed() follows for each part */
    void (*left)(void *user);     /* BYED, or the scheduler is gone */
    void (*failed)(void *user, const pen_error *why); /* once */
} membership_actions;

typedef enum {
    MEMBERSHIP_JOINING,
    MEMBERSHIP_JOINED, /* WELCOME has come */
    MEMBERSHIP_LEAVING,
    MEMBERSHIP_LEFT,
    MEMBERSHIP_FAILED
} membership_phase;

typedef struct { /* the newest SEAL; epoch 0: none yet */
    uint64_t term, epoch;
    uint32_t n_due; /* parts that have not reported */
    uint32_t n_reports;
    size_t capacity;
    wire_sealed_report *report; /* OWNED */
    bool is_over;               /* a newer or equal epoch has come */
} membership_seal;

typedef struct { /* read only; prefer the functions below */
    membership_setup setup;
    membership_actions act;
    void *user;
    char scheduler[300], self[64];
    membership_phase phase;
    bool is_up, is_known; /* is_known: WELCOME came on this connection */
    bool has_epoch, has_begun;
    bool is_away, has_waited; /* has been logged */
    uint64_t incarnation;     /* 0 before WELCOME */
    uint64_t grace_ms;        /* how long the scheduler may be away; 0: it does not return */
    uint64_t term, epoch;     /* of the newest record */
    uint64_t begun_ms, again_ms, beat_ms, beats, leave_ms, acked_ms, down_ms, renewed_ms, ticked_ms;
    pen_error failure;   /* of membership_report(); status PEN_OK: none */
    pen_error last_will; /* the sentence for when the scheduler is gone; "" before it came */
    membership_seal seal;
} membership;

void membership_init(membership *self, const membership_setup *setup,
                     const membership_actions *actions, void *user, uint64_t now_ms);
void membership_fini(membership *self); /* zeros are fine */

void membership_up(membership *self, uint64_t now_ms);
void membership_down(membership *self, uint64_t now_ms);
/* False: the message is not about membership; its owner handles it. */
bool membership_receive(membership *self, const wire_control *message, uint64_t now_ms);
void membership_tick(membership *self, uint64_t now_ms);
uint64_t membership_due(const membership *self); /* of the next tick; UINT64_MAX: none */

/* Sends it as this member's message, if connected to a scheduler that knows the member; may be lost. */
void membership_send(membership *self, const wire_control *message);
/* FAILURE, again and again until the scheduler's verdict: it may be away, or the message lost.  The first one counts. */
void membership_report(membership *self, const pen_error *why);
void membership_begun(membership *self, uint64_t now_ms); /* it holds state of this job only */
void membership_beat(membership *self, uint64_t now_ms);  /* sends a BEAT at once */
void membership_again(membership *self, uint64_t now_ms); /* repeats unanswered messages at once */

/* One part has stopped for this term and epoch; reports are copied, but for those without a role: such a copy lacked the
 * memory for its first epoch.  SEALED follows when all parts have.  Reports for an older SEAL are ignored.  NO_MEMORY:
 * the part has to report again. */
pen_status membership_sealed(membership *self, uint64_t term, uint64_t epoch,
                             const wire_sealed_report *report, uint32_t n);

/* BYE, until `left`: at most two seconds, plus the scheduler's grace while it is away (waits_to_leave). */
void membership_leave(membership *self, uint64_t now_ms);

bool membership_is_over(const membership *self); /* it has left or failed */

/* How long a scheduler that has answered before has been silent; 0: the member does not listen. */
uint64_t membership_silence_ms(const membership *self, uint64_t now_ms);

/* Whether a record of (term, epoch) replaces one of (old_term, old_epoch). */
static inline bool membership_is_newer(uint64_t term, uint64_t epoch, uint64_t old_term,
                                       uint64_t old_epoch)
{
    return term != old_term ? term > old_term : epoch > old_epoch;
}

#endif
