/* command_env.c - `penstock env`: rank, world size and address that a process started here would use, and their source;
 * for a running job also what its scheduler derived. */
#include "cli/command.h"
#include "cli/job/control.h"
#include "scheduler/shell/scheduler.h"
#include "server/process/server_settings.h"
#include "common/base/why.h"
#include "worker/worker_env.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int role;
    bool json;
} env_settings;

static const char *const roles[]         = {"worker", "server", "scheduler", NULL};
static const launch_role role_of_index[] = {LAUNCH_WORKER, LAUNCH_SERVER, LAUNCH_SCHEDULER};

/* clang-format off */
static const config_row rows[] = {
    {"role", CONFIG_ENUM, offsetof(env_settings, role), "worker", 0, 0, roles,
     "Role of the process: worker, server or scheduler."},
    {"json", CONFIG_BOOL, offsetof(env_settings, json), "no", 0, 0, NULL,
     "Print JSON."},
    {0},
};
/* clang-format on */

static pen_status load(const config_row *table, void *settings, pen_error *why)
{
    config_defaults(table, settings);
    return command_read_environment(table, settings, why);
}

static pen_status tell(launch_role role, launch_told *told, pen_error *why)
{
    static worker_settings worker;
    static server_settings server;
    static scheduler_settings of_scheduler;
    pen_status status;
    if (role == LAUNCH_WORKER) {
        status = worker_settings_load(&worker, NULL, why);
        if (status == PEN_OK) worker_env_tell(&worker, config_env, told);
    } else if (role == LAUNCH_SERVER) {
        status = load(server_settings_rows, &server, why);
        if (status == PEN_OK) server_settings_tell(&server, told);
    } else {
        status = load(scheduler_settings_rows, &of_scheduler, why);
        if (status == PEN_OK) scheduler_tell(&of_scheduler, told);
    }
    return status;
}

/* ---- values from a running scheduler ------------------------------------------------------------------- */

enum { ASK_MS = 500 };

static void learn(launch_place *p, launch_item item, int64_t value)
{
    launch_value *v = &p->value[item];
    if (v->text[0] != '\0') return; /* the launcher's value has precedence */
    snprintf(v->text, sizeof v->text, "%lld", (long long)value);
    snprintf(v->from, sizeof v->from, "the scheduler");
}

static bool is_here(const wire_member_status *m)
{
    return m->member.role == PEN_WORKER && strcmp(m->state, "dead") != 0 &&
           strcmp(m->state, "left") != 0;
}

static void learn_from(launch_place *p, int32_t rank, const wire_control *status)
{
    const wire_member_status *all = status->u.status.member, *own = NULL;
    const uint32_t n = status->u.status.n_members;
    int32_t here = 0, last = -1;
    for (uint32_t i = 0; i < n; i++)
        if (is_here(&all[i]) && all[i].member.rank == rank) own = &all[i];
    if (own == NULL || strcmp(status->u.status.phase, "joining") == 0)
        return; /* others may still join */
    for (uint32_t i = 0; i < n; i++) {
        if (!is_here(&all[i])) continue;
        here += all[i].member.node == own->member.node;
        if (all[i].member.node > last) last = all[i].member.node;
    }
    learn(p, LAUNCH_LOCAL_RANK, own->member.local_rank);
    learn(p, LAUNCH_LOCAL_WORLD_SIZE, here);
    learn(p, LAUNCH_NODE, own->member.node);
    learn(p, LAUNCH_NODES, last + 1);
}

