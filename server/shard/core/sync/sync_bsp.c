/* sync_bsp.c - bulk synchronous: one update per round, with the mean of every rank's gradient. */
#include "server/shard/core/sync/sync.h"

static const config_row rows[] = {{0}};

static sync_verdict bsp_push(const sync_hyper *hyper, const sync_view *view)
{
    (void)hyper;
    if (view->seq < view->clock) return SYNC_REPEAT;
    /* clock > round: this rank contributed to the open round and is one round ahead. */
    if (view->seq > view->clock || view->clock > view->round) return SYNC_EARLY;
    return SYNC_ADD;
}

static bool bsp_serve(const sync_hyper *hyper, const sync_view *view)
{
    (void)hyper;
    return view->clock <= view->round;
}

extern const sync_ops sync_bsp;
const sync_ops sync_bsp = {
    .name       = "bsp",
    .doc        = "Every step waits for every worker and applies the mean of their gradients once.",
    .hyper_rows = rows,
    .averages   = true,
    .push       = bsp_push,
    .serve      = bsp_serve,
};
