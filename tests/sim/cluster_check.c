/* cluster_check.c - invariants of records, copies and served values. */
#include "server/shard/shard_test.h"
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *name_of(const cluster *c, uint32_t chunk)
{
    return c->tensor_name[c->cut->chunk[chunk].tensor];
}

static bool is_trained(const cluster *c, uint32_t chunk)
{
    return (c->tensor[c->cut->chunk[chunk].tensor].flags & PEN_FROZEN) == 0;
}

/* Its versions are those of a table; check_rows() has it. */
static bool is_table(const cluster *c, uint32_t chunk)
{
    return plan_is_table(&c->tensor[c->cut->chunk[chunk].tensor]);
}

static uint32_t shard_of(const cluster *c, uint32_t chunk)
{
    return c->shard_of[c->cut->chunk[chunk].partition];
}

/* ---- records: the reference follows the scheduler's decisions -------------------------------- */
static void incarnations(const wire_epoch *r, uint64_t incarnation[MODEL_RANKS_MAX])
{
    memset(incarnation, 0, MODEL_RANKS_MAX * sizeof *incarnation);
    for (uint32_t i = 0; i < r->n_workers; i++)
        incarnation[r->worker[i].rank] = r->worker[i].incarnation;
}

static bool is_same_set(const wire_epoch *a, const wire_epoch *b)
{
    if (a->n_workers != b->n_workers) return false;
    for (uint32_t i = 0; i < a->n_workers; i++) /* both are sorted by rank */
        if (a->worker[i].rank != b->worker[i].rank ||
            a->worker[i].incarnation != b->worker[i].incarnation)
            return false;
    return true;
}

/* One primary per shard; a new primary held a full copy before. */
static void check_primaries(cluster *c, const wire_epoch *before, const wire_epoch *r)
{
    uint32_t primaries[SIM_SHARDS_MAX] = {0};
    for (uint32_t i = 0; i < r->n_replicas; i++) {
        const wire_replica *row = &r->replica[i];
        if (row->role != WIRE_PRIMARY) continue;
        if (++primaries[row->shard] > 1)
            sim_wrong(c, "epoch %" PRIu64 " has two primaries of shard %u", r->epoch, row->shard);
        for (uint32_t k = 0; k < before->n_replicas; k++)
            if (before->replica[k].shard == row->shard &&
                before->replica[k].server == row->server && before->replica[k].role == WIRE_BACKUP)
                c->result.promotions++;
    }
    for (uint32_t i = 0; i < before->n_replicas; i++)
        if (primaries[before->replica[i].shard] == 0)
            sim_wrong(c, "epoch %" PRIu64 " has no primary of shard %u", r->epoch,
                      before->replica[i].shard);
}

/* A member that is waited for stays a member: nothing is decided without it.  After BYE it is not waited for, whatever
 * becomes of its process. */
static void check_waiting(cluster *c, const wire_epoch *before, const wire_epoch *r)
{
    uint64_t were[MODEL_RANKS_MAX], are[MODEL_RANKS_MAX];
    if (c->plan.on_worker_loss != LOSS_WAIT) return;
    incarnations(before, were);
    incarnations(r, are);
    for (uint32_t i = 0; i < c->n_workers; i++)
        if (were[i] != 0 && are[i] == 0 && were[i] != c->goodbye[i])
            sim_wrong(c, "epoch %" PRIu64 " is without rank %u, for which the job waits", r->epoch,
                      i);
}

/* Who holds what and who trains: a restarted scheduler may send it under another number. */
static bool is_same_holding(const wire_epoch *a, const wire_epoch *b)
{
    if (!is_same_set(a, b) || a->n_replicas != b->n_replicas) return false;
    for (uint32_t i = 0; i < a->n_replicas; i++) {
        const wire_replica *x = &a->replica[i], *y = &b->replica[i];
        const wire_member *p = sim_view_server(a, x->server), *q = sim_view_server(b, y->server);
        if (x->shard != y->shard || x->server != y->server || x->role != y->role ||
            (p != NULL ? p->incarnation : 0) != (q != NULL ? q->incarnation : 0))
            return false;
    }
    return true;
}

static void count_fills(cluster *c, const wire_epoch *before, const wire_epoch *r)
{
    for (uint32_t i = 0; i < r->n_replicas; i++)
        for (uint32_t k = 0; k < before->n_replicas; k++)
            c->result.fills += before->replica[k].shard == r->replica[i].shard &&
                               before->replica[k].server == r->replica[i].server &&
                               before->replica[k].role == WIRE_LEARNER &&
                               r->replica[i].role != WIRE_LEARNER;
}

