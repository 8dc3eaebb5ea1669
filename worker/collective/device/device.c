/* device.c - collectives on device memory: teams, and the stages of a call. */
#include "worker/collective/device/device_internal.h"
#include "worker/collective/device/device_test.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "proto/plan.h"
#include "worker/collective/fault_point.h"
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A stream may reach its signal late: what the program enqueued before runs first, and may load code. */
static const uint64_t spin_default_ns = 60000000000;

enum { STAGING_STEP = 2 << 20 };

/* ---- teams ------------------------------------------------------------------------------------------ */

static bool make_arrays(device_team *t)
{
    const size_t n = (size_t)t->size;
    t->arrays =
        ARRAYS_NEW(ARRAY(t->ranks, n), ARRAY(t->peer, n), ARRAY(t->peer_ref, n), ARRAY(t->slot, n),
                   ARRAY(t->pools, n), ARRAY(t->pool_ref, n), ARRAY(t->events, 2 * n),
                   ARRAY(t->mapped, n * DEVICE_CACHED), ARRAY(t->operands, n), ARRAY(t->results, n),
                   ARRAY(t->scale, n), ARRAY(t->headers, n));
    return t->arrays != NULL;
}

pen_status device_team_create(device_place *place, uint64_t id, const char *const *address,
                              const int *ranks, int size, int rank, const device_options *options,
                              device_team **team, pen_error *why)
{
    if (size > DEVICE_ARRAYS_MAX)
        return why_set(why, PEN_UNSUPPORTED, "at most %d members of a host share devices, not %d",
                       DEVICE_ARRAYS_MAX, size);
    device_team *t = calloc(1, sizeof *t);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a team of devices");
    *t = (device_team){.place    = place,
                       .ops      = options->ops,
                       .options  = *options,
                       .id       = id,
                       .size     = size,
                       .rank     = rank,
                       .own_slot = -1,
                       .device   = options->device};
    if (t->options.spin_ns == 0) t->options.spin_ns = spin_default_ns;
    pen_status status = PEN_NO_MEMORY;
    if (make_arrays(t)) {
        memcpy(t->ranks, ranks, (size_t)size * sizeof *ranks);
        status = device_open_peers(t, address, why);
        if (status == PEN_OK) status = device_take_slot(t, why);
    } else {
        why_set(why, PEN_NO_MEMORY, "no memory for a team of devices");
    }
    if (status == PEN_OK)
        *team = t;
    else
        device_team_free(t);
    return status;
}

/* Peers may still read what the last call put into the pool. */
static bool peers_have_ended(const device_team *team)
{
    for (int i = 0; i < team->size; i++)
        if (i != team->rank && team->slot[i] != NULL && !device_has_left(team, i) &&
            atomic_load(&team->slot[i]->ended) < team->last)
            return false;
    return true;
}

/* After a call in stream order: when this member's stream has passed its end, no peer uses this member's memory. */
static bool drain(device_team *team)
{
    const struct timespec pause = {.tv_nsec = 50000};
    const uint64_t until        = clock_ms(&clock_real) + DEVICE_DRAIN_MS;
    while (team->is_unsettled && team->ops->event_done(team->end, NULL) == PEN_AGAIN) {
        if (clock_ms(&clock_real) >= until) return false;
        nanosleep(&pause, NULL);
    }
    team->is_unsettled = false;
    return true;
}

void device_team_stop(device_team *team)
{
    if (team->stop != NULL) __atomic_store_n(&team->stop->abort, 1, __ATOMIC_RELEASE);
    if (team->nccl != NULL) team->options.nccl->abort(team->nccl);
    team->is_stopped = true;
}

