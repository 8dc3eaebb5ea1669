/* coll_rig.h - a job of several members in one process, without scheduler or client: a thread for each rank.
 *
 * Contexts are made as pen_init() makes them, engines get each other's addresses by hand.
 */
#ifndef TESTS_SUPPORT_COLL_RIG_H
#define TESTS_SUPPORT_COLL_RIG_H

#include "worker/collective/engine/engine_internal.h"
#include "worker/context.h"

enum { RIG_RANKS_MAX = 9 };

typedef struct rig rig;
typedef void (*rig_fn)(
    rig *r, int rank); /* in the rank's thread; may not use cmocka's assertions: rig_check() */

struct rig {
    int n;
    pen_ctx *ctx[RIG_RANKS_MAX];
    rig_fn fn;
    void *user;
    atomic_int failures;
};

/* settings: of every rank, ended by NULL; one that begins with "R:" is rank R's alone.  job may be NULL. */
void rig_start(rig *r, int n, const char *const *settings, const coll_job *job);
void rig_run(rig *r, rig_fn fn); /* in all ranks at once */
void rig_stop(rig *r);

/* Counts and prints what is not so. */
#define rig_check(r, so) rig_check_at((r), (so), #so, __FILE__, __LINE__)
void rig_check_at(rig *r, bool so, const char *text, const char *file, int line);

#endif
