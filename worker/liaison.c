/* liaison.c - joining, beating and leaving. */
#include "worker/liaison.h"

#include "common/log.h"
#include "common/machine.h"
#include "common/why.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AGAIN_MS           = 1000, /* what is not answered is said again                      */
    DOWN_MS            = 1000, /* a connection may be gone this long                      */
    BACK_MS            = 1800, /* one that is back must have brought an answer by then    */
    LEAVE_MS           = 2000, /* a farewell may take this long                           */
    PATIENCE_MS        = 5000, /* silence at the start that is worth a line               */
    GRACE_MS           = 5000, /* the scheduler says who did not join; we only if it is gone */
    SILENCES_PER_LEASE = 4,    /* so long nothing is heard before another connection is tried */
    MISSING_MAX        = sizeof((pen_error){0}.missing) / sizeof(int32_t)
};
#define NEVER UINT64_MAX

typedef enum { JOINING, WELCOMED, JOINED, REGISTERING, TRAINING, LEAVING, LEFT, FAILED } phase;

struct liaison {
    liaison_setup setup;
    liaison_actions act;
    void *user;
    char host[256], job[64], scheduler[300], machine[MACHINE_BYTES];
    phase phase;
    bool is_anew; /* the scheduler may have come back without our REGISTER */
    bool up, has_epoch, has_plan, is_ready, warned, is_away; /* is_away: said in the log */
    uint64_t term, epoch;                                    /* of the newest record */
    uint64_t grace_ms; /* for which the scheduler may be away; 0: it is not expected to come back */
    uint64_t incarnation, begun_ms, again_ms, down_ms, beat_ms, beat_seq, acked_ms, leave_ms,
        ticked_ms, renewed_ms;
    pen_error will; /* what to say when the scheduler is gone; "" before it came */
    const wire_model *model;
    uint64_t *lost_incarnation; /* [n_lost] by rank, of the newest that died; 0: none has */
    uint32_t n_lost, n_ranks;   /* n_ranks: that the job may have */
    uint64_t snapshots;
    int32_t local_rank, node;      /* of WELCOME */
    const wire_control *committed; /* while it is told */
};

/* ---- birth and death ------------------------------------------------------------------------- */

liaison *liaison_create(const liaison_setup *setup, const liaison_actions *actions, void *user,
                        uint64_t now_ms, pen_error *why)
{
    liaison *self = calloc(1, sizeof *self);
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
    snprintf(self->scheduler, sizeof self->scheduler, "%s", setup->scheduler);
    self->n_ranks  = setup->world_size > 0 ? (uint32_t)setup->world_size : 1;
    self->begun_ms = self->again_ms = now_ms;
    self->beat_ms                   = NEVER;
    return self;
}

void liaison_destroy(liaison *self)
{
    if (self == NULL) return;
    free(self->lost_incarnation);
    free(self);
}

void liaison_place(const liaison *self, int32_t *local_rank, int32_t *node)
{
    *local_rank = self->local_rank;
    *node       = self->node;
}

uint64_t liaison_silence_ms(const liaison *self, uint64_t now_ms)
{
    const bool listens = self->incarnation != 0 && self->phase != LEAVING && self->phase != LEFT &&
                         self->phase != FAILED;
    return listens && now_ms > self->acked_ms ? now_ms - self->acked_ms : 0;
}

uint64_t liaison_lease_ms(const liaison *self)
{
    return self->setup.lease_ms;
}

uint64_t liaison_incarnation(const liaison *self)
{
    return self->incarnation;
}

/* ---- saying ---------------------------------------------------------------------------------- */
static void say(liaison *self, wire_control *message)
{
    message->from = self->incarnation;
    self->act.send(self->user, message);
}

static void say_hello(liaison *self)
{
    wire_control c        = {.kind = WIRE_HELLO};
    c.u.hello.role        = PEN_WORKER;
    c.u.hello.rank        = self->setup.rank;
    c.u.hello.world_size  = self->setup.world_size;
    c.u.hello.servers     = self->setup.servers;
    c.u.hello.pid         = self->setup.pid;
    c.u.hello.local_rank  = self->setup.local_rank;
    c.u.hello.node        = self->setup.node;
    c.u.hello.nonce       = self->setup.nonce;
    c.u.hello.number      = self->setup.number;
    c.u.hello.machine     = self->machine;
    c.u.hello.host        = self->host;
    c.u.hello.job         = self->job;
    c.u.hello.store       = "";
    c.u.hello.n_addresses = self->setup.n_addresses;
    c.u.hello.address     = self->setup.address;

    c.u.hello.local_world_size = self->setup.local_world_size;
    say(self, &c); /* with our incarnation: a scheduler that was away knows us by it */
}

