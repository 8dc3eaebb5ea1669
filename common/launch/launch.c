/* launch.c - looks up each value in table order; refuses incomplete or contradictory environments. */
#include "common/launch/launch.h"
#include "common/base/why.h"
#include "common/launch/launch_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_MAX = 1048576, PORT_MAX = 65535 };
#define PORT_DEFAULT        "29500" /* torchrun's */
#define PORT_SERVER_DEFAULT "29400"
#define NO_LAUNCHER         LAUNCHERS

/* ---- words ----------------------------------------------------------------------------------- */
static const char *const items[LAUNCH_ITEMS] = {
    [LAUNCH_RANK]             = "rank",
    [LAUNCH_WORLD_SIZE]       = "world_size",
    [LAUNCH_LOCAL_RANK]       = "local_rank",
    [LAUNCH_LOCAL_WORLD_SIZE] = "local_world_size",
    [LAUNCH_NODE]             = "node",
    [LAUNCH_NODES]            = "nodes",
    [LAUNCH_SERVERS]          = "servers",
    [LAUNCH_ADDR]             = "master_addr",
    [LAUNCH_PORT]             = "master_port",
    [LAUNCH_HOST]             = "host",
};

const char *launch_item_name(launch_item item)
{
    return items[item];
}

static bool is_text(launch_item item)
{
    return item == LAUNCH_ADDR || item == LAUNCH_HOST;
}

static pen_status missing(const char *set, const char *unset, pen_error *why)
{
    return why_set(
        why, PEN_BAD_SETTING,
        "%s is set but %s is not; a job needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, "
        "a program on its own none of them",
        set, unset);
}

static pen_status check_value(launch_item item, const launch_value *v, pen_error *why)
{
    if (is_text(item) && strlen(v->text) == sizeof v->text - 1)
        return why_set(why, PEN_BAD_SETTING, "%s is too long for a host name", v->from);
    if (is_text(item) || v->text[0] == '\0') return PEN_OK;
    const long long max = item == LAUNCH_PORT ? PORT_MAX : NUMBER_MAX;
    char *end;
    errno                  = 0;
    const long long number = strtoll(v->text, &end, 10);
    if (errno == 0 && end != v->text && *end == '\0' && number >= 0 && number <= max) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING, "%s is '%.64s': not a number from 0 to %lld", v->from,
                   v->text, max);
}

int64_t launch_number(const launch_place *place, launch_item item, int64_t otherwise)
{
    const char *text = place->value[item].text;
    return text[0] != '\0' ? strtoll(text, NULL, 10) : otherwise;
}

static void set_value(launch_value *v, const char *text, const char *from)
{
    snprintf(v->text, sizeof v->text, "%s", text);
    snprintf(v->from, sizeof v->from, "%s", from);
}

void launch_tell(launch_told *told, launch_item item, const char *setting, const char *text,
                 launch_get get)
{
    char variable[LAUNCH_FROM_BYTES] = "PENSTOCK_", flag[LAUNCH_FROM_BYTES] = "--";
    if (text[0] == '\0') return;
    for (size_t v = 9, f = 2, i = 0; setting[i] != '\0' && v + 1 < sizeof variable; i++) {
        const bool is_letter = setting[i] >= 'a' && setting[i] <= 'z';
        variable[v++]        = is_letter ? (char)(setting[i] - 'a' + 'A') : setting[i];
        flag[f++]            = setting[i] == '_' ? '-' : setting[i];
    }
    const char *set      = get(variable);
    const bool is_set    = set != NULL && set[0] != '\0';
    const bool is_worker = told->role == LAUNCH_WORKER;
    told->is_firm[item]  = is_set || !is_worker;
    set_value(&told->value[item], text,
              is_set && (is_worker || strcmp(set, text) == 0) ? variable
              : is_worker                                     ? setting
                                                              : flag);
}

/* ---- one value ------------------------------------------------------------------------------- */
typedef struct {
    const launch_told *told;
    launch_get get;
    launch_place *place;
    launcher_id launcher;
} search;

