/* cluster.c - plans, and the course of one run. */
#include "tests/sim/cluster_state.h"

#include "common/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    START_MS     = 1000,  /* a clock that starts at 0 hides bugs: 0 often means "never" */
    TURNS_MAX    = 20000, /* in one moment: more is a livelock                           */
    HEARTBEAT_MS = 2000,  /* after so much silence a connection is taken for broken      */
    ARENA_BYTES  = 16 << 20
};

/* ---- plans ----------------------------------------------------------------------------------- */
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
        .end_ms          = 600000};
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

static void draw_sizes(sim_plan *p, uint64_t *chance)
{
    p->task.workers = (uint32_t)draw_between(chance, 1, 5);
    p->task.steps   = draw_between(chance, 3, 12);
    p->servers      = (uint32_t)draw_between(chance, 1, 3);
    p->shards       = (uint32_t)draw_between(chance, 1, 2);
    p->lanes        = (uint32_t)draw_between(chance, 1, SIM_LANES_MAX);
    p->tensors      = (uint32_t)draw_between(chance, 1, SIM_TENSORS_MAX);
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
    p->arrival_order  = draw_chance(chance, 30);
    p->lends          = draw_chance(chance, 50);
    p->verbs          = !decides && draw_chance(chance, 40);
    p->barrier_every  = draw_chance(chance, 40) ? draw_between(chance, 1, 4) : 0;
    p->snapshot_every = draw_chance(chance, 40) ? draw_between(chance, 1, 4) : 0;
    if (draw_chance(chance, 20)) p->park_bytes_max = 0;
}

static void draw_partition(sim_plan *p, uint64_t *chance)
{
    if (!draw_chance(chance, 20)) return;
    sim_event *e = &p->partition;
    e->role      = (sim_role)draw_between(chance, SIM_SCHEDULER, SIM_WORKER);
    e->rank      = e->role == SIM_WORKER   ? (uint32_t)draw_below(chance, p->task.workers)
                   : e->role == SIM_SERVER ? (uint32_t)draw_below(chance, p->servers)
                                           : 0;
    e->from_ms   = draw_between(chance, 1, 600);
    e->until_ms  = e->from_ms + draw_between(chance, 1, p->control.break_ms > 0 ? 500 : 1400);
}

sim_plan sim_plan_swarm_of(uint64_t seed, model_mode mode)
{
    uint64_t chance = draw_mix(seed + 77);
    sim_plan p      = sim_plan_calm(seed, mode);
    draw_sizes(&p, &chance);
    draw_manner(&p, &chance);
    p.data         = draw_trouble(&chance);
    p.control      = draw_trouble(&chance);
    p.control.drop = p.control.reorder = p.control.corrupt =
        0; /* a stream loses its end, when it breaks, and nothing else */
    p.control.break_ms *= 4;
    p.heal_ms = draw_between(&chance, 500, 20000);
    draw_partition(&p, &chance);
    return p;
}

sim_plan sim_plan_swarm(uint64_t seed)
{
    return sim_plan_swarm_of(seed, (model_mode)(draw_mix(seed) % (MODEL_ASYNC + 1)));
}

static void describe_trouble(const char *plane, const sim_trouble *t, char *text, size_t size)
{
    snprintf(text, size,
             ", %s: drop %u repeat %u reorder %u corrupt %u %%, delay %u ms, break %u ms", plane,
             t->drop, t->repeat, t->reorder, t->corrupt, t->delay_ms, t->break_ms);
}

void sim_plan_describe(const sim_plan *p, char *text, size_t size)
{
    static const char *const modes[] = {"bsp decide", "bsp eager", "ssp", "async"};
    static const char *const roles[] = {"nobody", "scheduler", "server", "worker"};
    char data[160], control[160];
    describe_trouble("data", &p->data, data, sizeof data);
    describe_trouble("control", &p->control, control, sizeof control);
    snprintf(text, size,
             "%s s=%" PRIu64 ", %u workers, %u servers x %u, %u lanes, %u tensors, %" PRIu64
             " steps%s%s%s%s%s%s, %s%s, heal %" PRIu64 " ms, cut off %s %u %" PRIu64 " .. %" PRIu64
             ", crash %s %u",
             modes[p->task.mode], p->bound, p->task.workers, p->servers, p->shards, p->lanes,
             p->tensors, p->task.steps, p->verbs ? " verbs" : "", p->lends ? " lends" : "",
             p->arrival_order ? " arrival" : "", p->task.weighted ? " weighted" : "",
             p->task.clip > 0 ? " clip" : "", p->snapshot_every > 0 ? " snapshots" : "", data + 2,
             control, p->heal_ms, roles[p->partition.role], p->partition.rank, p->partition.from_ms,
             p->partition.until_ms, roles[p->crash.role], p->crash.rank);
}

/* ---- saying ---------------------------------------------------------------------------------- */
void *sim_need(void *memory)
{
    if (memory == NULL) abort();
    return memory;
}

uint32_t sim_n_shards(const cluster *c)
{
    return c->plan.servers * c->plan.shards;
}

