/* scheduler_http.c - the scheduler's pages; its metrics are in scheduler_metrics.c. */
#include "scheduler/shell/scheduler_http.h"

#include "common/base/why.h"
#include "proto/json_text.h"
#include "proto/status_json.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct scheduler_http {
    monitor *monitor;
    scheduler_core *core;
    loop *loop;
    bool is_loopback;
    uint64_t stuck_ms; /* when all workers were asked for their calls; 0: never */
};

enum { STUCK_MS = 5000 };

typedef struct {
    const scheduler_http *h;
    FILE *out;
    bool is_open;
    char *why; /* of /readyz */
    size_t size;
    bool is_ready;
} question;

static void tell(void *user, FILE *out, bool is_open, scheduler_status_fn fn)
{
    const scheduler_http *h = user;
    question q              = {.h = h, .out = out, .is_open = is_open};
    scheduler_core_describe(h->core, loop_now_ms(h->loop), fn, &q);
}

/* ---- /status --------------------------------------------------------------------------------- */
static void status_of(void *user, const wire_control *status)
{
    const question *q = user;
    char *text        = status_json(status);
    fprintf(q->out, "%s\n", text != NULL ? text : "{}");
    free(text);
}

static void write_status(void *user, FILE *out)
{
    tell(user, out, false, status_of);
}

/* ---- /stuck ---------------------------------------------------------------------------------- */
/* Workers answer when they can.  A repeat within STUCK_MS gets the answers so far; a later one asks again. */
static void write_stuck(void *user, FILE *out)
{
    scheduler_http *h  = user;
    const uint64_t now = loop_now_ms(h->loop);
    if (h->stuck_ms == 0 || now - h->stuck_ms > STUCK_MS) {
        scheduler_core_ask_recorders(h->core, now);
        h->stuck_ms = now;
    }
    const stuck *report = scheduler_core_recorders(h->core);
    if (report != NULL) stuck_print_json(report, out);
}

/* ---- /history -------------------------------------------------------------------------------- */
static json_t *point_json(const scheduler_history *h, const scheduler_point *p)
{
    json_t *metric = json_object();
    for (uint32_t i = 0; i < h->n_metrics; i++)
        if (isfinite(p->metric[i]))
            json_text_set(metric, h->metric[i], json_pack("{s:f}", "mean", p->metric[i]));
    return json_pack("{s:f, s:I, s:f, s:f, s:f, s:o}", "t", p->at_s, "step", (json_int_t)p->step,
                     "push", p->push_bytes, "pull", p->pull_bytes, "coll", p->coll_bytes, "metric",
                     metric);
}

static void write_history(void *user, FILE *out)
{
    const scheduler_http *h = user;
    scheduler_history all;
    scheduler_core_history(h->core, &all);
    json_t *points = json_array();
    for (uint32_t i = 0; i < all.n; i++)
        json_array_append_new(points, point_json(&all, &all.point[i]));
    json_dumpf(points, out, JSON_COMPACT);
    json_decref(points);
}

/* ---- /targets -------------------------------------------------------------------------------- */
static uint16_t port_of(const wire_member_status *m)
{
    const char *name = stat_rows[STAT_HTTP_PORT].name;
    for (uint32_t i = 0; i < m->n_stats; i++)
        if (strcmp(m->stat[i].name, name) == 0 && m->stat[i].value > 0 && m->stat[i].value < 65536)
            return (uint16_t)m->stat[i].value;
    return 0;
}

static void add_target(json_t *all, const char *host, uint16_t port, const char *role)
{
    char address[300];
    snprintf(address, sizeof address, "%s:%u", host, port);
    json_array_append_new(all, json_pack("{s:[o], s:{s:s}}", "targets", json_text(address),
                                         "labels", "member", role));
}

/* On loopback all members are on this host. */
static void targets_of(void *user, const wire_control *status)
{
    const question *q       = user;
    const scheduler_http *h = q->h;
    json_t *all             = json_array();
    add_target(all, h->is_loopback ? "127.0.0.1" : status->u.status.scheduler.host,
               monitor_port(h->monitor), "scheduler");
    for (uint32_t i = 0; i < status->u.status.n_members; i++) {
        const wire_member_status *m = &status->u.status.member[i];
        const bool is_gone = strcmp(m->state, "dead") == 0 || strcmp(m->state, "left") == 0;
        if (port_of(m) != 0 && !is_gone)
            add_target(all, h->is_loopback ? "127.0.0.1" : m->member.host, port_of(m),
                       status_role_name(m->member.role));
    }
    json_dumpf(all, q->out, JSON_COMPACT);
    json_decref(all);
}

static void write_targets(void *user, FILE *out)
{
    tell(user, out, false, targets_of);
}

/* ---- /metrics, /readyz ----------------------------------------------------------------------- */
static void metrics_of(void *user, const wire_control *status)
{
    const question *q = user;
    scheduler_metrics_write(q->out, q->is_open, status);
}

static void write_metrics(void *user, FILE *out, bool is_open)
{
    tell(user, out, is_open, metrics_of);
}

static void ready_of(void *user, const wire_control *status)
{
    question *q       = user;
    const char *phase = status->u.status.phase;
    q->is_ready       = strcmp(phase, "failed") != 0 && strcmp(phase, "ended") != 0;
    snprintf(q->why, q->size, "the job is %s", phase);
}

static bool is_ready(void *user, char *why, size_t size)
{
    const scheduler_http *h = user;
    question q              = {.h = h, .why = why, .size = size};
    scheduler_core_describe(h->core, loop_now_ms(h->loop), ready_of, &q);
    return q.is_ready;
}

/* ---- / --------------------------------------------------------------------------------------- */
extern const char scheduler_page[]; /* page/page.html */

/* The page is one file with its script and style, and queries only this server. */
static const char page_policy[] =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src "
    "'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* ---- life ------------------------------------------------------------------------------------ */
static const monitor_page pages[] = {
    {"/", "text/html; charset=utf-8", .fixed = scheduler_page, .policy = page_policy},
    {"/stuck", "application/json", .write = write_stuck},
    {"/history", "application/json", .write = write_history},
    {"/status", "application/json", .write = write_status},
    {"/targets", "application/json", .write = write_targets},
    {0},
};

pen_status scheduler_http_open(const scheduler_settings *settings, scheduler_core *core, loop *l,
                               scheduler_http **out, pen_error *why)
{
    *out = NULL;
    if (settings->http[0] == '\0') return PEN_OK;
    scheduler_http *h = calloc(1, sizeof *h);
    if (h == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for http");
    *h = (scheduler_http){.core        = core,
                          .loop        = l,
                          .is_loopback = strncmp(settings->http, "127.", 4) == 0 ||
                                         strncmp(settings->http, "localhost:", 10) == 0 ||
                                         strncmp(settings->http, "[::1]", 5) == 0};
    const pen_status status =
        monitor_open(&(monitor_options){.address    = settings->http,
                                        .token_file = settings->http_token_file,
                                        .loop       = l,
                                        .pages      = pages,
                                        .metrics    = write_metrics,
                                        .is_ready   = is_ready,
                                        .user       = h},
                     &h->monitor, why);
    if (status != PEN_OK) {
        free(h);
        return status;
    }
    *out = h;
    return PEN_OK;
}

void scheduler_http_stop(scheduler_http *h)
{
    if (h != NULL) monitor_stop(h->monitor);
}

void scheduler_http_close(scheduler_http *h)
{
    if (h == NULL) return;
    monitor_close(h->monitor);
    free(h);
}

const char *scheduler_http_address(const scheduler_http *h)
{
    return monitor_address(h != NULL ? h->monitor : NULL);
}
