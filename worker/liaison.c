/* liaison.c - joining, beating, meeting and leaving. */
#include "worker/liaison.h"

#include "common/log.h"
#include "common/why.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AGAIN_MS      = 1000, /* what is not answered is said again                      */
    DOWN_MS       = 1000, /* a connection may be gone this long                      */
    BACK_MS       = 1800, /* one that is back must have brought an answer by then    */
    LEAVE_MS      = 2000, /* a farewell may take this long                           */
    PATIENCE_MS   = 5000, /* silence at the start that is worth a line               */
    GRACE_MS      = 5000, /* the scheduler says who did not join; we only if it is gone */
    MEETS_AT_ONCE = 8,    /* the scheduler remembers twice as many                   */
    ASK_MS        = 1000, /* before a deadline: who is missing?                      */
    MISSING_MAX   = sizeof((pen_error){0}.missing) / sizeof(int32_t)
};
#define NEVER UINT64_MAX

typedef enum { JOINING, WELCOMED, JOINED, REGISTERING, TRAINING, LEAVING, LEFT, FAILED } phase;

typedef struct meet {
    struct meet *next;
    void *token;
    uint64_t generation, count, begun_ms, deadline_ms;
    uint64_t ask_ms; /* when to ask who is missing; NEVER: it was done */
    int32_t op, missing_n, missing[MISSING_MAX];
    char *notice; /* the scheduler's newest sentence about it; NULL: none */
    pen_dtype dtype;
    size_t size;
    char label[128];
    unsigned char data[];
} meet;

struct liaison {
    liaison_setup setup;
    liaison_actions act;
    void *user;
    char host[256], job[64], scheduler[300];
    phase phase;
    bool up, has_epoch, has_plan, warned;
    uint64_t incarnation, begun_ms, again_ms, down_ms, beat_ms, beat_seq, acked_ms, leave_ms,
        ticked_ms;
    pen_error will; /* what to say when the scheduler is gone; "" before it came */
    const wire_model *model;
    meet *meets;
    uint64_t generation, snapshots;
};

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
    snprintf(self->scheduler, sizeof self->scheduler, "%s", setup->scheduler);
    self->begun_ms = self->again_ms = now_ms;
    self->beat_ms                   = NEVER;
    return self;
}

static void free_meet(meet *m)
{
    free(m->notice);
    free(m);
}

void liaison_destroy(liaison *self)
{
    if (self == NULL) return;
    while (self->meets != NULL) {
        meet *next = self->meets->next;
        free_meet(self->meets);
        self->meets = next;
    }
    free(self);
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
    wire_control c       = {.kind = WIRE_HELLO};
    c.u.hello.role       = PEN_WORKER;
    c.u.hello.rank       = self->setup.rank;
    c.u.hello.world_size = self->setup.world_size;
    c.u.hello.servers    = self->setup.servers;
    c.u.hello.pid        = self->setup.pid;
    c.u.hello.local_rank = self->setup.local_rank;
    c.u.hello.node       = self->setup.node;
    c.u.hello.nonce      = self->setup.nonce;
    c.u.hello.host       = self->host;
    c.u.hello.job        = self->job;
    c.u.hello.store      = "";
    self->act.send(self->user, &c);
}

static void say_model(liaison *self)
{
    wire_control c = {.kind = WIRE_REGISTER, .u.register_ = *self->model};
    say(self, &c);
}

static void say_meet(liaison *self, const meet *m)
{
    wire_control c      = {.kind = WIRE_MEET};
    c.u.meet.generation = m->generation;
    c.u.meet.label      = m->label;
    c.u.meet.op         = m->op;
    c.u.meet.dtype      = (int32_t)m->dtype;
    c.u.meet.count      = m->count;
    c.u.meet.data       = m->data;
    c.u.meet.data_size  = m->size;
    say(self, &c);
}

static void say_beat(liaison *self, uint64_t now_ms)
{
    wire_control c = {.kind = WIRE_BEAT};
    self->act.fill_beat(self->user, &c);
    c.u.beat.seq = ++self->beat_seq;
    say(self, &c);
    uint64_t every = self->setup.lease_ms / 10;
    self->beat_ms  = now_ms + (every > 0 ? every : 1);
}

