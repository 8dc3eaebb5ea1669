/* names.c - two connections of one process: one to a numeric address, in constant use, and one to a
 * name that a silent name server is asked for. Needs its own network and /etc/resolv.conf: it is
 * also that name server.
 *
 *   names SECONDS
 * prints   QUESTIONS LONGEST   how often the name server was asked, and the longest time in ms between two messages
 *                              of the other connection.
 */
#include "common/base/clock.h"
#include "common/net/transport/transport.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { EVERY_MS = 10 };

static int serve_names(void)
{
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (bind(fd, (const struct sockaddr *)&at, sizeof at) != 0) {
        perror("cannot listen at port 53");
        exit(1);
    }
    return fd;
}

static void must(pen_status status, const pen_error *why)
{
    if (status == PEN_OK) return;
    fprintf(stderr, "%s\n", why->text);
    exit(1);
}

/* The number of received messages. */
static int drain(transport *t)
{
    transport_event event;
    int n = 0;
    while (transport_recv(t, &event) == PEN_OK) n += event.kind == TRANSPORT_MESSAGE;
    return n;
}

int main(int argc, char **argv)
{
    const double seconds         = argc > 1 ? atof(argv[1]) : 1;
    const transport_options fast = {.heartbeat_ms = 100, .reconnect_ms_max = 200};
    pen_error why;
    const int names = serve_names();
    transport *here, *near, *far;
    must(transport_listen("tcp://127.0.0.1:0", &fast, &here, &why), &why);
    must(transport_dial(transport_address(here), &fast, &near, &why), &why);
    must(transport_dial("tcp://gone.penstock.test:29500", &fast, &far, &why), &why);
    const uint64_t until = clock_ms(&clock_real) + (uint64_t)(1000 * seconds);
    uint64_t last = clock_ms(&clock_real), longest = 0;
    int questions = 0;
    char question[512];
    for (uint64_t now = last; now < until; now = clock_ms(&clock_real)) {
        (void)transport_send(near, 0, "beat", 4, NULL);
        poll(NULL, 0, EVERY_MS);
        drain(near);
        drain(far);
        longest = now - last > longest ? now - last : longest;
        if (drain(here) > 0) last = now;
        while (recv(names, question, sizeof question, 0) > 0) questions++;
    }
    printf("%d %d\n", questions, (int)longest);
    transport_close(far, 0);
    transport_close(near, 0);
    transport_close(here, 0);
    return 0;
}
