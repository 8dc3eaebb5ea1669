/* cluster_copy.c - the copies of shards on one server: the work of their threads. */
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { /* number spaces of a copy's peers: workers have the low one */
       PEER_REPLICA = 1u << 31,
       PEER_LINK    = 1u << 30
};

/* ---- messages of a shard --------------------------------------------------------------------- */
static void shard_sends(void *user, uint32_t peer, const wire_data *d, buf *payload)
{
    sim_copy *k = user;
    check_served(k, d, payload);
    endpoint *e = peer & PEER_REPLICA ? &k->place->replica : &k->place->listener;
    (void)net_say_data(k->place->server->c, e, peer & ~(uint32_t)PEER_REPLICA, d, payload);
}

static bool shard_sends_replica(void *user, int32_t server, const wire_data *d, buf *payload)
{
    sim_copy *k         = user;
    const sim_server *s = k->place->server;
    if (fault_apart(s->c, SIM_SERVER, s->rank, SIM_SERVER, (uint32_t)server)) return false;
    return net_say_data(s->c, &k->link[server].e, 0, d, payload);
}

static void shard_reports(void *user, const pen_error *error)
{
    sim_copy *k   = user;
    k->has_failed = true;
    sim_server_report(k->place->server, error);
}

static void shard_caught_up(void *user, int32_t server)
{
    sim_copy *k = user;
    sim_server_caught_up(k->place->server, k->number, server);
}

static void shard_suspects(void *user, int32_t server, uint64_t waited_ms)
{
    sim_copy *k = user;
    sim_server_suspect(k->place->server, k->number, server, waited_ms);
}

static void shard_cuts(void *user, shard_capture *cut)
{
    sim_copy *k   = user;
    sim_server *s = k->place->server;
    check_copy(k); /* the update that completed the capture is not known yet */
    mutation_cut(k, cut);
    check_cut(k, cut);
    sim_server_count_part(s, k->number, cut->step);
    shard_capture_destroy(cut);
}

/* ---- links to other copies ------------------------------------------------------------------- */
static void link_to(sim_copy *k, const wire_replica *to)
{
    const sim_server *s       = k->place->server;
    const wire_member *member = sim_view_server(&s->view, to->server);
    if (member == NULL || to->place >= member->n_addresses) return;
    sim_link *l = &k->link[to->server];
    if (l->e.t != NULL && l->to == member->incarnation) return;
    net_hang_up(&l->e);
    l->to = member->incarnation;
    net_dial_replica(s->c, &l->e, member->address[to->place], k->place->listener.name);
}

static void unlink_all(sim_copy *k)
{
    for (uint32_t i = 0; i < k->place->server->c->n_servers; i++) net_hang_up(&k->link[i].e);
}

static void relink(sim_copy *k)
{
    const wire_epoch *r          = &k->place->server->view;
    bool wanted[SIM_SERVERS_MAX] = {false};
    for (uint32_t i = 0; i < r->n_replicas && k->role == WIRE_PRIMARY; i++) {
        if (r->replica[i].shard != k->number || r->replica[i].role == WIRE_PRIMARY) continue;
        wanted[r->replica[i].server] = true;
        link_to(k, &r->replica[i]);
    }
    for (uint32_t i = 0; i < k->place->server->c->n_servers; i++)
        if (!wanted[i] && k->link[i].e.t != NULL) net_hang_up(&k->link[i].e);
}

/* ---- creating and closing -------------------------------------------------------------------- */
static void destroy(sim_copy *k)
{
    unlink_all(k);
    shard_destroy(k->shard);
    free(k->version);
    free(k->crc);
    free(k->link);
    memset(k, 0, sizeof *k);
}

