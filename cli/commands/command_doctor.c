/* command_doctor.c - `penstock doctor`: what on this machine makes a job slow or fail, with remedies. */
#include "cli/command.h"
#include "cli/doctor/doctor.h"
#include "cli/job/control.h"
#include "common/net/auth/auth.h"

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

static const char *const level_names[] = {"ok", "info", "note", "bad"};
static const char *const fail_names[]  = {"note", "bad", "never", NULL};

#define ROW(name, type, dfl, max, choices, doc)                                                    \
    CONFIG_ROW(doctor_settings, name, type, dfl, 0, max, choices, doc)
/* clang-format off */
static const config_row doctor_rows[] = {
    ROW(master_addr, TEXT, "",     0,     NULL,          "Host of the scheduler to test; empty: MASTER_ADDR, if set.")
    ROW(master_port, U64,  "0",    65535, NULL,          "Port of the scheduler to test; 0: MASTER_PORT, or 29500.")
    ROW(store,       TEXT, "",     0,     NULL,          "Snapshot directory; empty: the current directory.")
    ROW(fail_on,     ENUM, "bad",  0,     fail_names,    "Mildest finding with exit code 1: note (a job may be slow), bad (it will fail), or never.")
    ROW(json,        BOOL, "no",   0,     NULL,          "Print JSON.")
    ROW(encryption,  ENUM, "auto", 0,     auth_choices, "Encryption to the scheduler: auto (as recorded by `penstock run`), on, or clear.")
    ROW(secret_file, TEXT, "",     0,     NULL,          "File with the job's secret; empty: as recorded by `penstock run`.")
    ROW(root,        TEXT, "",     0,     NULL,          "Directory that replaces / for files of /proc, /sys and /dev.")
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
    printf("\n%d ok, %d note, %d look, %d bad\n", n[FINDING_OK], n[FINDING_NOTE], n[FINDING_LOOK],
           n[FINDING_BAD]);
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
    command_print_json(page, JSON_COMPACT);
}

int command_doctor(int argc, char **argv)
{
    doctor_settings s;
    const int code = command_settings(
        doctor_rows, &s, argc, argv,
        "usage: penstock doctor [--master-addr HOST] [--master-port PORT] [--store DIR] "
        "[--json]\n\n"
        "Checks processors, memory, limits, network, disk and devices of this machine.  With a\n"
        "scheduler it also checks the connections to it and to its job.  ok: as expected; note: "
        "for\n"
        "information; look: a job may be slow, or fail when it is large; bad: a job will fail.",
        NULL);
    if (code >= 0) return code;
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
