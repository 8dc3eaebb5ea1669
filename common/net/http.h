/* http.h - a small HTTP server for looking at a process: GET and HEAD, one thread, a table of routes.
 *
 * Handlers run in the thread of the server, one at a time.  They touch nothing that a loop owns: what a
 * loop knows they ask it for (inquiry.h).
 *
 * Who may ask.  A route that is_open answers anybody.  The others want the token, where there is one: as
 * "Authorization: Bearer TOKEN", or once as "?token=TOKEN", which leaves a cookie.  Without a token they
 * answer only where the address is loopback, and only a request whose Host is of this machine, so that no
 * foreign page in a browser reads them under a name of its own.
 */
#ifndef COMMON_HTTP_H
#define COMMON_HTTP_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct http http;
typedef struct http_request http_request;

typedef struct {
    int status;       /* 200 when the handler does not say otherwise */
    const char *type; /* BORROWED for good; "text/plain; charset=utf-8" when not said */
    const char
        *policy;       /* Content-Security-Policy, BORROWED for good; NULL: nothing may be loaded */
    char *text;        /* OWNED by the server from now on (free) */
    const char *fixed; /* instead of text; BORROWED for good */
    size_t size;       /* of either */
} http_reply;

typedef void (*http_handler)(void *user, const http_request *request, http_reply *reply);

typedef struct {
    const char *path; /* as it is asked for: "/metrics" */
    http_handler handler;
    bool is_open; /* needs no token */
} http_route;     /* tables end with a row of zeros */

typedef struct {
    const char *address;    /* "HOST:PORT", "[ADDRESS]:PORT"; port 0 takes a free one */
    const char *token_file; /* "" or NULL: no token */
    const http_route *routes;
    void *user;
} http_options;

/* Listens, and answers in a thread of its own.  Routes are BORROWED until http_close().
 * Errors  BAD_SETTING  the address or the token file cannot be used.   UNREACHABLE  the port is taken.
 *         NO_MEMORY */
pen_status http_open(const http_options *options, http **h, pen_error *why);
void http_close(http *h); /* after the handler that runs has returned; NULL is fine */

/* "127.0.0.1:43117", with the real port.  BORROWED until http_close(). */
const char *http_address(const http *h);

const char *http_path(const http_request *request); /* of its route */

/* Value of ?name=...; NULL when it is not there, "" when it has none.  BORROWED until the handler returns. */
const char *http_query(const http_request *request, const char *name);
/* A header field; NULL when it is not there. */
const char *http_header(const http_request *request, const char *name);

/* What a handler ends with: a status and a sentence, a copy of it. */
void http_say(http_reply *reply, int status, const char *text);

#endif
