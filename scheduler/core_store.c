/* core_store.c - STORE and STORED: the small key-value store of a job.
 *
 * DESIGN.  Who asks says STORE again until it is answered.  Sets and adds are carried out once: what
 * was answered to a number is kept until the asker says, by done_below, that it has it.  An asker has at
 * most CORE_STORES_AT_ONCE on their way, numbered one after another, so what is kept is bounded.  A get of what is not set waits
 * here; of those who wait, the oldest is forgotten when there are too many, for it comes again.
 */
#include "scheduler/core_state.h"
#include <stdlib.h>
#include <string.h>

typedef struct { /* answered, and perhaps to be answered again; id 0: none */
    uint64_t id;
    pen_status status;
    int64_t value;
} answer;

typedef struct {
    uint64_t incarnation;
    answer answer[CORE_STORES_AT_ONCE];
} memory;

typedef struct {
    uint64_t incarnation, id;
    int32_t rank;
    char key[VALUE_KEY_BYTES];
} waiter;

struct core_store {
    value_table *values;
    memory **memory; /* [workers] */
    uint32_t n_workers, n_waiters, waiters_capacity;
    waiter *waiter; /* oldest first */
};

void core_store_fini(scheduler_core *core)
{
    core_store *store = core->store;
    if (!store) return;
    for (uint32_t i = 0; store->memory && i < store->n_workers; i++) free(store->memory[i]);
    value_table_destroy(store->values);
    free(store->memory);
    free(store->waiter);
    free(store);
    core->store = NULL;
}

/* Workers may be more than there were. */
static bool grow(core_store *store, uint32_t n)
{
    if (n <= store->n_workers) return true;
    memory **more = realloc(store->memory, n * sizeof *more);
    if (!more) return false;
    store->memory = more;
    while (store->n_workers < n) more[store->n_workers++] = NULL;
    return true;
}

static core_store *store_of(scheduler_core *core)
{
    if (core->store) return grow(core->store, core->roster.workers.n) ? core->store : NULL;
    core_store *made = core->store = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->n_workers = core->roster.workers.n;
    made->memory    = calloc(made->n_workers, sizeof *made->memory);
    made->values    = value_table_create(VALUE_TABLE_BYTES_MAX);
    if (!made->memory || !made->values) core_store_fini(core);
    return core->store;
}

/* ---- answering ------------------------------------------------------------------------------- */
static void say(scheduler_core *core, const seat *s, uint64_t id, pen_status status,
                const char *text, int64_t value)
{
    wire_control c    = {.kind = WIRE_STORED};
    c.u.stored.id     = id;
    c.u.stored.status = status;
    c.u.stored.text   = text;
    c.u.stored.value  = value;
    core_send(core, s, &c);
}

static bool give(scheduler_core *core, const seat *s, uint64_t id, const char *key)
{
    wire_control c   = {.kind = WIRE_STORED};
    c.u.stored.id    = id;
    c.u.stored.data  = value_table_get(core->store->values, key, &c.u.stored.data_size);
    const bool is_in = c.u.stored.data != NULL;
    if (is_in) core_send(core, s, &c);
    return is_in;
}

/* ---- those who wait -------------------------------------------------------------------------- */
static void drop_waiter(core_store *store, uint32_t i)
{
    store->n_waiters--;
    memmove(&store->waiter[i], &store->waiter[i + 1],
            (store->n_waiters - i) * sizeof *store->waiter);
}

static bool reserve_waiter(core_store *store)
{
    if (store->n_waiters == CORE_STORE_WAITERS_MAX) drop_waiter(store, 0);
    if (store->n_waiters < store->waiters_capacity) return true;
    const uint32_t n = store->waiters_capacity ? 2 * store->waiters_capacity : 16;
    waiter *grown    = realloc(store->waiter, n * sizeof *grown);
    if (!grown) return false;
    store->waiter           = grown;
    store->waiters_capacity = n;
    return true;
}

static void wait_for(core_store *store, const seat *s, uint64_t id, const char *key)
{
    for (uint32_t i = 0; i < store->n_waiters; i++)
        if (store->waiter[i].incarnation == s->incarnation && store->waiter[i].id == id) return;
    if (!reserve_waiter(store)) return; /* it comes again */
    waiter *w = &store->waiter[store->n_waiters++];
    *w        = (waiter){.incarnation = s->incarnation, .id = id, .rank = s->rank};
    snprintf(w->key, sizeof w->key, "%s", key);
}

static void wake(scheduler_core *core, const char *key)
{
    core_store *store = core->store;
    for (uint32_t i = 0; i < store->n_waiters;) {
        const waiter w     = store->waiter[i];
        const seat *s      = roster_find(&core->roster, PEN_WORKER, w.rank);
        const bool is_here = s && s->incarnation == w.incarnation && seat_is_here(s);
        if (is_here && strcmp(w.key, key) != 0) {
            i++;
            continue;
        }
        if (is_here) give(core, s, w.id, key);
        drop_waiter(store, i);
    }
}

