/* residency.c - decides from the uses which units to fetch and drop. */
#include "worker/tensor/residency/residency_test.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <stdlib.h>
#include <string.h>

enum {
    TRACE_MAX = 1 << 20,
    ORDERS    = 3, /* two are known, as of steps with and without validation; one is recorded */
    SCORE     = 64,
    LOST_MAX  = 3 /* steps in a row, each in a new order */
};
#define NO_UNIT UINT32_MAX

typedef enum { AWAY, COMING, HERE } place;

typedef struct {
    place place;
    uint32_t uses;
    bool is_ahead;    /* fetched ahead, or waiting for that */
    bool is_stale;    /* values of an earlier step */
    bool is_unwanted; /* dropped when it arrives */
} unit_state;

typedef struct {
    uint32_t unit;
    pen_phase phase;
} order_entry;

typedef struct { /* of the uses in a step */
    order_entry *entry;
    size_t capacity;
    uint32_t n;     /* 0: unknown */
    uint32_t score; /* SCORE for each step in this order, less a quarter with each step since */
    bool fits;      /* the step in progress, so far */
} order;

struct residency {
    residency_setup setup;
    residency_actions act;
    void *user;
    uint64_t *moving;
    unit_state *unit; /* [n_units] */
    uint64_t live, peak;
    uint32_t waiting; /* fetched ahead when there is room; NO_UNIT: none */
    order order[ORDERS];
    uint32_t following; /* the order to fetch ahead by; ORDERS: none */
    uint32_t recording; /* the order that is written in this step */
    uint32_t at;        /* uses in this step */
    uint32_t n_lost;    /* steps since the last in a known order */
    int64_t step;       /* -1: none has begun since the last end */
    bool has_warned;
};

/* ---- create and destroy ---------------------------------------------------------------------- */
residency *residency_create(const residency_setup *setup, const residency_actions *actions,
                            void *user, pen_error *why)
{
    residency *self = calloc(1, sizeof *self);
    if (self != NULL) {
        self->setup     = *setup;
        self->act       = *actions;
        self->user      = user;
        self->waiting   = NO_UNIT;
        self->step      = -1;
        self->following = ORDERS;
        self->unit      = calloc(setup->n_units + 1, sizeof *self->unit);
        self->moving    = calloc(setup->n_units + 1, sizeof *self->moving);
    }
    if (self == NULL || self->unit == NULL || self->moving == NULL) {
        residency_destroy(self);
        why_set(why, PEN_NO_MEMORY, "no memory for %u units", setup->n_units);
        return NULL;
    }
    memcpy(self->moving, setup->moving, setup->n_units * sizeof *self->moving);
    self->setup.moving = self->moving;
    return self;
}

void residency_destroy(residency *self)
{
    if (self == NULL) return;
    for (uint32_t i = 0; i < ORDERS; i++) free(self->order[i].entry);
    free(self->moving);
    free(self->unit);
    free(self);
}

/* ---- fetch and drop -------------------------------------------------------------------------- */
static void fetch(residency *self, uint32_t unit, bool is_ahead)
{
    unit_state *u = &self->unit[unit];
    u->place      = COMING;
    u->is_ahead   = is_ahead;
    u->is_stale = u->is_unwanted = false;
    self->live += self->moving[unit];
    if (self->live > self->peak) self->peak = self->live;
    self->act.fetch(self->user, unit);
}

static void drop(residency *self, uint32_t unit)
{
    unit_state *u = &self->unit[unit];
    u->is_ahead   = false;
    if (u->place == COMING) u->is_unwanted = true;
    if (u->place != HERE) return;
    u->place    = AWAY;
    u->is_stale = false;
    self->live -= self->moving[unit];
    self->act.drop(self->user, unit);
}

static bool fits(const residency *self, uint32_t unit)
{
    return self->live <= self->setup.max_live &&
           self->moving[unit] <= self->setup.max_live - self->live;
}

static void fetch_waiting(residency *self)
{
    const uint32_t unit = self->waiting;
    if (unit == NO_UNIT || !fits(self, unit)) return;
    self->waiting = NO_UNIT;
    if (self->unit[unit].place == AWAY) fetch(self, unit, true);
}

