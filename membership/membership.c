/* membership.c - HELLO to BYE: what a member sends when, and when it gives its scheduler up. */
#include "membership/membership.h"

#include "common/base/log.h"
#include "common/base/mutation.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AGAIN_MS        = 1000, /* between repeats of unanswered messages */
    BACK_MS         = 800,  /* from a reconnect to its WELCOME */
    LEAVE_MS        = 2000, /* for the answer to BYE */
    JOIN_GRACE_MS   = 5000, /* the scheduler names missing members; we report only if it is gone */
    BEATS_PER_LEASE = 10,
    SILENCES_PER_LEASE = 4, /* lease / this: silence before another connection is tried */
    PAUSES_PER_LEASE   = 3  /* a longer pause of this process is not the scheduler's silence */
};
#define NEVER UINT64_MAX

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- life ------------------------------------------------------------------------------------ */
void membership_init(membership *self, const membership_setup *setup,
                     const membership_actions *actions, void *user, uint64_t now_ms)
{
    *self = (membership){.setup = *setup, .act = *actions, .user = user};
    snprintf(self->scheduler, sizeof self->scheduler, "%s", setup->scheduler);
    snprintf(self->self, sizeof self->self, "%s", setup->self);
    self->begun_ms = self->again_ms = now_ms;
    self->beat_ms                   = NEVER;
}

void membership_fini(membership *self)
{
    free(self->seal.report);
    self->seal = (membership_seal){0};
}

bool membership_is_over(const membership *self)
{
    return self->phase == MEMBERSHIP_FAILED || self->phase == MEMBERSHIP_LEFT;
}

uint64_t membership_silence_ms(const membership *self, uint64_t now_ms)
{
    const bool listens = self->phase == MEMBERSHIP_JOINED;
    return listens && now_ms > self->acked_ms ? now_ms - self->acked_ms : 0;
}

/* ---- sending --------------------------------------------------------------------------------- */
static void send(membership *self, wire_control *message)
{
    message->from = self->incarnation;
    self->act.send(self->user, message);
}

/* Contains our incarnation, by which a returning scheduler recognises us. */
static void send_hello(membership *self)
{
    wire_control c = {.kind = WIRE_HELLO};
    self->act.fill_hello(self->user, &c);
    send(self, &c);
}

static void send_sealed(membership *self)
{
    const membership_seal *s = &self->seal;
    wire_control c           = {.kind = WIRE_SEALED};
    c.u.sealed.term          = s->term;
    c.u.sealed.epoch         = s->epoch;
    c.u.sealed.n_reports     = s->n_reports;
    c.u.sealed.report        = s->report;
    membership_send(self, &c);
}

static bool owes_sealed(const membership *self)
{
    const membership_seal *s = &self->seal;
    return s->epoch != 0 && s->n_due == 0 && !s->is_over && !mutation(MUTATION_SEAL_FORGOTTEN);
}

void membership_send(membership *self, const wire_control *message)
{
    wire_control c = *message;
    if (self->is_up && self->incarnation != 0 && !membership_is_over(self)) send(self, &c);
}

static void send_failure(membership *self)
{
    const wire_control c = {.kind = WIRE_FAILURE, .u.verdict = self->failure};
    if (self->failure.status != PEN_OK) membership_send(self, &c);
}

void membership_report(membership *self, const pen_error *why)
{
    if (self->failure.status == PEN_OK) self->failure = *why;
    send_failure(self);
}

void membership_beat(membership *self, uint64_t now_ms)
{
    wire_control c = {.kind = WIRE_BEAT};
    self->act.fill_beat(self->user, &c);
    c.u.beat.seq   = ++self->beats;
    uint64_t every = self->setup.lease_ms / BEATS_PER_LEASE;
    if (self->setup.beat_ms_max > 0) every = least(every, self->setup.beat_ms_max);
    self->beat_ms = now_ms + most(every, 1);
    membership_send(self, &c);
}

void membership_begun(membership *self, uint64_t now_ms)
{
    self->has_begun = true;
    membership_beat(self, now_ms);
}

