/* command_doctor.c - `penstock doctor`: looks at this machine and at the way to a scheduler. */
#include "cli/command.h"
#include "cli/control.h"
#include "common/device/device.h"
#include "common/simd/simd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct {
    char master_addr[CONFIG_TEXT_BYTES];
    uint64_t master_port;
} doctor_settings;

static const config_row doctor_rows[] = {
    {"master_addr", CONFIG_TEXT, offsetof(doctor_settings, master_addr), "", 0, 0, NULL,
     "Host of the scheduler to try; empty: MASTER_ADDR, and without it none is tried."},
    {"master_port", CONFIG_U64, offsetof(doctor_settings, master_port), "0", 0, 65535, NULL,
     "Port of the scheduler to try; 0: MASTER_PORT, or 29500."},
    {0},
};

static int problems;

static void say(const char *what, bool good, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(const char *what, bool good, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%-4s  %-10s ", good ? "ok" : "look", what);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    problems += !good;
}

static void look_at_processor(void)
{
    char usable[128] = "";
    for (int i = 0; simd_all[i] != NULL; i++) {
        if (!simd_all[i]->usable()) continue;
        snprintf(usable + strlen(usable), sizeof usable - strlen(usable), "%s%s",
                 usable[0] == '\0' ? "" : ", ", simd_all[i]->name);
    }
    say("processor", true, "%ld cores; inner loops: %s", sysconf(_SC_NPROCESSORS_ONLN), usable);
}

static void look_at_devices(void)
{
    char note[256];
    for (int i = 0; device_all[i] != NULL; i++) {
        bool there = device_all[i]->available(note, sizeof note);
        if (strcmp(device_all[i]->name, "cpu") != 0)
            printf("%-4s  %-10s %s\n", there ? "ok" : "-", device_all[i]->name, note);
    }
}

static void look_at_limits(void)
{
    struct rlimit files;
    struct statvfs shm;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        say("files", files.rlim_cur >= 1024, "%llu open files allowed%s",
            (unsigned long long)files.rlim_cur,
            files.rlim_cur >= 1024 ? "" : "; a big job needs more: ulimit -n 65536");
    if (statvfs("/dev/shm", &shm) == 0)
        say("/dev/shm", true, "%.1f GB free", (double)shm.f_bavail * (double)shm.f_frsize / 1e9);
}

/* Debian maps the host's own name to 127.0.1.1, which other machines cannot reach. */
static void look_at_own_name(void)
{
    char host[256] = "", address[INET6_ADDRSTRLEN] = "";
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    gethostname(host, sizeof host - 1);
    int rc = getaddrinfo(host, NULL, &hints, &found);
    if (rc != 0) {
        say("own name", true, "'%s' does not resolve (%s); only matters when other machines join",
            host, gai_strerror(rc));
        return;
    }
    inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr, address,
              sizeof address);
    freeaddrinfo(found);
    if (strncmp(address, "127.", 4) == 0)
        printf("-     %-10s '%s' is %s on this machine: other machines need another name or "
               "address for it\n",
               "own name", host, address);
    else
        say("own name", true, "'%s' is %s", host, address);
}

/* Whether a TCP connection opens within two seconds. */
static int try_connect(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = 0;
    socklen_t size = sizeof error;
    if (fd < 0) return errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        error = errno;
    } else {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, 2000) <= 0)
            error = ETIMEDOUT;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    close(fd);
    return error;
}

static void look_at_scheduler(const char *host, uint64_t port)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    char text[32], address[300], numeric[256];
    snprintf(text, sizeof text, "%" PRIu64, port);
    int rc          = getaddrinfo(host, text, &hints, &found);
    hints.ai_family = AF_INET6; /* as the transport does: version 6 for what has no other address */
    if (rc != 0 && getaddrinfo(host, text, &hints, &found) == 0) rc = 0;
    if (rc != 0) {
        say("resolves", false, "'%s' does not resolve: %s", host, gai_strerror(rc));
        return;
    }
    getnameinfo(found->ai_addr, found->ai_addrlen, numeric, sizeof numeric, NULL, 0,
                NI_NUMERICHOST);
    say("resolves", true, "'%s' is %s", host, numeric);
    int error = try_connect(found);
    freeaddrinfo(found);
    if (error != 0) {
        say("dials", false, "%s:%s: %s%s", numeric, text, strerror(error),
            error == ECONNREFUSED ? " (nothing listens there)"
            : error == ETIMEDOUT  ? " (a firewall?)"
                                  : "");
        return;
    }
    say("dials", true, "port %s is open", text);
    snprintf(address, sizeof address, "tcp://%s:%s", host, text);
    control *link;
    pen_error why;
    if (control_open(address, WIRE_OBSERVER, 3000, &link, &why) != PEN_OK) {
        say("scheduler", false, "%s", why.text);
        return;
    }
    say("scheduler", true,
        "answers at %s:%s; data connections also need the ports its servers announce", host, text);
    control_close(link, 0);
}

int command_doctor(int argc, char **argv)
{
    doctor_settings s;
    int rest;
    int code =
        command_settings(doctor_rows, &s, argc, argv,
                         "usage: penstock doctor [--master-addr HOST] [--master-port PORT]", &rest);
    if (code >= 0) return code;
    if (rest < argc) return command_fail(EXIT_USAGE, "'%s' is one word too many", argv[rest]);
    const char *host = s.master_addr[0] != '\0' ? s.master_addr : config_env("MASTER_ADDR");
    const char *port = config_env("MASTER_PORT");
    if (s.master_port == 0) s.master_port = port != NULL ? strtoull(port, NULL, 10) : 29500;

    look_at_processor();
    look_at_devices();
    look_at_limits();
    look_at_own_name();
    if (host != NULL)
        look_at_scheduler(host, s.master_port);
    else
        printf("-     scheduler  none given: --master-addr HOST tries the way to one\n");
    return problems == 0 ? 0 : 1;
}
