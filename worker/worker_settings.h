/* worker_settings.h - the settings of a worker. */
#ifndef WORKER_WORKER_SETTINGS_H
#define WORKER_WORKER_SETTINGS_H

#include "proto/settings.h"

typedef enum {
    MODE_AUTO,
    MODE_LOCAL,
    MODE_PS_BSP,
    MODE_PS_SSP,
    MODE_PS_ASYNC,
    MODE_PS_HIER,
    MODE_ALLREDUCE,
    MODE_ZERO1,
    MODE_ZERO2,
    MODE_ZERO3,
    MODE_HYBRID_SHARD,
    MODE_HYBRID_SHARD_ZERO2,
    MODE_COUNT /* from here on: synonyms */
} worker_mode;
typedef enum { COMMIT_DECIDE, COMMIT_EAGER } worker_commit;
typedef enum { WORKER_LOG_ALL, WORKER_LOG_FIRST } worker_log_rule;
typedef enum { WORKER_DEVICE_HOST, WORKER_DEVICE_CUDA, WORKER_DEVICE_AUTO } worker_device;
typedef enum { TWO_LEVEL_AUTO, TWO_LEVEL_YES, TWO_LEVEL_NO } worker_two_level;
typedef enum { BUFFERS_FIRST, BUFFERS_MEAN, BUFFERS_OWN } worker_buffers;
typedef enum { ACCUM_REDUCE_AUTO, ACCUM_REDUCE_LAST, ACCUM_REDUCE_EACH } worker_accum_reduce;
typedef enum { PRECISION_FP32, PRECISION_BF16, PRECISION_FP16 } worker_precision;
typedef enum { SCHEDULER_AUTO, SCHEDULER_EXTERNAL, SCHEDULER_HOSTED } worker_scheduler;

