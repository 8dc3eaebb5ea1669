/* scheduler_scene.c - plays the members of a scheduler core, and decodes the messages it sends. */
#include "tests/support/scheduler_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scene_letter {
    scene_letter *next;
    uint32_t peer;
    wire_arena *arena;
    wire_control message;
};

enum { TERM = 7, BEAT_MS = 500 };

/* ---- what it sends --------------------------------------------------------------------------- */
void scene_assert_travels(const wire_control *message)
{
    wire_arena *arena = wire_arena_create(64 << 20);
    wire_out out      = {0};
    wire_control read;
    pen_error why = {.text = ""};
    if (wire_control_encode(message, &out, &why) != PEN_OK ||
        wire_control_decode(out.data, out.size, arena, &read, &why) != PEN_OK)
        fail_msg("%s does not travel: %s", wire_kind_name((int)message->kind), why.text);
    assert_int_equal(read.kind, message->kind);
    wire_out_free(&out);
    wire_arena_destroy(arena);
}

static void note_copies(scene *r, const wire_replica *copy, uint32_t n)
{
    assert_true(n <= sizeof r->copy / sizeof *r->copy);
    if (n) memcpy(r->copy, copy, n * sizeof *copy);
    r->n_copies = n;
}

static void note(scene *r, uint32_t peer, const wire_control *c)
{
    switch (c->kind) {
    case WIRE_WELCOME: r->incarnation[peer] = c->u.welcome.incarnation; break;
    case WIRE_SEAL:
        r->told_epoch = c->u.seal.epoch;
        r->told_term  = c->u.seal.term;
        break;
    case WIRE_PLAN: note_copies(r, c->u.plan.replica, c->u.plan.n_replicas); break;
    case WIRE_EPOCH:
        if (c->u.epoch.n_replicas) note_copies(r, c->u.epoch.replica, c->u.epoch.n_replicas);
        break;
    default: break;
    }
}

static void on_send(void *user, const uint32_t *peers, uint32_t n, const wire_control *message)
{
    scene *r     = user;
    wire_out out = {0};
    pen_error why;
    if (wire_control_encode(message, &out, &why) != PEN_OK) fail_msg("%s", why.text);
    for (uint32_t i = 0; i < n; i++) {
        scene_letter *l = calloc(1, sizeof *l);
        l->peer         = peers[i];
        l->arena        = wire_arena_create(64 << 20);
        assert_int_equal(wire_control_decode(out.data, out.size, l->arena, &l->message, &why),
                         PEN_OK);
        *r->end = l;
        r->end  = &l->next;
        note(r, peers[i], &l->message);
        if (message->kind == WIRE_WELCOME) r->has_plan[peers[i]] = false;
        if (message->kind == WIRE_PLAN) r->has_plan[peers[i]] = true;
    }
    wire_out_free(&out);
}

static void on_log(void *user, int level, const char *line)
{
    scene *r = user;
    if (level == LOG_DEBUG) return;
    const size_t used = strlen(r->logged), more = strlen(line) + 2;
    if (used + more >= sizeof r->logged) r->logged[0] = 0;
    snprintf(r->logged + strlen(r->logged), sizeof r->logged - strlen(r->logged), "%s\n", line);
}

static void on_ended(void *user, pen_status status, const pen_error *why)
{
    (void)status;
    (void)why;
    ((scene *)user)->has_ended = true;
}

static pen_status on_keep(void *user, const void *data, size_t size)
{
    scene *r = user;
    if (r->keep_fails) return PEN_STORE;
    free(r->kept);
    r->kept      = malloc(size + 1);
    r->kept_size = size;
    if (size) memcpy(r->kept, data, size);
    return PEN_OK;
}

void scene_forget(scene *r)
{
    while (r->first) {
        scene_letter *l = r->first;
        r->first        = l->next;
        wire_arena_destroy(l->arena);
        free(l);
    }
    r->end = &r->first;
}

const wire_control *scene_last(const scene *r, uint32_t peer, wire_control_kind kind)
{
    const wire_control *found = NULL;
    for (const scene_letter *l = r->first; l; l = l->next)
        if (l->peer == peer && l->message.kind == kind) found = &l->message;
    return found;
}

const wire_control *scene_must(const scene *r, uint32_t peer, wire_control_kind kind)
{
    const wire_control *c = scene_last(r, peer, kind);
    if (!c) fail_msg("peer %u got no %s", peer, wire_kind_name((int)kind));
    return c;
}

uint32_t scene_count(const scene *r, wire_control_kind kind)
{
    uint32_t n = 0;
    for (const scene_letter *l = r->first; l; l = l->next) n += l->message.kind == kind;
    return n;
}

