/* server_settings.h - the settings of a server; proto/settings.h describes each. */
#ifndef SERVER_SETTINGS_H
#define SERVER_SETTINGS_H

#include "common/launch/launch.h"
#include "proto/settings.h"

/* clang-format off */
#define SERVER_SETTINGS(X)                                                                                             \
    SETTING_MASTER_ADDR(X) SETTING_MASTER_PORT(X) SETTING_RANK(X) SETTING_SHARDS(X) SETTING_JOB(X) SETTING_HOST(X)     \
    SETTING_HOST_ID(X) SETTING_TRACE(X) SETTING_TRACE_EVENTS(X) SETTING_STORE(X) SETTING_SNAPSHOT_KEEP(X)              \
    SETTING_SNAPSHOT_COPY_BYTES_MAX(X) SETTING_OFFLOAD_OPTIMIZER(X) SETTING_OFFLOAD_PARAM(X) SETTING_OFFLOAD_PATH(X)   \
    SETTING_SUB_GROUP(X) SETTING_FRESH(X) SETTING_INIT_TIMEOUT_MS(X) SETTING_LEASE_MS(X) SETTING_DOWN_GRACE_MS(X)      \
    SETTING_ENCRYPTION(X) SETTING_TRANSPORT(X) SETTING_SECRET_FILE(X) SETTING_HTTP(X) SETTING_HTTP_TOKEN_FILE(X) SETTING_CONNECTIONS_MAX(X) \
    SETTING_ADMISSION(X) SETTING_LOG_FORMAT(X) SETTING_IO_THREADS(X) SETTING_LOCAL_SOCKETS(X)         \
    SETTING_PLUGIN(X) SETTING_HANDLER_TIMEOUT_MS(X)
/* clang-format on */

typedef struct {
    SERVER_SETTINGS(CONFIG_FIELD)
} server_settings;

extern const config_row server_settings_rows[];

/* Passes them to launch_resolve(). */
void server_settings_tell(const server_settings *s, launch_told *told);

/* Fills in rank, scheduler address and so on from the launcher's variables, where no setting is given.  BAD_SETTING
 * names the variable. */
pen_status server_settings_place(server_settings *s, pen_error *why);

/* BAD_SETTING with a sentence if some contradict each other. */
pen_status server_settings_check(const server_settings *s, pen_error *why);

#endif
