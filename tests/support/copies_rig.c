/* copies_rig.c - the servers, the network between them, and a small scheduler. */
#include "tests/support/copies_rig.h"
#include "server/shard/shard_test.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t draw(copies *c, uint64_t below)
{
    c->seed ^= c->seed << 13;
    c->seed ^= c->seed >> 7;
    c->seed ^= c->seed << 17;
    return c->seed % below;
}

static uint64_t incarnation_of(uint32_t server)
{
    return RIG_SERVER + server;
}

/* ---- the network between servers ------------------------------------------------------------- */
static void put(copies *c, uint32_t from, uint32_t to, const wire_data *d, buf *payload)
{
    if (c->n_frames == c->capacity) {
        c->capacity = c->capacity == 0 ? 64 : c->capacity * 2;
        c->frame    = realloc(c->frame, c->capacity * sizeof *c->frame);
        assert(c->frame != NULL);
    }
    copies_frame *f = &c->frame[c->n_frames++];
    *f              = (copies_frame){.from = from, .to = to, .payload = buf_acquire(payload)};
    pen_error why;
    const pen_status status = wire_data_encode(d, &f->head, &why);
    assert(status == PEN_OK);
    (void)status;
}

static bool send_replica(void *user, int32_t server, const wire_data *d, buf *payload)
{
    const rig_outside *o = user;
    put(o->rig->user, o->shard, (uint32_t)server, d, payload);
    return true;
}

static bool take_logged(void *user, uint32_t server, const wire_data *d, buf *payload)
{
    if (d->kind != WIRE_LOGGED) return false;
    put(user, server, (uint32_t)(d->to - RIG_SERVER), d, payload);
    return true;
}

static void caught_up(void *user, int32_t server)
{
    const rig_outside *o = user;
    ((copies *)o->rig->user)->caught_up[server]++;
}

static void suspect(void *user, int32_t server, uint64_t waited_ms)
{
    const rig_outside *o = user;
    (void)waited_ms;
    ((copies *)o->rig->user)->suspected[server]++;
}

static void drop_frame(copies_frame *f)
{
    wire_out_free(&f->head);
    buf_release(f->payload);
}

static void deliver(copies *c, const copies_frame *f)
{
    wire_data d;
    pen_error why;
    wire_arena_reset(c->arena);
    if (c->at[f->to] == NULL || c->at[f->from] == NULL) return;
    const pen_status status = wire_data_decode(f->head.data, f->head.size, c->arena, &d, &why);
    assert(status == PEN_OK);
    (void)status;
    shard_receive(c->at[f->to], 50 + f->from, &d, f->payload);
}

static void carry_one(copies *c)
{
    const size_t which = c->mixed > draw(c, 100) ? draw(c, c->n_frames) : 0;
    copies_frame f     = c->frame[which];
    memmove(c->frame + which, c->frame + which + 1, (--c->n_frames - which) * sizeof f);
    if (c->lost <= draw(c, 100)) deliver(c, &f);
    if (c->repeated > draw(c, 100)) deliver(c, &f);
    drop_frame(&f);
}

static void flush_all(copies *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->at[i] != NULL) shard_flush(c->at[i]);
}

void copies_carry(copies *c)
{
    if (c->is_held) return;
    const bool is_bad = c->lost + c->mixed > 0;
    flush_all(c);
    for (int quiet = 0; quiet < (is_bad ? 30 : 1);) {
        quiet = c->n_frames > 0 ? 0 : quiet + 1;
        while (c->n_frames > 0) {
            carry_one(c);
            flush_all(c);
        }
        c->now_ms += 210;
        for (uint32_t i = 0; i < c->n && is_bad; i++)
            if (c->at[i] != NULL) shard_resend(c->at[i], c->now_ms);
    }
}

void copies_lose(copies *c)
{
    while (c->n_frames > 0) drop_frame(&c->frame[--c->n_frames]);
}

/* ---- life ------------------------------------------------------------------------------------ */
static void add_to_outside(void *user, shard_outside *out)
{
    (void)user;
    out->send_replica = send_replica;
    out->caught_up    = caught_up;
    out->suspect      = suspect;
}