/* ---- the orders of uses ------------------------------------------------------------------------------- */
static void forget_guesses(residency *self)
{
    self->waiting = NO_UNIT;
    for (uint32_t i = 0; i < self->setup.n_units; i++)
        if (self->unit[i].is_ahead && self->unit[i].uses == 0) drop(self, i);
}

/* NULL: none is followed. */
static const order *followed(const residency *self)
{
    return self->following < ORDERS ? &self->order[self->following] : NULL;
}

/* Of the known orders that fit, the one of most recent steps. */
static void follow_best(residency *self)
{
    self->following = ORDERS;
    for (uint32_t i = 0; i < ORDERS; i++)
        if (self->order[i].fits &&
            (self->following == ORDERS || self->order[i].score > followed(self)->score))
            self->following = i;
}

static void begin_step(residency *self, int64_t step)
{
    order *recorded = &self->order[self->recording];
    self->step      = step;
    self->at        = 0;
    recorded->n     = 0;
    for (uint32_t i = 0; i < ORDERS; i++) self->order[i].fits = self->order[i].n > 0;
    follow_best(self);
}

static bool note_use(residency *self, uint32_t unit, pen_phase phase, int64_t step)
{
    if (step < 0) return true;
    if (step != self->step) begin_step(self, step);
    order *recorded    = &self->order[self->recording];
    const bool is_next = self->at == recorded->n && recorded->n < TRACE_MAX,
               has_room =
                   !is_next || VEC_ROOM(recorded->entry, recorded->capacity, recorded->n + 1);
    if (is_next && has_room) recorded->entry[recorded->n++] = (order_entry){unit, phase};
    for (order *o = self->order; o < self->order + ORDERS; o++)
        o->fits = o->fits && self->at < o->n && o->entry[self->at].unit == unit &&
                  o->entry[self->at].phase == phase;
    self->at++;
    if (followed(self) == NULL || followed(self)->fits) return has_room;
    forget_guesses(self);
    follow_best(self);
    return has_room;
}

/* The uses were in a known order, or theirs is known from now on, instead of the one with the lowest score. */
static void end_step(residency *self)
{
    order *recorded = &self->order[self->recording];
    bool has_known  = false;
    self->following = ORDERS;
    for (order *o = self->order; o < self->order + ORDERS; o++) {
        has_known = has_known || (o != recorded && o->n > 0);
        o->score -= o->score / 4;
    }
    for (order *o = self->order; o < self->order + ORDERS; o++) {
        if (!o->fits || o->n != self->at) continue;
        o->score += SCORE;
        self->n_lost = 0;
        return;
    }
    if (recorded->n != self->at) return; /* no memory for it */
    recorded->score = SCORE;
    for (uint32_t i = 0; i < ORDERS; i++)
        if (self->order[i].score < self->order[self->recording].score) self->recording = i;
    self->order[self->recording].score = 0;
    if (!has_known || ++self->n_lost != LOST_MAX || self->has_warned) return;
    self->has_warned = true;
    self->act.warn(
        self->user,
        "units were used in another order in each of 3 steps, so nothing is prefetched; to avoid "
        "this warning set prefetch_forward=no and prefetch_backward=none");
}

/* Elements of other units that are used before this one; false: it is not used again in this step. */
static bool distance_to(const residency *self, uint32_t unit, uint64_t *elements)
{
    const order *o = followed(self);
    *elements      = 0;
    for (uint32_t i = self->at; o != NULL && i < o->n; i++) {
        if (o->entry[i].unit == unit) return true;
        *elements += self->moving[o->entry[i].unit];
    }
    return false;
}

static void fetch_ahead(residency *self, pen_phase phase)
{
    const order *o = followed(self);
    uint32_t i     = self->at;
    while (o != NULL && i < o->n && self->unit[o->entry[i].unit].uses > 0) i++;
    if (o == NULL || i == o->n || o->entry[i].phase != phase) return;
    const uint32_t unit = o->entry[i].unit;
    unit_state *u       = &self->unit[unit];
    if (self->moving[unit] == 0 || self->moving[unit] > self->setup.prefetch_bucket) return;
    if (u->place != AWAY) {
        u->is_unwanted = false;
        return;
    }
    self->waiting = unit;
    fetch_waiting(self);
}

