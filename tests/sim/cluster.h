/* cluster.h - a scheduler, servers and workers in one process and one thread, on a simulated clock.
 *
 * DESIGN.  The roles are the product's own pure layers (scheduler/core.h, server/shard.h,
 * worker/liaison.h, worker/exchange.h); what surrounds them here is what their shells do, without
 * sockets and threads.  Every message goes through the real encoders and decoders and the simulated
 * transport.  Each worker runs a small training program.  All chance comes from one seed, so a run
 * is reproduced by its number.
 *
 * After every event it is checked that
 *   - each version of each chunk has the bits of the reference (model.h), and is the next one
 *   - what a shard serves is such a version, and within the ssp bound
 *   - an acknowledged push is in it, and after a step a worker holds what the reference holds
 *   - no call is pending after its deadline; everybody who fails has the same sentence
 * The first thing that is not so ends the run.
 */
#ifndef TESTS_SIM_CLUSTER_H
#define TESTS_SIM_CLUSTER_H

#include "tests/sim/model.h"

typedef struct {
    uint32_t drop, repeat, reorder,
        corrupt;       /* percent of messages; corrupt: of payloads          */
    uint32_t delay_ms; /* most, beyond the usual 1 ms                        */
    uint32_t break_ms; /* mean time between breaks of one connection; 0 = never */
} sim_trouble;

typedef enum { SIM_NOBODY, SIM_SCHEDULER, SIM_SERVER, SIM_WORKER } sim_role;

typedef struct { /* something that happens to one process */
    sim_role role;
    uint32_t rank;
    uint64_t from_ms, until_ms; /* partition: from .. until; crash: at from */
} sim_event;

/* Bugs that are not in the product, put between two layers, to see that the checks can fail. */
typedef enum {
    SIM_SOUND,
    SIM_DEDUP_OFF_BY_ONE,  /* a repeated push is taken for the next one                         */
    SIM_ACKNOWLEDGE_EARLY, /* pushes are answered as applied before they are, and some are lost */
    SIM_SSP_OFF_BY_ONE,    /* shards allow one step more than was asked for                     */
    SIM_LOCAL_DECISION,    /* a worker decides from numbers of its own                          */
    SIM_COMMIT_ON_SOME,    /* one shard skips a step that the others apply                      */
    SIM_LOSE_CONTRIBUTION, /* a rank's gradient is summed as zeros                              */
    SIM_SNAPSHOT_OF_NEXT,  /* a shard cuts its part one step late                               */
    SIM_PLANTS
} sim_plant;

typedef struct {
    model_task task;
    uint32_t servers, shards, lanes, tensors; /* shards: of each server */
    uint64_t bound;                           /* ssp */
    bool arrival_order, lends,
        verbs; /* lends: payloads are not copied; verbs: push and pull, no steps */
    uint32_t think_ms, slow_rank,
        slow_ms; /* compute time of a step: at most; and who takes longer */
    uint64_t barrier_every, snapshot_every; /* steps; 0 = never */
    uint64_t park_bytes_max;
    uint64_t lease_ms, deadline_ms, init_timeout_ms, retry_ms, warn_ms;

    sim_trouble data, control; /* until heal_ms */
    uint64_t heal_ms;
    sim_event partition, crash;
    uint64_t end_ms; /* of the simulated time */

    sim_plant plant;
    bool trace;
} sim_plan;

/* A quiet network and an even task: a test changes what it is about. */
sim_plan sim_plan_calm(uint64_t seed, model_mode mode);

/* Which faults, how strong, how many of everything: drawn. */
sim_plan sim_plan_swarm(uint64_t seed);
sim_plan sim_plan_swarm_of(uint64_t seed, model_mode mode);

typedef struct {
    bool is_over, in_order; /* a verdict or an end; everybody left in good order */
    char wrong[512];        /* the first check that failed; "" = none */
    uint64_t ms, messages, digest;
    uint64_t applied; /* pushes or steps that changed a chunk, over all chunks */
    uint64_t gap_max, repeats, retries, corrupt, breaks, skipped, held;
    uint32_t snapshots; /* complete on all servers */
    uint32_t failed,
        unreachable; /* workers that ended with an error; of these, who lost the scheduler */
    pen_status verdict;
    char sentence[640]; /* of the verdict, the same for all; "" = none */
    char late[640];     /* of the first call that ended by its deadline */
} sim_result;

/* Runs it to its end.  No memory: aborts. */
sim_result sim_run(const sim_plan *asked);

/* One line about a plan: "ssp s=2, 3 workers, 2 servers x 1, ..., drop 5 %". */
void sim_plan_describe(const sim_plan *p, char *text, size_t size);

#endif
