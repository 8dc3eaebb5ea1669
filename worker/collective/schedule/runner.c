/* runner.c - runs a call through its schedule: segments, places, the order of moves. */
#include "worker/collective/schedule/runner.h"

#include "common/base/why.h"
#include "common/compute/simd/reduce.h"
#include "common/compute/simd/simd.h"
#include "proto/plan.h"

#include <stdlib.h>
#include <string.h>

enum { SEGMENT_BYTES_MIN = 128 << 10, SEGMENTS_GOOD = 2, LINE = 64, ROOM_KEPT_BYTES = 64 << 20 };

/* ---- buffers --------------------------------------------------------------------------------- */
static bool make_room(runner_room *room, size_t bytes)
{
    if (bytes <= room->bytes) return true;
    free(room->data);
    *room       = (runner_room){0};
    bytes       = (bytes + LINE - 1) / LINE * LINE;
    void *taken = aligned_alloc(LINE, bytes);
    if (taken == NULL) return false;
    *room = (runner_room){.data = taken, .bytes = bytes};
    return true;
}

static void clear_room(runner_room *room)
{
    free(room->data);
    *room = (runner_room){0};
}

void runner_fini(runner *r)
{
    clear_room(&r->states);
    clear_room(&r->temps);
    clear_room(&r->scratch);
    clear_room(&r->wide_in);
    clear_room(&r->folds);
}

/* ---- beginning ------------------------------------------------------------------------------- */
static bool is_elementwise(coll_kind kind)
{
    return kind == COLL_BROADCAST || kind == COLL_REDUCE || kind == COLL_ALL_REDUCE;
}

static bool is_16_bit(pen_dtype dtype)
{
    return dtype == PEN_F16 || dtype == PEN_BF16;
}

static bool is_single_units(const schedule *s)
{
    for (uint32_t m = 0; m < s->n_moves; m++)
        if (s->moves[m].range.units != 1) return false;
    for (uint32_t i = 0; i < s->n_operands; i++)
        if (s->operand[i].units != 1) return false;
    return true;
}

/* All members must split alike, so only what they have in common may decide. */
static void into_segments(runner *r)
{
    const schedule *s = r->plan->s;
    const size_t n    = r->call.n;
    r->cuts_parts     = r->call.kind == COLL_REDUCE_SCATTER && r->call.counts == NULL &&
                    s->keeps_order && is_single_units(s);
    r->pieces           = 1;
    r->segments         = s->split > 0 ? 2 : 1;
    r->segment_elements = n;
    if (!is_elementwise(r->call.kind) && !r->cuts_parts) return;
    const size_t units = r->cuts_parts || s->units == 0 ? 1 : s->units;
    size_t bytes       = n * r->element / SEGMENTS_GOOD / units;
    if (bytes > RUNNER_CHUNK_BYTES) bytes = RUNNER_CHUNK_BYTES;
    if (bytes < SEGMENT_BYTES_MIN) bytes = SEGMENT_BYTES_MIN;
    const size_t each = bytes * units / r->element;
    if (n <= each) return;
    r->segment_elements = each;
    r->pieces           = (uint32_t)((n + each - 1) / each);
    r->segments *= r->pieces;
}

/* The member's own part is in its place in the result already. */
static bool is_part_in_place(const coll_call *c, size_t element, int rank)
{
    if (c->kind != COLL_GATHER && c->kind != COLL_ALL_GATHER) return false;
    const size_t at = coll_part_offset(c->counts, c->n, rank) * element;
    return (const char *)c->in == (const char *)c->out + at;
}

static bool needs_scratch(const runner *r, size_t in_bytes, size_t out_bytes)
{
    if (r->call.kind == COLL_BROADCAST || is_part_in_place(&r->call, r->element, r->rank))
        return false;
    return coll_overlap(r->call.in, in_bytes, r->call.out, out_bytes);
}