/* ---- use ------------------------------------------------------------------------------------- */
/* Among units that are only kept for reuse, the one needed last; NO_UNIT: none. */
static uint32_t least_needed(const residency *self)
{
    uint32_t found    = NO_UNIT;
    uint64_t farthest = 0;
    for (uint32_t i = 0; i < self->setup.n_units; i++) {
        const unit_state *u = &self->unit[i];
        uint64_t distance;
        if (u->place != HERE || u->uses > 0 || u->is_ahead) continue;
        if (!distance_to(self, i, &distance)) return i;
        if (found != NO_UNIT && distance <= farthest) continue;
        found    = i;
        farthest = distance;
    }
    return found;
}

static void need(residency *self, uint32_t unit)
{
    unit_state *u = &self->unit[unit];
    if (u->place == HERE && u->is_stale) drop(self, unit);
    if (u->place == AWAY) {
        uint32_t other;
        while (!fits(self, unit) && (other = least_needed(self)) != NO_UNIT) drop(self, other);
        fetch(self, unit, false);
    }
    u->is_ahead = u->is_unwanted = false;
    if (self->waiting == unit) self->waiting = NO_UNIT;
}

bool residency_use(residency *self, uint32_t unit, pen_phase phase, int64_t step)
{
    const bool is_noted = note_use(self, unit, phase, step);
    self->unit[unit].uses++;
    if (self->moving[unit] > 0) need(self, unit);
    const bool is_ahead_wanted =
        phase == PEN_FORWARD ? self->setup.forward : self->setup.backward == PREFETCH_PRE;
    if (step >= 0 && is_ahead_wanted) fetch_ahead(self, phase);
    return is_noted;
}

/* ---- release --------------------------------------------------------------------------------- */
static bool is_kept(const residency *self, uint32_t unit, pen_phase phase)
{
    uint64_t distance;
    if (self->unit[unit].is_stale || self->step < 0) return false;
    if (self->setup.keeps_forward && phase == PEN_FORWARD) return true;
    return distance_to(self, unit, &distance) && distance < self->setup.max_reuse &&
           self->live <= self->setup.max_live;
}

void residency_release(residency *self, uint32_t unit, pen_phase phase)
{
    unit_state *u = &self->unit[unit];
    if (u->uses == 0 || --u->uses > 0) return;
    if (self->moving[unit] > 0 && !is_kept(self, unit, phase)) drop(self, unit);
    fetch_waiting(self);
    if (phase == PEN_BACKWARD && self->setup.backward == PREFETCH_POST && self->step >= 0)
        fetch_ahead(self, phase);
}

bool residency_has(const residency *self, uint32_t unit)
{
    return self->moving[unit] == 0 ||
           (self->unit[unit].place == HERE && !self->unit[unit].is_stale);
}

/* ---- arrivals ------------------------------------------------------------------------- */
void residency_arrived(residency *self, uint32_t unit)
{
    unit_state *u = &self->unit[unit];
    if (u->place != COMING) return;
    u->place = HERE;
    if (u->is_stale && u->uses > 0) {
        drop(self, unit);
        fetch(self, unit, false);
    } else if (u->is_stale || (u->is_unwanted && u->uses == 0)) {
        drop(self, unit);
        fetch_waiting(self);
    }
    u->is_unwanted = false;
}

void residency_failed(residency *self, uint32_t unit)
{
    unit_state *u = &self->unit[unit];
    if (u->place != COMING) return;
    u->place    = AWAY;
    u->is_ahead = u->is_stale = u->is_unwanted = false;
    self->live -= self->moving[unit];
}

void residency_step_end(residency *self)
{
    self->waiting = NO_UNIT;
    if (self->step >= 0) end_step(self);
    forget_guesses(self);
    self->step = -1;
    for (uint32_t i = 0; i < self->setup.n_units; i++) {
        unit_state *u = &self->unit[i];
        if (u->place == AWAY) continue;
        u->is_stale = true;
        if (u->uses == 0) drop(self, i);
    }
}

uint64_t residency_live(const residency *self)
{
    return self->live;
}

uint64_t residency_peak(const residency *self)
{
    return self->peak;
}
