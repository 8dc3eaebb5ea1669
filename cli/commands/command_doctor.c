/* command_doctor.c - `penstock doctor`: what of this machine will make a job slow, or fail, and what to do about it. */
#include "cli/command.h"
#include "cli/commands/control.h"
#include "cli/doctor/doctor.h"
#include "common/net/auth/guard.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char master_addr[CONFIG_TEXT_BYTES], store[CONFIG_TEXT_BYTES], root[CONFIG_TEXT_BYTES];
    char secret_file[CONFIG_TEXT_BYTES];
    uint64_t master_port;
    int fail_on, encryption;
    bool json;
} doctor_settings;

static const char *const level_names[] = {"ok", "note", "look", "bad"};
static const char *const fail_names[]  = {"look", "bad", "never", NULL};

#define ROW(name, type, dfl, max, choices, doc)                                                    \
    CONFIG_ROW(doctor_settings, name, type, dfl, 0, max, choices, doc)
/* clang-format off */
static const config_row doctor_rows[] = {
    ROW(master_addr, TEXT, "",     0,     NULL,          "Host of the scheduler to try; empty: MASTER_ADDR, and without it none is tried.")
    ROW(master_port, U64,  "0",    65535, NULL,          "Port of the scheduler to try; 0: MASTER_PORT, or 29500.")
    ROW(store,       TEXT, "",     0,     NULL,          "Folder where snapshots will go; empty: the one we are in.")
    ROW(fail_on,     ENUM, "bad",  0,     fail_names,    "The mildest finding that makes the exit code 1: look (a job may be slow), bad (it will fail).")
    ROW(json,        BOOL, "no",   0,     NULL,          "Print JSON.")
    ROW(encryption,  ENUM, "auto", 0,     guard_choices, "How the scheduler is reached: auto as `penstock run` wrote down, on, or clear.")
    ROW(secret_file, TEXT, "",     0,     NULL,          "The job's secret; empty: that which `penstock run` wrote down.")
    ROW(root,        TEXT, "",     0,     NULL,          "A folder that stands for / when files of /proc, /sys and /dev are read.")
    {0},
};
/* clang-format on */

static void print(const doctor *d)
{
    int n[FINDING_BAD + 1] = {0};
    const char *group      = "";
    for (size_t i = 0; i < d->n; i++) {
        const finding *f = &d->finding[i];
        if (strcmp(group, f->group) != 0) printf("%s%s\n", i > 0 ? "\n" : "", f->group);
        group = f->group;
        printf("  %-4s  %-15s %s\n", level_names[f->level], f->what, f->text);
        if (f->remedy[0] != '\0') printf("  %-4s  %-15s -> %s\n", "", "", f->remedy);
        n[f->level]++;
    }
    printf("\n%d fine, %d to note, %d to look at, %d bad\n", n[FINDING_OK], n[FINDING_NOTE],
           n[FINDING_LOOK], n[FINDING_BAD]);
}

static void print_json(const doctor *d, finding_level worst)
{
    json_t *all = json_array();
    for (size_t i = 0; i < d->n; i++) {
        const finding *f = &d->finding[i];
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s, s:s}", "level",
                                             level_names[f->level], "group", f->group, "what",
                                             f->what, "text", f->text, "remedy", f->remedy));
    }
    json_t *page = json_pack("{s:s, s:o}", "worst", level_names[worst], "findings", all);
    json_dumpf(page, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(page);
}

int command_doctor(int argc, char **argv)
{
    doctor_settings s;
    int rest;
    int code = command_settings(
        doctor_rows, &s, argc, argv,
        "usage: penstock doctor [--master-addr HOST] [--master-port PORT] [--store DIR] "
        "[--json]\n\n"
        "Looks at processors, memory, limits, network, disk and devices of this machine, and with\n"
        "a scheduler at the way to it and to its job.  ok: as it should be; note: good to know;\n"
        "look: a job may be slow, or only works while it is small; bad: it will fail.",
        &rest);
    if (code >= 0) return code;
    if (rest < argc) return command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[rest]);
    const char *port = config_env("MASTER_PORT");
    if (s.master_port == 0) s.master_port = port != NULL ? strtoull(port, NULL, 10) : 29500;
    control_protect(s.encryption, s.secret_file);

    doctor *d = calloc(1, sizeof *d);
    if (d == NULL) return command_fail(1, "no memory");
    d->root        = s.root;
    d->store       = s.store;
    d->master      = s.master_addr[0] != '\0' ? s.master_addr : config_env("MASTER_ADDR");
    d->master_port = s.master_port;
    const finding_level worst = doctor_run(d);
    s.json ? print_json(d, worst) : print(d);
    free(d);
    return (s.fail_on == 0 && worst >= FINDING_LOOK) || (s.fail_on == 1 && worst == FINDING_BAD);
}
