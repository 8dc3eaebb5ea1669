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
#include "common/base/log.h"
#include "common/net/auth/auth.h"

enum { SETTINGS_WORKERS_MAX = 16384, SETTINGS_SERVERS_MAX = 1024 };

/* In the order of settings_loss_rules. */
typedef enum { LOSS_FAIL, LOSS_CONTINUE, LOSS_WAIT } loss_rule;
extern const char *const settings_loss_rules[];

/* In which order floats are summed, in the order of settings_orders; LOOSE: any. */
typedef enum { SUMS_LOOSE, SUMS_BY_RANK, SUMS_BY_NODE } sum_order;
extern const char *const settings_orders[];

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
      "Name of the job. Empty: a worker takes the program's name, a server the scheduler's, and the scheduler "        \
      "that of the first process that joins. Processes of another job are refused.")
#define SETTING_WORLD_SIZE(X)                                                                                          \
    X(world_size, I64, "-1", -1, SETTINGS_WORKERS_MAX, NULL,                                                           \
      "Number of workers; -1 reads WORLD_SIZE or another launcher's variable. The scheduler otherwise takes it "       \
      "from the first worker that joins.")
#define SETTING_LOCAL_WORLD_SIZE(X)                                                                                    \
    X(local_world_size, I64, "-1", -1, 1048576, NULL,                                                                  \
      "Number of workers on this machine; -1 reads LOCAL_WORLD_SIZE or asks the scheduler. The scheduler of "          \
      "`penstock run` refuses machines with another number.")
#define SETTING_SERVERS(X)                                                                                             \
    X(servers, I64, "-1", -1, SETTINGS_SERVERS_MAX, NULL,                                                              \
      "Number of servers; -1: the scheduler takes it from the first worker that joins.")
#define SETTING_WORKERS_MIN(X)                                                                                         \
    X(workers_min, U64, "0", 0, SETTINGS_WORKERS_MAX, NULL,                                                            \
      "Minimum number of live workers with on_worker_loss=continue or workers_max; with fewer the job fails. 0 "       \
      "means 1.")
#define SETTING_WORKERS_MAX(X)                                                                                         \
    X(workers_max, U64, "0", 0, SETTINGS_WORKERS_MAX, NULL,                                                            \
      "Maximum number of workers in a job with servers, as `penstock run --nproc-per-node MIN:MAX` sets it; "          \
      "workers may join and leave during training. 0: the initial number, and none can join.")
#define SETTING_SERVERS_MAX(X)                                                                                         \
    X(servers_max, U64, "0", 0, SETTINGS_SERVERS_MAX, NULL,                                                            \
      "Maximum number of servers; the model is partitioned for that many, and servers may join during training. "      \
      "0: the initial number.")
#define SETTING_ON_WORKER_LOSS(X)                                                                                      \
    X(on_worker_loss, ENUM, "fail", 0, 0, settings_loss_rules,                                                         \
      "What to do when a worker dies: fail the job, continue without the worker, or wait until it is back (needs "     \
      "servers).")
#define SETTING_WAIT_MS(X)                                                                                             \
    X(wait_ms, U64, "300000", 100, 86400000, NULL,                                                                     \
      "With on_worker_loss=wait: how long to wait for a dead worker. Higher values allow slow restarts, but "          \
      "detect a worker that never returns later.")

/* ---- where it is --------------------------------------------------------------------------------------------------- */
#define SETTING_RANK(X)                                                                                                \
    X(rank, I64, "-1", -1, SETTINGS_WORKERS_MAX - 1, NULL,                                                             \
      "Rank of this worker or server; -1 reads RANK or another launcher's variable. A server otherwise takes the "     \
      "lowest free rank.")
#define SETTING_HOST(X)                                                                                                \
    X(host, TEXT, "", 0, 0, NULL,                                                                                      \
      "Host name or address at which others reach this process. Empty: the address of the interface that leads "       \
      "to the scheduler. The scheduler listens on it: empty is 127.0.0.1, and any address beyond loopback lets "       \
      "other machines join.")
#define SETTING_HOST_ID(X)                                                                                             \
    X(host_id, TEXT, "", 0, 0, NULL,                                                                                   \
      "Identity of this machine. Processes with different identities share no memory, and copies of a shard are "      \
      "placed on different identities. Empty: boot id and host name.")
#define SETTING_MASTER_ADDR(X)                                                                                         \
    X(master_addr, TEXT, "", 0, 0, NULL,                                                                               \
      "Host name or address of the scheduler, or a full address like ipc:///run/job. Empty reads MASTER_ADDR or "      \
      "another launcher's variable; a server otherwise uses 127.0.0.1.")
