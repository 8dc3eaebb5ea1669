/* scheduler_settings.h - the scheduler's settings; each is described in proto/settings.h. */
#ifndef SCHEDULER_SETTINGS_H
#define SCHEDULER_SETTINGS_H

#include "proto/settings.h"

/* clang-format off */
#define SCHEDULER_SETTINGS(X)                                                                                          \
    SETTING_JOB(X) SETTING_HOST(X) SETTING_TRACE(X) SETTING_TRACE_EVENTS(X) SETTING_PORT(X) SETTING_WORLD_SIZE(X)      \
    SETTING_SERVERS(X) SETTING_LEASE_MS(X) SETTING_DOWN_GRACE_MS(X) SETTING_INIT_TIMEOUT_MS(X) SETTING_ENCRYPTION(X) SETTING_TRANSPORT(X)   \
    SETTING_SECRET_FILE(X) SETTING_LOCAL_SOCKETS(X) SETTING_HTTP(X) SETTING_HTTP_TOKEN_FILE(X) SETTING_CONNECTIONS_MAX(X)                       \
    SETTING_ON_WORKER_LOSS(X) SETTING_WAIT_MS(X) SETTING_WORKERS_MIN(X) SETTING_WORKERS_MAX(X) SETTING_SERVERS_MAX(X)  \
    SETTING_REPLICAS(X) SETTING_LOG_FORMAT(X) SETTING_STATE(X) SETTING_GRACE_MS(X) SETTING_LOCAL_WORLD_SIZE(X)
/* clang-format on */

typedef struct {
    SCHEDULER_SETTINGS(CONFIG_FIELD)
} scheduler_settings;

extern const config_row scheduler_settings_rows[];

#endif
