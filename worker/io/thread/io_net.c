/* io_net.c - the sockets of a worker: messages in and out. */
#include "worker/io/thread/io_thread.h"

#include "common/base/crc.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/net/reach.h"
#include "common/net/tcp_address.h"
#include "common/trace/trace.h"
#include "worker/tensor/table_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, PROBE_MS = 1000 };

/* ---- control --------------------------------------------------------------------------------- */
void io_send_control(void *user, const wire_control *message)
{
    io_thread *c = user;
    pen_error why;
    if (message->kind == WIRE_BEAT) {
        c->beat_seq = message->u.beat.seq;
        c->beat_ns  = trace_begin();
    }
    if (wire_control_encode(message, &c->out, &why) != PEN_OK) {
        log_error("cannot encode a message to the scheduler: %s", why.text);
        return;
    }
    /* A full queue has no reader; important messages are sent again. */
    (void)lifeline_send(c->control, c->out.data, c->out.size, NULL);
}

void io_renew(void *user)
{
    io_thread *c = user;
    lifeline_renew(c->control);
}

static void on_control(io_thread *c, const transport_event *event, uint64_t now_ms)
{
    wire_control message;
    pen_error why;
    wire_arena_reset(c->arena);
    const pen_status status =
        wire_control_decode(event->head, event->head_size, c->arena, &message, &why);
    if (status == PEN_NO_MEMORY) io_report(c, &why);
    if (status != PEN_OK) {
        stat_add(&c->ctx->stats, STAT_REFUSED, 1);
        if (log_allowed(1)) log_warning("refused a message of the scheduler: %s", why.text);
        return;
    }
    if (message.kind == WIRE_BEAT_ACK && message.u.beat_ack.seq == c->beat_seq && c->beat_ns != 0)
        trace_clock_heard(c->beat_ns, message.u.beat_ack.clock_ns, trace_begin());
    if (message.kind == WIRE_COMMAND) commands_receive(c->commands, &message);
    membership_client_receive(c->membership_client, &message, now_ms);
    unanswered_receive(c->unanswered, &message, now_ms);
}

static void control_refused(io_thread *c, const char *note)
{
    stat_add(&c->ctx->stats, STAT_REFUSED, 1);
    snprintf(c->refusal, sizeof c->refusal, "%s", note);
    if (log_allowed(4)) log_warning("no scheduler at %s yet: %s", c->control_address, note);
}

static bool drain_control(void *user)
{
    io_thread *c = user;
    transport_event event;
    int n              = 0;
    const uint64_t now = loop_now_ms(c->loop);
    for (; n < BATCH && lifeline_recv(c->control, &event) == PEN_OK; n++) {
        switch (event.kind) {
        case TRANSPORT_MESSAGE: on_control(c, &event, now); break;
        case TRANSPORT_UP: membership_up(membership_client_core(c->membership_client), now); break;
        case TRANSPORT_DOWN:
            membership_down(membership_client_core(c->membership_client), now);
            break;
        case TRANSPORT_REFUSED: control_refused(c, event.note); break;
        }
        if (event.kind == TRANSPORT_MESSAGE) buf_release(event.body);
    }
    if (n > 0) io_after(c);
    return n > 0;
}

void io_scheduler_address(const pen_ctx *ctx, char *text, size_t size)
{
    tcp_address_format(ctx->env.addr, ctx->env.port, text, size);
}

pen_status io_dial_control(io_thread *c, pen_error *why)
{
    transport_options o = lifeline_options(c->ctx->settings.lease_ms);
    o.head_bytes_max    = WIRE_HEAD_BYTES_MAX;
    io_scheduler_address(c->ctx, c->control_address, sizeof c->control_address);
    auth_dial(c->ctx->auth, AUTH_SCHEDULER, &o);
    pen_status status = lifeline_dial(c->control_address, &o, &c->control, why);
    if (status != PEN_OK) return status;
    return loop_add(c->loop, lifeline_poll_fd(c->control), drain_control, c, why);
}

/* ---- data in --------------------------------------------------------------------------------- */
bool io_store(void *user, void *to, const void *from, size_t size, uint32_t crc)
{
    (void)user;
    if (crc32c(0, from, size) != crc) return false;
    memcpy(to, from, size);
    return true;
}

bool io_store_rows(void *user, ps_client_sink *to, const void *from, size_t size, uint32_t crc)
{
    (void)user;
    return crc32c(0, from, size) == crc && to->store(to, from, size);
}

