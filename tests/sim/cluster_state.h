/* cluster_state.h - the inside of a simulated cluster, shared by cluster*.c only. */
#ifndef TESTS_SIM_CLUSTER_STATE_H
#define TESTS_SIM_CLUSTER_STATE_H

#include "tests/sim/cluster.h"
#include "tests/sim/draw.h"
#include "tests/sim/memory.h"
#include "tests/support/clock_simulated.h"

#include "common/base/crc.h"
#include "common/base/mutation.h"
#include "common/base/stat.h"
#include "common/base/why.h"
#include "common/containers/buf.h"
#include "common/net/transport/transport.h"
#include "scheduler/core/core.h"
#include "server/shard/shard.h"
#include "worker/io/membership_client.h"
#include "worker/io/unanswered.h"
#include "worker/ps/ps_client.h"

enum {
    SIM_START_MS    = 1000, /* a clock that starts at 0 hides bugs: 0 often means "never" */
    SIM_WORKERS_MAX = 4608, /* with servers: MODEL_RANKS_MAX */
    SIM_SERVERS_MAX = 128,
    SIM_PLACES_MAX  = 2,
    SIM_SHARDS_MAX  = 128, /* of the cluster: bits of a sim_shards */
    SIM_LANES_MAX   = 3,
    SIM_TENSORS_MAX = 200,
    SIM_TENSORS     = SIM_TENSORS_MAX + 1, /* and a table */
    SIM_CALLS_MAX   = 2 * SIM_TENSORS_MAX + 8,
    SIM_ROWS        = 3, /* of each rank, in a table of */
    SIM_PARTS       = 2,
    SIM_CUTS_MAX    = 64,
    SIM_NAME_BYTES  = 40,
    SIM_PLACE_BYTES = 64
};

typedef struct cluster cluster;
typedef unsigned __int128 sim_shards; /* a set: a bit by number */
#define SIM_SCALAR_RANKS UINT64_C(1)  /* each gives sim_mark() */
#define SIM_SCALAR_STEP  UINT64_C(2)  /* its step, from each */

typedef enum { LIFE_ABSENT, LIFE_RUNS, LIFE_LEFT, LIFE_FAILED, LIFE_CRASHED } life;

/* ---- clocks: cluster_view.c ------------------------------------------------------------------ */
typedef struct {
    uint64_t per_mille, offset_ms; /* of a process's own clock */
} sim_clock;

sim_clock sim_clock_draw(cluster *c);
uint64_t sim_now(const cluster *c, const sim_clock *k); /* as that process sees it */
uint64_t sim_when(const cluster *c, const sim_clock *k, uint64_t local); /* UINT64_MAX: never */

/* ---- the network: cluster_net.c -------------------------------------------------------------- */
typedef enum { NET_CONTROL, NET_DATA, NET_REPLICA, NETS } net_plane;

typedef struct { /* one end of connections */
    transport *t;
    net_plane plane;
    char name[SIM_NAME_BYTES];  /* in the network; a dialler's is that of its process */
    char other[SIM_NAME_BYTES]; /* what a dialler dials */
    bool is_swallowed;          /* it is up for both ends, but delivers nothing any more */
} endpoint;

void net_open(cluster *c);
void net_close(cluster *c);
bool net_deliver(cluster *c);       /* what is due now */
uint64_t net_due(const cluster *c); /* arrival of the next message; UINT64_MAX: none is in flight */
void net_trouble(cluster *c, bool on);
void net_partition(cluster *c, const sim_event *who, uint32_t birth, bool on);
void net_break(cluster *c, const sim_event *who, uint32_t birth); /* its connections */
void net_kill(cluster *c, sim_role role, uint32_t rank);
void net_break_one(cluster *c, net_plane plane); /* any connection, at random */

void net_place_name(const cluster *c, uint32_t rank, uint32_t birth, int32_t place,
                    char name[SIM_NAME_BYTES]); /* place -1: its diallers */