void sim_note(cluster *c, const char *format, ...)
{
    if (!c->plan.trace) return;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%8" PRIu64 "  ", c->now_ms - START_MS);
    vfprintf(stderr, format, args); /* NOLINT */
    fputc('\n', stderr);
    va_end(args);
}

void sim_wrong(cluster *c, const char *format, ...)
{
    if (c->result.wrong[0] != '\0') return; /* what follows from the first is no news */
    va_list args;
    va_start(args, format);
    vsnprintf(c->result.wrong, sizeof c->result.wrong, format, args);
    va_end(args);
    sim_note(c, "WRONG: %s", c->result.wrong);
}

/* ---- the model ------------------------------------------------------------------------------- */
static void make_tensor(cluster *c, uint32_t t)
{
    static const int64_t sizes[] = {7, 4099, 1, 300, 64};
    snprintf(c->tensor_name[t], sizeof c->tensor_name[t], "t%u", t);
    c->tensor[t] = (wire_tensor){.name       = c->tensor_name[t],
                                 .dtype      = PEN_F32,
                                 .grad_dtype = t % 4 == 3 ? PEN_BF16 : PEN_F32,
                                 .ndim       = 1,
                                 .shape      = {sizes[t % 5]},
                                 .flags      = t == 4 ? PEN_FROZEN : 0,
                                 .init       = ""};
}

static void add_setting(cluster *c, const char *key, const char *value)
{
    c->setting[c->model.n_settings++] = (wire_pair){key, value};
}

static void make_model(cluster *c)
{
    const sim_plan *p = &c->plan;
    pen_error why;
    for (uint32_t t = 0; t < p->tensors; t++) make_tensor(c, t);
    const char *rules[] = {"bsp", "bsp", c->sync, "async"};
    snprintf(c->sync, sizeof c->sync, "ssp s=%" PRIu64, p->bound);
    snprintf(c->optim, sizeof c->optim, p->task.sgd ? "sgd lr=%g" : "sum",
             p->task.rate); /* NOLINT */
    c->group = (wire_group){.name     = "g",
                            .optim    = c->optim,
                            .sync     = rules[p->task.mode],
                            .wire     = "raw",
                            .schedule = "constant"};
    add_setting(c, "deterministic", p->arrival_order ? "no" : "yes");
    c->model.n_tensors = p->tensors;
    c->model.n_groups  = 1;
    c->model.tensor    = c->tensor;
    c->model.group     = &c->group;
    c->model.setting   = c->setting;
    if (plan_create(&c->model, &c->cut, &why) != PEN_OK)
        sim_wrong(c, "%s", why.text);
    else
        c->reference = model_create(&p->task, &c->model, c->cut);
}

/* ---- what happens to the cluster ------------------------------------------------------------- */
static void crash(cluster *c)
{
    const sim_event *e = &c->plan.crash;
    sim_note(c, "crash of role %d rank %u", (int)e->role, e->rank);
    c->has_crashed = true;
    net_kill(c, e);
    if (e->role == SIM_SCHEDULER) sim_scheduler_crash(&c->scheduler);
    if (e->role == SIM_SERVER) sim_server_crash(&c->server[e->rank]);
    if (e->role == SIM_WORKER) sim_worker_crash(&c->worker[e->rank]);
}

static void partition(cluster *c, bool on)
{
    sim_note(c, "partition %s", on ? "begins" : "heals");
    net_partition(c, &c->plan.partition, on);
    if (!on) net_break(c, &c->plan.partition); /* a stream that lost something does not go on */
    c->is_partitioned  = on;
    c->was_partitioned = true;
}

static uint64_t break_mean_ms(const cluster *c, int plane)
{
    return plane == NET_DATA ? c->plan.data.break_ms : c->plan.control.break_ms;
}

static void maybe_break(cluster *c, int plane)
{
    const uint64_t mean = break_mean_ms(c, plane);
    if (mean == 0 || c->is_healed || c->now_ms < c->break_at_ms[plane]) return;
    if (c->break_at_ms[plane] != 0) net_break_one(c, (net_plane)plane);
    c->break_at_ms[plane] = c->now_ms + 1 + draw_below(&c->chance, 2 * mean);
}

static bool is_due(const cluster *c, uint64_t ms)
{
    return c->now_ms >= START_MS + ms;
}

static void happen(cluster *c)
{
    const sim_event *cut_off = &c->plan.partition;
    if (!c->is_healed && is_due(c, c->plan.heal_ms)) {
        c->is_healed = true;
        net_trouble(c, false);
        sim_note(c, "the network heals");
    }
    for (int plane = 0; plane < NETS; plane++) maybe_break(c, plane);
    if (cut_off->role != SIM_NOBODY) {
        if (!c->was_partitioned && is_due(c, cut_off->from_ms)) partition(c, true);
        if (c->is_partitioned && is_due(c, cut_off->until_ms)) partition(c, false);
        if (c->is_partitioned && !c->is_noticed && is_due(c, cut_off->from_ms + HEARTBEAT_MS)) {
            c->is_noticed = true;
            net_break(c, cut_off);
        }
    }
    if (c->plan.crash.role != SIM_NOBODY && !c->has_crashed && is_due(c, c->plan.crash.from_ms))
        crash(c);
}

