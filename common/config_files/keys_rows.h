/* keys_rows.h - rows that both tables of keys have: fixed values, and keys without effect. */
#ifndef COMMON_CONFIG_FILES_KEYS_ROWS_H
#define COMMON_CONFIG_FILES_KEYS_ROWS_H

#include "common/config_files/keys.h"

#define ALWAYS(path, usual, stage, doc)                                                            \
    {                                                                                              \
        path, KEY_SWITCH, KEY_ALWAYS, NULL, NULL, AUTO_NEVER, usual, stage, doc                    \
    }
#define IDLE(path, usual, doc)                                                                     \
    {                                                                                              \
        path, KEY_ANY, KEY_IDLE, NULL, NULL, AUTO_NEVER, usual, 0, doc                             \
    }

#endif
