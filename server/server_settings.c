/* server_settings.c - the rows of the settings table. */
#include "server/server_settings.h"

const config_row server_settings_rows[] = {
#define X(ctype, name, kind, dfl, min, max, choices, doc)                                          \
    {#name, CONFIG_##kind, offsetof(server_settings, name), dfl, min, max, choices, doc},
    SERVER_SETTINGS(X)
#undef X
        {0},
};
