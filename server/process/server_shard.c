/* server_shard.c - a thread with shards: decodes and encodes messages, queues what a socket cannot take. */
#include "server/process/server_state.h"

#include "common/base/log.h"
#include "common/containers/list.h"
#include "common/system/fp_env.h"
#include "common/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DRAIN_MESSAGES = 64,   /* before answers are flushed */
    UNSENT_MAX     = 4096, /* beyond: dropped; workers ask again */
    RETRY_MS       = 1,
    QUEUE_BYTES    = 1 << 30, /* queued for or from one peer, beside four times the parameters */
    LINGER_MS      = 1000
};

struct server_unsent {
    struct server_unsent *next, *prev;
    uint32_t peer;
    buf *payload;
    size_t head_size;
    char head[];
};

/* ---- sending --------------------------------------------------------------------------------- */
static pen_status hand_over(server_shard *s, uint32_t peer, const void *head, size_t size,
                            buf *payload)
{
    const pen_status status = transport_send(s->endpoint, peer, head, size, buf_acquire(payload));
    if (status != PEN_OK) buf_release(payload);
    return status;
}

static bool waits_behind(const server_shard *s, uint32_t peer)
{
    LIST_EACH(u, s->unsent)
        if (u->peer == peer) return true;
    return false;
}

static void retry(void *user);

static void keep(server_shard *s, uint32_t peer, buf *payload)
{
    server_unsent *u = s->n_unsent < UNSENT_MAX ? malloc(sizeof *u + s->out.size) : NULL;
    if (u == NULL) return;
    *u = (server_unsent){.peer = peer, .payload = buf_acquire(payload), .head_size = s->out.size};
    memcpy(u->head, s->out.data, s->out.size);
    LIST_APPEND(s->unsent, u);
    stat_add(&s->server->stats, STAT_UNSENT, 1);
    if (s->n_unsent++ == 0)
        loop_timer_start(s->loop, &s->retry, loop_now_ms(s->loop) + RETRY_MS, retry, s);
}

static void drop_unsent(server_shard *s, server_unsent *u)
{
    LIST_REMOVE(s->unsent, u);
    buf_release(u->payload);
    free(u);
    stat_add(&s->server->stats, STAT_UNSENT, (uint64_t)-1);
    s->n_unsent--;
}

/* Keeps the order per peer: once a peer is full, its later messages wait too. */
static void retry(void *user)
{
    server_shard *s = user;
    uint32_t full   = UINT32_MAX;
    LIST_EACH(u, s->unsent) {
        const pen_status status =
            u->peer == full ? PEN_AGAIN : hand_over(s, u->peer, u->head, u->head_size, u->payload);
        if (status == PEN_AGAIN)
            full = u->peer;
        else
            drop_unsent(s, u);
    }
    if (s->n_unsent > 0)
        loop_timer_start(s->loop, &s->retry, loop_now_ms(s->loop) + RETRY_MS, retry, s);
}

static void send_data(server_shard *s, uint32_t peer, const wire_data *d, buf *payload)
{
    pen_error why;
    if (wire_data_encode(d, &s->out, &why) != PEN_OK) {
        server_report(s->server, &why);
        return;
    }
    if (s->n_unsent > 0 && waits_behind(s, peer)) {
        keep(s, peer, payload);
        return;
    }
    if (hand_over(s, peer, s->out.data, s->out.size, payload) == PEN_AGAIN) keep(s, peer, payload);
}

/* ---- the thread as seen by a shard ----------------------------------------------------------- */
static void send_for(void *user, uint32_t peer, const wire_data *d, buf *payload)
{
    send_data(((server_hosted *)user)->place, peer, d, payload);
}

static bool send_replica(void *user, int32_t to, const wire_data *d, buf *payload)
{
    const server_hosted *h = user;
    for (uint32_t i = 0; i < h->n_copies; i++)
        if (h->server[i] == to)
            return h->link[i] != NULL && server_link_send(h->link[i], d, payload);
    return false;
}

static void take_capture(void *user, shard_capture *capture)
{
    server_hosted *h = user;
    store_thread_capture(h->place->server->store, h->number, capture);
}

static void report(void *user, const pen_error *error)
{
    server_report(((server_hosted *)user)->place->server, error);
}

static void caught_up(void *user, int32_t learner)
{
    const server_hosted *h = user;
    wire_control c         = {.kind = WIRE_CAUGHT_UP};
    c.u.caught_up.shard    = h->number;
    c.u.caught_up.server   = learner;
    server_notify(h->place->server, &c);
}

