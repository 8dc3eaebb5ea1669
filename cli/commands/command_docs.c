/* command_docs.c - `penstock docs PAGE`: the generated reference pages; scripts/docs.sh writes them to docs/. */
#include "cli/command.h"
#include "cli/pages/pages.h"
#include "common/base/stat.h"
#include "common/compute/device/device.h"
#include "common/compute/optim/optim.h"
#include "common/config_files/keys.h"
#include "common/launch/launch.h"
#include "common/net/metrics.h"
#include "common/net/transport/transport.h"
#include "common/offload/offload.h"
#include "scheduler/core/membership/member.h"
#include "scheduler/shell/scheduler_http.h"
#include "server/shard/core/sync/sync.h"
#include "worker/train/schedule/lr_schedule.h"
#include "worker/worker_settings.h"

#include <stdio.h>
#include <string.h>

static const char generated[] =
    "<!-- Written by `penstock docs`; edit the tables in the source instead. -->\n\n";

static void write_setting(const config_row *row, const char *readers, void *out)
{
    config_write_markdown(row, readers, out);
}

static void page_settings(FILE *out)
{
    fprintf(out, "# Settings\n\n%s", generated);
    fprintf(out,
            "A setting is a flag of `penstock run` and of the processes that read it (with `-` or "
            "`_`),\n"
            "an environment variable, a key of the file named by `PENSTOCK_CONFIG`, and, for "
            "workers, a\n"
            "string of `pen_init`. Later sources override earlier ones: default, program, file,\n"
            "environment, flag.\n");
    fprintf(out, "\n## Job\n\n"
                 "| flag | environment | read by | default | accepted | meaning |\n"
                 "|---|---|---|---|---|---|\n");
    command_each_setting(write_setting, out);
    fprintf(
        out,
        "\n## Program\n\nOnly the program can set these, as strings of `pen_init`; they are not "
        "flags, variables or keys of a file.\n\n"
        "| string of `pen_init` | default | accepts | meaning |\n|---|---|---|---|\n");
    for (const config_row *row = worker_promises_rows; row->name != NULL; row++) {
        char accepted[64];
        config_accepted(row, accepted, sizeof accepted);
        fprintf(out, "| `%s` | `%s` | %s | %s |\n", row->name, config_default(row), accepted,
                row->doc);
    }
}

static void page_environment(FILE *out)
{
    fprintf(out, "# Where rank and address come from\n\n%s", generated);
    fprintf(
        out,
        "Workers, servers and the scheduler read rank, world size and address from one table.\n"
        "`penstock env` prints what a process started in the same place would use, the source\n"
        "of each value, and what is ignored. `--role` shows the view of a server or of the\n"
        "scheduler.\n\n"
        "The first source wins:\n\n"
        "1. flags and `PENSTOCK_*`;\n"
        "2. torchrun's variables in the table below;\n"
        "3. the program (`pen_init`), or the file named by `PENSTOCK_CONFIG`;\n"
        "4. one other launcher: the first in the order of the table that started this process.\n\n"
        "Variables of any other launcher are ignored, so two worlds are never mixed.\n"
        "`WORLD_SIZE` may complete a launcher; if both give a number and they differ, the\n"
        "process fails. An incomplete world fails too: a worker with a rank but no address, or\n"
        "with an address but no rank. A worker without any of these variables trains alone.\n\n"
        "Local rank, local world size, node and number of nodes are optional: the scheduler\n"
        "derives them from the machine (boot id and host name, or `host_id`). A local rank\n"
        "without a local world size is kept if it fits the derived values. While the job runs,\n"
        "`penstock env` prints these as `from the scheduler`.\n\n"
        "Slurm's variables are used in a job step of several tasks that is not an interactive\n"
        "shell; under `mpirun` in a Slurm job Open MPI's are used. If torchrun's agent owns\n"
        "`MASTER_PORT`, the scheduler uses the next port. `DMLC_ROLE` must match the role of\n"
        "the process.\n\n");
    launch_write_markdown(out);
}

