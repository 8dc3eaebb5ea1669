/* sync_async.c - asynchronous: ssp without a bound. */
#include "server/shard/core/sync/sync.h"

static const config_row rows[] = {{0}};

static sync_verdict async_push(const sync_hyper *hyper, const sync_view *view)
{
    (void)hyper;
    if (view->seq < view->clock) return SYNC_REPEAT;
    return view->seq == view->clock ? SYNC_APPLY : SYNC_EARLY;
}

static bool async_serve(const sync_hyper *hyper, const sync_view *view)
{
    (void)hyper;
    (void)view;
    return true;
}

const sync_ops sync_async = {
    .name       = "async",
    .doc        = "Each push is applied on arrival and each pull is answered at once.",
    .hyper_rows = rows,
    .push       = async_push,
    .serve      = async_serve,
};