void device_team_destroy(device_team *team)
{
    if (team == NULL) return;
    bool is_drained = drain(team);
    if (!is_drained) {
        device_team_stop(team); /* its kernels wait for members that may be gone */
        is_drained = drain(team);
    }
    /* A peer that is only slow still needs this member's memory; one that is gone never ends. */
    const struct timespec pause = {.tv_nsec = 50000};
    const uint64_t patience     = team->is_stopped ? DEVICE_SETTLE_MS : DEVICE_DRAIN_MS;
    const uint64_t until        = clock_ms(&clock_real) + patience;
    while (team->setup > 0 && !peers_have_ended(team) && clock_ms(&clock_real) < until)
        nanosleep(&pause, NULL);
    const bool has_memory = is_drained && (team->setup > 0 || team->pool != NULL);
    if (has_memory) {
        const bool has_entered = team->ops->enter(team->device, NULL) == PEN_OK;
        device_unmap_peers(team);
        if (has_entered) team->ops->leave();
    }
    device_leave_slot(team);
    if (has_memory)
        device_place_take(team->place, team);
    else
        device_team_free(team);
}

const char *device_team_text(const device_team *team)
{
    return team->text;
}

bool device_team_is_refused(const device_team *team)
{
    return team->is_refused;
}

/* ---- two kinds of memory ------------------------------------------------------------------------------ */

void device_team_mark(device_team *team, uint64_t seq, bool on_device)
{
    atomic_store_explicit(&device_own_slot(team)->mark, 2 * seq + on_device, memory_order_release);
}

pen_status device_team_compare(device_team *team, uint64_t seq, bool on_device, pen_error *why)
{
    const uint64_t other = 2 * seq + !on_device;
    (void)device_find_peers(team);
    for (int i = 0; i < team->size; i++) {
        if (team->slot[i] == NULL ||
            atomic_load_explicit(&team->slot[i]->mark, memory_order_acquire) != other)
            continue;
        why_set(why, PEN_MISMATCH,
                "call %" PRIu64 " differs: rank %d uses %s memory, rank %d %s memory", seq,
                team->ranks[i], on_device ? "host" : "device", team->ranks[team->rank],
                on_device ? "device" : "host");
        why_culprit(why, PEN_WORKER, team->ranks[i], -1, "");
        return PEN_MISMATCH;
    }
    return PEN_OK;
}

/* ---- headers ---------------------------------------------------------------------------------------- */

static void arrive(device_op *op)
{
    const coll_call *call = op->call;
    device_entry *entry   = device_entry_of(op, op->team->rank);
    entry->has_in = entry->has_out = 0;
    entry->scale                   = call->scale;
    entry->in_stream_order         = call->in_stream_order;
    coll_header_of(call, op->team->size, op->seq, &entry->header);
    if (call->kind == COLL_ALL_TO_ALL) {
        for (int i = 0; i < op->team->size; i++) {
            entry->sends[i]    = coll_part(call->counts, call->n, i);
            entry->receives[i] = coll_part(call->out_counts, call->n, i);
        }
    }
    atomic_store_explicit(&entry->arrived, op->seq, memory_order_release);
    device_ring(op->team);
}

static pen_status staging(device_team *team, device_staging *s, size_t bytes, pen_error *why)
{
    if (s->bytes >= bytes) return PEN_OK;
    size_t more = STAGING_STEP;
    while (more < bytes) more *= 2;
    if (!VEC_MORE(team->retired, team->n_retired))
        return why_set(why, PEN_NO_MEMORY, "no memory for staging");
    if (s->data != NULL) team->retired[team->n_retired++] = s->data;
    s->bytes = 0;
    s->data  = team->ops->alloc(more, team->device, why);
    if (s->data == NULL) return PEN_NO_MEMORY;
    s->bytes = more;
    return PEN_OK;
}

