/* job.c - the connection to a scheduler, its clock, and the connections to all members of its job. */
#include "cli/doctor/doctor.h"
#include "cli/job/control.h"
#include "common/net/local_socket.h"
#include "common/net/own_address.h"
#include "common/net/tcp_address.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DIAL_MS = 2000, ASK_MS = 3000, CLOCK_ROUNDS = 8 };

typedef struct {
    uint32_t ours, both; /* data bytes in a segment: our interface's, and the connection's */
} segments;

/* 0 when a TCP connection opens within two seconds, else errno. */
static int try_connect(const struct addrinfo *a, segments *said)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = 0;
    socklen_t size = sizeof error;
    if (fd < 0) return errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        error = errno;
    } else {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, DIAL_MS) <= 0)
            error = ETIMEDOUT;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    struct tcp_info info = {.tcpi_advmss = 0};
    size                 = sizeof info;
    if (error == 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
        *said = (segments){info.tcpi_advmss, info.tcpi_snd_mss};
    close(fd);
    return error;
}

static const char *remedy_of(int error)
{
    if (error == ECONNREFUSED)
        return "nothing listens there: check that the job has started, and the port";
    if (error == ETIMEDOUT) return "open the port in the firewall between the machines";
    return "check routes and interfaces (penstock doctor on both machines)";
}

/* IPv6 only if there is no IPv4 address, as in the transport. */
static int resolve(const char *host, const char *port, struct addrinfo **found)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    const int rc          = getaddrinfo(host, port, &hints, found);
    if (rc == 0) return 0;
    hints.ai_family = AF_INET6;
    return getaddrinfo(host, port, &hints, found) == 0 ? 0 : rc;
}

static bool has_number(const struct sockaddr *a, const char *number)
{
    char own[INET6_ADDRSTRLEN + 32] = "";
    const bool is_v6                = a->sa_family == AF_INET6;
    if (a->sa_family != AF_INET && !is_v6) return false;
    getnameinfo(a, is_v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), own,
                sizeof own, NULL, 0, NI_NUMERICHOST);
    return strcmp(own, number) == 0;
}

/* The interface and source address of packets to `a`; false: unknown. */
static bool interface_to(const struct addrinfo *a, char name[IF_NAMESIZE], char address[64])
{
    struct ifaddrs *all = NULL;
    bool found =
        own_address_towards(a->ai_addr, a->ai_addrlen, address, 64) == 0 && getifaddrs(&all) == 0;
    if (!found) return false;
    found = false;
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        found = i->ifa_addr != NULL && has_number(i->ifa_addr, address);
        if (found) snprintf(name, IF_NAMESIZE, "%s", i->ifa_name);
    }
    freeifaddrs(all);
    return found;
}

/* Reports the interface, and whether the path takes smaller packets than it.  TCP options take at most 40 bytes of a
 * segment. */
static void report_path(doctor *d, const struct addrinfo *a, const segments *said)
{
    enum { OPTIONS = 40 };
    char name[IF_NAMESIZE], address[64];
    if (!interface_to(a, name, address)) return;
    const bool is_local = strcmp(name, "lo") == 0,
               differ   = !is_local && said->both + OPTIONS < said->ours;
    if (is_local)
        finding_add(d, FINDING_OK, NULL, "its packets stay on this machine");
    else
        finding_add(d, differ ? FINDING_LOOK : FINDING_OK,
                    differ ? "use the same MTU on both machines, or choose other interfaces with "
                             "--host and --master-addr"
                           : NULL,
                    differ ? "packets to it leave through %s (%s) with segments of %u bytes, but "
                             "the path takes only %u"
                           : "packets to it leave through %s (%s) with segments of %u bytes",
                    name, address, said->ours, said->both);
}

static bool is_local_socket(const char *numeric, const char *port)
{
    char address[300], path[LOCAL_SOCKET_PATH_BYTES];
    tcp_address_format(numeric, (uint32_t)atoi(port), address, sizeof address);
    return control_has_local_sockets() && local_socket_find(address, path);
}

