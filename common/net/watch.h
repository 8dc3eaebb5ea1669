/* watch.h - HTTP pages of every process: /healthz, /readyz, /metrics, and its own.
 *
 * DESIGN.  Every page is made on request by the loop that owns the data: the thread of http.h queries it
 * (inquiry.h) with a time limit.  So nothing is locked, nothing is copied in vain, and a stuck loop is noticed:
 * that is /healthz.  Pages of a process without a loop are made in the thread of http.h.
 */
#ifndef COMMON_WATCH_H
#define COMMON_WATCH_H

#include "common/base/loop.h"
#include "common/net/http.h"
#include "common/net/metrics.h"

typedef struct watch watch;

typedef struct {
    const char *path, *type;
    void (*write)(void *user, FILE *out); /* in the loop's thread */
    const char *fixed;                    /* instead: a constant text */
    const char *policy;                   /* Content-Security-Policy; NULL: nothing may be loaded */
} watch_page;                             /* tables end with a row of zeros */

typedef struct {
    const char *address, *token_file; /* as of http_options */
    loop *loop;                       /* NULL: none */
    const watch_page *pages;          /* NULL: none; BORROWED until watch_close() */
    /* All three run in the loop's thread. */
    void (*metrics)(void *user, FILE *out, bool is_open);
    bool (*is_ready)(void *user, char *why,
                     size_t size); /* false: with the reason in a few words */
    void *user;
} watch_options;

/* Monitoring must never fail a job: a taken address is logged, and *w is NULL.
 * Errors  as http_open(), but for UNREACHABLE. */
pen_status watch_open(const watch_options *options, watch **w, pen_error *why);
/* Stops serving pages and reading the owner's data.  NULL is fine; idempotent. */
void watch_stop(watch *w);
void watch_close(
    watch *w); /* stops; call after destroying the loop, which may hold a question; NULL is fine */

const char *watch_address(const watch *w); /* "127.0.0.1:43117"; "" of NULL */
uint16_t watch_port(const watch *w);       /* 0 of NULL */

#endif
