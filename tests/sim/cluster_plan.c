/* cluster_plan.c - plans: calm ones, and random ones from a seed. */
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

sim_plan sim_plan_calm(uint64_t seed, model_mode mode)
{
    return (sim_plan){
        .task =
            {.seed = seed, .mode = mode, .workers = 3, .steps = 8, .rate = 0.125, .loss_scale = 1},
        .servers         = 2,
        .shards          = 1,
        .lanes           = 1,
        .tensors         = 5,
        .bound           = 2,
        .think_ms        = 20,
        .park_bytes_max  = 1 << 20,
        .lease_ms        = 10000,
        .deadline_ms     = 60000,
        .init_timeout_ms = 30000,
        .retry_ms        = 100,
        .warn_ms         = 5000,
        .wait_ms         = 60000,
        .on_worker_loss  = LOSS_FAIL,
        .end_ms          = 600000};
}

void sim_plan_add(sim_plan *p, sim_event event)
{
    if (p->n_events < SIM_EVENTS_MAX) p->event[p->n_events++] = event;
}

void sim_plan_kill(sim_plan *p, sim_role role, uint32_t rank, uint64_t from_ms, uint64_t until_ms)
{
    sim_plan_add(p, (sim_event){.what     = SIM_CRASH,
                                .role     = role,
                                .rank     = rank,
                                .from_ms  = from_ms,
                                .until_ms = until_ms});
}

void sim_plan_must_last(sim_plan *p)
{
    p->has_state   = true;
    p->restarts    = true;
    p->must_go_on  = true;
    p->deadline_ms = 120000;
}

static sim_trouble draw_trouble(uint64_t *chance)
{
    sim_trouble t = {0};
    if (draw_chance(chance, 50)) t.drop = (uint32_t)draw_between(chance, 1, 25);
    if (draw_chance(chance, 50)) t.repeat = (uint32_t)draw_between(chance, 1, 40);
    if (draw_chance(chance, 50)) t.reorder = (uint32_t)draw_between(chance, 1, 40);
    if (draw_chance(chance, 50)) t.delay_ms = (uint32_t)draw_between(chance, 1, 150);
    if (draw_chance(chance, 25)) t.corrupt = (uint32_t)draw_between(chance, 1, 15);
    if (draw_chance(chance, 50)) t.break_ms = (uint32_t)draw_between(chance, 50, 3000);
    return t;
}

static void draw_troubles(sim_plan *p, uint64_t *chance)
{
    p->data         = draw_trouble(chance);
    p->control      = draw_trouble(chance);
    p->control.drop = p->control.reorder = p->control.corrupt =
        0; /* a stream only loses its end, when it breaks */
    p->control.break_ms *= 4;
    p->heal_ms = draw_between(chance, 500, 20000);
}

static void draw_sizes(sim_plan *p, uint64_t *chance)
{
    p->task.workers = (uint32_t)draw_between(chance, 1, 5);
    p->task.steps   = draw_between(chance, 3, 12);
    p->servers      = (uint32_t)draw_between(chance, 1, 3);
    p->shards       = (uint32_t)draw_between(chance, 1, SIM_PLACES_MAX);
    p->lanes        = (uint32_t)draw_between(chance, 1, SIM_LANES_MAX);
    p->tensors      = (uint32_t)draw_between(chance, 1, 10);
    p->bound        = draw_below(chance, 4);
    p->think_ms     = (uint32_t)draw_between(chance, 0, 60);
    p->slow_rank    = (uint32_t)draw_below(chance, p->task.workers);
    p->slow_ms      = draw_chance(chance, 40) ? (uint32_t)draw_between(chance, 50, 400) : 0;
    p->retry_ms     = draw_between(chance, 20, 400);
}

