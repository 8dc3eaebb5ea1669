/* command_status.c - `penstock status`: the state of a running job. */
#include "cli/command.h"
#include "cli/commands/waits.h"
#include "cli/job/control.h"
#include "cli/job/member_pid.h"
#include "common/base/clock.h"
#include "common/base/why.h"
#include "proto/status_json.h"
#include "proto/stuck.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    CONTROL_PLACE(CONFIG_FIELD, "", "")
    CONTROL_PROTECTION(CONFIG_FIELD)
    bool json, stuck;
    config_text pid;
} ask_settings;

#define ROW(...) CONFIG_ROW(ask_settings, __VA_ARGS__)
/* clang-format off */
static const config_row ask_rows[] = {
    CONTROL_PLACE(ROW, "5000", "Maximum time to wait for an answer.")
    ROW(json,  BOOL, "no", 0, 0, NULL, "Print JSON.")
    ROW(stuck, BOOL, "no", 0, 0, NULL, "Show the last collective call of each worker, and which ranks have not entered it.")
    ROW(pid,   TEXT, "",   0, 0, NULL, "ROLE (worker or server), followed by a rank: print its process id, if it runs on this host.")
    CONTROL_PROTECTION(ROW)
    {0},
};
/* clang-format on */

typedef struct {
    ask_settings s;
    const char *rank; /* the word after --pid ROLE; NULL: none */
    control *link;
} asking;

static int open_job(asking *a, int argc, char **argv, const char *usage)
{
    pen_error why;
    int rest;
    ask_settings *s = &a->s;
    int code        = command_settings(ask_rows, s, argc, argv, usage, &rest);
    if (code >= 0) return code;
    if (s->pid[0] != '\0' && rest < argc) a->rank = argv[rest++];
    if (rest < argc) return command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[rest]);
    control_protect(s->encryption, s->secret_file);
    if (control_open_job(s->master_addr, s->master_port, s->timeout_ms, &a->link, &why) != PEN_OK)
        return command_fail(1, "%s", why.text);
    return -1;
}

static double stat_of(const wire_member_status *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_stats; i++)
        if (strcmp(m->stat[i].name, name) == 0) return m->stat[i].value;
    return 0;
}

/* "server 1 serves 2 shards, has copies of 2, receives 0" where there are copies, or were moves. */
static void print_copies(const wire_control *answer)
{
    uint32_t lines = 0;
    for (uint32_t m = 0; m < answer->u.status.n_members; m++) {
        const wire_member *member    = &answer->u.status.member[m].member;
        uint32_t n[WIRE_LEARNER + 1] = {0};
        const char *state            = answer->u.status.member[m].state;
        if (member->role != PEN_SERVER || !strcmp(state, "left") || !strcmp(state, "dead"))
            continue;
        for (uint32_t i = 0; i < answer->u.status.n_replicas; i++) {
            const wire_replica *copy = &answer->u.status.replica[i];
            if (copy->server == member->rank) n[copy->role]++;
        }
        printf("%sserver %d serves %u shard%s", lines++ ? "" : "\n", member->rank, n[WIRE_PRIMARY],
               n[WIRE_PRIMARY] == 1 ? "" : "s");
        if (n[WIRE_BACKUP]) printf(", has copies of %u", n[WIRE_BACKUP]);
        if (n[WIRE_LEARNER]) printf(", receives %u", n[WIRE_LEARNER]);
        printf("\n");
    }
}