uint32_t net_control_id(const cluster *c);
void net_listen(cluster *c, endpoint *e, net_plane plane, const char *name);
void net_dial(cluster *c, endpoint *e, const char *address, const char *name);
void net_dial_replica(cluster *c, endpoint *e, const char *address, const char *name);
void net_redial(cluster *c, endpoint *e); /* replaces the connection, as lifeline_renew() does */
void net_hang_up(endpoint *e);
bool net_recv(cluster *c, endpoint *e, transport_event *event); /* corrupts some payloads */
bool net_hear(cluster *c, const endpoint *e, const transport_event *event, wire_control *message);
bool net_hear_data(cluster *c, const endpoint *e, const transport_event *event, wire_data *d);
void net_say(cluster *c, endpoint *e, uint32_t peer, const wire_control *message);
void net_count(cluster *c, int kind, size_t bytes); /* of a message that was sent */
bool net_say_data(cluster *c, endpoint *e, uint32_t peer, const wire_data *d, buf *payload);

/* ---- records of epochs, as sent -------------------------------------------------------------- */
/* A copy in *kept, which outlives its message. */
void sim_view_take(wire_epoch *r, wire_arena **kept, const wire_control *epoch);
void sim_view_clear(wire_epoch *r, wire_arena **kept);
/* The first placement comes with PLAN; later ones with records. */
void sim_view_place(wire_epoch *r, wire_arena **kept, const wire_control *plan);
bool sim_view_is_newer(uint64_t term, uint64_t epoch, const wire_epoch *r);
const wire_member *sim_view_server(const wire_epoch *r, int32_t rank);      /* NULL: not in it */
const wire_replica *sim_view_primary(const wire_epoch *r, uint32_t number); /* NULL: has none */

/* ---- the roles ------------------------------------------------------------------------------- */
typedef struct {
    cluster *c;
    life life;
    uint32_t birth; /* how often it was started before */
    sim_clock clock;
    endpoint listener;
    scheduler_core *core;
    bool has_ended;
    uint64_t close_ms, stalled_until_ms, silent;
    pen_status status;
    struct { /* survives a crash */
        void *bytes;
        size_t size;
        uint64_t writes, term;
    } disk;
    bool is_dying; /* it crashes at the end of this turn: it sends nothing any more */
} sim_scheduler;

typedef struct sim_server sim_server;
typedef struct sim_copy sim_copy;

typedef struct { /* a thread of a server */
    sim_server *server;
    uint32_t index;
    endpoint listener, replica; /* for workers, for primaries */
} sim_place;

typedef struct {
    endpoint e;
    uint64_t to; /* incarnation that is dialled */
} sim_link;

struct sim_copy {     /* of a shard */
    sim_place *place; /* NULL: none */
    uint32_t number;
    shard *shard;
    int32_t role;         /* wire_replica_role, as installed */
    uint64_t term, epoch; /* as installed                    */
    bool is_sealed, is_authority;
    bool has_failed;          /* it has ended the job, and its values are not used again */
    uint64_t *version;        /* [chunks] as last checked   */
    uint32_t *crc;            /* [chunks] likewise          */
    const wire_data *message; /* as sent; NULL: none is being handled */
    sim_link *link;           /* OWNED: [n_servers] to other copies */
};