static bool widen(runner *r, size_t n_in, size_t n_out)
{
    if (!make_room(&r->wide_in, n_in * sizeof(float)) ||
        !make_room(&r->scratch, n_out * sizeof(float)))
        return false;
    double scale = r->call.scale;
    simd()->decode(r->wide_in.data, r->call.in, r->call.dtype, n_in);
    if (scale != 1) {
        const void *in = r->wide_in.data;
        void *out      = r->wide_in.data;
        reduce(&(reduce_args){.op    = PEN_SUM,
                              .dtype = PEN_F32,
                              .n_in  = 1,
                              .n_out = 1,
                              .in    = &in,
                              .out   = &out,
                              .scale = &scale},
               0, n_in);
    }
    r->call.in = r->wide_in.data;
    r->is_wide = true;
    return true;
}

/* A scaled copy of the input. */
static bool scale_input(runner *r, size_t n_in)
{
    if (!make_room(&r->wide_in, n_in * r->element + 1)) return false;
    const void *in = r->call.in;
    void *out      = r->wide_in.data;
    reduce(&(reduce_args){.op    = PEN_SUM,
                          .dtype = r->call.dtype,
                          .n_in  = 1,
                          .n_out = 1,
                          .in    = &in,
                          .out   = &out,
                          .scale = &r->call.scale},
           0, n_in);
    r->call.in = out;
    return true;
}

static bool place_buffers(runner *r)
{
    const size_t n_in  = coll_in_elements(&r->call, r->size, r->rank),
                 n_out = coll_out_elements(&r->call, r->size, r->rank);
    r->element         = r->call.kind == COLL_BARRIER ? 1 : plan_dtype_bytes(r->call.dtype);
    r->result          = NULL;
    r->result_bytes    = n_out * r->element;
    r->is_wide         = false;
    const bool wide =
        coll_reduces(r->call.kind) && is_16_bit(r->call.dtype) && !r->plan->s->keeps_order;
    const bool is_apart = wide || needs_scratch(r, n_in * r->element, r->result_bytes);
    if (wide && !widen(r, n_in, n_out)) return false;
    if (!wide && r->plan->s->scales_first && coll_reduces(r->call.kind) && r->call.scale != 1 &&
        !scale_input(r, n_in))
        return false;
    if (!is_apart) return true;
    if (!wide && !make_room(&r->scratch, r->result_bytes)) return false;
    r->result   = r->call.out;
    r->call.out = r->scratch.data;
    if (wide) { r->element = sizeof(float); }
    return true;
}

static coll_call segment_call(const runner *r, size_t elements)
{
    coll_call c = r->call;
    c.n         = r->pieces > 1 ? elements : c.n;
    return c;
}

static bool place_tracks(runner *r)
{
    const schedule *s = r->plan->s;
    const coll_call c = segment_call(r, r->segment_elements);
    const size_t temp = (schedule_temp_elements(s, &c, r->size) * r->element + LINE) / LINE * LINE;
    const size_t per_track = s->n_moves * (sizeof(size_t) + sizeof(schedule_span) + sizeof(buf *));
    const uint32_t tracks  = r->segments < RUNNER_TRACKS ? r->segments : RUNNER_TRACKS;
    const size_t operands  = r->plan->operands_max;
    if (!make_room(&r->states, tracks * per_track + 1) || !make_room(&r->temps, tracks * temp) ||
        !make_room(&r->folds, operands * (sizeof(void *) + sizeof(double)) + 1))
        return false;
    uint8_t *state = r->states.data;
    for (uint32_t i = 0; i < RUNNER_TRACKS; i++) {
        runner_track *t = &r->track[i];
        *t              = (runner_track){0};
        if (i >= tracks) continue;
        t->span = (schedule_span *)(void *)(state + i * per_track);
        t->done = (size_t *)(void *)(t->span + s->n_moves);
        t->kept = (buf **)(void *)(t->done + s->n_moves);
        t->temp = (uint8_t *)r->temps.data + i * temp;
    }
    return true;
}