static void say_model(liaison *self)
{
    wire_control c = {.kind = WIRE_REGISTER, .u.register_ = *self->model};
    say(self, &c);
}

static void say_ready(liaison *self)
{
    wire_control c     = {.kind = WIRE_READY};
    c.u.ready.restored = -1;
    say(self, &c);
}

static void say_beat(liaison *self, uint64_t now_ms)
{
    wire_control c = {.kind = WIRE_BEAT};
    self->act.fill_beat(self->user, &c);
    c.u.beat.seq = ++self->beat_seq;
    say(self, &c);
    uint64_t every = self->setup.lease_ms / 10;
    if (self->setup.beat_ms_max > 0 && every > self->setup.beat_ms_max)
        every = self->setup.beat_ms_max;
    self->beat_ms = now_ms + (every > 0 ? every : 1);
}

/* Everything that waits for an answer. */
static void say_again(liaison *self, uint64_t now_ms)
{
    self->again_ms = now_ms + AGAIN_MS;
    if (!self->up) return;
    if (self->phase == JOINING) say_hello(self);
    if (self->phase == REGISTERING && (!self->has_plan || self->is_anew)) say_model(self);
    if (self->phase == REGISTERING && self->is_ready) say_ready(self);
    self->is_anew = false;
    if (self->phase == LEAVING) {
        say_beat(self, now_ms); /* the step that it leaves in */
        say(self, &(wire_control){.kind = WIRE_BYE});
    }
}

/* ---- failing --------------------------------------------------------------------------------- */
static void fail(liaison *self, const pen_error *why)
{
    if (self->phase == FAILED || self->phase == LEFT) return;
    phase before = self->phase;
    self->phase  = FAILED;
    if (before == LEAVING) {
        self->phase = LEFT; /* nobody is there any more to say farewell to */
        self->act.left(self->user);
        return;
    }
    self->act.failed(self->user, why);
}

__attribute__((format(printf, 3, 4))) static void fail_unreachable(liaison *self, double seconds,
                                                                   const char *format, ...)
{
    pen_error why, how;
    va_list args;
    va_start(args, format);
    why_setv(&how, PEN_UNREACHABLE, format, args);
    va_end(args);
    why_set(&why, PEN_UNREACHABLE, "the scheduler at %s is gone: %s", self->scheduler, how.text);
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    if (self->will.text[0] != '\0') {
        self->act.log(self->user, LOG_INFO, why.text);
        why = self->will;
    }
    why.last_seen_s = seconds;
    fail(self, &why);
}

static void fail_silent(liaison *self)
{
    pen_error why;
    why_set(&why, PEN_UNREACHABLE, "nothing answers as a Penstock scheduler at %s %s",
            self->scheduler, self->act.describe_silence(self->user));
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    fail(self, &why);
}

/* ---- hearing --------------------------------------------------------------------------------- */
/* Whoever answers at the port now has no part in this job. */
static void fail_as_stranger(liaison *self)
{
    pen_error why;
    why_set(
        &why, PEN_NOT_A_MEMBER,
        "the scheduler at %s does not know this worker: it came back without the state of the job",
        self->scheduler);
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    fail(self, &why);
}

static void note_return(liaison *self)
{
    if (!self->is_away) return;
    char line[512];
    snprintf(line, sizeof line, "the scheduler at %s is back", self->scheduler);
    self->is_away = false;
    self->act.log(self->user, LOG_NOTICE, line);
}

static void take_welcome(liaison *self, const wire_control *c, uint64_t now_ms)
{
    if (self->incarnation != 0 && self->incarnation != c->u.welcome.incarnation) {
        fail_as_stranger(self);
        return;
    }
    note_return(self);
    self->incarnation = c->u.welcome.incarnation;
    self->grace_ms    = c->u.welcome.grace_ms;
    self->local_rank  = c->u.welcome.local_rank;
    self->node        = c->u.welcome.node;
    if (c->u.welcome.lease_ms > 0) self->setup.lease_ms = c->u.welcome.lease_ms;
    self->acked_ms = now_ms;
    self->down_ms  = 0;
    if (self->phase == JOINING) self->phase = self->has_epoch ? JOINED : WELCOMED;
    say_beat(self, now_ms);
    self->is_anew = true;
    say_again(self, now_ms); /* it may be a reconnect: what was on its way may be lost */
}