static void draw_manner(sim_plan *p, uint64_t *chance)
{
    model_task *task   = &p->task;
    const bool decides = task->mode == MODEL_DECIDE;
    task->sgd          = draw_chance(chance, 50);
    task->weighted     = draw_chance(chance, 40);
    task->loss_scale   = draw_chance(chance, 30) ? 1024 : 1;
    task->clip =
        decides && draw_chance(chance, 50) ? (double)draw_between(chance, 1, 2000) / 100 : 0;
    task->nonfinite_percent =
        decides && draw_chance(chance, 40) ? (uint32_t)draw_between(chance, 1, 40) : 0;
    uint64_t apart    = *chance; /* a later addition: plans of older seeds stay as they are */
    p->arrival_order  = draw_chance(chance, 30);
    p->by_node        = !p->arrival_order && draw_below(&apart, 1000) % 3 == 0;
    p->lends          = draw_chance(chance, 50);
    p->verbs          = !decides && draw_chance(chance, 40);
    p->barrier_every  = draw_chance(chance, 40) ? draw_between(chance, 1, 4) : 0;
    p->snapshot_every = draw_chance(chance, 40) ? draw_between(chance, 1, 4) : 0;
    if (draw_chance(chance, 20)) p->park_bytes_max = 1; /* nothing may be buffered */
}

static sim_event draw_process(const sim_plan *p, uint64_t *chance)
{
    sim_event e = {.role = (sim_role)draw_between(chance, SIM_SCHEDULER, SIM_WORKER)};
    e.rank      = e.role == SIM_WORKER   ? (uint32_t)draw_below(chance, p->task.workers)
                  : e.role == SIM_SERVER ? (uint32_t)draw_below(chance, p->servers)
                                         : 0;
    return e;
}

static void draw_partition(sim_plan *p, uint64_t *chance)
{
    if (!draw_chance(chance, 20)) return;
    sim_event e = draw_process(p, chance);
    e.what      = SIM_CUT_OFF;
    e.from_ms   = draw_between(chance, 1, 600);
    e.until_ms  = e.from_ms + draw_between(chance, 1, p->control.break_ms > 0 ? 500 : 1400);
    sim_plan_add(p, e);
}

sim_plan sim_plan_swarm_of(uint64_t seed, model_mode mode)
{
    uint64_t chance = draw_mix(seed + 77);
    sim_plan p      = sim_plan_calm(seed, mode);
    draw_sizes(&p, &chance);
    draw_manner(&p, &chance);
    draw_troubles(&p, &chance);
    draw_partition(&p, &chance);
    return p;
}

sim_plan sim_plan_swarm(uint64_t seed)
{
    return sim_plan_swarm_of(seed, (model_mode)(draw_mix(seed) % (MODEL_ASYNC + 1)));
}

/* ---- copies, deaths, joins and leaves -------------------------------------------------------- */
/* Events are so far apart that a lost copy is filled again, or is known to be lost. */
static uint64_t next_time(uint64_t *chance, uint64_t *at)
{
    const uint64_t least = 1 + *at;
    *at                  = least + draw_between(chance, 1, 4000);
    return *at;
}

static void draw_server_death(sim_plan *p, uint64_t *chance, uint64_t *at)
{
    sim_event e = {.what = SIM_CRASH, .role = SIM_SERVER};
    e.rank      = (uint32_t)draw_below(chance, p->servers);
    e.from_ms   = next_time(chance, at);
    e.until_ms  = e.from_ms + draw_between(chance, 300, 3000);
    *at         = e.until_ms + 6000; /* declared dead, and filled again */
    sim_plan_add(p, e);
}

static void draw_worker_death(sim_plan *p, uint64_t *chance, uint64_t *at)
{
    sim_event e = {.what = SIM_CRASH, .role = SIM_WORKER};
    e.rank      = (uint32_t)draw_below(chance, p->task.workers);
    e.from_ms   = next_time(chance, at);
    e.until_ms  = e.from_ms + draw_between(chance, 1200, 4000);
    *at         = e.until_ms;
    sim_plan_add(p, e);
}

static void draw_scheduler_death(sim_plan *p, uint64_t *chance, uint64_t *at)
{
    sim_event e = {.what = SIM_CRASH, .role = SIM_SCHEDULER};
    e.from_ms   = next_time(chance, at);
    e.until_ms  = e.from_ms + draw_between(chance, 100, 4000);
    *at         = e.until_ms;
    sim_plan_add(p, e);
}

