/* core_load.c - a restarted scheduler loads its state. */
#include "scheduler/core/persist/kept_items.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES = 64 << 20 };

typedef struct {
    const uint8_t *data;
    size_t left;
} reader;

typedef struct {
    uint32_t type;
    const uint8_t *data;
    size_t size;
} item;

/* False: no item is left, or it is truncated (then bytes are left). */
static bool next_item(reader *r, item *it)
{
    uint32_t head[2];
    if (r->left < sizeof head) return false;
    memcpy(head, r->data, sizeof head);
    if (head[1] > r->left - sizeof head) return false;
    *it = (item){head[0], r->data + sizeof head, head[1]};
    r->data += sizeof head + head[1];
    r->left -= sizeof head + head[1];
    return true;
}

/* Reads n numbers from the item's front. */
static bool take_numbers(item *it, int64_t *number, size_t n)
{
    if (it->size < n * sizeof *number) return false;
    memcpy(number, it->data, n * sizeof *number);
    it->data += n * sizeof *number;
    it->size -= n * sizeof *number;
    return true;
}

static bool is_head(const int64_t *number)
{
    return number[KEPT_AT_version] == KEPT_VERSION && number[KEPT_AT_phase] >= PHASE_REGISTERING &&
           number[KEPT_AT_phase] <= PHASE_ENDED;
}

uint64_t scheduler_core_kept_term(const void *state, size_t size)
{
    reader r = {state, size};
    item it;
    int64_t number[KEPT_HEAD_COUNT];
    if (!next_item(&r, &it) || it.type != KEPT_HEAD || it.size != sizeof number) return 0;
    if (!take_numbers(&it, number, KEPT_HEAD_COUNT) || !is_head(number)) return 0;
    return (uint64_t)number[KEPT_AT_term];
}

/* ---- the parts ------------------------------------------------------------------------------- */
static bool load_head(scheduler_core *core, item *it)
{
    int64_t number[KEPT_HEAD_COUNT];
    if (!take_numbers(it, number, KEPT_HEAD_COUNT) || !is_head(number)) return false;
    const uint64_t term = core->job.term;
#define X(name, at) core->at = (__typeof__(core->at))number[KEPT_AT_##name];
    KEPT_HEAD_NUMBERS(X)
#undef X
    core->job.term          = term;
    core->job.servers_known = true;
    core->members.has_begun = true;
    return core->job.n_servers <= ROSTER_SERVERS_MAX &&
           core->members.ranks_max <= ROSTER_WORKERS_MAX &&
           core->model.n_shards <= WIRE_PARTITIONS_MAX;
}

static bool load_member_slot(scheduler_core *core, item *it, const wire_control *hello)
{
    int64_t number[KEPT_MEMBER_COUNT];
    const int32_t role = hello->u.hello.role, rank = hello->u.hello.rank;
    const bool is_worker = role == PEN_WORKER;
    const int32_t most   = is_worker ? ROSTER_WORKERS_MAX : ROSTER_SERVERS_MAX;
    member_slots *list = is_worker ? &core->members.roster.workers : &core->members.roster.servers;
    memcpy(number, it->data, sizeof number);
    if ((!is_worker && role != PEN_SERVER) || rank < 0 || rank >= most) return false;
    if (number[KEPT_OF_state] < 0 || number[KEPT_OF_state] >= MEMBER_STATE_COUNT) return false;
    if (roster_grow(list, role, (uint32_t)rank + 1) != PEN_OK) return false;
    member_slot *s = list->at[rank];
    if (member_slot_describe(s, hello) != PEN_OK) return false;
#define X(name) s->name = (__typeof__(s->name))number[KEPT_OF_##name];
    KEPT_MEMBER_NUMBERS(X)
#undef X
    s->nonce       = hello->u.hello.nonce;
    s->incarnation = hello->from;
    if (core->job.name[0] == 0)
        snprintf(core->job.name, sizeof core->job.name, "%.63s", hello->u.hello.job);
    return true;
}

static bool load_view(scheduler_core *core, const wire_control *epoch)
{
    if (!wire_control_copy(epoch, &core->epoch.kept, &core->epoch.view)) return false;
    for (uint32_t i = 0; i < epoch->u.epoch.n_replicas; i++)
        if (!placement_add(&core->epoch.place, &epoch->u.epoch.replica[i])) return false;
    return true;
}

static bool load_loss(scheduler_core *core, item *it, const wire_control *loss)
{
    int64_t rank;
    memcpy(&rank, it->data, sizeof rank);
    member_slot *s = rank < ROSTER_WORKERS_MAX
                         ? roster_find(&core->members.roster, PEN_WORKER, (int32_t)rank)
                         : NULL;
    if (!s || !(s->loss = malloc(sizeof *s->loss))) return false;
    *s->loss = loss->u.verdict;
    return true;
}