static bool ask(const search *s, launcher_id launcher, launch_item item, launch_value *v)
{
    for (const launch_name *n = launch_names; n->name != NULL; n++) {
        if (n->launcher != launcher || n->item != item || (n->roles & (int)s->told->role) == 0)
            continue;
        const char *text = s->get(n->name);
        char value[LAUNCH_TEXT_BYTES];
        if (text == NULL || text[0] == '\0') continue;
        if (n->read != NULL && !n->read(s->told, s->get, text, value, sizeof value)) continue;
        set_value(v, n->read != NULL ? value : text, n->name);
        return true;
    }
    return false;
}

static void find_value(const search *s, launch_item item)
{
    launch_value *v          = &s->place->value[item];
    const launch_value *told = &s->told->value[item];
    if (told->text[0] != '\0' && s->told->is_firm[item])
        *v = *told;
    else if (!ask(s, LAUNCHER_PLAIN, item, v) && told->text[0] != '\0')
        *v = *told;
    else if (v->text[0] == '\0' && s->launcher != NO_LAUNCHER)
        ask(s, s->launcher, item, v);
}

/* A given rank, or RANK, overrides all other launchers; an incomplete RANK counts only without another launcher. */
static launcher_id choose_launcher(const search *s)
{
    const char *ignored = NULL;
    const bool has_rank = s->get("RANK") != NULL || s->told->value[LAUNCH_RANK].text[0] != '\0';
    if (s->told->role == LAUNCH_WORKER && has_rank) return LAUNCHER_PLAIN;
    for (int i = LAUNCHER_PLAIN + 1; i < LAUNCHERS; i++)
        if (launcher_rows[i].is_there(s->told, s->get, &ignored)) return (launcher_id)i;
    return launcher_rows[LAUNCHER_PLAIN].is_there(s->told, s->get, &ignored) ? LAUNCHER_PLAIN
                                                                             : NO_LAUNCHER;
}

/* ---- ignored variables ----------------------------------------------------------------------- */
static const char *why_ignored(const search *s, const launch_name *n)
{
    const char *reason       = NULL;
    const launch_value *v    = &s->place->value[n->item];
    const launcher_row *from = &launcher_rows[n->launcher];
    const bool is_there      = from->is_there(s->told, s->get, &reason);
    if (reason != NULL) return reason;
    if (v->text[0] != '\0') return v->from;
    if (!is_there || n->launcher == s->launcher || s->launcher == NO_LAUNCHER) return "";
    return launcher_rows[s->launcher].name;
}

static bool is_taken(const launch_place *place, const char *name)
{
    for (int i = 0; i < LAUNCH_ITEMS; i++)
        if (strcmp(place->value[i].from, name) == 0) return true;
    for (uint32_t i = 0; i < place->n_ignored; i++)
        if (strcmp(place->ignored[i].name, name) == 0) return true;
    return false;
}

static void list_ignored(const search *s)
{
    launch_place *p = s->place;
    for (const launch_name *n = launch_names; n->name != NULL; n++) {
        if ((n->roles & (int)s->told->role) == 0 || s->get(n->name) == NULL) continue;
        if (is_taken(p, n->name) || p->n_ignored == LAUNCH_IGNORED_MAX) continue;
        if (strcmp(n->name, "HOSTNAME") == 0) continue; /* set in every shell */
        p->ignored[p->n_ignored++] = (launch_ignored){n->name, why_ignored(s, n)};
    }
}

/* ---- consistency checks ---------------------------------------------------------------------- */
static const char *first_name(launcher_id launcher, launch_item item, launch_role role)
{
    for (const launch_name *n = launch_names; n->name != NULL; n++)
        if (n->launcher == launcher && n->item == item && (n->roles & (int)role) != 0)
            return n->name;
    return first_name(LAUNCHER_PLAIN, item, role);
}

/* A variable that shows the launcher. */
static const char *sign_of(const search *s)
{
    for (const launch_name *n = launch_names; n->name != NULL; n++)
        if (n->launcher == s->launcher && (n->roles & (int)s->told->role) != 0 &&
            s->get(n->name) != NULL)
            return n->name;
    return launcher_rows[s->launcher].name;
}