static void draw_isolation(sim_plan *p, uint64_t *chance, uint64_t *at)
{
    static const sim_what kinds[] = {SIM_CUT_OFF, SIM_DEAF, SIM_MUTE, SIM_STALL};
    sim_event e                   = draw_process(p, chance);
    e.what                        = kinds[draw_below(chance, 4)];
    e.from_ms                     = next_time(chance, at);
    e.until_ms                    = e.from_ms + draw_between(chance, 10, 900);
    *at                           = e.until_ms;
    sim_plan_add(p, e);
}

static void draw_lost_host(sim_plan *p, uint64_t *chance, uint64_t *at)
{
    const uint32_t before = p->n_events;
    draw_server_death(p, chance, at);
    if (p->on_worker_loss == LOSS_FAIL || p->n_events == before) return;
    sim_event e = p->event[before];
    e.role      = SIM_WORKER;
    e.rank      = (uint32_t)draw_below(chance, p->task.workers);
    sim_plan_add(p, e);
}

static void draw_comer(sim_plan *p, uint64_t *chance, uint64_t *at)
{
    if (p->workers_max <= p->task.workers) return;
    sim_event e = {.what = SIM_JOIN, .role = SIM_WORKER, .rank = p->task.workers};
    e.from_ms   = next_time(chance, at);
    sim_plan_add(p, e);
    if (draw_chance(chance, 50)) return;
    e         = (sim_event){.what = SIM_LEAVE, .role = SIM_WORKER};
    e.rank    = (uint32_t)draw_below(chance, p->task.workers);
    e.from_ms = next_time(chance, at);
    sim_plan_add(p, e);
}

static void draw_new_server(sim_plan *p, uint64_t *chance, uint64_t *at)
{
    if (p->servers_max <= p->servers) return;
    sim_event e = {.what = SIM_JOIN, .role = SIM_SERVER, .rank = p->servers};
    e.from_ms   = next_time(chance, at);
    *at += 3000;
    if (draw_chance(chance, 50)) {
        e.what = SIM_SCALE;
        e.rank = p->servers + 1;
    }
    sim_plan_add(p, e);
    if (draw_chance(chance, 50)) return;
    e         = (sim_event){.what = SIM_DRAIN, .role = SIM_SERVER};
    e.rank    = (uint32_t)draw_below(chance, p->servers);
    e.from_ms = next_time(chance, at);
    *at += 6000;
    sim_plan_add(p, e);
}

typedef void (*draw_fn)(sim_plan *p, uint64_t *chance, uint64_t *at);

static void draw_events(sim_plan *p, uint64_t *chance)
{
    static const draw_fn kinds[] = {draw_server_death, draw_worker_death, draw_scheduler_death,
                                    draw_isolation,    draw_lost_host,    draw_comer,
                                    draw_new_server};
    uint64_t at                  = 300;
    bool wanted[7];
    for (int i = 0; i < 7; i++) wanted[i] = draw_chance(chance, 50);
    if (p->replicas == 0) wanted[0] = wanted[4] = false;
    if (p->on_worker_loss == LOSS_FAIL) wanted[1] = false;
    for (uint64_t n = draw_between(chance, 1, 8); n > 0; n--) {
        uint64_t kind = draw_below(chance, 7);
        for (int i = 0; i < 7 && !wanted[kind]; i++) kind = (kind + 1) % 7;
        if (wanted[kind]) kinds[kind](p, chance, &at);
    }
}

/* A worker and a server, two workers, or a server and the one that has copies of its shards.  Links between servers are
 * watched until they are up. */
sim_plan sim_plan_apart(uint64_t seed)
{
    uint64_t chance  = draw_mix(seed + 733733);
    sim_plan p       = sim_plan_swarm(seed);
    const int kind   = (int)draw_below(&chance, 3);
    const bool later = kind != 2 && draw_chance(&chance, 50);
    sim_event e      = {.what    = SIM_NO_WAY,
                        .role    = kind == 2 ? SIM_SERVER : SIM_WORKER,
                        .to_role = kind == 1 ? SIM_WORKER : SIM_SERVER,
                        .from_ms = later ? draw_between(&chance, 1500, 3000) : 0};
    p.n_events       = 0;
    p.task.steps     = 1000; /* two workers apart train on until they are told */
    p.think_ms       = 40;
    p.tensors        = 6; /* each server has a part */
    if (kind == 1 && p.task.workers < 2) p.task.workers = 2;
    if (kind == 2) p.servers = 2;
    if (kind == 2) p.replicas = 1;
    e.rank = (uint32_t)draw_below(&chance, kind == 2 ? p.servers : p.task.workers);
    e.to   = (uint32_t)draw_below(&chance, kind == 1 ? p.task.workers : p.servers);
    if (kind > 0 && e.to == e.rank) e.to = e.to > 0 ? e.to - 1 : 1;
    sim_plan_add(&p, e);
    p.end_ms = e.from_ms + p.lease_ms;
    return p;
}

