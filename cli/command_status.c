/* command_status.c - `penstock status` and `penstock snapshot`: asking a running job. */
#include "cli/command.h"
#include "cli/control.h"

#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    char master_addr[CONFIG_TEXT_BYTES];
    uint64_t master_port, timeout_ms;
    bool json;
} ask_settings;

static const config_row ask_rows[] = {
    {"master_addr", CONFIG_TEXT, offsetof(ask_settings, master_addr), "", 0, 0, NULL,
     "Host of the scheduler; empty: 127.0.0.1."},
    {"master_port", CONFIG_U64, offsetof(ask_settings, master_port), "0", 0, 65535, NULL,
     "Port of the scheduler; 0: that of the only job running here."},
    {"timeout_ms", CONFIG_U64, offsetof(ask_settings, timeout_ms), "5000", 100, 3600000, NULL,
     "Longest time to wait for an answer."},
    {"json", CONFIG_BOOL, offsetof(ask_settings, json), "no", 0, 0, NULL, "Print JSON."},
    {0},
};

static int open_job(ask_settings *s, int argc, char **argv, const char *usage, control **link)
{
    char address[400];
    pen_error why;
    int rest;
    int code = command_settings(ask_rows, s, argc, argv, usage, &rest);
    if (code >= 0) return code;
    if (rest < argc) return command_fail(EXIT_USAGE, "'%s' is one word too many", argv[rest]);
    if (control_find_job(s->master_addr, s->master_port, address, sizeof address, &why) != PEN_OK ||
        control_open(address, WIRE_OBSERVER, s->timeout_ms, link, &why) != PEN_OK)
        return command_fail(1, "%s", why.text);
    return -1;
}

/* Sends `ask` and waits for a message of `kind`; others are passed over. */
static pen_status ask(control *link, wire_control *question, wire_control_kind kind,
                      uint64_t timeout_ms, wire_control *answer, pen_error *why)
{
    pen_status status = control_send(link, question, why);
    while (status == PEN_OK) {
        status = control_receive(link, timeout_ms, answer, why);
        if (status == PEN_OK && answer->kind == kind) return PEN_OK;
        if (status == PEN_OK && answer->kind == WIRE_VERDICT) {
            *why = answer->u.verdict;
            return answer->u.verdict.status;
        }
    }
    return status;
}

static const char *role_name(int32_t role)
{
    switch (role) {
    case PEN_WORKER: return "worker";
    case PEN_SERVER: return "server";
    case PEN_SCHEDULER: return "scheduler";
    case WIRE_LAUNCHER: return "launcher";
    default: return "observer";
    }
}

static double stat_of(const wire_member_status *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_stats; i++)
        if (strcmp(m->stat[i].name, name) == 0) return m->stat[i].value;
    return 0;
}

static void print_table(const wire_control *answer)
{
    printf("job %s   %s   mode %s   step %" PRId64 "   epoch %" PRIu64 "   up %.0f s   snapshot %s",
           answer->u.status.job, answer->u.status.phase, answer->u.status.mode,
           answer->u.status.step, answer->u.status.epoch, answer->u.status.uptime_s,
           answer->u.status.snapshot < 0 ? "none" : "");
    if (answer->u.status.snapshot >= 0) printf("of step %" PRId64, answer->u.status.snapshot);
    printf("   refused frames %" PRIu64 "\n\n", answer->u.status.refused);
    printf("%-10s %4s  %-16s %8s  %-8s %8s %9s %10s %10s  %s\n", "role", "rank", "host", "pid",
           "state", "step", "seen", "push MB", "pull MB", "in");
    for (uint32_t i = 0; i < answer->u.status.n_members; i++) {
        const wire_member_status *m = &answer->u.status.member[i];
        printf("%-10s %4d  %-16.16s %8d  %-8s %8" PRId64 " %7.1f s %10.1f %10.1f  %s",
               role_name(m->member.role), m->member.rank, m->member.host, m->member.pid, m->state,
               m->step, m->last_seen_s, stat_of(m, "push.bytes") / 1e6,
               stat_of(m, "pull.bytes") / 1e6, m->call);
        if (m->call[0] != '\0') printf(" for %.1f s", m->call_s);
        printf("\n");
    }
    for (uint32_t i = 0; i < answer->u.status.n_waiting; i++)
        printf("\nwaiting  %s\n", answer->u.status.waiting[i]);
}

