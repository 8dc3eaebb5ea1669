/* membership.h - the life of a member of a job, as it sees it: joining, beating, sealing, leaving.
 *
 * DESIGN.  A pure state machine: no socket, clock, thread or file.  Connection events, decoded messages and the time go
 * in; messages and what they mean come out.  Worker, server and simulator all run this one.
 *   Joining   HELLO, once a second until WELCOME came on this connection; so after each reconnect.  A WELCOME for another
 *             incarnation ends the member: the scheduler does not know it any more.
 *   Silence   Ten BEATs a lease.  Only an answer (BEAT_ACK, WELCOME) proves both directions, so silence counts from the
 *             newest one.  After a quarter of a lease another connection is asked for, and after each further quarter.  The
 *             scheduler is lost after a lease, or when a broken connection has not brought WELCOME in time.  A scheduler
 *             that promised to come back (grace_ms of WELCOME) may be away for that long.  Time in which this process
 *             itself stood still is nobody's silence.
 *   Epochs    Of EPOCH only newer ones are passed on.  A scheduler of a later term goes on with later epochs; once the
 *             member has begun (membership_begun()), one that begins anew has lost the job, and is not followed.
 *   Sealing   A holder of state is asked to stand still (SEAL), says where (membership_sealed(), once for each of its parts),
 *             and repeats SEALED until an epoch as new has come.
 *   Leaving   BYE, until BYED.
 * The first failure is final.  Whatever else is unanswered is its owner's to say again: when, it is told (say_again).
 */
#ifndef MEMBERSHIP_MEMBERSHIP_H
#define MEMBERSHIP_MEMBERSHIP_H

#include "proto/wire.h"

enum {
    MEMBERSHIP_DOWN_MS = 1000
}; /* what a connection takes to come back, where nothing else is set */

typedef struct {
    uint64_t lease_ms;     /* until WELCOME says another                                       */
    uint64_t answer_ms;    /* longest silence before the scheduler's first word                */
    uint64_t patience_ms;  /* of which so much passes before it is worth a line (waiting)      */
    uint64_t join_ms;      /* longest time until the first EPOCH; 0: however long              */
    uint64_t down_ms;      /* how long a connection may be broken                              */
    uint64_t beat_ms_max;  /* longest time between beats; 0: what the lease makes of it        */
    uint32_t n_parts;      /* that are sealed one by one; 0: it holds no state                 */
    bool waits_to_leave;   /* says farewell also to a scheduler that is away, when it is back */
    const char *scheduler; /* "10.0.0.7:29500", for sentences; copied                          */
    const char *self;      /* "this worker", likewise; copied                                  */
} membership_setup;

/* Called from within the functions below; must not call them, but for membership_say() and membership_sealed().
 * Messages are BORROWED for the call. */
typedef struct {
    void (*send)(void *user, const wire_control *message); /* may be lost */
    void (*log)(void *user, int level, const char *line);
    void (*fill_hello)(void *user, wire_control *hello);
    void (*fill_beat)(void *user, wire_control *beat); /* all but seq */
    void (*renew)(
        void *user); /* open another connection beside this one; NULL: there is none to be had */

    void (*waiting)(void *user, uint64_t left_ms);  /* no answer yet; NULL: nobody asks          */
    void (*unanswered)(void *user, pen_error *why); /* writes the sentence of a failure to join  */
    void (*welcome)(void *user, const wire_control *m,
                    bool is_first); /* NULL: nobody asks             */
    void (*say_again)(
        void *user,
        bool is_anew); /* is_anew: the scheduler may know nothing of it; NULL: nothing to say */
    void (*epoch)(void *user, const wire_control *message);
    void (*seal)(void *user, uint64_t term,
                 uint64_t epoch);                     /* each part answers by membership_sealed() */
    void (*left)(void *user);                         /* BYED, or nobody is there to say it      */
    void (*failed)(void *user, const pen_error *why); /* once                                     */
} membership_actions;

typedef enum {
    MEMBERSHIP_JOINING,
    MEMBERSHIP_JOINED, /* WELCOME has come */
    MEMBERSHIP_LEAVING,
    MEMBERSHIP_LEFT,
    MEMBERSHIP_FAILED
} membership_phase;

typedef struct { /* what it is sealed for, or was; epoch 0: nothing yet */
    uint64_t term, epoch;
    uint32_t n_due; /* parts that have not said where they stand */
    uint32_t n_reports;
    size_t capacity;
    wire_sealed_report *report; /* OWNED */
    bool is_over;               /* an epoch as new has come */
} membership_seal;

typedef struct { /* read only, and by the functions below first */
    membership_setup setup;
    membership_actions act;
    void *user;
    char scheduler[300], self[64];
    membership_phase phase;
    bool is_up, is_known;                           /* is_known: WELCOME came on this connection */
    bool has_epoch, has_begun, is_away, has_waited; /* is_away, has_waited: said so */
    uint64_t incarnation;                           /* 0 before WELCOME */
    uint64_t grace_ms;    /* for which the scheduler may be away; 0: it does not come back */
    uint64_t term, epoch; /* of the newest record */
    uint64_t begun_ms, again_ms, beat_ms, beats, leave_ms, acked_ms, down_ms, renewed_ms, ticked_ms;
    pen_error last_will; /* what to say when the scheduler is gone; "" before it came */
    membership_seal seal;
} membership;

void membership_init(membership *self, const membership_setup *setup,
                     const membership_actions *actions, void *user, uint64_t now_ms);
void membership_fini(membership *self); /* one of zeros is fine */

void membership_up(membership *self, uint64_t now_ms);
void membership_down(membership *self, uint64_t now_ms);
/* False: the message is not about membership, and its owner's. */
bool membership_receive(membership *self, const wire_control *message, uint64_t now_ms);
void membership_tick(membership *self, uint64_t now_ms);
uint64_t membership_due(const membership *self); /* UINT64_MAX: not before something else happens */

/* Says it as this member's, if the scheduler knows it and is there; may be lost. */
void membership_say(membership *self, const wire_control *message);
void membership_begun(membership *self,
                      uint64_t now_ms); /* it has state that no other job may use */
void membership_beat(membership *self,
                     uint64_t now_ms); /* at once: there is something new to tell */
void membership_again(membership *self,
                      uint64_t now_ms); /* likewise: all that is unanswered        */

/* One part stands still for this term and epoch; reports are copied.  SEALED follows when all parts do.  Those of an older
 * SEAL are ignored.  NO_MEMORY: the part has to say it again. */
pen_status membership_sealed(membership *self, uint64_t term, uint64_t epoch,
                             const wire_sealed_report *report, uint32_t n);

/* BYE, until `left`; within two seconds, or with waits_to_leave, while the scheduler is away, within its grace. */
void membership_leave(membership *self, uint64_t now_ms);

bool membership_is_over(const membership *self); /* it has left or failed */

/* How long the scheduler, which has been heard before, has said nothing; 0: nobody listens to it any more. */
uint64_t membership_silence_ms(const membership *self, uint64_t now_ms);

/* Whether a record of (term, epoch) replaces one of (old_term, old_epoch). */
static inline bool membership_is_newer(uint64_t term, uint64_t epoch, uint64_t old_term,
                                       uint64_t old_epoch)
{
    return term != old_term ? term > old_term : epoch > old_epoch;
}

#endif