static void add_server(copies *c, uint32_t server, bool is_empty)
{
    rig *r                      = c->r;
    c->outside[server]          = (rig_outside){r, server};
    const shard_options options = {
        .park_bytes_max = 64 << 20, .stats = &r->stats, .offload = r->offload_of_copies};
    shard_outside out = rig_outside_of(&c->outside[server]);
    add_to_outside(NULL, &out);
    const shard_setup setup = {.model       = &r->model,
                               .plan        = r->plan,
                               .shard_of    = r->shard_of,
                               .world_size  = r->world_size,
                               .server      = (int32_t)server,
                               .incarnation = incarnation_of(server),
                               .is_empty    = is_empty};
    pen_error why;
    c->at[server]   = shard_create(&options, &out, &why);
    c->role[server] = is_empty ? SHARD_LEARNER : SHARD_BACKUP;
    assert(c->at[server] != NULL);
    const pen_status status = shard_configure(c->at[server], &setup, &why);
    assert(status == PEN_OK);
    (void)status;
    if (server >= c->n) c->n = server + 1;
}

copies *copies_create(const wire_model *model, const rig_options *o, uint32_t n_backups)
{
    copies *c = calloc(1, sizeof *c);
    assert(c != NULL && o->n_shards == 1 && n_backups < COPIES_MAX);
    rig_options mine = *o;
    mine.outside     = add_to_outside;
    c->r             = rig_create(model, &mine);
    c->arena         = wire_arena_create(32 << 20);
    c->seed          = 88172645463325252u;
    c->r->user       = c;
    c->r->link       = take_logged;
    c->r->carry      = (void (*)(void *))copies_carry;
    c->at[0]         = c->r->shard[0];
    c->role[0]       = SHARD_PRIMARY;
    c->n             = 1;
    for (uint32_t i = 1; i <= n_backups; i++) add_server(c, i, false);
    copies_change_roles(c, (copies_how){.at_once = true}, 0);
    return c;
}

void copies_destroy(copies *c)
{
    copies_lose(c);
    free(c->frame);
    for (uint32_t i = 0; i < COPIES_MAX; i++)
        if (c->at[i] != c->r->shard[0]) shard_destroy(c->at[i]);
    wire_arena_destroy(c->arena);
    rig_destroy(c->r);
    free(c);
}

void copies_add_learner(copies *c, uint32_t server)
{
    add_server(c, server, true);
}

void copies_kill(copies *c, uint32_t server)
{
    if (c->r->shard[0] == c->at[server]) c->r->shard[0] = NULL;
    shard_destroy(c->at[server]);
    c->at[server]   = NULL;
    c->role[server] = SHARD_NO_ROLE;
}

/* ---- epochs ---------------------------------------------------------------------------------- */
static void seal(copies *c, bool at_once, wire_sealed_report *report)
{
    for (int pass = 0; pass < 2; pass++) { /* the primary first: copies then get its mark */
        for (uint32_t i = 0; i < c->n; i++) {
            if (c->at[i] == NULL || (c->role[i] == SHARD_PRIMARY) != (pass == 0)) continue;
            shard_seal(c->at[i], RIG_TERM, c->r->epoch + 1, &report[i]);
        }
        if (!at_once) copies_carry(c);
    }
    if (at_once) copies_lose(c);
}

static uint32_t primary_of(const copies *c, const wire_sealed_report *report)
{
    uint32_t best = COPIES_MAX;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->at[i] == NULL || c->role[i] == SHARD_LEARNER) continue;
        if (c->role[i] == SHARD_PRIMARY) return i;
        if (best == COPIES_MAX || report[i].index > report[best].index) best = i;
    }
    assert(best < COPIES_MAX);
    return best;
}