uint32_t scene_position(const scene *r, uint32_t peer, wire_control_kind kind)
{
    uint32_t at = 0, found = 0;
    for (const scene_letter *l = r->first; l; l = l->next, at++)
        if (l->peer == peer && l->message.kind == kind) found = at;
    return found;
}

/* ---- copies ---------------------------------------------------------------------------------- */
static const wire_replica *copies_of(const wire_control *c, uint32_t *n)
{
    *n = c->kind == WIRE_PLAN ? c->u.plan.n_replicas : c->u.epoch.n_replicas;
    return c->kind == WIRE_PLAN ? c->u.plan.replica : c->u.epoch.replica;
}

static int32_t find_copy(const wire_control *c, uint32_t shard, int32_t server, int32_t role)
{
    uint32_t n;
    const wire_replica *copy = copies_of(c, &n);
    for (uint32_t i = 0; i < n; i++)
        if (copy[i].shard == shard && (server < 0 || copy[i].server == server) &&
            (!role || copy[i].role == role))
            return (int32_t)i;
    return -1;
}

int32_t scene_role(const wire_control *c, uint32_t shard, int32_t server)
{
    uint32_t n;
    const int32_t i = find_copy(c, shard, server, 0);
    return i < 0 ? 0 : copies_of(c, &n)[i].role;
}

static int32_t holder(const wire_control *c, uint32_t shard, int32_t role)
{
    uint32_t n;
    const int32_t i = find_copy(c, shard, -1, role);
    return i < 0 ? -1 : copies_of(c, &n)[i].server;
}

int32_t scene_primary(const wire_control *c, uint32_t shard)
{
    return holder(c, shard, WIRE_PRIMARY);
}

int32_t scene_backup(const wire_control *c, uint32_t shard)
{
    return holder(c, shard, WIRE_BACKUP);
}

uint32_t scene_count_role(const wire_control *c, int32_t server, int32_t role)
{
    uint32_t n, found = 0;
    const wire_replica *copy = copies_of(c, &n);
    for (uint32_t i = 0; i < n; i++)
        found += copy[i].server == server && (!role || copy[i].role == role);
    return found;
}

/* ---- what it receives ------------------------------------------------------------------------ */
wire_control scene_hello(int32_t role, int32_t rank, int32_t world, int32_t servers, uint64_t nonce)
{
    static const char *const addresses[] = {"tcp://devbox:1", "tcp://devbox:2"};
    wire_control c                       = {.kind = WIRE_HELLO};
    c.u.hello.role                       = role;
    c.u.hello.rank                       = rank;
    c.u.hello.world_size                 = world;
    c.u.hello.servers                    = servers;
    c.u.hello.local_rank = c.u.hello.node = -1;
    c.u.hello.nonce                       = nonce;
    c.u.hello.pid                         = (int32_t)nonce;
    c.u.hello.host                        = "devbox";
    c.u.hello.job                         = "mine";
    c.u.hello.store                       = "";
    c.u.hello.n_addresses                 = role == PEN_SERVER ? 2 : 0;
    c.u.hello.address                     = addresses;
    return c;
}

void scene_give(scene *r, uint32_t peer, wire_control *c, uint64_t from)
{
    c->from = from;
    scheduler_core_receive(r->core, peer, c, r->now);
    for (uint32_t p = SCENE_WORKER(0); p < SCENE_SERVER(0) && !r->reaches_nobody; p++) {
        wire_control reached = {
            .kind = WIRE_READY, .from = r->incarnation[p], .u.ready = {.restored = -1}};
        if (!r->has_plan[p] || reached.from == 0 || r->ready_as[p] == reached.from) continue;
        r->ready_as[p] = reached.from;
        scheduler_core_receive(r->core, p, &reached, r->now);
    }
}

void scene_say(scene *r, uint32_t peer, wire_control *c)
{
    scene_give(r, peer, c, r->incarnation[peer]);
}

static void comes(scene *r, uint32_t peer, wire_control c)
{
    r->nonce[peer] = c.u.hello.nonce;
    scene_give(r, peer, &c, 0);
}

void scene_worker_comes(scene *r, int32_t rank, uint64_t nonce)
{
    comes(r, SCENE_WORKER(rank), scene_hello(PEN_WORKER, rank, r->workers, r->servers, nonce));
}

void scene_server_comes(scene *r, int32_t rank, uint64_t nonce)
{
    comes(r, SCENE_SERVER(rank), scene_hello(PEN_SERVER, rank, 0, 0, nonce));
}

void scene_guest_comes(scene *r, int32_t role, uint32_t peer)
{
    comes(r, peer, scene_hello(role, -1, 0, 0, 10000 + peer));
}