static pen_status check_roles(const search *s, pen_error *why)
{
    const char *role = s->get("DMLC_ROLE");
    const char *own  = s->told->role == LAUNCH_WORKER   ? "worker"
                       : s->told->role == LAUNCH_SERVER ? "server"
                                                        : "scheduler";
    if (role == NULL || strcmp(role, own) == 0) return PEN_OK;
    for (int i = 0; i < LAUNCH_ITEMS; i++)
        if (strncmp(s->place->value[i].from, "DMLC_", 5) == 0)
            return why_set(why, PEN_BAD_SETTING,
                           "DMLC_ROLE is '%.20s', but this process is a %s; start `penstock "
                           "scheduler`, `penstock server` or the program of the workers by it",
                           role, own);
    return PEN_OK;
}

static pen_status check_agreement(const search *s, pen_error *why)
{
    launch_value plain = {0}, other = {0};
    if (s->launcher == NO_LAUNCHER || s->launcher == LAUNCHER_PLAIN) return PEN_OK;
    if (s->told->is_firm[LAUNCH_WORLD_SIZE]) return PEN_OK;
    if (!ask(s, LAUNCHER_PLAIN, LAUNCH_WORLD_SIZE, &plain)) return PEN_OK;
    if (!ask(s, s->launcher, LAUNCH_WORLD_SIZE, &other)) return PEN_OK;
    if (strtoll(plain.text, NULL, 10) == strtoll(other.text, NULL, 10)) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "%s is %.20s but %s is %.20s; unset the wrong one, or set RANK as well, or "
                   "PENSTOCK_WORLD_SIZE",
                   plain.from, plain.text, other.from, other.text);
}

static pen_status check_pet(const search *s, pen_error *why)
{
    const char *each = s->place->value[LAUNCH_LOCAL_WORLD_SIZE].text; /* our own setting wins */
    if (s->launcher != LAUNCHER_PET || s->told->role != LAUNCH_WORKER) return PEN_OK;
    if (each[0] == '\0' || strcmp(each, "1") == 0) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "PET_NPROC_PER_NODE is %.20s; start the program with `penstock run`, which "
                   "starts so many of it",
                   each);
}

/* An incomplete environment would silently train N separate models: refuse it. */
static pen_status check_worker(const search *s, pen_error *why)
{
    launch_place *p        = s->place;
    const int64_t rank     = launch_number(p, LAUNCH_RANK, -1);
    const int64_t size     = launch_number(p, LAUNCH_WORLD_SIZE, -1);
    const launch_role role = LAUNCH_WORKER;
    p->is_alone            = true;
    if (rank < 0 && s->launcher == NO_LAUNCHER) return PEN_OK;
    if (rank < 0 && !launcher_rows[s->launcher].needs_rank) return PEN_OK;
    if (rank < 0) return missing(sign_of(s), first_name(s->launcher, LAUNCH_RANK, role), why);
    if (size < 0)
        return missing(p->value[LAUNCH_RANK].from, first_name(s->launcher, LAUNCH_WORLD_SIZE, role),
                       why);
    const int64_t most = s->told->ranks_max > size ? s->told->ranks_max : size;
    if (size < 1 || rank >= most)
        return why_set(why, PEN_BAD_SETTING,
                       "rank %lld is outside a world of %lld; ranks count from 0", (long long)rank,
                       (long long)most);
    const int64_t here  = launch_number(p, LAUNCH_LOCAL_WORLD_SIZE, -1);
    const int64_t local = launch_number(p, LAUNCH_LOCAL_RANK, -1);
    if (here >= 0 && local >= here)
        return why_set(why, PEN_BAD_SETTING,
                       "%s is %lld but %s is %lld; local ranks count from 0 on each host",
                       p->value[LAUNCH_LOCAL_RANK].from, (long long)local,
                       p->value[LAUNCH_LOCAL_WORLD_SIZE].from, (long long)here);
    p->is_alone = size == 1 && launch_number(p, LAUNCH_SERVERS, -1) <= 0;
    if (p->is_alone) return PEN_OK;
    if (p->value[LAUNCH_ADDR].text[0] == '\0')
        return missing(p->value[LAUNCH_RANK].from, "MASTER_ADDR", why);
    if (p->value[LAUNCH_PORT].text[0] == '\0' && s->launcher == LAUNCHER_PLAIN)
        return missing(p->value[LAUNCH_ADDR].from, "MASTER_PORT", why);
    return PEN_OK;
}