static void on_data(io_thread *c, const lane_link *l, const transport_event *event, uint64_t now_ms)
{
    wire_data d;
    pen_error why;
    const uint64_t begun_ns = trace_begin();
    wire_arena_reset(c->arena);
    pen_status status = wire_data_decode(event->head, event->head_size, c->arena, &d, &why);
    size_t size       = event->body != NULL ? event->body->size : 0;
    if (c->ps_client == NULL) return; /* nothing was asked for */
    if (status == PEN_OK && d.payload_bytes != size)
        status = why_set(&why, PEN_CORRUPT, "expected a payload of %llu bytes, got %zu",
                         (unsigned long long)d.payload_bytes, size);
    if (status == PEN_OK) {
        ps_client_receive(c->ps_client, l->shard, &d, event->body, now_ms);
        io_trace_came(c, l->shard, &d, begun_ns);
        return;
    }
    stat_add(&c->ctx->stats, STAT_REFUSED, 1);
    if (log_allowed(2 + l->shard))
        log_warning("refused a message of %s: %s", c->route.server[l->shard], why.text);
}

static void link_up(lane_link *l, uint64_t now_ms)
{
    ps_client *x = l->owner->ps_client;
    l->is_up     = true;
    reach_up(&l->reach);
    if (x != NULL) ps_client_up(x, l->shard, l->lane, now_ms);
}

static void link_down(lane_link *l, uint64_t now_ms)
{
    ps_client *x = l->owner->ps_client;
    l->is_up     = false;
    reach_down(&l->reach, l->owner->ctx->settings.lease_ms / 10, now_ms);
    if (x != NULL) ps_client_down(x, l->shard, l->lane);
}

void io_notify_ps_client(io_thread *c, uint64_t now_ms)
{
    for (uint32_t i = 0; i < c->n_links; i++)
        if (c->links[i].is_up)
            ps_client_up(c->ps_client, c->links[i].shard, c->links[i].lane, now_ms);
}

bool io_has_links(const io_thread *c)
{
    for (uint32_t i = 0; i < c->n_links; i++)
        if (!c->links[i].is_up && c->route.address[c->links[i].shard] != NULL) return false;
    return true;
}

static bool drain_link(void *user)
{
    lane_link *l = user;
    io_thread *c = l->owner;
    transport_event event;
    int n              = 0;
    const uint64_t now = loop_now_ms(c->loop);
    for (; n < BATCH && l->t != NULL && transport_recv(l->t, &event) == PEN_OK; n++) {
        switch (event.kind) {
        case TRANSPORT_MESSAGE: on_data(c, l, &event, now); break;
        case TRANSPORT_UP: link_up(l, now); break;
        case TRANSPORT_DOWN: link_down(l, now); break;
        case TRANSPORT_REFUSED:
            stat_add(&c->ctx->stats, STAT_REFUSED, 1);
            reach_refused(&l->reach, event.note);
            break;
        }
        if (event.kind == TRANSPORT_MESSAGE) buf_release(event.body);
    }
    if (n > 0) io_after(c);
    return n > 0;
}

/* A shard without a server is dialled when a view names one. */
static pen_status dial_link(io_thread *c, lane_link *l, pen_error *why)
{
    if (c->route.address[l->shard] == NULL) return PEN_OK;
    transport_options o = {.lends = c->ctx->settings.shared_memory};
    auth_dial(c->ctx->auth, AUTH_SERVER, &o);
    pen_status status = transport_dial(c->route.address[l->shard], &o, &l->t, why);
    if (status != PEN_OK) return status;
    if (l->lane == 0)
        reach_begin(&l->reach, c->ctx->settings.init_timeout_ms, loop_now_ms(c->loop));
    return loop_add(c->loop, transport_poll_fd(l->t), drain_link, l, why);
}

static void close_link(io_thread *c, lane_link *l)
{
    loop_remove(c->loop, l);
    transport_close(l->t, 0);
    reach_end(&l->reach);
    l->t     = NULL;
    l->is_up = false;
}

