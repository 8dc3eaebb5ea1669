/* cluster_net.c - three simulated networks on one clock, each with its faults: control, data, and
 * messages between servers. */
#include "tests/sim/cluster_state.h"

#include "tests/support/transport_sim.h"

#include <stdio.h>
#include <string.h>

enum { USUAL_DELAY_MS = 1, RECONNECT_MS = 20 };

/* ---- life ------------------------------------------------------------------------------------ */
void net_open(cluster *c)
{
    for (int plane = 0; plane < NETS; plane++)
        c->net[plane] = sim_need(
            sim_net_create(c->plan.task.seed * NETS + (uint64_t)plane + 1, &c->clock.source));
    net_trouble(c, true);
}

void net_close(cluster *c)
{
    for (int plane = 0; plane < NETS; plane++) sim_net_destroy(c->net[plane]);
}

bool net_deliver(cluster *c)
{
    bool any = false;
    for (int plane = 0; plane < NETS; plane++) any |= sim_net_deliver(c->net[plane]);
    return any;
}

uint64_t net_due(const cluster *c)
{
    uint64_t due = UINT64_MAX;
    for (int plane = 0; plane < NETS; plane++) {
        const uint64_t next = sim_net_next_ms(c->net[plane]);
        if (next < due) due = next;
    }
    return due;
}

/* ---- faults ---------------------------------------------------------------------------------- */
void net_trouble(cluster *c, bool on)
{
    const sim_trouble *told[NETS] = {&c->plan.control, &c->plan.data, &c->plan.replica};
    for (int plane = 0; plane < NETS; plane++) {
        sim_faults faults = {.delay_ms_max = USUAL_DELAY_MS};
        if (on)
            faults = (sim_faults){.drop         = told[plane]->drop / 100.0,
                                  .repeat       = told[plane]->repeat / 100.0,
                                  .reorder      = told[plane]->reorder / 100.0,
                                  .delay_ms_max = USUAL_DELAY_MS + told[plane]->delay_ms};
        sim_net_faults(c->net[plane], &faults);
    }
}

typedef void (*named_fn)(cluster *c, const char *name, bool on);

/* A restarted process listens at a new address, unless the plan gives it the old one. */
static void server_name(const cluster *c, uint32_t rank, uint32_t birth, char name[SIM_NAME_BYTES])
{
    if (birth == 0 || c->plan.same_address)
        snprintf(name, SIM_NAME_BYTES, "server%u", rank);
    else
        snprintf(name, SIM_NAME_BYTES, "server%ub%u", rank, birth);
}

void net_place_name(const cluster *c, uint32_t rank, uint32_t birth, int32_t place,
                    char name[SIM_NAME_BYTES])
{
    server_name(c, rank, birth, name);
    const size_t used = strlen(name);
    if (place >= 0) snprintf(name + used, SIM_NAME_BYTES - used, ".%d", place);
}

/* All endpoints of one process: diallers have its name, each listener has one of its own. */
static void for_names(cluster *c, sim_role role, uint32_t rank, uint32_t birth, named_fn fn,
                      bool on)
{
    char name[SIM_NAME_BYTES];
    switch (role) {
    case SIM_NOBODY: return;
    case SIM_SCHEDULER: fn(c, "scheduler", on); return;
    case SIM_WORKER:
        snprintf(name, sizeof name, "worker%u", rank);
        fn(c, name, on);
        return;
    case SIM_SERVER: break;
    }
    for (int32_t place = -1; place < (int32_t)c->plan.shards; place++) {
        net_place_name(c, rank, birth, place, name);
        fn(c, name, on);
    }
}

static void deafen(cluster *c, const char *name, bool on)
{
    for (int plane = 0; plane < NETS; plane++) sim_net_partition(c->net[plane], "*", name, on);
}

static void silence(cluster *c, const char *name, bool on)
{
    for (int plane = 0; plane < NETS; plane++) sim_net_partition(c->net[plane], name, "*", on);
}

static void disconnect(cluster *c, const char *name, bool on)
{
    (void)on;
    for (int plane = 0; plane < NETS; plane++) {
        sim_net_break(c->net[plane], name, "*", RECONNECT_MS);
        sim_net_break(c->net[plane], "*", name, RECONNECT_MS);
    }
}

static void kill_name(cluster *c, const char *name, bool on)
{
    (void)on;
    for (int plane = 0; plane < NETS; plane++) sim_net_kill(c->net[plane], name);
}

void net_partition(cluster *c, const sim_event *who, uint32_t birth, bool on)
{
    if (who->what != SIM_MUTE) for_names(c, who->role, who->rank, birth, deafen, on);
    if (who->what != SIM_DEAF) for_names(c, who->role, who->rank, birth, silence, on);
}

void net_break(cluster *c, const sim_event *who, uint32_t birth)
{
    for_names(c, who->role, who->rank, birth, disconnect, true);
}

