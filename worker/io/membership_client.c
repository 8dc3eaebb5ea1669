/* membership_client.c - joining, beating and leaving. */
#include "worker/io/membership_client.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/system/machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 5000, MISSING_MAX = sizeof((pen_error){0}.missing) / sizeof(int32_t) };

typedef enum { JOINING, REGISTERING, TRAINING } phase;

struct membership_client {
    membership member;
    membership_client_setup setup;
    membership_client_actions act;
    void *user;
    char host[256], job[64], machine[MACHINE_BYTES];
    phase phase;
    bool has_plan, is_ready;
    const wire_model *model;
    uint64_t *lost_incarnation; /* [n_lost] by rank: the newest that died; 0: none */
    size_t n_lost;
    uint32_t n_ranks; /* most ranks that the job may have */
    uint64_t snapshots;
    int32_t local_rank, node;      /* of WELCOME */
    const wire_control *committed; /* during the callback */
};

/* ---- callbacks of the membership ---------------------------------------------------------------- */
static void member_sends(void *user, const wire_control *message)
{
    membership_client *self = user;
    self->act.send(self->user, message);
}

static void member_logs(void *user, int level, const char *line)
{
    membership_client *self = user;
    self->act.log(self->user, level, line);
}

static void fill_hello(void *user, wire_control *c)
{
    const membership_client *self = user;
    c->u.hello.role               = PEN_WORKER;
    c->u.hello.rank               = self->setup.rank;
    c->u.hello.world_size         = self->setup.world_size;
    c->u.hello.servers            = self->setup.servers;
    c->u.hello.pid                = self->setup.pid;
    c->u.hello.local_rank         = self->setup.local_rank;
    c->u.hello.node               = self->setup.node;
    c->u.hello.nonce              = self->setup.nonce;
    c->u.hello.number             = self->setup.number;
    c->u.hello.holds_state        = self->setup.holds_state;
    c->u.hello.machine            = self->machine;
    c->u.hello.host               = self->host;
    c->u.hello.job                = self->job;
    c->u.hello.store              = "";
    c->u.hello.n_addresses        = self->setup.n_addresses;
    c->u.hello.address            = self->setup.address;

    c->u.hello.local_world_size = self->setup.local_world_size;
}

static void fill_beat(void *user, wire_control *beat)
{
    membership_client *self = user;
    self->act.fill_beat(self->user, beat);
}

static void renew(void *user)
{
    membership_client *self = user;
    if (self->act.renew != NULL) self->act.renew(self->user);
}

static void waiting(void *user, uint64_t left_ms)
{
    membership_client *self = user;
    char line[512];
    snprintf(line, sizeof line,
             "no answer from a Penstock scheduler at %s yet; trying for %.0f s more",
             self->member.scheduler, (double)left_ms / 1000);
    self->act.log(self->user, LOG_WARNING, line);
}

static void unanswered(void *user, pen_error *why)
{
    membership_client *self = user;
    why_set(why, PEN_UNREACHABLE, "nothing answers as a Penstock scheduler at %s %s",
            self->member.scheduler, self->act.describe_silence(self->user));
}

static void on_welcome(void *user, const wire_control *c, bool is_first)
{
    membership_client *self = user;
    self->local_rank        = c->u.welcome.local_rank;
    self->node              = c->u.welcome.node;
    (void)is_first;
}

static void send_ready(membership_client *self)
{
    const wire_control c = {.kind = WIRE_READY, .u.ready = {.restored = -1}};
    membership_send(&self->member, &c);
}

/* Sends unanswered messages again. */
static void resend(void *user, bool is_anew)
{
    membership_client *self = user;
    if (self->phase == REGISTERING && (!self->has_plan || is_anew)) {
        const wire_control c = {.kind = WIRE_REGISTER, .u.register_ = *self->model};
        membership_send(&self->member, &c);
    }
    if (self->phase == REGISTERING && self->is_ready) send_ready(self);
}

static void on_epoch(void *user, const wire_control *c)
{
    membership_client *self = user;
    self->act.epoch(self->user, c);
}

static void on_seal(void *user, uint64_t term, uint64_t epoch)
{
    membership_client *self         = user;
    const wire_sealed_report report = {
        .role = WIRE_PRIMARY, .step = self->act.seal(self->user), .clock = -1};
    /* Without memory it reports nothing, and the scheduler gives this member up. */
    (void)membership_sealed(&self->member, term, epoch, &report, 1);
}

