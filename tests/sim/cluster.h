/* cluster.h - a scheduler, servers and workers in one process and one thread, on a simulated clock.
 *
 * DESIGN.  The roles are the product's own pure layers (scheduler/core/core.h, server/shard/shard.h,
 * worker/io/membership_client.h, worker/ps/ps_client.h); the code around them here replaces their shells, without
 * sockets and threads.  Every message goes through the real encoders and decoders and the simulated
 * transport.  Each worker runs a small training program.  Processes crash, come back, come late,
 * leave, stop for a while, and their clocks go wrong; the scheduler's disk fails.  All chance comes
 * from one seed, so a run is reproduced by its number.
 *
 * Checked after every event:
 *   - each version of each chunk on its primary has the bits of the reference (model.h), and is the
 *     next one; copies have the bits of their primary
 *   - what a shard serves is such a version, within the ssp bound, and is never lost again
 *   - an acknowledged push is in it, and after a step a worker holds what the reference holds
 *   - no call is pending after its deadline; all that fail have the same sentence
 *   - no member fails that could go on under the faults of the plan
 * The first violation ends the run.
 */
#ifndef TESTS_SIM_CLUSTER_H
#define TESTS_SIM_CLUSTER_H

#include "tests/sim/model.h"

typedef struct {
    uint32_t drop, repeat, reorder,
        corrupt;       /* percent of messages; corrupt: of payloads          */
    uint32_t delay_ms; /* maximum, beyond the usual 1 ms                     */
    uint32_t break_ms; /* mean time between breaks of one connection; 0 = never */
} sim_trouble;

typedef enum { SIM_NOBODY, SIM_SCHEDULER, SIM_SERVER, SIM_WORKER } sim_role;

typedef enum {
    SIM_NOTHING,
    SIM_CRASH,     /* killed at from_ms; until_ms > 0: a new process of that rank starts then    */
    SIM_CUT_OFF,   /* no message to or from it                                                   */
    SIM_DEAF,      /* no message to it                                                           */
    SIM_MUTE,      /* no message from it                                                         */
    SIM_STALL,     /* stopped, as by SIGSTOP                                                     */
    SIM_JOIN,      /* a process of a rank that was absent                                        */
    SIM_LEAVE,     /* a worker says goodbye after its step                                       */
    SIM_DRAIN,     /* a server is asked to leave                                                 */
    SIM_SCALE,     /* the operator asks for `rank` members of this role                          */
    SIM_KEEP_FAIL, /* the scheduler's disk refuses to write                                     */
    SIM_NO_WAY,    /* it and `to` of `to_role` cannot reach each other; all others can          */
    SIM_SWALLOW,   /* its connection to the scheduler goes silent; a new one would work          */
    SIM_FORGET     /* the scheduler dies, and restarts at until_ms without its state             */
} sim_what;

typedef struct { /* an event of one process, from .. until */
    sim_what what;
    sim_role role;
    uint32_t rank;
    uint64_t from_ms, until_ms;
    uint32_t to;
    sim_role to_role; /* SIM_NOBODY: a server */
} sim_event;

/* Bugs that are not in the product, inserted between two layers, to see that the checks can fail.  Those
 * inside the layers are in common/base/mutation.h. */
typedef enum {
    SIM_SOUND,
    SIM_DEDUP_OFF_BY_ONE,  /* a repeated push is taken for the next one                         */
    SIM_ACKNOWLEDGE_EARLY, /* pushes are acknowledged before they are applied, and some are lost */
    SIM_SSP_OFF_BY_ONE,    /* shards allow one step more than the bound                         */
    SIM_LOCAL_DECISION,    /* a worker decides from wrong numbers                               */
    SIM_COMMIT_ON_SOME,    /* one shard skips a step that the others apply                      */
    SIM_LOSE_CONTRIBUTION, /* a rank's gradient is summed as zeros                              */
    SIM_SNAPSHOT_OF_NEXT,  /* a shard captures its part one step late                           */
    SIM_PLANTS
} sim_mutation;

enum {
    SIM_EVENTS_MAX = 12,
    SIM_FEW_RANKS  = 16 /* of plans with tables or shared memory */
};

typedef struct {                     /* sets of ranks: a bit for each */
    bool proves;                     /* workers have memory that others can map */
    uint32_t room[SIM_FEW_RANKS];    /* ranks of one room see each other's memory */
    uint32_t liars, boasters, blind; /* cluster_share.c */
} sim_sharing;

