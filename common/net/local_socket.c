/* local_socket.c - makes, finds and removes Unix-domain sockets in the user's folder. */
#include "common/net/local_socket.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/hash.h"
#include "common/system/user_folder.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define ENDING ".sock"

enum {
    PREFIX     = 6, /* tcp:// */
    NAME_BYTES = 40,
    HOST_BYTES = 256,
    ROOM_BYTES = 4 << 20,
    LOCK_MS    = 2000, /* a stopped process must not stop all others */
    SWEEP_MAX  = 32    /* files that a listener looks at */
};

struct local_socket {
    int fd;
    char path[LOCAL_SOCKET_PATH_BYTES], folder[USER_FOLDER_BYTES];
    struct stat file;
};

/* ---- names ----------------------------------------------------------------------------------- */
typedef struct { /* a numeric address */
    int family;
    unsigned char bytes[sizeof(struct in6_addr)];
    unsigned port;
} numeric;

static bool parse(const char *address, numeric *n)
{
    char host[HOST_BYTES];
    const char *from = address + PREFIX, *colon;
    if (strncmp(address, "tcp://", PREFIX) != 0 || (colon = strrchr(from, ':')) == NULL)
        return false;
    size_t size = (size_t)(colon - from);
    if (size >= 2 && from[0] == '[' && from[size - 1] == ']') from++, size -= 2;
    if (size >= sizeof host || memchr(from, '%', size) != NULL) return false; /* of one link only */
    memcpy(host, from, size);
    host[size] = '\0';
    *n         = (numeric){.family = AF_INET, .port = (unsigned)strtoul(colon + 1, NULL, 10)};
    if (inet_pton(AF_INET, host, n->bytes) == 1) return true;
    n->family = AF_INET6;
    return inet_pton(AF_INET6, host, n->bytes) == 1;
}

static void name_of(const numeric *n, char name[NAME_BYTES])
{
    struct stat network;
    struct {
        numeric at;
        uint64_t device, network;
    } all = {.at = *n};
    if (stat("/proc/self/ns/net", &network) == 0) {
        all.device  = network.st_dev;
        all.network = network.st_ino;
    }
    snprintf(name, NAME_BYTES, "%u-%016llx" ENDING, n->port,
             (unsigned long long)hash_bytes(&all, sizeof all));
}

static bool fill(struct sockaddr_un *at, const char *folder, const char *name)
{
    *at         = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n = snprintf(at->sun_path, sizeof at->sun_path, "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof at->sun_path;
}

/* EPROTOTYPE: a process listens there.  ECONNREFUSED: a dead one left it.  Anything else proves neither, such as a lack
 * of descriptors. */
static int probe(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path) return ENAMETOOLONG;
    strcpy(at.sun_path, path);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    const int error = connect(fd, (const struct sockaddr *)&at, sizeof at) != 0 ? errno : 0;
    close(fd);
    return error;
}

bool local_socket_is_live(const char *path)
{
    return probe(path) == EPROTOTYPE;
}

/* ---- finding --------------------------------------------------------------------------------- */
static socklen_t address_of(const numeric *n, struct sockaddr_storage *a)
{
    *a = (struct sockaddr_storage){.ss_family = (sa_family_t)n->family};
    if (n->family == AF_INET) {
        ((struct sockaddr_in *)a)->sin_port = htons((uint16_t)n->port);
        memcpy(&((struct sockaddr_in *)a)->sin_addr, n->bytes, sizeof(struct in_addr));
        return sizeof(struct sockaddr_in);
    }
    ((struct sockaddr_in6 *)a)->sin6_port = htons((uint16_t)n->port);
    memcpy(&((struct sockaddr_in6 *)a)->sin6_addr, n->bytes, sizeof(struct in6_addr));
    return sizeof(struct sockaddr_in6);
}