static pen_status offer_in(device_op *op, device_entry *entry, pen_error *why)
{
    device_team *team     = op->team;
    const coll_call *call = op->call;
    op->in                = call->in;
    if (op->in_bytes == 0) return PEN_OK;
    if (op->is_one_shot) {
        char *pool = team->pool + DEVICE_FLAGS_BYTES + op->seq % 2 * DEVICE_POOL_BYTES;
        op->in     = pool;
        return device_team_copy(team, call->traffic, pool, call->in, op->in_bytes, call->stream,
                                why);
    }
    if (!device_shows_in(op)) return PEN_OK;
    entry->has_in     = 1;
    pen_status status = team->ops->share(call->in, op->in_bytes, &entry->in, why);
    if (status != PEN_UNSUPPORTED) return status;
    status = staging(team, &team->in, op->in_bytes, why);
    if (status == PEN_OK)
        status = device_team_copy(team, call->traffic, team->in.data, call->in, op->in_bytes,
                                  call->stream, why);
    op->in = team->in.data;
    return status == PEN_OK ? team->ops->share(op->in, op->in_bytes, &entry->in, why) : status;
}

static bool overlaps(const device_op *op)
{
    return coll_overlap(op->call->in, op->in_bytes, op->call->out, op->out_bytes);
}

static pen_status offer_out(device_op *op, device_entry *entry, pen_error *why)
{
    device_team *team = op->team;
    pen_status status = PEN_UNSUPPORTED;
    op->out           = op->call->out;
    if (op->out_bytes == 0 || op->is_one_shot) return PEN_OK;
    entry->has_out        = device_shows_out(op);
    const bool must_stage = overlaps(op) && !device_is_own_part(op);
    if (!must_stage && !entry->has_out) return PEN_OK;
    if (!must_stage) status = team->ops->share(op->out, op->out_bytes, &entry->out, why);
    if (status != PEN_UNSUPPORTED) return status;
    op->copies_out = true;
    status         = staging(team, &team->out, op->out_bytes, why);
    op->out        = team->out.data;
    if (status != PEN_OK || !entry->has_out) return status;
    return team->ops->share(op->out, op->out_bytes, &entry->out, why);
}

/* Enqueues the copy of the input to where peers read it, if any, and the first barrier. */
static pen_status offer(device_op *op, pen_error *why)
{
    device_team *team   = op->team;
    device_entry *entry = device_entry_of(op, team->rank);
    op->is_one_shot     = device_is_small(op);
    pen_status status   = PEN_OK;
    if (team->is_unsettled) status = team->ops->stream_wait(op->call->stream, team->end, why);
    if (status != PEN_OK) return status;
    op->has_enqueued = true;
    status           = offer_in(op, entry, why);
    if (status == PEN_OK) status = offer_out(op, entry, why);
    if (status != PEN_OK) return status;
    atomic_store_explicit(&entry->offered, op->seq, memory_order_release);
    return team->sync->signal(team, ++team->step, op->call->stream, why);
}

/* ---- stages ------------------------------------------------------------------------------------------ */

enum { AT_ARRIVAL, AT_SETUP, AT_READY, AT_TAKEN, AT_LEAVING, AT_END, ENDED };

static bool all_arrived(const device_op *op)
{
    for (int i = 0; i < op->team->size; i++)
        if (atomic_load_explicit(&device_entry_of(op, i)->arrived, memory_order_acquire) < op->seq)
            return false;
    return true;
}

static bool all_offered(const device_op *op)
{
    for (int i = 0; i < op->team->size; i++)
        if (atomic_load_explicit(&device_entry_of(op, i)->offered, memory_order_acquire) < op->seq)
            return false;
    return true;
}

static pen_status arrival_stage(device_op *op, pen_error *why)
{
    device_team *team = op->team;
    if (!device_find_peers(team) || !all_arrived(op)) return PEN_AGAIN;
    for (int i = 0; i < team->size; i++) team->headers[i] = &device_entry_of(op, i)->header;
    pen_status status = coll_headers_compare(team->headers, team->ranks, team->size, why);
    if (status == PEN_OK) status = device_check_counts(op, why);
    op->stage = device_moves(op) ? AT_SETUP : ENDED;
    return status;
}

