/* shard_install.c - a shard at the end of one epoch and the start of the next. */
#include "server/shard/shard_state.h"
#include "server/shard/shard_test.h"

#include "common/base/mutation.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_newer(uint64_t term, uint64_t epoch, uint64_t than_term, uint64_t than_epoch)
{
    if (mutation(MUTATION_TERM_IGNORED)) return epoch > than_epoch;
    return term > than_term || (term == than_term && epoch > than_epoch);
}

/* ---- resolving the open step ----------------------------------------------------------------- */
static void contradiction(shard *s, uint32_t partition, int64_t step, const char *what)
{
    pen_error error;
    why_set(&error, PEN_INTERNAL,
            "shard %u on server %d: partition %u is at step %" PRIu64 ", and epoch %" PRIu64
            " has all at step %" PRId64 ": %s",
            s->setup.self, s->setup.server, s->partition[partition].number,
            shard_core_partition_step(s->core, partition), s->epoch, step, what);
    why_culprit(&error, PEN_SERVER, s->setup.server, step, NULL);
    shard_fail(s, &error);
}

static void settle_partition(shard *s, uint32_t p, int64_t step, const wire_decision *decision)
{
    const uint64_t open = shard_core_partition_step(s->core, p);
    if (open == (uint64_t)step || mutation(MUTATION_DECISION_IGNORED_AT_INSTALL)) return;
    if (open + 1 != (uint64_t)step) {
        contradiction(s, p, step, "it is more than one step away");
        return;
    }
    if (!shard_core_has_vote(s->core, p)) {
        contradiction(s, p, step, "it was never prepared for the step before");
        return;
    }
    if (decision == NULL) {
        contradiction(s, p, step, "no decision came with it");
        return;
    }
    const wire_data d      = {.rank = -1, .has_decision = true, .decision = *decision};
    const shard_arrival in = {.d = &d};
    const shard_core_actions actions =
        shard_core_decide(s->core, p, open, s->partition[p].vote.hash, decision, CORE_EVERYONE);
    if (actions.n > 0 && actions.at[0].verb == CORE_REFUSE)
        contradiction(s, p, step, actions.at[0].reason);
    else
        shard_act(s, actions, &in);
}

void shard_settle(shard *s, int64_t step, const wire_decision *decision)
{
    if (step < 0 || s->is_eager) return;
    s->is_settling = true; /* one log entry covers it */
    for (uint32_t p = 0; p < s->n_partitions && !s->has_failed; p++)
        if (shard_core_is_decided(s->core, p)) settle_partition(s, p, step, decision);
    s->is_settling = false;
}

/* ---- members --------------------------------------------------------------------------------- */
static void forget_fresh(shard *s)
{
    for (uint32_t i = 0; i < s->n_partitions; i++) s->partition[i].is_fresh = false;
    s->has_fresh = false;
}

void shard_restart(shard *s)
{
    if (mutation(MUTATION_MEMBERS_KEEP_STAGING)) return;
    const wire_data nothing   = {.rank = -1};
    const shard_arrival event = {.d = &nothing};
    forget_fresh(s);
    shard_core_abandon(s->core);
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        shard_drop_staged(s, &s->chunk[i]);
        shard_act(s, shard_core_restart(s->core, i), &event);
    }
}

/* Keeps only prepared sums: the others are known to one copy alone. */
static void keep_prepared(shard *s)
{
    shard_core_restage(s->core);
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        shard_chunk *k = &s->chunk[i];
        shard_drop_kept(s, k);
        if (!k->decided || !shard_core_has_vote(s->core, k->partition)) shard_drop_sum(s, k);
    }
}

/* ranks[n]: number of joiners, the joiners, the earlier members. */
bool shard_join_listed(shard *s, const uint64_t *ranks, uint32_t n)
{
    const uint32_t joined = n > 0 && ranks[0] < n ? (uint32_t)ranks[0] : 0;
    bool *beside          = calloc(s->setup.world_size + 1, sizeof *beside);
    if (beside == NULL) return shard_no_memory(s);
    for (uint32_t i = 1 + joined; i < n; i++)
        if (ranks[i] < s->setup.world_size) beside[ranks[i]] = true;
    for (uint32_t i = 1; i < 1 + joined; i++)
        if (ranks[i] < s->setup.world_size) shard_core_join(s->core, (int32_t)ranks[i], beside);
    free(beside);
    return true;
}