struct sim_server {
    cluster *c;
    uint32_t rank, birth;
    life life;
    sim_clock clock;
    endpoint control;
    membership member;
    uint64_t incarnation; /* as it was first welcomed */
    bool has_plan;
    bool owes_ready;                    /* until it reaches the copies of its shards */
    uint64_t apart_ms[SIM_SERVERS_MAX]; /* when to report it as unreachable; 0: it is reached */
    uint64_t nonce, nudge_ms;
    const char *address[SIM_PLACES_MAX]; /* scratch of HELLO */
    uint64_t stalled_until_ms;
    wire_epoch view;
    wire_arena *view_kept;
    uint64_t level_ms; /* until when a sealed copy may catch up with its primary */
    uint32_t n_reports;
    wire_sealed_report report[SIM_SHARDS_MAX];
    wire_arena *kept;
    wire_model model;
    plan *cut;
    uint32_t *shard_of, n_shards, ranks_max;
    sim_place place[SIM_PLACES_MAX];
    uint32_t n_places;
    sim_copy copy[SIM_SHARDS_MAX]; /* by number */
    stat_set stats;
    struct {
        int64_t step;
        sim_shards shards; /* those whose part has arrived */
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
    int32_t tensor;        /* of a verb; -1 */
    bool acknowledges;     /* a push that is answered once it is applied */
    struct sim_rows *rows; /* OWNED; NULL: about tensors */
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

typedef struct { /* what a ps client borrows of a record */
    uint64_t to[SIM_SHARDS_MAX];
    char address[SIM_SHARDS_MAX][SIM_PLACE_BYTES];
} sim_routes;

struct sim_worker {
    cluster *c;
    uint32_t rank, birth;
    life life;
    sim_clock clock;
    endpoint control;
    membership_client *membership_client;
    unanswered *unanswered;
    uint64_t incarnation; /* as it was first welcomed */
    bool is_late;         /* it joined when others were training      */
    bool has_loaded;      /* initial values are there; rank 0 sent them */
    bool has_epoch, has_plan, is_committed, has_left, snapshot_wanted, wants_to_leave;
    uint64_t stalled_until_ms;
    uint64_t unreached_ms[SIM_SERVERS_MAX]; /* when to report it as unreachable; 0: it is reached */
    uint64_t apart_ms[SIM_FEW_RANKS];       /* the same of other workers */

    wire_epoch view;
    wire_arena *view_kept;
    sim_routes routes[2];
    int route; /* the valid one of the two */
    uint32_t n_shards;
    uint32_t *shard_of;
    int64_t first_step, first_applied;
    ps_client *ps_client;
    ps_client_request *step_request;
    sim_lane lane[SIM_SHARDS_MAX * SIM_LANES_MAX];
    sim_loan *loans;

    /* The program. */
    program_place at;
    uint64_t chance, wake_ms, step;
    sim_call call[SIM_CALLS_MAX];
    uint32_t pending;
    float *param[SIM_TENSORS];
    void *grad[SIM_TENSORS];
    uint32_t order[SIM_TENSORS];
    uint64_t *pushed; /* [chunks] number of the newest push, + 1; 0: none yet  */
    uint64_t *loaded; /* [chunks] version of its initial values                */
    int64_t sum;      /* sum of the ranks at the barrier when this one arrived */
    bool has_added;
    ps_client_outcome outcome;
    bool has_outcome;

    struct { /* without servers: cluster_group.c */
        uint64_t term, epoch, steps;
    } given;         /* what it has contributed to, in which epoch */
    uint64_t *state; /* [steps + 1] after that many of them */
    uint64_t group_wake_ms;
    bool is_sealed;

    pen_error why; /* of its failure */
};

struct cluster {
    sim_plan plan;
    uint64_t now_ms, chance;
    bool is_healed;
    struct {
        bool has_begun, is_noticed, has_ended;
        uint32_t birth;
    } happened[SIM_EVENTS_MAX];
    uint64_t *restart_ms; /* OWNED: [1 + n_servers + n_workers]; 0: is not due */
    bool has_no_way;      /* the plan has pairs that cannot connect */
    bool is_training;     /* the scheduler has sent that all are ready */
    bool is_excused;      /* the faults left no way to go on: a verdict is right */
    uint64_t break_at_ms[NETS];
    struct sim_net *net[NETS];
    clock_simulated clock;
    wire_arena *arena;
    wire_out out;

    wire_tensor tensor[SIM_TENSORS];
    char tensor_name[SIM_TENSORS][16];
    wire_group group[2]; /* of the tensors; of the table */
    wire_pair setting[8];
    char sync[32], optim[48];
    wire_model model;
    plan *cut;
    model_reference *reference;
    uint32_t *column;
    struct {
        uint32_t made, told; /* pushes; those that their rank knows of */
    } row[SIM_FEW_RANKS * SIM_ROWS];
    struct {
        int64_t step;
        sim_shards shards; /* those whose part was reported */
    } part[SIM_CUTS_MAX];
    uint32_t n_parts, n_shards;
    wire_epoch view; /* the newest that the scheduler has sent to any member */
    wire_arena *view_kept;
    struct {
        uint64_t term, epoch;
    } since;                         /* first epoch with the holders and workers of `record` */
    uint64_t founder[SIM_FEW_RANKS]; /* [n_founders] incarnations of the first record */
    uint32_t n_founders;
    uint64_t goodbye[SIM_WORKERS_MAX]; /* of each rank: the newest incarnation that has sent BYE */
    uint32_t *shard_of;

