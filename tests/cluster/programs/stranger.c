/* stranger.c - another local user, who knows the messages of a job but does not have its token.
 *
 *   stranger end PORT            sends HELLO as a launcher, then that worker 1 crashed, in clear text: this ends a job
 *   stranger end PORT SECRET     the same, with a proof made with the secret in that file
 *   stranger tool PORT           sends HELLO like `penstock status`, and asks for the status
 *   stranger squat PORT          listens at PORT, and receives everything, for 3 s
 * Prints what it received: "heard N messages of M bytes, the largest L", and "up" if it was
 * admitted.
 */
#include "common/base/clock.h"
#include "common/net/auth/auth.h"
#include "proto/wire/wire.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LISTEN_MS = 3000, TALK_MS = 1500, EVERY_MS = 100 };

static struct {
    unsigned long messages, bytes, largest;
    uint64_t incarnation; /* of the newest WELCOME */
    bool is_up;
} heard;
static wire_arena *arena;

static void must(pen_status status, const pen_error *why)
{
    if (status == PEN_OK) return;
    fprintf(stderr, "%s\n", why->text);
    exit(1);
}

static void listen_to(transport *t)
{
    transport_event event;
    wire_control c;
    while (transport_recv(t, &event) == PEN_OK) {
        buf_release(event.body);
        heard.is_up |= event.kind == TRANSPORT_UP;
        if (event.kind != TRANSPORT_MESSAGE) continue;
        heard.messages++;
        heard.bytes += event.head_size;
        if (event.head_size > heard.largest) heard.largest = event.head_size;
        wire_arena_reset(arena);
        if (wire_control_decode(event.head, event.head_size, arena, &c, NULL) == PEN_OK &&
            c.kind == WIRE_WELCOME)
            heard.incarnation = c.u.welcome.incarnation;
    }
    poll(NULL, 0, 5);
}

static void say(transport *t, wire_control *c)
{
    wire_out out = {0};
    pen_error why;
    must(wire_control_encode(c, &out, &why), &why);
    (void)transport_send(t, 0, out.data, out.size, NULL);
    wire_out_free(&out);
}

static void say_all(transport *t, bool is_tool)
{
    wire_control hello = {.kind    = WIRE_HELLO,
                          .u.hello = {.role  = is_tool ? WIRE_OBSERVER : WIRE_LAUNCHER,
                                      .rank  = -1,
                                      .nonce = 4711,
                                      .pid   = getpid(),
                                      .host  = "devbox",
                                      .job   = "",
                                      .store = ""}};
    wire_control ask   = {.kind = WIRE_STATUS_ASK, .from = heard.incarnation};
    wire_control end   = {.kind     = WIRE_EXITED,
                          .from     = heard.incarnation,
                          .u.exited = {.role = PEN_WORKER, .rank = 1, .code = 1}};
    say(t, &hello);
    say(t, is_tool ? &ask : &end);
}

static transport *dial(const char *port, const char *secret_file)
{
    char address[64];
    transport *t;
    pen_error why;
    auth *g             = NULL;
    transport_options o = {0};
    snprintf(address, sizeof address, "tcp://127.0.0.1:%s", port);
    const auth_options who = {.encryption  = AUTH_CLEAR,
                              .secret_file = secret_file,
                              .role        = AUTH_WORKER,
                              .rank        = 1,
                              .address     = {address}};
    if (secret_file != NULL) must(auth_open(&who, &g, &why), &why);
    auth_dial(g, AUTH_SCHEDULER, &o);
    must(transport_dial(address, &o, &t, &why), &why);
    return t;
}

static void squat(const char *port)
{
    char address[64];
    transport *t;
    pen_error why;
    snprintf(address, sizeof address, "tcp://127.0.0.1:%s", port);
    must(transport_listen(address, NULL, &t, &why), &why);
    const uint64_t end = clock_ms(&clock_real) + LISTEN_MS;
    while (clock_ms(&clock_real) < end) listen_to(t);
    transport_close(t, 0);
}

int main(int argc, char **argv)
{
    if (argc < 3) return fprintf(stderr, "stranger end|tool|squat PORT [SECRET]\n"), 2;
    arena = wire_arena_create(1 << 20);
    if (strcmp(argv[1], "squat") == 0) {
        squat(argv[2]);
    } else {
        transport *t       = dial(argv[2], argc > 3 ? argv[3] : NULL);
        const uint64_t end = clock_ms(&clock_real) + TALK_MS;
        for (uint64_t next = 0; clock_ms(&clock_real) < end; listen_to(t)) {
            if (clock_ms(&clock_real) < next) continue;
            next = clock_ms(&clock_real) + EVERY_MS;
            say_all(t, strcmp(argv[1], "tool") == 0);
        }
        transport_close(t, 0);
    }
    wire_arena_destroy(arena);
    printf("heard %lu messages of %lu bytes, the largest %lu%s\n", heard.messages, heard.bytes,
           heard.largest, heard.is_up && argc > 3 ? ", up" : "");
    return 0;
}
