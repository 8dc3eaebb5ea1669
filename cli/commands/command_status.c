/* command_status.c - `penstock status`: the state of a running job. */
#include "cli/command.h"
#include "cli/job/headline.h"
#include "cli/commands/waits.h"
#include "cli/job/control.h"
#include "cli/job/job_note.h"
#include "cli/job/member_pid.h"
#include "common/base/clock.h"
#include "common/base/why.h"
#include "proto/status_json.h"
#include "proto/stuck.h"

#include <ctype.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    CONTROL_PLACE(CONFIG_FIELD, "", "")
    CONTROL_PROTECTION(CONFIG_FIELD)
    bool json, stuck, all;
    config_text pid;
} ask_settings;

#define ROW(...) CONFIG_ROW(ask_settings, __VA_ARGS__)
/* clang-format off */
static const config_row ask_rows[] = {
    CONTROL_PLACE(ROW, "5000", "Maximum time to wait for an answer.")
    ROW(json,  BOOL, "no", 0, 0, NULL, "Print JSON.")
    ROW(stuck, BOOL, "no", 0, 0, NULL, "Show the last collective call of each worker, and which ranks have not entered it.")
    ROW(all,   BOOL, "no", 0, 0, NULL, "List launchers and other commands that are connected, too.")
    ROW(pid,   TEXT, "",   0, 0, NULL, "worker RANK, server RANK or scheduler: print its process id, if it runs on this host.")
    CONTROL_PROTECTION(ROW)
    {0},
};
/* clang-format on */

typedef struct {
    ask_settings s;
    const char *rank; /* the word after --pid ROLE; NULL: none */
    control *link;
} asking;

/* The word after --pid ROLE; flags may follow it.  Returns the number of words that are left. */
static int take_rank(asking *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const int at = strcmp(argv[i], "--pid") == 0 ? i + 2 : i + 1;
        if (strncmp(argv[i], "--pid", 5) != 0 || (argv[i][5] != '\0' && argv[i][5] != '='))
            continue;
        if (at >= argc || (argv[at][0] == '-' && !isdigit((unsigned char)argv[at][1]))) return argc;
        a->rank = argv[at];
        memmove(&argv[at], &argv[at + 1], (size_t)(argc - at) * sizeof *argv); /* with the NULL */
        return argc - 1;
    }
    return argc;
}

static int open_job(asking *a, int argc, char **argv, const char *usage)
{
    pen_error why;
    ask_settings *s = &a->s;
    argc            = take_rank(a, argc, argv);
    int code        = command_settings(ask_rows, s, argc, argv, usage, NULL);
    if (code >= 0) return code;
    control_protect(s->encryption, s->secret_file);
    if (control_open_job(s->job, s->master_addr, s->master_port, s->timeout_ms, &a->link, &why) !=
        PEN_OK)
        return command_fail(1, "%s", why.text);
    return -1;
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

static void print_member(const wire_member_status *m, bool has_servers)
{
    char first[HEADLINE_AMOUNT_BYTES], second[HEADLINE_AMOUNT_BYTES] = "", step[24] = "";
    if (m->step >= 0) snprintf(step, sizeof step, "%" PRId64, m->step);
    headline_amount(first, headline_stat(m, has_servers ? "push.bytes" : "coll.bytes"));
    if (has_servers) headline_amount(second, headline_stat(m, "pull.bytes"));
    printf("%-8s %4d  %-16.16s %8d  %-8s %8s %8.1f s %9s", status_role_name(m->member.role),
           m->member.rank, m->member.host, m->member.pid, m->state, step, m->last_seen_s, first);
    if (has_servers) printf(" %9s", second);
    printf(" %8.1f s  %s", headline_stat(m, "waited_for_s"), m->call);
    if (m->call[0] != '\0') printf(" for %.1f s", m->call_s);
    printf("\n");
}

static void print_table(const asking *a, const wire_control *answer)
{
    char line[HEADLINE_BYTES];
    job_note note;
    bool has_servers = false;
    headline_write(answer, line);
    printf("%s   view %" PRIu64 "   up %.0f s   snapshot %s", line, answer->u.status.epoch,
           answer->u.status.uptime_s, answer->u.status.snapshot < 0 ? "none" : "");
    if (answer->u.status.snapshot >= 0) printf("of step %" PRId64, answer->u.status.snapshot);
    printf("   refused frames %" PRIu64 "   %s\n", answer->u.status.refused,
           control_protection(a->link));
    if (control_note(a->link, &note) && note.http[0] != '\0') printf("page %s/\n", note.http);
    for (uint32_t i = 0; i < answer->u.status.n_members; i++)
        has_servers |= answer->u.status.member[i].member.role == PEN_SERVER;
    printf("\n%-8s %4s  %-16s %8s  %-8s %8s %10s %9s", "role", "rank", "host", "pid", "state",
           "step", "seen", has_servers ? "pushed" : "sent");
    if (has_servers) printf(" %9s", "pulled");
    printf(" %10s  %s\n", "waited for", "in");
    for (uint32_t i = 0; i < answer->u.status.n_members; i++)
        if (answer->u.status.member[i].member.rank >= 0 || a->s.all)
            print_member(&answer->u.status.member[i], has_servers);
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
    job_note note;
    if (strcmp(a->s.pid, "scheduler") == 0) {
        if (!control_note(a->link, &note) || note.scheduler <= 0)
            return why_set(why, PEN_NOT_FOUND,
                           "the scheduler of job '%s' was not started by a `penstock run` here",
                           status->u.status.job);
        printf("%d\n", (int)note.scheduler);
        return PEN_OK;
    }
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
    a->s.json ? print_json(status) : print_table(a, status);
    return PEN_OK;
}

int command_status(int argc, char **argv)
{
    asking a              = {0};
    wire_control question = {.kind = WIRE_STATUS_ASK}, answer;
    pen_error why         = {0};
    const int code =
        open_job(&a, argc, argv,
                 "usage: penstock status [--job NAME] [--all] [--stuck] [--json] [--pid ROLE RANK] "
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