void net_kill(cluster *c, sim_role role, uint32_t rank)
{
    const uint32_t birth = role == SIM_SERVER ? c->server[rank].birth : 0;
    for_names(c, role, rank, birth, kill_name, true);
}

static const endpoint *draw_dialler(cluster *c, net_plane plane)
{
    const sim_worker *w = &c->worker[draw_below(&c->chance, c->n_workers)];
    if (!sim_has_servers(c)) return &w->control;
    const sim_server *s = &c->server[draw_below(&c->chance, c->n_servers)];
    if (plane == NET_CONTROL) return draw_chance(&c->chance, 50) ? &w->control : &s->control;
    static const endpoint none;
    if (plane == NET_REPLICA) {
        const sim_copy *k = &s->copy[draw_below(&c->chance, 10)];
        const uint64_t to = draw_below(&c->chance, c->n_servers);
        return k->link != NULL ? &k->link[to].e : &none;
    }
    const uint32_t shards = w->n_shards > 0 ? w->n_shards : 1;
    return &w->lane[draw_below(&c->chance, shards * c->plan.lanes)].data;
}

void net_break_one(cluster *c, net_plane plane)
{
    const endpoint *e = draw_dialler(c, plane);
    if (e->t == NULL) return;
    sim_note(c, "break  %s - %s", e->name, e->other);
    c->result.breaks++;
    sim_net_break(c->net[plane], e->name, e->other,
                  (uint32_t)draw_below(&c->chance, 3 * RECONNECT_MS));
}

uint32_t net_control_id(const cluster *c)
{
    return sim_net_id(c->net[NET_CONTROL]);
}

/* ---- endpoints ------------------------------------------------------------------------------- */
void net_listen(cluster *c, endpoint *e, net_plane plane, const char *name)
{
    char address[2 * SIM_NAME_BYTES];
    snprintf(e->name, sizeof e->name, "%s", name);
    snprintf(address, sizeof address, "sim://%u/%s", sim_net_id(c->net[plane]), name);
    pen_error why;
    if (transport_listen(address, NULL, &e->t, &why) != PEN_OK) sim_wrong(c, "%s", why.text);
    e->plane = plane;
}

static void dial(cluster *c, endpoint *e, net_plane plane, const char *other, const char *name)
{
    char full[3 * SIM_NAME_BYTES];
    pen_error why;
    snprintf(e->name, sizeof e->name, "%s", name);
    snprintf(e->other, sizeof e->other, "%s", other);
    snprintf(full, sizeof full, "sim://%u/%s?from=%s", sim_net_id(c->net[plane]), other, name);
    e->plane = plane;
    if (transport_dial(full, NULL, &e->t, &why) != PEN_OK) sim_wrong(c, "%s", why.text);
}

void net_dial(cluster *c, endpoint *e, const char *address, const char *name)
{
    char other[SIM_NAME_BYTES] = "";
    unsigned id                = 0;
    sscanf(address, "sim://%u/%39s", &id, other);
    dial(c, e, id == sim_net_id(c->net[NET_DATA]) ? NET_DATA : NET_CONTROL, other, name);
}

/* Copies listen under the same names as for workers, in a separate network. */
void net_dial_replica(cluster *c, endpoint *e, const char *address, const char *name)
{
    char other[SIM_NAME_BYTES] = "";
    unsigned id                = 0;
    sscanf(address, "sim://%u/%39s", &id, other);
    dial(c, e, NET_REPLICA, other, name);
}

void net_redial(cluster *c, endpoint *e)
{
    char other[SIM_NAME_BYTES], name[SIM_NAME_BYTES];
    memcpy(other, e->other, sizeof other);
    memcpy(name, e->name, sizeof name);
    net_hang_up(e);
    dial(c, e, e->plane, other, name);
}

void net_hang_up(endpoint *e)
{
    e->is_swallowed = false;
    if (e->t == NULL) return;
    transport_close(e->t, 0);
    e->t = NULL;
}

/* Flips one bit of a copy: the sender's bytes are its own. */
static void corrupt(cluster *c, net_plane plane, transport_event *event)
{
    const uint32_t told    = plane == NET_DATA ? c->plan.data.corrupt : c->plan.replica.corrupt;
    const uint32_t percent = c->is_healed ? 0 : told;
    if (event->body == NULL || event->body->size == 0 || !draw_chance(&c->chance, percent)) return;
    buf *copy = sim_need(buf_new(event->body->size));
    memcpy(copy->data, event->body->data, copy->size);
    ((uint8_t *)copy->data)[draw_below(&c->chance, copy->size)] ^=
        (uint8_t)(1 << draw_below(&c->chance, 8));
    buf_release(event->body);
    event->body = copy;
    c->result.corrupt++;
}

