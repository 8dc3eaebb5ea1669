/* settings.h - the settings of a job's processes, each once: its type, default, bounds and meaning.
 *
 * DESIGN.  A row is a macro; the table of each role names the rows that it reads (worker_settings.h, server_settings.h,
 * scheduler_settings.h), so what several read cannot differ.  Settings of workers alone stand in their own table.  All
 * others stand here even where one role reads them, because a launcher hands the same variables to every process of a
 * job, and each has to know the names of the others.
 */
#ifndef PROTO_SETTINGS_H
#define PROTO_SETTINGS_H

#include "common/base/config.h"
#include "common/net/auth/guard.h"
#include "common/base/log.h"

enum { SETTINGS_WORKERS_MAX = 16384, SETTINGS_SERVERS_MAX = 1024 };

/* In the order of settings_loss_rules. */
typedef enum { LOSS_FAIL, LOSS_CONTINUE, LOSS_WAIT } loss_rule;
extern const char *const settings_loss_rules[];

/* Where something is kept, in the order of settings_offload. */
typedef enum { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_SERVER, OFFLOAD_NVME } offload_place;
extern const char *const settings_offload[];

/* Names that a worker knows and leaves to others; any other is an error. */
extern const config_row settings_foreign[];

/* clang-format off */
/* X(name, kind, default, min, max, choices, meaning) */

/* ---- what the job is ----------------------------------------------------------------------------------------------- */
#define SETTING_JOB(X)                                                                                                 \
    X(job, TEXT, "", 0, 0, NULL,                                                                                       \
      "Name of the job; empty takes for a worker the program's, for a server the scheduler's, and for the "            \
      "scheduler that of the first process that joins. Processes of another job are turned away.")
#define SETTING_WORLD_SIZE(X)                                                                                          \
    X(world_size, I64, "-1", -1, SETTINGS_WORKERS_MAX, NULL,                                                           \
      "Number of workers; -1 takes WORLD_SIZE, or what another launcher says; the scheduler else takes it from the "   \
      "first worker that joins.")
#define SETTING_SERVERS(X)                                                                                             \
    X(servers, I64, "-1", -1, SETTINGS_SERVERS_MAX, NULL,                                                              \
      "Number of server processes; -1 is not given: the scheduler takes it from the first worker that joins.")
#define SETTING_WORKERS_MIN(X)                                                                                         \
    X(workers_min, U64, "0", 0, SETTINGS_WORKERS_MAX, NULL,                                                            \
      "With on_worker_loss=continue or workers_max: the job fails when fewer than these live; 0 is one.")
#define SETTING_WORKERS_MAX(X)                                                                                         \
    X(workers_max, U64, "0", 0, SETTINGS_WORKERS_MAX, NULL,                                                            \
      "Most workers that a job with servers may have at a time, of `penstock run --nproc-per-node MIN:MAX`; they "     \
      "then join and leave while it trains. 0: as many as it begins with, and none joins.")
#define SETTING_SERVERS_MAX(X)                                                                                         \
    X(servers_max, U64, "0", 0, SETTINGS_SERVERS_MAX, NULL,                                                            \
      "Servers that may be there at once; the model is cut finely enough for so many, and more may come while it "     \
      "trains; 0: as many as it begins with.")
#define SETTING_ON_WORKER_LOSS(X)                                                                                      \
    X(on_worker_loss, ENUM, "fail", 0, 0, settings_loss_rules,                                                         \
      "What the loss of a worker does to the job: it fails, goes on without it (continue), or with servers waits "     \
      "until it is back (wait).")
#define SETTING_WAIT_MS(X)                                                                                             \
    X(wait_ms, U64, "300000", 100, 86400000, NULL,                                                                     \
      "With on_worker_loss=wait: how long a dead worker may take to come back; raised, slow restarts succeed but a "   \
      "worker that never comes is noticed later.")

/* ---- where it is --------------------------------------------------------------------------------------------------- */
#define SETTING_RANK(X)                                                                                                \
    X(rank, I64, "-1", -1, SETTINGS_WORKERS_MAX - 1, NULL,                                                             \
      "Rank of this worker or server; -1 takes RANK, or what another launcher says, and for a server else the "        \
      "lowest that is free.")