static void page_status(FILE *out)
{
    static const char *const remedies[] = {
        "none: success", "wait", "the caller", "try again", "rejoin", "the operator", "stop"};
    fprintf(out, "# Statuses\n\n%s| status | value | action by | meaning |\n|---|---|---|---|\n",
            generated);
#define PEN_X(name, value, remedy, text)                                                           \
    fprintf(out, "| `PEN_%s` | %d | %s | %s |\n", #name, value, remedies[PEN_ACT_##remedy], text);
    PEN_STATUS_LIST(PEN_X)
#undef PEN_X
}

static void write_stat(FILE *out, const stat_row *row, const char *kind)
{
    char metric[METRICS_NAME_BYTES];
    metrics_name(row, metric);
    if (kind == NULL) kind = row->kind == STAT_COUNTER ? "counter" : "gauge";
    if (strcmp(kind, "histogram") == 0) metric[strlen(metric) - strlen("_total")] = '\0';
    fprintf(out, "| `%s` | %s | %s | `%s` | %s |\n", row->name, kind, row->unit, metric, row->doc);
}

static void page_stats(FILE *out)
{
    fprintf(out, "# Counters\n\n%sRead with `pen_stat()`; shown by `penstock status --json`.\n\n",
            generated);
    fprintf(out, "| name | kind | unit | metric of servers and workers | meaning |\n"
                 "|---|---|---|---|---|\n");
    for (int i = 0; i < STAT_COUNT; i++) write_stat(out, &stat_rows[i], NULL);
    fprintf(
        out,
        "\n## Histograms\n\nMetrics of servers and workers, with power-of-two buckets; collected "
        "only while the setting `http` is given.\n\n"
        "| name | kind | unit | metric | meaning |\n|---|---|---|---|---|\n");
    for (int i = 0; i < STAT_SPREADS; i++) write_stat(out, &stat_spread_rows[i], "histogram");
    fprintf(out, "\n## Scheduler\n\nMetrics only ([design/metrics.md](design/metrics.md)).\n\n"
                 "| name | kind | unit | metric | meaning |\n|---|---|---|---|---|\n");
    for (const stat_row *row = scheduler_metric_rows; row->name != NULL; row++)
        write_stat(out, row, NULL);
}

static void page_optim(FILE *out)
{
    fprintf(out, "# Update rules\n\n%s", generated);
    optim_write_markdown(out);
}

static void page_schedules(FILE *out)
{
    fprintf(out, "# Learning rate schedules\n\n%s", generated);
    lr_schedule_write_markdown(out);
}

static void page_families(FILE *out)
{
    fprintf(
        out,
        "# Families\n\n%sEach family is a folder with a contract header, a registry and one file "
        "per member.\n",
        generated);
    fprintf(out,
            "\n## Transports (`common/net/transport/`)\n\n| scheme | description |\n|---|---|\n");
    for (int i = 0; transport_all[i] != NULL; i++)
        fprintf(out, "| `%s` | %s |\n", transport_all[i]->scheme, transport_all[i]->doc);
    fprintf(out, "\n## Consistency rules (`server/shard/core/sync/`)\n\n| rule | description "
                 "|\n|---|---|\n");
    for (int i = 0; sync_all[i] != NULL; i++)
        fprintf(out, "| `%s` | %s |\n", sync_all[i]->name, sync_all[i]->doc);
    fprintf(out,
            "\n## Offload targets (`common/offload/`)\n\n| target | description |\n|---|---|\n");
    for (int i = 0; offload_all[i] != NULL; i++)
        fprintf(out, "| `%s` | %s |\n", offload_all[i]->name, offload_all[i]->doc);
    fprintf(out,
            "\n## Devices (`common/compute/device/`)\n\n| device | description |\n|---|---|\n");
    for (int i = 0; device_all[i] != NULL; i++)
        fprintf(out, "| `%s` | %s |\n", device_all[i]->name, device_all[i]->doc);
}

static void page_config_keys(FILE *out)
{
    fprintf(out, "# Keys of configuration files\n\n%s", generated);
    fprintf(out,
            "What each key of a DeepSpeed JSON file and of an accelerate YAML file means to\n"
            "`penstock run`; [config-files.md](config-files.md) shows how to use the files. Keys\n"
            "without effect are reported once; an unknown key is an error.\n");
    fprintf(out, "\n## DeepSpeed (`--ds-config`)\n\n");
    keys_write_markdown(deepspeed_keys, out);
    fprintf(out, "\n## accelerate (`--config`)\n\n");
    keys_write_markdown(accelerate_keys, out);
}

/* clang-format off */
static const struct { const char *name; void (*write)(FILE *out); } pages[] = {
    {"settings.md", page_settings}, {"environment.md", page_environment}, {"status.md", page_status}, {"stats.md", page_stats}, {"optim.md", page_optim},
    {"schedules.md", page_schedules},
    {"families.md", page_families}, {"member.dot", member_write_dot}, {"config-keys.md", page_config_keys},
};
/* clang-format on */
enum { N_PAGES = sizeof pages / sizeof *pages };

static int print_help(void)
{
    char usage[2048];
    int n = snprintf(usage, sizeof usage,
                     "usage: penstock docs PAGE\n"
                     "       penstock docs man DIR      writes the man pages to DIR\n"
                     "       penstock docs completion   prints the bash completion\n\n"
                     "Pages:\n\n");
    for (size_t i = 0; i < N_PAGES; i++)
        n += snprintf(usage + n, sizeof usage - (size_t)n, "  %s\n", pages[i].name);
    return command_help(usage, NULL);
}

static int write_manual(const char *folder)
{
    size_t n;
    page *all = pages_collect(&n);
    pen_error why;
    if (all == NULL) return command_fail(1, "no memory for the man pages");
    const pen_status status = pages_write_manuals(all, n, folder, &why);
    pages_free(all, n);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}

static int write_completion(void)
{
    size_t n;
    page *all = pages_collect(&n);
    if (all == NULL) return command_fail(1, "no memory for the completion");
    pages_write_completion(all, n, stdout);
    pages_free(all, n);
    return 0;
}

int command_docs(int argc, char **argv)
{
    const char *names[N_PAGES];
    if (argc < 2 || command_asks_help(2, argv)) return print_help();
    if (strcmp(argv[1], "completion") == 0) return write_completion();
    if (strcmp(argv[1], "man") == 0 && argc == 3) return write_manual(argv[2]);
    if (strcmp(argv[1], "man") == 0)
        return command_fail(EXIT_USAGE, "missing DIR; use penstock docs man DIR");
    for (size_t i = 0; i < N_PAGES; i++) {
        names[i] = pages[i].name;
        if (strcmp(argv[1], pages[i].name) != 0) continue;
        pages[i].write(stdout);
        return 0;
    }
    return command_fail(EXIT_USAGE, "unknown page '%s'; did you mean '%s'?", argv[1],
                        command_nearest(argv[1], names, N_PAGES));
}