static void print_table(const wire_control *answer, const char *protection)
{
    printf("job %s   %s   mode %s   step %" PRId64 "   view %" PRIu64 "   up %.0f s   snapshot %s",
           answer->u.status.job, answer->u.status.phase, answer->u.status.mode,
           answer->u.status.step, answer->u.status.epoch, answer->u.status.uptime_s,
           answer->u.status.snapshot < 0 ? "none" : "");
    if (answer->u.status.snapshot >= 0) printf("of step %" PRId64, answer->u.status.snapshot);
    printf("   refused frames %" PRIu64 "   %s\n\n", answer->u.status.refused, protection);
    printf("%-10s %4s  %-16s %8s  %-8s %8s %9s %10s %10s %10s  %s\n", "role", "rank", "host", "pid",
           "state", "step", "seen", "push MB", "pull MB", "waited for", "in");
    for (uint32_t i = 0; i < answer->u.status.n_members; i++) {
        const wire_member_status *m = &answer->u.status.member[i];
        printf("%-10s %4d  %-16.16s %8d  %-8s %8" PRId64 " %7.1f s %10.1f %10.1f %8.1f s  %s",
               status_role_name(m->member.role), m->member.rank, m->member.host, m->member.pid,
               m->state, m->step, m->last_seen_s, stat_of(m, "push.bytes") / 1e6,
               stat_of(m, "pull.bytes") / 1e6, stat_of(m, "waited_for_s"), m->call);
        if (m->call[0] != '\0') printf(" for %.1f s", m->call_s);
        printf("\n");
    }
    print_copies(answer);
    waits_print(answer, stdout);
}

static void print_json(const wire_control *answer)
{
    char *text = status_json(answer);
    printf("%s\n", text != NULL ? text : "{}");
    free(text);
}

/* A process that hangs may not answer; prints the answers received by then. */
static pen_status ask_stuck(control *link, const wire_control *status, const ask_settings *s,
                            pen_error *why)
{
    stuck *all            = stuck_create();
    wire_control question = {.kind = WIRE_RECORD_ASK, .u.record_ask = {.id = 1}}, answer;
    const uint64_t end    = clock_ms(&clock_real) + s->timeout_ms;
    if (all == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the flight recorders of all workers");
    stuck_take_status(all, status);
    pen_status result = control_send(link, &question, why);
    while (result == PEN_OK && !stuck_is_whole(all)) {
        const uint64_t now = clock_ms(&clock_real);
        result             = now < end ? control_receive(link, end - now, &answer, why) : PEN_AGAIN;
        if (result == PEN_OK && answer.kind == WIRE_RECORD) stuck_take_record(all, &answer);
    }
    if (result == PEN_AGAIN) result = PEN_OK;
    if (result == PEN_OK) s->json ? stuck_print_json(all, stdout) : stuck_print(all, stdout);
    stuck_destroy(all);
    return result;
}

static pen_status print_pid(const asking *a, const wire_control *status, pen_error *why)
{
    pid_t pid;
    const char *colon       = strrchr(control_address(a->link), ':');
    const uint16_t port     = (uint16_t)(colon != NULL ? atoi(colon + 1) : 0);
    const pen_status result = member_pid(status, a->s.pid, a->rank, port, &pid, why);
    if (result == PEN_OK) printf("%d\n", (int)pid);
    return result;
}

static pen_status answer_user(const asking *a, const wire_control *status, pen_error *why)
{
    if (a->s.pid[0] != '\0') return print_pid(a, status, why);
    if (a->s.stuck) return ask_stuck(a->link, status, &a->s, why);
    a->s.json ? print_json(status) : print_table(status, control_protection(a->link));
    return PEN_OK;
}

int command_status(int argc, char **argv)
{
    asking a              = {0};
    wire_control question = {.kind = WIRE_STATUS_ASK}, answer;
    pen_error why         = {0};
    const int code        = open_job(&a, argc, argv,
                                     "usage: penstock status [--stuck] [--json] [--pid ROLE RANK] "
                                            "[--master-addr HOST --master-port PORT]");
    if (code >= 0) return code;
    pen_status status = control_ask(a.link, &question, WIRE_STATUS, a.s.timeout_ms, &answer, &why);
    if (status == PEN_OK) status = answer_user(&a, &answer, &why);
    control_close(a.link, 0);
    if (status == PEN_AGAIN)
        return command_fail(1, "the scheduler did not answer within %" PRIu64 " ms",
                            a.s.timeout_ms);
    if (status == PEN_INVALID_ARGUMENT) return command_fail(EXIT_USAGE, "%s", why.text);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}
