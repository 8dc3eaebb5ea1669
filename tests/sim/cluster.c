/* cluster.c - the model, and the course of one run. */
#include "tests/sim/cluster_state.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TURNS_MAX   = 20000, /* in one moment: more is a livelock */
    ARENA_BYTES = 16 << 20
};

/* ---- trace and failure ----------------------------------------------------------------------- */
void *sim_need(void *memory)
{
    if (memory == NULL) abort();
    return memory;
}

double sim_mark(uint32_t rank)
{
    return (double)(draw_mix(rank) >> 24);
}

sim_shards sim_all_shards(uint32_t n)
{
    return n < 128 ? ((sim_shards)1 << n) - 1 : ~(sim_shards)0;
}

bool sim_is_free_rule(const cluster *c)
{
    return c->plan.task.mode == MODEL_SSP || c->plan.task.mode == MODEL_ASYNC;
}

void sim_note(cluster *c, const char *format, ...)
{
    if (!c->plan.trace) return;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%8" PRIu64 "  ", c->now_ms - SIM_START_MS);
    vfprintf(stderr, format, args); /* NOLINT */
    fputc('\n', stderr);
    va_end(args);
}

void sim_wrong(cluster *c, const char *format, ...)
{
    if (c->result.wrong[0] != '\0') return; /* errors that follow from the first are ignored */
    va_list args;
    va_start(args, format);
    vsnprintf(c->result.wrong, sizeof c->result.wrong, format, args);
    va_end(args);
    sim_note(c, "WRONG: %s", c->result.wrong);
}

/* ---- the model ------------------------------------------------------------------------------- */
static void make_tensor(cluster *c, uint32_t t)
{
    static const int64_t large[] = {7, 4099, 1, 300, 64}, small[] = {7, 41, 1, 30, 64};
    snprintf(c->tensor_name[t], sizeof c->tensor_name[t], "t%u", t);
    c->tensor[t] = (wire_tensor){.name       = c->tensor_name[t],
                                 .dtype      = PEN_F32,
                                 .grad_dtype = t % 4 == 3 ? PEN_BF16 : PEN_F32,
                                 .ndim       = 1,
                                 .shape      = {c->plan.many ? small[t % 5] : large[t % 5]},
                                 .flags      = t == 4 ? PEN_FROZEN : 0,
                                 .init       = ""};
}

static void add_setting(cluster *c, const char *key, const char *value)
{
    c->setting[c->model.n_settings++] = (wire_pair){key, value};
}

/* Behind the tensors, of which it is none for the checks: its one element per part is frozen. */
static void add_table(cluster *c)
{
    const uint32_t t = c->model.n_tensors++;
    make_tensor(c, t);
    c->tensor[t].grad_dtype = PEN_F32;
    c->tensor[t].ndim       = 2;
    c->tensor[t].shape[0]   = SIM_PARTS;
    c->tensor[t].shape[1]   = 1;
    c->tensor[t].group      = 1;
    c->tensor[t].flags      = PEN_FROZEN | WIRE_TABLE;
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
    c->group[0] = (wire_group){.name     = "g",
                               .optim    = c->optim,
                               .sync     = rules[p->task.mode],
                               .wire     = "raw",
                               .schedule = "constant"};
    add_setting(c, "deterministic", p->arrival_order ? "no" : p->by_node ? "node" : "yes");
    if (p->task.mode == MODEL_EAGER) add_setting(c, "commit", "eager");
    c->model.n_tensors = p->tensors;
    c->model.n_groups  = 2;
    c->group[1]        = (wire_group){"rows", "sum", "async", "raw", "constant"};
    if (p->rows) add_table(c);
    c->model.tensor  = c->tensor;
    c->model.group   = c->group;
    c->model.setting = c->setting;
    if (plan_create(&c->model, &c->cut, &why) != PEN_OK)
        sim_wrong(c, "%s", why.text);
    else
        c->reference = model_create(&p->task, &c->model, c->cut);
}

/* ---- time ------------------------------------------------------------------------------------ */
static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t next_ms(cluster *c)
{
    uint64_t due = least(net_due(c), fault_due(c));
    due          = least(due, SIM_START_MS + c->plan.end_ms);
    due          = least(due, sim_operator_due(c));
    due          = least(due, sim_scheduler_due(&c->scheduler));
    for (uint32_t i = 0; i < c->n_servers; i++) due = least(due, sim_server_due(&c->server[i]));
    for (uint32_t i = 0; i < c->n_workers; i++) due = least(due, sim_worker_due(&c->worker[i]));
    return due > c->now_ms ? due : c->now_ms + 1;
}

