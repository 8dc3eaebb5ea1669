/* kept_items.h - the format of persisted state: items, each a type, a size and bytes.
 *
 * DESIGN.  Data that a message carries is stored as that message (proto/wire/wire.h), so its format exists once, and
 * decoding trusts nothing.  Numbers are int64_t in native byte order: the same program on the same machine reads them.
 */
#ifndef SCHEDULER_KEPT_ITEMS_H
#define SCHEDULER_KEPT_ITEMS_H

#include "scheduler/core/core_state.h"

enum {
    KEPT_VERSION = 3,
    KEPT_HEAD    = 1, /* KEPT_HEAD_NUMBERS */
    KEPT_MEMBER  = 2, /* KEPT_MEMBER_NUMBERS, then HELLO */
    KEPT_RECORD  = 3, /* EPOCH */
    KEPT_PLAN    = 4, /* PLAN, with the model */
    KEPT_VERDICT = 5, /* VERDICT */
    KEPT_LOSS    = 6, /* VERDICT: the sentence of a worker that died */
    KEPT_VALUE   = 7, /* STORE: a key and its value */
    KEPT_ANSWERS = 8  /* rank, incarnation, then id, status, value of each remembered answer */
};

/* clang-format off */
#define KEPT_HEAD_NUMBERS(X)                                                                       \
    X(term, job.term) X(incarnations, job.incarnations) X(phase, job.phase)                        \
    X(epoch, epoch.number) X(n_servers, job.n_servers) X(n_shards, model.n_shards)                 \
    X(ranks_max, members.ranks_max) X(job_step, job.step) X(restore, model.restore)                \
    X(applied, model.applied) X(newest_snapshot, services.snapshots.newest)                        \
    X(first_lost, members.first_lost) X(wanted_workers, members.wanted_workers)                    \
    X(wanted_servers, members.wanted_servers) X(plan_term, model.plan_term)
#define KEPT_MEMBER_NUMBERS(X)                                                                       \
    X(state) X(in_view) X(step) X(is_registered) X(is_ready) X(is_draining) X(is_stopped)        \
    X(has_come_back) X(awaited_ms) X(begin_step) X(begin_applied) X(local_rank) X(node)            \
    X(sharing)
/* clang-format on */

enum {
#define X(name, at) KEPT_AT_##name,
    KEPT_HEAD_NUMBERS(X)
#undef X
        KEPT_AT_version,
    KEPT_HEAD_COUNT
};

enum {
#define X(name) KEPT_OF_##name,
    KEPT_MEMBER_NUMBERS(X)
#undef X
        KEPT_MEMBER_COUNT
};

#endif
