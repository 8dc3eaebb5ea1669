#include "scheduler/scheduler_settings.h"

#include "common/log.h"

static const char *const scheduler_loss_choices[] = {"fail", "continue", "wait", NULL};

const config_row scheduler_settings_rows[] = {
#define X(ctype, name, kind, dfl, min, max, choices, doc)                                          \
    {#name, CONFIG_##kind, offsetof(scheduler_settings, name), dfl, min, max, choices, doc},
    SCHEDULER_SETTINGS(X)
#undef X
        {0},
};