void scene_comes_back(scene *r, uint32_t peer)
{
    const bool is_server = peer >= SCENE_SERVER(0);
    const int32_t rank   = (int32_t)(is_server ? peer - SCENE_SERVER(0) : peer - SCENE_WORKER(0));
    wire_control c       = is_server
                               ? scene_hello(PEN_SERVER, rank, 0, 0, r->nonce[peer])
                               : scene_hello(PEN_WORKER, rank, r->workers, r->servers, r->nonce[peer]);
    scene_say(r, peer, &c);
}

void scene_registers(scene *r, int32_t rank, bool other_model)
{
    static const wire_tensor tensors[] = {{.name       = "fc1.weight",
                                           .dtype      = PEN_F32,
                                           .grad_dtype = PEN_F32,
                                           .ndim       = 2,
                                           .shape      = {128, 784},
                                           .init       = ""},
                                          {.name       = "fc1.bias",
                                           .dtype      = PEN_F32,
                                           .grad_dtype = PEN_F32,
                                           .ndim       = 1,
                                           .shape      = {128},
                                           .init       = ""},
                                          {.name       = "fc2.weight",
                                           .dtype      = PEN_F32,
                                           .grad_dtype = PEN_F32,
                                           .ndim       = 2,
                                           .shape      = {10, 128},
                                           .init       = ""}};
    static const wire_group group      = {"all", "sgd lr=0.1", "bsp", "raw", ""};
    wire_control c                     = {.kind = WIRE_REGISTER};
    c.u.register_.n_tensors            = other_model ? 2 : 3;
    c.u.register_.tensor               = tensors;
    c.u.register_.n_groups             = 1;
    c.u.register_.group                = &group;
    scene_say(r, SCENE_WORKER(rank), &c);
}

void scene_ready(scene *r, int32_t server)
{
    wire_control c = {.kind = WIRE_READY, .u.ready = {.restored = -1}};
    scene_say(r, SCENE_SERVER(server), &c);
}

void scene_leaves(scene *r, uint32_t peer)
{
    wire_control c = {.kind = WIRE_BYE};
    scene_say(r, peer, &c);
    r->incarnation[peer] = 0;
    scheduler_core_peer_down(r->core, peer, r->now);
}

void scene_exits(scene *r, int32_t role, int32_t rank, int code, const char *note_)
{
    const uint32_t peer = role == PEN_WORKER ? SCENE_WORKER(rank) : SCENE_SERVER(rank);
    wire_control c      = {.kind = WIRE_EXITED};
    c.u.exited.role     = role;
    c.u.exited.rank     = rank;
    c.u.exited.pid      = (int32_t)r->nonce[peer];
    c.u.exited.code     = code;
    c.u.exited.note     = note_;
    c.u.exited.call     = "";
    if (!r->incarnation[SCENE_LAUNCHER]) scene_guest_comes(r, WIRE_LAUNCHER, SCENE_LAUNCHER);
    scene_say(r, SCENE_LAUNCHER, &c);
}

static void dies(scene *r, int32_t role, int32_t rank)
{
    const uint32_t peer = role == PEN_WORKER ? SCENE_WORKER(rank) : SCENE_SERVER(rank);
    scheduler_core_peer_down(r->core, peer, r->now);
    r->incarnation[peer] = 0;
    scene_pass(r, 1000); /* its connection does not come back */
}

void scene_server_dies(scene *r, int32_t rank)
{
    dies(r, PEN_SERVER, rank);
}

void scene_worker_dies(scene *r, int32_t rank)
{
    dies(r, PEN_WORKER, rank);
}

void scene_beat_all(scene *r, int64_t step)
{
    for (uint32_t peer = 1; peer < SCENE_LAUNCHER; peer++) {
        if (!r->incarnation[peer]) continue;
        wire_control c = {.kind = WIRE_BEAT, .u.beat = {.step = step, .call = ""}};
        scene_say(r, peer, &c);
    }
}

static void tick_until(scene *r, uint64_t end)
{
    for (;;) {
        const uint64_t next = scheduler_core_next_ms(r->core);
        if (next > end || r->has_ended) break;
        if (next > r->now) r->now = next;
        scheduler_core_tick(r->core, r->now);
    }
    r->now = end;
}

void scene_pass(scene *r, uint64_t ms)
{
    const uint64_t end = r->now + ms;
    while (r->now < end && !r->has_ended) {
        tick_until(r, r->now + BEAT_MS < end ? r->now + BEAT_MS : end);
        scene_beat_all(r, 1);
    }
}