static void left(void *user)
{
    membership_client *self = user;
    self->act.left(self->user);
}

static void failed(void *user, const pen_error *why)
{
    membership_client *self = user;
    self->act.failed(self->user, why);
}

static void begin_membership(membership_client *self, uint64_t now_ms)
{
    static const membership_actions actions = {.send       = member_sends,
                                               .log        = member_logs,
                                               .fill_hello = fill_hello,
                                               .fill_beat  = fill_beat,
                                               .renew      = renew,
                                               .waiting    = waiting,
                                               .unanswered = unanswered,
                                               .welcome    = on_welcome,
                                               .resend     = resend,
                                               .epoch      = on_epoch,
                                               .seal       = on_seal,
                                               .left       = left,
                                               .failed     = failed};
    const membership_client_setup *o        = &self->setup;
    const membership_setup setup            = {.lease_ms = o->lease_ms,
                                               .answer_ms =
                                        o->answer_ms > 0 ? o->answer_ms : o->init_timeout_ms,
                                               .patience_ms    = PATIENCE_MS,
                                               .join_ms        = o->init_timeout_ms,
                                               .down_ms        = MEMBERSHIP_DOWN_MS,
                                               .beat_ms_max    = o->beat_ms_max,
                                               .waits_to_leave = true,
                                               .n_parts        = o->holds_state ? 1 : 0,
                                               .scheduler      = o->scheduler,
                                               .self           = "this worker"};
    membership_init(&self->member, &setup, &actions, self, now_ms);
}

/* ---- create and destroy ---------------------------------------------------------------------- */
membership_client *membership_client_create(const membership_client_setup *setup,
                                            const membership_client_actions *actions, void *user,
                                            uint64_t now_ms, pen_error *why)
{
    membership_client *self = calloc(1, sizeof *self);
    if (self == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for the connection to the scheduler");
        return NULL;
    }
    self->setup = *setup;
    self->act   = *actions;
    self->user  = user;
    snprintf(self->host, sizeof self->host, "%s", setup->host);
    snprintf(self->job, sizeof self->job, "%s", setup->job);
    snprintf(self->machine, sizeof self->machine, "%s",
             setup->machine != NULL ? setup->machine : "");
    self->local_rank = self->node = -1;
    self->n_ranks                 = setup->world_size > 0 ? (uint32_t)setup->world_size : 1;
    begin_membership(self, now_ms);
    return self;
}

void membership_client_destroy(membership_client *self)
{
    if (self == NULL) return;
    membership_fini(&self->member);
    free(self->lost_incarnation);
    free(self);
}

void membership_client_place(const membership_client *self, int32_t *local_rank, int32_t *node)
{
    *local_rank = self->local_rank;
    *node       = self->node;
}

membership *membership_client_core(membership_client *self)
{
    return &self->member;
}

/* ---- receiving ------------------------------------------------------------------------------- */
static void on_plan(membership_client *self, const wire_control *c)
{
    if (self->phase != REGISTERING || self->has_plan) return;
    self->has_plan = true;
    if (c->u.plan.ranks_max > self->n_ranks && c->u.plan.ranks_max < WIRE_ITEMS_MAX)
        self->n_ranks = c->u.plan.ranks_max;
    self->act.plan(self->user, c);
}

static void on_committed(membership_client *self, const wire_control *c, uint64_t now_ms)
{
    if (self->phase != REGISTERING || !self->has_plan) return;
    self->phase     = TRAINING;
    self->model     = NULL;
    self->committed = c;
    self->act.committed(self->user, c->u.committed.step, c->u.committed.applied);
    self->committed = NULL;
    membership_begun(&self->member, now_ms);
}

/* True once per incarnation of a rank: its replacement may die as well. */
static bool is_news(membership_client *self, int32_t rank, uint64_t incarnation)
{
    if (incarnation == 0) incarnation = 1; /* an older scheduler does not send it */
    if (rank < 0 || (uint32_t)rank >= self->n_ranks) return false;
    if (!VEC_ROOM(self->lost_incarnation, self->n_lost, (size_t)rank + 1))
        return true; /* the loss may be reported twice */
    const bool is_new            = self->lost_incarnation[rank] != incarnation;
    self->lost_incarnation[rank] = incarnation;
    return is_new;
}

