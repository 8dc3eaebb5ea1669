/* own_address.c - finds the interface that leads to the scheduler. */
#include "common/net/own_address.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/net/auth/auth.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_AGAIN_MS = 200, WARN_AFTER_TRIES = 10, ANY_PORT = 9 };

/* Connecting a datagram socket sends nothing; it only finds the route. */
int own_address_towards(const struct sockaddr *to, socklen_t to_size, char *host, size_t size)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    int error        = 0;
    const int fd     = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    if (connect(fd, to, to_size) != 0 || getsockname(fd, (struct sockaddr *)&own, &length) != 0)
        error = errno;
    else if (getnameinfo((struct sockaddr *)&own, length, host, (socklen_t)size, NULL, 0,
                         NI_NUMERICHOST) != 0)
        error = EAFNOSUPPORT;
    close(fd);
    return error;
}

/* ---- route to the scheduler ------------------------------------------------------------------ */

/* Prefers IPv4, like the transport that dials it. */
static int resolve(const char *name, uint32_t port, struct addrinfo **list)
{
    char service[16], bare[OWN_ADDRESS_BYTES];
    snprintf(bare, sizeof bare, "%s", name[0] == '[' ? name + 1 : name);
    if (name[0] == '[') bare[strcspn(bare, "]")] = '\0';
    snprintf(service, sizeof service, "%u", port > 0 ? port : ANY_PORT);
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
    const int error       = getaddrinfo(bare, service, &hints, list);
    if (error == 0) return 0;
    hints.ai_family = AF_INET6;
    return getaddrinfo(bare, service, &hints, list) == 0 ? 0 : error;
}

static bool is_loopback_number(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

/* The first address of a name, and the local address of the route; both "" if the name has none. */
static void numbers_of(const char *name, char number[64], char own[64])
{
    struct addrinfo *list;
    number[0] = own[0] = '\0';
    if (resolve(name, 0, &list) != 0) return;
    (void)getnameinfo(list->ai_addr, list->ai_addrlen, number, 64, NULL, 0, NI_NUMERICHOST);
    (void)own_address_towards(list->ai_addr, list->ai_addrlen, own, 64);
    freeaddrinfo(list);
}

bool own_address_is_here(const char *name)
{
    char number[64], own[64];
    if (auth_is_loopback(name)) return false;
    numbers_of(name, number, own);
    return is_loopback_number(number);
}

bool own_address_is_ours(const char *name)
{
    char number[64], own[64];
    numbers_of(name, number, own);
    return is_loopback_number(number) || (own[0] != '\0' && strcmp(number, own) == 0);
}

typedef struct {
    bool is_name; /* it does not resolve; otherwise no route */
    const char *text;
} obstacle;

/* The obstacle; text NULL: none. */
static obstacle look(const own_address_query *q, char *host, size_t size)
{
    struct addrinfo *list = NULL;
    int error             = resolve(q->scheduler, q->port, &list);
    if (error != 0) return (obstacle){true, gai_strerror(error)};
    for (const struct addrinfo *at = list; at != NULL; at = at->ai_next)
        if ((error = own_address_towards(at->ai_addr, at->ai_addrlen, host, size)) == 0) break;
    freeaddrinfo(list);
    return (obstacle){false, error != 0 ? strerrordesc_np(error) : NULL};
}

/* A name may appear later than its first user: a cluster creates it together with its pod; so may the network of a
 * host that has just booted.  Waiting is better than guessing: others learn this process's address only once. */
static pen_status wait_for_way(const own_address_query *q, char *host, size_t size, pen_error *why)
{
    const struct timespec pause = {.tv_nsec = LOOK_AGAIN_MS * 1000000};
    const uint64_t begun        = clock_ms(&clock_real);
    obstacle o;
    for (int tries = 0; (o = look(q, host, size)).text != NULL; tries++) {
        if (clock_ms(&clock_real) - begun >= q->patience_ms) break;
        if (tries == WARN_AFTER_TRIES)
            log_warning(o.is_name ? "the name of the scheduler, '%s', does not resolve yet: %s"
                                  : "no interface leads to the scheduler at '%s' yet: %s",
                        q->scheduler, o.text);
        nanosleep(&pause, NULL);
    }
    if (o.text == NULL) return PEN_OK;
    return why_set(
        why, PEN_TIMED_OUT,
        o.is_name
            ? "the name of the scheduler, '%s', does not resolve after %.1f s (%s); check "
              "MASTER_ADDR"
            : "no interface of this host leads to the scheduler at '%s' after %.1f s (%s); check "
              "the network, or set --host ADDRESS",
        q->scheduler, (double)q->patience_ms / 1000, o.text);
}

/* ---- on the scheduler's own host -------------------------------------------------------------------- */

static bool leads_there(const void *far, socklen_t far_size, char *host, size_t size)
{
    return own_address_towards(far, far_size, host, size) == 0 && !is_loopback_number(host);
}

/* Documentation addresses (RFC 5737, RFC 3849): their route is the default route. */
static bool by_default_route(char *host, size_t size)
{
    const struct sockaddr_in far = {
        .sin_family = AF_INET, .sin_port = htons(ANY_PORT), .sin_addr.s_addr = htonl(0xcb007101)};
    const struct sockaddr_in6 far_v6 = {.sin6_family       = AF_INET6,
                                        .sin6_port         = htons(ANY_PORT),
                                        .sin6_addr.s6_addr = {0x20, 1, 0xd, 0xb8, [15] = 1}};
    return leads_there(&far, sizeof far, host, size) ||
           leads_there(&far_v6, sizeof far_v6, host, size);
}

/* A link-local IPv6 address is valid on its own link only. */
static bool is_outward(const struct ifaddrs *i, int family)
{
    const struct sockaddr_in6 *v6 = (const void *)i->ifa_addr;
    return i->ifa_addr != NULL && i->ifa_addr->sa_family == family &&
           !(i->ifa_flags & IFF_LOOPBACK) && (i->ifa_flags & IFF_UP) &&
           (i->ifa_flags & IFF_RUNNING) &&
           (family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr));
}