/* "0: 1 (2) [0]": shard 0 on server 1, with a backup on 2 and a learner on 0. */
static void note_record(cluster *c, const wire_epoch *r)
{
    char text[400];
    size_t used = 0;
    for (uint32_t i = 0; i < r->n_replicas && used < sizeof text - 24; i++) {
        const wire_replica *row = &r->replica[i];
        char one[32];
        if (row->role == WIRE_PRIMARY)
            snprintf(one, sizeof one, "; %u: %d", row->shard, row->server);
        else
            snprintf(one, sizeof one, row->role == WIRE_BACKUP ? " (%d)" : " [%d]", row->server);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s", one);
    }
    sim_note(c, "record %" PRIu64 ".%" PRIu64 ", %u workers, step %" PRId64 "%s%s%.*s",
             r->term % 1000, r->epoch, r->n_workers, r->step,
             r->members_changed ? ", members changed" : "", r->has_decision ? ", decision" : "",
             (int)used, text);
}

/* A server that comes late gets the record without what it held before. */
static bool is_for_all(const cluster *c, const wire_control *m)
{
    sim_shards led = 0;
    for (uint32_t i = 0; i < m->u.epoch.n_replicas; i++)
        if (m->u.epoch.replica[i].role == WIRE_PRIMARY)
            led |= (sim_shards)1 << m->u.epoch.replica[i].shard;
    return c->view.n_replicas == 0 || led == sim_all_shards(c->n_shards);
}

void check_record(cluster *c, const wire_control *m)
{
    const wire_epoch *now = &c->view;
    if (!is_for_all(c, m)) return;
    if (m->u.epoch.term == now->term && m->u.epoch.epoch == now->epoch &&
        m->u.epoch.n_replicas > now->n_replicas && now->n_replicas > 0)
        sim_view_take(&c->view, &c->view_kept, m);
    if (!sim_view_is_newer(m->u.epoch.term, m->u.epoch.epoch, &c->view)) return;
    const wire_epoch *next = &m->u.epoch;
    uint64_t incarnation[MODEL_RANKS_MAX];
    const bool changed = !is_same_set(&c->view, next), first = c->view.n_replicas == 0;
    c->result.epochs++;
    note_record(c, next);
    check_primaries(c, &c->view, next);
    count_fills(c, &c->view, next);
    check_waiting(c, &c->view, next);
    check_sharing(c, next);
    if (changed && !first && sim_has_servers(c) && c->plan.task.mode == MODEL_DECIDE) {
        incarnations(next, incarnation);
        const char *wrong = next->step < 0
                                ? "nothing was settled"
                                : model_settle(c->reference, (uint64_t)next->step, incarnation);
        if (wrong != NULL)
            sim_wrong(c, "epoch %" PRIu64 " settles step %" PRId64 ": %s", next->epoch, next->step,
                      wrong);
    }
    if (!is_same_holding(&c->view, next)) {
        c->since.term  = next->term;
        c->since.epoch = next->epoch;
    }
    sim_view_take(&c->view, &c->view_kept, m);
}

void check_plan(cluster *c, const wire_control *m)
{
    const uint32_t n = m->u.plan.n_partitions;
    if (!sim_has_servers(c)) return; /* all state is on workers */
    if (n != c->cut->n_partitions) {
        sim_wrong(c, "the plan has %u partitions instead of %u", n, c->cut->n_partitions);
        return;
    }
    sim_view_place(&c->view, &c->view_kept, m);
    if (c->shard_of != NULL && memcmp(c->shard_of, m->u.plan.shard, n * sizeof *c->shard_of) != 0)
        sim_wrong(c, "a second plan deals the partitions differently");
    if (c->shard_of == NULL) c->shard_of = sim_need(calloc(n, sizeof *c->shard_of));
    memcpy(c->shard_of, m->u.plan.shard, n * sizeof *c->shard_of);
}

/* ---- shards: every version is the reference's ------------------------------------------------ */
static bool is_newest(const sim_copy *k)
{
    const wire_epoch *r = &k->place->server->c->view;
    return k->term == r->term && k->epoch == r->epoch;
}

/* A copy installed for other holders proves nothing: it will be updated. */
static bool is_current(const sim_copy *k)
{
    const cluster *c = k->place->server->c;
    return is_newest(k) ||
           (k->term == c->since.term ? k->epoch >= c->since.epoch : k->term > c->since.term);
}

/* Whether this copy is the primary of the newest record. */
static bool is_authority(const sim_copy *k)
{
    const cluster *c          = k->place->server->c;
    const wire_replica *row   = sim_view_primary(&c->view, k->number);
    const wire_member *member = row != NULL ? sim_view_server(&c->view, row->server) : NULL;
    return member != NULL && member->incarnation == k->place->server->incarnation &&
           k->role == WIRE_PRIMARY && is_current(k);
}

