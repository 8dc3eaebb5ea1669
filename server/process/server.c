/* server.c - a server process's life: threads up, one job, threads down. */
#include "common/base/log.h"
#include "common/net/monitor.h"
#include "common/net/tcp_address.h"
#include "common/system/file_limit.h"
#include "common/trace/trace.h"
#include "server/process/plugin/handler_guard.h"
#include "server/process/server_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- over HTTP: its counters and readiness --------------------------------------------------- */
static void write_metrics(void *user, FILE *out, bool is_open)
{
    const server *s = user;
    metrics_page page;
    metrics_begin(&page, out, is_open, "server", s->rank);
    metrics_process(&page);
    metrics_stats(&page, &s->stats);
    metrics_end(&page);
}

static bool is_making(const server *s)
{
    for (uint32_t i = 0; s->shard_presence != NULL && i < s->n_shards; i++)
        if (s->shard_presence[i] == SERVER_MAKING) return true;
    return false;
}

/* Ready: the scheduler knows it, and its shards are here. */
static bool is_ready(void *user, char *why, size_t size)
{
    const server *s = user;
    if (s->member.incarnation == 0)
        snprintf(why, size, "the scheduler has not answered yet");
    else if (!s->is_ready)
        snprintf(why, size, "server %d is waiting for the model or loading it", s->rank);
    else if (is_making(s))
        snprintf(why, size, "server %d is making room for a shard", s->rank);
    else
        return true;
    return false;
}

/* Opens s->watch, by the setting http. */
static pen_status open_http(server *s, pen_error *why)
{
    if (s->settings.http[0] == '\0') return PEN_OK;
    const pen_status status =
        monitor_open(&(monitor_options){.address    = s->settings.http,
                                        .token_file = s->settings.http_token_file,
                                        .loop       = s->loop,
                                        .metrics    = write_metrics,
                                        .is_ready   = is_ready,
                                        .user       = s},
                     &s->monitor, why);
    if (status != PEN_OK) return status;
    atomic_store(&s->stats.is_watched, true);
    stat_store(&s->stats, STAT_HTTP_PORT, monitor_port(s->monitor));
    return PEN_OK;
}

/* ---- events of other threads, in main -------------------------------------------------------- */
/* The scheduler decides what a failure means for the others; its verdict ends this server too. */
static void failed(server *s, const pen_error *error)
{
    if (s->member.incarnation != 0 && s->member.is_up)
        membership_report(&s->member, error);
    else
        server_end(s, error);
}

static void unreached(server *s, const server_unreached *u)
{
    const wire_control c = {
        .kind        = WIRE_UNREACHED,
        .u.unreached = {
            .role = PEN_SERVER, .rank = u->rank, .address = u->address, .words = u->words}};
    server_send(s, &c);
}

/* The first capture of a step triggers the idle shards, which get no gradient. */
static void capture_begun(server *s, int64_t step)
{
    for (uint32_t i = 0; i < s->settings.shards && !s->has_ended; i++) {
        const server_sign sign = {&s->shard[i], step};
        (void)server_post(s->shard[i].loop, server_shard_capture_idle, &sign, sizeof sign);
    }
}

void server_take(server *s, server_event event, void *value)
{
    switch (event) {
    case SERVER_PREPARED: server_prepared(value); break;
    case SERVER_MADE: server_made(value); break;
    case SERVER_REACHED: server_place_reached(s); break;
    case SERVER_SEALED:
        server_sealed(value);
        server_control_after(s);
        break;
    case SERVER_PART_WRITTEN: server_part_written(value); break;
    case SERVER_ANSWERED: server_answer(value); break;
    case SERVER_CAPTURE_BEGUN: capture_begun(s, *(const int64_t *)value); break;
    case SERVER_UNREACHED: unreached(s, value); break;
    case SERVER_SAYS: server_send(s, value); break;
    case SERVER_FAILED: failed(s, value); break;
    }
}

/* ---- the process ----------------------------------------------------------------------------- */
enum { LEAVE_HANDLER_MS = 1000 };

/* ---- the end --------------------------------------------------------------------------------- */
void server_leave(server *s)
{
    loop_stop(s->loop);
}

/* ---- opening --------------------------------------------------------------------------------- */
static pen_status find_own_address(server *s, pen_error *why)
{
    const server_settings *o      = &s->settings;
    const own_address_query query = {.given       = o->host,
                                     .scheduler   = o->master_addr,
                                     .port        = (uint32_t)o->master_port,
                                     .patience_ms = o->init_timeout_ms};
    return own_address_find(&query, &s->own, why);
}

