/* http_gate.h - access control of http.h: pure, on the text of a request. */
#ifndef COMMON_HTTP_GATE_H
#define COMMON_HTTP_GATE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>

enum { HTTP_TOKEN_BYTES = 129, HTTP_TOKEN_LETTERS_MIN = 16, HTTP_HOST_BYTES = 256 };

typedef struct {
    bool is_loopback;             /* not reachable from other machines */
    char token[HTTP_TOKEN_BYTES]; /* "" is none */
} http_gate;

typedef struct { /* of a request; each may be NULL */
    const char *host, *authorization, *query, *cookie;
} http_credentials;

typedef enum {
    HTTP_IN,      /* answer it */
    HTTP_IN_KEEP, /* answer it and set the cookie: the token was in the URL */
    HTTP_CLOSED,  /* no token, and not loopback: refuse all */
    HTTP_WRONG_TOKEN,
    HTTP_WRONG_HOST
} http_verdict;

http_verdict http_gate_ask(const http_gate *gate, const http_credentials *c);

/* Splits "HOST:PORT" or "[ADDRESS]:PORT".  BAD_SETTING with a sentence. */
pen_status http_address_cut(const char *address, char host[HTTP_HOST_BYTES], char port[8],
                            pen_error *why);

/* A token is 16 to 128 letters, digits, '-', '.', '_', '~'; trailing blanks and newlines are ignored. `source` is
 * for the sentence, which does not repeat the text. */
pen_status http_token_take(const char *text, size_t size, const char *source,
                           char token[HTTP_TOKEN_BYTES], pen_error *why);

/* Whether the Host of a request names this machine: localhost, 127.x.x.x, [::1]. */
bool http_host_is_local(const char *host);

#endif