static bool is_newer(const liaison *self, uint64_t term, uint64_t epoch)
{
    if (!self->has_epoch) return true;
    return term != self->term ? term > self->term : epoch > self->epoch;
}

static void take_epoch(liaison *self, const wire_control *c)
{
    if (!is_newer(self, c->u.epoch.term, c->u.epoch.epoch)) return; /* said again */
    self->has_epoch = true;
    self->term      = c->u.epoch.term;
    self->epoch     = c->u.epoch.epoch;
    if (self->phase == WELCOMED) self->phase = JOINED;
    self->act.epoch(self->user, c);
}

static void take_plan(liaison *self, const wire_control *c)
{
    if (self->phase != REGISTERING || self->has_plan) return;
    self->has_plan = true;
    if (c->u.plan.ranks_max > self->n_ranks && c->u.plan.ranks_max < WIRE_ITEMS_MAX)
        self->n_ranks = c->u.plan.ranks_max;
    self->act.plan(self->user, c);
}

static void take_committed(liaison *self, const wire_control *c, uint64_t now_ms)
{
    if (self->phase != REGISTERING || !self->has_plan) return;
    self->phase     = TRAINING;
    self->model     = NULL;
    self->committed = c;
    self->act.committed(self->user, c->u.committed.step, c->u.committed.applied);
    self->committed = NULL;
    if (self->phase == TRAINING) say_beat(self, now_ms); /* from here on there is a step to tell */
}

/* True once for each incarnation of a rank: whoever took its seat may die as well. */
static bool is_news(liaison *self, int32_t rank, uint64_t incarnation)
{
    if (incarnation == 0) incarnation = 1; /* a scheduler that does not say */
    if (rank < 0 || (uint32_t)rank >= self->n_ranks) return false;
    if ((uint32_t)rank >= self->n_lost) {
        const uint32_t n = (uint32_t)rank + 1;
        uint64_t *more   = realloc(self->lost_incarnation, n * sizeof *more);
        if (more == NULL) return true; /* it may be told twice */
        memset(more + self->n_lost, 0, (n - self->n_lost) * sizeof *more);
        self->lost_incarnation = more;
        self->n_lost           = n;
    }
    const bool is_new            = self->lost_incarnation[rank] != incarnation;
    self->lost_incarnation[rank] = incarnation;
    return is_new;
}

static void take_lost(liaison *self, const wire_control *c)
{
    const int32_t rank = c->u.lost.rank;
    if (!is_news(self, rank, c->u.lost.incarnation)) return;
    self->act.log(self->user, LOG_INFO, c->u.lost.why.text);
    if (self->act.lost != NULL) self->act.lost(self->user, rank, &c->u.lost.why);
}

static void take_prove(liaison *self, const wire_control *c)
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
    liaison_say(self, &m);
    free(rank);
    free(number);
}

static void take_record_ask(liaison *self, const wire_control *c)
{
    if (self->act.record_please != NULL)
        self->act.record_please(self->user, c->u.record_ask.id, c->u.record_ask.asker);
}

static void take_snapshot_done(liaison *self, const wire_control *c)
{
    self->act.snapshot_done(self->user, c->u.snapshot_done.step, c->u.snapshot_done.status,
                            c->u.snapshot_done.text);
}

void liaison_receive(liaison *self, const wire_control *c, uint64_t now_ms)
{
    if (self->phase == FAILED || self->phase == LEFT) return;
    switch (c->kind) {
    case WIRE_WELCOME: take_welcome(self, c, now_ms); break;
    case WIRE_EPOCH: take_epoch(self, c); break;
    case WIRE_PLAN: take_plan(self, c); break;
    case WIRE_COMMITTED: take_committed(self, c, now_ms); break;
    case WIRE_BEAT_ACK: self->acked_ms = now_ms; break;
    case WIRE_WILL: self->will = c->u.verdict; break;
    case WIRE_NOTICE: self->act.log(self->user, LOG_WARNING, c->u.notice.text); break;
    case WIRE_SNAPSHOT_PLEASE: self->act.snapshot_please(self->user); break;
    case WIRE_SNAPSHOT_DONE: take_snapshot_done(self, c); break;
    case WIRE_VERDICT: fail(self, &c->u.verdict); break;
    case WIRE_LOST: take_lost(self, c); break;
    case WIRE_RECORD_ASK: take_record_ask(self, c); break;
    case WIRE_PROVE: take_prove(self, c); break;
    case WIRE_STOP:
        if (self->act.stop != NULL) self->act.stop(self->user);
        break;
    case WIRE_BYED:
        if (self->phase != LEAVING) break;
        self->phase = LEFT;
        self->act.left(self->user);
        break;
    default: break; /* for other roles: a newer scheduler may say more than we know */
    }
}