static void resend(membership *self, bool is_anew, uint64_t now_ms)
{
    self->again_ms = now_ms + AGAIN_MS;
    if (!self->is_up) return;
    if (!self->is_known) send_hello(self);
    if (owes_sealed(self)) send_sealed(self);
    send_failure(self);
    if (self->phase == MEMBERSHIP_LEAVING) {
        membership_beat(self, now_ms); /* reports the step it leaves in */
        membership_send(self, &(wire_control){.kind = WIRE_BYE});
    }
    if (self->act.resend != NULL) self->act.resend(self->user, is_anew);
}

void membership_again(membership *self, uint64_t now_ms)
{
    if (!membership_is_over(self)) resend(self, false, now_ms);
}

/* ---- failing --------------------------------------------------------------------------------- */
static void leave(membership *self)
{
    self->phase = MEMBERSHIP_LEFT;
    self->act.left(self->user);
}

static void fail(membership *self, const pen_error *why)
{
    if (membership_is_over(self)) return;
    if (self->phase == MEMBERSHIP_LEAVING) { /* no scheduler is left to receive BYE */
        leave(self);
        return;
    }
    self->phase = MEMBERSHIP_FAILED;
    self->act.failed(self->user, why);
}

static void fail_unanswered(membership *self)
{
    pen_error why;
    self->act.unanswered(self->user, &why);
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    fail(self, &why);
}

/* Fails with the last will, the sentence of all members, if the scheduler sent one. */
__attribute__((format(printf, 3, 4))) static void
fail_unreachable(membership *self, uint64_t silence_ms, const char *format, ...)
{
    pen_error how, why;
    va_list args;
    va_start(args, format);
    why_setv(&how, PEN_UNREACHABLE, format, args);
    va_end(args);
    why_set(&why, PEN_UNREACHABLE, "the scheduler at %s is gone: %s", self->scheduler, how.text);
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    if (self->last_will.text[0] != '\0') {
        self->act.log(self->user, LOG_INFO, why.text);
        why = self->last_will;
    }
    why.last_seen_s = (double)silence_ms / 1000;
    fail(self, &why);
}

/* Another scheduler answers at the port now. */
static void fail_as_stranger(membership *self)
{
    pen_error why;
    why_set(&why, PEN_NOT_A_MEMBER,
            "the scheduler at %s does not know %s: it came back without the state of the job",
            self->scheduler, self->self);
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    fail(self, &why);
}

/* ---- receiving ------------------------------------------------------------------------------- */
static void note_return(membership *self)
{
    char line[512];
    if (!self->is_away) return;
    snprintf(line, sizeof line, "the scheduler at %s is back", self->scheduler);
    self->is_away = false;
    self->act.log(self->user, LOG_NOTICE, line);
}

static void on_welcome(membership *self, const wire_control *c, uint64_t now_ms)
{
    const bool is_first = self->incarnation == 0;
    if (!is_first && self->incarnation != c->u.welcome.incarnation &&
        !mutation(MUTATION_STALE_INCARNATION)) {
        fail_as_stranger(self);
        return;
    }
    note_return(self);
    self->incarnation = c->u.welcome.incarnation;
    self->grace_ms    = mutation(MUTATION_GRACE_NOT_GRANTED) ? 0 : c->u.welcome.grace_ms;
    if (c->u.welcome.lease_ms > 0) self->setup.lease_ms = c->u.welcome.lease_ms;
    self->acked_ms = now_ms;
    self->down_ms  = 0;
    self->is_known = true;
    if (self->phase == MEMBERSHIP_JOINING) self->phase = MEMBERSHIP_JOINED;
    if (self->act.welcome != NULL) self->act.welcome(self->user, c, is_first);
    membership_beat(self, now_ms);
    resend(self, true, now_ms); /* this may be a reconnect: messages in flight may be lost */
}

static void on_epoch(membership *self, const wire_control *c)
{
    const uint64_t term = c->u.epoch.term, epoch = c->u.epoch.epoch;
    if (self->has_epoch && !membership_is_newer(term, epoch, self->term, self->epoch))
        return; /* a repeat */
    if (self->has_begun && epoch <= self->epoch) {
        fail_as_stranger(self);
        return;
    }
    self->has_epoch    = true;
    self->term         = term;
    self->epoch        = epoch;
    self->seal.is_over = !membership_is_newer(self->seal.term, self->seal.epoch, term, epoch);
    self->act.epoch(self->user, c);
}

