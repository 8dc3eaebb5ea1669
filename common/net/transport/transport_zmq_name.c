/* transport_zmq_name.c - what a dialler dials; the address of its listener may change meanwhile.
 *
 * ZeroMQ gets numeric addresses only: it would query the name server in the thread that moves all messages of the
 * process (name_lookup.h).  A name is resolved again after each failed attempt, so a peer that returns under another
 * address is found.
 */
#include "common/net/transport/transport_zmq.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

enum { AGAIN_MS = 500 /* at most */, LOOK_MS = 10, LOOK_TRIES = 4 };

/* ---- dialling --------------------------------------------------------------------------------------- */

void dial_hang_up(endpoint *e)
{
    if (e->target[0] != '\0') zmq.disconnect(e->socket, e->target);
    e->target[0] = '\0';
}

static void ask_later(endpoint *e)
{
    const uint32_t most = e->options.reconnect_ms_max;
    endpoint_set_timer(e, most < AGAIN_MS ? most : AGAIN_MS);
}

/* Where the listener at a numeric address is now: the Unix-domain socket that it left for this user, or TCP.  Keeps what
 * is dialled if that is right.  False: errno says what is wrong with the address. */
static bool dial_number(endpoint *e, const char *number)
{
    char target[DIAL_TARGET_MAX], path[LOCAL_SOCKET_PATH_BYTES];
    pen_error why;
    const transport_sockets sockets = e->options.sockets;
    const bool is_local             = sockets != TRANSPORT_TCP && local_socket_find(number, path);
    if (!is_local && sockets == TRANSPORT_LOCAL_ONLY) {
        /* Nobody listens at the only socket: looks again soon, less often after a while. */
        dialled *l      = &e->link;
        const long wait = (long)LOOK_MS << l->tries;
        if (l->tries < LOOK_TRIES) l->tries++;
        dial_hang_up(e);
        endpoint_set_timer(e, wait);
        return true;
    }
    snprintf(target, sizeof target, is_local ? "ipc://%s" : "%s", is_local ? path : number);
    if (strcmp(target, e->target) == 0) return true;
    dial_hang_up(e);
    e->link.is_local = is_local;
    e->link.tries    = 0;
    if (strchr(number, '[') != NULL) set_int(e->socket, ZMQ_IPV6, 1);
    if (curve_set(e, NULL, e->has_keys && !is_local, &why) != PEN_OK ||
        zmq.connect(e->socket, target) != 0)
        return false;
    snprintf(e->target, sizeof e->target, "%s", target);
    return true;
}

void dial_end(endpoint *e)
{
    name_lookup_drop(e->asked);
    e->asked = NULL;
}

static void ask_if_not_asking(endpoint *e)
{
    if (e->asked != NULL) return;
    e->asked = name_lookup_start(e->address);
    if (e->asked == NULL || !endpoint_watch_fd(e, name_lookup_fd(e->asked))) {
        dial_end(e);
        ask_later(e);
    }
}

bool dial_begin(endpoint *e)
{
    dial_hang_up(e);
    if (!name_lookup_is_needed(e->address)) return dial_number(e, e->address);
    ask_if_not_asking(e);
    return true;
}

void dial_failed(endpoint *e)
{
    if (name_lookup_is_needed(e->address))
        ask_if_not_asking(e);
    else
        (void)dial_number(e, e->address);
}

void dial_heed_answer(endpoint *e)
{
    name_lookup *q     = e->asked;
    const char *answer = q != NULL ? name_lookup_answer(q) : NULL;
    if (answer == NULL) return;
    e->asked = NULL;
    epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, name_lookup_fd(q), NULL);
    if (!e->link.is_up && answer[0] != '\0')
        (void)dial_number(e, answer);
    else if (!e->link.is_up && e->target[0] == '\0')
        ask_later(e);
    name_lookup_drop(q);
}
