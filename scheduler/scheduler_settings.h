/* scheduler_settings.h - every knob of the scheduler, once. */
#ifndef SCHEDULER_SETTINGS_H
#define SCHEDULER_SETTINGS_H

#include "common/config.h"

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
    X(uint64_t,       warn_ms,         U64,  "30000",     10,  86400000, NULL,                     \
      "How long a barrier or reduction waits before those in it are told whom they wait for; "     \
      "raised, fewer lines and later news.")                                                       \
    X(int,            on_worker_loss,  ENUM, "fail",      0,   0,        scheduler_loss_choices,   \
      "What the death of a worker means: the job fails, goes on without it, or waits for its "     \
      "return.")
/* clang-format on */

typedef struct {
#define X(ctype, name, kind, dfl, min, max, choices, doc) ctype name;
    SCHEDULER_SETTINGS(X)
#undef X
} scheduler_settings;

extern const config_row scheduler_settings_rows[];

#endif