/* An address of this host, where a listener at a wildcard listens too. */
static bool is_own(const numeric *n)
{
    struct sockaddr_storage a;
    numeric any          = *n;
    any.port             = 0;
    const socklen_t size = address_of(&any, &a);
    const int fd         = socket(n->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool is = bind(fd, (struct sockaddr *)&a, size) == 0;
    close(fd);
    return is;
}

static bool find_named(const numeric *n, char path[LOCAL_SOCKET_PATH_BYTES])
{
    char folder[USER_FOLDER_BYTES], name[NAME_BYTES];
    struct sockaddr_un at;
    name_of(n, name);
    for (int i = 0; user_folder_next(&i, folder);) {
        if (!fill(&at, folder, name) || !local_socket_is_live(at.sun_path)) continue;
        snprintf(path, LOCAL_SOCKET_PATH_BYTES, "%s", at.sun_path);
        return true;
    }
    return false;
}

bool local_socket_find(const char *address, char path[LOCAL_SOCKET_PATH_BYTES])
{
    numeric n;
    if (!parse(address, &n)) return false;
    if (find_named(&n, path)) return true;
    const numeric all4 = {.family = AF_INET, .port = n.port};
    const numeric all6 = {.family = AF_INET6, .port = n.port};
    return is_own(&n) &&
           ((n.family == AF_INET && find_named(&all4, path)) || find_named(&all6, path));
}

void local_socket_widen(int fd)
{
    struct sockaddr_un at;
    socklen_t size   = sizeof at;
    const int wanted = ROOM_BYTES;
    if (getsockname(fd, (struct sockaddr *)&at, &size) == 0 && at.sun_family == AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted); /* as much as is allowed */
}

bool local_socket_is_taken(const char *address)
{
    numeric n;
    struct sockaddr_storage a;
    if (!parse(address, &n)) return false;
    const socklen_t size = address_of(&n, &a);
    const int fd         = socket(n.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool is = bind(fd, (struct sockaddr *)&a, size) != 0 && errno == EADDRINUSE;
    close(fd);
    return is;
}

bool local_socket_is_of(const char *path, unsigned port)
{
    char begins[16];
    const char *name = strrchr(path, '/');
    snprintf(begins, sizeof begins, "/%u-", port);
    return name != NULL && strncmp(name, begins, strlen(begins)) == 0 &&
           strstr(name, ENDING) != NULL;
}

/* ---- changing the folder ---------------------------------------------------------------------- */
/* LOCK_SH to change one's own file, LOCK_EX to remove those of others.  The lock ends with the descriptor. */
static int lock_folder(const char *folder, int how)
{
    const uint64_t until = clock_ms(&clock_real) + LOCK_MS;
    const int fd         = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    while (fd >= 0 && flock(fd, how | LOCK_NB) != 0 && clock_ms(&clock_real) < until) usleep(1000);
    return fd;
}

static bool is_socket(const char *name)
{
    const size_t n = strlen(name), ending = strlen(ENDING);
    return n > ending && strcmp(name + n - ending, ENDING) == 0;
}

/* All files, or SWEEP_MAX from a random one on.  With more than that, a listener does so only sometimes: of those that
 * start together, about SWEEP_MAX do. */
static void sweep(const char *folder, int fd, bool all)
{
    const int again = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    DIR *dir        = again >= 0 ? fdopendir(again) : NULL;
    struct sockaddr_un at;
    uint32_t n = 0, i = 0, random[2] = {0}; /* independent: every file has its turn */
    if (dir == NULL && again >= 0) close(again);
    if (dir == NULL) return;
    rewinddir(dir);
    for (struct dirent *e; !all && (e = readdir(dir)) != NULL;) n += is_socket(e->d_name);
    if (n > SWEEP_MAX) (void)!getrandom(random, sizeof random, 0);
    const uint32_t begin = n > 0 ? random[0] % n : 0;
    const bool is_turn   = n <= SWEEP_MAX || random[1] % (n / SWEEP_MAX) == 0;
    rewinddir(dir);
    for (struct dirent *e; is_turn && (e = readdir(dir)) != NULL;) {
        if (!is_socket(e->d_name)) continue;
        const bool is_due = n <= SWEEP_MAX || (i++ + n - begin) % n < SWEEP_MAX;
        if (is_due && fill(&at, folder, e->d_name) && probe(at.sun_path) == ECONNREFUSED)
            unlinkat(fd, e->d_name, 0);
    }
    closedir(dir);
}

void local_socket_sweep(void)
{
    char folder[USER_FOLDER_BYTES];
    for (int i = 0; user_folder_next(&i, folder);) {
        const int fd = lock_folder(folder, LOCK_EX);
        if (fd < 0) continue;
        sweep(folder, fd, true);
        close(fd);
    }
}

/* ---- listening ------------------------------------------------------------------------------- */
static pen_status bind_in(local_socket *s, const struct sockaddr_un *at, const char *address,
                          int backlog, pen_error *why)
{
    const int found = probe(at->sun_path);
    if (found == EPROTOTYPE)
        return why_set(why, PEN_UNREACHABLE,
                       "port %s is in use (%.200s); choose another, or 0 for a free one",
                       strrchr(address, ':') + 1, address);
    if (found == ECONNREFUSED) unlink(at->sun_path);
    if (bind(s->fd, (const struct sockaddr *)at, sizeof *at) != 0 ||
        lstat(at->sun_path, &s->file) != 0 || listen(s->fd, backlog) != 0)
        return why_set(why, PEN_STORE, "cannot listen at %s: %s", at->sun_path, strerror(errno));
    snprintf(s->path, sizeof s->path, "%s", at->sun_path);
    return PEN_OK;
}

static pen_status listen_in(local_socket *s, const char *address, int backlog, pen_error *why)
{
    numeric n;
    char name[NAME_BYTES];
    struct sockaddr_un at;
    pen_status status = user_folder(s->folder, why);
    if (status != PEN_OK) return status;
    if (!parse(address, &n))
        return why_set(why, PEN_STORE, "%.200s is no address of this whole host", address);
    name_of(&n, name);
    if (!fill(&at, s->folder, name))
        return why_set(why, PEN_STORE,
                       "the name of the folder %s is too long for a socket in it (at most %zu "
                       "bytes); set XDG_RUNTIME_DIR to a shorter one",
                       s->folder, sizeof at.sun_path - strlen(name) - 2);
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0)
        return why_set(why, PEN_NO_MEMORY,
                       "cannot open a socket: %s; raise the limit of open files (ulimit -n)",
                       strerror(errno));
    const int folder = lock_folder(s->folder, LOCK_SH);
    status           = bind_in(s, &at, address, backlog, why);
    /* Others that start at the same time need not wait for each other: one of them sweeps. */
    if (folder >= 0 && status == PEN_OK && flock(folder, LOCK_EX | LOCK_NB) == 0)
        sweep(s->folder, folder, false);
    if (folder >= 0) close(folder);
    return status;
}

pen_status local_socket_listen(const char *address, int backlog, local_socket **made,
                               pen_error *why)
{
    local_socket *s = calloc(1, sizeof *s);
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to listen at %.200s", address);
    s->fd                   = -1;
    const pen_status status = listen_in(s, address, backlog, why);
    if (status == PEN_OK)
        *made = s;
    else
        local_socket_close(s);
    return status;
}

int local_socket_take(local_socket *s)
{
    const int fd = s->fd;
    s->fd        = -1;
    return fd;
}

void local_socket_forget(local_socket *s)
{
    if (s == NULL) return;
    if (s->fd >= 0) close(s->fd);
    free(s);
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && /* numbers are used again */
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Another process may have replaced the file by now. */
void local_socket_close(local_socket *s)
{
    struct stat st;
    if (s == NULL) return;
    const int folder = s->path[0] != '\0' ? lock_folder(s->folder, LOCK_SH) : -1;
    if (folder >= 0 && lstat(s->path, &st) == 0 && is_same(&st, &s->file)) unlink(s->path);
    if (folder >= 0) close(folder);
    local_socket_forget(s);
}

/* ---- the port -------------------------------------------------------------------------------- */
static int reserve(const struct addrinfo *a, char *bound, size_t size)
{
    struct sockaddr_storage at;
    socklen_t at_size = sizeof at;
    char host[INET6_ADDRSTRLEN + 16], port[8];
    const int one = 1, zero = 0; /* one: the port may have been ours a moment ago */
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &at_size) == 0 &&
        getnameinfo((struct sockaddr *)&at, at_size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &zero,
                   sizeof zero); /* nobody else may listen now */
        snprintf(bound, size, at.ss_family == AF_INET6 ? "tcp://[%s]:%s" : "tcp://%s:%s", host,
                 port);
        return fd;
    }
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int local_socket_reserve(const char *address, char *bound, size_t size)
{
    char host[HOST_BYTES];
    struct addrinfo hints = {
        .ai_flags = AI_PASSIVE, .ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    const char *from = address + PREFIX, *colon = strrchr(address, ':');
    size_t n = (size_t)(colon - from);
    if (n >= 2 && from[0] == '[' && from[n - 1] == ']') from++, n -= 2;
    errno = EINVAL;
    if (n >= sizeof host) return -1;
    memcpy(host, from, n);
    host[n] = '\0';
    const bool is_any =
        strcmp(host, "*") == 0; /* of IPv6, which takes IPv4 too, if there is IPv6 */
    if (is_any) hints.ai_family = AF_INET6;
    int rc = getaddrinfo(is_any ? NULL : host, colon + 1, &hints, &list);
    if (rc != 0) { /* as a dialler looks it up */
        hints.ai_family = is_any ? AF_INET : AF_INET6;
        rc              = getaddrinfo(is_any ? NULL : host, colon + 1, &hints, &list);
    }
    errno = EINVAL;
    if (rc != 0) return -1;
    const int fd    = reserve(list, bound, size);
    const int error = errno;
    freeaddrinfo(list);
    errno = error;
    return fd;
}
