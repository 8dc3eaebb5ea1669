/* cluster_rows.c - a table by key beside the tensors: each push adds 1 to some rows of its rank, so a row says how many
 * pushes it has had.
 *
 * The table is asynchronous whatever the model is.  A row of rank r may never have fewer pushes than r was told, nor more
 * than r has made, in any of its processes: not on the primary after any message or record, and not in any answer. */
#include "tests/sim/cluster_state.h"

#include "proto/rows.h"
#include "server/shard/shard_test.h"
#include "server/shard/table/row_store.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = SIM_FEW_RANKS * SIM_ROWS, BYTES = 8 + KEYS * 12 + 8 };

typedef struct { /* of one call: a part of the table that has some of its keys */
    ps_client_sink sink;
    struct sim_rows *call;
    uint32_t n, key[KEYS]; /* numbers of rows */
    uint32_t least[KEYS];  /* what each has had when it was asked */
    uint64_t bytes[BYTES / sizeof(uint64_t) + 1];
} part;

struct sim_rows {
    sim_worker *worker;
    bool pushes;
    part part[SIM_PARTS];
};

/* Row `number` is row number % SIM_ROWS of rank number / SIM_ROWS. */
static uint64_t key_of(uint32_t number)
{
    return number * UINT64_C(0x9e3779b97f4a7c15);
}

static uint32_t table_of(const cluster *c)
{
    return c->plan.tensors;
}

/* ---- pushing and pulling --------------------------------------------------------------------- */
static int by_key(const void *a, const void *b)
{
    const uint64_t x = key_of(*(const uint32_t *)a), y = key_of(*(const uint32_t *)b);
    return x < y ? -1 : x > y;
}

static uint32_t write_part(part *p, bool pushes)
{
    const rows_form form = pushes ? ROWS_PUSHED : ROWS_ASKED;
    const size_t size    = rows_bytes(form, p->n, pushes ? p->n : 0, 1, sizeof(float));
    const rows r         = rows_lay(p->bytes, form, p->n, pushes ? p->n : 0, 1);
    const float one      = 1;
    qsort(p->key, p->n, sizeof *p->key, by_key);
    for (uint32_t i = 0; i < p->n; i++) {
        const cluster *c   = p->call->worker->c;
        const uint64_t key = key_of(p->key[i]);
        p->least[i]        = c->row[p->key[i]].told;
        memcpy((uint8_t *)(uintptr_t)r.key + i * sizeof key, &key, sizeof key);
        if (pushes) memcpy((uint8_t *)(uintptr_t)r.value + i * sizeof one, &one, sizeof one);
    }
    return (uint32_t)size;
}

void sim_rows_request(sim_worker *w)
{
    static const char *const name[] = {
        [PS_PUSH] = "pen_kv_push", [PS_PULL] = "pen_kv_pull", [PS_PUSH_PULL] = "pen_kv_push_pull"};
    static const ps_client_verb verbs[] = {PS_PUSH, PS_PUSH, PS_PULL, PS_PUSH_PULL};
    static const double rate[]          = {1, 1};
    const wire_inputs plain   = {.loss_scale = 1, .weight = 1, .n_rates = 2, .rate = rate};
    cluster *c                = w->c;
    const ps_client_verb verb = verbs[draw_below(&w->chance, 4)];
    const uint32_t first      = c->cut->first_chunk[table_of(c)];
    ps_client_request *r      = ps_client_open(w->ps_client, sim_now(c, &w->clock));
    if (!sim_program_has_begun(w,
                               r != NULL && ps_client_set_inputs(w->ps_client, &plain) == PEN_OK))
        return;
    struct sim_rows *call = sim_need(calloc(1, sizeof *call));
    sim_call *waited      = sim_call_begin(w, name[verb], -1, false);
    call->worker          = w;
    call->pushes          = verb != PS_PULL;
    waited->rows          = call;
    for (uint32_t i = 0; i < KEYS; i++) {
        part *p           = &call->part[rows_part_by_hash(key_of(i), SIM_PARTS)];
        const bool is_own = i / SIM_ROWS == w->rank;
        if ((call->pushes && !is_own) || !draw_chance(&w->chance, 60)) continue;
        p->key[p->n++] = i;
        c->row[i].made += call->pushes;
    }
    for (uint32_t i = 0; i < SIM_PARTS; i++) {
        part *p = &call->part[i];
        p->call = call;
        if (p->n > 0)
            ps_client_add_rows(w->ps_client, r, verb, first + i, p->bytes,
                               write_part(p, call->pushes), &p->sink);
    }
    ps_client_close(w->ps_client, r, waited, waited->deadline_ms, sim_now(c, &w->clock));
}

void sim_rows_end(sim_call *call, bool is_told)
{
    cluster *c = call->worker->c;
    for (uint32_t i = 0; i < SIM_PARTS && is_told && call->rows->pushes; i++)
        for (uint32_t k = 0; k < call->rows->part[i].n; k++)
            c->row[call->rows->part[i].key[k]].told++;
    free(call->rows);
    call->rows = NULL;
}

/* ---- checks ---------------------------------------------------------------------------------- */
static void check_row(cluster *c, const char *who, uint32_t number, float value, uint32_t least)
{
    if (value < (float)least)
        sim_wrong(c, "%s: row %u of rank %u has had %g pushes, and its rank was told of %u", who,
                  number % SIM_ROWS, number / SIM_ROWS, (double)value, least);
    if (value > (float)c->row[number].made)
        sim_wrong(c, "%s: row %u of rank %u has had %g pushes, and %u were made", who,
                  number % SIM_ROWS, number / SIM_ROWS, (double)value, c->row[number].made);
}

bool sim_rows_store(void *user, ps_client_sink *to, const void *from, size_t size, uint32_t crc)
{
    sim_worker *w = user;
    const part *p = (const part *)to;
    rows r;
    pen_error why;
    if (crc32c(0, from, size) != crc) return false;
    if (rows_read(from, size, ROWS_ANSWERED, 1, sizeof(float), &r, &why) != PEN_OK || r.n != p->n) {
        sim_wrong(w->c, "rank %u got an answer about rows that does not fit", w->rank);
        return false;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        float value;
        memcpy(&value, r.value + i * sizeof value, sizeof value);
        check_row(w->c, "an answer", p->key[i], value, p->least[i]);
    }
    return true;
}

/* The primary that is the truth now. */
void check_rows(sim_copy *k)
{
    cluster *c = k->place->server->c;
    for (uint32_t i = 0; i < KEYS && c->plan.rows && k->is_authority; i++) {
        const uint64_t key   = key_of(i);
        const uint32_t chunk = c->cut->first_chunk[table_of(c)] + rows_part_by_hash(key, SIM_PARTS);
        const row_store *all = shard_rows(k->shard, chunk);
        uint8_t question[16], answered[16];
        float value;
        if (all == NULL) continue;
        const rows asked = rows_lay(question, ROWS_ASKED, 1, 0, 1);
        memcpy((uint8_t *)(uintptr_t)asked.key, &key, sizeof key);
        const rows answer = rows_lay(answered, ROWS_ANSWERED, 1, 1, 1);
        row_store_read(all, &asked, &answer, PEN_F32);
        memcpy(&value, answer.value, sizeof value);
        check_row(c, k->place->listener.name, i, value, c->row[i].told);
    }
}
