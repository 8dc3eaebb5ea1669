/* worker_settings.h - every knob of a worker, once. */
#ifndef WORKER_WORKER_SETTINGS_H
#define WORKER_WORKER_SETTINGS_H

#include "common/config.h"

typedef enum { MODE_AUTO, MODE_LOCAL, MODE_PS_BSP, MODE_PS_SSP, MODE_PS_ASYNC } worker_mode;
typedef enum { COMMIT_DECIDE, COMMIT_EAGER } worker_commit;
typedef enum { LOSS_FAIL, LOSS_CONTINUE, LOSS_WAIT } worker_loss_rule;
typedef enum { SCHEDULER_AUTO, SCHEDULER_EXTERNAL, SCHEDULER_HOSTED } worker_scheduler;

/* clang-format off */
/*    field               kind  default   min   max       choices                    meaning          */
#define WORKER_SETTINGS(X)                                                                            \
    X(int,      mode,             ENUM, "auto",   0,    0,        worker_mode_choices,                 \
      "Who holds the state and who waits for whom; auto is local when alone and ps-bsp with servers.") \
    X(char,     optim,            TEXT, "",       0,    0,        NULL,                                \
      "Update rule and its numbers for tensors without a group of their own, such as: adamw lr=3e-4.") \
    X(char,     sync,             TEXT, "",       0,    0,        NULL,                                \
      "Consistency, such as: bsp, ssp s=2, async; empty takes the one that belongs to the mode.")      \
    X(int,      wire,             ENUM, "raw",    0,    0,        worker_wire_choices,                 \
      "What a gradient looks like on the wire; raw sends it as it is registered, bf16 and f16 halve float32 and round it.") \
    X(int,      commit,           ENUM, "decide", 0,    0,        worker_commit_choices,               \
      "eager applies each chunk as soon as all ranks pushed it, without a norm; decide clips and skips whole steps.") \
    X(bool,     deterministic,    BOOL, "yes",    0,    0,        NULL,                                \
      "Sum in rank order, so that two runs give the same bits; no sums in order of arrival, which parks less memory.") \
    X(double,   clip,             F64,  "0",      0,    1e30,     NULL,                                \
      "Largest global gradient norm; a larger one is scaled down to it; 0 does not clip.")             \
    X(bool,     skip,             BOOL, "yes",    0,    0,        NULL,                                \
      "Skip a step whose gradient is not finite instead of applying it.")                              \
    X(uint64_t, steps,            U64,  "0",      0,    9e15,     NULL,                                \
      "Steps after which pen_step_begin says END; 0 never does.")                                      \
    X(uint64_t, seed,             U64,  "0",      0,    9e15,     NULL,                                \
      "Seed of everything that is drawn; the same on all ranks.")                                      \
    X(uint64_t, lanes,            U64,  "1",      1,    16,       NULL,                                \
      "Connections to each shard; more help where one connection cannot fill the link, and cost memory.") \
    X(uint64_t, lease_ms,         U64,  "10000",  200,  3600000,  NULL,                                \
      "Silence after which a peer counts as dead; lower finds a lost host sooner but mistakes a long stall for a death.") \
    X(int64_t,  deadline_ms,      I64,  "600000", -1,   9e12,     NULL,                                \
      "Longest time a request waits for a peer that lives; -1 waits for ever, for debuggers.")         \
    X(uint64_t, warn_ms,          U64,  "30000",  10,   9e12,     NULL,                                \
      "Time after which a wait is logged with the name of whom it waits for.")                         \
    X(uint64_t, init_timeout_ms,  U64,  "300000", 100,  9e12,     NULL,                                \
      "Longest time pen_init waits until all members have joined.")                                    \
    X(uint64_t, retry_ms,         U64,  "5000",   10,   600000,   NULL,                                \
      "Time without any answer after which a message is sent again; doubles with each try.")           \
    X(uint64_t, requests_max,     U64,  "65536",  1,    16777216, NULL,                                \
      "Requests in flight before a further one waits for room.")                                       \
    X(uint64_t, park_bytes_max,   U64,  "64m",    65536, 1e15,    NULL,                                \
      "Bytes of early pushes a shard keeps until their turn; more lets fast ranks run further ahead.")  \
    X(uint64_t, snapshot_every,   U64,  "0",      0,    9e15,     NULL,                                \
      "Steps between snapshots; 0 takes none unless pen_snapshot asks.")                               \
    X(bool,     resume,           BOOL, "no",     0,    0,        NULL,                                \
      "Go on from the newest snapshot in the servers' store.")                                         \
    X(bool,     fresh,            BOOL, "no",     0,    0,        NULL,                                \
      "Forget what is in the servers' store and start anew.")                                          \
    X(int64_t,  rank,             I64,  "-1",     -1,   1048576,  NULL,                                \
      "This worker's rank; -1 takes RANK, or what Slurm or OpenMPI say.")                              \
    X(int64_t,  world_size,       I64,  "-1",     -1,   1048576,  NULL,                                \
      "Number of workers; -1 takes WORLD_SIZE, or what Slurm or OpenMPI say.")                         \
    X(int64_t,  local_rank,       I64,  "-1",     -1,   1048576,  NULL,                                \
      "Rank among the workers of this host; -1 takes LOCAL_RANK.")                                     \
    X(int64_t,  local_world_size, I64,  "-1",     -1,   1048576,  NULL,                                \
      "Workers on this host; -1 takes LOCAL_WORLD_SIZE.")                                              \
    X(int64_t,  servers,          I64,  "-1",     -1,   4096,     NULL,                                \
      "Number of server processes; -1 is not given.")                                                  \
    X(char,     master_addr,      TEXT, "",       0,    0,        NULL,                                \
      "Host of the scheduler; empty takes MASTER_ADDR.")                                               \
    X(uint64_t, master_port,      U64,  "0",      0,    65535,    NULL,                                \
      "Port of the launcher; 0 takes MASTER_PORT.")                                                    \
    X(uint64_t, port,             U64,  "0",      0,    65535,    NULL,                                \
      "Port of the scheduler; 0 takes the launcher's, or the next one where torchrun owns that.")      \
    X(int,      scheduler,        ENUM, "auto",   0,    0,        worker_scheduler_choices,            \
      "external never hosts a scheduler in rank 0; hosted always does; auto does when its port is free.") \
    X(char,     job,              TEXT, "",       0,    0,        NULL,                                \
      "Name of the job in logs and status; empty takes the program's.")                                \
    X(int,      on_worker_loss,   ENUM, "fail",   0,    0,        worker_loss_choices,                 \
      "What the loss of a worker does to the job; only fail exists in this version.")                  \
    X(char,     simd,             TEXT, "auto",   0,    0,        NULL,                                \
      "Instruction set of the inner loops; all give the same bits.")                                   \
    X(char,     log_level,        TEXT, "",       0,    0,        NULL,                                \
      "Least important lines that are logged: silent, error, warning, notice, info or debug.")         \
    X(char,     config,           TEXT, "",       0,    0,        NULL,                                \
      "File of settings, one `name = value` on a line.")