/* The trace of a run: what arrives, where, when and with which bytes. */
static void digest(cluster *c, const endpoint *e, const transport_event *event)
{
    const uint32_t head = event->head_size > 0 ? crc32c(0, event->head, event->head_size) : 0;
    const uint32_t body = event->body != NULL ? crc32c(0, event->body->data, event->body->size) : 0;
    const uint32_t name = crc32c(event->peer, e->name, strlen(e->name));
    c->result.digest =
        draw_mix(c->result.digest ^ c->now_ms ^ (uint64_t)event->kind << 60 ^ (uint64_t)name << 8);
    c->result.digest = draw_mix(c->result.digest ^ (uint64_t)head << 32 ^ body);
    c->result.messages++;
}

bool net_recv(cluster *c, endpoint *e, transport_event *event)
{
    while (e->is_swallowed && transport_recv(e->t, event) == PEN_OK) buf_release(event->body);
    if (e->t == NULL || c->result.wrong[0] != '\0' || transport_recv(e->t, event) != PEN_OK)
        return false;
    if (event->kind == TRANSPORT_MESSAGE && e->plane != NET_CONTROL) corrupt(c, e->plane, event);
    digest(c, e, event);
    if (event->kind != TRANSPORT_MESSAGE)
        sim_note(c, "%s of %s (%s)", event->kind == TRANSPORT_UP ? "up" : "down", e->name,
                 e->other);
    return true;
}

/* ---- messages -------------------------------------------------------------------------------- */
bool net_hear(cluster *c, const endpoint *e, const transport_event *event, wire_control *message)
{
    pen_error why;
    wire_arena_reset(c->arena);
    if (wire_control_decode(event->head, event->head_size, c->arena, message, &why) != PEN_OK) {
        sim_wrong(c, "%s cannot read a control message: %s", e->name, why.text);
        return false;
    }
    if (message->kind != WIRE_BEAT && message->kind != WIRE_BEAT_ACK)
        sim_note(c, "%-10s <- %-10s %s", e->name, e->other, wire_kind_name((int)message->kind));
    return true;
}

static void note_data(cluster *c, const endpoint *e, const wire_data *d)
{
    const char *flags = d->flags & WIRE_INITIAL    ? " initial"
                        : d->flags & WIRE_REPEATED ? " again"
                                                   : "";
    const char *kind  = wire_kind_name((int)d->kind);
    if (d->kind == WIRE_LOG || d->kind == WIRE_LOGGED)
        sim_note(c, "%-10s <- %-10s %s%s shard %u index %llu, %u entries%s", e->name, e->other,
                 kind, flags, d->shard, (unsigned long long)d->index, d->n_entries,
                 d->flags & WIRE_SEALING ? ", sealing" : "");
    else
        sim_note(c, "%-10s <- %-10s %s%s shard %u rank %d step %llu, %u chunks from %u%s%s",
                 e->name, e->other, kind, flags, d->shard, d->rank,
                 (unsigned long long)(d->seq != NULL && d->n > 0 ? d->seq[0] : d->step), d->n,
                 d->n > 0 ? d->chunk[0] : 0, d->text[0] != '\0' ? ": " : "", d->text);
}

bool net_hear_data(cluster *c, const endpoint *e, const transport_event *event, wire_data *d)
{
    pen_error why;
    wire_arena_reset(c->arena);
    if (wire_data_decode(event->head, event->head_size, c->arena, d, &why) != PEN_OK) {
        sim_wrong(c, "%s cannot read a data message: %s", e->name, why.text);
        return false;
    }
    note_data(c, e, d);
    return d->payload_bytes == (event->body != NULL ? event->body->size : 0);
}

_Static_assert((int)WIRE_KIND_END <= SIM_KINDS_MAX && (int)WIRE_CONTROL_END <= SIM_KINDS_MAX,
               "each has a counter");

void net_count(cluster *c, int kind, size_t bytes)
{
    c->result.sent[kind].messages++;
    c->result.sent[kind].bytes += bytes;
}

void net_say(cluster *c, endpoint *e, uint32_t peer, const wire_control *message)
{
    pen_error why;
    if (e->t == NULL || e->is_swallowed) return;
    if (wire_control_encode(message, &c->out, &why) != PEN_OK)
        sim_wrong(c, "%s cannot write %s: %s", e->name, wire_kind_name((int)message->kind),
                  why.text);
    else if (transport_send(e->t, peer, c->out.data, c->out.size, NULL) == PEN_OK)
        net_count(c, (int)message->kind, c->out.size); /* what matters is sent again */
}

bool net_say_data(cluster *c, endpoint *e, uint32_t peer, const wire_data *d, buf *payload)
{
    pen_error why;
    if (e->t == NULL) return false;
    if (wire_data_encode(d, &c->out, &why) != PEN_OK) {
        sim_wrong(c, "%s cannot write %s: %s", e->name, wire_kind_name((int)d->kind), why.text);
        return false;
    }
    buf *body = buf_acquire(payload);
    if (transport_send(e->t, peer, c->out.data, c->out.size, body) != PEN_OK) {
        buf_release(body);
        return false;
    }
    net_count(c, (int)d->kind, c->out.size + (payload != NULL ? payload->size : 0));
    return true;
}