/* True if members changed; list[1 + world_size] as shard_join_listed() reads it. */
static bool take_members(shard *s, const shard_view *v, uint64_t *list, uint32_t *n)
{
    uint64_t *before = calloc(s->setup.world_size + 1, sizeof *before);
    if (before == NULL) return shard_no_memory(s);
    memcpy(before, s->incarnation, s->setup.world_size * sizeof *before);
    memset(s->incarnation, 0, s->setup.world_size * sizeof *before);
    for (uint32_t i = 0; i < v->n_workers; i++) {
        const wire_member *w = &v->worker[i];
        if (w->rank < 0 || (uint32_t)w->rank >= s->setup.world_size) continue;
        s->incarnation[w->rank] = w->incarnation;
        s->node[w->rank]        = w->node;
    }
    *n = 1;
    for (uint32_t r = 0; r < s->setup.world_size; r++)
        if (s->incarnation[r] != 0 && s->incarnation[r] != before[r]) list[(*n)++] = r;
    list[0] = *n - 1;
    for (uint32_t r = 0; r < s->setup.world_size; r++)
        if (s->incarnation[r] != 0 && s->incarnation[r] == before[r]) list[(*n)++] = r;
    free(before);
    bool changed;
    shard_core_nodes(s->core, s->node, s->setup.world_size);
    shard_core_epoch(s->core, v->term, v->epoch, s->incarnation, s->setup.world_size, &changed);
    return changed;
}

/* ---- roles ----------------------------------------------------------------------------------- */
/* An earlier copy of an earlier primary continues at its position. */
static void take_copies(shard *s, const shard_view *v, bool was_primary)
{
    shard_copy before[SHARD_COPIES_MAX];
    const uint32_t n = was_primary ? s->n_copies : 0;
    memcpy(before, s->copy, sizeof before);
    s->n_copies = s->n_backups = 0;
    for (uint32_t i = 0; i < v->n_replicas && s->n_copies < SHARD_COPIES_MAX; i++) {
        shard_copy *copy = &s->copy[s->n_copies++];
        *copy =
            (shard_copy){.server = v->replica[i].server, .incarnation = v->replica[i].incarnation};
        for (uint32_t j = 0; j < n; j++)
            if (before[j].server == copy->server && before[j].incarnation == copy->incarnation)
                *copy = before[j];
        copy->is_learner = v->replica[i].is_learner;
        copy->sent       = copy->acked; /* entries in flight belonged to the old epoch */
        copy->resent     = UINT64_MAX;
        copy->waits_ms   = 0;
        copy->said_ms = copy->say_ms = 0;
        if (copy->is_learner && copy->has_stream &&
            !copy->is_fresh) { /* it lacks only a few entries */
            copy->is_filled = true;
            copy->filled_at = s->log.index;
        }
        s->n_backups += !copy->is_learner;
    }
}

static void log_settled(shard *s, const shard_view *v, bool restarted, const uint64_t *list,
                        uint32_t n)
{
    if (!shard_is_logging(s)) return;
    const wire_entry e = {.what         = WIRE_ENTRY_SETTLE,
                          .rank         = -1,
                          .step         = (uint64_t)(v->step + 1), /* 0: nothing to resolve */
                          .version      = v->epoch,
                          .restart      = restarted,
                          .has_decision = v->has_decision,
                          .decision     = v->decision,
                          .number       = list,
                          .n_numbers    = n};
    shard_log_append(s, &e, -1, NULL);
    s->log.settled_at = s->log.index;
}

static void become(shard *s, const shard_view *v, shard_role was)
{
    s->role    = v->role;
    s->primary = v->primary;
    if (v->role == SHARD_PRIMARY && (was == SHARD_BACKUP || was == SHARD_LEARNER))
        shard_handlers_check(s, v->epoch);
    if (v->role == SHARD_PRIMARY) {
        take_copies(s, v, was == SHARD_PRIMARY);
        if (was != SHARD_PRIMARY || s->n_copies == 0) shard_log_fini(s);
        for (uint32_t i = 0; i < s->n_copies; i++)
            if (!s->copy[i].has_stream && !s->copy[i].is_learner)
                shard_fill_stream(s, &s->copy[i], false);
        return;
    }
    shard_log_fini(s);
    s->n_copies = s->n_backups = 0;
    shard_core_forget_waiting(s->core);
    /* The primary may have been faster: asks it to send that again. */
    if (s->early_epoch != s->epoch || s->early_from != s->primary) return;
    s->primary_peer = s->early_peer;
    s->owes_ack = s->has_gap = true;
}