/* Until all are ready, no member moves data: a member that cannot take part, whatever its driver lacks, tells the
 * others, which wait for it.  All take another path then. */
static pen_status refuse(device_team *team, pen_status status, pen_error *why)
{
    const bool cannot = status == PEN_UNSUPPORTED || status == PEN_UNREACHABLE ||
                        status == PEN_DEVICE || status == PEN_NO_MEMORY;
    if (!cannot || team->is_ready) return status;
    team->is_refused = true;
    atomic_store(&device_own_slot(team)->refused, 1);
    return why->status = PEN_UNSUPPORTED;
}

static pen_status setup_stage(device_op *op, pen_error *why)
{
    device_team *team = op->team;
    pen_status status = refuse(team, device_setup(team, op->call->stream, why), why);
    if (status == PEN_OK && !op->has_enqueued) status = offer(op, why);
    if (status == PEN_OK) op->stage = AT_READY;
    return status;
}

/* Or the call before: this member's part of it had ended in stream order. */
static pen_status gave_up(const device_op *op, pen_error *why)
{
    for (int i = 0; i < op->team->size; i++) {
        if (op->team->slot[i] == NULL || i == op->team->rank) continue;
        const uint64_t which = atomic_load(&op->team->slot[i]->given_up);
        if (which == 0 || (which != op->seq && which + 1 != op->seq)) continue;
        if (atomic_load(&op->team->slot[i]->refused) != 0 && !op->team->is_ready) {
            why_set(why, PEN_UNSUPPORTED, "rank %d cannot share its device with others",
                    op->team->ranks[i]);
            return refuse(op->team, PEN_UNSUPPORTED, why);
        }
        return why_set(why, PEN_PEER_LOST, "rank %d gave up %s%s (call %" PRIu64 ")",
                       op->team->ranks[i], which < op->seq ? "the call before " : "",
                       coll_kind_name(op->call->kind), op->seq);
    }
    return PEN_OK;
}

/* Whether the others may use this member's memory, or the pool it read from, until a second barrier. */
static bool must_leave(const device_op *op)
{
    bool must = !op->is_one_shot;
    for (int i = 0; i < op->team->size; i++) must |= device_entry_of(op, i)->in_stream_order != 0;
    return must;
}

/* A member that gives up sets `given_up`, then waits for members with `working` set; a member that works sets
 * `working`, then reads `given_up` of all.  One of the two sees the other. */
static pen_status ready_stage(device_op *op, pen_error *why)
{
    device_team *team = op->team;
    if (!all_offered(op)) return PEN_AGAIN;
    pen_status status = team->sync->passed(team, team->step, op->call->stream, why);
    if (status != PEN_OK) return status;
    if (!op->is_one_shot) atomic_store(&device_own_slot(op->team)->working, op->seq);
    status = gave_up(op, why);
    if (status == PEN_OK) {
        op->has_written = op->is_one_shot && overlaps(op) && !device_is_own_part(op);
        status          = device_work(op, why);
    }
    if (status == PEN_OK) op->stage = AT_TAKEN;
    return status;
}

static pen_status taken_stage(device_op *op, pen_error *why)
{
    device_team *team = op->team;
    pen_status status = device_nccl_taken(op, why);
    if (status != PEN_OK) return status;
    op->leaves = must_leave(op);
    op->stage  = op->leaves ? AT_LEAVING : AT_END;
    if (!op->leaves) return team->ops->event_record(team->end, op->call->stream, why);
    return team->sync->signal(team, ++team->step, op->call->stream, why);
}

static pen_status leaving_stage(device_op *op, pen_error *why)
{
    device_team *team = op->team;
    pen_status status = team->sync->passed(team, team->step, op->call->stream, why);
    if (status == PEN_OK && op->copies_out)
        status = device_team_copy(team, op->call->traffic, op->call->out, op->out, op->out_bytes,
                                  op->call->stream, why);
    if (status == PEN_OK) status = team->ops->event_record(team->end, op->call->stream, why);
    if (status == PEN_OK) op->stage = op->call->in_stream_order ? ENDED : AT_END;
    if (status == PEN_OK && op->stage == ENDED) team->is_unsettled = true;
    return status;
}