static void on_seal(membership *self, const wire_control *c)
{
    membership_seal *s  = &self->seal;
    const uint64_t term = c->u.seal.term, epoch = c->u.seal.epoch;
    if (self->setup.n_parts == 0 || !membership_is_newer(term, epoch, self->term, self->epoch))
        return;
    if (term == s->term && epoch == s->epoch) { /* a repeat */
        if (owes_sealed(self)) send_sealed(self);
        return;
    }
    if (s->epoch != 0 && !membership_is_newer(term, epoch, s->term, s->epoch)) return;
    s->term      = term;
    s->epoch     = epoch;
    s->n_due     = self->setup.n_parts;
    s->n_reports = 0;
    s->is_over   = false;
    self->act.seal(self->user, term, epoch);
}

bool membership_receive(membership *self, const wire_control *c, uint64_t now_ms)
{
    if (membership_is_over(self)) return true;
    switch (c->kind) {
    case WIRE_WELCOME: on_welcome(self, c, now_ms); return true;
    case WIRE_EPOCH: on_epoch(self, c); return true;
    case WIRE_SEAL: on_seal(self, c); return true;
    case WIRE_BEAT_ACK: self->acked_ms = now_ms; return true;
    case WIRE_WILL: self->last_will = c->u.verdict; return true;
    case WIRE_VERDICT: fail(self, &c->u.verdict); return true;
    case WIRE_BYED:
        if (self->phase == MEMBERSHIP_LEAVING) leave(self);
        return true;
    default: return false;
    }
}

/* ---- sealing --------------------------------------------------------------------------------- */
static pen_status add_reports(membership_seal *s, const wire_sealed_report *report, uint32_t n)
{
    if (!VEC_ROOM(s->report, s->capacity, (size_t)s->n_reports + n)) return PEN_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        if (report[i].role != 0) s->report[s->n_reports++] = report[i];
    return PEN_OK;
}

pen_status membership_sealed(membership *self, uint64_t term, uint64_t epoch,
                             const wire_sealed_report *report, uint32_t n)
{
    membership_seal *s = &self->seal;
    if (term != s->term || epoch != s->epoch || s->n_due == 0) return PEN_OK;
    const pen_status status = add_reports(s, report, n);
    if (status != PEN_OK) return status;
    if (--s->n_due > 0) return PEN_OK;
    send_sealed(self);
    return PEN_OK;
}

/* ---- connection ------------------------------------------------------------------------------ */
void membership_up(membership *self, uint64_t now_ms)
{
    self->is_up    = true;
    self->is_known = false;
    if (membership_is_over(self)) return;
    send_hello(self); /* also after a reconnect: the nonce shows that we are the same process */
    self->again_ms = now_ms + AGAIN_MS;
}

/* How much longer BYE may take while the scheduler is away. */
static uint64_t leave_grace_ms(const membership *self)
{
    return self->setup.waits_to_leave && self->phase == MEMBERSHIP_LEAVING ? self->grace_ms : 0;
}

void membership_down(membership *self, uint64_t now_ms)
{
    if (self->down_ms == 0) {
        self->down_ms = now_ms;
        self->leave_ms += leave_grace_ms(self);
    }
    self->is_up = self->is_known = false;
    if (self->phase == MEMBERSHIP_LEAVING && !self->setup.waits_to_leave) leave(self);
}

void membership_leave(membership *self, uint64_t now_ms)
{
    if (membership_is_over(self)) {
        self->act.left(self->user);
        return;
    }
    if (!self->setup.waits_to_leave && (!self->is_up || self->incarnation == 0)) {
        leave(self);
        return;
    }
    self->phase    = MEMBERSHIP_LEAVING;
    self->leave_ms = now_ms + LEAVE_MS + (self->down_ms != 0 ? leave_grace_ms(self) : 0);
    resend(self, false, now_ms);
}

/* ---- time ------------------------------------------------------------------------------------ */
static void watch_joining(membership *self, uint64_t now_ms)
{
    const membership_setup *o = &self->setup;
    const uint64_t waited     = now_ms - self->begun_ms;
    const bool is_unanswered  = self->phase == MEMBERSHIP_JOINING;
    if (is_unanswered && waited >= o->answer_ms) {
        fail_unanswered(self);
    } else if (o->join_ms > 0 && waited >= o->join_ms + JOIN_GRACE_MS) {
        fail_unreachable(
            self, 0, "not all members have joined after %.0f s, and it does not say who is missing",
            (double)waited / 1000);
    } else if (is_unanswered && !self->has_waited && waited >= o->patience_ms) {
        self->has_waited = true;
        if (self->act.waiting != NULL) self->act.waiting(self->user, o->answer_ms - waited);
    }
}

