/* control.c - a blocking client of the scheduler. */
#include "cli/job/control.h"

#include "cli/job/job_note.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/why.h"
#include "common/net/auth/auth.h"
#include "common/net/tcp_address.h"
#include "common/net/transport/transport.h"
#include "scheduler/core/scheduler_settings.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

struct control {
    auth *auth;
    transport *link;
    wire_arena *arena;
    wire_out out;
    uint64_t incarnation;
    char address[256];
    char job[64];     /* the scheduler's, after WELCOME */
    char refusal[96]; /* of the newest attempt; "": none */
};

enum {
    ARENA_BYTES_MAX = 64 << 20,
    HELLO_EVERY_MS  = 1000,
    CONNECT_LOOK_MS = 5,
    HEARTBEAT_MS    = 20000
};

typedef struct { /* the role of this process towards the scheduler */
    int32_t role, workers;
    const char *job;
    uint64_t nonce;
} caller;

static pen_status send_hello(control *c, const caller *who, pen_error *why)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    wire_control hello  = {.kind = WIRE_HELLO};
    hello.u.hello.role  = who->role;
    hello.u.hello.rank  = -1;
    hello.u.hello.nonce = who->nonce;
    hello.u.hello.host  = host;
    hello.u.hello.pid   = (int32_t)getpid();
    hello.u.hello.job   = who->job;
    hello.u.hello.store = "";

    hello.u.hello.local_rank = hello.u.hello.node = -1;
    hello.u.hello.local_world_size                = who->workers;
    return control_send(c, &hello, why);
}

static pen_status cannot_reach(const control *c, pen_error *why)
{
    const char *hint = auth_hint(c->auth, c->address);
    return why_set(why, PEN_UNREACHABLE,
                   "no Penstock scheduler answers at %s; check that the job is running and the "
                   "address is right%s%s",
                   c->address + strlen("tcp://"), hint != NULL ? ": " : "",
                   hint != NULL ? hint : "");
}

static pen_status join(control *c, caller *who, uint64_t timeout_ms, pen_error *why)
{
    uint64_t start = clock_ms(&clock_real), said = 0;
    if (getrandom(&who->nonce, sizeof who->nonce, 0) != sizeof who->nonce)
        who->nonce = start ^ (uint64_t)getpid();
    for (;;) {
        uint64_t now = clock_ms(&clock_real);
        if (now - start >= timeout_ms && c->refusal[0] != '\0')
            return why_set(why, PEN_DENIED,
                           "no scheduler at %s: %s; check --secret-file and --encryption",
                           c->address + strlen("tcp://"), c->refusal);
        if (now - start >= timeout_ms) return cannot_reach(c, why);
        if (said == 0 || now - said >= HELLO_EVERY_MS) {
            pen_status status = send_hello(c, who, why);
            if (status != PEN_OK && status != PEN_AGAIN) return status;
            if (status == PEN_OK) said = now;
        }
        wire_control answer;
        pen_status status = control_receive(c, said == 0 ? CONNECT_LOOK_MS : 100, &answer, why);
        if (status == PEN_OK && answer.kind == WIRE_WELCOME) {
            c->incarnation = answer.u.welcome.incarnation;
            snprintf(c->job, sizeof c->job, "%s", answer.u.welcome.job);
            return PEN_OK;
        }
        if (status == PEN_OK && answer.kind == WIRE_VERDICT) {
            if (why != NULL) *why = answer.u.verdict;
            return answer.u.verdict.status;
        }
    }
}

/* ---- keys of this process ------------------------------------------------------------------------- */

static struct {
    int encryption;
    char secret_file[CONFIG_TEXT_BYTES];
    bool has_no_local_sockets; /* the job */
    char transport[8];         /* of the job's note; "": of the environment */
} protection;

void control_protect(int encryption, const char *secret_file)
{
    protection.encryption = encryption;
    snprintf(protection.secret_file, sizeof protection.secret_file, "%s", secret_file);
}

/* 0, which is auto, if it is none of them. */
static int choice_of(const char *const *choices, const char *text)
{
    for (int i = 0; text != NULL && choices[i] != NULL; i++)
        if (strcmp(text, choices[i]) == 0) return i;
    return 0;
}