/* Number of outside addresses of a family; the last one in `host`, all with their interfaces in `names`. */
static int list_outward(const struct ifaddrs *all, int family, char *host, size_t size,
                        char names[160])
{
    const socklen_t bytes =
        family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int n = 0;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (!is_outward(i, family) || n++ > 8) continue;
        (void)getnameinfo(i->ifa_addr, bytes, host, (socklen_t)size, NULL, 0, NI_NUMERICHOST);
        const size_t at = strlen(names);
        snprintf(names + at, 160 - at, "%s%.15s %.39s", n > 1 ? ", " : "", i->ifa_name, host);
    }
    return n;
}

/* The outside address if the scheduler's name is loopback here. */
static pen_status choose_interface(const char *scheduler, char *host, size_t size, pen_error *why)
{
    struct ifaddrs *all = NULL;
    char names[160]     = "";
    if (by_default_route(host, size)) return PEN_OK;
    (void)getifaddrs(&all);
    int n = list_outward(all, AF_INET, host, size, names);
    if (n == 0) n = list_outward(all, AF_INET6, host, size, names);
    if (all != NULL) freeifaddrs(all);
    if (n == 0) snprintf(host, size, "127.0.0.1"); /* no other hosts */
    if (n <= 1) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "the scheduler's name '%.100s' is loopback on this host, which has several "
                   "interfaces (%s) and no default route; set --host ADDRESS, or an address with "
                   "--master-addr",
                   scheduler, names);
}

/* ---- result ---------------------------------------------------------------------------------- */

static bool is_said(const char *given)
{
    return given != NULL && given[0] != '\0' && strcmp(given, "*") != 0 &&
           strcmp(given, "0.0.0.0") != 0 && strcmp(given, "::") != 0 && strcmp(given, "[::]") != 0;
}

static void take_given(const char *given, own_address *own)
{
    const bool is_v6 = strchr(given, ':') != NULL;
    snprintf(own->host, sizeof own->host, "%s", given);
    snprintf(own->listen, sizeof own->listen, "tcp://%s:0",
             !auth_is_loopback(given) ? "*"
             : is_v6                  ? "[::1]"
                                      : "127.0.0.1");
}

pen_status own_address_find(const own_address_query *q, own_address *own, pen_error *why)
{
    const bool is_number_free = q->scheduler[0] == '\0' || strstr(q->scheduler, "://") != NULL;
    pen_status status         = PEN_OK;
    if (is_said(q->given)) {
        take_given(q->given, own);
        return PEN_OK;
    }
    snprintf(own->host, sizeof own->host, "127.0.0.1");
    if (!is_number_free) status = wait_for_way(q, own->host, sizeof own->host, why);
    if (status == PEN_OK && is_loopback_number(own->host) && !auth_is_loopback(q->scheduler))
        status = choose_interface(q->scheduler, own->host, sizeof own->host, why);
    snprintf(own->listen, sizeof own->listen,
             strchr(own->host, ':') != NULL ? "tcp://[%s]:0" : "tcp://%s:0", own->host);
    return status;
}

void own_address_show(const own_address *own, const char *listening, char *text, size_t size)
{
    const char *port   = strrchr(listening, ':');
    const bool is_bare = strchr(own->host, ':') != NULL && own->host[0] != '[';
    if (strncmp(listening, "tcp://", 6) != 0 || port == NULL)
        snprintf(text, size, "%s", listening);
    else
        snprintf(text, size, is_bare ? "tcp://[%s]%s" : "tcp://%s%s", own->host, port);
}