void scene_seals(scene *r, int32_t server, int64_t step)
{
    wire_sealed_report report[256];
    wire_control c    = {.kind = WIRE_SEALED};
    c.u.sealed.term   = r->told_term;
    c.u.sealed.epoch  = r->told_epoch;
    c.u.sealed.report = report;
    for (uint32_t i = 0; i < r->n_copies; i++) {
        if (r->copy[i].server != server) continue;
        report[c.u.sealed.n_reports++] = (wire_sealed_report){.shard        = r->copy[i].shard,
                                                              .role         = r->copy[i].role,
                                                              .index        = 100,
                                                              .digest       = 5,
                                                              .step         = step,
                                                              .clock        = -1,
                                                              .all_prepared = r->all_prepared,
                                                              .has_decision = step > 0,
                                                              .decision = {.applied = step - 1}};
    }
    scene_say(r, SCENE_SERVER(server), &c);
}

void scene_seals_all(scene *r, int64_t step)
{
    const uint64_t epoch = r->told_epoch;
    for (int32_t s = 0; s < 16; s++) /* those that were asked */
        if (r->incarnation[SCENE_SERVER(s)] && scene_last(r, SCENE_SERVER(s), WIRE_SEAL) &&
            r->told_epoch == epoch)
            scene_seals(r, s, step);
}

void scene_caught_up(scene *r, const wire_control *epoch, int32_t server)
{
    for (uint32_t i = 0; i < epoch->u.epoch.n_replicas; i++) {
        const wire_replica *copy = &epoch->u.epoch.replica[i];
        if (copy->server != server || copy->role != WIRE_LEARNER) continue;
        wire_control c = {.kind        = WIRE_CAUGHT_UP,
                          .u.caught_up = {.shard = copy->shard, .server = server}};
        scene_say(r, SCENE_SERVER(scene_primary(epoch, copy->shard)), &c);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */
static void make_core(scene *r)
{
    pen_error why;
    if (scheduler_core_create(&r->settings, r->term, "a", &r->actions, r->now, &r->core, &why) !=
        PEN_OK)
        fail_msg("%s", why.text);
}

static scene *make_scene(va_list strings)
{
    const char *string[16] = {0};
    pen_error why;
    scene *r        = calloc(1, sizeof *r);
    r->end          = &r->first;
    r->now          = 5000;
    r->term         = TERM;
    r->all_prepared = true;
    for (int i = 0; i < 15 && (string[i] = va_arg(strings, const char *)); i++) continue;
    config_defaults(scheduler_settings_rows, &r->settings);
    if (config_from_strings(scheduler_settings_rows, &r->settings, string, &why) != PEN_OK)
        fail_msg("%s", why.text);
    r->actions =
        (scheduler_actions){on_send, on_log, on_ended, r, r->settings.state[0] ? on_keep : NULL};
    make_core(r);
    return r;
}

scene *scene_wait(int32_t workers, int32_t servers, ...)
{
    va_list strings;
    va_start(strings, servers);
    scene *r = make_scene(strings);
    va_end(strings);
    r->workers = workers;
    r->servers = servers;
    return r;
}

scene *scene_train(int32_t workers, int32_t servers, ...)
{
    va_list strings;
    va_start(strings, servers);
    scene *r = make_scene(strings);
    va_end(strings);
    r->workers = workers;
    r->servers = servers;
    for (int32_t s = 0; s < servers; s++) scene_server_comes(r, s, 5000 + (uint64_t)s);
    for (int32_t w = 0; w < workers; w++) scene_worker_comes(r, w, 4000 + (uint64_t)w);
    for (int32_t w = 0; w < workers; w++) scene_registers(r, w, false);
    for (int32_t s = 0; s < servers; s++) scene_ready(r, s);
    scene_must(r, SCENE_WORKER(0), WIRE_COMMITTED);
    return r;
}

void scene_drop(scene *r)
{
    scene_forget(r);
    scheduler_core_destroy(r->core);
    free(r->kept);
    free(r);
}

void scene_restart(scene *r)
{
    pen_error why;
    scene_forget(r);
    scheduler_core_destroy(r->core);
    assert_true(scheduler_core_kept_term(r->kept, r->kept_size) >= TERM);
    r->term = scheduler_core_kept_term(r->kept, r->kept_size) + 1;
    r->now += 2000;
    make_core(r);
    if (scheduler_core_load(r->core, r->kept, r->kept_size, r->now, &why) != PEN_OK)
        fail_msg("%s", why.text);
}

pen_status scene_load(scene *r, const void *state, size_t size)
{
    scheduler_core *core;
    pen_error why;
    scene other               = {.end = &other.first};
    scheduler_actions actions = {on_send, on_log, on_ended, &other, NULL};
    assert_int_equal(
        scheduler_core_create(&r->settings, r->term + 1, "a", &actions, r->now, &core, &why),
        PEN_OK);
    const pen_status status = scheduler_core_load(core, state, size, r->now, &why);
    if (status == PEN_OK) scheduler_core_tick(core, r->now + 100000);
    scene_forget(&other);
    scheduler_core_destroy(core);
    return status;
}
