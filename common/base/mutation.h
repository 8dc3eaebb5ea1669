/* mutation.h - planted bugs: rules of the protocol that a test can switch off, to see that the simulator notices.
 *
 * Not in the product: without PENSTOCK_MUTATION, mutation() is the constant false and the compiler drops the branch. The
 * simulator (tests/sim) compiles the pure cores again with PENSTOCK_MUTATION and sets `mutation_active` to one bug at a
 * time. A switch is one line next to its rule:
 *
 *     if (s->sealed && !mutation(MUTATION_SEAL_GOES_ON)) return refuse(s, ...);
 *
 * A new one: a row of MUTATION_ROWS, and the line. Its test comes with the row. */
#ifndef PENSTOCK_COMMON_MUTATION_H
#define PENSTOCK_COMMON_MUTATION_H

#include <stdbool.h>

/* name, what the bug does */
#define MUTATION_ROWS(X)                                                                           \
    X(SEAL_GOES_ON, "a sealed shard goes on applying")                                             \
    X(EPOCH_IN_IDENTITY, "a push said again in the next epoch counts as another push")             \
    X(NO_FENCE, "messages of an epoch, a term or an incarnation that is over are taken")           \
    X(GATE_IGNORES_BACKUP, "the primary goes on without its backups")                              \
    X(COMMIT_NOT_GATED, "values of a step leave before every backup has its decision")             \
    X(LEARNER_PROMOTED, "a learner may become primary")                                            \
    X(EPOCH_BEFORE_KEEP, "an epoch is told before it is durable")                                  \
    X(PULL_BEFORE_BACKUPS, "values are served before every backup has them")                       \
    X(LOG_OUT_OF_ORDER, "a backup applies entries of the log as they come")                        \
    X(DEDUP_OFF_BY_ONE, "the newest push that was applied is not known as a repeat")               \
    X(ACK_BEFORE_REPLICATE, "a push is acknowledged before it is in the log of its backups")       \
    X(DECISION_OF_OTHER_STEP, "an epoch settles a step with the decision of another")              \
    X(SNAPSHOT_DROPPED_BY_PART, "the older snapshot goes when one part of the newer is written")   \
    X(DECISION_IGNORED_AT_INSTALL,                                                                 \
      "an epoch that brings a decision does not commit what is prepared")                          \
    X(MEMBERS_KEEP_STAGING, "what was staged stays when the members change")                       \
    X(FILL_UNORDERED, "a learner applies updates of chunks whose values have not come")            \
    X(RESEND_FROM_NEXT, "after a broken link the log goes on behind the gap")                      \
    X(NO_RESERVED_CREDIT,                                                                          \
      "a shard that keeps as much as it may turns away the rank whose turn it is")                 \
    X(NUMBER_NOT_COMPARED, "who says that it has read a number in another's memory is believed")   \
    X(RENEWAL_LOST, "a member whose connection is silent opens no other")                          \
    X(STALE_INCARNATION, "a member goes on with a scheduler that knows it as another")             \
    X(SEAL_FORGOTTEN, "SEALED is said once, and lost with its message")                            \
    X(LEAST_STEP_SETTLED, "an epoch without servers goes on from the least step that was applied") \
    X(SEAL_NOT_AWAITED, "an epoch ends before all holders of state have said where they stand")    \
    X(GRACE_NOT_GRANTED, "a member does not wait for a scheduler that promised to come back")      \
    X(READY_NOT_AWAITED, "the first step begins before all workers have reached all")              \
    X(ROWS_NOT_COUNTED, "a copy applies pushes of rows and does not count them")                   \
    X(ROWS_LEFT_BEHIND, "a part of a table is filled without its newest block of rows")

/* Rules backed up by a second rule: switching off one alone does no harm.  The epoch changes with every term and
 * incarnation, and its fence keeps out old messages.  A learner reported as caught up becomes a backup only if its
 * sealed log is as long as its primary's. */
#define MUTATION_BACKED_ROWS(X)                                                                    \
    X(NO_INCARNATION_CHECK, "messages for or from an earlier incarnation are taken")               \
    X(TERM_IGNORED, "messages of an earlier scheduler are taken")                                  \
    X(CAUGHT_UP_EARLY, "a learner counts as caught up before its last value has come")

typedef enum {
    MUTATION_NONE = 0,
#define MUTATION_ID(name, text) MUTATION_##name,
    MUTATION_ROWS(MUTATION_ID) MUTATION_BACKED_ROWS(MUTATION_ID)
#undef MUTATION_ID
        MUTATION_IDS
} mutation_id;

#ifdef PENSTOCK_MUTATION
/* The active bug; defined by the program that links the planted cores. */
extern int mutation_active;

static inline bool mutation(int id)
{
    return mutation_active == id;
}
#else
static inline bool mutation(int id)
{
    (void)id;
    return false;
}
#endif

#endif