#define SETTING_HOST(X)                                                                                                \
    X(host, TEXT, "", 0, 0, NULL,                                                                                      \
      "Name or address by which others reach this process; empty takes the address of the interface that leads to "    \
      "the scheduler. The scheduler listens there: empty is 127.0.0.1, and anything but loopback lets other "          \
      "machines join.")
#define SETTING_HOST_ID(X)                                                                                             \
    X(host_id, TEXT, "", 0, 0, NULL,                                                                                   \
      "Which machine this is; processes with different names here are on different ones: workers share no memory, "    \
      "and copies of a shard lie apart. Empty takes boot id and host name.")
#define SETTING_MASTER_ADDR(X)                                                                                         \
    X(master_addr, TEXT, "", 0, 0, NULL,                                                                               \
      "Name or address of the scheduler, or a whole address such as ipc:///run/job; empty takes MASTER_ADDR or "       \
      "what another launcher says, and for a server else 127.0.0.1.")
#define SETTING_MASTER_PORT(X)                                                                                         \
    X(master_port, U64, "0", 0, 65535, NULL,                                                                           \
      "Port at master_addr, for a worker the launcher's and for a server the scheduler's; 0 takes MASTER_PORT or "     \
      "what another launcher says, and for a server else 29400.")
#define SETTING_PORT(X)                                                                                                \
    X(port, U64, "0", 0, 65535, NULL,                                                                                  \
      "TCP port of the scheduler; 0 takes for a worker the launcher's, or the next one where torchrun owns that, "     \
      "and for the scheduler a free one.")
#define SETTING_CONNECTIONS_MAX(X)                                                                                     \
    X(connections_max, U64, "4096", 16, 1048576, NULL,                                                                 \
      "Connections to one port; beyond it the oldest that has said nothing ends for each new one; raised, there is "   \
      "room for more members and for more strangers.")
#define SETTING_IO_THREADS(X)                                                                                          \
    X(io_threads, U64, "1", 1, 16, NULL,                                                                               \
      "Threads that move bytes; more help when several lanes are faster than one core.")

/* ---- how long ------------------------------------------------------------------------------------------------------ */
#define SETTING_INIT_TIMEOUT_MS(X)                                                                                     \
    X(init_timeout_ms, U64, "300000", 100, 86400000, NULL,                                                             \
      "How long the start may take until all members are there; raised, slow starts succeed but a missing process "    \
      "or a wrong address is noticed later.")
#define SETTING_LEASE_MS(X)                                                                                            \
    X(lease_ms, U64, "10000", 200, 3600000, NULL,                                                                      \
      "Silence after which the scheduler declares a process dead, and a process the scheduler; raised, long stalls "   \
      "survive but a lost host is noticed later. What the scheduler has counts for all.")
#define SETTING_DOWN_GRACE_MS(X)                                                                                       \
    X(down_grace_ms, U64, "1000", 0, 600000, NULL,                                                                     \
      "How long a broken connection may take to come back before the scheduler declares the process behind it "        \
      "dead, or a server ends; raised, networks may hiccup but a killed process is noticed later.")
#define SETTING_GRACE_MS(X)                                                                                            \
    X(grace_ms, U64, "60000", 1000, 86400000, NULL,                                                                    \
      "With state: how long the others go on without a scheduler before they give up.")

/* ---- who may take part, and look ----------------------------------------------------------------------------------- */
#define SETTING_ENCRYPTION(X)                                                                                          \
    X(encryption, ENUM, "auto", 0, 0, guard_choices,                                                                   \
      "Whether traffic is encrypted; auto does so off loopback and wherever secret_file is given, clear never "        \
      "does. On loopback, and wherever secret_file is given, every process proves that it belongs to the job.")
#define SETTING_SECRET_FILE(X)                                                                                         \
    X(secret_file, TEXT, "", 0, 0, NULL,                                                                               \
      "File with the secret of the job, the same for all its processes and readable by its owner alone; penstock "     \
      "keygen makes one.")
#define SETTING_HTTP(X)                                                                                                \
    X(http, TEXT, "", 0, 0, NULL,                                                                                      \
      "Where this process shows its metrics and health over HTTP, HOST:PORT; a worker adds its local rank to the "     \
      "port, port 0 takes a free one, empty: nowhere.")
#define SETTING_HTTP_TOKEN_FILE(X)                                                                                     \
    X(http_token_file, TEXT, "", 0, 0, NULL,                                                                           \
      "File with the token that readers must bring; without it nothing but /healthz and /readyz is shown off "         \
      "loopback.")
