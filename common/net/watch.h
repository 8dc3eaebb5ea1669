/* watch.h - what every process shows over HTTP: /healthz, /readyz, /metrics, and pages of its own.
 *
 * DESIGN.  Every text is made when it is asked for, by the loop that owns what it tells of: the thread of http.h
 * asks it (inquiry.h) and waits so long at most.  So nothing is locked, nothing is copied for nobody, and a
 * loop that does not turn is seen: that is /healthz.  A process without a loop is asked in the thread of http.h.
 */
#ifndef COMMON_WATCH_H
#define COMMON_WATCH_H

#include "common/net/http.h"
#include "common/base/loop.h"
#include "common/net/metrics.h"

typedef struct watch watch;

typedef struct {
    const char *path, *type;
    void (*write)(void *user, FILE *out); /* in the loop's thread */
    const char *fixed;                    /* instead: a text that never changes */
    const char *policy;                   /* Content-Security-Policy; NULL: nothing may be loaded */
} watch_page;                             /* tables end with a row of zeros */

typedef struct {
    const char *address, *token_file; /* as of http_options */
    loop *loop;                       /* NULL: none */
    const watch_page *pages;          /* NULL: none; BORROWED until watch_close() */
    /* All three in the loop's thread. */
    void (*metrics)(void *user, FILE *out, bool is_open);
    bool (*is_ready)(void *user, char *why, size_t size); /* false: why it is not, in a few words */
    void *user;
} watch_options;

/* Monitoring must never fail a job: an address that is taken is logged, and *w is NULL.
 * Errors  as http_open(), but for UNREACHABLE. */
pen_status watch_open(const watch_options *options, watch **w, pen_error *why);
/* Nothing is shown, and nothing of the owner is read, any more.  NULL is fine, and again is. */
void watch_stop(watch *w);
void watch_close(
    watch *w); /* stops; after the loop was destroyed, for a question may lie in it; NULL is fine */

const char *watch_address(const watch *w); /* "127.0.0.1:43117"; "" of NULL */
uint16_t watch_port(const watch *w);       /* 0 of NULL */

#endif