    struct {
        endpoint control;
        bool is_asked;
        sim_event wish;
        uint64_t nonce, incarnation, say_ms;
    } operator;
    sim_scheduler scheduler;
    sim_server *server; /* OWNED */
    sim_worker *worker; /* OWNED */
    char worker_name[SIM_WORKERS_MAX][12], server_name[SIM_SHARDS_MAX][12];
    const char *worker_names[SIM_WORKERS_MAX], *server_names[SIM_SHARDS_MAX];
    uint32_t n_servers, n_workers; /* member slots that may be taken */
    sim_result result;
};

/* ---- cluster.c ------------------------------------------------------------------------------- */
void sim_wrong(cluster *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_note(cluster *c, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* in traces only */
bool sim_is_over(const cluster *c);
void *sim_need(void *memory); /* aborts for NULL */
bool sim_program_has_begun(sim_worker *w, bool has_memory);
double sim_mark(uint32_t rank);        /* sums of any ranks are exact, and differ for other ranks */
sim_shards sim_all_shards(uint32_t n); /* the first n */
bool sim_is_free_rule(const cluster *c); /* ssp, async */

/* ---- cluster_fault.c ------------------------------------------------------------------------- */
void fault_happen(cluster *c); /* what is due */
uint64_t fault_due(const cluster *c);
bool fault_no_way(const cluster *c, uint32_t worker, int32_t server); /* between these two, now */
bool fault_needs(const wire_epoch *r, int32_t primary, int32_t copy); /* of some shard */
bool fault_apart(const cluster *c, sim_role role, uint32_t rank, sim_role to_role, uint32_t to);

enum {
    SIM_MISSING_MS = 4000, /* until the system reports why a connection fails */
    SIM_DOUBT_MS   = 3500, /* the same, for one that was up                             */
    SIM_MISSED_MS  = 1250  /* and again                                                 */
};
/* As reach.h: when to report, and report again, that a peer is not reached.  *due_ms 0: it is reached. */
bool fault_says(uint64_t *due_ms, bool is_missing, bool was_there, uint64_t now_ms);
/* A process ended by itself, with an error: its launcher restarts it, if the plan says so. */
void fault_ended(cluster *c, sim_role role, uint32_t rank);

void fault_start(cluster *c, sim_role role, uint32_t rank); /* if it is absent */

/* ---- cluster_operator.c ---------------------------------------------------------------------- */
void sim_operator_wants(cluster *c, const sim_event *event);
bool sim_operator_turn(cluster *c);
uint64_t sim_operator_due(const cluster *c);

/* ---- the roles' files: `turn` is true if there was progress ---------------------------------- */
void sim_scheduler_begin(cluster *c);
bool sim_scheduler_turn(sim_scheduler *s);
uint64_t sim_scheduler_due(sim_scheduler *s);
void sim_scheduler_crash(sim_scheduler *s);
void sim_scheduler_forget(sim_scheduler *s); /* its disk is empty */
void sim_scheduler_free(sim_scheduler *s);

void sim_server_begin(cluster *c, uint32_t rank);
bool sim_server_turn(sim_server *s);
uint64_t sim_server_due(const sim_server *s);
void sim_server_crash(sim_server *s);
void sim_server_count(sim_server *s); /* into the result */
void sim_server_free(sim_server *s);

void sim_server_report(sim_server *s, const pen_error *error);
void sim_server_caught_up(sim_server *s, uint32_t number, int32_t server);
void sim_server_suspect(sim_server *s, uint32_t number, int32_t server, uint64_t waited_ms);
void sim_server_count_part(sim_server *s, uint32_t number, int64_t step);

/* cluster_copy.c: the copies of shards on one server */
void sim_copies_install(sim_server *s);
bool sim_copies_seal(sim_server *s, bool at_once); /* false: some copy has not caught up yet */
void sim_copies_seal_primaries(sim_server *s);
void sim_copies_free(sim_server *s);
bool sim_copies_turn(sim_server *s);
void sim_copies_nudge(sim_server *s);

void sim_worker_begin(cluster *c, uint32_t rank);
bool sim_worker_turn(sim_worker *w);
uint64_t sim_worker_due(const sim_worker *w);
void sim_worker_crash(sim_worker *w);
void sim_worker_end(sim_worker *w, life how);
void sim_worker_exchange(sim_worker *w); /* makes it */
bool sim_worker_reaches(sim_worker *w);  /* all servers that it needs; else it reports it in time */

/* cluster_rows.c */
void sim_rows_request(sim_worker *w);
void sim_rows_end(sim_call *call, bool is_told); /* frees call->rows */
bool sim_rows_store(void *user, ps_client_sink *to, const void *from, size_t size, uint32_t crc);

/* cluster_program.c */
bool sim_program_advance(sim_worker *w); /* one action of the program; false: it waits */
sim_call *sim_call_begin(sim_worker *w, const char *name, int32_t tensor, bool acknowledges);
void sim_call_end(sim_call *call, const pen_error *why); /* why NULL: success */
void sim_worker_remember(sim_worker *w, const pen_error *why);
void sim_worker_free(sim_worker *w);

/* ---- cluster_group.c: jobs without servers ----------------------------------------------------- */
static inline bool sim_has_servers(const cluster *c)
{
    return c->plan.servers > 0;
}
void sim_group_begin(sim_worker *w);
int64_t sim_group_seal(void *worker);
void sim_group_install(sim_worker *w); /* the newest record */
bool sim_group_step(sim_worker *w);    /* false: it waits */
bool sim_group_may_leave(const sim_worker *w);

/* ---- cluster_share.c ------------------------------------------------------------------------- */
uint64_t sim_share_number(const sim_worker *w); /* in its memory; 0: no other worker can map it */
uint32_t sim_share_prove(void *worker, const wire_member *member, uint32_t n, int32_t *rank,
                         uint64_t *number);
void check_sharing(cluster *c, const wire_epoch *next);

/* ---- cluster_check.c ------------------------------------------------------------------------- */
void check_record(cluster *c, const wire_control *epoch); /* each that the scheduler sends */
void check_plan(cluster *c, const wire_control *plan); /* likewise                              */
void check_installed(sim_copy *s);                     /* after each epoch                      */
void check_copy(sim_copy *s);                          /* after each message                    */
void check_rows(sim_copy *s);                          /* of the same */
void check_served(sim_copy *s, const wire_data *d, const buf *payload); /* messages of a shard  */
void check_part(cluster *c, int64_t step, sim_shards shards); /* each that a server reports */
void check_complete(cluster *c, int64_t step, uint32_t n_shards);
void check_cut(sim_copy *s, const shard_capture *cut);
void check_pushed(sim_worker *w, const wire_data *d); /* messages of a worker */
void check_acknowledged(sim_worker *w, const sim_call *call);
void check_step(sim_worker *w);       /* after each step      */
void check_ways(const sim_worker *w); /* when it may begin its first step */
void check_incarnation(cluster *c, const char *who, uint64_t *first, uint64_t now);
void check_lost_scheduler(cluster *c, const char *who, const membership *m, const pen_error *why);
void check_calls(cluster *c);
void check_failure(cluster *c, const pen_error *why);
void check_end(cluster *c);

/* ---- cluster_mutation.c ------------------------------------------------------------------------- */
void mutation_plan(const sim_server *s, wire_model *model); /* the model as a server receives it */
/* Between a shard and the network.  False: the message is dropped. */
bool mutation_receive(sim_copy *s, uint32_t peer, wire_data *d, buf **payload);
void mutation_cut(const sim_copy *s, shard_capture *cut);

#endif