pen_status io_dial_links(io_thread *c, pen_error *why)
{
    const uint32_t lanes = (uint32_t)c->ctx->settings.lanes;
    c->links             = calloc((size_t)c->n_shards * lanes, sizeof *c->links);
    if (c->links == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %u connections", c->n_shards * lanes);
    c->n_links = c->n_shards * lanes;
    for (uint32_t i = 0; i < c->n_links; i++) {
        lane_link *l      = &c->links[i];
        *l                = (lane_link){.owner = c, .shard = i / lanes, .lane = i % lanes};
        pen_status status = dial_link(c, l, why);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

void io_close_links(io_thread *c)
{
    for (uint32_t i = 0; i < c->n_links; i++)
        if (c->links[i].t != NULL) close_link(c, &c->links[i]);
}

/* Only marks the lane: the caller may be reading from it. */
void io_disconnect(void *user, uint32_t shard, uint32_t lane)
{
    io_thread *c                                                              = user;
    c->links[shard * (uint32_t)c->ctx->settings.lanes + lane].is_disconnected = true;
}

void io_disconnect_shard(io_thread *c, uint32_t shard)
{
    for (uint32_t i = 0; i < c->n_links; i++)
        if (c->links[i].shard == shard) c->links[i].is_disconnected = true;
}

void io_redial_disconnected(io_thread *c)
{
    for (uint32_t i = 0; i < c->n_links; i++) {
        lane_link *l = &c->links[i];
        if (!l->is_disconnected) continue;
        l->is_disconnected = false;
        if (l->t != NULL) close_link(c, l);
        if (c->ps_client != NULL) ps_client_down(c->ps_client, l->shard, l->lane);
        pen_error why;
        if (!c->is_leaving && dial_link(c, l, &why) != PEN_OK) io_fail(c, &why);
    }
}

/* ---- peers that cannot be reached ------------------------------------------------------------------ */
void io_send_unreached(io_thread *c, int32_t role, int32_t rank, const char *address,
                       const char *words)
{
    const wire_control m = {
        .kind        = WIRE_UNREACHED,
        .u.unreached = {.role = role, .rank = rank, .address = address, .words = words}};
    membership_client_send(c->membership_client, &m);
}

/* Also while the program runs its own code: on a disconnected host only this thread can report it. */
static void look_at_control(io_thread *c, uint64_t now_ms)
{
    const pen_ctx *ctx  = c->ctx;
    const char *address = strstr(c->control_address, "://");
    char who[300], whom[340], remedy[400];
    if (c->has_failed || c->is_leaving) return;
    snprintf(who, sizeof who, "worker %d (%.255s)", (int)ctx->env.rank, ctx->host);
    snprintf(whom, sizeof whom, "the scheduler at %s",
             address != NULL ? address + 3 : c->control_address);
    snprintf(remedy, sizeof remedy, "`penstock doctor --master-addr %.300s` tests the connection",
             ctx->env.addr);
    lifeline_watch(
        c->control, membership_silence_ms(membership_client_core(c->membership_client), now_ms),
        membership_client_core(c->membership_client)->setup.lease_ms, who, whom, remedy, now_ms);
}

/* Rank of the server; -1: not in the view. */
static int32_t server_at(const io_thread *c, const char *address)
{
    for (uint32_t i = 0; i < c->view.n_servers; i++)
        for (uint32_t a = 0; a < c->view.server[i].n_addresses; a++)
            if (strcmp(c->view.server[i].address[a], address) == 0) return c->view.server[i].rank;
    return -1;
}

void io_look_at_links(io_thread *c, uint64_t now_ms)
{
    if (now_ms - c->looked_ms < REACH_LOOK_MS) return;
    c->looked_ms = now_ms;
    look_at_control(c, now_ms);
    for (uint32_t i = 0; i < c->n_links; i++) {
        lane_link *l   = &c->links[i];
        const char *to = c->route.address[l->shard];
        if (l->is_up && l->lane == 0)
            reach_doubt(&l->reach, transport_unconfirmed_ms(l->t), c->ctx->settings.lease_ms,
                        now_ms);
        const char *words =
            to != NULL && !l->is_disconnected ? reach_look(&l->reach, to, now_ms) : NULL;
        const int32_t rank = words != NULL ? server_at(c, to) : -1;
        if (rank >= 0) io_send_unreached(c, PEN_SERVER, rank, to, words);
    }
}

/* ---- probe ------------------------------------------------------------------------------------ */
const char *io_probe(void *user)
{
    io_thread *c          = user;
    const worker_env *env = &c->ctx->env;
    char port[16];
    snprintf(port, sizeof port, "%u", env->port);
    const int error = reach_try(env->addr, port, PROBE_MS);
    if (error == REACH_NO_NAME) return "(the name cannot be resolved); look at MASTER_ADDR";
    const bool is_there = error == 0 || (error == REACH_LOCAL && c->refusal[0] != '\0');
    if (is_there && strstr(c->refusal, ", and this side") != NULL)
        return "(one side encrypts and the other does not); look at encryption and secret_file of "
               "all";
    if (is_there && auth_encrypts(c->ctx->auth))
        return "(what answers there has another secret); look at secret_file of all";
    if (error == ECONNREFUSED && auth_hint(c->ctx->auth, c->control_address) != NULL)
        return "(a process of another user or container has that port); set PENSTOCK_SECRET_FILE "
               "for "
               "all if it is this job's scheduler";
    if (error == REACH_LOCAL)
        return "(its socket is there, but it does not answer: is it stopped?)";
    if (error == 0) return "(the port is open: torchrun's own store?); set PENSTOCK_PORT";
    if (error == ECONNREFUSED) return "(connection refused: nothing listens there)";
    return error == ETIMEDOUT ? "(no answer at all: wrong address, or a firewall)"
                              : "(the host cannot be reached)";
}