pen_status runner_start(runner *r, const runner_plan *p, const coll_call *call, int size, int rank,
                        const runner_link *link, void *user, pen_error *why)
{
    r->plan         = p;
    r->link         = link;
    r->user         = user;
    r->call         = *call;
    r->size         = size;
    r->rank         = rank;
    r->next_segment = r->active = 0;
    r->turn                     = 1;
    bool is_placed              = place_buffers(r);
    if (is_placed) into_segments(r);
    if (!is_placed || !place_tracks(r))
        return why_set(why, PEN_NO_MEMORY, "no memory for a %s of %zu elements",
                       coll_kind_name(call->kind), call->n);
    return PEN_OK;
}

/* ---- addresses ------------------------------------------------------------------------------- */
static size_t at_in_parts(const runner *r, const runner_track *t, const move_range *range,
                          size_t at)
{
    if (range->place == MOVE_IN) return range->unit * r->call.n + t->begin;
    return range->place == MOVE_OUT ? t->begin : at;
}

static schedule_span where(const runner *r, const runner_track *t, const move_range *range)
{
    const coll_call c  = segment_call(r, t->elements);
    schedule_span span = schedule_where(r->plan->s, &c, r->size, r->rank, range);
    if (r->cuts_parts)
        span.at = at_in_parts(r, t, range, span.at);
    else if (range->place != MOVE_TEMP)
        span.at += t->begin;
    return span;
}

static uint8_t *address(const runner *r, const runner_track *t, move_place place, size_t at)
{
    uint8_t *base = place == MOVE_TEMP  ? t->temp
                    : place == MOVE_OUT ? r->call.out
                                        : (uint8_t *)(uintptr_t)r->call.in;
    return base != NULL ? base + at * r->element : NULL; /* an empty buffer may be NULL */
}

/* ---- steps ----------------------------------------------------------------------------------- */
static bool is_second_pass(const runner *r, uint32_t segment)
{
    return segment >= r->pieces;
}

static uint32_t first_step(const runner *r, uint32_t segment)
{
    return is_second_pass(r, segment) ? r->plan->s->split : 0;
}

static uint32_t end_step(const runner *r, uint32_t segment)
{
    const schedule *s = r->plan->s;
    return s->split > 0 && !is_second_pass(r, segment) ? s->split : s->n_steps;
}

static bool is_in_pass(const runner *r, uint32_t segment, uint32_t m)
{
    const uint32_t step = r->plan->step_of[m];
    return step >= first_step(r, segment) && step < end_step(r, segment);
}

static runner_track *find_track(runner *r, uint32_t segment)
{
    for (uint32_t i = 0; i < RUNNER_TRACKS; i++)
        if (r->track[i].is_active && r->track[i].segment == segment) return &r->track[i];
    return NULL;
}

static void place_segment(const runner *r, runner_track *t, uint32_t segment)
{
    t->segment  = segment;
    t->begin    = segment % r->pieces * r->segment_elements;
    t->elements = r->segment_elements;
    if (t->begin + t->elements > r->call.n && r->pieces > 1) t->elements = r->call.n - t->begin;
}

static bool activate(runner *r)
{
    const schedule *s = r->plan->s;
    bool any          = false;
    for (uint32_t i = 0; i < RUNNER_TRACKS && r->next_segment < r->segments; i++) {
        runner_track *t = &r->track[i];
        r->is_blocked |= !t->is_active && t->debt.n > 0;
        if (t->is_active || t->debt.n > 0) continue;
        if (is_second_pass(r, r->next_segment) &&
            find_track(r, r->next_segment - r->pieces) != NULL)
            break; /* the first pass of these elements goes on */
        t->is_active  = true;
        t->is_in_step = false;
        place_segment(r, t, r->next_segment++);
        t->step = first_step(r, t->segment);
        for (uint32_t m = 0; m < s->n_moves; m++) {
            t->kept[m] = NULL;
            t->span[m] = where(r, t, &s->moves[m].range);
            t->done[m] = is_in_pass(r, t->segment, m) ? 0 : t->span[m].elements * r->element;
        }
        r->active++;
        r->turn++;
        any = true;
    }
    return any;
}

