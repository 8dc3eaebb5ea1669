/* config_table.h - a table with one setting of every type. */
#ifndef TESTS_UNIT_CONFIG_TABLE_H
#define TESTS_UNIT_CONFIG_TABLE_H

#include "common/base/config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    uint64_t lease_ms, park_bytes_max;
    int64_t offset;
    double lr, clip;
    bool nesterov;
    int mode, order;
    char store[CONFIG_TEXT_BYTES];
} settings;

static const char *const modes[]  = {"local", "ps-bsp", "ps-ssp", NULL};
static const char *const orders[] = {"no", "yes", "node", NULL};

/* clang-format off */
#define ROW(field, type, dfl, min, max, choices, doc) \
    {#field, CONFIG_##type, offsetof(settings, field), dfl, min, max, choices, doc}
static const config_row rows[] = {
    ROW(lease_ms,       U64,  "3000",  100, 600000,             NULL,  "Time without a heartbeat before a worker is removed; lower finds failures sooner but mistakes a long stall for a death."),
    ROW(park_bytes_max, U64,  "64m",   0,   9007199254740992.0, NULL,  "Room for contributions that came early."),
    ROW(offset,         I64,  "0",     -10, 10,                 NULL,  "Where to begin | or to end."),
    ROW(lr,             F64,  "nan",   0,   1e6,                NULL,  "Rate."),
    ROW(clip,           F64,  "inf",   0,   INFINITY,           NULL,  "Largest norm."),
    ROW(nesterov,       BOOL, "no",    0,   0,                  NULL,  "Look ahead."),
    ROW(mode,           ENUM, "local", 0,   0,                  modes, "Who adds gradients up."),
    ROW(order,          ENUM, "yes",   0,   0,                  orders, "In which order."),
    ROW(store,          TEXT, "",      0,   0,                  NULL,  "Folder of snapshots."),
    {0},
};
static const config_row other_rows[] = {
    {"port", CONFIG_U64, 0, "1", 1, 65535, NULL, "Port."},
    {0},
};

static inline settings defaults(void)
{
    settings s;
    memset(&s, 0, sizeof s);
    config_defaults(rows, &s);
    return s;
}

#endif
