/* cluster_state.h - the inside of a simulated cluster, shared by cluster*.c only. */
#ifndef TESTS_SIM_CLUSTER_STATE_H
#define TESTS_SIM_CLUSTER_STATE_H

#include "tests/sim/cluster.h"
#include "tests/sim/draw.h"

#include "common/buf.h"
#include "common/clock.h"
#include "common/crc.h"
#include "common/stat.h"
#include "common/transport/transport.h"
#include "common/why.h"
#include "scheduler/core.h"
#include "scheduler/keep.h"
#include "server/shard.h"
#include "worker/exchange.h"
#include "worker/liaison.h"

enum {
    SIM_WORKERS_MAX = 8,
    SIM_SERVERS_MAX = 4,
    SIM_SHARDS_MAX  = 8, /* of the cluster */
    SIM_LANES_MAX   = 3,
    SIM_TENSORS_MAX = 10,
    SIM_CALLS_MAX   = 2 * SIM_TENSORS_MAX + 4,
    SIM_CUTS_MAX    = 64,
    SIM_NAME_BYTES  = 40,
    SIM_EPOCH_BYTES = 64
};

typedef struct cluster cluster;
typedef enum { LIFE_RUNS, LIFE_LEFT, LIFE_FAILED, LIFE_CRASHED } life;

/* ---- the network: cluster_net.c -------------------------------------------------------------- */
typedef enum { NET_CONTROL, NET_DATA, NETS } net_plane;

typedef struct { /* one end of connections */
    transport *t;
    net_plane plane;
    char name[SIM_NAME_BYTES];  /* in the network; a dialler's is that of its process */
    char other[SIM_NAME_BYTES]; /* what a dialler dials */
} endpoint;

void net_open(cluster *c);
void net_close(cluster *c);
bool net_deliver(cluster *c);       /* what is due now */
uint64_t net_due(const cluster *c); /* when the next message arrives; UINT64_MAX: nothing travels */
void net_trouble(cluster *c, bool on);
void net_partition(cluster *c, const sim_event *who, bool on); /* of one process from all others */
void net_break(cluster *c, const sim_event *who);              /* its connections */
void net_kill(cluster *c, const sim_event *who);
void net_break_one(cluster *c, net_plane plane); /* any connection, drawn */

void net_listen(cluster *c, endpoint *e, net_plane plane, const char *name);
void net_dial(cluster *c, endpoint *e, const char *address, const char *name);
void net_hang_up(endpoint *e);
bool net_recv(cluster *c, endpoint *e, transport_event *event); /* corrupts some payloads */
bool net_hear(cluster *c, const endpoint *e, const transport_event *event, wire_control *message);
bool net_hear_data(cluster *c, const endpoint *e, const transport_event *event, wire_data *d);
void net_say(cluster *c, endpoint *e, uint32_t peer, const wire_control *message);

/* ---- the roles ------------------------------------------------------------------------------- */
typedef struct {
    cluster *c;
    life life;
    endpoint listener;
    scheduler_core *core;
    bool has_ended;
    uint64_t close_ms;
    pen_status status;
} sim_scheduler;

typedef struct sim_server sim_server;

typedef struct {
    sim_server *server;
    uint32_t number; /* of the cluster */
    shard *shard;
    endpoint listener;
    uint64_t *version;        /* [chunks] as last checked   */
    const wire_data *message; /* as the worker sent it; NULL: none is being handled */
} sim_shard;

struct sim_server {
    cluster *c;
    uint32_t rank;
    life life;
    endpoint control;
    bool is_up, is_welcome, has_epoch, is_leaving;
    uint64_t nonce, incarnation, term, epoch;
    uint64_t started_ms, say_ms, beat_ms, beats, acked_ms, down_ms, leave_ms;
    keep kept;
    wire_model model;
    wire_member *worker;
    uint32_t n_workers;
    plan *cut;
    uint32_t *shard_of;
    sim_shard shard[SIM_SHARDS_MAX];
    uint32_t n_shards;
    stat_set stats;
    struct {
        int64_t step;
        uint32_t parts;
    } cuts[SIM_CUTS_MAX];
    uint32_t n_cuts;
    pen_error why;
};

typedef struct sim_worker sim_worker;
typedef struct {
    sim_worker *worker;
    const char *name; /* "pen_step_end" */
    bool is_pending;
    uint64_t deadline_ms;
    int32_t tensor;    /* of a verb; -1 */
    bool acknowledges; /* a push that is answered once it is applied */
} sim_call;

