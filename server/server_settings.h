/* server_settings.h - every knob of a server process, once. */
#ifndef SERVER_SETTINGS_H
#define SERVER_SETTINGS_H

#include "common/config.h"
#include "common/guard.h"
#include "common/tier/tier.h"

typedef char server_text[CONFIG_TEXT_BYTES];

/* clang-format off */
/*    field        name             kind  default      min  max       choices  meaning */
#define SERVER_SETTINGS(X)                                                                         \
    X(server_text, master_addr,     TEXT, "",          0,   0,        NULL,                        \
      "Name or address of the scheduler, or a whole address such as ipc:///run/job; empty takes "  \
      "MASTER_ADDR or what a launcher says, else 127.0.0.1.")                                      \
    X(uint64_t,    master_port,     U64,  "0",         0,   65535,    NULL,                        \
      "TCP port of the scheduler; 0 takes MASTER_PORT or what a launcher says, else 29400.")       \
    X(int64_t,     rank,            I64,  "-1",        -1,  1023,     NULL,                        \
      "Rank of this server; -1 takes what a launcher says, else the lowest that is free.")         \
    X(uint64_t,    shards,          U64,  "1",         1,   64,       NULL,                        \
      "Threads that hold parameters; more use more cores and cut the model finer.")                \
    X(server_text, job,             TEXT, "",          0,   0,        NULL,                        \
      "Name of the job; empty joins whatever job the scheduler has.")                              \
    X(server_text, host,            TEXT, "",          0,   0,        NULL,                        \
      "Name or address by which others reach this server; empty takes the address of the "         \
      "interface that leads to the scheduler.")                                                    \
    X(server_text, host_id,         TEXT, "",          0,   0,        NULL,                        \
      "Which machine this is: copies of a shard lie on different ones where there are several; "   \
      "empty takes boot id and host name.")                                                       \
    X(server_text, trace,           TEXT, "",          0,   0,        NULL,                        \
      "File of a timeline: this process writes its part into the folder FILE.parts, and "          \
      "`penstock trace merge` makes FILE of the parts; empty writes none.")                        \
    X(uint64_t,    trace_events,    U64,  "65536",     64,  16777216, NULL,                        \
      "With trace: records kept of each thread, 48 bytes each; the oldest are lost.")              \
    X(server_text, store,           TEXT, "",          0,   0,        NULL,                        \
      "Directory of snapshots, one that all servers reach; empty keeps none.")                     \
    X(uint64_t,    snapshot_keep,   U64,  "2",         1,   64,       NULL,                        \
      "Complete snapshots kept; older ones go when a newer one is whole on all servers, and while "\
      "that is written there is one more.")                                                        \
    X(uint64_t,    snapshot_copy_bytes_max, U64, "4g", 0,   1e15,     NULL,                        \
      "Memory that copies of what changes while a snapshot is written may take; with less a step " \
      "may have to wait for the disk.")                                                            \
    X(int,         offload_optimizer, ENUM, "none",    0,   0,        tier_offload_choices,        \
      "Where optimizer state is kept: nvme in a file below offload_path, everything else in memory; " \
      "a file frees memory, and each update waits for the disk.")                                  \
    X(int,         offload_param,   ENUM, "none",      0,   0,        tier_offload_choices,        \
      "The same of the parameters themselves, in float32; with nvme each answer waits for the disk, too.") \
    X(server_text, offload_path,    TEXT, "",          0,   0,        NULL,                        \
      "Folder on a fast disk of this host for what is kept in files; empty takes the store. "      \
      "Nothing is left in it.")                                                                    \
    X(uint64_t,    sub_group,       U64,  "1000000000", 1,  1e15,     NULL,                        \
      "Elements of which state is brought in from files at one time; fewer take less memory, down " \
      "to one chunk, more than four chunks are never needed.")                                     \
    X(bool,        fresh,           BOOL, "no",        0,   0,        NULL,                        \
      "Whether snapshots that are there are left unread, so that training starts anew.")           \
    X(uint64_t,    init_timeout_ms, U64,  "300000",    100, 86400000, NULL,                        \
      "How long the scheduler may take to answer at the start; raised, slow starts succeed but a " \
      "wrong address is noticed later.")                                                           \
    X(uint64_t,    lease_ms,        U64,  "10000",     100, 3600000,  NULL,                        \
      "Lease the scheduler will give: its word counts, but connections are opened before it is "   \
      "heard, and a shorter stall shall not break them.")                                          \
    X(uint64_t,    down_grace_ms,   U64,  "1000",      0,   600000,   NULL,                        \
      "How long the scheduler's connection may be broken before this server ends; raised, "        \
      "networks may hiccup but a dead scheduler is noticed later.")                                \
    X(int,         encryption,      ENUM, "auto",      0,   0,        guard_choices,               \
      "Whether traffic is encrypted; auto does so off loopback and wherever secret_file is given, clear never does. On loopback, and wherever secret_file is given, every process proves that it belongs to the job.") \
    X(server_text, secret_file,     TEXT, "",          0,   0,        NULL,                        \
      "File with the secret of the job, the same for all its processes and readable by its owner " \
      "alone; penstock keygen makes one.")                                                         \
    X(server_text, http,            TEXT, "",          0,   0,        NULL,                     \
      "Where this server shows its metrics and health over HTTP, HOST:PORT; port 0 takes a free one, empty: nowhere.") \
    X(server_text, http_token_file, TEXT, "",          0,   0,        NULL,                     \
      "File with the token that readers must bring; without it nothing but /healthz and /readyz is shown off loopback.") \
    X(uint64_t,    connections_max, U64,  "4096",      16,  1048576,  NULL,                        \
      "Connections to one port; beyond it the oldest that has said nothing ends for each new one; " \
      "raised, there is room for more members and for more strangers.")                            \
    X(server_text, admission,       TEXT, "off",       0,   0,        NULL,                        \
      "Which gradients a server takes: off takes all, finite refuses infinities and NaN, "         \
      "norm:BOUND also any chunk whose norm is above the bound; checks cost one pass over each.")  \
    X(int,         log_format,      ENUM, "text",      0,   0,        log_formats,                  \
      "text for people, or json: one object a line, with time, level, role and rank.")             \
    X(uint64_t,    io_threads,      U64,  "1",         1,   16,       NULL,                        \
      "Threads that move bytes; more help when several lanes are faster than one core.")
/* clang-format on */

typedef struct {
#define X(ctype, name, kind, dfl, min, max, choices, doc) ctype name;
    SERVER_SETTINGS(X)
#undef X
} server_settings;

extern const config_row server_settings_rows[];

/* BAD_SETTING and a sentence when some of them make no sense together. */
pen_status server_settings_check(const server_settings *s, pen_error *why);

#endif