sim_plan sim_plan_lively(uint64_t seed)
{
    uint64_t chance = draw_mix(seed + 1234577);
    sim_plan p      = sim_plan_calm(seed, (model_mode)(draw_mix(seed + 5) % (MODEL_ASYNC + 1)));
    draw_sizes(&p, &chance);
    draw_manner(&p, &chance);
    p.task.steps     = draw_between(&chance, 20, 150);
    p.think_ms       = (uint32_t)draw_between(&chance, 10, 200);
    p.servers        = (uint32_t)draw_between(&chance, 2, 4);
    p.replicas       = (uint32_t)draw_below(&chance, p.servers < 3 ? 2 : 3);
    p.on_worker_loss = (int)draw_between(&chance, LOSS_FAIL, LOSS_WAIT);
    if (p.task.workers == 1) p.on_worker_loss = LOSS_WAIT;
    if (p.on_worker_loss == LOSS_CONTINUE) p.workers_min = 1;
    if (draw_chance(&chance, 30)) p.workers_max = p.task.workers + 1;
    if (draw_chance(&chance, 30)) p.servers_max = p.servers + 1;
    p.has_state    = true;
    p.must_go_on   = true;
    p.restarts     = true;
    p.same_address = draw_chance(&chance, 50);
    p.skew_percent = draw_chance(&chance, 50) ? (uint32_t)draw_between(&chance, 1, 10) : 0;
    if (draw_chance(&chance, 50)) draw_troubles(&p, &chance);
    if (draw_chance(&chance, 50)) p.replica = draw_trouble(&chance);
    p.control.break_ms = p.control.break_ms > 0 ? p.control.break_ms + 3000 : 0;
    p.barrier_every    = 0; /* workers that join or leave have not made the same calls */
    draw_events(&p, &chance);
    if (draw_chance(&chance, 20)) p.crash_at_keep = (uint32_t)draw_between(&chance, 3, 20);
    p.keep_is_lost = draw_chance(&chance, 50);
    p.deadline_ms  = 120000;
    return p;
}

sim_plan sim_plan_peers(uint64_t seed)
{
    uint64_t chance  = draw_mix(seed + 7654321);
    sim_plan p       = sim_plan_calm(seed, MODEL_DECIDE);
    p.servers        = 0;
    p.task.workers   = (uint32_t)draw_between(&chance, 2, 5);
    p.task.steps     = draw_between(&chance, 20, 80);
    p.think_ms       = (uint32_t)draw_between(&chance, 5, 100);
    p.lease_ms       = draw_between(&chance, 2000, 10000);
    p.on_worker_loss = LOSS_CONTINUE;
    p.workers_min    = 1;
    p.skew_percent   = draw_chance(&chance, 50) ? (uint32_t)draw_between(&chance, 1, 10) : 0;
    sim_plan_must_last(&p);
    if (draw_chance(&chance, 50))
        p.control = (sim_trouble){.delay_ms = (uint32_t)draw_between(&chance, 1, 150),
                                  .repeat   = (uint32_t)draw_between(&chance, 0, 30),
                                  .break_ms = (uint32_t)draw_between(&chance, 2000, 8000)};
    p.heal_ms        = 20000;
    const uint64_t n = draw_between(&chance, 1, p.task.workers - 1);
    for (uint32_t i = 0; i < n; i++)
        sim_plan_add(&p, (sim_event){.what    = SIM_CRASH,
                                     .role    = SIM_WORKER,
                                     .rank    = (uint32_t)draw_below(&chance, p.task.workers),
                                     .from_ms = draw_between(&chance, 300, 4000)});
    if (!draw_chance(&chance, 40)) return p;
    const uint64_t from = draw_between(&chance, 300, 4000);
    sim_plan_add(&p, (sim_event){.what     = SIM_CRASH,
                                 .role     = SIM_SCHEDULER,
                                 .from_ms  = from,
                                 .until_ms = from + draw_between(&chance, 100, 3000)});
    return p;
}