static json_t *member_json(const wire_member_status *m)
{
    json_t *stats = json_object(), *addresses = json_array();
    for (uint32_t i = 0; i < m->n_stats; i++)
        json_object_set_new(stats, m->stat[i].name, json_real(m->stat[i].value));
    for (uint32_t i = 0; i < m->member.n_addresses; i++)
        json_array_append_new(addresses, json_string(m->member.address[i]));
    return json_pack("{s:s, s:i, s:s, s:i, s:s, s:I, s:f, s:s, s:f, s:o, s:o}", "role",
                     role_name(m->member.role), "rank", m->member.rank, "host", m->member.host,
                     "pid", m->member.pid, "state", m->state, "step", (json_int_t)m->step,
                     "last_seen_s", m->last_seen_s, "call", m->call, "call_s", m->call_s,
                     "addresses", addresses, "stats", stats);
}

static void print_json(const wire_control *answer)
{
    json_t *members = json_array(), *waiting = json_array();
    for (uint32_t i = 0; i < answer->u.status.n_members; i++)
        json_array_append_new(members, member_json(&answer->u.status.member[i]));
    for (uint32_t i = 0; i < answer->u.status.n_waiting; i++)
        json_array_append_new(waiting, json_string(answer->u.status.waiting[i]));
    json_t *all = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:I, s:I, s:o, s:o}", "job", answer->u.status.job,
        "phase", answer->u.status.phase, "mode", answer->u.status.mode, "step",
        (json_int_t)answer->u.status.step, "term", (json_int_t)answer->u.status.term, "epoch",
        (json_int_t)answer->u.status.epoch, "uptime_s", answer->u.status.uptime_s, "snapshot",
        (json_int_t)answer->u.status.snapshot, "refused", (json_int_t)answer->u.status.refused,
        "members", members, "waiting", waiting);
    json_dumpf(all, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(all);
}

int command_status(int argc, char **argv)
{
    ask_settings s;
    control *link;
    wire_control question = {.kind = WIRE_STATUS_ASK}, answer;
    pen_error why         = {0};
    int code =
        open_job(&s, argc, argv,
                 "usage: penstock status [--json] [--master-addr HOST --master-port PORT]", &link);
    if (code >= 0) return code;
    pen_status status = ask(link, &question, WIRE_STATUS, s.timeout_ms, &answer, &why);
    if (status == PEN_OK) s.json ? print_json(&answer) : print_table(&answer);
    control_close(link, 0);
    if (status == PEN_AGAIN)
        return command_fail(1, "the scheduler did not answer within %" PRIu64 " ms", s.timeout_ms);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}

int command_snapshot(int argc, char **argv)
{
    ask_settings s;
    control *link;
    wire_control question = {.kind = WIRE_SNAPSHOT_PLEASE}, answer;
    pen_error why         = {0};
    int code              = open_job(&s, argc, argv,
                                     "usage: penstock snapshot [--timeout-ms MS]   asks the running job for one",
                                     &link);
    if (code >= 0) return code;
    uint64_t patience_ms =
        s.timeout_ms < 60000 ? 60000 : s.timeout_ms; /* the next step, and the disk */
    pen_status status = ask(link, &question, WIRE_SNAPSHOT_DONE, patience_ms, &answer, &why);
    if (status == PEN_OK && answer.u.snapshot_done.status != PEN_OK) {
        status = answer.u.snapshot_done.status;
        snprintf(why.text, sizeof why.text, "%s", answer.u.snapshot_done.text);
    }
    if (status == PEN_OK && s.json)
        printf("{\"step\": %" PRId64 "}\n", answer.u.snapshot_done.step);
    if (status == PEN_OK && !s.json)
        printf("snapshot of step %" PRId64 " is complete\n", answer.u.snapshot_done.step);
    control_close(link, 0);
    if (status == PEN_AGAIN)
        return command_fail(1, "no snapshot within %" PRIu64 " ms", patience_ms);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}