static void create(sim_server *s, sim_copy *k, const wire_replica *r)
{
    const shard_options options = {.park_bytes_max = s->c->plan.park_bytes_max,
                                   .suspect_ms     = s->c->plan.lease_ms,
                                   .stats          = &s->stats};
    const shard_outside outside = {.user         = k,
                                   .send         = shard_sends,
                                   .snapshot     = shard_cuts,
                                   .report       = shard_reports,
                                   .send_replica = shard_sends_replica,
                                   .caught_up    = shard_caught_up,
                                   .suspect      = shard_suspects};
    const shard_setup setup     = {.model       = &s->model,
                                   .plan        = s->cut,
                                   .shard_of    = s->shard_of,
                                   .self        = r->shard,
                                   .world_size  = s->ranks_max,
                                   .server      = (int32_t)s->rank,
                                   .incarnation = s->member.incarnation,
                                   .is_empty    = r->role == WIRE_LEARNER};
    pen_error why;
    *k         = (sim_copy){.place = &s->place[r->place], .number = r->shard};
    k->link    = sim_need(calloc(s->c->n_servers, sizeof *k->link));
    k->shard   = shard_create(&options, &outside, &why);
    k->version = sim_need(calloc(s->cut->n_chunks, sizeof *k->version));
    k->crc     = sim_need(calloc(s->cut->n_chunks, sizeof *k->crc));
    if (k->shard != NULL && shard_configure(k->shard, &setup, &why) == PEN_OK) return;
    if (!sim_memory_has_refused()) sim_wrong(s->c, "%s", why.text);
    sim_server_report(s, &why);
    destroy(k);
}

/* ---- epochs ---------------------------------------------------------------------------------- */
static void install(sim_server *s, sim_copy *k, const wire_replica *mine)
{
    const wire_epoch *r = &s->view;
    shard_replica others[SIM_SERVERS_MAX];
    shard_view view = {.term            = r->term,
                       .epoch           = r->epoch,
                       .worker          = r->worker,
                       .n_workers       = r->n_workers,
                       .members_changed = r->members_changed,
                       .step            = r->step,
                       .has_decision    = r->has_decision,
                       .decision        = r->decision,
                       .role            = (shard_role)mine->role,
                       .replica         = others};
    for (uint32_t i = 0; i < r->n_replicas; i++) {
        const wire_replica *o     = &r->replica[i];
        const wire_member *member = sim_view_server(r, o->server);
        if (o->shard != k->number || member == NULL) continue;
        if (o->role == WIRE_PRIMARY)
            view.primary = member->incarnation;
        else
            others[view.n_replicas++] = (shard_replica){.server      = o->server,
                                                        .incarnation = member->incarnation,
                                                        .is_learner  = o->role == WIRE_LEARNER};
    }
    k->is_sealed = false;
    shard_install(k->shard, &view);
    k->role  = mine->role;
    k->term  = r->term;
    k->epoch = r->epoch;
}

static const wire_replica *row_of(const sim_server *s, uint32_t number)
{
    for (uint32_t i = 0; i < s->view.n_replicas; i++)
        if (s->view.replica[i].shard == number && s->view.replica[i].server == (int32_t)s->rank)
            return &s->view.replica[i];
    return NULL;
}

void sim_copies_install(sim_server *s)
{
    for (uint32_t i = 0; i < s->n_shards && i < SIM_SHARDS_MAX; i++) {
        sim_copy *k              = &s->copy[i];
        const wire_replica *mine = row_of(s, i);
        if (k->shard != NULL && (mine == NULL || &s->place[mine->place] != k->place)) destroy(k);
        if (mine == NULL) continue;
        if (k->shard == NULL) create(s, k, mine);
        if (k->shard == NULL) continue;
        install(s, k, mine);
        relink(k);
        check_installed(k);
        shard_flush(k->shard);
    }
}

static void seal(sim_server *s, sim_copy *k)
{
    shard_seal(k->shard, s->member.seal.term, s->member.seal.epoch, &s->report[s->n_reports++]);
    k->is_sealed = true;
}

/* A copy gets a little time to receive what its primary logged last. */
bool sim_copies_seal(sim_server *s, bool at_once)
{
    s->n_reports = 0;
    for (uint32_t i = 0; i < s->n_shards && !at_once; i++) {
        const sim_copy *k = &s->copy[i];
        if (k->shard == NULL || k->role == WIRE_PRIMARY) continue;
        if (!shard_is_level(k->shard, s->member.seal.epoch)) return false;
    }
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (s->copy[i].shard != NULL) seal(s, &s->copy[i]);
    return true;
}

/* Copies need not wait for what a primary no longer logs. */
void sim_copies_seal_primaries(sim_server *s)
{
    wire_sealed_report report;
    for (uint32_t i = 0; i < s->n_shards; i++) {
        sim_copy *k = &s->copy[i];
        if (k->shard == NULL || k->role != WIRE_PRIMARY) continue;
        shard_seal(k->shard, s->member.seal.term, s->member.seal.epoch, &report);
        k->is_sealed = true;
    }
}