/* A push that a shard just applied is what its worker sent, not what the shard received. */
static void check_origin(sim_copy *k, uint32_t chunk)
{
    cluster *c         = k->place->server->c;
    const wire_data *d = k->message;
    for (uint32_t i = 0; d != NULL && d->kind == WIRE_PUSH && i < d->n; i++) {
        if (d->chunk[i] != chunk) continue;
        const uint64_t seq = d->seq != NULL ? d->seq[i] : d->step;
        const char *wrong  = model_apply(c->reference, chunk, (uint32_t)d->rank, seq);
        if (wrong != NULL)
            sim_wrong(c, "%s: %s (push %" PRIu64 " of rank %d)", name_of(c, chunk), wrong, seq,
                      d->rank);
        return;
    }
    sim_wrong(c, "%s changed without a push", name_of(c, chunk));
}

static void check_version(sim_copy *k, uint32_t chunk, uint64_t version)
{
    cluster *c = k->place->server->c;
    uint32_t crc;
    if (k->is_authority && version != k->version[chunk] + 1) {
        sim_wrong(c, "%s went from version %" PRIu64 " to %" PRIu64 " at once", name_of(c, chunk),
                  k->version[chunk], version);
        return;
    }
    if (k->is_authority) c->result.applied++;
    if (k->is_authority && sim_is_free_rule(c)) check_origin(k, chunk);
    if (!model_crc(c->reference, chunk, version, &crc))
        sim_wrong(c, "%s of %s has version %" PRIu64 " and should not", name_of(c, chunk),
                  k->place->listener.name, version);
    else if (k->crc[chunk] != crc)
        sim_wrong(c, "%s of %s differs from the reference in version %" PRIu64, name_of(c, chunk),
                  k->place->listener.name, version);
}

static void check_chunk(sim_copy *k, uint32_t chunk)
{
    cluster *c = k->place->server->c;
    uint64_t version;
    const float *values = shard_values(k->shard, chunk, &version);
    if (values == NULL || version == 0) return; /* checked when they are served */
    const uint32_t crc = crc32c(0, values, c->cut->chunk[chunk].count * sizeof(float));
    if (version == k->version[chunk] && crc == k->crc[chunk]) return;
    const bool is_news = version != k->version[chunk] || k->crc[chunk] != 0;
    if (k->is_sealed && is_news && k->crc[chunk] != 0)
        sim_wrong(c, "%s of %s changed while it was sealed", name_of(c, chunk),
                  k->place->listener.name);
    k->crc[chunk] = crc;
    if (is_current(k) && (version != k->version[chunk] || !k->is_authority))
        check_version(k, chunk, version);
    k->version[chunk] = version;
}

/* Copies that have applied the same part of one log are equal. */
static void check_equal(const sim_copy *k)
{
    cluster *c = k->place->server->c;
    uint64_t mine, theirs;
    const uint64_t index = shard_index(k->shard, &mine);
    if (c->plan.replicas == 0 || k->role == WIRE_LEARNER || !is_newest(k)) return;
    for (uint32_t i = 0; i < c->n_servers; i++) {
        const sim_copy *o = &c->server[i].copy[k->number];
        if (o == k || o->shard == NULL || o->has_failed || o->role == WIRE_LEARNER ||
            o->epoch != k->epoch || o->term != k->term || shard_index(o->shard, &theirs) != index)
            continue;
        if (mine != theirs)
            sim_wrong(c, "%s and %s differ after %" PRIu64 " entries of shard %u",
                      k->place->listener.name, o->place->listener.name, index, k->number);
    }
}

void check_copy(sim_copy *k)
{
    const cluster *c = k->place->server->c;
    if (k->has_failed) return;
    k->is_authority = k->shard != NULL && is_authority(k);
    for (uint32_t i = 0; i < c->cut->n_chunks && c->result.wrong[0] == '\0'; i++)
        if (k->shard != NULL && shard_of(c, i) == k->number && !is_table(c, i)) check_chunk(k, i);
    if (k->shard != NULL) check_equal(k);
    check_rows(k);
}

/* The primary of a new epoch: the state it begins with is the truth from now on. */
void check_installed(sim_copy *k)
{
    cluster *c = k->place->server->c;
    uint64_t incarnation[MODEL_RANKS_MAX], version;
    k->is_authority = false;
    if (!is_authority(k)) {
        check_copy(k);
        return;
    }
    incarnations(&c->view, incarnation);
    for (uint32_t i = 0; i < c->cut->n_chunks && c->plan.task.mode != MODEL_DECIDE; i++) {
        if (shard_of(c, i) != k->number || !is_trained(c, i)) continue;
        if (shard_values(k->shard, i, &version) == NULL) continue;
        const char *wrong = model_settle_chunk(c->reference, i, version, incarnation);
        if (wrong != NULL)
            sim_wrong(c, "%s of %s in epoch %" PRIu64 ", version %" PRIu64 ": %s", name_of(c, i),
                      k->place->listener.name, k->epoch, version, wrong);
    }
    for (uint32_t i = 0; i < c->cut->n_chunks && c->result.wrong[0] == '\0'; i++) {
        const float *values =
            shard_of(c, i) == k->number ? shard_values(k->shard, i, &version) : NULL;
        if (values == NULL || version == 0 || is_table(c, i)) continue;
        k->crc[i]     = crc32c(0, values, c->cut->chunk[i].count * sizeof(float));
        k->version[i] = version;
        check_version(k, i, version);
    }
    k->is_authority = true;
    check_rows(k);
}