static void begin_step(runner *r, runner_track *t)
{
    const schedule *s = r->plan->s;
    if (t->segment % r->pieces == 0 && r->link->step != NULL) r->link->step(r->user, t->step);
    t->is_in_step = true;
    t->recvs_left = t->sends_left = 0;
    for (uint32_t m = s->step[t->step]; m < s->step[t->step + 1]; m++) {
        const bool is_left = t->done[m] < t->span[m].elements * r->element;
        t->recvs_left += is_left && s->moves[m].verb == MOVE_RECV;
        t->sends_left += is_left && s->moves[m].verb == MOVE_SEND;
    }
    r->turn++;
}

/* Sends as much of each move of the step as the link takes now. */
static pen_status send_open(runner *r, runner_track *t, bool *did, pen_error *why)
{
    const schedule *s = r->plan->s;
    for (uint32_t m = s->step[t->step]; m < s->step[t->step + 1] && t->sends_left > 0; m++) {
        const move *one    = &s->moves[m];
        const size_t total = t->span[m].elements * r->element;
        if (one->verb != MOVE_SEND || t->done[m] >= total) continue;
        const uint8_t *from = address(r, t, one->range.place, t->span[m].at);
        while (t->done[m] < total) {
            const size_t left      = total - t->done[m];
            const size_t bytes     = left < RUNNER_CHUNK_BYTES ? left : RUNNER_CHUNK_BYTES;
            const runner_part part = {.peer    = one->peer,
                                      .segment = t->segment,
                                      .slot    = r->plan->slot[m],
                                      .offset  = t->done[m],
                                      .total   = total};
            if (!r->link->may_send(r->user, one->peer, bytes)) break;
            pen_status status =
                r->link->send(r->user, &part, from + t->done[m], bytes, &t->debt, why);
            if (status != PEN_OK) return status;
            t->done[m] += bytes;
            *did = true;
        }
        t->sends_left -= t->done[m] == total;
    }
    return PEN_OK;
}

/* ---- local moves ----------------------------------------------------------------------------- */
static const void *operand_at(const runner *r, const runner_track *t, uint32_t o)
{
    const move_range *operand = &r->plan->s->operand[o];
    const uint32_t from       = r->plan->source[o];
    if (from < r->plan->s->n_moves && t->kept[from] != NULL) return t->kept[from]->data;
    return address(r, t, operand->place, where(r, t, operand).at);
}

/* False: a member's scale is unknown yet. */
static bool fold(runner *r, runner_track *t, uint32_t m)
{
    const schedule *s = r->plan->s;
    const move *one   = &s->moves[m];
    const void **in   = r->folds.data;
    double *scale     = (double *)(void *)(in + r->plan->operands_max);
    bool has_scale    = false;
    for (uint32_t i = 0; i < one->n_from; i++) {
        const move_range *operand = &s->operand[one->from + i];
        in[i]                     = operand_at(r, t, one->from + i);
        scale[i]                  = 1;
        if (operand->of >= 0 && !r->is_wide && !s->scales_first &&
            !r->link->scale(r->user, operand->of, &scale[i]))
            return false;
        has_scale |= scale[i] != 1;
    }
    void *out         = address(r, t, one->range.place, t->span[m].at);
    const bool is_all = (s->keeps_order || s->scales_first) && one->n_from == (uint32_t)r->size;
    reduce(&(reduce_args){.op    = r->call.op == PEN_AVG && !one->is_last ? PEN_SUM : r->call.op,
                          .dtype = r->is_wide ? PEN_F32 : r->call.dtype,
                          .n_in  = (int)one->n_from,
                          .n_out = 1,
                          .in    = in,
                          .out   = &out,
                          .scale = has_scale ? scale : NULL,
                          .divide_by = r->size,
                          .order     = is_all ? r->order : NULL},
           0, t->span[m].elements);
    return true;
}

static void copy(runner *r, runner_track *t, uint32_t m)
{
    const move *one           = &r->plan->s->moves[m];
    const move_range *operand = &r->plan->s->operand[one->from];
    uint8_t *to               = address(r, t, one->range.place, t->span[m].at);
    const uint8_t *from       = address(r, t, operand->place, where(r, t, operand).at);
    if (to != from) memmove(to, from, t->span[m].elements * r->element);
}

