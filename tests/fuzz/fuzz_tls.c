/* fuzz_tls.c - whatever a stranger sends before it has proven a key, to a listener or to a dialler, in whatever pieces:
 * the handshake ends or waits, never succeeds, and no byte is read that is not there.
 *
 * The first bytes of an input say which end is under test, how long the pieces are, whether the stranger ends its side,
 * and which part of a dialler's real first message precedes the rest. */
#include "common/net/transport/tls.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SETTINGS = 4, HELLO_MAX = 1024 };

static bool shares(void *user, transport_identity with, uint8_t key[TRANSPORT_KEY_BYTES])
{
    (void)user;
    memset(key, (int)with.index, TRANSPORT_KEY_BYTES);
    return with.who == 2;
}

static const transport_keys keys = {.self = {2, 1}, .shared = {7}, .shares = shares};
static tls_context *context[2]; /* of a dialler, of a listener */

/* A member's own words: its proof holds, so even a whole one must not be enough. */
static size_t say_hello(uint8_t hello[HELLO_MAX])
{
    static const transport_keys member = {
        .self = {2, 1}, .shared = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    static tls_context *c;
    const char *note;
    int fd[2];
    FUZZ_CHECK(c != NULL || tls_context_open(&member, false, &c, NULL) == PEN_OK);
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
    tls *t = tls_create(c, false, fd[0]);
    FUZZ_CHECK(t != NULL && tls_shake(t, &note) == TLS_SHAKING);
    const ssize_t n = recv(fd[1], hello, HELLO_MAX, 0);
    FUZZ_CHECK(n > 0 && n < HELLO_MAX);
    tls_free(t);
    close(fd[0]);
    close(fd[1]);
    return (size_t)n;
}

static void drain(int fd)
{
    uint8_t sink[4096];
    while (recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0) {}
}

static void check(bool listens, const uint8_t *text, size_t size, size_t piece, bool ends)
{
    const char *note = NULL;
    int fd[2];
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
    tls *t = tls_create(context[listens], listens, fd[0]);
    FUZZ_CHECK(t != NULL);
    tls_state state = listens ? TLS_SHAKING : tls_shake(t, &note);
    for (size_t at = 0; at < size && state == TLS_SHAKING; at += piece) {
        const size_t here = size - at < piece ? size - at : piece;
        FUZZ_CHECK(send(fd[1], text + at, here, MSG_NOSIGNAL) == (ssize_t)here);
        state = tls_shake(t, &note);
        drain(fd[1]);
    }
    if (ends && state == TLS_SHAKING) {
        shutdown(fd[1], SHUT_WR);
        for (int i = 0; i < 4 && state == TLS_SHAKING; i++) state = tls_shake(t, &note);
        FUZZ_CHECK(state == TLS_FAILED);
    }
    FUZZ_CHECK(state != TLS_UP);
    tls_free(t);
    close(fd[0]);
    close(fd[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size <= SETTINGS) return 0;
    for (int i = 0; i < 2; i++)
        FUZZ_CHECK(context[i] != NULL ||
                   tls_context_open(&keys, i == 1, &context[i], NULL) == PEN_OK);
    uint8_t hello[HELLO_MAX];
    const size_t whole = data[3] > 0 ? say_hello(hello) : 0;
    const size_t known = whole * data[3] / UINT8_MAX, rest = size - SETTINGS;
    uint8_t *text = malloc(known + rest);
    FUZZ_CHECK(text != NULL);
    memcpy(text, hello, known);
    memcpy(text + known, data + SETTINGS, rest);
    if (data[2] % 4 >= 2 && known > 0) /* one byte of it is another */
        text[(size_t)data[2] * known / 256] ^= data[SETTINGS] != 0 ? data[SETTINGS] : 1;
    check(data[0] % 2 == 1, text, known + rest, 1 + (size_t)data[1] * 4, data[2] % 2 == 1);
    free(text);
    return 0;
}
