/* http.h - a small read-only HTTP server: GET and HEAD, one thread, a table of routes.
 *
 * Handlers run in the thread of the server, one at a time.  They touch nothing that a loop owns; they query the loop
 * (loop_call.h).
 *
 * Access.  A route that is_open answers every client.  The others need the token, if there is one: as "Authorization:
 * Bearer TOKEN", or once as "?token=TOKEN", which sets a cookie.  Without a token they answer only on loopback, and
 * only requests whose Host names this machine, so that no foreign page in a browser reads them by DNS rebinding.
 */
#ifndef COMMON_HTTP_H
#define COMMON_HTTP_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct http http;
typedef struct http_request http_request;

typedef struct {
    int status;       /* 200 unless the handler sets it */
    const char *type; /* BORROWED for good; default "text/plain; charset=utf-8" */
    const char
        *policy;       /* Content-Security-Policy, BORROWED for good; NULL: nothing may be loaded */
    char *text;        /* OWNED by the server from now on (free) */
    const char *fixed; /* instead of text; BORROWED for good */
    size_t size;       /* of either */
} http_reply;

typedef void (*http_handler)(void *user, const http_request *request, http_reply *reply);

typedef struct {
    const char *path; /* "/metrics" */
    http_handler handler;
    bool is_open; /* needs no token */
} http_route;     /* tables end with a row of zeros */

typedef struct {
    const char *address;    /* "HOST:PORT", "[ADDRESS]:PORT"; port 0 takes a free one */
    const char *token_file; /* "" or NULL: no token */
    const http_route *routes;
    void *user;
} http_options;

/* Listens, and answers in its own thread.  Routes are BORROWED until http_close().
 * Errors  BAD_SETTING  unusable address or token file.   UNREACHABLE  the port is taken.
 *         NO_MEMORY */
pen_status http_open(const http_options *options, http **h, pen_error *why);
void http_close(http *h); /* waits for a running handler; NULL is fine */

/* "127.0.0.1:43117", with the real port.  BORROWED until http_close(). */
const char *http_address(const http *h);

const char *http_path(const http_request *request); /* of its route */

/* A header field; NULL if absent. */
const char *http_header(const http_request *request, const char *name);

/* Answers with a status and a copy of the sentence. */
void http_say(http_reply *reply, int status, const char *text);

#endif
