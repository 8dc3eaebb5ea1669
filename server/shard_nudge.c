/* shard_nudge.c - what time and broken connections do to a log: it is sent again, a learner that cannot
 * keep up begins anew, one that has everything is told of, a backup that is silent is suspected. */
#include "server/shard_state.h"

#include "common/log.h"
#include "common/plant.h"

/* ---- time ------------------------------------------------------------------------------------ */
enum { RESEND_MS = 200, RESEND_MS_MAX = 3200, SUSPECT_MS = 10000, SAY_MS = 200, SAY_MS_MAX = 5000 };

/* A learner that falls behind what the backups need holds memory for itself alone. */
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

static void nudge_learner(shard *s, shard_copy *copy, uint64_t now)
{
    if (!copy->has_stream || is_hopeless(s, copy)) {
        log_info("shard %u: server %d is filled anew", s->setup.self, copy->server);
        shard_fill_begin(s, copy);
        return;
    }
    const bool has_all =
        (copy->is_filled && copy->acked >= copy->filled_at) || plant(PLANT_CAUGHT_UP_EARLY);
    if (!has_all || now < copy->said_ms + copy->say_ms) return;
    copy->said_ms = now;
    copy->say_ms  = copy->say_ms == 0 ? SAY_MS : copy->say_ms * 2;
    if (copy->say_ms > SAY_MS_MAX) copy->say_ms = SAY_MS_MAX;
    s->outside.caught_up(s->outside.user, copy->server);
}

static void nudge_copy(shard *s, shard_copy *copy, uint64_t now)
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
        copy->sent   = plant(PLANT_RESEND_FROM_NEXT) ? copy->sent : copy->acked;
        copy->resent = UINT64_MAX;
        (void)shard_log_send_to(s, copy);
    }
    const uint64_t bound = s->options.suspect_ms != 0 ? s->options.suspect_ms : SUSPECT_MS;
    if (copy->is_learner || waited < bound || now < copy->said_ms + bound) return;
    copy->said_ms = now;
    s->outside.suspect(s->outside.user, copy->server, waited);
}

void shard_nudge(shard *s, uint64_t now_ms)
{
    if (s->core == NULL || s->has_failed || s->role != SHARD_PRIMARY || shard_is_sealed(s)) return;
    for (uint32_t i = 0; i < s->n_copies && !s->has_failed; i++) {
        nudge_copy(s, &s->copy[i], now_ms);
        if (s->copy[i].is_learner) nudge_learner(s, &s->copy[i], now_ms);
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
    if (copy == NULL) return;
    if (!plant(PLANT_RESEND_FROM_NEXT)) copy->sent = copy->acked; /* what was on its way is lost */
}

void shard_replica_up(shard *s, int32_t server)
{
    shard_copy *copy = copy_on(s, server);
    if (copy == NULL || s->role != SHARD_PRIMARY || shard_is_sealed(s)) return;
    shard_replica_down(s, server);
    (void)shard_log_send_to(s, copy);
}
