/* control.c - a blocking client of the scheduler. */
#include "cli/control.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/transport/transport.h"
#include "common/why.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct control {
    transport *link;
    wire_arena *arena;
    wire_out out;
    uint64_t incarnation;
    char address[256];
};

enum {
    ARENA_BYTES_MAX = 64 << 20,
    HELLO_EVERY_MS  = 1000,
    CONNECT_LOOK_MS = 5,
    HEARTBEAT_MS    = 20000
};

static pen_status say_hello(control *c, int32_t role, uint64_t nonce, pen_error *why)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    wire_control hello  = {.kind = WIRE_HELLO};
    hello.u.hello.role  = role;
    hello.u.hello.rank  = -1;
    hello.u.hello.nonce = nonce;
    hello.u.hello.host  = host;
    hello.u.hello.pid   = (int32_t)getpid();
    hello.u.hello.job   = "";
    hello.u.hello.store = "";
    return control_send(c, &hello, why);
}

static pen_status join(control *c, int32_t role, uint64_t timeout_ms, pen_error *why)
{
    uint64_t nonce, start = clock_ms(&clock_real), said = 0;
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) nonce = start ^ (uint64_t)getpid();
    for (;;) {
        uint64_t now = clock_ms(&clock_real);
        if (now - start >= timeout_ms)
            return why_set(why, PEN_UNREACHABLE,
                           "nothing answers as a Penstock scheduler at %s; is the job running, and "
                           "the address right?",
                           c->address + strlen("tcp://"));
        if (said == 0 || now - said >= HELLO_EVERY_MS) {
            pen_status status = say_hello(c, role, nonce, why);
            if (status != PEN_OK && status != PEN_AGAIN) return status;
            if (status == PEN_OK) said = now;
        }
        wire_control answer;
        pen_status status = control_receive(c, said == 0 ? CONNECT_LOOK_MS : 100, &answer, why);
        if (status == PEN_OK && answer.kind == WIRE_WELCOME) {
            c->incarnation = answer.u.welcome.incarnation;
            return PEN_OK;
        }
        if (status == PEN_OK && answer.kind == WIRE_VERDICT) {
            if (why != NULL) *why = answer.u.verdict;
            return answer.u.verdict.status;
        }
    }
}

pen_status control_open(const char *address, int32_t role, uint64_t timeout_ms, control **out,
                        pen_error *why)
{
    control *c = calloc(1, sizeof *c);
    if (c == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to dial %s", address);
    snprintf(c->address, sizeof c->address, "%s", address);
    c->arena                        = wire_arena_create(ARENA_BYTES_MAX);
    const transport_options patient = {.heartbeat_ms = HEARTBEAT_MS};
    pen_status status               = c->arena == NULL
                                          ? why_set(why, PEN_NO_MEMORY, "no memory to dial %s", address)
                                          : transport_dial(address, &patient, &c->link, why);
    if (status == PEN_OK) status = join(c, role, timeout_ms, why);
    if (status != PEN_OK) {
        control_close(c, 0);
        return status;
    }
    *out = c;
    return PEN_OK;
}

void control_close(control *c, uint32_t linger_ms)
{
    if (c == NULL) return;
    transport_close(c->link, linger_ms);
    wire_arena_destroy(c->arena);
    wire_out_free(&c->out);
    free(c);
}

pen_status control_send(control *c, wire_control *message, pen_error *why)
{
    message->from     = c->incarnation;
    pen_status status = wire_control_encode(message, &c->out, why);
    if (status != PEN_OK) return status;
    status = transport_send(c->link, 0, c->out.data, c->out.size, NULL);
    if (status == PEN_OK || status == PEN_AGAIN) return status;
    return why_set(why, PEN_UNREACHABLE, "the scheduler at %s cannot be reached",
                   c->address + strlen("tcp://"));
}

pen_status control_receive(control *c, uint64_t timeout_ms, wire_control *message, pen_error *why)
{
    uint64_t start = clock_ms(&clock_real);
    for (;;) {
        transport_event event;
        while (transport_recv(c->link, &event) == PEN_OK) {
            buf_release(event.body);
            if (event.kind == TRANSPORT_DOWN && c->incarnation != 0)
                return why_set(why, PEN_UNREACHABLE, "the scheduler at %s is gone",
                               c->address + strlen("tcp://"));
            if (event.kind != TRANSPORT_MESSAGE) continue;
            wire_arena_reset(c->arena);
            if (wire_control_decode(event.head, event.head_size, c->arena, message, why) == PEN_OK)
                return PEN_OK;
        }
        uint64_t spent = clock_ms(&clock_real) - start;
        if (spent >= timeout_ms) return PEN_AGAIN;
        struct pollfd fd = {.fd = transport_poll_fd(c->link), .events = POLLIN};
        uint64_t left    = timeout_ms - spent;
        poll(&fd, 1, left < 100 ? (int)left : 100);
    }
}

int control_fd(control *c)
{
    return transport_poll_fd(c->link);
}

pen_status control_jobs_folder(char *path, size_t size, pen_error *why)
{
    const char *runtime = config_env("XDG_RUNTIME_DIR");
    if (runtime != NULL && access(runtime, W_OK) == 0)
        snprintf(path, size, "%s/penstock", runtime);
    else
        snprintf(path, size, "/tmp/penstock-%u", (unsigned)getuid());
    struct stat st;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return why_set(why, PEN_STORE, "cannot make the folder %s: %m", path);
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != getuid())
        return why_set(why, PEN_STORE,
                       "%s is not a folder of yours; remove it, or set XDG_RUNTIME_DIR", path);
    return PEN_OK;
}

/* Notes whose launcher has ended in the hard way are removed on sight. */
static bool read_note(const char *path, char *address, size_t size)
{
    json_t *note     = json_load_file(path, 0, NULL);
    const char *text = json_string_value(json_object_get(note, "address"));
    pid_t pid        = (pid_t)json_integer_value(json_object_get(note, "pid"));
    bool alive       = text != NULL && pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
    if (alive)
        snprintf(address, size, "%s", text);
    else
        unlink(path);
    json_decref(note);
    return alive;
}

static pen_status only_job(char *address, size_t size, pen_error *why)
{
    char folder[256], path[600], jobs[400] = "";
    int found         = 0;
    pen_status status = control_jobs_folder(folder, sizeof folder, why);
    if (status != PEN_OK) return status;
    DIR *dir = opendir(folder);
    if (dir == NULL) return why_set(why, PEN_STORE, "cannot read %s: %m", folder);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char one[256];
        if (strstr(entry->d_name, ".json") == NULL) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (!read_note(path, one, sizeof one)) continue;
        snprintf(jobs + strlen(jobs), sizeof jobs - strlen(jobs), "  %.*s at %s",
                 (int)strlen(entry->d_name) - 5, entry->d_name, one + strlen("tcp://"));
        snprintf(address, size, "%s", one);
        found++;
    }
    closedir(dir);
    if (found == 1) return PEN_OK;
    if (found == 0)
        return why_set(why, PEN_NOT_FOUND,
                       "no job of `penstock run` is running here; name one with --master-addr and "
                       "--master-port");
    return why_set(why, PEN_INVALID_ARGUMENT, "%d jobs are running; choose with --master-port:%s",
                   found, jobs);
}

pen_status control_find_job(const char *master_addr, uint64_t master_port, char *address,
                            size_t size, pen_error *why)
{
    if (master_port == 0) return only_job(address, size, why);
    snprintf(address, size, "tcp://%s:%" PRIu64, master_addr[0] == '\0' ? "127.0.0.1" : master_addr,
             master_port);
    return PEN_OK;
}
