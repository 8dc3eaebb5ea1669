/* monitor.h - HTTP pages of every process: /healthz, /readyz, /metrics, and its own.
 *
 * DESIGN.  Every page is made on request by the loop that owns the data: the thread of http.h queries it (loop_call.h)
 * with a time limit.  So nothing is locked or copied needlessly, and a stuck loop is noticed: that is /healthz.  Pages
 * of a process without a loop are made in the thread of http.h.
 */
#ifndef COMMON_MONITOR_H
#define COMMON_MONITOR_H

#include "common/base/loop.h"
#include "common/net/http.h"
#include "common/net/metrics.h"

typedef struct monitor monitor;

typedef struct {
    const char *path, *type;
    void (*write)(void *user, FILE *out); /* in the loop's thread */
    const char *fixed;                    /* instead: a constant text */
    const char *policy;                   /* Content-Security-Policy; NULL: nothing may be loaded */
} monitor_page;                           /* tables end with a row of zeros */

typedef struct {
    const char *address, *token_file; /* as of http_options */
    loop *loop;                       /* NULL: none */
    const monitor_page *pages;        /* NULL: none; BORROWED until monitor_close() */
    /* All three run in the loop's thread. */
    void (*metrics)(void *user, FILE *out, bool is_open);
    bool (*is_ready)(void *user, char *why,
                     size_t size); /* false: with the reason in a few words */
    void *user;
} monitor_options;

/* Monitoring must never fail a job: a taken address is logged, and *w is NULL.
 * Errors  as http_open(), but for UNREACHABLE. */
pen_status monitor_open(const monitor_options *options, monitor **w, pen_error *why);
/* Stops serving pages and reading the owner's data.  NULL is fine; idempotent. */
void monitor_stop(monitor *w);
void monitor_close(
    monitor
        *w); /* stops; call after destroying the loop, which may hold a question; NULL is fine */

const char *monitor_address(const monitor *w); /* "127.0.0.1:43117"; "" of NULL */
uint16_t monitor_port(const monitor *w);       /* 0 of NULL */

#endif