static void suspect(void *user, int32_t backup, uint64_t waited_ms)
{
    const server_hosted *h = user;
    wire_control c         = {.kind = WIRE_SUSPECT};
    c.u.suspect.shard      = h->number;
    c.u.suspect.server     = backup;
    c.u.suspect.waited_ms  = waited_ms;
    server_notify(h->place->server, &c);
}

static void copying(void *user, size_t bytes)
{
    const server_hosted *h = user;
    store_thread_copying(h->place->server->store, bytes);
}

typedef struct {
    handler_call *call;
    server_shard *place;
} late_answer;

static void take_answer(void *user)
{
    const late_answer *a = user;
    shard_handler_answered(a->call);
    server_shard_flush(a->place);
}

static bool answered(void *user, handler_call *call)
{
    const late_answer a = {call, ((server_hosted *)user)->place};
    return server_post(a.place->loop, take_answer, &a, sizeof a);
}

shard_outside server_shard_outside(server_hosted *h)
{
    return (shard_outside){.user         = h,
                           .send         = send_for,
                           .snapshot     = take_capture,
                           .report       = report,
                           .copying      = copying,
                           .answered     = answered,
                           .send_replica = send_replica,
                           .caught_up    = caught_up,
                           .suspect      = suspect};
}

/* ---- receiving ------------------------------------------------------------------------------- */
static void refused(server_shard *s, uint32_t peer, const char *from, const char *what)
{
    char culprit[TRANSPORT_CULPRIT_BYTES];
    stat_add(&s->server->stats, STAT_REFUSED, 1);
    transport_culprit(peer, from, culprit);
    if (transport_log_allowed(s->endpoint, peer)) log_warning("refused %s: %s", culprit, what);
}

static void not_here(server_shard *s, uint32_t peer, const wire_data *d)
{
    if (d->kind == WIRE_LOG || d->kind == WIRE_LOGGED) return; /* it comes again */
    const wire_data answer = {.kind   = WIRE_REFUSED,
                              .term   = d->term,
                              .epoch  = d->epoch,
                              .shard  = d->shard,
                              .from   = d->to,
                              .to     = d->from,
                              .rank   = d->rank,
                              .step   = d->step,
                              .n      = d->n,
                              .chunk  = d->chunk,
                              .seq    = d->seq,
                              .status = PEN_AGAIN,
                              .text   = "this shard is not on this server, or not yet"};
    send_data(s, peer, &answer, NULL);
}

static void refused_message(server_shard *s, uint32_t peer, const char *what)
{
    refused(s, peer, "", what);
    transport_blame(s->endpoint, peer);
}

static void give(server_hosted *h, const transport_event *event, const wire_data *d)
{
    stat_set *stats      = &h->place->server->stats;
    const uint64_t since = stat_begin(stats);
    const uint64_t begun = d->kind == WIRE_PUSH && d->n > 0 ? trace_begin() : 0;
    if (shard_receive(h->shard, event->peer, d, event->body))
        transport_trust(h->place->endpoint, event->peer);
    if (d->kind == WIRE_PUSH) stat_took(stats, STAT_SPREAD_PUSH, since);
    if (d->kind == WIRE_PULL) stat_took(stats, STAT_SPREAD_PULL, since);
    trace_span(TRACE_SUM, begun,
               &(trace_note){.step  = (int64_t)(d->seq != NULL && d->n > 0 ? d->seq[0] : d->step),
                             .shard = (int32_t)h->number,
                             .rank  = d->rank,
                             .bytes = d->payload_bytes});
}

/* The key of a rank speaks only for that rank; a server's key only for copies. */
static bool is_its_own(const server_shard *s, uint32_t peer, const wire_data *d)
{
    transport_identity is;
    if (!transport_who(s->endpoint, peer, &is)) return true;
    return d->kind == WIRE_LOG || d->kind == WIRE_LOGGED ? auth_is(&is, AUTH_SERVER, -1)
                                                         : auth_is(&is, AUTH_WORKER, d->rank);
}