/* Whether all waits of kernels so far have ended well; those that have not ended count as such. */
static pen_status look_at_waits(const device_op *op, pen_error *why)
{
    const device_team *team = op->team;
    if (!team->is_ready || !team->sync->has_waits ||
        __atomic_load_n(&team->stop->result, __ATOMIC_ACQUIRE) == DEVICE_FLAG_CAME)
        return PEN_OK;
    return why_set(why, PEN_TIMED_OUT,
                   "%s (call %" PRIu64 "): a device waited %.1f s for the other ranks%s",
                   coll_kind_name(op->call->kind), op->seq, (double)team->options.spin_ns / 1e9,
                   op->has_enqueued ? "" : " in an earlier call");
}

static pen_status end_stage(device_op *op, pen_error *why)
{
    pen_status status = op->team->ops->event_done(op->team->end, why);
    if (status == PEN_AGAIN && device_nccl_taken(op, why) != PEN_OK) return why->status;
    if (status != PEN_OK) return status;
    op->stage              = ENDED;
    op->team->is_unsettled = false;
    return look_at_waits(op, why);
}

/* ---- the path ------------------------------------------------------------------------------------------ */

static bool peers_work(const device_op *op)
{
    for (int i = 0; i < op->team->size; i++)
        if (i != op->team->rank && op->team->slot[i] != NULL &&
            atomic_load(&op->team->slot[i]->working) != 0)
            return true;
    return false;
}

/* From then on, peers that give up need not wait for this member. */
static bool own_work_is_done(const device_op *op)
{
    device_team *team = op->team;
    if (team->end != NULL && (op->has_enqueued || team->is_unsettled) &&
        team->ops->event_done(team->end, NULL) == PEN_AGAIN)
        return false;
    team->is_unsettled = false;
    atomic_store(&device_own_slot(team)->working, 0);
    return true;
}

/* Our kernels are short: a peer that does not end in time is dead, and so are its kernels. */
static void settle(device_op *op)
{
    const uint64_t until = clock_ms(&clock_real) + DEVICE_SETTLE_MS;
    bool is_done         = false;
    if (op->has_enqueued && op->team->end != NULL)
        (void)op->team->ops->event_record(op->team->end, op->call->stream, NULL);
    while (clock_ms(&clock_real) < until) {
        is_done = is_done || own_work_is_done(op);
        if (is_done && !peers_work(op)) break;
        sched_yield();
    }
    if (!is_done && op->has_enqueued) op->team->is_unsettled = true;
}

static void end_op(device_op *op)
{
    if (!op->team->is_unsettled) atomic_store(&device_own_slot(op->team)->working, 0);
    atomic_store(&device_own_slot(op->team)->ended, op->seq);
    op->stage = ENDED;
}

/* The pool still has the input of a one-shot call in place: restored from there. */
static void give_up(device_op *op)
{
    device_team *team = op->team;
    atomic_store(&device_own_slot(op->team)->given_up, op->seq);
    device_ring(team);
    device_team_stop(team);
    settle(op);
    if (op->has_written) {
        op->has_written = false;
        if (device_team_copy(team, op->call->traffic, (void *)(uintptr_t)op->call->in, op->in,
                             op->in_bytes, op->call->stream, NULL) == PEN_OK)
            settle(op);
    }
    end_op(op);
}