/* ---- carried out once ------------------------------------------------------------------------ */
/* Where the answer to this number is or will be; NULL: no memory, or the number is from before. */
static answer *answer_of(core_store *store, const seat *s, uint64_t id)
{
    memory **m = &store->memory[s->rank];
    if (!*m && !(*m = calloc(1, sizeof **m))) return NULL;
    if ((*m)->incarnation != s->incarnation) **m = (memory){.incarnation = s->incarnation};
    answer *a = &(*m)->answer[id % CORE_STORES_AT_ONCE];
    return a->id <= id ? a : NULL;
}

static void change(scheduler_core *core, const seat *s, const wire_control *c, const char *key,
                   uint64_t now_ms)
{
    const uint64_t id = c->u.store.id;
    answer *a         = answer_of(core->store, s, id);
    pen_error why     = {.text = ""};
    if (!a) return;
    if (a->id == id) {
        say(core, s, id, a->status, "the answer to this was lost; it had failed", a->value);
        return;
    }
    *a = (answer){.id = id};
    if (c->u.store.op == WIRE_STORE_SET)
        a->status =
            value_table_set(core->store->values, key, c->u.store.data, c->u.store.data_size, &why);
    else
        a->status = value_table_add(core->store->values, key, c->u.store.delta, &a->value, &why);
    if (!core_keep(core, now_ms)) return;
    say(core, s, id, a->status, why.text, a->value);
    if (a->status == PEN_OK) wake(core, key);
}

void core_store_ask(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    if (core->has_verdict) core_tell(core, s);
    if (core->phase < PHASE_REGISTERING || core->phase > PHASE_TRAINING) return;
    const uint64_t id = message->u.store.id;
    const char *key   = message->u.store.key ? message->u.store.key : "";
    const int32_t op  = message->u.store.op;
    if (!id || (op != WIRE_STORE_GET && id < message->u.store.done_below)) return;
    if (strlen(key) >= VALUE_KEY_BYTES || op < WIRE_STORE_SET || op > WIRE_STORE_ADD) {
        say(core, s, id, PEN_INVALID_ARGUMENT, "a key has at most 511 bytes", 0);
        return;
    }
    if (!store_of(core)) {
        say(core, s, id, PEN_NO_MEMORY, "the scheduler has no memory for the store", 0);
        return;
    }
    if (op != WIRE_STORE_GET)
        change(core, s, message, key, now_ms);
    else if (!give(core, s, id, key))
        wait_for(core->store, s, id, key);
}

/* ---- kept and taken back --------------------------------------------------------------------- */
enum { KEPT_ANSWER = 3, KEPT_NUMBERS = 2 + KEPT_ANSWER * CORE_STORES_AT_ONCE };

void core_store_each(const scheduler_core *core,
                     void (*value)(void *user, const char *key, const void *data, size_t size),
                     void (*answers)(void *user, const int64_t *number, size_t n), void *user)
{
    const core_store *store = core->store;
    if (!store) return;
    value_table_each(store->values, value, user);
    for (uint32_t i = 0; i < store->n_workers; i++) {
        const memory *m = store->memory[i];
        if (!m) continue;
        int64_t number[KEPT_NUMBERS] = {i, (int64_t)m->incarnation};
        for (size_t a = 0; a < CORE_STORES_AT_ONCE; a++) {
            int64_t *at = &number[2 + KEPT_ANSWER * a];
            at[0]       = (int64_t)m->answer[a].id;
            at[1]       = m->answer[a].status;
            at[2]       = m->answer[a].value;
        }
        answers(user, number, KEPT_NUMBERS);
    }
}

bool core_store_adopt(scheduler_core *core, const wire_control *set)
{
    pen_error why;
    return store_of(core) &&
           value_table_set(core->store->values, set->u.store.key, set->u.store.data,
                           set->u.store.data_size, &why) == PEN_OK;
}

bool core_store_adopt_answers(scheduler_core *core, const void *data, size_t size)
{
    int64_t number[KEPT_NUMBERS];
    if (size != sizeof number || !store_of(core)) return false;
    memcpy(number, data, size);
    if (number[0] < 0 || number[0] >= core->store->n_workers) return false;
    memory **m = &core->store->memory[number[0]];
    if (!*m && !(*m = calloc(1, sizeof **m))) return false;
    (*m)->incarnation = (uint64_t)number[1];
    for (size_t a = 0; a < CORE_STORES_AT_ONCE; a++) {
        const int64_t *at = &number[2 + KEPT_ANSWER * a];
        (*m)->answer[a]   = (answer){(uint64_t)at[0], (pen_status)at[1], at[2]};
    }
    return true;
}