static void assign_roles(copies *c, uint32_t primary, const wire_sealed_report *report)
{
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->at[i] == NULL) continue;
        const bool is_equal =
            report[i].index == report[primary].index && report[i].digest == report[primary].digest;
        const bool is_new = report[i].role == (int32_t)SHARD_NO_ROLE;
        if (i == primary)
            c->role[i] = SHARD_PRIMARY;
        else if (!is_new || c->role[i] == SHARD_LEARNER)
            c->role[i] = is_equal && !is_new ? SHARD_BACKUP : SHARD_LEARNER;
        else
            c->role[i] = SHARD_BACKUP; /* of the first placement */
    }
    c->r->shard[0] = c->at[primary];
    c->r->to[0]    = incarnation_of(primary);
}

static int64_t settled_step(const copies *c, const wire_sealed_report *report, shard_view *view)
{
    view->step = -1;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->at[i] == NULL || c->role[i] == SHARD_LEARNER || report[i].step <= view->step)
            continue;
        view->step         = report[i].step;
        view->has_decision = report[i].has_decision;
        view->decision     = report[i].decision;
    }
    return view->step;
}

static void install(copies *c, shard_view *view, uint32_t primary)
{
    wire_member members[RIG_RANKS_MAX];
    shard_replica replica[COPIES_MAX];
    for (uint32_t i = 0; i < c->r->world_size; i++)
        if (!c->r->is_absent[i])
            members[view->n_workers++] =
                (wire_member){.rank = (int32_t)i, .incarnation = rig_incarnation((int32_t)i)};
    for (uint32_t i = 0; i < c->n; i++)
        if (c->at[i] != NULL && i != primary)
            replica[view->n_replicas++] =
                (shard_replica){(int32_t)i, incarnation_of(i), c->role[i] == SHARD_LEARNER};
    view->term    = RIG_TERM;
    view->epoch   = ++c->r->epoch;
    view->worker  = members;
    view->replica = replica;
    view->primary = incarnation_of(primary);
    for (uint32_t i = 0; i < c->n; i++) {
        view->role = c->role[i];
        if (c->at[i] != NULL) shard_install(c->at[i], view);
    }
}

static int64_t change(copies *c, copies_how how, uint32_t primary)
{
    wire_sealed_report report[COPIES_MAX];
    shard_view view = {.members_changed = how.members_changed};
    seal(c, how.at_once, report);
    if (primary == COPIES_MAX) primary = primary_of(c, report);
    assign_roles(c, primary, report);
    const int64_t step = settled_step(c, report, &view);
    install(c, &view, primary);
    copies_carry(c);
    return step;
}

int64_t copies_change(copies *c, copies_how how)
{
    return change(c, how, COPIES_MAX);
}

void copies_change_roles(copies *c, copies_how how, uint32_t primary)
{
    (void)change(c, how, primary);
}

/* ---- inspecting ------------------------------------------------------------------------------ */
static bool is_same(const void *a, const void *b, size_t bytes)
{
    return (a == NULL || b == NULL) ? a == b : memcmp(a, b, bytes) == 0;
}

static bool is_equal_chunk(const copies *c, const shard *a, const shard *b, uint32_t chunk)
{
    const size_t bytes = c->r->plan->chunk[chunk].count * sizeof(float);
    uint64_t version[2], round[2];
    bool same =
        is_same(shard_values(a, chunk, &version[0]), shard_values(b, chunk, &version[1]), bytes);
    for (int slot = 0; slot < OPTIM_SLOTS_MAX; slot++)
        same = same && is_same(shard_slot(a, chunk, slot), shard_slot(b, chunk, slot), bytes);
    same = same && is_same(shard_clocks(a, chunk, &round[0]), shard_clocks(b, chunk, &round[1]),
                           c->r->world_size * sizeof(uint64_t));
    return same && version[0] == version[1] && round[0] == round[1];
}

bool copies_are_equal(const copies *c, uint32_t a, uint32_t b)
{
    uint64_t digest[2];
    if (shard_index(c->at[a], &digest[0]) != shard_index(c->at[b], &digest[1])) return false;
    if (digest[0] != digest[1]) return false;
    for (uint32_t k = 0; k < c->r->plan->n_chunks; k++)
        if (!is_equal_chunk(c, c->at[a], c->at[b], k)) return false;
    return true;
}