/* When a broken connection becomes the scheduler's death.  Something else may answer at its port, so a new connection
 * counts only once it has brought WELCOME. */
static uint64_t broken_ms(const membership *self)
{
    if (self->down_ms == 0) return NEVER;
    return self->down_ms + most(self->setup.down_ms + (self->is_up ? BACK_MS : 0), self->grace_ms);
}

static uint64_t silent_ms(const membership *self)
{
    return self->acked_ms + most(self->setup.lease_ms, self->grace_ms);
}

/* When its absence is logged: NEVER where absence is loss, or after it was logged. */
static uint64_t away_ms(const membership *self)
{
    if (self->down_ms == 0 || self->grace_ms <= self->setup.down_ms || self->is_away) return NEVER;
    return self->down_ms + self->setup.down_ms;
}

static void note_absence(membership *self, uint64_t now_ms)
{
    char line[512];
    if (now_ms < away_ms(self)) return;
    snprintf(line, sizeof line,
             "the scheduler at %s is away; going on without it for at most %.3g s", self->scheduler,
             (double)self->grace_ms / 1000);
    self->is_away = true;
    self->act.log(self->user, LOG_NOTICE, line);
}

static void watch_scheduler(membership *self, uint64_t now_ms)
{
    if (now_ms >= broken_ms(self))
        fail_unreachable(self, now_ms - self->down_ms,
                         "its connection broke and did not come back");
    else if (now_ms >= silent_ms(self))
        fail_unreachable(self, now_ms - self->acked_ms, "it has not answered for %.3g s",
                         (double)most(self->setup.lease_ms, self->grace_ms) / 1000);
    else
        note_absence(self, now_ms);
}

/* After a network outage old connections recover late or never. */
static uint64_t renew_ms(const membership *self)
{
    if (mutation(MUTATION_RENEWAL_LOST)) return NEVER;
    return most(self->acked_ms, self->renewed_ms) + self->setup.lease_ms / SILENCES_PER_LEASE;
}

static void renew_when_silent(membership *self, uint64_t now_ms)
{
    if (membership_is_over(self) || now_ms < renew_ms(self)) return;
    self->renewed_ms = now_ms;
    if (self->act.renew != NULL) self->act.renew(self->user);
}

static void forgive_own_pause(membership *self, uint64_t now_ms)
{
    const uint64_t pause = now_ms - self->ticked_ms;
    if (self->ticked_ms != 0 && pause > self->setup.lease_ms / PAUSES_PER_LEASE) {
        self->acked_ms += pause;
        if (self->down_ms != 0) self->down_ms += pause;
    }
    self->ticked_ms = now_ms;
}

void membership_tick(membership *self, uint64_t now_ms)
{
    if (membership_is_over(self)) return;
    forgive_own_pause(self, now_ms);
    if (!self->has_epoch) watch_joining(self, now_ms);
    if (self->incarnation != 0) watch_scheduler(self, now_ms);
    if (self->incarnation != 0) renew_when_silent(self, now_ms);
    if (self->phase == MEMBERSHIP_LEAVING && now_ms >= self->leave_ms) leave(self);
    if (membership_is_over(self)) return;
    if (now_ms >= self->again_ms) resend(self, false, now_ms);
    if (now_ms >= self->beat_ms) membership_beat(self, now_ms);
}

uint64_t membership_due(const membership *self)
{
    if (membership_is_over(self)) return NEVER;
    uint64_t due = least(self->beat_ms, self->again_ms);
    if (self->incarnation != 0) {
        due = least(due, least(silent_ms(self), away_ms(self)));
        due = least(due, least(broken_ms(self), renew_ms(self)));
    }
    if (self->phase == MEMBERSHIP_JOINING) due = least(due, self->begun_ms + self->setup.answer_ms);
    return self->phase == MEMBERSHIP_LEAVING ? least(due, self->leave_ms) : due;
}