static bool load_message(scheduler_core *core, item *it, const wire_control *c)
{
    switch (it->type) {
    case KEPT_MEMBER: return c->kind == WIRE_HELLO && load_member_slot(core, it, c);
    case KEPT_RECORD: return c->kind == WIRE_EPOCH && load_view(core, c);
    case KEPT_PLAN: return c->kind == WIRE_PLAN && core_model_adopt(core, c);
    case KEPT_LOSS: return c->kind == WIRE_VERDICT && load_loss(core, it, c);
    case KEPT_VALUE:
        return c->kind == WIRE_STORE &&
               kv_adopt(&core->services.store, c, core->members.roster.workers.n);
    case KEPT_VERDICT:
        if (c->kind != WIRE_VERDICT) return false;
        core->job.has_verdict = true;
        core->job.verdict     = c->u.verdict;
        core->job.phase       = PHASE_FAILED;
        return true;
    default: return false;
    }
}

static bool load_item(scheduler_core *core, item *it, wire_arena *arena)
{
    if (it->type == KEPT_HEAD) return load_head(core, it);
    if (it->type == KEPT_ANSWERS)
        return kv_adopt_answers(&core->services.store, it->data, it->size,
                                core->members.roster.workers.n);
    const size_t skip = sizeof(int64_t) * (it->type == KEPT_MEMBER ? KEPT_MEMBER_COUNT
                                           : it->type == KEPT_LOSS ? 1
                                                                   : 0);
    wire_control message;
    pen_error why;
    if (it->size < skip) return false;
    wire_arena_reset(arena);
    return wire_control_decode(it->data + skip, it->size - skip, arena, &message, &why) == PEN_OK &&
           load_message(core, it, &message);
}

/* ---- continuing -------------------------------------------------------------------- */
/* Its death was under investigation: not reported, and no rule applied. */
static bool is_not_judged(const scheduler_core *core, const member_slot *s)
{
    return s->role == PEN_WORKER && s->state == MEMBER_DEAD && !core->job.has_verdict && !s->loss &&
           !s->awaited_ms && s->in_view == s->incarnation;
}

static void go_on(scheduler_core *core)
{
    /* All members are away until their next HELLO; those about to join start over. */
    ROSTER_EACH(s, &core->members.roster) {
        if (s->state == MEMBER_ACTIVE || is_not_judged(core, s)) s->state = MEMBER_AWAY;
        if (s->state == MEMBER_JOINING || s->state == MEMBER_ABSENT) {
            /* a replacement: the dead worker is still awaited */
            const bool is_late = core->job.phase == PHASE_TRAINING && s->in_view;
            s->state           = is_late ? MEMBER_DEAD : MEMBER_ABSENT;
            if (is_late && s->role == PEN_WORKER && !s->awaited_ms)
                s->awaited_ms = core->out.now_ms;
        }
        s->last_seen_ms = s->down_ms = s->beat_ms = core->out.now_ms;
        if (s->awaited_ms) s->awaited_ms = core->out.now_ms + core->job.settings.wait_ms;
    }
    core->job.amnesty_ms       = core->out.now_ms + core->job.settings.lease_ms;
    core->epoch.goal_is_old    = true;
    core->reports.last_will_ms = core->job.amnesty_ms;
    if (core->job.phase == PHASE_STOPPING || core->job.phase == PHASE_FAILED)
        core->job.end_ms = core->job.amnesty_ms + CORE_END_MS;
    core_log(&core->out, LOG_NOTICE, "the scheduler is back: job '%s', view %" PRIu64 ", %s and %s",
             core->job.name, core->epoch.number, MANY(core->members.roster.workers.n, "worker"),
             MANY(core->members.roster.servers.n, "server"));
    core_epoch_want(core, core->out.now_ms, "the scheduler is back");
    if (core_runs(core)) core->due |= DUE_END; /* the last worker may have left before the crash */
}

pen_status scheduler_core_load(scheduler_core *core, const void *state, size_t size,
                               uint64_t now_ms, pen_error *why)
{
    core->out.now_ms  = now_ms;
    wire_arena *arena = wire_arena_create(ARENA_BYTES);
    reader r          = {state, size};
    bool done         = arena != NULL && scheduler_core_kept_term(state, size) != 0;
    item it;
    while (done && next_item(&r, &it)) done = load_item(core, &it, arena);
    wire_arena_destroy(arena);
    if (!done || r.left > 0 || core->epoch.view.kind != WIRE_EPOCH)
        return why_set(why, PEN_CORRUPT,
                       "cannot read the scheduler's state in %.200s; move it away to start over",
                       core->job.settings.state);
    go_on(core);
    return PEN_OK;
}
