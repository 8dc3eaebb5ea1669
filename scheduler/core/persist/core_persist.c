/* core_persist.c - writes the state that outlives this process, before sending anything that depends on it.
 *
 * DESIGN.  Writes all of it each time: a few kilobytes, at most a few times a minute.  The rest is either repeated by
 * the members (models being registered, beats, caught-up copies) or may be lost (faults of collectives, snapshot
 * requests).
 */
#include "common/containers/arrays.h"
#include "scheduler/core/persist/kept_items.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t *data;
    size_t size, capacity;
    bool has_failed;
    wire_out out;
} writer;

static void put(writer *w, const void *data, size_t size)
{
    w->has_failed |= !VEC_ROOM(w->data, w->capacity, w->size + size);
    if (w->has_failed) return;
    if (size) memcpy(w->data + w->size, data, size);
    w->size += size;
}

/* Numbers, then a message; either may be absent. */
static void put_item(writer *w, uint32_t type, const int64_t *number, size_t n,
                     const wire_control *message)
{
    pen_error why;
    size_t frame = 0;
    if (message && wire_control_encode(message, &w->out, &why) != PEN_OK) w->has_failed = true;
    if (message && !w->has_failed) frame = w->out.size;
    const uint32_t head[2] = {type, (uint32_t)(n * sizeof *number + frame)};
    put(w, head, sizeof head);
    put(w, number, n * sizeof *number);
    if (frame) put(w, w->out.data, frame);
}

/* ---- the parts ------------------------------------------------------------------------------- */
static void put_head(writer *w, const scheduler_core *core)
{
    int64_t number[KEPT_HEAD_COUNT];
#define X(name, at) number[KEPT_AT_##name] = (int64_t)core->at;
    KEPT_HEAD_NUMBERS(X)
#undef X
    number[KEPT_AT_version] = KEPT_VERSION;
    put_item(w, KEPT_HEAD, number, KEPT_HEAD_COUNT, NULL);
}

static wire_control hello_of(const scheduler_core *core, const member_slot *s)
{
    wire_control c        = {.kind = WIRE_HELLO, .from = s->incarnation};
    c.u.hello.role        = s->role;
    c.u.hello.rank        = s->rank;
    c.u.hello.pid         = s->pid;
    c.u.hello.local_rank  = s->said_local_rank;
    c.u.hello.node        = s->said_node;
    c.u.hello.nonce       = s->nonce;
    c.u.hello.number      = s->number;
    c.u.hello.holds_state = s->holds_state;
    c.u.hello.host        = s->host;
    c.u.hello.machine     = s->machine;
    c.u.hello.job         = core->job.name;
    c.u.hello.store       = s->store;
    c.u.hello.n_addresses = s->n_addresses;
    c.u.hello.address     = s->address;
    c.u.hello.n_snapshots = s->n_snapshots;
    c.u.hello.snapshot    = s->snapshot;

    c.u.hello.local_world_size = s->said_local_size;
    return c;
}

static void put_member_slots(writer *w, const scheduler_core *core)
{
    ROSTER_EACH(s, &core->members.roster) {
        if (s->rank < 0) continue;
        int64_t number[KEPT_MEMBER_COUNT];
#define X(name) number[KEPT_OF_##name] = (int64_t)s->name;
        KEPT_MEMBER_NUMBERS(X)
#undef X
        const wire_control hello = hello_of(core, s);
        put_item(w, KEPT_MEMBER, number, KEPT_MEMBER_COUNT, &hello);
        if (!s->loss) continue;
        const wire_control loss = {.kind = WIRE_VERDICT, .u.verdict = *s->loss};
        put_item(w, KEPT_LOSS, &(int64_t){s->rank}, 1, &loss);
    }
}

static void put_plan(writer *w, const scheduler_core *core)
{
    if (core->job.phase < PHASE_LOADING || !core->model.of) return;
    const wire_control c = core_model_plan(core, true);
    put_item(w, KEPT_PLAN, NULL, 0, &c);
}

static void put_value(void *user, const char *key, const void *data, size_t size)
{
    wire_control c = {
        .kind    = WIRE_STORE,
        .u.store = {.op = WIRE_STORE_SET, .key = key, .data = data, .data_size = size}};
    put_item(user, KEPT_VALUE, NULL, 0, &c);
}

static void put_answers(void *user, const int64_t *number, size_t n)
{
    put_item(user, KEPT_ANSWERS, number, n, NULL);
}

bool core_persist(scheduler_core *core)
{
    if (!core->out.actions.keep || core->job.phase < PHASE_REGISTERING) return true;
    writer w = {0};
    put_head(&w, core);
    put_member_slots(&w, core);
    put_item(&w, KEPT_RECORD, NULL, 0, &core->epoch.view);
    put_plan(&w, core);
    kv_each(&core->services.store, put_value, put_answers, &w);
    if (core->job.has_verdict) {
        const wire_control verdict = {.kind = WIRE_VERDICT, .u.verdict = core->job.verdict};
        put_item(&w, KEPT_VERDICT, NULL, 0, &verdict);
    }
    const pen_status status = w.has_failed
                                  ? PEN_NO_MEMORY
                                  : core->out.actions.keep(core->out.actions.user, w.data, w.size);
    free(w.data);
    wire_out_free(&w.out);
    if (status == PEN_OK || core->job.has_verdict) return status == PEN_OK;
    pen_error why;
    why_set(&why, PEN_STORE,
            "cannot write the scheduler's state to %.200s: %s; free some space, or start without "
            "--state",
            core->job.settings.state, pen_status_info(status)->text);
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    core_verdict(core, &why);
    return false;
}