bool control_has_local_sockets(void)
{
    static scheduler_settings s;
    const char *given = config_env("PENSTOCK_LOCAL_SOCKETS");
    config_defaults(scheduler_settings_rows, &s);
    if (given != NULL) (void)config_set(scheduler_settings_rows, &s, "local_sockets", given, NULL);
    return s.local_sockets && !protection.has_no_local_sockets;
}

static pen_status open_auth(control *c, pen_error *why)
{
    const char *file       = config_env("PENSTOCK_SECRET_FILE");
    const auth_options who = {
        .encryption    = protection.encryption != AUTH_AUTO
                             ? protection.encryption
                             : choice_of(auth_choices, config_env("PENSTOCK_ENCRYPTION")),
        .transport     = choice_of(auth_transports, protection.transport[0] != '\0'
                                                        ? protection.transport
                                                        : config_env("PENSTOCK_TRANSPORT")),
        .secret_file   = protection.secret_file[0] != '\0' ? protection.secret_file : file,
        .local_sockets = control_has_local_sockets(),
        .role          = AUTH_TOOL,
        .rank          = -1,
        .scheduler     = c->address,
        .address       = {c->address}};
    return auth_open(&who, &c->auth, why);
}

static pen_status dial(control *c, pen_error *why)
{
    transport_options patient = {.heartbeat_ms = HEARTBEAT_MS};
    const pen_status status   = open_auth(c, why);
    if (status != PEN_OK) return status;
    auth_dial(c->auth, AUTH_SCHEDULER, &patient);
    return transport_dial(c->address, &patient, &c->link, why);
}

static pen_status open_as(const char *address, caller *who, uint64_t timeout_ms, control **out,
                          pen_error *why)
{
    control *c = calloc(1, sizeof *c);
    if (c == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to dial %s", address);
    snprintf(c->address, sizeof c->address, "%s", address);
    c->arena          = wire_arena_create(ARENA_BYTES_MAX);
    pen_status status = c->arena == NULL
                            ? why_set(why, PEN_NO_MEMORY, "no memory to dial %s", address)
                            : dial(c, why);
    if (status == PEN_OK) status = join(c, who, timeout_ms, why);
    if (status != PEN_OK) {
        control_close(c, 0);
        return status;
    }
    *out = c;
    return PEN_OK;
}

pen_status control_open(const char *address, int32_t role, uint64_t timeout_ms, control **out,
                        pen_error *why)
{
    return open_as(address, &(caller){.role = role, .job = ""}, timeout_ms, out, why);
}

pen_status control_join(const char *address, const char *job, int workers, uint64_t timeout_ms,
                        control **out, pen_error *why)
{
    caller who = {.role = WIRE_LAUNCHER, .workers = workers, .job = job};
    return open_as(address, &who, timeout_ms, out, why);
}

const char *control_job(const control *c)
{
    return c->job;
}

void control_close(control *c, uint32_t linger_ms)
{
    if (c == NULL) return;
    transport_close(c->link, linger_ms);
    auth_close(c->auth);
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
    return why_set(why, PEN_UNREACHABLE, "cannot reach the scheduler at %s",
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
            const bool is_about_keys =
                c->auth != NULL || strstr(event.note, ", and this side") != NULL;
            if (event.kind == TRANSPORT_REFUSED && is_about_keys)
                snprintf(c->refusal, sizeof c->refusal, "%s", event.note);
            if (event.kind != TRANSPORT_MESSAGE) continue;
            wire_arena_reset(c->arena);
            const pen_status status =
                wire_control_decode(event.head, event.head_size, c->arena, message, why);
            if (status == PEN_OK || status == PEN_NO_MEMORY) return status;
        }
        uint64_t spent = clock_ms(&clock_real) - start;
        if (spent >= timeout_ms) return PEN_AGAIN;
        struct pollfd fd = {.fd = transport_poll_fd(c->link), .events = POLLIN};
        uint64_t left    = timeout_ms - spent;
        poll(&fd, 1, left < 100 ? (int)left : 100);
    }
}