#define SETTING_MASTER_PORT(X)                                                                                         \
    X(master_port, U64, "0", 0, 65535, NULL,                                                                           \
      "Port at master_addr: the launcher's for a worker, the scheduler's for a server. 0 reads MASTER_PORT or "        \
      "another launcher's variable; a server otherwise uses 29400.")
#define SETTING_PORT(X)                                                                                                \
    X(port, U64, "0", 0, 65535, NULL,                                                                                  \
      "TCP port of the scheduler. 0: a worker uses the launcher's port, or the next one if torchrun owns it; the "     \
      "scheduler picks a free port.")
#define SETTING_CONNECTIONS_MAX(X)                                                                                     \
    X(connections_max, U64, "4096", 16, 1048576, NULL,                                                                 \
      "Maximum number of connections per port. Beyond it each new connection closes the oldest one that has sent "     \
      "nothing. Higher values allow more members, but also more strangers.")
#define SETTING_IO_THREADS(X)                                                                                          \
    X(io_threads, U64, "1", 1, 16, NULL,                                                                               \
      "Number of I/O threads; more help when several lanes are faster than one core.")

/* ---- how long ------------------------------------------------------------------------------------------------------ */
#define SETTING_INIT_TIMEOUT_MS(X)                                                                                     \
    X(init_timeout_ms, U64, "300000", 100, 86400000, NULL,                                                             \
      "How long startup may take until all members have joined. Higher values allow slow starts, but detect a "        \
      "missing process or a wrong address later.")
#define SETTING_LEASE_MS(X)                                                                                            \
    X(lease_ms, U64, "10000", 200, 3600000, NULL,                                                                      \
      "Silence after which the scheduler declares a process dead, and a process the scheduler. Higher values "         \
      "survive long stalls, but detect a lost host later. The scheduler's value applies to all.")
#define SETTING_DOWN_GRACE_MS(X)                                                                                       \
    X(down_grace_ms, U64, "1000", 0, 600000, NULL,                                                                     \
      "How long a broken connection may take to return before the scheduler declares its process dead, or a "          \
      "server exits. Higher values tolerate network hiccups, but detect a killed process later.")
#define SETTING_GRACE_MS(X)                                                                                            \
    X(grace_ms, U64, "60000", 1000, 86400000, NULL,                                                                    \
      "With state: how long processes continue without a scheduler before they give up.")

/* ---- who may take part, and look ----------------------------------------------------------------------------------- */
#define SETTING_ENCRYPTION(X)                                                                                          \
    X(encryption, ENUM, "auto", 0, 0, auth_choices,                                                                   \
      "Whether TCP is encrypted: auto and on encrypt it, which needs a secret_file beyond loopback; clear never does, "  \
      "so whoever reaches the ports can read and control the job. Without a secret_file, on loopback, there is no TCP: " \
      "see local_sockets.")
#define SETTING_TRANSPORT(X)                                                                                           \
    X(transport, ENUM, "tcp", 0, 0, auth_transports,                                                                  \
      "What carries messages, the same for all processes. tcp: plain sockets (encrypted: TLS 1.3). zmq: ZeroMQ "      \
      "(encrypted: CURVE), to compare.")
#define SETTING_LOCAL_SOCKETS(X)                                                                                       \
    X(local_sockets, BOOL, "yes", 0, 0, NULL,                                                                          \
      "Whether processes of one user on one host meet on Unix-domain sockets in the user's folder, which nobody else " \
      "can enter, without encryption. no uses TCP between them too, as between hosts.")
#define SETTING_SECRET_FILE(X)                                                                                         \
    X(secret_file, TEXT, "", 0, 0, NULL,                                                                               \
      "File with the job's secret, the same for all processes and readable only by its owner; `penstock keygen` "      \
      "creates it.")
#define SETTING_HTTP(X)                                                                                                \
    X(http, TEXT, "", 0, 0, NULL,                                                                                      \
      "HOST:PORT for metrics and health over HTTP. A worker adds its local rank to the port; port 0 picks a free "     \
      "one. Empty: disabled.")
#define SETTING_HTTP_TOKEN_FILE(X)                                                                                     \
    X(http_token_file, TEXT, "", 0, 0, NULL,                                                                           \
      "File with the bearer token for HTTP requests. Without it only /healthz and /readyz are served beyond "          \
      "loopback.")
#define SETTING_ADMISSION(X)                                                                                           \
    X(admission, TEXT, "off", 0, 0, NULL,                                                                              \
      "Check of incoming gradients on the server: off accepts all; finite rejects infinities and NaN; norm:BOUND "     \
      "also rejects any chunk with a larger norm. Each check costs one pass over the gradient.")

