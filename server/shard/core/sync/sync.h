/* sync.h - what a consistency rule is: when a push counts, and when values may leave.
 *
 * A rule is two pure functions of four counters of one chunk.  It knows no arrays, messages or members; the core
 * (server/shard/core/core.h) keeps the counters and applies the verdicts.
 *
 * Two kinds of rule.  An averaging rule (bsp) collects one contribution of every rank, then updates once with their
 * mean.  The others update with each contribution on arrival.  bsp is not "ssp s=0": one update with the mean
 * differs from N updates with the parts for every nonlinear update rule, such as Adam.
 *
 * To add a rule: its two functions, its sync_ops and its place in sync_all, in sync.c.  tests/conformance/sync_test.c then
 * checks it without being edited.
 */
#ifndef SERVER_SYNC_H
#define SERVER_SYNC_H

#include "common/base/config.h"
#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

/* The parameters of all rules; each rule's table lists those it reads. */
typedef struct {
    uint64_t s; /* ssp: pushes a rank may be ahead of the slowest and still get values */
} sync_hyper;

/* One chunk as seen for one rank.  Pushes of a chunk and rank are numbered one by one; a new job
 * begins at 0, a restored one at its snapshot's step. */
typedef struct {
    uint64_t seq;     /* number of the push in question; serve() ignores it */
    uint64_t clock;   /* number of this rank's next push: all lower ones were taken */
    uint64_t slowest; /* least clock of a live rank */
    uint64_t round;   /* averaging rules: the open round; all lower ones are applied */
} sync_view;

typedef enum {
    SYNC_ADD,    /* part of the open round's mean */
    SYNC_APPLY,  /* update with it now */
    SYNC_REPEAT, /* a repeat: answer again, never sum or apply */
    SYNC_EARLY   /* too early: must be sent again */
} sync_verdict;

typedef struct {
    const char *name;             /* the user's word: sync="ssp s=2" */
    const char *doc;              /* one sentence for docs */
    const config_row *hyper_rows; /* into sync_hyper */
    bool averages;                /* one update per round with the mean of all ranks */

    /* Classifies a push.  REPEAT exactly if seq < clock, so no push counts twice; ADD or APPLY only if seq ==
     * clock, so none is skipped. */
    sync_verdict (*push)(const sync_hyper *hyper, const sync_view *view);

    /* Whether this rank may have values now.  True if no rank is behind it and none of its pushes waits, so some rank
     * can always continue. */
    bool (*serve)(const sync_hyper *hyper, const sync_view *view);
} sync_ops;

extern const sync_ops sync_async;        /* for requests to handlers */
extern const sync_ops *const sync_all[]; /* NULL-terminated; tests and docs walk this */

/* "ssp s=2" -> rule and its parameters.  NULL or "" is bsp.  BAD_SETTING names the word. */
pen_status sync_parse(const char *text, const sync_ops **ops, sync_hyper *hyper, pen_error *why);

#endif