/* ---- connection ------------------------------------------------------------------------------ */
void liaison_up(liaison *self, uint64_t now_ms)
{
    self->up = true;
    if (self->phase == FAILED || self->phase == LEFT) return;
    say_hello(self); /* also after a reconnect: it says that we are the same process */
    if (self->phase == JOINING) self->again_ms = now_ms + AGAIN_MS;
}

void liaison_down(liaison *self, uint64_t now_ms)
{
    if (self->down_ms == 0 && self->phase == LEAVING) self->leave_ms += self->grace_ms;
    if (self->down_ms == 0) self->down_ms = now_ms;
    self->up = false;
}

/* ---- asking ---------------------------------------------------------------------------------- */
void liaison_register(liaison *self, const wire_model *model, uint64_t now_ms)
{
    if (self->phase != JOINED) return;
    self->phase = REGISTERING;
    self->model = model;
    say_again(self, now_ms);
}

void liaison_ready(liaison *self, uint64_t now_ms)
{
    if (self->phase != REGISTERING || !self->has_plan || self->is_ready) return;
    self->is_ready = true;
    say_again(self, now_ms);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void liaison_overdue(liaison *self, const char *what, uint64_t waited_ms, const int32_t *missing,
                     uint32_t n, bool is_quiet)
{
    wire_control c        = {.kind = WIRE_OVERDUE};
    c.u.overdue.what      = what;
    c.u.overdue.waited_ms = waited_ms;
    c.u.overdue.n_missing = n < MISSING_MAX ? n : MISSING_MAX;
    c.u.overdue.missing   = missing;
    c.u.overdue.quiet     = is_quiet;
    liaison_say(self, &c);
}

void liaison_say(liaison *self, const wire_control *message)
{
    wire_control c = *message;
    if (self->up && self->incarnation != 0 && self->phase != FAILED && self->phase != LEFT)
        say(self, &c);
}

const void *liaison_states(const liaison *self, size_t *size)
{
    *size = self->committed != NULL ? self->committed->u.committed.states_bytes : 0;
    return *size > 0 ? self->committed->u.committed.states : NULL;
}

void liaison_snapshot(liaison *self, uint64_t now_ms)
{
    (void)now_ms;
    wire_control c         = {.kind = WIRE_SNAPSHOT_PLEASE};
    c.u.snapshot_please.id = ++self->snapshots;
    say(self, &c);
}

void liaison_report(liaison *self, const pen_error *why)
{
    wire_control c = {.kind = WIRE_FAILURE, .u.verdict = *why};
    say(self, &c);
}

void liaison_leave(liaison *self, uint64_t now_ms)
{
    if (self->phase == FAILED || self->phase == LEFT) {
        self->act.left(self->user);
        return;
    }
    self->phase    = LEAVING;
    self->leave_ms = now_ms + LEAVE_MS;
    if (self->down_ms != 0) self->leave_ms += self->grace_ms;
    say_again(self, now_ms);
}

/* ---- time ------------------------------------------------------------------------------------ */
static void tick_joining(liaison *self, uint64_t now_ms)
{
    const uint64_t waited = now_ms - self->begun_ms;
    const uint64_t silence =
        self->setup.answer_ms > 0 ? self->setup.answer_ms : self->setup.init_timeout_ms;
    if (self->phase == JOINING && waited >= silence) {
        fail_silent(self);
    } else if (waited >= self->setup.init_timeout_ms + GRACE_MS) {
        fail_unreachable(
            self, 0, "not all members have joined after %.0f s, and it does not say who is missing",
            (double)waited / 1000);
    } else if (self->phase == JOINING && !self->warned && waited >= PATIENCE_MS) {
        char line[512];
        snprintf(line, sizeof line,
                 "no answer yet from a Penstock scheduler at %s; trying for %.0f s more",
                 self->scheduler, (double)(silence - waited) / 1000);
        self->warned = true;
        self->act.log(self->user, LOG_WARNING, line);
    }
}

/* When a broken connection becomes the scheduler's death.  Something else may answer at its port:
 * a connection that is back counts only once it has brought WELCOME. */
static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t broken_ms(const liaison *self)
{
    if (self->down_ms == 0) return NEVER;
    return self->down_ms + most(self->up ? BACK_MS : DOWN_MS, self->grace_ms);
}

static uint64_t silent_ms(const liaison *self)
{
    return self->acked_ms + most(self->setup.lease_ms, self->grace_ms);
}

/* When its absence is worth a line: NEVER where it is its end, or is said. */
static uint64_t away_ms(const liaison *self)
{
    if (self->down_ms == 0 || self->grace_ms <= DOWN_MS || self->is_away) return NEVER;
    return self->down_ms + DOWN_MS;
}

static void note_absence(liaison *self, uint64_t now_ms)
{
    if (now_ms < away_ms(self)) return;
    char line[512];
    snprintf(line, sizeof line,
             "the scheduler at %s is away; going on without it for at most %.3g s", self->scheduler,
             (double)self->grace_ms / 1000);
    self->is_away = true;
    self->act.log(self->user, LOG_NOTICE, line);
}

static void watch_scheduler(liaison *self, uint64_t now_ms)
{
    double down   = (double)(now_ms - self->down_ms) / 1000,
           silent = (double)(now_ms - self->acked_ms) / 1000;
    if (now_ms >= broken_ms(self))
        fail_unreachable(self, down, "its connection broke and did not come back");
    else if (now_ms >= silent_ms(self))
        fail_unreachable(self, silent, "it has not answered for %.3g s",
                         (double)most(self->setup.lease_ms, self->grace_ms) / 1000);
    else
        note_absence(self, now_ms);
}

/* A network that was gone for a while leaves connections behind that recover too late, or never. */
static uint64_t renew_ms(const liaison *self)
{
    const uint64_t since = self->acked_ms > self->renewed_ms ? self->acked_ms : self->renewed_ms;
    return since + self->setup.lease_ms / SILENCES_PER_LEASE;
}

static void renew_when_silent(liaison *self, uint64_t now_ms)
{
    if (self->phase == FAILED || self->phase == LEFT || now_ms < renew_ms(self)) return;
    self->renewed_ms = now_ms;
    if (self->act.renew != NULL) self->act.renew(self->user);
}

/* A process that was stopped for a while must not blame the scheduler for its own silence. */
static void forgive_own_pause(liaison *self, uint64_t now_ms)
{
    uint64_t pause = now_ms - self->ticked_ms;
    if (self->ticked_ms != 0 && pause > self->setup.lease_ms / 3) {
        self->acked_ms += pause;
        if (self->down_ms != 0) self->down_ms += pause;
    }
    self->ticked_ms = now_ms;
}

void liaison_tick(liaison *self, uint64_t now_ms)
{
    if (self->phase == FAILED || self->phase == LEFT) return;
    forgive_own_pause(self, now_ms);
    if (!self->has_epoch) tick_joining(self, now_ms);
    if (self->incarnation != 0) watch_scheduler(self, now_ms);
    if (self->incarnation != 0) renew_when_silent(self, now_ms);
    if (self->phase == LEAVING && now_ms >= self->leave_ms) {
        self->phase = LEFT;
        self->act.left(self->user);
    }
    if (self->phase == FAILED || self->phase == LEFT) return;
    if (now_ms >= self->again_ms) say_again(self, now_ms);
    if (now_ms >= self->beat_ms) say_beat(self, now_ms);
}

uint64_t liaison_due(const liaison *self)
{
    if (self->phase == FAILED || self->phase == LEFT) return NEVER;
    uint64_t due = least(self->beat_ms, self->again_ms);
    if (self->incarnation != 0) due = least(due, least(silent_ms(self), away_ms(self)));
    if (self->incarnation != 0) due = least(due, broken_ms(self));
    if (self->incarnation != 0) due = least(due, renew_ms(self));
    if (self->phase == LEAVING) due = least(due, self->leave_ms);
    return due;
}