/* `done` marks finished local moves: a step that waits for a scale resumes after them. */
static bool do_locals(runner *r, runner_track *t)
{
    const schedule *s = r->plan->s;
    for (uint32_t m = s->step[t->step]; m < s->step[t->step + 1]; m++) {
        const move *one = &s->moves[m];
        if (t->done[m] > 0 || t->span[m].elements == 0) continue;
        if (one->verb == MOVE_FOLD && !fold(r, t, m)) return false;
        if (one->verb == MOVE_COPY) copy(r, t, m);
        t->done[m] = 1;
    }
    return true;
}

static void drop_kept(const runner *r, runner_track *t, uint32_t step)
{
    const schedule *s = r->plan->s;
    for (uint32_t m = s->step[step]; m < s->step[step + 1]; m++) {
        buf_release(t->kept[m]);
        t->kept[m] = NULL;
    }
}

void runner_drop(runner *r)
{
    for (uint32_t i = 0; i < RUNNER_TRACKS; i++) {
        runner_track *t = &r->track[i];
        for (uint32_t step = t->step; t->is_active && step < r->plan->s->n_steps; step++)
            drop_kept(r, t, step);
    }
}

/* ---- advancing ------------------------------------------------------------------------------- */
static pen_status advance_track(runner *r, runner_track *t, bool *did, pen_error *why)
{
    const uint32_t end = end_step(r, t->segment);
    while (t->step < end) {
        if (!t->is_in_step) {
            if (r->plan->waits[t->step] && t->debt.n > 0) {
                r->is_blocked = true;
                return PEN_OK;
            }
            begin_step(r, t);
        }
        pen_status status = send_open(r, t, did, why);
        if (status != PEN_OK) return status;
        if (t->sends_left > 0 || t->recvs_left > 0 || !do_locals(r, t)) return PEN_OK;
        drop_kept(r, t, t->step);
        t->is_in_step = false;
        t->step++;
        *did = true;
    }
    t->is_active = false;
    r->active--;
    *did = true;
    return PEN_OK;
}

pen_status runner_advance(runner *r, bool *did, pen_error *why)
{
    bool again    = true;
    r->is_blocked = false;
    while (again) {
        again = activate(r);
        for (uint32_t i = 0; i < RUNNER_TRACKS; i++) {
            runner_track *t = &r->track[i];
            if (!t->is_active) continue;
            pen_status status = advance_track(r, t, &again, why);
            if (status != PEN_OK) return status;
        }
        *did |= again;
    }
    r->is_blocked |= r->active == 0;
    return PEN_OK;
}

uint32_t runner_lent(const runner *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < RUNNER_TRACKS; i++) n += r->track[i].debt.n;
    return n;
}

bool runner_is_done(const runner *r)
{
    return r->active == 0 && r->next_segment == r->segments && runner_lent(r) == 0;
}

void runner_finish(runner *r)
{
    if (r->result != NULL && r->is_wide)
        simd()->encode(r->result, r->call.out, r->call.dtype,
                       r->result_bytes / plan_dtype_bytes(r->call.dtype));
    else if (r->result != NULL)
        copy_stream(r->result, r->call.out, r->result_bytes);
    if (r->scratch.bytes > ROOM_KEPT_BYTES) clear_room(&r->scratch);
    if (r->wide_in.bytes > ROOM_KEPT_BYTES) clear_room(&r->wide_in);
}

/* ---- incoming data --------------------------------------------------------------------------- */
/* Finds the RECV of the part; false: none. */
static bool find_move(const runner *r, const runner_part *part, uint32_t *m)
{
    const runner_plan *p = r->plan;
    const uint32_t first = p->first[part->peer], end = p->first[part->peer + 1];
    if (part->slot >= end - first) return false;
    *m = p->recv[first + part->slot];
    return true;
}