typedef struct {
    model_task task;
    uint32_t servers, shards, lanes, tensors; /* shards: threads of each server */
    bool many; /* members: tensors have at most 64 elements, and each worker pushes all at once */
    uint64_t bound; /* ssp */
    /* by_node: deterministic=node, and odd ranks are on another node; lends: payloads are not copied; verbs: push and
     * pull, no steps */
    bool arrival_order, by_node, lends, verbs;
    bool rows; /* there is a table by key beside the tensors: cluster_rows.c */
    uint32_t think_ms, slow_rank,
        slow_ms; /* maximum compute time of a step; and which worker takes longer */
    uint64_t barrier_every, snapshot_every; /* steps; 0 = never */
    uint64_t park_bytes_max;
    uint64_t lease_ms, deadline_ms, init_timeout_ms, retry_ms, warn_ms, wait_ms;

    uint32_t replicas;
    int on_worker_loss;                /* LOSS_... */
    uint32_t workers_min, workers_max; /* 0: as many as exist */
    uint32_t servers_max;              /* 0: as many as exist */
    bool has_state;                    /* the scheduler has a disk */
    bool restarts;                     /* a process that fails is restarted */
    bool same_address;                 /* ... at its old address */
    uint32_t skew_percent;             /* maximum error of clocks */
    uint32_t crash_at_keep;            /* the scheduler dies at this write; 0: never */
    bool keep_is_lost;                 /* ... before it is on disk */

    sim_trouble data, control, replica; /* until heal_ms */
    uint64_t heal_ms;
    sim_event event[SIM_EVENTS_MAX];
    uint32_t n_events;
    uint64_t end_ms; /* of the simulated time */

    long memory_at, memory_many; /* requests for memory that are refused: memory.h; 0: none */
    sim_mutation mutation;
    int planted;     /* mutation_id of common/base/mutation.h */
    bool must_go_on; /* a verdict is wrong if the faults leave a way to go on */
    sim_sharing sharing;
    bool trace;
} sim_plan;

/* A quiet network and an even task: a test changes its subject only. */
sim_plan sim_plan_calm(uint64_t seed, model_mode mode);

/* Random kinds, strengths and numbers of faults.  The second also draws copies, deaths,
 * joins and leaves, such that the job can always go on. */
sim_plan sim_plan_swarm(uint64_t seed);
/* A swarm of network faults, and a pair that cannot reach each other: event[0].  Has its own generator. */
sim_plan sim_plan_apart(uint64_t seed);
sim_plan sim_plan_swarm_of(uint64_t seed, model_mode mode);
sim_plan sim_plan_lively(uint64_t seed);

/* Workers without servers, which hold the state themselves: they die, and so does the scheduler. */
sim_plan sim_plan_peers(uint64_t seed);

/* Random: which memory can be mapped, and which workers lie about it. */
void sim_plan_share(sim_plan *p, uint64_t *chance);

/* Adds an event; ignored if there is no room. */
void sim_plan_add(sim_plan *p, sim_event event);
void sim_plan_kill(sim_plan *p, sim_role role, uint32_t rank, uint64_t from_ms,
                   uint64_t until_ms); /* until_ms 0: for good */

/* The job must survive what its plan removes, and its processes are started again. */
void sim_plan_must_last(sim_plan *p);

typedef struct {
    uint64_t messages, bytes; /* with payload */
} sim_traffic;

enum {
    SIM_KINDS_MAX = 96,  /* > WIRE_KIND_END */
    SIM_LINGER_MS = 1000 /* of the scheduler after the job: the last verdict is sent */
};

typedef struct {
    sim_traffic sent[SIM_KINDS_MAX]; /* by wire_control_kind or wire_data_kind */
    uint64_t training_ms;            /* when the scheduler sent that all are ready */
    bool excused;                    /* the faults left no way to go on */
    bool is_over, in_order;          /* a verdict or an end; every member left has ended in order */
    char wrong[512];                 /* the first check that failed; "" = none */
    uint64_t ms, messages, digest;
    uint64_t applied; /* pushes or steps that changed a chunk, over all chunks */
    uint64_t gap_max, repeats, retries, corrupt, breaks, skipped, held;
    uint64_t epochs, promotions, fills, keeps, crashes,
        joins;          /* fills: learners that became members */
    uint32_t snapshots; /* complete on all servers */
    uint32_t shared;    /* workers in the class of another, in the first record */
    uint32_t failed,
        unreachable; /* workers that ended with an error; those of them that lost the scheduler */
    long asked;      /* for memory */
    pen_status verdict;
    char sentence[640]; /* of the verdict, the same for all; "" = none */
    char late[640];     /* of the first call that ended by its deadline */
} sim_result;

/* Runs the plan to its end.  No memory: aborts. */
sim_result sim_run(const sim_plan *asked);

/* One line about a plan: "ssp s=2, 3 workers, 2 servers x 1, ..., drop 5 %". */
void sim_plan_describe(const sim_plan *p, char *text, size_t size);

#endif
