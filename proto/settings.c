/* settings.c - the words of settings that have several. */
#include "proto/settings.h"

const char *const settings_loss_rules[] = {"fail", "continue", "wait", NULL};
const char *const settings_orders[]     = {"no", "yes", "node", NULL};
const char *const settings_offload[]    = {"none", "cpu", "server", "nvme", NULL};

#define NAME(name, ...) {#name, CONFIG_TEXT, 0, "", 0, 0, NULL, "Read by another process."},
/* clang-format off */
const config_row settings_foreign[] = {
    NAME(role) NAME(position_fd) SETTING_WORKERS_MIN(NAME) SETTING_SERVERS_MAX(NAME) SETTING_WAIT_MS(NAME)
    SETTING_CONNECTIONS_MAX(NAME) SETTING_IO_THREADS(NAME) SETTING_DOWN_GRACE_MS(NAME) SETTING_GRACE_MS(NAME)
    SETTING_ADMISSION(NAME) SETTING_SHARDS(NAME) SETTING_REPLICAS(NAME) SETTING_STATE(NAME) SETTING_SNAPSHOT_COPY_BYTES_MAX(NAME)
    SETTING_PLUGIN(NAME) SETTING_HANDLER_TIMEOUT_MS(NAME) {0}};
/* clang-format on */