/* ---- served values --------------------------------------------------------------------------- */
static void check_payload(sim_copy *s, const wire_data *d, uint32_t i, const uint8_t *at,
                          size_t size)
{
    cluster *c             = s->place->server->c;
    const uint32_t chunk   = d->chunk[i];
    const uint64_t version = d->version[i];
    uint32_t crc;
    if (!model_crc(c->reference, chunk, version, &crc) || crc32c(0, at, size) != crc)
        sim_wrong(c, "%s was served in version %" PRIu64 " with values that it never had",
                  name_of(c, chunk), version);
    if (d->crc[i] != crc) sim_wrong(c, "%s was served with a wrong checksum", name_of(c, chunk));
}

/* The gap at the time it was served: when the message leaves, others may have gone on. */
static void check_bound(sim_copy *s, const wire_data *d, uint32_t i)
{
    cluster *c         = s->place->server->c;
    const uint32_t gap = d->staleness[i];
    if (gap > c->result.gap_max) c->result.gap_max = gap;
    if (c->plan.task.mode == MODEL_SSP && gap > c->plan.bound)
        sim_wrong(c, "rank %d got %s while it was %u steps ahead; the bound is %" PRIu64, d->rank,
                  name_of(c, d->chunk[i]), gap, c->plan.bound);
}

void check_served(sim_copy *s, const wire_data *d, const buf *payload)
{
    const cluster *c = s->place->server->c;
    if (d->kind != WIRE_VALUES || d->rank < 0) return;
    if (d->n > 0 && is_table(c, d->chunk[0]) && !(d->flags & WIRE_INITIAL))
        return; /* sim_rows_store() */
    const uint8_t *at = payload != NULL ? payload->data : NULL;
    for (uint32_t i = 0; i < d->n && c->result.wrong[0] == '\0'; i++) {
        const size_t size = c->cut->chunk[d->chunk[i]].count * sizeof(float);
        if (at != NULL && !is_table(c, d->chunk[i])) check_payload(s, d, i, at, size);
        if (d->n > 0 && d->version != NULL && !is_table(c, d->chunk[i]))
            model_saw_version(c->reference, d->chunk[i], d->version[i]);
        if (at != NULL && sim_is_free_rule(c) && !(d->flags & WIRE_INITIAL)) check_bound(s, d, i);
        if (at != NULL) at += size;
    }
}

/* ---- snapshots: all chunks of all shards at the end of one step ------------------------------ */
void check_cut(sim_copy *s, const shard_capture *cut)
{
    cluster *c = s->place->server->c;
    for (uint32_t i = 0; i < cut->n; i++) {
        const shard_capture_chunk *k = &cut->chunk[i];
        const bool trained           = (c->tensor[k->tensor].flags & PEN_FROZEN) == 0;
        uint32_t crc;
        if (k->is_table) continue;
        if (!model_crc(c->reference, k->chunk, k->version, &crc) ||
            crc32c(0, k->values->data, k->count * sizeof(float)) != crc)
            sim_wrong(c, "%s is cut in version %" PRIu64 " with values that it never had",
                      name_of(c, k->chunk), k->version);
        if (sim_is_free_rule(c) || !trained) continue;
        const uint64_t applied = (uint64_t)model_at(c->reference, (uint64_t)cut->step - 1).applied;
        if (k->version != applied)
            sim_wrong(c,
                      "the snapshot of step %" PRId64 " has %s in version %" PRIu64
                      " instead of %" PRIu64,
                      cut->step, name_of(c, k->chunk), k->version, applied);
    }
}

void check_part(cluster *c, int64_t step, sim_shards shards)
{
    uint32_t i = 0;
    while (i < c->n_parts && c->part[i].step != step) i++;
    if (i == SIM_CUTS_MAX) return;
    if (i == c->n_parts) c->part[c->n_parts++].step = step;
    c->part[i].shards |= shards;
}

/* A snapshot is complete when all shards are in it: older ones are deleted then. */
void check_complete(cluster *c, int64_t step, uint32_t n_shards)
{
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].step == step && c->part[i].shards != sim_all_shards(n_shards))
            sim_wrong(c, "the snapshot of step %" PRId64 " is called complete and is not", step);
}