static void fill_defaults(const search *s)
{
    launch_value *addr = &s->place->value[LAUNCH_ADDR], *port = &s->place->value[LAUNCH_PORT];
    const bool is_server = s->told->role == LAUNCH_SERVER;
    if (s->place->is_alone || s->told->role == LAUNCH_SCHEDULER) return;
    if (addr->text[0] == '\0') set_value(addr, "127.0.0.1", "the default");
    if (port->text[0] == '\0')
        set_value(port, is_server ? PORT_SERVER_DEFAULT : PORT_DEFAULT, "the default");
}

pen_status launch_resolve(const launch_told *told, launch_get get, launch_place *place,
                          pen_error *why)
{
    *place            = (launch_place){0};
    search s          = {.told = told, .get = get, .place = place};
    pen_status status = PEN_OK;
    s.launcher        = choose_launcher(&s);
    place->launcher   = s.launcher != NO_LAUNCHER ? launcher_rows[s.launcher].name : NULL;
    for (int i = 0; i < LAUNCH_ITEMS; i++) find_value(&s, (launch_item)i);
    list_ignored(&s);
    for (int i = 0; status == PEN_OK && i < LAUNCH_ITEMS; i++)
        status = check_value((launch_item)i, &place->value[i], why);
    if (status == PEN_OK) status = check_pet(&s, why);
    if (status == PEN_OK) status = check_agreement(&s, why);
    if (status == PEN_OK) status = check_roles(&s, why);
    if (status == PEN_OK && told->role == LAUNCH_WORKER) status = check_worker(&s, why);
    if (status != PEN_OK) return status;
    fill_defaults(&s);
    /* Under torchrun's agent MASTER_PORT belongs to its own store: use the next port. */
    launch_value *port = &s.place->value[LAUNCH_PORT];
    const char *agent  = s.get("TORCHELASTIC_USE_AGENT_STORE");
    long number        = atol(port->text);
    if (s.told->role == LAUNCH_SCHEDULER || s.place->is_alone) return PEN_OK;
    if (!s.told->is_port_final && agent != NULL && strcmp(agent, "True") == 0) {
        snprintf(port->text, sizeof port->text, "%ld", ++number);
    }
    if (number > 0 && number <= PORT_MAX) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING, "MASTER_PORT is %ld: not a port", number);
}

void launch_tell_number(launch_told *told, launch_item item, const char *setting, int64_t value,
                        int64_t unsaid)
{
    char text[24] = "";
    if (value != unsaid) snprintf(text, sizeof text, "%" PRId64, value);
    launch_tell(told, item, setting, text, config_env);
}

pen_status launch_settle(const launch_told *told, const launch_setting *all, int n,
                         const config_row *rows, void *settings, pen_error *why)
{
    launch_place p;
    pen_status status = launch_resolve(told, config_env, &p, why);
    for (int i = 0; i < n && status == PEN_OK; i++) {
        const char *text = p.value[all[i].item].text;
        if (text[0] != '\0') status = config_set(rows, settings, all[i].setting, text, why);
    }
    return status;
}

/* ---- documentation --------------------------------------------------------------------------- */
void launch_write_markdown(FILE *out)
{
    fprintf(out, "| launcher | value | variable | read by | how |\n|---|---|---|---|---|\n");
    for (const launch_name *n = launch_names; n->name != NULL; n++)
        fprintf(out, "| %s | %s | `%s` |%s%s%s | %s |\n", launcher_rows[n->launcher].name,
                items[n->item], n->name, n->roles & LAUNCH_WORKER ? " worker" : "",
                n->roles & LAUNCH_SERVER ? " server" : "",
                n->roles & LAUNCH_SCHEDULER ? " scheduler" : "", n->how != NULL ? n->how : "");
}
