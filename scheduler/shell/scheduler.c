/* scheduler.c - the scheduler's process: its address, its socket, its state file, and its loop around the core. */
#include "scheduler/shell/scheduler.h"
#include "common/net/auth/auth.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/loop.h"
#include "common/base/why.h"
#include "common/net/tcp_address.h"
#include "common/snapshot/state.h"
#include "common/system/file_limit.h"
#include "common/system/fp_env.h"
#include "common/trace/trace.h"
#include "proto/wire/wire.h"
#include "scheduler/core/core.h"
#include "scheduler/shell/askers.h"
#include "scheduler/shell/outbox.h"
#include "scheduler/shell/scheduler_http.h"
#include <unistd.h>
#include <sys/socket.h>
#include <stdio.h>
#include <netdb.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the launcher's variables ---------------------------------------------------------------- */
void scheduler_tell(const scheduler_settings *s, launch_told *told)
{
    *told = (launch_told){.role = LAUNCH_SCHEDULER};
    launch_tell_number(told, LAUNCH_WORLD_SIZE, "world_size",
                       s->world_size > 0 ? s->world_size : -1, -1);
    launch_tell_number(told, LAUNCH_SERVERS, "servers", s->servers > 0 ? s->servers : -1, -1);
    launch_tell_number(told, LAUNCH_PORT, "port", (int64_t)s->port, 0);
    if (strcmp(s->host, "127.0.0.1") != 0)
        launch_tell(told, LAUNCH_HOST, "host", s->host, config_env);
}

pen_status scheduler_find_place(scheduler_settings *s, pen_error *why)
{
    static const launch_setting all[] = {{LAUNCH_WORLD_SIZE, "world_size"},
                                         {LAUNCH_SERVERS, "servers"},
                                         {LAUNCH_PORT, "port"},
                                         {LAUNCH_HOST, "host"}};
    launch_told told;
    scheduler_tell(s, &told);
    return launch_settle(&told, all, 4, scheduler_settings_rows, s, why);
}

/* ---- names of this host: where the scheduler listens, and how others reach it ---------------- */
/* The name for others to dial, for sentences: `host`, or for all addresses ("*") this host's name, written to `name`. */
static const char *listen_address_master(const char *host, char *name, size_t size)
{
    const bool is_any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "*") == 0 ||
                        strcmp(host, "::") == 0 || strcmp(host, "[::]") == 0;
    if (!is_any || gethostname(name, size) != 0) return host;
    name[size - 1] = 0;
    return name;
}

/* The address to listen on: a name becomes its number; numbers, interfaces and "*" stay.  Debian's /etc/hosts gives a host's
 * own name a loopback address, which no other host reaches: such a name becomes "*". */