pen_status control_ask(control *c, wire_control *question, wire_control_kind kind,
                       uint64_t timeout_ms, wire_control *answer, pen_error *why)
{
    pen_status status = control_send(c, question, why);
    while (status == PEN_OK) {
        status = control_receive(c, timeout_ms, answer, why);
        if (status == PEN_OK && answer->kind == kind) return PEN_OK;
        if (status == PEN_OK && answer->kind == WIRE_VERDICT) {
            *why = answer->u.verdict;
            return answer->u.verdict.status;
        }
    }
    return status;
}

const char *control_address(const control *c)
{
    return c->address;
}

const char *control_protection(const control *c)
{
    return auth_describe(c->auth);
}

int control_fd(control *c)
{
    return transport_poll_fd(c->link);
}

/* The user's flags have precedence. */
static void adopt(const job_note *n)
{
    protection.has_no_local_sockets = !n->local_sockets;
    memcpy(protection.transport, n->transport, sizeof protection.transport);
    if (protection.encryption != AUTH_AUTO || protection.secret_file[0] != '\0') return;
    control_protect(choice_of(auth_choices, n->encryption), n->secret_file);
}

typedef struct {
    const char *job;  /* "": any */
    const char *port; /* ":4711"; NULL: any */
    int n_all, found; /* found: of this name */
    job_note last;
    char jobs[400];
} notes;

static void take_note(void *user, const job_note *one)
{
    notes *all     = user;
    const char *at = strrchr(one->address, ':');
    const size_t n = strlen(all->jobs);
    if (all->port != NULL && (at == NULL || strcmp(at, all->port) != 0)) return;
    all->n_all++;
    snprintf(all->jobs + n, sizeof all->jobs - n, "  %s at %s", one->job,
             one->address + strlen("tcp://"));
    if (all->job[0] != '\0' && strcmp(all->job, one->job) != 0) return;
    all->last = *one;
    all->found++;
}

static pen_status use_address(const job_note *n, char *address, size_t size)
{
    snprintf(address, size, "%s", n->address);
    return PEN_OK;
}

static pen_status only_job(const char *job, char *address, size_t size, pen_error *why)
{
    notes all               = {.job = job};
    const pen_status status = job_note_each(take_note, &all, why);
    if (status != PEN_OK) return status;
    if (all.found == 1) {
        adopt(&all.last);
        return use_address(&all.last, address, size);
    }
    if (all.n_all > 0 && all.found == 0)
        return why_set(why, PEN_NOT_FOUND, "no job '%s' is running here; there is:%s", job,
                       all.jobs);
    if (all.found == 0)
        return why_set(why, PEN_NOT_FOUND,
                       "no job of `penstock run` is running here; set --master-addr and "
                       "--master-port");
    return why_set(why, PEN_INVALID_ARGUMENT, "%d jobs are running; choose one with --job:%s",
                   all.found, all.jobs);
}

static pen_status find_job(const char *job, const char *master_addr, uint64_t master_port,
                           char *address, size_t size, pen_error *why)
{
    char port[24];
    notes all = {.job = job, .port = port};
    if (master_port == 0) return only_job(job, address, size, why);
    snprintf(port, sizeof port, ":%" PRIu64, master_port);
    if (job_note_each(take_note, &all, NULL) == PEN_OK && all.found == 1) {
        adopt(&all.last);
        if (master_addr[0] == '\0') return use_address(&all.last, address, size);
    }
    tcp_address_format(master_addr[0] == '\0' ? "127.0.0.1" : master_addr, (uint32_t)master_port,
                       address, size);
    return PEN_OK;
}

pen_status control_open_job(const char *job, const char *master_addr, uint64_t master_port,
                            uint64_t timeout_ms, control **c, pen_error *why)
{
    char address[400];
    const pen_status status = find_job(job, master_addr, master_port, address, sizeof address, why);
    return status == PEN_OK ? control_open(address, WIRE_OBSERVER, timeout_ms, c, why) : status;
}

bool control_note(const control *c, job_note *note)
{
    notes all = {.job = "", .port = strrchr(c->address, ':')};
    if (all.port == NULL || job_note_each(take_note, &all, NULL) != PEN_OK || all.found != 1)
        return false;
    *note = all.last;
    return true;
}
