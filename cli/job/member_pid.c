/* member_pid.c - reads the system's tables of connections: they and a process's descriptors name sockets by inode. */
#include "cli/job/member_pid.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/net/local_socket.h"
#include "proto/status_json.h"

#include <dirent.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* ---- connected? ------------------------------------------------------------------------------ */
typedef struct {
    unsigned long *at;
    size_t n;
} inodes;

static bool add_inode(inodes *all, unsigned long inode)
{
    if (!VEC_MORE(all->at, all->n)) return false;
    all->at[all->n++] = inode;
    return true;
}

/* Sockets in the process's network namespace whose remote port is this one. */
static void read_table(pid_t pid, const char *name, uint16_t port, inodes *all)
{
    char path[64], line[512];
    unsigned remote;
    unsigned long inode;
    snprintf(path, sizeof path, "/proc/%d/net/%s", (int)pid, name);
    FILE *table = fopen(path, "re");
    if (table == NULL) return;
    while (fgets(line, sizeof line, table) != NULL)
        if (sscanf(line, " %*s %*s %*[^:]:%x %*s %*s %*s %*s %*s %*s %lu", &remote, &inode) == 2 &&
            remote == port && inode != 0 && !add_inode(all, inode))
            break;
    fclose(table);
}

/* The other ends of connections at the local socket of this port; of this network namespace. */
static void take_local(const struct nlmsghdr *h, uint16_t port, inodes *all)
{
    const struct unix_diag_msg *m      = NLMSG_DATA(h);
    char path[LOCAL_SOCKET_PATH_BYTES] = "";
    uint32_t peer                      = 0;
    int left                           = (int)h->nlmsg_len - NLMSG_LENGTH(sizeof *m);
    for (const struct rtattr *a = (const struct rtattr *)(m + 1); RTA_OK(a, left);
         a                      = RTA_NEXT(a, left)) {
        if (a->rta_type == UNIX_DIAG_NAME && RTA_PAYLOAD(a) < sizeof path)
            memcpy(path, RTA_DATA(a), RTA_PAYLOAD(a));
        if (a->rta_type == UNIX_DIAG_PEER && RTA_PAYLOAD(a) == sizeof peer)
            memcpy(&peer, RTA_DATA(a), sizeof peer);
    }
    if (peer != 0 && local_socket_is_of(path, port)) (void)add_inode(all, peer);
}

static void read_local(uint16_t port, inodes *all)
{
    struct {
        struct nlmsghdr head;
        struct unix_diag_req body;
    } ask                         = {{.nlmsg_len   = sizeof ask,
                                      .nlmsg_type  = SOCK_DIAG_BY_FAMILY,
                                      .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
                                     {.sdiag_family = AF_UNIX,
                                      .udiag_states = UINT32_MAX,
                                      .udiag_show   = UDIAG_SHOW_NAME | UDIAG_SHOW_PEER}};
    const struct timeval patience = {.tv_sec = 2};
    static _Alignas(struct nlmsghdr) char answer[32 << 10];
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    bool is_over = fd < 0 ||
                   setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
                   send(fd, &ask, sizeof ask, 0) != (ssize_t)sizeof ask;
    while (!is_over) {
        ssize_t n = recv(fd, answer, sizeof answer, 0);
        is_over   = n <= 0;
        for (struct nlmsghdr *h = (struct nlmsghdr *)answer; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
            is_over |= h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR;
            if (!is_over) take_local(h, port, all);
        }
    }
    if (fd >= 0) close(fd);
}

static bool holds(const inodes *all, unsigned long inode)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->at[i] == inode) return true;
    return false;
}

bool process_is_connected(pid_t pid, uint16_t port)
{
    char path[64], target[64];
    unsigned long inode;
    inodes all = {0};
    bool is_it = false;
    read_table(pid, "tcp", port, &all);
    read_table(pid, "tcp6", port, &all);
    read_local(port, &all);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = all.n > 0 ? opendir(path) : NULL;
    for (struct dirent *e; dir != NULL && !is_it && (e = readdir(dir)) != NULL;) {
        const ssize_t n       = readlinkat(dirfd(dir), e->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        is_it                 = sscanf(target, "socket:[%lu]", &inode) == 1 && holds(&all, inode);
    }
    if (dir != NULL) closedir(dir);
    free(all.at);
    return is_it;
}

/* ---- choosing the process ------------------------------------------------------------------ */
static pen_status read_words(const char *role, const char *rank, int32_t *number, pen_error *why)
{
    char *end    = NULL;
    const long n = rank != NULL ? strtol(rank, &end, 10) : -1;
    if ((strcmp(role, "worker") != 0 && strcmp(role, "server") != 0) || rank == NULL ||
        end == rank || *end != '\0' || n < 0 || n > INT32_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "--pid needs worker RANK, server RANK or scheduler, for example: penstock "
                       "status --pid server 0");
    *number = (int32_t)n;
    return PEN_OK;
}

static const wire_member_status *find_member(const wire_control *status, const char *role,
                                             int32_t rank, uint32_t *n)
{
    const wire_member_status *found = NULL;
    *n                              = 0;
    for (uint32_t i = 0; i < status->u.status.n_members; i++) {
        const wire_member_status *m = &status->u.status.member[i];
        if (strcmp(status_role_name(m->member.role), role) != 0) continue;
        ++*n;
        if (m->member.rank == rank) found = m;
    }
    return found;
}

static bool has_process(const wire_member_status *m)
{
    return m->member.pid > 0 && strcmp(m->state, "absent") != 0 && strcmp(m->state, "dead") != 0 &&
           strcmp(m->state, "left") != 0;
}

pen_status member_pid(const wire_control *status, const char *role, const char *rank, uint16_t port,
                      pid_t *pid, pen_error *why)
{
    char host[256] = "";
    int32_t number = -1;
    uint32_t n;
    if (read_words(role, rank, &number, why) != PEN_OK) return PEN_INVALID_ARGUMENT;
    const wire_member_status *m = find_member(status, role, number, &n);
    if (m == NULL)
        return why_set(why, PEN_NOT_FOUND, "job '%s' has no %s %d; it has %u", status->u.status.job,
                       role, (int)number, n);
    if (!has_process(m))
        return why_set(why, PEN_NOT_FOUND, "%s %d of job '%s' has no process now; its state is %s",
                       role, (int)number, status->u.status.job, m->state);
    gethostname(host, sizeof host - 1);
    if (strcmp(host, m->member.host) != 0)
        return why_set(why, PEN_NOT_FOUND,
                       "%s %d is process %d on host %s, but this host is %s; run the command there",
                       role, (int)number, (int)m->member.pid, m->member.host, host);
    if (!process_is_connected((pid_t)m->member.pid, port))
        return why_set(why, PEN_NOT_FOUND,
                       "%s %d is process %d on a host named %s, but no process with that id here "
                       "is connected to the scheduler; run the command on its host and in its "
                       "container",
                       role, (int)number, (int)m->member.pid, host);
    *pid = (pid_t)m->member.pid;
    return PEN_OK;
}