static void listen_address_of(const char *host, char *text, size_t size)
{
    struct in_addr number;
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    snprintf(text, size, "%s", host);
    if (inet_pton(AF_INET, host, &number) == 1 || strpbrk(host, "*:[")) return;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) return;
    number = ((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr;
    freeaddrinfo(found);
    inet_ntop(AF_INET, &number, text, (socklen_t)size);
    if (strncmp(text, "127.", 4) == 0 && !auth_is_loopback(host)) snprintf(text, size, "*");
}

/* This host's name, or `master` if it has none. */
static void listen_address_host(const char *master, char *text, size_t size)
{
    text[0] = 0;
    if (gethostname(text, size) != 0 || !text[0]) snprintf(text, size, "%s", master);
    text[size - 1] = 0;
}

enum {
    BATCH          = 256, /* messages handled before other sources of the loop */
    OUTBOX_MS      = 10,
    LINGER_MS      = 1000, /* at most, to send the last answers */
    ARENA_BYTES    = 64 << 20,
    QUEUE_BYTES    = 256 << 20, /* queued for or from one member */
    OBSERVER_BYTES = 32 << 20   /* queued for all other peers together */
};

struct scheduler {
    loop *loop;
    auth *auth;
    transport *transport;
    scheduler_core *core;
    wire_arena *arena;
    wire_out out;
    outbox outbox;
    askers askers;
    loop_timer tick, retry;
    state_file *state;    /* NULL: nothing is persisted */
    scheduler_http *http; /* NULL: no pages */
    uint64_t sealed_ns;   /* when SEAL was sent, for the timeline; 0: no epoch ends */

    bool has_ended, has_why;
    pen_status status;
    pen_error why;
    pthread_t thread;
};

/* ---- actions of the core --------------------------------------------------------------------- */
static void flush(void *user)
{
    scheduler *s = user;
    if (outbox_flush(&s->outbox, s->transport)) return;
    loop_timer_start(s->loop, &s->retry, loop_now_ms(s->loop) + OUTBOX_MS, flush, s);
}

/* Members wait from the first SEAL until the next EPOCH. */
static void note_epoch(scheduler *s, const wire_control *message)
{
    if (message->kind == WIRE_SEAL && s->sealed_ns == 0) s->sealed_ns = trace_begin();
    if (message->kind != WIRE_EPOCH) return;
    trace_span(TRACE_FAILOVER, s->sealed_ns, &(trace_note){0});
    s->sealed_ns = 0;
}

static void ended(void *user, pen_status status, const pen_error *why)
{
    scheduler *s = user;
    s->has_ended = true;
    s->status    = status;
    s->has_why   = why != NULL;
    if (why) s->why = *why;
    loop_stop(s->loop);
}

/* Nobody repeats a message that is lost here. */
static void end_without_memory(scheduler *s, const pen_error *why)
{
    pen_error own;
    why_set(&own, PEN_NO_MEMORY, "the scheduler ends: %.500s", why->text);
    log_error("%s", own.text);
    if (!s->has_ended) ended(s, PEN_NO_MEMORY, &own);
}

static void send_all(void *user, const uint32_t *peers, uint32_t n, const wire_control *message)
{
    scheduler *s      = user;
    wire_control told = *message;
    pen_error why;
    note_epoch(s, message);
    if (message->kind == WIRE_BEAT_ACK) told.u.beat_ack.clock_ns = trace_wall_ns();
    const pen_status status = wire_control_encode(&told, &s->out, &why);
    if (status == PEN_NO_MEMORY) end_without_memory(s, &why);
    if (status != PEN_OK) {
        log_error("cannot encode %s: %s", wire_kind_name((int)message->kind), why.text);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!outbox_send(&s->outbox, s->transport, peers[i], s->out.data, s->out.size))
            log_debug("%s to peer %u was dropped", wire_kind_name((int)message->kind), peers[i]);
    if (s->outbox.first && !s->retry.due_ms)
        loop_timer_start(s->loop, &s->retry, loop_now_ms(s->loop) + OUTBOX_MS, flush, s);
}

static void write_log(void *user, int level, const char *line)
{
    (void)user;
    log_line(level, "%s", line);
}

static pen_status keep_state(void *user, const void *data, size_t size)
{
    scheduler *s = user;
    pen_error why;
    const pen_status status =
        size ? state_keep(s->state, data, size, &why) : state_forget(s->state, &why);
    if (status != PEN_OK) log_error("%s", why.text);
    return status;
}

/* ---- events of the transport ----------------------------------------------------------------- */
static void refuse(scheduler *s, uint32_t peer, const char *from, const char *what)
{
    char culprit[TRANSPORT_CULPRIT_BYTES];
    scheduler_core_refused(s->core);
    transport_culprit(peer, from, culprit);
    if (transport_log_allowed(s->transport, peer))
        log_warning("the scheduler refused %s: %s", culprit, what);
}

static void refuse_message(scheduler *s, uint32_t peer, const char *what)
{
    refuse(s, peer, "", what);
    transport_blame(s->transport, peer);
}

static bool may_speak(scheduler *s, uint32_t peer, const wire_control *message)
{
    return scheduler_core_is_member(s->core, peer) ||
           askers_receive(&s->askers, peer, message, loop_now_ms(s->loop));
}

/* A peer with the key of one role and rank cannot be another. */
static bool is_its_own(scheduler *s, uint32_t peer, const wire_control *message)
{
    transport_identity is;
    if (message->kind != WIRE_HELLO || !transport_who(s->transport, peer, &is)) return true;
    const int32_t role = message->u.hello.role, rank = message->u.hello.rank;
    if (role == PEN_WORKER) return auth_is(&is, AUTH_WORKER, rank);
    if (role == PEN_SERVER) return auth_is(&is, AUTH_SERVER, rank);
    return auth_is(&is, AUTH_TOOL, -1);
}

static void take_message(scheduler *s, const transport_event *event)
{
    pen_error why;
    wire_control message;
    if (event->body) {
        refuse_message(s, event->peer, "it has a payload");
        return;
    }
    wire_arena_reset(s->arena);
    const pen_status status =
        wire_control_decode(event->head, event->head_size, s->arena, &message, &why);
    if (status == PEN_NO_MEMORY)
        end_without_memory(s, &why);
    else if (status != PEN_OK)
        refuse_message(s, event->peer, why.text);
    else if (!is_its_own(s, event->peer, &message))
        refuse_message(s, event->peer, "its key is of another role or rank than it claims");
    else if (may_speak(s, event->peer, &message)) {
        scheduler_core_receive(s->core, event->peer, &message, loop_now_ms(s->loop));
        if (message.kind == WIRE_HELLO && scheduler_core_is_member(s->core, event->peer))
            transport_trust(s->transport, event->peer);
    } else
        refuse_message(s, event->peer, "it sends too many messages");
}

static void take_event(scheduler *s, transport_event *event)
{
    switch (event->kind) {
    case TRANSPORT_MESSAGE: take_message(s, event); break;
    case TRANSPORT_REFUSED: refuse(s, event->peer, event->from, event->note); break;
    case TRANSPORT_UP: break; /* HELLO follows */
    case TRANSPORT_DOWN:
        outbox_forget(&s->outbox, event->peer);
        scheduler_core_peer_down(s->core, event->peer, loop_now_ms(s->loop));
        break;
    }
    buf_release(event->body);
}

static bool drain(void *user)
{
    scheduler *s = user;
    transport_event event;
    int n = 0;
    for (; n < BATCH && !s->has_ended; n++) {
        event = (transport_event){0};
        if (transport_recv(s->transport, &event) != PEN_OK) break;
        take_event(s, &event);
    }
    return n > 0;
}

/* ---- time ------------------------------------------------------------------------------------ */
static void tick(void *user)
{
    scheduler *s = user;
    scheduler_core_tick(s->core, loop_now_ms(s->loop));
}

static void arm_tick(void *user)
{
    scheduler *s        = user;
    const uint64_t next = scheduler_core_next_ms(s->core);
    if (next == UINT64_MAX)
        loop_timer_stop(s->loop, &s->tick);
    else
        loop_timer_start(s->loop, &s->tick, next ? next : 1, tick, s);
}

static uint64_t term_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- life ------------------------------------------------------------------------------------ */
static const char *host_of(const scheduler_settings *settings)
{
    return settings->host[0] ? settings->host : "127.0.0.1";
}

static pen_status listen_at(scheduler *s, const scheduler_settings *settings, pen_error *why)
{
    char address[CONFIG_TEXT_BYTES + 32], host[CONFIG_TEXT_BYTES];
    listen_address_of(host_of(settings), host, sizeof host);
    tcp_address_format(host, (uint32_t)settings->port, address, sizeof address);
    const auth_options who    = {.encryption    = settings->encryption,
                                 .transport     = settings->transport,
                                 .secret_file   = settings->secret_file,
                                 .local_sockets = settings->local_sockets,
                                 .role          = AUTH_SCHEDULER,
                                 .rank          = 0,
                                 .address       = {host_of(settings)}};
    transport_options options = {
        .head_bytes_max      = WIRE_HEAD_BYTES_MAX,
        .body_bytes_max      = 1,
        .connections_max     = (uint32_t)settings->connections_max,
        .queue_bytes_max     = QUEUE_BYTES,
        .observers_bytes_max = OBSERVER_BYTES,
        /* a silent connection is closed after the lease: a stall is not a death */
        .heartbeat_ms = (uint32_t)settings->lease_ms / 2,
    };
    const pen_status status = auth_open(&who, &s->auth, why);
    if (status != PEN_OK) return status;
    auth_listen(s->auth, &options);
    return transport_listen(address, &options, &s->transport, why);
}

static void introduce(scheduler *s, const char *master)
{
    char address[CONFIG_TEXT_BYTES + 32], host[256];
    /* `master` with the port of `bound`: "10.0.0.7:29500". A whole address ("ipc:///run/job") loses its scheme. */
    const char *bound = transport_address(s->transport);
    const size_t size = sizeof address;
    const char *port = strrchr(bound, ':'), *scheme = strstr(master, "://");
    if (scheme)
        snprintf(address, size, "%s", scheme + 3);
    else
        snprintf(address, size, "%s%s", master, port ? port : "");
    listen_address_host(master, host, sizeof host);
    scheduler_core_introduce(s->core, address, host);
}

/* With the persisted state, if any. */
static pen_status make_core(scheduler *s, const scheduler_settings *settings, const char *master,
                            pen_error *why)
{
    scheduler_actions actions = {send_all, write_log, ended, s, NULL};
    void *kept                = NULL;
    size_t size               = 0;
    pen_status status         = PEN_OK;
    if (settings->state[0]) {
        status = state_open(settings->state, &s->state, why);
        if (status == PEN_OK) status = state_read(s->state, &kept, &size, why);
        actions.keep = keep_state;
    }
    const uint64_t then = kept ? scheduler_core_kept_term(kept, size) : 0, now = term_now();
    if (status == PEN_OK)
        status = scheduler_core_create(settings, now > then ? now : then + 1, master, &actions,
                                       clock_ms(&clock_real), &s->core, why);
    if (status == PEN_OK && kept)
        status = scheduler_core_load(s->core, kept, size, clock_ms(&clock_real), why);
    free(kept);
    return status;
}

static pen_status set_up(scheduler *s, const scheduler_settings *settings, pen_error *why)
{
    if (files_check(why) != PEN_OK) return PEN_BAD_SETTING;
    if (!(s->arena = wire_arena_create(ARENA_BYTES)))
        return why_set(why, PEN_NO_MEMORY, "no memory to start the scheduler");
    if (!(s->loop = loop_create(why))) return why ? why->status : PEN_NO_MEMORY;

    char name[256];
    const char *master = listen_address_master(host_of(settings), name, sizeof name);
    pen_status status  = make_core(s, settings, master, why);
    if (status != PEN_OK) return status;
    status = listen_at(s, settings, why);
    if (status == PEN_OK) introduce(s, master);
    if (status == PEN_OK)
        status = loop_add(s->loop, transport_poll_fd(s->transport), drain, s, why);
    if (status == PEN_OK) status = loop_before_sleep(s->loop, arm_tick, s, why);
    if (status == PEN_OK) status = scheduler_http_open(settings, s->core, s->loop, &s->http, why);
    return status;
}

pen_status scheduler_open(const scheduler_settings *settings, scheduler **s, pen_error *why)
{
    scheduler *made = calloc(1, sizeof *made);
    if (!made) return why_set(why, PEN_NO_MEMORY, "no memory to start the scheduler");
    pen_status status = PEN_OK;
    if (settings->trace[0])
        status =
            trace_open(settings->trace, settings->trace_events, "scheduler", PEN_SCHEDULER, 0, why);
    if (settings->trace[0] && status == PEN_OK) {
        trace_who(PEN_SCHEDULER, 0, settings->job);
        trace_clock_own();
    }
    if (status == PEN_OK) status = set_up(made, settings, why);
    if (status != PEN_OK) {
        scheduler_close(made);
        return status;
    }
    *s = made;
    return PEN_OK;
}

void scheduler_close(scheduler *s)
{
    if (!s) return;
    scheduler_http_stop(s->http);
    transport_close(s->transport, LINGER_MS);
    auth_close(s->auth);
    scheduler_core_destroy(s->core);
    if (s->loop) loop_destroy(s->loop);
    scheduler_http_close(s->http);
    if (s->arena) wire_arena_destroy(s->arena);
    wire_out_free(&s->out);
    outbox_clear(&s->outbox);
    state_close(s->state);
    free(s);
}

const char *scheduler_address(const scheduler *s)
{
    return transport_address(s->transport);
}

const char *scheduler_http_at(const scheduler *s)
{
    return scheduler_http_address(s->http);
}

static void abort_job(scheduler *s)
{
    pen_error why;
    why_set(&why, PEN_ABORTED, "the scheduler was stopped before the job had ended");
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    scheduler_core_fail(s->core, &why, clock_ms(&clock_real));
    flush(s);
    s->status  = PEN_ABORTED;
    s->why     = why;
    s->has_why = true;
}

static pen_status result(const scheduler *s, pen_error *why)
{
    if (why && s->has_why) *why = s->why;
    return s->status;
}

static void serve(scheduler *s)
{
    trace_thread("scheduler", PEN_SCHEDULER, 0);
    loop_run(s->loop);
    if (!s->has_ended) abort_job(s);
}

pen_status scheduler_run(scheduler *s, pen_error *why)
{
    serve(s);
    return result(s, why);
}

void scheduler_stop(scheduler *s)
{
    loop_stop(s->loop);
}

void scheduler_decline(const scheduler_settings *settings, const pen_error *why, uint64_t ms)
{
    scheduler *s = NULL;
    pen_error unsaid;
    if (scheduler_open(settings, &s, &unsaid) != PEN_OK) return;
    scheduler_core_decline(s->core, why, clock_ms(&clock_real), ms);
    loop_run(s->loop);
    scheduler_close(s);
}

static void *run_thread(void *user)
{
    fp_env_set_ours();
    (void)file_limit_block();
    serve(user);
    return NULL;
}

pen_status scheduler_start(const scheduler_settings *settings, scheduler **s, pen_error *why)
{
    scheduler *made         = NULL;
    const pen_status status = scheduler_open(settings, &made, why);
    if (status != PEN_OK) return status;
    const int error = pthread_create(&made->thread, NULL, run_thread, made);
    if (error) {
        scheduler_close(made);
        return why_set(why, PEN_NO_MEMORY, "cannot start the scheduler's thread: %s",
                       strerror(error));
    }
    *s = made;
    return PEN_OK;
}

pen_status scheduler_join(scheduler *s, pen_error *why)
{
    pthread_join(s->thread, NULL);
    const pen_status status = result(s, why);
    scheduler_close(s);
    return status;
}