/* clang-format off */
/* X(name, kind, default, min, max, choices, meaning); settings of several roles are in proto/settings.h. */
#define WORKER_SETTINGS(X)                                                                                             \
    X(mode,             ENUM, "auto",   0,    0,        worker_mode_choices,                                           \
      "Training mode. auto is local for a single process, ps-bsp with servers, allreduce without. zero1 to zero3 shard state over the servers, or over the workers if there are none.") \
    X(optim,            TEXT, "",       0,    0,        NULL,                                                          \
      "Update rule of tensors without a group, for example: adamw lr=3e-4. Numbers it does not name keep the value of the program or file.") \
    X(sync,             TEXT, "",       0,    0,        NULL,                                                          \
      "Consistency, for example: bsp, ssp s=2, async; empty uses the mode's own.")                                     \
    X(wire,             ENUM, "raw",    0,    0,        worker_wire_choices,                                           \
      "Type of gradients on the wire: raw sends the registered type; bf16 and f16 round float32 to half the size.")    \
    X(commit,           ENUM, "decide", 0,    0,        worker_commit_choices,                                         \
      "When a step is applied: eager applies each chunk as soon as all ranks pushed it, and without servers each bucket of a lazy step as soon as it is summed, without a global norm; decide can clip and skip whole steps.") \
    X(deterministic,    ENUM, "yes",    0,    0,        settings_orders,                                               \
      "Sum in rank order, so that two runs give the same bits; node sums those of each host first, then the hosts, with the same bits in every mode; no sums in any order, which is faster and buffers less memory.") \
    X(clip,             F64,  "0",      0,    1e30,     NULL,                                                          \
      "Maximum global gradient norm; larger gradients are scaled down to it. 0 disables clipping.")                    \
    X(skip,             BOOL, "yes",    0,    0,        NULL,                                                          \
      "Skip a step whose gradient is not finite.")                                                                     \
    X(precision,        ENUM, "fp32",   0,    0,        worker_precision_choices,                                      \
      "Number type that the program trains with (pen_info); fp16 enables loss scaling.")                               \
    X(loss_scale,       F64,  "0",      0,    1e30,     NULL,                                                          \
      "Fixed loss scale of fp16; 0 selects dynamic loss scaling.")                                                     \
    X(loss_scale_power, U64,  "16",     0,    64,       NULL,                                                          \
      "Exponent of the initial loss scale, a power of 2; too large a value skips the first steps.")                    \
    X(loss_scale_window, U64, "1000",   1,    9e15,     NULL,                                                          \
      "Number of steps without overflow before the loss scale doubles; lower values overflow more often.")             \
    X(loss_scale_hysteresis, U64, "2",  1,    1e9,      NULL,                                                          \
      "Number of overflows before the loss scale is halved; higher values tolerate isolated overflows.")               \
    X(loss_scale_min,   F64,  "1",      1e-30, 1e30,    NULL,                                                          \
      "Minimum loss scale; an overflow at this scale is an error.")                                                    \
    X(consecutive_hysteresis, BOOL, "no", 0,  0,        NULL,                                                          \
      "Count only consecutive overflows for the hysteresis, instead of all in a window.")                              \
    X(schedule,         TEXT, "",       0,    0,        NULL,                                                          \
      "Learning rate schedule of groups without their own, for example: WarmupDecayLR warmup_num_steps=10 total_num_steps=100; empty is constant.") \
    X(train_batch,      U64,  "0",      0,    9e15,     NULL,                                                          \
      "Global batch size, micro_batch x accum x workers; 0 derives it from the other settings.")                       \
    X(micro_batch,      U64,  "0",      0,    9e15,     NULL,                                                          \
      "Micro-batch size per worker; 0 derives it from train_batch.")                                                   \
    X(steps,            U64,  "0",      0,    9e15,     NULL,                                                          \
      "Number of steps after which pen_step_begin returns END; 0: no limit.")                                          \
    X(report_every,     U64,  "0",      0,    9e15,     NULL,                                                          \
      "Number of steps between rank 0's progress lines (rate, norm, speed, skipped steps); 0: none.")                  \
    X(log_to,           TEXT, "",       0,    0,        NULL,                                                          \
      "Write scalars and metrics of every step to csv:FILE, to tensorboard:DIR, or to both with a comma between them.") \
    X(report_times,     BOOL, "no",     0,    0,        NULL,                                                          \
      "Add the time of forward pass, backward pass and communication to the progress lines.")                          \
    X(accum,            U64,  "0",      0,    65536,    NULL,                                                          \
      "Micro-batches per step. The worker accumulates their gradients and sends the sum, unless accum_reduce says otherwise. 0 derives it from train_batch and micro_batch, or is 1.") \
    X(accum_reduce,     ENUM, "auto",   0,    0,        worker_accum_reduce_choices,                                   \
      "When gradients of micro-batches are reduced over the workers: last sends nothing before the last one; each needs no memory to accumulate all of them; auto is each if gradients are sharded over the workers.") \
    X(bucket_first_bytes, U64, "1m",    4096, 1e15,     NULL,                                                          \
      "Size of the first bucket of gradients without servers; small, so that communication starts early.")             \
    X(bucket_bytes,     U64,  "0",      0,    1e15,     NULL,                                                          \
      "Size of a bucket of gradients without servers; larger buckets cost less per byte and overlap less. 0 is a sixteenth of all gradients, from 1 to 25 MiB.") \
    X(reduce_bucket,    U64,  "0",      0,    1e15,     NULL,                                                          \
      "Size of all buckets in elements; 0 uses bucket_first_bytes and bucket_bytes.")                                  \
    SETTING_OFFLOAD_OPTIMIZER(X) SETTING_OFFLOAD_PARAM(X) SETTING_OFFLOAD_PATH(X) SETTING_SUB_GROUP(X)                 \
    X(wrap,             ENUM, "unit",   0,    0,        worker_wrap_choices,                                           \
      "How tensors are grouped into units, which are gathered and released as a whole: by the registered unit, by layer name, by size, or not at all.") \
    X(wrap_match,       TEXT, "",       0,    0,        NULL,                                                          \
      "With wrap=layer: patterns of layers, for example h.*,**.layer.*; * is one part of a name, a leading **. any prefix; | separates alternatives, and each must match. Empty uses names up to their first number.") \
    X(wrap_min_params,  U64,  "100000000", 1, 1e15,     NULL,                                                          \
      "With wrap=size: minimum number of elements of a unit of consecutive tensors.")                                  \
    X(prefetch_backward, ENUM, "pre",   0,    0,        worker_prefetch_choices,                                       \
      "When the next unit of the backward pass is fetched: before the current one is processed (pre), after it (post), or on use (none). Earlier overlaps more and takes more memory.") \
    X(prefetch_forward, BOOL, "yes",    0,    0,        NULL,                                                          \
      "Fetch the next unit of the forward pass while the current one is processed, in the order of the first step.")   \
    X(prefetch_bucket,  U64,  "50000000", 0,  1e15,     NULL,                                                          \
      "Maximum number of elements of a unit that is prefetched.")                                                      \
    X(persistence_threshold, U64, "100000", 0, 1e15,    NULL,                                                          \
      "With zero3: tensors with fewer elements stay on every worker; higher values cost memory and save messages.")    \
    X(max_live,         U64,  "1000000000", 0, 1e15,    NULL,                                                          \
      "Maximum number of gathered elements; beyond it no unit is prefetched or kept.")                                 \
    X(max_reuse,        U64,  "1000000000", 0, 1e15,    NULL,                                                          \
      "A unit is kept if it is used again in the same step within this many elements of other units; 0 releases each unit at once.") \
    X(seed,             U64,  "0",      0,    9e15,     NULL,                                                          \
      "Random seed; the same on all ranks.")                                                                           \
    X(lanes,            U64,  "0",      0,    16,       NULL,                                                          \
      "Connections to each shard; more help if one cannot fill the link, and cost memory. 0 means 1, or with transport=zmq and encryption one per core, up to 4.") \
    SETTING_ENCRYPTION(X) SETTING_TRANSPORT(X) SETTING_HTTP(X) SETTING_HTTP_TOKEN_FILE(X) SETTING_SECRET_FILE(X) SETTING_LOCAL_SOCKETS(X) SETTING_LEASE_MS(X)        \
    X(deadline_ms,      I64,  "600000", -1,   9e12,     NULL,                                                          \
      "Maximum time a request waits for a live peer; -1 waits forever, for debuggers.")                                \
    X(warn_ms,          U64,  "30000",  10,   9e12,     NULL,                                                          \
      "Time after which a wait is logged with the name of the missing peer.")                                          \
    SETTING_INIT_TIMEOUT_MS(X)                                                                                         \
    X(retry_ms,         U64,  "5000",   10,   600000,   NULL,                                                          \
      "Time without a response after which a message is resent; doubles with each retry.")                             \
    X(table_parts,      U64,  "16",     1,    256,      NULL,                                                          \
      "Parts that the keys of a table are dealt to; a part is on one server, so more parts balance more servers, and make small requests smaller.") \
    X(requests_max,     U64,  "65536",  1,    16777216, NULL,                                                          \
      "Maximum number of requests in flight; further ones wait.")                                                      \
    X(park_bytes_max,   U64,  "64m",    65536, 1e15,    NULL,                                                          \
      "Bytes of early pushes that a shard buffers until their turn; more lets fast ranks run further ahead.")          \
    X(snapshot_every,   U64,  "0",      0,    9e15,     NULL,                                                          \
      "Number of steps between snapshots; 0: only on pen_snapshot.")                                                   \
    SETTING_STORE(X) SETTING_SNAPSHOT_KEEP(X)                                                                          \
    X(gather_16bit_on_save, BOOL, "no", 0,    0,        NULL,                                                          \
      "With each snapshot rank 0 also writes the parameters in 16 bits, to weights-STEP.safetensors in the store.")    \
    X(resume,           BOOL, "no",     0,    0,        NULL,                                                          \
      "Resume from the newest snapshot in the store.")                                                                 \
    SETTING_FRESH(X)                                                                                                   \
    X(shared_memory,    BOOL, "yes",    0,    0,        NULL,                                                          \
      "Use shared memory for gradients, values and collectives within a host; no uses sockets, as between hosts.")     \
    X(coll_algorithm,   TEXT, "",       0,    0,        NULL,                                                          \
      "Rules that select collective algorithms, checked before the built-in ones; `penstock bench tune` prints them.") \
    X(coll_lanes,       U64,  "1",      1,    16,       NULL,                                                          \
      "Connections between two workers for large collectives; more help if one cannot fill the link.")                 \
    X(two_level,        ENUM, "auto",   0,    0,        worker_two_level_choices,                                      \
      "Reduce within each host first, then across hosts or on servers; auto does so where it is faster and gives the same bits.") \
    X(buffers,          ENUM, "first",  0,    0,        worker_buffers_choices,                                        \
      "What tensors with PEN_BUFFER hold after a step: rank 0's values (first), the mean over the ranks, of integers rank 0's (mean), or each rank's own (own).") \
    X(device,           ENUM, "host",   0,    0,        worker_device_choices,                                         \
      "Where the SDK allocates memory: on the host, or on CUDA device local_rank modulo the number of devices; auto is cuda if there is one.") \
    X(device_backend,   ENUM, "auto",   0,    0,        worker_device_backend_choices,                                 \
      "How members on one host wait for each other's devices; auto is hostflag if two share one, else spin.")        \
    SETTING_HOST(X) SETTING_HOST_ID(X) SETTING_RANK(X) SETTING_WORLD_SIZE(X)                                           \
    X(local_rank,       I64,  "-1",     -1,   1048576,  NULL,                                                          \
      "Rank among the workers of this machine; -1 reads LOCAL_RANK or asks the scheduler.")                            \
    SETTING_LOCAL_WORLD_SIZE(X)                                                                                        \
    SETTING_SERVERS(X) SETTING_MASTER_ADDR(X) SETTING_MASTER_PORT(X) SETTING_PORT(X)                                   \
    X(scheduler,        ENUM, "auto",   0,    0,        worker_scheduler_choices,                                      \
      "Whether rank 0 hosts the scheduler: external never, hosted always, auto if the port is free.")                  \
    SETTING_JOB(X) SETTING_ON_WORKER_LOSS(X) SETTING_WORKERS_MAX(X)                                                    \
    X(simd,             TEXT, "auto",   0,    0,        NULL,                                                          \
      "Instruction set of the inner loops; all give the same bits.")                                                   \
    SETTING_TRACE(X) SETTING_TRACE_EVENTS(X) SETTING_LOG_FORMAT(X)                                                     \
    X(log_ranks,        ENUM, "all",    0,    0,        worker_log_choices,                                            \
      "Which workers log: all, or first (rank 0; the others only errors).")                                            \
    X(log_level,        TEXT, "",       0,    0,        NULL,                                                          \
      "Least important level that is logged: silent, error, warning, notice, info or debug.")                          \
    X(config,           TEXT, "",       0,    0,        NULL,                                                          \
      "File of settings, one `name = value` per line; .yml, .yaml or .json: a configuration file of accelerate.")      \
    X(ds_config,        TEXT, "",       0,    0,        NULL,                                                          \
      "JSON file of DeepSpeed; empty uses the one that the accelerate file names.")                                    \
    X(hidden_size,      TEXT, "",       0,    0,        NULL,                                                          \
      "Hidden size of the model; auto bucket sizes in these files are computed from it.")                              \
    X(lr,               TEXT, "",       0,    0,        NULL,                                                          \
      "Learning rate that replaces auto in these files.")                                                              \
    X(weight_decay,     TEXT, "",       0,    0,        NULL,                                                          \
      "Weight decay that replaces auto in these files.")                                                               \
    X(warmup_steps,     TEXT, "",       0,    0,        NULL,                                                          \
      "Number of warm-up steps that replaces auto in these files.")                                                    \
    X(total_steps,      TEXT, "",       0,    0,        NULL,                                                          \
      "Number of schedule steps that replaces auto in these files.")