/* ---- where state lies ---------------------------------------------------------------------------------------------- */
#define SETTING_SHARDS(X)                                                                                              \
    X(shards, U64, "1", 1, 64, NULL,                                                                                   \
      "Number of threads that hold parameters; more use more cores and partition the model more finely.")
#define SETTING_REPLICAS(X)                                                                                            \
    X(replicas, U64, "0", 0, 2, NULL,                                                                                  \
      "Copies of each shard on other servers. That many servers may die at once without data loss; each push "         \
      "costs that many extra transfers.")
#define SETTING_STATE(X)                                                                                               \
    X(state, TEXT, "", 0, 0, NULL,                                                                                     \
      "Directory for the scheduler's recovery state. A scheduler restarted with it on the same port continues "        \
      "the job after a crash. Empty: a crash of the scheduler ends the job.")
#define SETTING_STORE(X)                                                                                               \
    X(store, TEXT, "", 0, 0, NULL,                                                                                     \
      "Directory of snapshots, shared by all servers, or by all workers without servers. Empty: no snapshots.")
#define SETTING_SNAPSHOT_KEEP(X)                                                                                       \
    X(snapshot_keep, U64, "2", 1, 64, NULL,                                                                            \
      "Number of complete snapshots to keep. Older ones are deleted when a newer one is complete everywhere; "         \
      "until then there is one more.")
#define SETTING_SNAPSHOT_COPY_BYTES_MAX(X)                                                                             \
    X(snapshot_copy_bytes_max, U64, "4g", 0, 1e15, NULL,                                                               \
      "Memory limit for copies of what changes while a snapshot is written; with less, a step may wait for the "       \
      "disk.")
#define SETTING_PLUGIN(X)                                                                                              \
    X(plugin, TEXT, "", 0, 0, NULL,                                                                                    \
      "Shared library with handlers of the program's own for tables by key: it has pen_plugin(). A name without / is " \
      "a file in the working directory.")
#define SETTING_HANDLER_TIMEOUT_MS(X)                                                                                  \
    X(handler_timeout_ms, U64, "30000", 100, 86400000, NULL,                                                           \
      "A function of a handler that has not returned for so long ends the job with a sentence that names it.")
#define SETTING_FRESH(X)                                                                                               \
    X(fresh, BOOL, "no", 0, 0, NULL,                                                                                   \
      "Ignore the snapshots in the store and start from scratch.")
#define SETTING_OFFLOAD_OPTIMIZER(X)                                                                                   \
    X(offload_optimizer, ENUM, "none", 0, 0, settings_offload,                                                         \
      "Where optimizer state is kept: with the values that it updates (none), in host memory (cpu), on the servers as "\
      "always (server), or in a file of the servers under offload_path (nvme). With cpu a GPU worker without servers " \
      "keeps it in pinned host memory, where each update reads and writes it. A file saves memory, but each update "   \
      "waits for the disk.")
#define SETTING_OFFLOAD_PARAM(X)                                                                                       \
    X(offload_param, ENUM, "none", 0, 0, settings_offload,                                                             \
      "Where float32 parameters are kept: those of servers, and the shards of mode=zero3 without servers; the values " \
      "of offload_optimizer apply. With nvme each response waits for the disk too.")
#define SETTING_OFFLOAD_PATH(X)                                                                                        \
    X(offload_path, TEXT, "", 0, 0, NULL,                                                                              \
      "Directory of the offload files, on a fast disk of each server; empty uses the server's store. The files "       \
      "do not outlive the job.")
#define SETTING_SUB_GROUP(X)                                                                                           \
    X(sub_group, U64, "1000000000", 1, 1e15, NULL,                                                                     \
      "Number of elements loaded from offload files at a time. Lower values use less memory, down to one chunk; "      \
      "more than four chunks are never needed.")

/* ---- what is written down ------------------------------------------------------------------------------------------ */
#define SETTING_TRACE(X)                                                                                               \
    X(trace, TEXT, "", 0, 0, NULL,                                                                                     \
      "File of a timeline: this process writes its part into the folder FILE.parts, and `penstock trace merge` "       \
      "builds FILE from the parts. Empty: no timeline.")
#define SETTING_TRACE_EVENTS(X)                                                                                        \
    X(trace_events, U64, "65536", 64, 16777216, NULL,                                                                  \
      "With trace: number of events kept per thread, 48 bytes each; the oldest are overwritten.")
#define SETTING_LOG_FORMAT(X)                                                                                          \
    X(log_format, ENUM, "text", 0, 0, log_formats,                                                                     \
      "Format of log lines: text, or json with one object per line (time, level, role, rank).")
/* clang-format on */

#endif
