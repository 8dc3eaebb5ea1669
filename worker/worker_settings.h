/* worker_settings.h - what a worker reads. */
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
    MODE_COUNT /* from here on: other words for the same */
} worker_mode;
typedef enum { COMMIT_DECIDE, COMMIT_EAGER } worker_commit;
typedef enum { WORKER_LOG_ALL, WORKER_LOG_FIRST } worker_log_rule;
typedef enum { WORKER_DEVICE_HOST, WORKER_DEVICE_CUDA, WORKER_DEVICE_AUTO } worker_device;
typedef enum { TWO_LEVEL_AUTO, TWO_LEVEL_YES, TWO_LEVEL_NO } worker_two_level;
typedef enum { ACCUM_REDUCE_AUTO, ACCUM_REDUCE_LAST, ACCUM_REDUCE_EACH } worker_accum_reduce;
typedef enum { PRECISION_FP32, PRECISION_BF16, PRECISION_FP16 } worker_precision;
typedef enum { SCHEDULER_AUTO, SCHEDULER_EXTERNAL, SCHEDULER_HOSTED } worker_scheduler;

/* clang-format off */
/* X(name, kind, default, min, max, choices, meaning); what others read as well is in proto/settings.h. */
#define WORKER_SETTINGS(X)                                                                                             \
    X(mode,             ENUM, "auto",   0,    0,        worker_mode_choices,                                           \
      "Who holds the state and who waits for whom; auto is local when alone, ps-bsp with servers and allreduce without; zero1 to zero3 shard it over the servers, or without any over the workers.") \
    X(optim,            TEXT, "",       0,    0,        NULL,                                                          \
      "Update rule and its numbers for tensors without a group of their own, such as: adamw lr=3e-4; the numbers that it does not name stay as the program, or a file, has them.") \
    X(sync,             TEXT, "",       0,    0,        NULL,                                                          \
      "Consistency, such as: bsp, ssp s=2, async; empty takes the one that belongs to the mode.")                      \
    X(wire,             ENUM, "raw",    0,    0,        worker_wire_choices,                                           \
      "What a gradient looks like on the wire; raw sends it as it is registered, bf16 and f16 halve float32 and round it.") \
    X(commit,           ENUM, "decide", 0,    0,        worker_commit_choices,                                         \
      "eager applies each chunk as soon as all ranks pushed it, without a norm; decide clips and skips whole steps.")  \
    X(deterministic,    BOOL, "yes",    0,    0,        NULL,                                                          \
      "Sum in rank order, so that two runs give the same bits; no sums in order of arrival, which parks less memory.") \
    X(clip,             F64,  "0",      0,    1e30,     NULL,                                                          \
      "Largest global gradient norm; a larger one is scaled down to it; 0 does not clip.")                             \
    X(skip,             BOOL, "yes",    0,    0,        NULL,                                                          \
      "Skip a step whose gradient is not finite instead of applying it.")                                              \
    X(precision,        ENUM, "fp32",   0,    0,        worker_precision_choices,                                      \
      "Numbers that the program trains with, for its own use (pen_info); fp16 scales the loss, and fp32 and bf16 do not.") \
    X(loss_scale,       F64,  "0",      0,    1e30,     NULL,                                                          \
      "Fixed loss scale of fp16; 0 looks for the largest that does not overflow.")                                     \
    X(loss_scale_power, U64,  "16",     0,    64,       NULL,                                                          \
      "The first loss scale is 2 to this power; too large a one skips the first steps.")                               \
    X(loss_scale_window, U64, "1000",   1,    9e15,     NULL,                                                          \
      "Steps without an overflow after which the loss scale doubles; fewer overflow more often.")                      \
    X(loss_scale_hysteresis, U64, "2",  1,    1e9,      NULL,                                                          \
      "Overflows it takes until the loss scale is halved; more forgive lone ones.")                                    \
    X(loss_scale_min,   F64,  "1",      1e-30, 1e30,    NULL,                                                          \
      "Smallest loss scale; an overflow there is an error.")                                                           \
    X(consecutive_hysteresis, BOOL, "no", 0,  0,        NULL,                                                          \
      "Only overflows in a row use up the hysteresis, instead of all in a window.")                                    \
    X(schedule,         TEXT, "",       0,    0,        NULL,                                                          \
      "How the rates of groups without a schedule of their own change, such as: WarmupDecayLR warmup_num_steps=10 total_num_steps=100; empty is constant.") \
    X(train_batch,      U64,  "0",      0,    9e15,     NULL,                                                          \
      "Samples of a step over all workers, micro_batch x accum x workers; 0 is what the others come to.")              \
    X(micro_batch,      U64,  "0",      0,    9e15,     NULL,                                                          \
      "Samples of one micro-batch of one worker; 0 is what train_batch leaves.")                                       \
    X(steps,            U64,  "0",      0,    9e15,     NULL,                                                          \
      "Steps after which pen_step_begin says END; 0 never does.")                                                      \
    X(report_every,     U64,  "0",      0,    9e15,     NULL,                                                          \
      "Steps between lines of rank 0 about rate, norm, speed and skipped steps; 0 writes none.")                       \
    X(report_times,     BOOL, "no",     0,    0,        NULL,                                                          \
      "Add to these lines the time of the forward pass, the backward pass and the exchange.")                          \
    X(accum,            U64,  "0",      0,    65536,    NULL,                                                          \
      "Micro-batches per step: gradients of all but the last are added up on this worker and not sent, unless accum_reduce says so; 0 is what train_batch and micro_batch leave, or 1.") \
    X(accum_reduce,     ENUM, "auto",   0,    0,        worker_accum_reduce_choices,                                   \
      "When gradients of micro-batches are summed over the workers: last puts nothing on the wire until the last one, each needs no memory for all of them; auto is each where gradients are sharded over the workers.") \
    X(bucket_first_bytes, U64, "1m",    4096, 1e15,     NULL,                                                          \
      "Gradients that are summed together first without servers; few, so that something travels early.")               \
    X(bucket_bytes,     U64,  "25m",    4096, 1e15,     NULL,                                                          \
      "Gradients that are summed together without servers; more cost less per byte and overlap less.")                 \
    X(reduce_bucket,    U64,  "0",      0,    1e15,     NULL,                                                          \
      "The same in elements, and for the first one as well; 0 takes bucket_first_bytes and bucket_bytes.")             \
    SETTING_OFFLOAD_OPTIMIZER(X) SETTING_OFFLOAD_PARAM(X) SETTING_OFFLOAD_PATH(X) SETTING_SUB_GROUP(X)                 \
    X(wrap,             ENUM, "unit",   0,    0,        worker_wrap_choices,                                           \
      "What makes tensors a unit, which is gathered and dropped together: the unit they are registered with, their layer by name, size, or none.") \
    X(wrap_match,       TEXT, "",       0,    0,        NULL,                                                          \
      "With wrap=layer, patterns of layers such as h.*,encoder.layer.*; a | is between alternatives, and each has to match; empty takes names up to their first number.") \
    X(wrap_min_params,  U64,  "100000000", 1, 1e15,     NULL,                                                          \
      "With wrap=size, elements from which tensors that follow one another are a unit.")                               \
    X(prefetch_backward, ENUM, "pre",   0,    0,        worker_prefetch_choices,                                       \
      "When the next unit is fetched in the backward pass: before the current one is worked on, after it, or only when it is used; earlier overlaps more and takes more memory.") \
    X(prefetch_forward, BOOL, "yes",    0,    0,        NULL,                                                          \
      "Fetch the next unit of the forward pass while the current one is worked on, in the order of the first step.")   \
    X(prefetch_bucket,  U64,  "50000000", 0,  1e15,     NULL,                                                          \
      "Units of more elements are not fetched before they are used.")                                                  \
    X(persistence_threshold, U64, "100000", 0, 1e15,    NULL,                                                          \
      "With zero3, tensors of fewer elements stay on every worker; more cost memory and save messages.")               \
    X(max_live,         U64,  "1000000000", 0, 1e15,    NULL,                                                          \
      "Elements of units that may be here at a time before nothing more is fetched ahead or kept.")                    \
    X(max_reuse,        U64,  "1000000000", 0, 1e15,    NULL,                                                          \
      "A unit is kept when it is used again in the same step within so many elements of others; 0 drops each as soon as it is released.") \
    X(seed,             U64,  "0",      0,    9e15,     NULL,                                                          \
      "Seed of everything that is drawn; the same on all ranks.")                                                      \
    X(lanes,            U64,  "0",      0,    16,       NULL,                                                          \
      "Connections to each shard; more help where one cannot fill the link, and cost memory; 0 is 1, and encrypted as many as cores, up to 4.") \
    SETTING_ENCRYPTION(X) SETTING_HTTP(X) SETTING_HTTP_TOKEN_FILE(X) SETTING_SECRET_FILE(X) SETTING_LEASE_MS(X)        \
    X(deadline_ms,      I64,  "600000", -1,   9e12,     NULL,                                                          \
      "Longest time a request waits for a peer that lives; -1 waits for ever, for debuggers.")                         \
    X(warn_ms,          U64,  "30000",  10,   9e12,     NULL,                                                          \
      "Time after which a wait is logged with the name of whom it waits for.")                                         \
    SETTING_INIT_TIMEOUT_MS(X)                                                                                         \
    X(retry_ms,         U64,  "5000",   10,   600000,   NULL,                                                          \
      "Time without any answer after which a message is sent again; doubles with each try.")                           \
    X(requests_max,     U64,  "65536",  1,    16777216, NULL,                                                          \
      "Requests in flight before a further one waits for room.")                                                       \
    X(park_bytes_max,   U64,  "64m",    65536, 1e15,    NULL,                                                          \
      "Bytes of early pushes a shard keeps until their turn; more lets fast ranks run further ahead.")                 \
    X(snapshot_every,   U64,  "0",      0,    9e15,     NULL,                                                          \
      "Steps between snapshots; 0 takes none unless pen_snapshot asks.")                                               \
    SETTING_STORE(X) SETTING_SNAPSHOT_KEEP(X)                                                                          \
    X(gather_16bit_on_save, BOOL, "no", 0,    0,        NULL,                                                          \
      "Beside each snapshot rank 0 writes the parameters in 16 bits, as the file weights-STEP.safetensors of the store.") \
    X(resume,           BOOL, "no",     0,    0,        NULL,                                                          \
      "Go on from the newest snapshot in the store.")                                                                  \
    SETTING_FRESH(X)                                                                                                   \
    X(shared_memory,    BOOL, "yes",    0,    0,        NULL,                                                          \
      "Inside a host gradients, values and collectives stay in shared memory; no sends them over sockets, as between hosts.") \
    X(coll_algorithm,   TEXT, "",       0,    0,        NULL,                                                          \
      "Rules that choose algorithms of collectives before the built-in ones, as `penstock bench tune` writes them.")   \
    X(coll_lanes,       U64,  "1",      1,    16,       NULL,                                                          \
      "Connections between two workers for large collectives; more help where one cannot fill the link.")              \
    X(two_level,        ENUM, "auto",   0,    0,        worker_two_level_choices,                                      \
      "Sum inside each host first, before other hosts and before servers; auto does so where it pays and gives the same bits.") \
    X(device,           ENUM, "host",   0,    0,        worker_device_choices,                                         \
      "Where memory that the SDK holds lies: of the host, or of the CUDA device that local_rank is the number of, round all there are; auto is cuda where there is one.") \
    X(device_backend,   ENUM, "auto",   0,    0,        worker_device_backend_choices,                                 \
      "How members on one host wait for each other's devices; auto takes hostflag where two share one, else stream.")  \
    SETTING_HOST(X) SETTING_HOST_ID(X) SETTING_RANK(X) SETTING_WORLD_SIZE(X)                                           \
    X(local_rank,       I64,  "-1",     -1,   1048576,  NULL,                                                          \
      "Rank among the workers of this machine; -1 takes LOCAL_RANK, or what the scheduler finds.")                     \
    X(local_world_size, I64,  "-1",     -1,   1048576,  NULL,                                                          \
      "Workers on this machine; -1 takes LOCAL_WORLD_SIZE, or what the scheduler finds.")                              \
    SETTING_SERVERS(X) SETTING_MASTER_ADDR(X) SETTING_MASTER_PORT(X) SETTING_PORT(X)                                   \
    X(scheduler,        ENUM, "auto",   0,    0,        worker_scheduler_choices,                                      \
      "external never hosts a scheduler in rank 0; hosted always does; auto does when its port is free.")              \
    SETTING_JOB(X) SETTING_ON_WORKER_LOSS(X) SETTING_WORKERS_MAX(X)                                                    \
    X(simd,             TEXT, "auto",   0,    0,        NULL,                                                          \
      "Instruction set of the inner loops; all give the same bits.")                                                   \
    SETTING_TRACE(X) SETTING_TRACE_EVENTS(X) SETTING_LOG_FORMAT(X)                                                     \
    X(log_ranks,        ENUM, "all",    0,    0,        worker_log_choices,                                            \
      "Whose lines are written: those of all workers, or with first of rank 0, and of the others errors only.")        \
    X(log_level,        TEXT, "",       0,    0,        NULL,                                                          \
      "Least important lines that are logged: silent, error, warning, notice, info or debug.")                         \
    X(config,           TEXT, "",       0,    0,        NULL,                                                          \
      "File of settings, one `name = value` on a line; one that ends in .yml, .yaml or .json is a file of accelerate.") \
    X(ds_config,        TEXT, "",       0,    0,        NULL,                                                          \
      "JSON file of DeepSpeed; empty takes the one that the file of accelerate names.")                                \
    X(hidden_size,      TEXT, "",       0,    0,        NULL,                                                          \
      "Hidden size of the model, which bucket sizes that are auto in these files are made from.")                      \
    X(lr,               TEXT, "",       0,    0,        NULL,                                                          \
      "Learning rate that is auto in these files.")                                                                    \
    X(weight_decay,     TEXT, "",       0,    0,        NULL,                                                          \
      "Weight decay that is auto in these files.")                                                                     \
    X(warmup_steps,     TEXT, "",       0,    0,        NULL,                                                          \
      "Length of the warm-up that is auto in these files.")                                                            \
    X(total_steps,      TEXT, "",       0,    0,        NULL,                                                          \
      "Steps of the schedule that are auto in these files.")