#define SETTING_ADMISSION(X)                                                                                           \
    X(admission, TEXT, "off", 0, 0, NULL,                                                                              \
      "Which gradients a server takes: off takes all, finite refuses infinities and NaN, norm:BOUND also any chunk "   \
      "whose norm is above the bound; checks cost one pass over each.")

/* ---- where state lies ---------------------------------------------------------------------------------------------- */
#define SETTING_SHARDS(X)                                                                                              \
    X(shards, U64, "1", 1, 64, NULL,                                                                                   \
      "Threads that hold parameters; more use more cores and cut the model finer.")
#define SETTING_REPLICAS(X)                                                                                            \
    X(replicas, U64, "0", 0, 2, NULL,                                                                                  \
      "Copies of every shard beside the one that serves it, each on another server; so many servers may die at "       \
      "once without a loss, and every push costs so many transfers more.")
#define SETTING_STATE(X)                                                                                               \
    X(state, TEXT, "", 0, 0, NULL,                                                                                     \
      "Folder in which the scheduler keeps what it must know after a crash; started again with it, on the same "       \
      "port, it goes on where it was. Empty: its death ends the job.")
#define SETTING_STORE(X)                                                                                               \
    X(store, TEXT, "", 0, 0, NULL,                                                                                     \
      "Directory of snapshots, one that all servers reach, or without servers all workers; empty keeps none.")
#define SETTING_SNAPSHOT_KEEP(X)                                                                                       \
    X(snapshot_keep, U64, "2", 1, 64, NULL,                                                                            \
      "Complete snapshots kept; older ones go when a newer one is whole everywhere, and while that is written "        \
      "there is one more.")
#define SETTING_SNAPSHOT_COPY_BYTES_MAX(X)                                                                             \
    X(snapshot_copy_bytes_max, U64, "4g", 0, 1e15, NULL,                                                               \
      "Memory that copies of what changes while a snapshot is written may take; with less a step may have to wait "    \
      "for the disk.")
#define SETTING_FRESH(X)                                                                                               \
    X(fresh, BOOL, "no", 0, 0, NULL,                                                                                   \
      "Leave what is in the store unread and start anew.")
#define SETTING_OFFLOAD_OPTIMIZER(X)                                                                                   \
    X(offload_optimizer, ENUM, "none", 0, 0, settings_offload,                                                         \
      "Where optimizer state is kept: none and cpu in memory, server on the servers, which is where they always "      \
      "have it, nvme in a file of the servers below offload_path; a file frees memory, and each update waits for "     \
      "the disk.")
#define SETTING_OFFLOAD_PARAM(X)                                                                                       \
    X(offload_param, ENUM, "none", 0, 0, settings_offload,                                                             \
      "The same of the parameters that servers hold in float32; with nvme each answer waits for the disk, too.")
#define SETTING_OFFLOAD_PATH(X)                                                                                        \
    X(offload_path, TEXT, "", 0, 0, NULL,                                                                              \
      "Folder of what is kept in files, on a fast disk of each server; empty takes the server's store. Nothing is "    \
      "left in it.")
#define SETTING_SUB_GROUP(X)                                                                                           \
    X(sub_group, U64, "1000000000", 1, 1e15, NULL,                                                                     \
      "Elements of which state is brought in from files at one time; fewer take less memory, down to one chunk, "      \
      "more than four chunks are never needed.")

/* ---- what is written down ------------------------------------------------------------------------------------------ */
#define SETTING_TRACE(X)                                                                                               \
    X(trace, TEXT, "", 0, 0, NULL,                                                                                     \
      "File of a timeline: this process writes its part into the folder FILE.parts, and `penstock trace merge` "       \
      "makes FILE of the parts; empty writes none.")
#define SETTING_TRACE_EVENTS(X)                                                                                        \
    X(trace_events, U64, "65536", 64, 16777216, NULL,                                                                  \
      "With trace: records kept of each thread, 48 bytes each; the oldest are lost.")
#define SETTING_LOG_FORMAT(X)                                                                                          \
    X(log_format, ENUM, "text", 0, 0, log_formats,                                                                     \
      "text for people, or json: one object a line, with time, level, role and rank.")
/* clang-format on */

#endif
