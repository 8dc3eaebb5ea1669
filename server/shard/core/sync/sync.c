/* sync.c - the consistency rules, their registry, and their parser. */
#include "server/shard/core/sync/sync.h"

#include "common/base/why.h"

#include <stddef.h>
#include <string.h>

static const config_row no_rows[] = {{0}};

/* ---- bulk synchronous: one update per round, with the mean of every rank's gradient ---------- */
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

static const sync_ops sync_bsp = {
    .name       = "bsp",
    .doc        = "Every step waits for every worker and applies the mean of their gradients once.",
    .hyper_rows = no_rows,
    .averages   = true,
    .push       = bsp_push,
    .serve      = bsp_serve,
};

/* ---- stale synchronous: each push is applied on arrival; a rank too far ahead waits ---------- */
static const config_row ssp_rows[] = {
    {.name   = "s",
     .type   = CONFIG_U64,
     .offset = offsetof(sync_hyper, s),
     .dfl    = "1",
     .min    = 0,
     .max    = 1e6,
     .doc    = "Steps a worker may be ahead of the slowest before its pull waits; higher hides "
               "stragglers and computes on older values."},
    {0}};

static sync_verdict push_on_arrival(const sync_hyper *hyper, const sync_view *view)
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

static const sync_ops sync_ssp = {
    .name = "ssp",
    .doc =
        "Each push is applied on arrival; a pull waits while its worker is more than s steps ahead "
        "of the slowest.",
    .hyper_rows = ssp_rows,
    .push       = push_on_arrival,
    .serve      = ssp_serve,
};

/* ---- asynchronous: ssp without a bound ------------------------------------------------------- */
static bool async_serve(const sync_hyper *hyper, const sync_view *view)
{
    (void)hyper;
    (void)view;
    return true;
}

const sync_ops sync_async = {
    .name       = "async",
    .doc        = "Each push is applied on arrival and each pull is answered at once.",
    .hyper_rows = no_rows,
    .push       = push_on_arrival,
    .serve      = async_serve,
};

/* ---- registry -------------------------------------------------------------------------------- */
const sync_ops *const sync_all[] = {&sync_bsp, &sync_ssp, &sync_async, NULL};

static const sync_ops *find_rule(const char *name, size_t length)
{
    for (size_t i = 0; sync_all[i] != NULL; i++)
        if (strlen(sync_all[i]->name) == length && memcmp(sync_all[i]->name, name, length) == 0)
            return sync_all[i];
    return NULL;
}

pen_status sync_parse(const char *text, const sync_ops **ops, sync_hyper *hyper, pen_error *why)
{
    if (text == NULL || *text == '\0') text = sync_bsp.name;
    const size_t length    = strcspn(text, " ");
    const sync_ops *choice = find_rule(text, length);
    if (choice == NULL)
        return why_set(why, PEN_BAD_SETTING,
                       "unknown consistency rule '%.*s'; expected bsp, \"ssp s=N\" or async",
                       (int)length, text);

    sync_hyper told;
    config_defaults(choice->hyper_rows, &told);
    const pen_status status = config_from_words(choice->hyper_rows, &told, text + length, why);
    if (status != PEN_OK) return status;
    *ops   = choice;
    *hyper = told;
    return PEN_OK;
}