/* What only the program can know: strings of pen_init(), and no flag, variable or line of a file. */
#define WORKER_PROMISES(X)                                                                                             \
    X(applies_loss_scale, BOOL, "no",   0,    0,        NULL,                                                          \
      "The program multiplies its loss by step.loss_scale; precision=fp16 is refused without this word, because a gradient does not show that its scale is missing.")
/* clang-format on */

enum { WORKER_NOTES_BYTES = 4096 };

typedef struct {
    WORKER_SETTINGS(CONFIG_FIELD)
    WORKER_PROMISES(CONFIG_FIELD)
    char notes[WORKER_NOTES_BYTES]; /* of configuration files: lines that rank 0 logs; no setting */
} worker_settings;

extern const config_row worker_settings_rows[];
extern const config_row worker_promises_rows[]; /* of the same struct */

/* Everything a worker was told: defaults, `strings` (pen_init's argument), the files that PENSTOCK_CONFIG and
 * PENSTOCK_DS_CONFIG name, the environment.  BAD_SETTING and a sentence when one of them, or two together, make no
 * sense. */
pen_status worker_settings_load(worker_settings *s, const char *const *strings, pen_error *why);

/* The same, with strings of the launcher behind all others (NULL: none). */
pen_status worker_settings_load_after(worker_settings *s, const char *const *strings,
                                      const char *const *launcher, pen_error *why);

const char *worker_mode_name(int mode);

/* How much of the state is sharded: 1, 2, 3 in the modes that are named after it, else 0. */
int worker_mode_stage(int mode);
/* Shards are of a node, and equal on all nodes. */
bool worker_mode_is_hybrid(int mode);
const char *worker_wire_name(int wire);
const char *worker_precision_name(int precision);

#endif
