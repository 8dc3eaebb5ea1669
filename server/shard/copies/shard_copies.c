/* shard_copies.c - a primary's view of its copies: tracks their progress, resends lost entries, refills a learner
 * that cannot keep up, reports complete learners and silent backups. */
#include "server/shard/shard_state.h"

#include "common/base/log.h"
#include "common/base/mutation.h"

#include <inttypes.h>

/* Everything in flight is lost. */
static void go_back(shard_copy *copy)
{
    if (!mutation(MUTATION_RESEND_FROM_NEXT)) copy->sent = copy->acked;
}

/* ---- acknowledgements ------------------------------------------------------------------------ */
static shard_copy *copy_with(shard *s, uint64_t incarnation)
{
    for (uint32_t i = 0; i < s->n_copies; i++)
        if (s->copy[i].incarnation == incarnation) return &s->copy[i];
    return NULL;
}

static bool is_about_partition(const wire_entry *e)
{
    return e->what == WIRE_ENTRY_PREPARE || e->what == WIRE_ENTRY_COMMIT ||
           e->what == WIRE_ENTRY_BEGIN;
}

/* The entries about nothing (SETTLE, FILLED) have 0 in place of a chunk. */
static bool is_about_chunk(const wire_entry *e)
{
    return !is_about_partition(e) && e->what != WIRE_ENTRY_SETTLE && e->what != WIRE_ENTRY_FILLED;
}

static void report_difference(shard *s, const shard_copy *copy, const wire_data *d,
                              const shard_entry *entry)
{
    const plan *p = s->setup.plan;
    const uint32_t chunk =
        is_about_partition(&entry->e) ? p->partition[entry->e.object].chunk[0] : entry->e.object;
    const char *tensor = s->setup.model->tensor[p->chunk[chunk].tensor].name;
    pen_error error;
    why_set(&error, PEN_MISMATCH,
            "shard %u differs between server %d and its copy on server %d: after entry "
            "%" PRIu64 " ('%s'%s, step %" PRIu64
            ") their values differ; a machine computes wrong results, or the versions differ",
            s->setup.self, s->setup.server, copy->server, d->index, tensor,
            is_about_chunk(&entry->e) ? "" : " and others", entry->e.step);
    why_culprit(&error, PEN_SERVER, copy->server, (int64_t)entry->e.step, tensor);
    shard_fail(s, &error);
}

/* A copy has no digest before its fill is complete. */
static void compare(shard *s, const shard_copy *copy, const wire_data *d)
{
    const shard_entry *entry = shard_log_at(s, d->index);
    if (entry == NULL || d->index < s->log.settled_at ||
        (copy->is_fresh && (!copy->is_filled || d->index < copy->filled_at)))
        return;
    if (entry->digest != d->digest) report_difference(s, copy, d, entry);
}

/* The copy lacks entries: resends once per gap; the timer does the rest. */
static void resend(shard *s, shard_copy *copy)
{
    if (copy->resent == copy->acked || copy->sent <= copy->acked) return;
    copy->resent = copy->acked;
    go_back(copy);
    (void)shard_log_send_to(s, copy);
}

void shard_copies_heard(shard *s, const wire_data *d)
{
    shard_copy *copy = copy_with(s, d->from);
    if (s->role != SHARD_PRIMARY || shard_is_sealed(s) || copy == NULL || d->term != s->term ||
        d->epoch != s->epoch || d->to != s->setup.incarnation || !copy->has_stream)
        return;
    if (d->stream != copy->stream && copy->is_learner) {
        if (!copy->is_fresh) /* not acknowledged in an older epoch */
            shard_fill_begin(s, copy);
        else if (d->flags & WIRE_REPEATED && copy->acked == copy->base)
            resend(s, copy);
        return;
    }
    if (d->index > s->log.index) return;
    if (d->index >= copy->acked) compare(s, copy, d);
    if (s->has_failed) return;
    if (d->index > copy->acked) copy->acked = d->index;
    if (copy->sent < copy->acked) copy->sent = copy->acked;
    if (d->flags & WIRE_REPEATED) resend(s, copy);
    shard_log_trim(s);
    shard_gate_open(s);
    if (copy->is_learner) shard_fill_go_on(s, copy);
}

