/* lifeline.c - two endpoints; the second takes over once it is up. */
#include "common/net/lifeline.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/net/reach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    TRIES_PER_LEASE  = 12,
    CONNECT_MS_MIN   = 200,
    CONNECT_MS_MAX   = 1000,
    RECONNECT_MS_MAX = 200,
    NEXT_MS          = 1000 /* time for a renewal before a later one replaces it */
};

struct lifeline {
    transport *now, *next; /* next: NULL unless a renewal is under way */
    uint64_t next_ms;      /* when it began */
    reach way;             /* active while the other end is silent */
    bool has_told;         /* the obstacle */
    transport_options options;
    int epoll_fd; /* of both endpoints; -1: no descriptor */
    char address[];
};

transport_options lifeline_options(uint64_t lease_ms)
{
    const uint64_t ms = lease_ms / TRIES_PER_LEASE;
    return (transport_options){.heartbeat_ms     = (uint32_t)lease_ms / 2,
                               .connect_ms       = ms < CONNECT_MS_MIN   ? CONNECT_MS_MIN
                                                   : ms > CONNECT_MS_MAX ? CONNECT_MS_MAX
                                                                         : (uint32_t)ms,
                               .reconnect_ms_max = RECONNECT_MS_MAX};
}

static bool monitor(lifeline *self, transport *t)
{
    struct epoll_event event = {.events = EPOLLIN};
    const int fd             = transport_poll_fd(t);
    return fd < 0 || epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

pen_status lifeline_dial(const char *address, const transport_options *options, lifeline **out,
                         pen_error *why)
{
    const size_t size = strlen(address) + 1;
    lifeline *self    = calloc(1, sizeof *self + size);
    if (self == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for a connection to %.200s", address);
    memcpy(self->address, address, size);
    if (options != NULL) self->options = *options;
    self->epoll_fd    = -1;
    pen_status status = transport_dial(address, &self->options, &self->now, why);
    if (status == PEN_OK && transport_poll_fd(self->now) >= 0) {
        self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (self->epoll_fd < 0 || !monitor(self, self->now))
            status = why_set(why, PEN_NO_MEMORY,
                             "cannot watch a connection to %.200s: %m; raise the limit of open "
                             "files (ulimit -n)",
                             address);
    }
    if (status == PEN_OK)
        *out = self;
    else
        lifeline_close(self, 0);
    return status;
}

pen_status lifeline_send(lifeline *self, const void *head, size_t head_size, buf *body)
{
    return transport_send(self->now, 0, head, head_size, body);
}

/* Removed explicitly: a forked child may hold the descriptor too, so closing it is not enough. */
static void end_one(const lifeline *self, transport *t)
{
    const int fd = transport_poll_fd(t);
    if (fd >= 0) epoll_ctl(self->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    transport_close(t, 0);
}

/* An address that vanishes during a handshake would leave an endpoint waiting for longer than a lease. */
static void drop_next(lifeline *self)
{
    if (self->next != NULL) end_one(self, self->next);
    self->next = NULL;
}

/* Events of the next one count only once it is up; the owner does not see its failures. */
static bool is_next_up(lifeline *self, transport_event *event)
{
    while (self->next != NULL && transport_recv(self->next, event) == PEN_OK) {
        if (event->kind == TRANSPORT_UP) return true;
        if (event->kind == TRANSPORT_MESSAGE) buf_release(event->body);
    }
    return false;
}

pen_status lifeline_recv(lifeline *self, transport_event *event)
{
    const pen_status status = transport_recv(self->now, event);
    if (status != PEN_AGAIN || !is_next_up(self, event)) return status;
    end_one(self, self->now);
    self->now  = self->next;
    self->next = NULL;
    return PEN_OK;
}

int lifeline_poll_fd(lifeline *self)
{
    return self->epoll_fd;
}

void lifeline_renew(lifeline *self)
{
    const uint64_t now_ms = clock_ms(&clock_real);
    if (self->next != NULL && now_ms - self->next_ms < NEXT_MS) return;
    drop_next(self);
    if (transport_dial(self->address, &self->options, &self->next, NULL) != PEN_OK) return;
    self->next_ms = now_ms;
    if (!monitor(self, self->next)) drop_next(self);
}

void lifeline_watch(lifeline *self, uint64_t silent_ms, uint64_t lease_ms, const char *who,
                    const char *whom, const char *remedy, uint64_t now_ms)
{
    const bool is_silent = silent_ms > 0 && silent_ms >= lease_ms / 2;
    if (!is_silent && self->has_told) log_notice("%s reaches %s again", who, whom);
    if (!is_silent) reach_end(&self->way);
    if (!is_silent) self->has_told = false;
    if (!is_silent || self->has_told) return;
    if (!self->way.is_needed) reach_begin(&self->way, 0, now_ms - REACH_FIRST_MS);
    const char *words = reach_look(&self->way, self->address, now_ms);
    if (words == NULL || self->way.error == ECONNREFUSED) return;
    self->has_told = true;
    log_warning("%s cannot reach %s: %s; %s", who, whom, words, remedy);
}

void lifeline_close(lifeline *self, uint32_t linger_ms)
{
    if (self == NULL) return;
    reach_end(&self->way);
    transport_close(self->next, 0);
    transport_close(self->now, linger_ms);
    if (self->epoll_fd >= 0) close(self->epoll_fd);
    free(self);
}
