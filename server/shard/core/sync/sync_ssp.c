/* sync_ssp.c - stale synchronous: each push is applied on arrival; a rank too far ahead waits. */
#include "server/shard/core/sync/sync.h"

#include <stddef.h>

static const config_row rows[] = {{.name   = "s",
                                   .type   = CONFIG_U64,
                                   .offset = offsetof(sync_hyper, s),
                                   .dfl    = "1",
                                   .min    = 0,
                                   .max    = 1e6,
                                   .doc = "Steps a worker may be ahead of the slowest before its "
                                          "pull waits; higher hides stragglers and "
                                          "computes on older values."},
                                  {0}};

static sync_verdict ssp_push(const sync_hyper *hyper, const sync_view *view)
{
    (void)hyper;
    if (view->seq < view->clock) return SYNC_REPEAT;
    return view->seq == view->clock ? SYNC_APPLY : SYNC_EARLY;
}

static bool ssp_serve(const sync_hyper *hyper, const sync_view *view)
{
    /* The slowest rank is never ahead; the test prevents wrap-around. */
    return view->clock <= view->slowest || view->clock - view->slowest <= hyper->s;
}

extern const sync_ops sync_ssp;
const sync_ops sync_ssp = {
    .name = "ssp",
    .doc =
        "Each push is applied on arrival; a pull waits while its worker is more than s steps ahead "
        "of the slowest.",
    .hyper_rows = rows,
    .push       = ssp_push,
    .serve      = ssp_serve,
};
