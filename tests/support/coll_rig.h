/* coll_rig.h - a job of several members in one process, without scheduler or client: a thread for each rank.
 *
 * Contexts are created as pen_init() does; the rig passes the engines' addresses on.
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

/* settings: of every rank, ended by NULL; one that begins with "R:" is for rank R only.  job may be NULL. */
void rig_start(rig *r, int n, const char *const *settings, const coll_job *job);
void rig_run(rig *r, rig_fn fn); /* in all ranks at once */
void rig_stop(rig *r);

/* Counts failures and prints them. */
#define rig_check(r, so) rig_check_at((r), (so), #so, __FILE__, __LINE__)
void rig_check_at(rig *r, bool so, const char *text, const char *file, int line);

#endif