/* Reports what blocks the connection; true: the port is open. */
static bool dial(doctor *d, const char *who, const char *host, const char *port, bool tells_way)
{
    char numeric[256] = "?";
    struct addrinfo *found;
    const int rc = resolve(host, port, &found);
    if (rc != 0) {
        finding_add(d, FINDING_BAD, "add the name to DNS or /etc/hosts, or use an address",
                    "%s: '%.100s' does not resolve: %s", who, host, gai_strerror(rc));
        return false;
    }
    getnameinfo(found->ai_addr, found->ai_addrlen, numeric, sizeof numeric, NULL, 0,
                NI_NUMERICHOST);
    if (is_local_socket(numeric, port)) {
        if (tells_way) finding_add(d, FINDING_OK, NULL, "its packets stay on this machine");
        freeaddrinfo(found);
        return true;
    }
    segments said   = {0};
    const int error = try_connect(found, &said);
    if (error == 0 && tells_way) report_path(d, found, &said);
    freeaddrinfo(found);
    if (error != 0)
        finding_add(d, FINDING_BAD, remedy_of(error), "%s: %.100s (%s) port %s: %s", who, host,
                    numeric, port, strerror(error));
    return error == 0;
}

static double wall_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* As in NTP: uses the fastest of several round trips and assumes that both directions took equally long. */
static void look_at_clock(doctor *d, control *link)
{
    double best = INFINITY, skew = 0;
    wire_control answer;
    pen_error why;
    for (uint64_t i = 1; i <= CLOCK_ROUNDS; i++) {
        wire_control question = {.kind = WIRE_BEAT, .u.beat.seq = i};
        const double asked    = wall_s();
        if (control_ask(link, &question, WIRE_BEAT_ACK, ASK_MS, &answer, &why) != PEN_OK) return;
        const double heard = wall_s();
        if (answer.u.beat_ack.clock_ns == 0 || heard - asked >= best) continue;
        best = heard - asked;
        skew = (double)answer.u.beat_ack.clock_ns * 1e-9 - (asked + heard) / 2;
    }
    if (isinf(best)) return;
    const bool is_far = fabs(skew) > 1 + best;
    finding_add(d, is_far ? FINDING_LOOK : FINDING_OK,
                is_far
                    ? "synchronize both machines with a time server (chrony, systemd-timesyncd); "
                      "only logs and traces are affected"
                    : NULL,
                "the scheduler's clock is %.3f s %s this machine's (+/- %.3f s)", fabs(skew),
                skew < 0 ? "behind" : "ahead of", best / 2);
}

/* "tcp://HOST:PORT" */
static void dial_member(doctor *d, const wire_member *m, int *good, int *bad)
{
    char host[256], who[64];
    for (uint32_t i = 0; i < m->n_addresses; i++) {
        if (strncmp(m->address[i], "tcp://", 6) != 0) continue;
        snprintf(host, sizeof host, "%s", m->address[i] + 6);
        char *colon = strrchr(host, ':');
        if (colon == NULL) continue;
        *colon = '\0';
        snprintf(who, sizeof who, "%s %d", m->role == PEN_SERVER ? "server" : "worker", m->rank);
        ++*(dial(d, who, host, colon + 1, false) ? good : bad);
    }
}

static void look_at_members(doctor *d, control *link)
{
    int good = 0, bad = 0;
    pen_error why;
    wire_control question = {.kind = WIRE_STATUS_ASK}, answer;
    if (control_ask(link, &question, WIRE_STATUS, ASK_MS, &answer, &why) != PEN_OK) return;
    for (uint32_t i = 0; i < answer.u.status.n_members; i++) {
        const wire_member_status *m = &answer.u.status.member[i];
        if (strcmp(m->state, "active") == 0) dial_member(d, &m->member, &good, &bad);
    }
    if (bad == 0) finding_add(d, FINDING_OK, NULL, "all %d ports of its members are open", good);
}

static void look_at_scheduler(doctor *d)
{
    char address[300], port[24];
    control *link;
    pen_error why;
    if (d->master == NULL) {
        finding_add(d, FINDING_NOTE, NULL,
                    "not tested; --master-addr HOST tests the connection to it and to all members "
                    "of its job");
        return;
    }
    snprintf(port, sizeof port, "%" PRIu64, d->master_port);
    if (!dial(d, "the scheduler", d->master, port, true)) return;
    tcp_address_format(d->master, (uint32_t)d->master_port, address, sizeof address);
    if (control_open(address, WIRE_OBSERVER, ASK_MS, &link, &why) != PEN_OK) {
        finding_add(
            d, FINDING_BAD,
            "check that it is a scheduler of this version with the same secret (--secret-file)",
            "%.350s", why.text);
        return;
    }
    finding_add(d, FINDING_OK, NULL, "answers at %s:%s", d->master, port);
    look_at_clock(d, link);
    look_at_members(d, link);
    control_close(link, 0);
}

const doctor_check doctor_job[] = {
    {"job", "scheduler", look_at_scheduler,
     "connection to it, its clock, and connections to all members of its job"},
    {0},
};