/* Everything that waits for an answer. */
static void say_again(liaison *self, uint64_t now_ms)
{
    self->again_ms = now_ms + AGAIN_MS;
    if (!self->up) return;
    if (self->phase == JOINING) say_hello(self);
    if (self->phase == REGISTERING && !self->has_plan) say_model(self);
    if (self->phase == LEAVING) say(self, &(wire_control){.kind = WIRE_BYE});
    int n = 0;
    for (const meet *m = self->meets; m != NULL && n < MEETS_AT_ONCE; m = m->next, n++)
        say_meet(self, m);
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
    while (self->meets != NULL) {
        meet *m     = self->meets;
        self->meets = m->next;
        self->act.met(self->user, m->token, NULL, 0, why);
        free_meet(m);
    }
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
static void take_welcome(liaison *self, const wire_control *c, uint64_t now_ms)
{
    self->incarnation = c->u.welcome.incarnation;
    if (c->u.welcome.lease_ms > 0) self->setup.lease_ms = c->u.welcome.lease_ms;
    self->acked_ms = now_ms;
    self->down_ms  = 0;
    if (self->phase == JOINING) self->phase = self->has_epoch ? JOINED : WELCOMED;
    say_beat(self, now_ms);
    say_again(self, now_ms); /* it may be a reconnect: what was on its way may be lost */
}

static void take_epoch(liaison *self, const wire_control *c)
{
    if (self->has_epoch)
        return; /* there is one epoch in the life of a job that fails with its first loss */
    self->has_epoch = true;
    if (self->phase == WELCOMED) self->phase = JOINED;
    self->act.epoch(self->user, c);
}

static void take_plan(liaison *self, const wire_control *c)
{
    if (self->phase != REGISTERING || self->has_plan) return;
    self->has_plan = true;
    self->act.plan(self->user, c);
}

static void take_committed(liaison *self, const wire_control *c, uint64_t now_ms)
{
    if (self->phase != REGISTERING || !self->has_plan) return;
    self->phase = TRAINING;
    self->model = NULL;
    self->act.committed(self->user, c->u.committed.step, c->u.committed.applied);
    if (self->phase == TRAINING) say_beat(self, now_ms); /* from here on there is a step to tell */
}

static void end_meet(liaison *self, meet *m, const void *data, size_t size, const pen_error *why)
{
    meet **at = &self->meets;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    self->act.met(self->user, m->token, data, size, why);
    free_meet(m);
}

static meet *find_meet(const liaison *self, uint64_t generation)
{
    meet *m = self->meets;
    while (m != NULL && m->generation != generation) m = m->next;
    return m;
}

static void take_met(liaison *self, const wire_control *c, uint64_t now_ms)
{
    meet *m = find_meet(self, c->u.met.generation);
    if (m == NULL) return;
    pen_error why;
    if (c->u.met.status != PEN_OK)
        why_set(&why, c->u.met.status, "%s '%s' (call %llu): %s",
                m->op < 0 ? "barrier" : "all_reduce", m->label, (unsigned long long)m->generation,
                pen_status_info(c->u.met.status)->text);
    else if (c->u.met.data_size != m->size)
        why_set(&why, PEN_INTERNAL,
                "the scheduler answered call %llu with %zu bytes instead of %zu",
                (unsigned long long)m->generation, c->u.met.data_size, m->size);
    else
        why.status = PEN_OK;
    end_meet(self, m, c->u.met.data, c->u.met.data_size, why.status == PEN_OK ? NULL : &why);
    if (self->meets != NULL) say_again(self, now_ms); /* one more fits into the window */
}

static void take_notice(liaison *self, const wire_control *c)
{
    if (!c->u.notice.quiet) self->act.log(self->user, LOG_WARNING, c->u.notice.text);
    meet *m = find_meet(self, c->u.notice.generation);
    if (m == NULL) return;
    free(m->notice);
    m->notice = strdup(c->u.notice.text);
    m->missing_n =
        (int32_t)(c->u.notice.n_missing < MISSING_MAX ? c->u.notice.n_missing : MISSING_MAX);
    if (m->missing_n > 0)
        memcpy(m->missing, c->u.notice.missing, (size_t)m->missing_n * sizeof m->missing[0]);
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
    case WIRE_MET: take_met(self, c, now_ms); break;
    case WIRE_NOTICE: take_notice(self, c); break;
    case WIRE_SNAPSHOT_PLEASE: self->act.snapshot_please(self->user); break;
    case WIRE_SNAPSHOT_DONE: take_snapshot_done(self, c); break;
    case WIRE_VERDICT: fail(self, &c->u.verdict); break;
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

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t when_to_ask(uint64_t deadline_ms, uint64_t now_ms)
{
    if (deadline_ms <= now_ms) return NEVER;
    return deadline_ms - least((deadline_ms - now_ms) / 4, ASK_MS);
}

pen_status liaison_meet(liaison *self, const char *label, int32_t op, pen_dtype dtype,
                        uint64_t count, const void *data, size_t size, uint64_t deadline_ms,
                        void *token, uint64_t now_ms)
{
    meet *m = malloc(sizeof *m + size);
    if (m == NULL) return PEN_NO_MEMORY;
    *m = (meet){.token       = token,
                .generation  = ++self->generation,
                .count       = count,
                .begun_ms    = now_ms,
                .deadline_ms = deadline_ms,
                .ask_ms      = when_to_ask(deadline_ms, now_ms),
                .op          = op,
                .dtype       = dtype,
                .size        = size};
    snprintf(m->label, sizeof m->label, "%s", label != NULL ? label : "");
    if (size > 0) memcpy(m->data, data, size);
    meet **at = &self->meets;
    int n     = 0;
    for (; *at != NULL; at = &(*at)->next) n++;
    *at = m;
    if (n < MEETS_AT_ONCE && self->up) say_meet(self, m);
    if (n == 0) self->again_ms = now_ms + AGAIN_MS;
    return PEN_OK;
}

void liaison_say(liaison *self, const wire_control *message)
{
    wire_control c = *message;
    if (self->up && self->incarnation != 0 && self->phase != FAILED && self->phase != LEFT)
        say(self, &c);
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
    say_again(self, now_ms);
}

/* ---- time ------------------------------------------------------------------------------------ */
static void tick_joining(liaison *self, uint64_t now_ms)
{
    uint64_t waited = now_ms - self->begun_ms;
    if (self->phase == JOINING && waited >= self->setup.init_timeout_ms) {
        fail_silent(self);
    } else if (waited >= self->setup.init_timeout_ms + GRACE_MS) {
        fail_unreachable(
            self, 0, "not all members have joined after %.0f s, and it does not say who is missing",
            (double)waited / 1000);
    } else if (self->phase == JOINING && !self->warned && waited >= PATIENCE_MS) {
        char line[512];
        snprintf(line, sizeof line,
                 "no answer yet from a Penstock scheduler at %s; trying for %.0f s more",
                 self->scheduler, (double)(self->setup.init_timeout_ms - waited) / 1000);
        self->warned = true;
        self->act.log(self->user, LOG_WARNING, line);
    }
}

/* When a broken connection becomes the scheduler's death.  Something else may answer at its port:
 * a connection that is back counts only once it has brought WELCOME. */
static uint64_t broken_ms(const liaison *self)
{
    if (self->down_ms == 0) return NEVER;
    return self->down_ms + (self->up ? BACK_MS : DOWN_MS);
}

static void watch_scheduler(liaison *self, uint64_t now_ms)
{
    double down   = (double)(now_ms - self->down_ms) / 1000,
           silent = (double)(now_ms - self->acked_ms) / 1000;
    if (now_ms >= broken_ms(self))
        fail_unreachable(self, down, "its connection broke and did not come back");
    else if (now_ms >= self->acked_ms + self->setup.lease_ms)
        fail_unreachable(self, silent, "it has not answered for %.3g s",
                         (double)self->setup.lease_ms / 1000);
}

static void time_out(liaison *self, meet *m, uint64_t now_ms)
{
    pen_error why;
    const double seconds = (double)(now_ms - m->begun_ms) / 1000;
    if (m->notice != NULL)
        why_set(&why, PEN_TIMED_OUT, "gave up after %.3g s: %s", seconds, m->notice);
    else
        why_set(&why, PEN_TIMED_OUT, "waited %.3g s in %s '%s' (call %llu)", seconds,
                m->op < 0 ? "barrier" : "all_reduce", m->label, (unsigned long long)m->generation);
    why_culprit(&why, PEN_WORKER, m->missing_n > 0 ? m->missing[0] : -1, -1, m->label);
    why.missing_n = m->missing_n;
    memcpy(why.missing, m->missing, sizeof m->missing);
    end_meet(self, m, NULL, 0, &why);
}

static void tick_meets(liaison *self, uint64_t now_ms)
{
    for (meet *m = self->meets, *next; m != NULL; m = next) {
        next = m->next;
        if (m->deadline_ms != 0 && m->deadline_ms <= now_ms) {
            time_out(self, m, now_ms);
        } else if (m->ask_ms <= now_ms) {
            m->ask_ms = NEVER;
            if (self->up) say_meet(self, m);
        }
    }
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
    if (self->phase == LEAVING && now_ms >= self->leave_ms) {
        self->phase = LEFT;
        self->act.left(self->user);
    }
    if (self->phase == FAILED || self->phase == LEFT) return;
    tick_meets(self, now_ms);
    if (now_ms >= self->again_ms) say_again(self, now_ms);
    if (now_ms >= self->beat_ms) say_beat(self, now_ms);
}

uint64_t liaison_due(const liaison *self)
{
    if (self->phase == FAILED || self->phase == LEFT) return NEVER;
    uint64_t due = least(self->beat_ms, self->again_ms);
    if (self->incarnation != 0) due = least(due, self->acked_ms + self->setup.lease_ms);
    if (self->incarnation != 0) due = least(due, broken_ms(self));
    if (self->phase == LEAVING) due = least(due, self->leave_ms);
    for (const meet *m = self->meets; m != NULL; m = m->next) {
        due = least(due, m->ask_ms);
        if (m->deadline_ms != 0) due = least(due, m->deadline_ms);
    }
    return due;
}