static pen_status open_shards(server *s, pen_error *why)
{
    s->shard = calloc(s->settings.shards, sizeof *s->shard);
    if (s->shard == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %u shards", (unsigned)s->settings.shards);
    for (uint32_t i = 0; i < s->settings.shards; i++) {
        s->shard[i].server      = s;
        s->shard[i].index       = i;
        const pen_status status = server_shard_open(&s->shard[i], why);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

static pen_status open_auth(server *s, pen_error *why)
{
    const auth_options who = {.encryption    = s->settings.encryption,
                              .transport     = s->settings.transport,
                              .secret_file   = s->settings.secret_file,
                              .local_sockets = s->settings.local_sockets,
                              .role          = AUTH_SERVER,
                              .rank          = (int32_t)s->settings.rank,
                              .scheduler     = s->scheduler_address,
                              .address       = {s->settings.master_addr, s->settings.host}};
    return auth_open(&who, &s->auth, why);
}

static pen_status open_all(server *s, pen_error *why)
{
    if (s->settings.trace[0] != '\0' &&
        trace_open(s->settings.trace, s->settings.trace_events, "server", PEN_SERVER,
                   (int32_t)s->settings.rank, why) != PEN_OK)
        return why->status;
    if (files_check(why) != PEN_OK) return why->status;
    s->loop = loop_create(why);
    if (s->loop == NULL) return PEN_NO_MEMORY;
    if (getrandom(&s->nonce, sizeof s->nonce, 0) != (ssize_t)sizeof s->nonce)
        return why_set(why, PEN_INTERNAL, "cannot read random numbers: %m");
    pen_status status = PEN_OK;
    if (!s->settings.fresh)
        status = store_thread_find(s->settings.store, s->snapshot, SERVER_SNAPSHOTS_MAX,
                                   &s->n_snapshots, why);
    if (status == PEN_OK) status = server_settings_check(&s->settings, why);
    if (status == PEN_OK) status = server_plugin_open(s, why);
    if (status == PEN_OK) status = admission_parse(s->settings.admission, &s->admission, why);
    if (status == PEN_OK) status = open_auth(s, why);
    if (status == PEN_OK) status = open_http(s, why);
    if (status == PEN_OK) status = find_own_address(s, why);
    if (status == PEN_OK) status = open_shards(s, why);
    if (status == PEN_OK) status = store_thread_start(s, &s->store, why);
    for (uint32_t i = 0; status == PEN_OK && i < s->settings.shards; i++)
        status = server_shard_start(&s->shard[i], why);
    return status == PEN_OK ? server_control_open(s, why) : status;
}

pen_status server_open(const server_settings *settings, const pen_handler *handlers, int n,
                       server **out, pen_error *why)
{
    server *s = calloc(1, sizeof *s);
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a server");
    s->settings = *settings;
    s->handlers =
        (handler_set){handlers, (uint32_t)n, "", handler_guard_enter, handler_guard_leave};
    s->rank                  = -1;
    s->take                  = server_take;
    const server_settings *o = &s->settings;
    tcp_address_format(o->master_addr, (uint32_t)o->master_port, s->scheduler_address,
                       sizeof s->scheduler_address);
    if (gethostname(s->host, sizeof s->host - 1) != 0) snprintf(s->host, sizeof s->host, "unknown");
    machine_identity(s->settings.host_id, s->machine);
    const pen_status status = open_all(s, why);
    if (status != PEN_OK) {
        server_close(s);
        return status;
    }
    *out = s;
    return PEN_OK;
}

/* ---- serving --------------------------------------------------------------------------------- */
pen_status server_serve(server *s, pen_error *why)
{
    loop_run(s->loop);
    s->is_stuck = s->is_stuck || !handler_guard_is_empty(LEAVE_HANDLER_MS);
    if (s->is_stuck) {
        handler_guard_let_die();
        *why = s->why;
        return s->status;
    }
    for (uint32_t i = 0; i < s->settings.shards; i++) server_shard_stop(&s->shard[i]);
    store_thread_stop(s->store); /* complete parts are still written */
    s->store = NULL;
    if (s->status == PEN_OK) server_control_leave(s);
    if (s->status != PEN_OK && why != NULL) *why = s->why;
    return s->status;
}

void server_close(server *s)
{
    if (s == NULL || s->is_stuck) return; /* its threads still run */
    monitor_stop(s->monitor);
    for (uint32_t i = 0; s->shard != NULL && i < s->settings.shards; i++)
        server_shard_stop(&s->shard[i]);
    store_thread_stop(s->store);
    s->store     = NULL;
    s->has_ended = true;
    /* Remaining tasks own memory.  Shards' tasks first: they may post more to main. */
    for (uint32_t i = 0; s->shard != NULL && i < s->settings.shards; i++)
        server_shard_drain(&s->shard[i]);
    if (s->loop != NULL) loop_turn(s->loop, 0);
    for (uint32_t i = 0; s->shard != NULL && i < s->settings.shards; i++)
        server_shard_close(&s->shard[i]);
    if (s->loop != NULL) loop_turn(s->loop, 0); /* commands that were not answered */
    server_commands_close(s);
    server_control_close(s);
    auth_close(s->auth);
    server_epoch_fini(s);
    server_plan_destroy(s->plan);
    server_plugin_close(s);
    loop_destroy(s->loop);
    monitor_close(s->monitor);
    free(s->shard);
    free(s);
}
