/* core_kv.c - STORE and STORED: the small key-value store of a job.
 *
 * DESIGN.  An asker repeats STORE until it is answered.  A get of a missing key waits here; kv.h says what is
 * remembered.
 */
#include "scheduler/core/core_state.h"
#include <string.h>

/* ---- answering ------------------------------------------------------------------------------- */
static void reply(scheduler_core *core, const member_slot *s, uint64_t id, pen_status status,
                  const char *text, int64_t value)
{
    wire_control c = {.kind     = WIRE_STORED,
                      .u.stored = {.id = id, .status = status, .text = text, .value = value}};
    core_send(&core->out, s, &c);
}

static bool give(scheduler_core *core, const member_slot *s, uint64_t id, const char *key)
{
    wire_control c   = {.kind = WIRE_STORED};
    c.u.stored.id    = id;
    c.u.stored.data  = value_table_get(core->services.store.values, key, &c.u.stored.data_size);
    const bool is_in = c.u.stored.data != NULL;
    if (is_in) core_send(&core->out, s, &c);
    return is_in;
}

/* ---- waiting gets -------------------------------------------------------------------------- */
static void wake(scheduler_core *core, const char *key)
{
    kv *store = &core->services.store;
    for (uint32_t i = 0; i < store->n_waiters;) {
        const kv_waiter w    = store->waiter[i];
        const member_slot *s = roster_find(&core->members.roster, PEN_WORKER, w.rank);
        const bool is_here   = s && s->incarnation == w.incarnation && member_slot_is_here(s);
        if (is_here && strcmp(w.key, key) != 0) {
            i++;
            continue;
        }
        if (is_here) give(core, s, w.id, key);
        kv_drop_waiter(store, i);
    }
}

/* ---- sets and adds --------------------------------------------------------------------------- */
static void change(scheduler_core *core, const member_slot *s, const wire_control *c,
                   const char *key)
{
    const uint64_t id = c->u.store.id;
    kv_answer *a      = kv_answer_of(&core->services.store, s, id);
    pen_error why     = {.text = ""};
    if (!a) return;
    if (a->id == id) {
        reply(core, s, id, (pen_status)a->status, "the request failed, and its answer was lost",
              a->value);
        return;
    }
    *a = (kv_answer){.id = id};
    if (c->u.store.op == WIRE_STORE_SET)
        a->status = value_table_set(core->services.store.values, key, c->u.store.data,
                                    c->u.store.data_size, &why);
    else
        a->status =
            value_table_add(core->services.store.values, key, c->u.store.delta, &a->value, &why);
    if (!core_persist(core)) return;
    reply(core, s, id, (pen_status)a->status, why.text, a->value);
    if (a->status == PEN_OK) wake(core, key);
}

void core_kv_ask(scheduler_core *core, member_slot *s, const wire_control *message)
{
    const uint64_t id = message->u.store.id;
    const char *key   = message->u.store.key ? message->u.store.key : "";
    const int32_t op  = message->u.store.op;
    if (!id || (op != WIRE_STORE_GET && id < message->u.store.done_below)) return;
    if (strlen(key) >= VALUE_KEY_BYTES || op < WIRE_STORE_SET || op > WIRE_STORE_ADD) {
        reply(core, s, id, PEN_INVALID_ARGUMENT, "a key has at most 511 bytes", 0);
        return;
    }
    if (!kv_reserve(&core->services.store, core->members.roster.workers.n)) {
        reply(core, s, id, PEN_NO_MEMORY, "the scheduler has no memory for the store", 0);
        return;
    }
    if (op != WIRE_STORE_GET)
        change(core, s, message, key);
    else if (!give(core, s, id, key))
        kv_wait(&core->services.store, s, id, key);
}
