/* scheduler_settings.h - every knob of the scheduler, once. */
#ifndef SCHEDULER_SETTINGS_H
#define SCHEDULER_SETTINGS_H

#include "common/config.h"
#include "common/guard.h"

enum { SCHEDULER_LOSS_FAIL, SCHEDULER_LOSS_CONTINUE, SCHEDULER_LOSS_WAIT };

typedef char scheduler_text[CONFIG_TEXT_BYTES];

/* clang-format off */
/*    field           name             kind  default      min  max       choices          meaning */
#define SCHEDULER_SETTINGS(X)                                                                      \
    X(scheduler_text, job,             TEXT, "",          0,   0,        NULL,                     \
      "Name of the job; empty takes it from the first process that joins, and processes of "       \
      "another job are turned away.")                                                              \
    X(scheduler_text, host,            TEXT, "127.0.0.1", 0,   0,        NULL,                     \
      "Name or address to listen at; anything but loopback lets other machines join.")             \
    X(scheduler_text, trace,           TEXT, "",          0,   0,        NULL,                     \
      "File of a timeline: this process writes its part into the folder FILE.parts, and "          \
      "`penstock trace merge` makes FILE of the parts; empty writes none.")                        \
    X(uint64_t,       trace_events,    U64,  "65536",     64,  16777216, NULL,                     \
      "With trace: records kept of each thread, 48 bytes each; the oldest are lost.")              \
    X(uint64_t,       port,            U64,  "0",         0,   65535,    NULL,                     \
      "TCP port to listen at; 0 takes a free one.")                                                \
    X(uint64_t,       world_size,      U64,  "0",         0,   16384,    NULL,                     \
      "Number of workers; 0 takes it from the first worker that joins.")                           \
    X(uint64_t,       servers,         U64,  "0",         0,   1024,     NULL,                     \
      "Number of servers; 0 takes it from the first worker that joins.")                           \
    X(uint64_t,       lease_ms,        U64,  "10000",     100, 3600000,  NULL,                     \
      "Silence after which a process is declared dead; raised, long stalls survive but a lost "    \
      "host is noticed later.")                                                                    \
    X(uint64_t,       down_grace_ms,   U64,  "1000",      0,   600000,   NULL,                     \
      "How long a broken connection may take to come back before the process behind it is "        \
      "declared dead; raised, networks may hiccup but a killed process is noticed later.")         \
    X(uint64_t,       init_timeout_ms, U64,  "300000",    100, 86400000, NULL,                     \
      "How long the first who joins waits for the last; raised, slow starts succeed but a "        \
      "missing process is named later.")                                                           \
    X(int,            encryption,      ENUM, "auto",      0,   0,        guard_choices,            \
      "Whether traffic is encrypted; auto does so off loopback and wherever secret_file is given, clear never does. On loopback, and wherever secret_file is given, every process proves that it belongs to the job.") \
    X(scheduler_text, secret_file,     TEXT, "",          0,   0,        NULL,                     \
      "File with the secret of the job, the same for all its processes and readable by its owner " \
      "alone; penstock keygen makes one.")                                                         \
    X(scheduler_text, http,            TEXT, "",          0,   0,        NULL,                     \
      "Where the scheduler shows its metrics and health over HTTP, HOST:PORT; port 0 takes a free one, empty: nowhere.") \
    X(scheduler_text, http_token_file, TEXT, "",          0,   0,        NULL,                     \
      "File with the token that readers must bring; without it nothing but /healthz and /readyz is shown off loopback.") \
    X(uint64_t,       connections_max, U64,  "4096",      16,  1048576,  NULL,                     \
      "Connections to one port; beyond it the oldest that has said nothing ends for each new one; " \
      "raised, there is room for more members and for more strangers.")                            \
    X(int,            on_worker_loss,  ENUM, "fail",      0,   0,        scheduler_loss_choices,   \
      "What the death of a worker means: the job fails, goes on without it, or (with servers) "    \
      "waits for it to come back.")                                                                \
    X(uint64_t,       wait_ms,         U64,  "300000",    100, 86400000, NULL,                     \
      "With on_worker_loss=wait: how long a dead worker may take to come back; raised, slow "      \
      "restarts succeed but a worker that never comes is noticed later.")                          \
    X(uint64_t,       workers_min,     U64,  "0",         0,   16384,    NULL,                     \
      "With on_worker_loss=continue or workers_max: the job fails when fewer than these live; 0 "  \
      "is one.")                                                                                   \
    X(uint64_t,       workers_max,     U64,  "0",         0,   16384,    NULL,                     \
      "Worker ranks that may be there at once in a job with servers, in which workers then join "  \
      "and leave while it trains; 0: as many as it begins with, and none joins.")                  \
    X(uint64_t,       servers_max,     U64,  "0",         0,   1024,     NULL,                     \
      "Servers that may be there at once; the model is cut finely enough for so many, and more "   \
      "may come while it trains; 0: as many as it begins with.")                                   \
    X(uint64_t,       replicas,        U64,  "0",         0,   2,        NULL,                     \
      "Copies of every shard beside the one that serves it, each on another server; so many "      \
      "servers may die at once without a loss, and every push costs so many transfers more.")      \
    X(int,            log_format,      ENUM, "text",      0,   0,        log_formats,               \
      "text for people, or json: one object a line, with time, level, role and rank.")             \
    X(scheduler_text, state,           TEXT, "",          0,   0,        NULL,                     \
      "Folder in which the scheduler keeps what it must know after a crash; started again with "   \
      "it, on the same port, it goes on where it was.  Empty: its death ends the job.")            \
    X(uint64_t,       grace_ms,        U64,  "60000",     1000, 86400000, NULL,                    \
      "With state: how long the others go on without a scheduler before they give up.")
/* clang-format on */

typedef struct {
#define X(ctype, name, kind, dfl, min, max, choices, doc) ctype name;
    SCHEDULER_SETTINGS(X)
#undef X
} scheduler_settings;

extern const config_row scheduler_settings_rows[];

#endif
