/* network.c - host name, interfaces, ports and socket buffers. */
#include "cli/doctor/doctor.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Debian maps the host name to 127.0.1.1, which other machines cannot reach.  Penstock does not announce host names, but
 * users pass them as --master-addr. */
static void look_at_name(doctor *d)
{
    char host[256] = "", address[INET6_ADDRSTRLEN] = "";
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    gethostname(host, sizeof host - 1);
    const int rc = getaddrinfo(host, NULL, &hints, &found);
    if (rc != 0) {
        finding_add(d, FINDING_NOTE,
                    "on machine 0, set --master-addr to its address, or add the name to DNS or "
                    "/etc/hosts",
                    "'%s' does not resolve (%s)", host, gai_strerror(rc));
        return;
    }
    inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr, address,
              sizeof address);
    freeaddrinfo(found);
    const bool is_local = strncmp(address, "127.", 4) == 0;
    finding_add(
        d, is_local ? FINDING_NOTE : FINDING_OK,
        is_local ? "on machine 0, set --master-addr to another name or the address of an interface"
                 : NULL,
        "'%s' is %s%s", host, address, is_local ? ", which other machines cannot reach" : "");
}

/* Interfaces between machines; a packet larger than the MTU of the path may be lost silently. */
static void look_at_interfaces(doctor *d)
{
    char path[1024], file[512], state[32], list[256] = "";
    int64_t least = INT64_MAX, most = 0;
    snprintf(path, sizeof path, "%s/sys/class/net", d->root);
    DIR *folder = opendir(path);
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;) {
        if (e->d_name[0] == '.' || strcmp(e->d_name, "lo") == 0) continue;
        snprintf(file, sizeof file, "/sys/class/net/%.200s/operstate", e->d_name);
        if (!doctor_line(d, file, state, sizeof state) || strcmp(state, "down") == 0) continue;
        snprintf(file, sizeof file, "/sys/class/net/%.200s/mtu", e->d_name);
        const int64_t mtu = doctor_number(d, file);
        if (mtu <= 0) continue;
        if (mtu < least) least = mtu;
        if (mtu > most) most = mtu;
        const size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%.15s %" PRId64, at > 0 ? ", " : "", e->d_name,
                 mtu);
    }
    if (folder != NULL) closedir(folder);
    if (most == 0)
        finding_add(d, FINDING_NOTE, NULL, "only loopback is up: jobs are limited to this machine");
    else if (least != most)
        finding_add(d, FINDING_NOTE,
                    "choose the interface with --host ADDRESS, and use one MTU on all machines of "
                    "that network",
                    "interfaces have different MTUs (%s)", list);
    else
        finding_add(d, FINDING_OK, NULL, "up, with MTU: %s", list);
}

/* The default route: the first line with destination 0. */
static void look_at_route(doctor *d)
{
    char path[1024], line[256], name[32];
    unsigned destination;
    snprintf(path, sizeof path, "%s/proc/net/route", d->root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%31s %x", name, &destination) != 2 || destination != 0) continue;
        finding_add(d, FINDING_OK, NULL, "default route through %s", name);
        fclose(file);
        return;
    }
    if (file != NULL) fclose(file);
    finding_add(d, FINDING_NOTE, NULL,
                "no default route: only machines on directly connected networks are reachable");
}

static void look_at_ports(doctor *d)
{
    char line[64];
    long low, high;
    if (!doctor_line(d, "/proc/sys/net/ipv4/ip_local_port_range", line, sizeof line) ||
        sscanf(line, "%ld %ld", &low, &high) != 2)
        return;
    const bool is_narrow = high - low < 4096, is_inside = low <= 29500 && high >= 29500;
    finding_add(d, is_narrow ? FINDING_LOOK : FINDING_OK,
                is_narrow ? "sysctl net.ipv4.ip_local_port_range='32768 60999'" : NULL,
                "servers and workers use free ports from %ld to %ld; a firewall must allow these%s",
                low, high,
                is_inside ? "; another process may take the scheduler's port 29500"
                          : " and the scheduler's port 29500");
}

static void look_at_port_of_scheduler(doctor *d)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    struct sockaddr_in any = {
        .sin_family = AF_INET, .sin_port = htons(29500), .sin_addr.s_addr = htonl(INADDR_ANY)};
    if (fd < 0 || d->master != NULL) { /* with a scheduler given, its own port matters */
        if (fd >= 0) close(fd);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const bool is_free = bind(fd, (struct sockaddr *)(void *)&any, sizeof any) == 0;
    close(fd);
    finding_add(d, is_free ? FINDING_OK : FINDING_NOTE,
                is_free ? NULL : "choose another --master-port",
                is_free ? "29500, the scheduler's default port, is free"
                        : "29500, the scheduler's default port, is in use");
}

static void look_at_buffers(doctor *d)
{
    const int64_t most = doctor_number(d, "/proc/sys/net/core/wmem_max");
    char tcp[128];
    int64_t least, usual, limit;
    if (!doctor_line(d, "/proc/sys/net/ipv4/tcp_wmem", tcp, sizeof tcp) ||
        sscanf(tcp, "%" SCNd64 " %" SCNd64 " %" SCNd64, &least, &usual, &limit) != 3)
        return;
    const bool is_small = limit < 4 << 20;
    finding_add(
        d, is_small ? FINDING_NOTE : FINDING_OK,
        is_small
            ? "sysctl net.ipv4.tcp_wmem='4096 16384 16777216', for networks of 10 Gbit/s or more"
            : NULL,
        "a TCP connection may buffer %" PRId64 " bytes (wmem_max %" PRId64 ")", limit, most);
}

const doctor_check doctor_network[] = {
    {"network", "own name", look_at_name, "whether other machines can reach this one by its name"},
    {"network", "interfaces", look_at_interfaces, "active interfaces and their MTU"},
    {"network", "route", look_at_route, "default route"},
    {"network", "ports", look_at_ports, "ports of servers and workers"},
    {"network", "scheduler port", look_at_port_of_scheduler, "whether 29500 is free"},
    {"network", "buffers", look_at_buffers, "TCP buffers"},
    {0},
};