/* Local ranks and nodes that the launcher does not set come from the scheduler, if the job runs and it answers. */
static void ask_scheduler(launch_place *p)
{
    const bool is_whole = p->value[LAUNCH_LOCAL_RANK].text[0] != '\0' &&
                          p->value[LAUNCH_LOCAL_WORLD_SIZE].text[0] != '\0' &&
                          p->value[LAUNCH_NODES].text[0] != '\0';
    wire_control answer, question = {.kind = WIRE_STATUS_ASK};
    char address[LAUNCH_TEXT_BYTES + 40];
    control *link;
    const int32_t rank = (int32_t)launch_number(p, LAUNCH_RANK, -1);
    if (p->is_alone || is_whole || rank < 0) return;
    snprintf(address, sizeof address, "tcp://%s:%lld", p->value[LAUNCH_ADDR].text,
             (long long)launch_number(p, LAUNCH_PORT, 0));
    if (control_open(address, WIRE_OBSERVER, ASK_MS, &link, NULL) != PEN_OK) return;
    if (control_ask(link, &question, WIRE_STATUS, ASK_MS, &answer, NULL) == PEN_OK)
        learn_from(p, rank, &answer);
    control_close(link, 0);
}

static json_t *as_json(const env_settings *s, const launch_place *p, bool is_whole)
{
    json_t *values = json_object(), *ignored = json_object();
    for (int i = 0; i < LAUNCH_ITEMS; i++) {
        const launch_value *v = &p->value[i];
        if (v->text[0] == '\0') continue;
        const bool is_text = i == LAUNCH_ADDR || i == LAUNCH_HOST;
        json_t *value =
            is_text ? json_string(v->text) : json_integer(launch_number(p, (launch_item)i, 0));
        json_object_set_new(values, launch_item_name((launch_item)i),
                            json_pack("{so ss}", "value", value, "from", v->from));
    }
    for (uint32_t i = 0; i < p->n_ignored; i++)
        json_object_set_new(ignored, p->ignored[i].name, json_string(p->ignored[i].why));
    return json_pack("{ss ss? sb so so}", "role", roles[s->role], "launcher", p->launcher, "alone",
                     is_whole && p->is_alone, "values", values, "ignored", ignored);
}

static void print_json(const env_settings *s, const launch_place *p, const pen_error *why)
{
    json_t *all = as_json(s, p, why == NULL);
    if (why != NULL) json_object_set_new(all, "error", json_string(why->text));
    command_print_json(all, JSON_INDENT(2));
}

static void print_lines(const env_settings *s, const launch_place *p, bool is_whole)
{
    printf("role              %s\n", roles[s->role]);
    printf("launcher          %s\n", p->launcher != NULL ? p->launcher : "none");
    if (is_whole && p->is_alone) printf("alone             yes: trains as a single process\n");
    for (int i = 0; i < LAUNCH_ITEMS; i++)
        if (p->value[i].text[0] != '\0')
            printf("%-17s %-23s from %s\n", launch_item_name((launch_item)i), p->value[i].text,
                   p->value[i].from);
    for (uint32_t i = 0; i < p->n_ignored; i++) {
        const char *reason = p->ignored[i].why;
        const bool is_name = reason[0] != '\0' && strchr(reason, ' ') == NULL;
        printf("ignored           %s%s%s%s\n", p->ignored[i].name, reason[0] != '\0' ? ": " : "",
               reason, is_name ? " has precedence" : "");
    }
}

int command_env(int argc, char **argv)
{
    env_settings s;
    launch_told told;
    launch_place place;
    pen_error why;
    int rest;
    const char *usage = "usage: penstock env [--role worker|server|scheduler] [--json]";
    config_defaults(rows, &s);
    if (command_asks_help(argc, argv)) return command_help(usage, rows);
    if (config_from_argv(rows, &s, argc, argv, &rest, &why) != PEN_OK)
        return command_fail(EXIT_USAGE, "%s", why.text);
    if (rest < argc) return command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[rest]);
    if (tell(role_of_index[s.role], &told, &why) != PEN_OK)
        return command_fail(EXIT_USAGE, "%s", why.text);
    const pen_status status = launch_resolve(&told, config_env, &place, &why);
    if (status == PEN_OK && role_of_index[s.role] == LAUNCH_WORKER) ask_scheduler(&place);
    if (s.json)
        print_json(&s, &place, status != PEN_OK ? &why : NULL);
    else
        print_lines(&s, &place, status == PEN_OK);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}