void sim_copies_free(sim_server *s)
{
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (s->copy[i].shard != NULL) destroy(&s->copy[i]);
}

void sim_copies_nudge(sim_server *s)
{
    for (uint32_t i = 0; i < s->n_shards; i++)
        if (s->copy[i].shard != NULL) shard_resend(s->copy[i].shard, sim_now(s->c, &s->clock));
}

/* ---- messages -------------------------------------------------------------------------------- */
static void take_data(sim_copy *k, uint32_t peer, const wire_data *said, buf **body)
{
    wire_data heard = *said;
    k->message      = said;
    if (mutation_receive(k, peer, &heard, body)) shard_receive(k->shard, peer, &heard, *body);
    check_copy(k);
    k->message = NULL;
}

static sim_copy *copy_of(sim_place *p, uint32_t number)
{
    sim_copy *k = number < SIM_SHARDS_MAX ? &p->server->copy[number] : NULL;
    return k != NULL && k->shard != NULL && k->place == p ? k : NULL;
}

static void refuse(sim_place *p, endpoint *e, uint32_t peer, const wire_data *d)
{
    const wire_data answer = {.kind   = WIRE_REFUSED,
                              .term   = d->term,
                              .epoch  = d->epoch,
                              .from   = d->to,
                              .to     = d->from,
                              .rank   = d->rank,
                              .step   = d->step,
                              .n      = d->n,
                              .chunk  = d->chunk,
                              .seq    = d->seq,
                              .shard  = d->shard,
                              .status = PEN_AGAIN,
                              .text   = "this server does not hold that shard"};
    (void)net_say_data(p->server->c, e, peer, &answer, NULL);
}

static void tell_down(sim_place *p, uint32_t peer)
{
    for (uint32_t i = 0; i < p->server->n_shards; i++) {
        sim_copy *k = copy_of(p, i);
        if (k != NULL) shard_peer_down(k->shard, peer);
    }
}

static bool drain_listener(sim_place *p, endpoint *e, uint32_t space)
{
    transport_event event;
    wire_data d;
    bool any = false;
    for (; net_recv(p->server->c, e, &event); any = true) {
        if (event.kind == TRANSPORT_DOWN) tell_down(p, event.peer | space);
        if (event.kind == TRANSPORT_MESSAGE && net_hear_data(p->server->c, e, &event, &d)) {
            sim_copy *k = copy_of(p, d.shard);
            if (k != NULL)
                take_data(k, event.peer | space, &d, &event.body);
            else if (space == 0)
                refuse(p, e, event.peer, &d);
        }
        buf_release(event.body);
    }
    return any;
}

static bool drain_link(sim_copy *k, int32_t server)
{
    transport_event event;
    wire_data d;
    bool any    = false;
    endpoint *e = &k->link[server].e;
    for (; net_recv(k->place->server->c, e, &event); any = true) {
        if (event.kind == TRANSPORT_UP) shard_replica_up(k->shard, server);
        if (event.kind == TRANSPORT_DOWN) shard_replica_down(k->shard, server);
        if (event.kind == TRANSPORT_MESSAGE && net_hear_data(k->place->server->c, e, &event, &d))
            take_data(k, PEER_LINK | (uint32_t)server, &d, &event.body);
        buf_release(event.body);
    }
    return any;
}

bool sim_copies_turn(sim_server *s)
{
    bool any = false;
    for (uint32_t i = 0; i < s->n_places; i++) {
        any |= drain_listener(&s->place[i], &s->place[i].listener, 0);
        any |= drain_listener(&s->place[i], &s->place[i].replica, PEER_REPLICA);
    }
    for (uint32_t i = 0; i < s->n_shards; i++)
        for (int32_t to = 0; to < (int32_t)s->c->n_servers && s->copy[i].shard != NULL; to++)
            if (s->copy[i].link[to].e.t != NULL) any |= drain_link(&s->copy[i], to);
    for (uint32_t i = 0; i < s->n_shards && any; i++) {
        if (s->copy[i].shard == NULL) continue;
        shard_flush(s->copy[i].shard);
        check_copy(&s->copy[i]);
    }
    return any;
}
