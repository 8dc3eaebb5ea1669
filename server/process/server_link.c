/* server_link.c - one thread's connections to other servers, for the logs of its shards. */
#include "server/process/server_state.h"

#include "common/base/log.h"
#include "common/containers/list.h"

#include <stdlib.h>
#include <string.h>

enum { DRAIN_MESSAGES = 64, LINGER_MS = 0, AGAIN_MS = 2 };

struct server_link {
    server_link *next, *prev;
    server_shard *place;
    int32_t server;
    uint64_t incarnation;
    char address[320];
    transport *transport;
    reach reach;
    bool is_needed;
    loop_timer again; /* after a full queue */
};

/* ---- events ---------------------------------------------------------------------------------- */
static void notify_up(const server_link *l, bool is_up)
{
    for (uint32_t i = 0; i < l->place->n_hosted; i++) {
        const server_hosted *h = l->place->hosted[i];
        for (uint32_t j = 0; j < h->n_copies; j++) {
            if (h->link[j] != l) continue;
            if (is_up)
                shard_replica_up(h->shard, l->server);
            else
                shard_replica_down(h->shard, l->server);
        }
    }
}

static void receive(server_link *l, const transport_event *event)
{
    server_shard *s = l->place;
    wire_data d;
    pen_error why;
    wire_arena_reset(s->arena);
    if (wire_data_decode(event->head, event->head_size, s->arena, &d, &why) != PEN_OK) {
        stat_add(&s->server->stats, STAT_REFUSED, 1);
        if (log_allowed((uint64_t)s->index << 32 | (uint32_t)l->server | 1u << 31))
            log_warning("refused a frame from server %d: %s", l->server, why.text);
        return;
    }
    server_hosted *h = server_shard_find(s, d.shard);
    if (h != NULL && d.kind == WIRE_LOGGED)
        (void)shard_receive(h->shard, UINT32_MAX, &d, event->body);
}

static bool drain(void *user)
{
    server_link *l = user;
    int n          = 0;
    transport_event event;
    while (n < DRAIN_MESSAGES &&
           (event = (transport_event){0}, transport_recv(l->transport, &event)) == PEN_OK) {
        n++;
        if (event.kind == TRANSPORT_MESSAGE) receive(l, &event);
        if (event.kind == TRANSPORT_UP) notify_up(l, true);
        if (event.kind == TRANSPORT_UP) reach_up(&l->reach);
        if (event.kind == TRANSPORT_DOWN) notify_up(l, false);
        if (event.kind == TRANSPORT_REFUSED) reach_refused(&l->reach, event.note);
        buf_release(event.body);
    }
    if (n > 0) server_shard_flush(l->place);
    if (n > 0) server_links_notify(l->place);
    return n > 0;
}

/* ---- sending --------------------------------------------------------------------------------- */
static void again(void *user)
{
    server_shard_flush(((server_link *)user)->place);
}

bool server_link_send(server_link *l, const wire_data *d, buf *payload)
{
    server_shard *s = l->place;
    pen_error why;
    if (wire_data_encode(d, &s->out, &why) != PEN_OK) {
        server_report(s->server, &why);
        return false;
    }
    const pen_status status =
        transport_send(l->transport, 0, s->out.data, s->out.size, buf_acquire(payload));
    if (status == PEN_OK) return true;
    buf_release(payload);
    loop_timer_start(s->loop, &l->again, loop_now_ms(s->loop) + AGAIN_MS, again, l);
    return false;
}

/* ---- unreachable servers --------------------------------------------------------------------- */
/* A link that worked once is not watched: a silent copy becomes suspect, and the job continues without it. */
static void look(void *user)
{
    server_shard *s    = user;
    const uint64_t now = loop_now_ms(s->loop);
    bool is_missing    = false;
    for (server_link *l = s->links; l != NULL; l = l->next) {
        const char *words = reach_look(&l->reach, l->address, now);
        if (words != NULL) {
            server_unreached u = {.rank = l->server};
            snprintf(u.address, sizeof u.address, "%s", l->address);
            snprintf(u.words, sizeof u.words, "%s", words);
            (void)server_notify_main(l->place->server, SERVER_UNREACHED, &u,
                                     sizeof u); /* if lost, it is sent again */
        }
        is_missing |= reach_is_missing(&l->reach);
    }
    if (is_missing) loop_timer_start(s->loop, &s->look, now + REACH_LOOK_MS, look, s);
}

void server_links_notify(server_shard *s)
{
    if (s->has_reached) return;
    for (const server_link *l = s->links; l != NULL; l = l->next)
        if (reach_is_missing(&l->reach)) return;
    s->has_reached = server_notify_main(s->server, SERVER_REACHED, NULL, 0);
    if (!s->has_reached) server_no_memory(s->server, "saying that copies were reached");
}

/* ---- life ------------------------------------------------------------------------------------ */
static server_link *open_link(server_shard *s, const char *address)
{
    transport_options options = {.head_bytes_max = WIRE_HEAD_BYTES_MAX,
                                 .body_bytes_max = WIRE_PAYLOAD_BYTES_MAX,
                                 .io_threads     = (uint32_t)s->server->settings.io_threads};
    server_link *l            = calloc(1, sizeof *l);
    pen_error why;
    if (l == NULL) return NULL;
    l->place = s;
    auth_dial(s->server->auth, AUTH_SERVER, &options);
    if (transport_dial(address, &options, &l->transport, &why) == PEN_OK &&
        loop_add(s->loop, transport_poll_fd(l->transport), drain, l, &why) == PEN_OK)
        return l;
    log_warning("cannot connect to the server at %s: %s", address, why.text);
    transport_close(l->transport, 0);
    free(l);
    return NULL;
}

server_link *server_link_to(server_shard *s, int32_t rank, uint64_t incarnation,
                            const char *address)
{
    for (server_link *l = s->links; l != NULL; l = l->next) {
        if (l->server != rank || l->incarnation != incarnation || strcmp(l->address, address) != 0)
            continue;
        l->is_needed = true;
        return l;
    }
    server_link *l = address[0] != '\0' ? open_link(s, address) : NULL;
    if (l == NULL) return NULL;
    l->server      = rank;
    l->incarnation = incarnation;
    l->is_needed   = true;
    snprintf(l->address, sizeof l->address, "%s", address);
    LIST_PREPEND(s->links, l);
    reach_begin(&l->reach, s->server->settings.init_timeout_ms, loop_now_ms(s->loop));
    look(s);
    return l;
}

void server_links_mark(server_shard *s)
{
    for (server_link *l = s->links; l != NULL; l = l->next) l->is_needed = false;
}

void server_links_sweep(server_shard *s)
{
    LIST_EACH(l, s->links) {
        if (l->is_needed) continue;
        LIST_REMOVE(s->links, l);
        loop_timer_stop(l->place->loop, &l->again);
        if (l->transport != NULL) loop_remove(l->place->loop, l);
        reach_end(&l->reach);
        transport_close(l->transport, LINGER_MS);
        free(l);
    }
}