runner_answer runner_place(runner *r, const runner_part *part, size_t bytes, void **place)
{
    uint32_t m;
    if (part->segment >= r->segments || !find_move(r, part, &m)) return RUNNER_WRONG;
    runner_track *t = find_track(r, part->segment);
    if (t == NULL) return part->segment >= r->next_segment ? RUNNER_LATER : RUNNER_WRONG;
    const size_t total  = t->span[m].elements * r->element;
    const uint32_t step = r->plan->step_of[m];
    if (part->total != total || t->done[m] + bytes > total || part->offset > total - bytes)
        return RUNNER_WRONG;
    const bool is_now = t->is_in_step && step == t->step;
    if (!is_now && !r->plan->is_free[m]) return step >= t->step ? RUNNER_LATER : RUNNER_WRONG;
    *place = address(r, t, r->plan->s->moves[m].range.place, t->span[m].at) + part->offset;
    return RUNNER_PLACED;
}

static buf **to_keep(runner *r, const runner_part *part, size_t bytes)
{
    uint32_t m;
    runner_track *t = find_track(r, part->segment);
    if (t == NULL || !find_move(r, part, &m) || !r->plan->may_stay[m]) return NULL;
    return part->offset == 0 && bytes == part->total && t->kept[m] == NULL ? &t->kept[m] : NULL;
}

bool runner_may_keep(runner *r, const runner_part *part, size_t bytes)
{
    return to_keep(r, part, bytes) != NULL;
}

/* Keeps only whole parts that are aligned for their elements. */
bool runner_keep(runner *r, const runner_part *part, buf *body)
{
    buf **kept = to_keep(r, part, body->size);
    if (kept == NULL || (uintptr_t)body->data % r->element != 0) return false;
    *kept = buf_acquire(body);
    return true;
}

void runner_filled(runner *r, const runner_part *part, size_t bytes)
{
    uint32_t m;
    runner_track *t = find_track(r, part->segment);
    if (t == NULL || !find_move(r, part, &m)) return;
    t->done[m] += bytes;
    if (t->is_in_step && r->plan->step_of[m] == t->step &&
        t->done[m] == t->span[m].elements * r->element)
        t->recvs_left--;
}

/* ---- missing data ---------------------------------------------------------------------------- */
static bool is_open(const runner *r, move_verb verb, int peer)
{
    const schedule *s = r->plan->s;
    bool is_named     = false;
    for (uint32_t m = 0; m < s->n_moves; m++) {
        if (s->moves[m].verb != verb || s->moves[m].peer != peer) continue;
        is_named = true;
        for (uint32_t i = 0; i < RUNNER_TRACKS; i++) {
            const runner_track *t = &r->track[i];
            if (t->is_active && t->done[m] < t->span[m].elements * r->element) return true;
        }
    }
    return is_named && r->next_segment < r->segments;
}

bool runner_expects(const runner *r, int peer)
{
    return is_open(r, MOVE_RECV, peer);
}

bool runner_owes(const runner *r, int peer)
{
    return is_open(r, MOVE_SEND, peer);
}

bool runner_is_cancelled(const runner *r, int *rank)
{
    for (uint32_t i = 0; i < RUNNER_TRACKS; i++) {
        if (!r->track[i].debt.is_cancelled) continue;
        *rank = r->track[i].debt.cut_by;
        return true;
    }
    return false;
}

/* Bytes in segments that have not begun. */
static size_t bytes_ahead(const runner *r, uint32_t m)
{
    size_t sum = 0;
    for (uint32_t i = r->next_segment; i < r->segments; i++) {
        runner_track t = {0};
        place_segment(r, &t, i);
        if (is_in_pass(r, i, m))
            sum += where(r, &t, &r->plan->s->moves[m].range).elements * r->element;
    }
    return sum;
}

size_t runner_missing(const runner *r, int peer)
{
    const runner_plan *p = r->plan;
    size_t sum           = 0;
    for (uint32_t i = p->first[peer]; i < p->first[peer + 1]; i++) {
        const uint32_t m = p->recv[i];
        for (uint32_t k = 0; k < RUNNER_TRACKS; k++)
            if (r->track[k].is_active)
                sum += r->track[k].span[m].elements * r->element - r->track[k].done[m];
        sum += bytes_ahead(r, m);
    }
    return sum;
}