static void receive(server_shard *s, const transport_event *event)
{
    wire_data d;
    pen_error why;
    server_hosted *h;
    wire_arena_reset(s->arena);
    const pen_status status = wire_data_decode(event->head, event->head_size, s->arena, &d, &why);
    if (status == PEN_NO_MEMORY)
        log_warning("%s; its sender repeats it", why.text);
    else if (status != PEN_OK)
        refused_message(s, event->peer, why.text);
    else if (!is_its_own(s, event->peer, &d))
        refused_message(s, event->peer, "its key is of another role or rank");
    else if ((h = server_shard_find(s, d.shard)) == NULL)
        not_here(s, event->peer, &d);
    else
        give(h, event, &d);
}

static void handle(server_shard *s, const transport_event *event)
{
    switch (event->kind) {
    case TRANSPORT_MESSAGE: receive(s, event); break;
    case TRANSPORT_DOWN:
        for (uint32_t i = 0; i < s->n_hosted; i++)
            shard_peer_down(s->hosted[i]->shard, event->peer);
        break;
    case TRANSPORT_REFUSED: refused(s, event->peer, event->from, event->note); break;
    case TRANSPORT_UP: break;
    }
    buf_release(event->body);
}

static bool drain(void *user)
{
    server_shard *s = user;
    int n           = 0;
    transport_event event;
    /* The bound for a peer's queue grows with the model: a peer pushes and pulls all shards here. */
    const uint64_t held = stat_get(&s->server->stats, STAT_PARAM_BYTES);
    transport_set_queue(s->endpoint, QUEUE_BYTES + 4 * held);
    while (n < DRAIN_MESSAGES &&
           (event = (transport_event){0}, transport_recv(s->endpoint, &event)) == PEN_OK) {
        handle(s, &event);
        n++;
    }
    if (n > 0) server_shard_flush(s);
    if (n > 0 && s->is_sealing) server_shard_try_seal(s, false);
    return n > 0;
}

/* ---- life ------------------------------------------------------------------------------------ */
pen_status server_shard_open(server_shard *s, pen_error *why)
{
    const own_address *own    = &s->server->own;
    transport_options options = {.head_bytes_max  = WIRE_HEAD_BYTES_MAX,
                                 .body_bytes_max  = WIRE_PAYLOAD_BYTES_MAX,
                                 .connections_max = (uint32_t)s->server->settings.connections_max,
                                 .queue_bytes_max = QUEUE_BYTES,
                                 .io_threads      = (uint32_t)s->server->settings.io_threads,
                                 .lends           = true};
    s->arena                  = wire_arena_create(SERVER_ARENA_BYTES_MAX);
    if (s->arena == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a shard's thread");
    s->loop = loop_create(why);
    if (s->loop == NULL) return why != NULL ? why->status : PEN_NO_MEMORY;
    auth_listen(s->server->auth, &options);
    const pen_status status = transport_listen(own->listen, &options, &s->endpoint, why);
    if (status != PEN_OK) return status;
    own_address_show(own, transport_address(s->endpoint), s->address, sizeof s->address);
    return loop_add(s->loop, transport_poll_fd(s->endpoint), drain, s, why);
}

static void *run_shard_thread(void *user)
{
    server_shard *s = user;
    char name[32];
    fp_env_set_ours();
    snprintf(name, sizeof name, "shards %u", s->index);
    trace_thread(name, 0, 0);
    loop_spin(s->loop, (int64_t)s->server->settings.shards);
    loop_run(s->loop);
    return NULL;
}

pen_status server_shard_start(server_shard *s, pen_error *why)
{
    if (pthread_create(&s->thread, NULL, run_shard_thread, s) != 0)
        return why_set(why, PEN_NO_MEMORY, "no thread for shard %u: %m", s->index);
    s->is_running = true;
    return PEN_OK;
}

void server_shard_stop(server_shard *s)
{
    if (!s->is_running) return;
    loop_stop(s->loop);
    pthread_join(s->thread, NULL);
    s->is_running = false;
}

void server_shard_drain(server_shard *s)
{
    if (s->endpoint != NULL) loop_remove(s->loop, s);
    if (s->loop != NULL) loop_turn(s->loop, 0);
}

void server_shard_close(server_shard *s)
{
    server_shard_stop(s);
    server_shard_drain(s);
    LIST_EACH(u, s->unsent) drop_unsent(s, u);
    server_shard_forget(s);
    if (s->loop != NULL) loop_turn(s->loop, 0); /* answers that came while handlers were closed */
    transport_close(s->endpoint, LINGER_MS);
    loop_destroy(s->loop);
    wire_arena_destroy(s->arena);
    wire_out_free(&s->out);
}