void shard_install(shard *s, const shard_view *v)
{
    if (s->core == NULL || s->has_failed || !is_newer(v->term, v->epoch, s->term, s->epoch)) return;
    assert(v->n_replicas == 0 || s->outside.send_replica != NULL);
    uint64_t *list = calloc(s->setup.world_size + 2, sizeof *list);
    if (list == NULL) {
        shard_no_memory(s);
        return;
    }
    const shard_role was = s->role;
    const bool goes_on   = was == v->role && s->primary == v->primary;
    const bool is_told   = v->role == SHARD_LEARNER; /* the log contains it */
    uint32_t n           = 0;
    s->term              = v->term;
    s->epoch             = v->epoch;
    s->sealed_term = s->sealed_epoch = 0;
    s->owes_ack                      = false;
    shard_gate_forget(s);
    if (!is_told && was != SHARD_NO_ROLE)
        shard_settle(s, v->step, v->has_decision ? &v->decision : NULL);
    const bool restarts = take_members(s, v, list, &n) || v->members_changed;
    if (!is_told) {
        s->settled_epoch = v->epoch;
        if (was != SHARD_NO_ROLE) (void)shard_join_listed(s, list, n);
        if (restarts)
            shard_restart(s);
        else if (!goes_on)
            keep_prepared(s);
    }
    if (!s->has_failed) {
        become(s, v, was);
        if (was != SHARD_NO_ROLE) log_settled(s, v, restarts, list, n);
        for (uint32_t i = 0; i < s->n_copies && !s->has_failed; i++)
            if (!s->copy[i].has_stream) shard_fill_begin(s, &s->copy[i]);
        shard_gate_open(s);
    }
    free(list);
}

void shard_epoch(shard *s, uint64_t term, uint64_t epoch, const wire_member *worker,
                 uint32_t n_workers)
{
    const shard_view view = {.term      = term,
                             .epoch     = epoch,
                             .worker    = worker,
                             .n_workers = n_workers,
                             .step      = -1,
                             .role      = SHARD_PRIMARY,
                             .primary   = s->setup.incarnation};
    shard_install(s, &view);
}

/* ---- sealing --------------------------------------------------------------------------------- */
static void report_steps(const shard *s, wire_sealed_report *report)
{
    report->step = -1;
    for (uint32_t p = 0; p < s->n_partitions && !s->is_eager; p++) {
        if (!shard_core_is_decided(s->core, p)) continue;
        const int64_t step = (int64_t)shard_core_partition_step(s->core, p);
        if (step < report->step) continue;
        if (step > report->step) report->all_prepared = true;
        report->step = step;
        report->all_prepared &= shard_core_has_vote(s->core, p);
        const wire_decision *decision = shard_core_decision(s->core, p);
        report->has_decision          = decision != NULL;
        if (decision != NULL) report->decision = *decision;
    }
    uint64_t clock;
    report->clock = shard_core_least_clock(s->core, &clock) ? (int64_t)clock : -1;
}

void shard_seal(shard *s, uint64_t term, uint64_t epoch, wire_sealed_report *report)
{
    *report = (wire_sealed_report){
        .shard = s->setup.self, .role = (int32_t)s->role, .step = -1, .clock = -1};
    if (s->core == NULL) return;
    if (is_newer(term, epoch, s->term, s->epoch) &&
        is_newer(term, epoch, s->sealed_term, s->sealed_epoch)) {
        shard_handlers_hand_over(s);
        s->sealed_term  = term;
        s->sealed_epoch = epoch;
        shard_log_mark(s);
    }
    report->index  = s->log.index;
    report->digest = s->log.digest;
    report_steps(s, report);
}

bool shard_is_level(const shard *s, uint64_t epoch)
{
    if (s->role != SHARD_BACKUP && s->role != SHARD_LEARNER) return true;
    if (s->primary_peer == SHARD_NONE) return true;
    return s->mark_epoch == epoch && s->log.index >= s->mark_index;
}