static void on_lost(membership_client *self, const wire_control *c)
{
    const int32_t rank = c->u.lost.rank;
    if (!is_news(self, rank, c->u.lost.incarnation)) return;
    self->act.log(self->user, LOG_INFO, c->u.lost.why.text);
    if (self->act.lost != NULL) self->act.lost(self->user, rank, &c->u.lost.why);
}

static void on_prove(membership_client *self, const wire_control *c)
{
    const uint32_t n = c->u.prove.n_workers;
    int32_t *rank    = calloc(n + 1, sizeof *rank);
    uint64_t *number = calloc(n + 1, sizeof *number);
    wire_control m   = {.kind = WIRE_PROVEN};
    if (rank != NULL && number != NULL && self->act.prove != NULL)
        m.u.proven.n_ranks = self->act.prove(self->user, c->u.prove.worker, n, rank, number);
    m.u.proven.round     = c->u.prove.round;
    m.u.proven.n_numbers = m.u.proven.n_ranks;
    m.u.proven.rank      = rank;
    m.u.proven.number    = number;
    membership_client_send(self, &m);
    free(rank);
    free(number);
}

static void on_record_ask(membership_client *self, const wire_control *c)
{
    if (self->act.record_please != NULL)
        self->act.record_please(self->user, c->u.record_ask.id, c->u.record_ask.asker);
}

static void on_snapshot_done(membership_client *self, const wire_control *c)
{
    self->act.snapshot_done(self->user, c->u.snapshot_done.step, c->u.snapshot_done.status,
                            c->u.snapshot_done.text);
}

void membership_client_receive(membership_client *self, const wire_control *c, uint64_t now_ms)
{
    if (membership_receive(&self->member, c, now_ms)) return;
    switch (c->kind) {
    case WIRE_PLAN: on_plan(self, c); break;
    case WIRE_COMMITTED: on_committed(self, c, now_ms); break;
    case WIRE_NOTICE: self->act.log(self->user, LOG_WARNING, c->u.notice.text); break;
    case WIRE_SNAPSHOT_PLEASE: self->act.snapshot_please(self->user); break;
    case WIRE_SNAPSHOT_DONE: on_snapshot_done(self, c); break;
    case WIRE_LOST: on_lost(self, c); break;
    case WIRE_RECORD_ASK: on_record_ask(self, c); break;
    case WIRE_PROVE: on_prove(self, c); break;
    case WIRE_STOP:
        if (self->act.stop != NULL) self->act.stop(self->user);
        break;
    default: break; /* for other roles, or from a newer scheduler */
    }
}

/* ---- asking ---------------------------------------------------------------------------------- */
void membership_client_register(membership_client *self, const wire_model *model, uint64_t now_ms)
{
    const bool is_in = self->member.phase == MEMBERSHIP_JOINED && self->member.has_epoch;
    if (!is_in || self->phase != JOINING) return;
    self->phase = REGISTERING;
    self->model = model;
    membership_again(&self->member, now_ms);
}

void membership_client_ready(membership_client *self, uint64_t now_ms)
{
    if (self->phase != REGISTERING || !self->has_plan || self->is_ready) return;
    self->is_ready = true;
    membership_again(&self->member, now_ms);
}

void membership_client_overdue(membership_client *self, const char *what, uint64_t waited_ms,
                               const int32_t *missing, uint32_t n, bool is_quiet)
{
    wire_control c        = {.kind = WIRE_OVERDUE};
    c.u.overdue.what      = what;
    c.u.overdue.waited_ms = waited_ms;
    c.u.overdue.n_missing = n < MISSING_MAX ? n : MISSING_MAX;
    c.u.overdue.missing   = missing;
    c.u.overdue.quiet     = is_quiet;
    membership_client_send(self, &c);
}

void membership_client_send(membership_client *self, const wire_control *message)
{
    membership_send(&self->member, message);
}

const void *membership_client_states(const membership_client *self, size_t *size)
{
    *size = self->committed != NULL ? self->committed->u.committed.states_bytes : 0;
    return *size > 0 ? self->committed->u.committed.states : NULL;
}

void membership_client_snapshot(membership_client *self)
{
    const wire_control c = {.kind              = WIRE_SNAPSHOT_PLEASE,
                            .u.snapshot_please = {.id = ++self->snapshots}};
    membership_client_send(self, &c);
}

void membership_client_report(membership_client *self, const pen_error *why)
{
    membership_report(&self->member, why);
}