typedef struct {
    endpoint data;
    bool is_cut;
} sim_lane;

typedef struct sim_loan { /* a payload that the transport still reads */
    struct sim_loan *next;
    const sim_lane *lane;
    void *op;
    uint64_t due_ms;
} sim_loan;

typedef enum {
    AT_JOIN,
    AT_REGISTER,
    AT_COMMIT,
    AT_BEGIN,
    AT_FIRST_HALF,
    AT_SECOND_HALF,
    AT_STEP,
    AT_MEET,
    AT_LEAVE,
    AT_LEAVING,
    AT_END
} program_place;

struct sim_worker {
    cluster *c;
    uint32_t rank;
    life life;
    endpoint control;
    liaison *liaison;
    bool has_epoch, is_committed, has_left, snapshot_wanted;

    uint64_t term, epoch, to[SIM_SHARDS_MAX];
    char address[SIM_SHARDS_MAX][SIM_EPOCH_BYTES];
    uint32_t n_shards;
    uint32_t *shard_of;
    exchange *exchange;
    exchange_request *step_request;
    sim_lane lane[SIM_SHARDS_MAX * SIM_LANES_MAX];
    sim_loan *loans;

    /* The program. */
    program_place at;
    uint64_t chance, wake_ms, step;
    sim_call call[SIM_CALLS_MAX];
    uint32_t pending;
    float *param[SIM_TENSORS_MAX];
    void *grad[SIM_TENSORS_MAX];
    uint32_t order[SIM_TENSORS_MAX];
    double met;
    exchange_outcome outcome;
    bool has_outcome;

    pen_error why; /* of its failure */
};

struct cluster {
    sim_plan plan;
    uint64_t now_ms, chance;
    bool is_healed, is_partitioned, was_partitioned, is_noticed, has_crashed;
    uint64_t break_at_ms[NETS];
    struct sim_net *net[NETS];
    clock_source clock;
    wire_arena *arena;
    wire_out out;

    wire_tensor tensor[SIM_TENSORS_MAX];
    char tensor_name[SIM_TENSORS_MAX][16];
    wire_group group;
    wire_pair setting[8];
    char sync[32], optim[48];
    wire_model model;
    plan *cut;
    model_reference *reference;
    uint32_t *column;

    sim_scheduler scheduler;
    sim_server server[SIM_SERVERS_MAX];
    sim_worker worker[SIM_WORKERS_MAX];
    sim_result result;
};

/* ---- cluster.c ------------------------------------------------------------------------------- */
void sim_wrong(cluster *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_note(cluster *c, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* in traces only */
bool sim_is_over(const cluster *c);
void *sim_need(void *memory); /* aborts for NULL */
uint32_t sim_n_shards(const cluster *c);

/* ---- the roles' files: `turn` is true when something was done -------------------------------- */
void sim_scheduler_begin(cluster *c);
bool sim_scheduler_turn(sim_scheduler *s);
uint64_t sim_scheduler_due(sim_scheduler *s);
void sim_scheduler_crash(sim_scheduler *s);
void sim_scheduler_free(sim_scheduler *s);

void sim_server_begin(cluster *c, uint32_t rank);
bool sim_server_turn(sim_server *s);
uint64_t sim_server_due(const sim_server *s);
void sim_server_crash(sim_server *s);
void sim_server_count(sim_server *s); /* into the result */
void sim_server_free(sim_server *s);

void sim_worker_begin(cluster *c, uint32_t rank);
bool sim_worker_turn(sim_worker *w);
uint64_t sim_worker_due(const sim_worker *w);
void sim_worker_crash(sim_worker *w);
void sim_worker_free(sim_worker *w);

/* ---- cluster_check.c ------------------------------------------------------------------------- */
void check_shard(sim_shard *s);                                          /* after each message   */
void check_served(sim_shard *s, const wire_data *d, const buf *payload); /* what leaves a shard  */
void check_cut(sim_shard *s, const shard_cut *cut);
void check_acknowledged(sim_worker *w, const sim_call *call);
void check_step(sim_worker *w); /* after each step      */
void check_calls(cluster *c);
void check_failure(cluster *c, const pen_error *why);
void check_end(cluster *c);

/* ---- cluster_plant.c ------------------------------------------------------------------------- */
void plant_plan(const sim_server *s, wire_model *model); /* what a server hears of the model */
/* Between a shard and the network.  False: the message is swallowed. */
bool plant_receive(sim_shard *s, uint32_t peer, wire_data *d, buf **payload);
void plant_cut(const sim_shard *s, shard_cut *cut);

#endif