/* Facts that only the program knows: strings of pen_init(), but not flags, variables or lines of a file. */
#define WORKER_PROMISES(X)                                                                                             \
    X(applies_loss_scale, BOOL, "no",   0,    0,        NULL,                                                          \
      "The program multiplies its loss by step.loss_scale; required by precision=fp16, because a gradient does not show whether it was scaled.")
/* clang-format on */

enum { WORKER_NOTES_BYTES = 4096 };

typedef struct {
    WORKER_SETTINGS(CONFIG_FIELD)
    WORKER_PROMISES(CONFIG_FIELD)
    char notes
        [WORKER_NOTES_BYTES]; /* not a setting: notices of configuration files; rank 0 logs them */
} worker_settings;

extern const config_row worker_settings_rows[];
extern const config_row worker_promises_rows[]; /* of the same struct */

/* Reads all sources, later ones win: defaults, `strings` (pen_init's argument), the files that PENSTOCK_CONFIG and
 * PENSTOCK_DS_CONFIG name, the environment.  BAD_SETTING: a value is invalid, or two contradict each other. */
pen_status worker_settings_load(worker_settings *s, const char *const *strings, pen_error *why);

/* The same; strings of the launcher (NULL: none) win over all others. */
pen_status worker_settings_load_after(worker_settings *s, const char *const *strings,
                                      const char *const *launcher, pen_error *why);

const char *worker_mode_name(int mode);

/* How much of the state is sharded: 1, 2, 3 in zero1, zero2, zero3 and the like, else 0. */
int worker_mode_stage(int mode);
/* The state is sharded inside each node; all nodes hold equal copies. */
bool worker_mode_is_hybrid(int mode);
const char *worker_wire_name(int wire);
const char *worker_precision_name(int precision);

#endif