/* Every process once, in random order. */
static bool turn_all(cluster *c)
{
    const uint32_t servers = c->n_servers, workers = c->n_workers, n = 1 + servers + workers;
    const uint32_t first = (uint32_t)draw_below(&c->chance, n);
    bool any             = sim_operator_turn(c);
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

static bool is_coming_back(const cluster *c)
{
    for (uint32_t i = 0; i < c->n_servers + c->n_workers + 1; i++)
        if (c->restart_ms[i] > 0) return true;
    return false;
}

bool sim_is_over(const cluster *c)
{
    bool runs = c->scheduler.life == LIFE_RUNS;
    for (uint32_t i = 0; i < c->n_servers; i++) runs |= c->server[i].life == LIFE_RUNS;
    for (uint32_t i = 0; i < c->n_workers; i++) runs |= c->worker[i].life == LIFE_RUNS;
    return (!runs && !is_coming_back(c)) || c->result.wrong[0] != '\0';
}

static void run(cluster *c)
{
    const uint64_t end = SIM_START_MS + c->plan.end_ms;
    while (!sim_is_over(c) && c->now_ms < end) {
        fault_happen(c);
        (void)net_deliver(c);
        settle(c);
        check_calls(c);
        if (sim_is_over(c)) break;
        c->is_excused |= sim_memory_has_refused();
        c->now_ms   = next_ms(c);
        c->clock.ns = c->now_ms * 1000000;
    }
    check_end(c);
}

/* ---- life ------------------------------------------------------------------------------------ */
static void name_members(cluster *c)
{
    for (uint32_t i = 0; i < c->n_workers; i++) {
        snprintf(c->worker_name[i], sizeof c->worker_name[i], "w%u", i);
        c->worker_names[i] = c->worker_name[i];
    }
    for (uint32_t i = 0; i < SIM_SHARDS_MAX; i++) {
        snprintf(c->server_name[i], sizeof c->server_name[i], "s%u", i);
        c->server_names[i] = c->server_name[i];
    }
}

static void build(cluster *c)
{
    const sim_plan *p = &c->plan;
    c->now_ms         = SIM_START_MS;
    c->clock          = clock_simulated_at(SIM_START_MS * 1000000);
    c->chance         = draw_mix(p->task.seed ^ 0x51a1);
    c->arena          = sim_need(wire_arena_create(ARENA_BYTES));
    c->column         = sim_need(calloc(WIRE_ITEMS_MAX, sizeof *c->column));
    c->n_workers      = p->workers_max > p->task.workers ? p->workers_max : p->task.workers;
    c->n_servers      = p->servers_max > p->servers ? p->servers_max : p->servers;
    c->worker         = sim_need(calloc(c->n_workers, sizeof *c->worker));
    c->server         = sim_need(calloc(c->n_servers + 1, sizeof *c->server));
    c->restart_ms     = sim_need(calloc(c->n_servers + c->n_workers + 1, sizeof *c->restart_ms));
    mutation_active   = p->planted;
    for (uint32_t i = 0; i < p->n_events; i++) c->has_no_way |= p->event[i].what == SIM_NO_WAY;
    name_members(c);
    make_model(c);
    net_open(c);
    sim_scheduler_begin(c);
    for (uint32_t i = 0; i < p->servers; i++) sim_server_begin(c, i);
    for (uint32_t i = 0; i < p->task.workers; i++) sim_worker_begin(c, i);
}

static void destroy(cluster *c)
{
    for (uint32_t i = 0; i < c->n_workers; i++) sim_worker_free(&c->worker[i]);
    for (uint32_t i = 0; i < c->n_servers; i++) sim_server_free(&c->server[i]);
    sim_scheduler_free(&c->scheduler);
    net_hang_up(&c->operator.control);
    net_close(c);
    model_destroy(c->reference);
    plan_destroy(c->cut);
    wire_arena_destroy(c->arena);
    wire_out_free(&c->out);
    sim_view_clear(&c->view, &c->view_kept);
    free(c->shard_of);
    free(c->column);
    free(c->worker);
    free(c->server);
    free(c->restart_ms);
    free(c);
}

sim_result sim_run(const sim_plan *asked)
{
    cluster *c = sim_need(calloc(1, sizeof *c));
    c->plan    = *asked;
    log_level_set(log_level_find("silent"));
    build(c);
    sim_memory_begin(c->plan.memory_at, c->plan.memory_many);
    run(c);
    sim_result result;
    c->result.asked = sim_memory_asked();
    sim_memory_begin(0, 0);
    c->result.ms = c->now_ms - SIM_START_MS;
    for (uint32_t i = 0; i < c->n_servers; i++) sim_server_count(&c->server[i]);
    result = c->result;
    destroy(c);
    return result;
}