void sim_plan_share(sim_plan *p, uint64_t *chance)
{
    sim_sharing *s       = &p->sharing;
    const uint64_t rooms = draw_between(chance, 1, 3);
    s->proves            = true;
    for (uint32_t i = 0; i < SIM_FEW_RANKS; i++) s->room[i] = (uint32_t)draw_below(chance, rooms);
    for (uint32_t i = 0; i < SIM_FEW_RANKS; i++) {
        const uint64_t what = draw_below(chance, 10);
        if (what == 0) s->liars |= 1u << i;
        if (what == 1) s->boasters |= 1u << i;
        if (what == 2) s->blind |= 1u << i;
    }
}

/* ---- in words -------------------------------------------------------------------------------- */
typedef struct {
    char *text;
    size_t size, used;
} words;

static void add(words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(words *w, const char *format, ...)
{
    if (w->used >= w->size) return;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(w->text + w->used, w->size - w->used, format, args);
    va_end(args);
    if (n > 0) w->used += (size_t)n;
}

static void add_trouble(words *w, const char *plane, const sim_trouble *t)
{
    if (t->drop + t->repeat + t->reorder + t->corrupt + t->delay_ms + t->break_ms == 0) return;
    add(w, "; %s: drop %u repeat %u reorder %u corrupt %u %%, delay %u ms, break %u ms", plane,
        t->drop, t->repeat, t->reorder, t->corrupt, t->delay_ms, t->break_ms);
}

static void add_event(words *w, const sim_event *e)
{
    static const char *const roles[] = {"nobody", "scheduler", "server", "worker"};
    static const char *const whats[] = {"nothing",    "crash",  "cut off",   "deaf",   "mute",
                                        "stall",      "join",   "leave",     "drain",  "scale",
                                        "keep fails", "no way", "swallowed", "forgets"};
    add(w, "; %s %s %u %" PRIu64 " .. %" PRIu64, whats[e->what], roles[e->role], e->rank,
        e->from_ms, e->until_ms);
}

void sim_plan_describe(const sim_plan *p, char *text, size_t size)
{
    static const char *const modes[]    = {"bsp decide", "bsp eager", "ssp", "async"};
    static const char *const policies[] = {"fail", "continue", "wait"};
    words w                             = {.text = text, .size = size};
    add(&w,
        "%s s=%" PRIu64
        ", %u workers, %u servers x %u, %u replicas, loss %s, %u lanes, %u tensors, "
        "%" PRIu64 " steps%s%s%s%s%s%s%s",
        modes[p->task.mode], p->bound, p->task.workers, p->servers, p->shards, p->replicas,
        policies[p->on_worker_loss], p->lanes, p->tensors, p->task.steps, p->verbs ? " verbs" : "",
        p->lends ? " lends" : "", p->arrival_order ? " arrival" : "", p->by_node ? " by node" : "",
        p->task.weighted ? " weighted" : "", p->task.clip > 0 ? " clip" : "",
        p->snapshot_every > 0 ? " snapshots" : "");
    add_trouble(&w, "data", &p->data);
    add_trouble(&w, "control", &p->control);
    add_trouble(&w, "replica", &p->replica);
    add(&w, "; heal %" PRIu64 " ms", p->heal_ms);
    for (uint32_t i = 0; i < p->n_events; i++) add_event(&w, &p->event[i]);
    if (p->crash_at_keep > 0)
        add(&w, "; the scheduler dies at write %u%s", p->crash_at_keep,
            p->keep_is_lost ? ", which is lost" : "");
    if (p->memory_at > 0)
        add(&w, "; %ld requests for memory are refused from the %ld-th on", p->memory_many,
            p->memory_at);
    if (p->skew_percent > 0) add(&w, "; clocks within %u %%", p->skew_percent);
}