/* clang-format on */

typedef struct {
#define WORKER_FIELD_ENUM(ctype, name)                    ctype name;
#define WORKER_FIELD_BOOL(ctype, name)                    ctype name;
#define WORKER_FIELD_F64(ctype, name)                     ctype name;
#define WORKER_FIELD_U64(ctype, name)                     ctype name;
#define WORKER_FIELD_I64(ctype, name)                     ctype name;
#define WORKER_FIELD_TEXT(ctype, name)                    ctype name[CONFIG_TEXT_BYTES];
#define X(ctype, name, kind, dfl, min, max, choices, doc) WORKER_FIELD_##kind(ctype, name)
    WORKER_SETTINGS(X)
#undef X
} worker_settings;

extern const config_row worker_settings_rows[];

/* A launcher hands all processes of a job the same PENSTOCK_* variables: these names are a server's
 * or the launcher's own, and those of scheduler_settings_rows the scheduler's.  Known, and not
 * read; any other is an error. */
extern const config_row worker_settings_foreign[];

/* Everything a worker was told: defaults, `strings` (pen_init's argument), the file PENSTOCK_CONFIG
 * names, the environment.  BAD_SETTING and a sentence when one of them, or two together, make no
 * sense. */
pen_status worker_settings_load(worker_settings *s, const char *const *strings, pen_error *why);

const char *worker_mode_name(int mode);
const char *worker_wire_name(int wire);

#endif
