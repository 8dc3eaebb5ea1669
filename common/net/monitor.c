/* monitor.c - routes requests for the pages of a process, and answers them from its loop. */
#include "common/net/monitor.h"

#include "common/base/log.h"
#include "common/base/loop_call.h"
#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 3000 };

struct monitor {
    monitor_options o;
    http *http;
    http_route *routes;
    loop_call loop_call;

    /* The question and its answer: owned by the loop while an inquiry is pending. */
    const monitor_page *page; /* NULL: of metrics or readiness */
    bool is_open, is_ready;
    char why[256];
    char *text;
    size_t size;
};

/* ---- in the loop's thread -------------------------------------------------------------------- */
static void write_text(void *user)
{
    monitor *w = user;
    free(w->text);
    w->text   = NULL;
    w->size   = 0;
    FILE *out = open_memstream(&w->text, &w->size);
    if (out == NULL) return;
    if (w->page != NULL)
        w->page->write(w->o.user, out);
    else
        w->o.metrics(w->o.user, out, w->is_open);
    fclose(out);
}

static void ask_ready(void *user)
{
    monitor *w  = user;
    w->is_ready = w->o.is_ready == NULL || w->o.is_ready(w->o.user, w->why, sizeof w->why);
}

static void only_turn(void *user)
{
    (void)user;
}

/* ---- in the thread of http.h ----------------------------------------------------------------- */
/* Until it is true, do not write the question: an earlier one may be pending. */
static bool ask(monitor *w, loop_fn fn)
{
    if (w->o.loop != NULL) return loop_call_ask(&w->loop_call, fn, w, WAIT_MS);
    fn(w);
    return true;
}

static bool turns(monitor *w, http_reply *reply)
{
    if (ask(w, only_turn)) return true;
    http_say(reply, 503, "the loop of this process has been stuck for 3 s");
    return false;
}

static void answer_text(monitor *w, http_reply *reply)
{
    if (!ask(w, write_text) || w->text == NULL) {
        http_say(reply, 503, "this process did not answer");
        return;
    }
    reply->text = w->text;
    reply->size = w->size;
    w->text     = NULL;
}

static const monitor_page *find_page(const monitor *w, const char *path)
{
    const monitor_page *page = w->o.pages;
    while (page != NULL && page->path != NULL && strcmp(page->path, path) != 0) page++;
    return page != NULL && page->path != NULL ? page : NULL;
}

static void answer_page(void *user, const http_request *request, http_reply *reply)
{
    monitor *w               = user;
    const monitor_page *page = find_page(w, http_path(request));
    reply->type              = page->type;
    reply->policy            = page->policy;
    if (page->fixed != NULL) {
        reply->fixed = page->fixed;
        reply->size  = strlen(page->fixed);
        return;
    }
    if (!turns(w, reply)) return;
    w->page = page;
    answer_text(w, reply);
}

static void answer_metrics(void *user, const http_request *request, http_reply *reply)
{
    monitor *w = user;
    if (!turns(w, reply)) return;
    w->page     = NULL;
    w->is_open  = metrics_is_open(http_header(request, "Accept"));
    reply->type = w->is_open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                             : "text/plain; version=0.0.4; charset=utf-8";
    answer_text(w, reply);
}

static void answer_health(void *user, const http_request *request, http_reply *reply)
{
    (void)request;
    if (turns(user, reply)) http_say(reply, 200, "ok");
}

static void answer_ready(void *user, const http_request *request, http_reply *reply)
{
    monitor *w = user;
    (void)request;
    if (!turns(w, reply)) return;
    if (!ask(w, ask_ready))
        http_say(reply, 503, "this process did not answer");
    else
        http_say(reply, w->is_ready ? 200 : 503, w->is_ready ? "ready" : w->why);
}

/* ---- life ------------------------------------------------------------------------------------ */
static bool make_routes(monitor *w)
{
    const http_route own[] = {{"/healthz", answer_health, true},
                              {"/readyz", answer_ready, true},
                              {"/metrics", answer_metrics, false}};
    const size_t n_own     = sizeof own / sizeof own[0];
    size_t n               = 0;
    while (w->o.pages != NULL && w->o.pages[n].path != NULL) n++;
    w->routes = calloc(n_own + n + 1, sizeof *w->routes);
    if (w->routes == NULL) return false;
    memcpy(w->routes, own, sizeof own);
    for (size_t i = 0; i < n; i++)
        w->routes[n_own + i] = (http_route){w->o.pages[i].path, answer_page, false};
    return true;
}

pen_status monitor_open(const monitor_options *options, monitor **out, pen_error *given)
{
    pen_error own, *why = given != NULL ? given : &own;
    *out       = NULL;
    monitor *w = calloc(1, sizeof *w);
    if (w == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for http");
    w->o = *options;
    loop_call_init(&w->loop_call, options->loop);
    pen_status status = make_routes(w) ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for http");
    if (status == PEN_OK)
        status = http_open(&(http_options){.address    = options->address,
                                           .token_file = options->token_file,
                                           .routes     = w->routes,
                                           .user       = w},
                           &w->http, why);
    if (status == PEN_OK) {
        *out = w;
        return PEN_OK;
    }
    monitor_close(w);
    if (status != PEN_UNREACHABLE) return status;
    log_warning("%s; continuing without http", why->text);
    return PEN_OK;
}

void monitor_stop(monitor *w)
{
    if (w == NULL) return;
    loop_call_close(&w->loop_call);
    http_close(w->http);
    w->http = NULL;
}

void monitor_close(monitor *w)
{
    if (w == NULL) return;
    monitor_stop(w);
    loop_call_fini(&w->loop_call);
    free(w->routes);
    free(w->text);
    free(w);
}

const char *monitor_address(const monitor *w)
{
    return w != NULL && w->http != NULL ? http_address(w->http) : "";
}

uint16_t monitor_port(const monitor *w)
{
    const char *colon = strrchr(monitor_address(w), ':');
    return colon != NULL ? (uint16_t)atoi(colon + 1) : 0;
}