/* ---- time ------------------------------------------------------------------------------------ */
static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t event_due(const cluster *c)
{
    const sim_plan *p = &c->plan;
    uint64_t due      = START_MS + p->end_ms;
    if (!c->is_healed) due = least(due, START_MS + p->heal_ms);
    for (int plane = 0; plane < NETS; plane++)
        if (!c->is_healed && break_mean_ms(c, plane) > 0) due = least(due, c->break_at_ms[plane]);
    if (p->partition.role != SIM_NOBODY && !c->was_partitioned)
        due = least(due, START_MS + p->partition.from_ms);
    if (c->is_partitioned) due = least(due, START_MS + p->partition.until_ms);
    if (c->is_partitioned && !c->is_noticed)
        due = least(due, START_MS + p->partition.from_ms + HEARTBEAT_MS);
    if (p->crash.role != SIM_NOBODY && !c->has_crashed)
        due = least(due, START_MS + p->crash.from_ms);
    return due;
}

static uint64_t next_ms(cluster *c)
{
    uint64_t due = least(net_due(c), event_due(c));
    due          = least(due, sim_scheduler_due(&c->scheduler));
    for (uint32_t i = 0; i < c->plan.servers; i++) due = least(due, sim_server_due(&c->server[i]));
    for (uint32_t i = 0; i < c->plan.task.workers; i++)
        due = least(due, sim_worker_due(&c->worker[i]));
    return due > c->now_ms ? due : c->now_ms + 1;
}

/* Everybody once, in an order that is drawn. */
static bool turn_all(cluster *c)
{
    const uint32_t servers = c->plan.servers, workers = c->plan.task.workers,
                   n     = 1 + servers + workers;
    const uint32_t first = (uint32_t)draw_below(&c->chance, n);
    bool any             = false;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t who = (first + i) % n;
        if (who == 0)
            any |= sim_scheduler_turn(&c->scheduler);
        else if (who <= servers)
            any |= sim_server_turn(&c->server[who - 1]);
        else
            any |= sim_worker_turn(&c->worker[who - 1 - servers]);
    }
    return any;
}

static void settle(cluster *c)
{
    int turns = 0;
    while (c->result.wrong[0] == '\0' && (turn_all(c) || net_deliver(c)))
        if (++turns == TURNS_MAX)
            sim_wrong(c, "this moment never ends: somebody sends without end");
}

bool sim_is_over(const cluster *c)
{
    bool runs = c->scheduler.life == LIFE_RUNS;
    for (uint32_t i = 0; i < c->plan.servers; i++) runs |= c->server[i].life == LIFE_RUNS;
    for (uint32_t i = 0; i < c->plan.task.workers; i++) runs |= c->worker[i].life == LIFE_RUNS;
    return !runs || c->result.wrong[0] != '\0';
}

static void run(cluster *c)
{
    const uint64_t end = START_MS + c->plan.end_ms;
    while (!sim_is_over(c) && c->now_ms < end) {
        happen(c);
        (void)net_deliver(c);
        settle(c);
        check_calls(c);
        if (sim_is_over(c)) break;
        c->now_ms             = next_ms(c);
        c->clock.simulated_ns = c->now_ms * 1000000;
    }
    check_end(c);
}

/* ---- life ------------------------------------------------------------------------------------ */
static void build(cluster *c)
{
    c->now_ms = START_MS;
    c->clock  = clock_simulated(START_MS * 1000000);
    c->chance = draw_mix(c->plan.task.seed ^ 0x51a1);
    c->arena  = sim_need(wire_arena_create(ARENA_BYTES));
    c->column = sim_need(calloc(WIRE_ITEMS_MAX, sizeof *c->column));
    make_model(c);
    net_open(c);
    sim_scheduler_begin(c);
    for (uint32_t i = 0; i < c->plan.servers; i++) sim_server_begin(c, i);
    for (uint32_t i = 0; i < c->plan.task.workers; i++) sim_worker_begin(c, i);
}

static void destroy(cluster *c)
{
    for (uint32_t i = 0; i < c->plan.task.workers; i++) sim_worker_free(&c->worker[i]);
    for (uint32_t i = 0; i < c->plan.servers; i++) sim_server_free(&c->server[i]);
    sim_scheduler_free(&c->scheduler);
    net_close(c);
    model_destroy(c->reference);
    plan_destroy(c->cut);
    wire_arena_destroy(c->arena);
    wire_out_free(&c->out);
    free(c->column);
    free(c);
}

sim_result sim_run(const sim_plan *asked)
{
    cluster *c = sim_need(calloc(1, sizeof *c));
    c->plan    = *asked;
    log_level_set(log_level_find("silent"));
    build(c);
    run(c);
    sim_result result;
    c->result.ms = c->now_ms - START_MS;
    for (uint32_t i = 0; i < c->plan.servers; i++) sim_server_count(&c->server[i]);
    result = c->result;
    destroy(c);
    return result;
}