/* ---- time ------------------------------------------------------------------------------------ */
enum { RESEND_MS = 200, RESEND_MS_MAX = 3200, SUSPECT_MS = 10000, SAY_MS = 200, SAY_MS_MAX = 5000 };

/* A learner that falls behind the backups holds memory for itself alone. */
static bool is_hopeless(shard *s, const shard_copy *copy)
{
    uint64_t shard_bytes = 0;
    for (uint32_t i = 0; i < s->n_chunks; i++) shard_bytes += s->chunk[i].count * sizeof(float);
    uint64_t bound           = (uint64_t)64 << 20;
    const shard_entry *first = shard_log_at(s, copy->acked + 1);
    if (2 * shard_bytes > bound) bound = 2 * shard_bytes;
    const shard_entry *needed  = s->n_backups > 0 ? shard_log_at(s, s->open_to + 1) : NULL;
    const uint64_t needed_from = needed != NULL ? needed->before : s->log.bytes;
    return first != NULL && needed_from > first->before && needed_from - first->before > bound;
}

static void resend_to_learner(shard *s, shard_copy *copy, uint64_t now)
{
    if (!copy->has_stream || is_hopeless(s, copy)) {
        log_info("shard %u: filling server %d again", s->setup.self, copy->server);
        shard_fill_begin(s, copy);
        return;
    }
    const bool has_all =
        (copy->is_filled && copy->acked >= copy->filled_at) || mutation(MUTATION_CAUGHT_UP_EARLY);
    if (!has_all || now < copy->said_ms + copy->say_ms) return;
    copy->said_ms = now;
    copy->say_ms  = copy->say_ms == 0 ? SAY_MS : copy->say_ms * 2;
    if (copy->say_ms > SAY_MS_MAX) copy->say_ms = SAY_MS_MAX;
    s->outside.caught_up(s->outside.user, copy->server);
}

static void resend_to_copy(shard *s, shard_copy *copy, uint64_t now)
{
    if (!copy->has_stream || copy->waits_ms == 0 || copy->acked == s->log.index ||
        copy->acked != copy->seen_acked) {
        copy->seen_acked = copy->acked;
        copy->waits_ms   = now;
        copy->resend_ms  = RESEND_MS;
        return;
    }
    const uint64_t waited = now - copy->waits_ms;
    if (waited >= copy->resend_ms) {
        copy->resend_ms =
            copy->resend_ms < RESEND_MS_MAX ? copy->resend_ms * 2 : waited + RESEND_MS_MAX;
        go_back(copy);
        copy->resent = UINT64_MAX;
        (void)shard_log_send_to(s, copy);
    }
    const uint64_t bound = s->options.suspect_ms != 0 ? s->options.suspect_ms : SUSPECT_MS;
    if (copy->is_learner || waited < bound || now < copy->said_ms + bound) return;
    copy->said_ms = now;
    s->outside.suspect(s->outside.user, copy->server, waited);
}

void shard_resend(shard *s, uint64_t now_ms)
{
    if (s->core == NULL || s->has_failed || s->role != SHARD_PRIMARY || shard_is_sealed(s)) return;
    for (uint32_t i = 0; i < s->n_copies && !s->has_failed; i++) {
        resend_to_copy(s, &s->copy[i], now_ms);
        if (s->copy[i].is_learner) resend_to_learner(s, &s->copy[i], now_ms);
    }
}

/* ---- connections ----------------------------------------------------------------------------- */
static shard_copy *copy_on(shard *s, int32_t server)
{
    for (uint32_t i = 0; i < s->n_copies; i++)
        if (s->copy[i].server == server) return &s->copy[i];
    return NULL;
}

void shard_replica_down(shard *s, int32_t server)
{
    shard_copy *copy = copy_on(s, server);
    if (copy != NULL) go_back(copy);
}

void shard_replica_up(shard *s, int32_t server)
{
    shard_copy *copy = copy_on(s, server);
    if (copy == NULL || s->has_failed || s->role != SHARD_PRIMARY || shard_is_sealed(s)) return;
    go_back(copy);
    (void)shard_log_send_to(s, copy);
}