static pen_status device_start(void *team, void *state, const coll_call *call, uint64_t seq,
                               pen_error *why)
{
    device_op *op  = state;
    device_team *t = team;
    *op =
        (device_op){.team = t, .call = call, .seq = seq, .element = plan_dtype_bytes(call->dtype)};
    op->in_bytes  = coll_in_elements(call, t->size, t->rank) * op->element;
    op->out_bytes = coll_out_elements(call, t->size, t->rank) * op->element;
    t->last       = seq;
    if (t->setup == 0 && t->options.device < 0 && device_moves(op)) {
        const void *buffer = call->in != NULL ? call->in : call->out;
        t->device          = buffer != NULL ? t->ops->device(buffer) : t->ops->current();
    }
    FAULT_POINT("device", op->seq, op->stage);
    arrive(op);
    if (!t->is_ready || !device_moves(op)) return PEN_OK;
    pen_status status = t->ops->enter(t->device, why);
    if (status != PEN_OK) return status;
    status = look_at_waits(op, why);
    if (status == PEN_OK) status = offer(op, why);
    if (status != PEN_OK) give_up(op);
    t->ops->leave();
    return status;
}

/* Runs stages until one must wait. */
static pen_status advance_stages(device_op *op, pen_error *why)
{
    static pen_status (*const stages[ENDED])(device_op *, pen_error *) = {
        [AT_ARRIVAL] = arrival_stage, [AT_SETUP] = setup_stage,     [AT_READY] = ready_stage,
        [AT_TAKEN] = taken_stage,     [AT_LEAVING] = leaving_stage, [AT_END] = end_stage,
    };
    while (op->stage != ENDED) {
        const int stage   = op->stage;
        pen_status status = stages[stage](op, why);
        const bool needs_all =
            stage < AT_END || op->is_by_nccl; /* its kernels wait for all members */
        if (status == PEN_AGAIN && needs_all && gave_up(op, why) != PEN_OK) return why->status;
        if (status != PEN_OK) return status;
        FAULT_POINT("device", op->seq, op->stage);
    }
    return PEN_OK;
}

static coll_state device_advance(void *state, pen_error *why)
{
    device_op *op         = state;
    const bool needs_work = op->stage != AT_ARRIVAL || device_moves(op);
    pen_status status     = needs_work ? op->team->ops->enter(op->team->device, why) : PEN_OK;
    const bool is_inside  = needs_work && status == PEN_OK;
    if (status == PEN_OK) status = advance_stages(op, why);
    if (status == PEN_OK) end_op(op);
    if (status != PEN_OK && status != PEN_AGAIN) give_up(op);
    if (is_inside) op->team->ops->leave();
    return status == PEN_OK ? COLL_DONE : status == PEN_AGAIN ? COLL_RUNNING : COLL_FAILED;
}

static void device_abort(void *state)
{
    device_op *op = state;
    if (op->stage == ENDED) return;
    const bool has_entered =
        op->has_enqueued && op->team->ops->enter(op->team->device, NULL) == PEN_OK;
    give_up(op);
    if (has_entered) op->team->ops->leave();
}

static int device_missing(void *state, int *positions, int cap)
{
    const device_op *op     = state;
    const device_team *team = op->team;
    int n                   = 0;
    for (int i = 0; i < team->size && n < cap; i++) {
        if (i == team->rank) continue;
        const bool has_come =
            team->slot[i] != NULL && atomic_load(&device_entry_of(op, i)->arrived) >= op->seq &&
            (op->stage != AT_READY || atomic_load(&device_entry_of(op, i)->offered) >= op->seq) &&
            (op->stage < AT_READY || atomic_load(&team->slot[i]->step) >= team->step);
        if (!has_come) positions[n++] = i;
    }
    return n;
}

static pen_status device_follow(void *state, void *stream, pen_error *why)
{
    const device_op *op = state;
    return op->stage == AT_END ? op->team->ops->stream_wait(stream, op->team->end, why) : PEN_AGAIN;
}

const coll_path coll_path_device = {
    .name    = "device",
    .start   = device_start,
    .advance = device_advance,
    .abort   = device_abort,
    .missing = device_missing,
    .follow  = device_follow,
};
