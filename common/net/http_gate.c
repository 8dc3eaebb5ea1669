/* http_gate.c - checks host, origin and token of a request, from its text alone. */
#include "common/net/http_gate.h"

#include "common/base/why.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Constant time for tokens of equal length. */
static bool is_token(const char *token, const char *text)
{
    if (text == NULL) return false;
    const size_t n   = strlen(token);
    unsigned differs = strlen(text) != n;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)token[i] ^ (unsigned char)text[differs ? 0 : i];
    return !differs;
}

static const char *bearer_of(const char *authorization)
{
    static const char scheme[] = "Bearer ";
    const size_t n             = sizeof scheme - 1;
    return authorization != NULL && strncasecmp(authorization, scheme, n) == 0 ? authorization + n
                                                                               : NULL;
}

static bool is_number_of(const char *text, size_t n, const char *letters)
{
    size_t i = 0;
    while (i < n && strchr(letters, text[i]) != NULL && text[i] != '\0') i++;
    return i == n && n > 0;
}

bool http_host_is_local(const char *host)
{
    if (host == NULL) return true; /* HTTP/1.0: no browser */
    if (strncmp(host, "[::1]", 5) == 0) return host[5] == '\0' || host[5] == ':';
    const char *colon = strchr(host, ':');
    const size_t n    = colon != NULL ? (size_t)(colon - host) : strlen(host);
    if (n == strlen("localhost") && strncasecmp(host, "localhost", n) == 0) return true;
    return strncmp(host, "127.", 4) == 0 && is_number_of(host, n, "0123456789.");
}

http_verdict http_gate_ask(const http_gate *gate, const http_credentials *c)
{
    if (gate->token[0] != '\0') {
        if (is_token(gate->token, bearer_of(c->authorization))) return HTTP_IN;
        if (is_token(gate->token, c->query)) return HTTP_IN_KEEP;
        return is_token(gate->token, c->cookie) ? HTTP_IN : HTTP_WRONG_TOKEN;
    }
    if (!gate->is_loopback) return HTTP_CLOSED;
    return http_host_is_local(c->host) ? HTTP_IN : HTTP_WRONG_HOST;
}

pen_status http_address_cut(const char *address, char host[HTTP_HOST_BYTES], char port[8],
                            pen_error *why)
{
    const char *colon   = strrchr(address, ':');
    const size_t n      = colon != NULL ? (size_t)(colon - address) : 0;
    const bool boxed    = n > 2 && address[0] == '[' && address[n - 1] == ']';
    const size_t digits = colon != NULL ? strlen(colon + 1) : 0;
    const bool is_bare  = strcspn(address, ":[]") == n;
    if (n == 0 || n >= HTTP_HOST_BYTES || digits > 5 || (!boxed && !is_bare) ||
        !is_number_of(colon + 1, digits, "0123456789") || atoi(colon + 1) > 65535)
        return why_set(
            why, PEN_BAD_SETTING,
            "invalid http address '%.80s'; expected HOST:PORT, or [ADDRESS]:PORT for IPv6",
            address);
    memcpy(host, address + boxed, n - 2 * boxed);
    host[n - 2 * boxed] = '\0';
    memcpy(port, colon + 1, digits + 1);
    return PEN_OK;
}

pen_status http_token_take(const char *text, size_t size, const char *source,
                           char token[HTTP_TOKEN_BYTES], pen_error *why)
{
    while (size > 0 && strchr(" \t\r\n", text[size - 1]) != NULL && text[size - 1] != '\0') size--;
    bool is_good = size >= HTTP_TOKEN_LETTERS_MIN && size < HTTP_TOKEN_BYTES;
    for (size_t i = 0; is_good && i < size; i++)
        is_good = (isalnum((unsigned char)text[i]) && (unsigned char)text[i] < 128) ||
                  (text[i] != '\0' && strchr("-._~", text[i]) != NULL);
    if (!is_good)
        return why_set(
            why, PEN_BAD_SETTING,
            "http_token_file %.200s has no token; expected one line of %d to %d letters, digits, "
            "'-', '.', '_', '~'",
            source, HTTP_TOKEN_LETTERS_MIN, HTTP_TOKEN_BYTES - 1);
    memcpy(token, text, size);
    token[size] = '\0';
    return PEN_OK;
}
