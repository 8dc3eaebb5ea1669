/* command_docs.c - `penstock docs PAGE`: the generated reference pages; scripts/docs.sh writes them to docs/. */
#include "cli/command.h"
#include "cli/config/keys.h"
#include "common/device/device.h"
#include "common/optim/optim.h"
#include "common/stat.h"
#include "common/tier/tier.h"
#include "common/transport/transport.h"
#include "scheduler/member.h"
#include "scheduler/scheduler_settings.h"
#include "server/server_settings.h"
#include "server/sync/sync.h"
#include "worker/train/lr_schedule.h"
#include "worker/worker_settings.h"

#include <stdio.h>
#include <string.h>

static const char generated[] =
    "<!-- Written by `penstock docs`; edit the tables in the source instead. -->\n\n";

static void page_settings(FILE *out)
{
    fprintf(out, "# Settings\n\n%s", generated);
    fprintf(out, "Each is a flag of the process it belongs to and of `penstock run` (with `-` or "
                 "`_`), a variable of the "
                 "environment, a key of the file that `PENSTOCK_CONFIG` names, and, for workers, a "
                 "string of `pen_init`. "
                 "Later wins: default, program, file, environment, flag.\n");
    fprintf(out, "\n## Of a worker\n\n");
    config_write_markdown(worker_settings_rows, out);
    fprintf(out, "\n## Of a server\n\n");
    config_write_markdown(server_settings_rows, out);
    fprintf(out, "\n## Of the scheduler\n\n");
    config_write_markdown(scheduler_settings_rows, out);
}

static void page_status(FILE *out)
{
    static const char *const remedies[] = {
        "nobody: done", "wait", "the caller", "try again", "rejoin", "the operator", "stop"};
    fprintf(out, "# Statuses\n\n%s| status | value | who must act | meaning |\n|---|---|---|---|\n",
            generated);
#define PEN_X(name, value, remedy, text)                                                           \
    fprintf(out, "| `PEN_%s` | %d | %s | %s |\n", #name, value, remedies[PEN_ACT_##remedy], text);
    PEN_STATUS_LIST(PEN_X)
#undef PEN_X
}

static void page_stats(FILE *out)
{
    fprintf(out, "# Counters\n\n%sRead with `pen_stat()`; shown by `penstock status --json`.\n\n",
            generated);
    fprintf(out, "| name | unit | meaning |\n|---|---|---|\n");
    for (int i = 0; i < STAT_COUNT; i++)
        fprintf(out, "| `%s` | %s | %s |\n", stat_rows[i].name, stat_rows[i].unit,
                stat_rows[i].doc);
}

static void page_optim(FILE *out)
{
    fprintf(out, "# Update rules\n\n%s", generated);
    optim_write_markdown(out);
}

static void page_schedules(FILE *out)
{
    fprintf(out, "# Schedules of the rate\n\n%s", generated);
    lr_schedule_write_markdown(out);
}

static void page_families(FILE *out)
{
    fprintf(out,
            "# Families\n\n%sEach is a folder with a contract header, a registry and one file per "
            "member.\n",
            generated);
    fprintf(out, "\n## Transports (`common/transport/`)\n\n| scheme | what it is |\n|---|---|\n");
    for (int i = 0; transport_all[i] != NULL; i++)
        fprintf(out, "| `%s` | %s |\n", transport_all[i]->scheme, transport_all[i]->doc);
    fprintf(out, "\n## Consistency rules (`server/sync/`)\n\n| rule | what it is |\n|---|---|\n");
    for (int i = 0; sync_all[i] != NULL; i++)
        fprintf(out, "| `%s` | %s |\n", sync_all[i]->name, sync_all[i]->doc);
    fprintf(
        out,
        "\n## Places outside of memory (`common/tier/`)\n\n| place | what it is |\n|---|---|\n");
    for (int i = 0; tier_all[i] != NULL; i++)
        fprintf(out, "| `%s` | %s |\n", tier_all[i]->name, tier_all[i]->doc);
    fprintf(out, "\n## Devices (`common/device/`)\n\n| device | what it is |\n|---|---|\n");
    for (int i = 0; device_all[i] != NULL; i++)
        fprintf(out, "| `%s` | %s |\n", device_all[i]->name, device_all[i]->doc);
}

static void page_config_keys(FILE *out)
{
    fprintf(out, "# Keys of configuration files\n\n%s", generated);
    fprintf(out, "What each key of a DeepSpeed JSON file and of an accelerate YAML file means to "
                 "`penstock run`; how to use them is in "
                 "[config-files.md](config-files.md). Keys without effect are told once; any other "
                 "key is an error.\n");
    fprintf(out, "\n## DeepSpeed (`--ds-config`)\n\n");
    keys_write_markdown(deepspeed_keys, out);
    fprintf(out, "\n## accelerate (`--config`)\n\n");
    keys_write_markdown(accelerate_keys, out);
}

/* clang-format off */
static const struct { const char *name; void (*write)(FILE *out); } pages[] = {
    {"settings.md", page_settings}, {"status.md", page_status}, {"stats.md", page_stats}, {"optim.md", page_optim},
    {"schedules.md", page_schedules},
    {"families.md", page_families}, {"member.dot", member_write_dot}, {"config-keys.md", page_config_keys},
};
/* clang-format on */
enum { N_PAGES = sizeof pages / sizeof *pages };

int command_docs(int argc, char **argv)
{
    for (size_t i = 0; i < N_PAGES && argc > 1; i++) {
        if (strcmp(argv[1], pages[i].name) != 0) continue;
        pages[i].write(stdout);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0) {
        const char *names[N_PAGES];
        for (size_t i = 0; i < N_PAGES; i++) names[i] = pages[i].name;
        return command_fail(EXIT_USAGE, "unknown page '%s'; did you mean '%s'?", argv[1],
                            command_nearest(argv[1], names, N_PAGES));
    }
    printf("usage: penstock docs PAGE\n\n");
    for (size_t i = 0; i < N_PAGES; i++) printf("  %s\n", pages[i].name);
    return 0;
}
