/* server_settings.h - every knob of a server process, once. */
#ifndef SERVER_SETTINGS_H
#define SERVER_SETTINGS_H

#include "common/config.h"

typedef char server_text[CONFIG_TEXT_BYTES];

/* clang-format off */
/*    field        name             kind  default      min  max       choices  meaning */
#define SERVER_SETTINGS(X)                                                                         \
    X(server_text, master_addr,     TEXT, "127.0.0.1", 0,   0,        NULL,                        \
      "Name or address of the scheduler, or a whole address such as inproc://name.")               \
    X(uint64_t,    master_port,     U64,  "29400",     1,   65535,    NULL,                        \
      "TCP port of the scheduler.")                                                                \
    X(int64_t,     rank,            I64,  "-1",        -1,  1023,     NULL,                        \
      "Rank of this server; -1 takes the lowest that is free.")                                    \
    X(uint64_t,    shards,          U64,  "1",         1,   64,       NULL,                        \
      "Threads that hold parameters; more use more cores and cut the model finer.")                \
    X(server_text, job,             TEXT, "",          0,   0,        NULL,                        \
      "Name of the job; empty joins whatever job the scheduler has.")                              \
    X(server_text, host,            TEXT, "",          0,   0,        NULL,                        \
      "Name or address workers reach this server by; empty is 127.0.0.1 when the scheduler is on " \
      "loopback, else this host's name.")                                                          \
    X(server_text, store,           TEXT, "",          0,   0,        NULL,                        \
      "Directory of snapshots, one that all servers reach; empty keeps none.")                     \
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
    X(uint64_t,    io_threads,      U64,  "1",         1,   16,       NULL,                        \
      "Threads that move bytes; more help when several lanes are faster than one core.")
/* clang-format on */

typedef struct {
#define X(ctype, name, kind, dfl, min, max, choices, doc) ctype name;
    SERVER_SETTINGS(X)
#undef X
} server_settings;

extern const config_row server_settings_rows[];

#endif
