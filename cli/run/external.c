/* external.c - takes what other members of the job were told, and compares it. */
#include "cli/run/external.h"
#include "common/base/config.h"
#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

enum { SERVERS_MAX = 10000, REPLICAS_MAX = 2, PORT_MAX = 65535, WORLD_MAX = 1 << 20 };

/* The first of these variables that is set; NULL: none. */
static const char *first_set(const char *const names[2], const char **name)
{
    for (int i = 0; i < 2; i++) {
        const char *text = names[i] != NULL ? config_env(names[i]) : NULL;
        *name            = names[i];
        if (text != NULL && text[0] != '\0') return text;
    }
    return NULL;
}

/* Leaves *number alone if no variable is set. */
static pen_status take_number(const char *const names[2], long max, int *number, pen_error *why)
{
    const char *name, *text = first_set(names, &name);
    char *end;
    if (text == NULL) return PEN_OK;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > max)
        return why_set(why, PEN_BAD_SETTING, "%s is '%.64s', but must be a number from 0 to %ld",
                       name, text, max);
    *number = (int)value;
    return PEN_OK;
}

static bool is_chosen(void)
{
    const char *text = config_env("PENSTOCK_SCHEDULER");
    return text != NULL && strcmp(text, "external") == 0;
}

pen_status external_take(run_options *o, pen_error *why)
{
    static const char *const address[2]        = {"PENSTOCK_MASTER_ADDR", "MASTER_ADDR"},
                             *const port[2]    = {"PENSTOCK_MASTER_PORT", "MASTER_PORT"},
                             *const servers[2] = {"PENSTOCK_SERVERS"},
                             *const copies[2]  = {"PENSTOCK_REPLICAS"};
    const char *name, *text = first_set(address, &name);
    pen_status status = PEN_OK;
    o->is_external    = is_chosen() && !o->emits;
    if (!o->is_external) return PEN_OK;
    /* Trainer names the pod of rank 0 in torchrun's variables, whatever the job says. */
    if (o->is_address_torchruns && config_env("PENSTOCK_MASTER_ADDR") != NULL) {
        o->master_addr[0] = '\0';
        o->master_port    = -1;
    }
    if (o->master_addr[0] == '\0' && text != NULL)
        snprintf(o->master_addr, sizeof o->master_addr, "%s", text);
    if (o->master_port < 0) status = take_number(port, PORT_MAX, &o->master_port, why);
    if (status == PEN_OK && !o->has_servers)
        status = take_number(servers, SERVERS_MAX, &o->servers, why);
    if (status == PEN_OK && o->replicas == 0)
        status = take_number(copies, REPLICAS_MAX, &o->replicas, why);
    if (!o->has_servers) o->servers_max = o->servers;
    return status;
}

pen_status external_check(const run_options *o, pen_error *why)
{
    static const char *const world[2] = {"PENSTOCK_WORLD_SIZE", "WORLD_SIZE"};
    const int here                    = o->nproc * o->nnodes;
    int told                          = here;
    if (!o->is_external) return PEN_OK;
    if (o->standalone)
        return why_set(why, PEN_BAD_SETTING,
                       "--standalone and --scheduler external contradict each other");
    if (o->master_port == 0)
        return why_set(why, PEN_BAD_SETTING, "--scheduler external needs its --master-port");
    const pen_status status = take_number(world, WORLD_MAX, &told, why);
    if (status != PEN_OK || told == here) return status;
    return why_set(why, PEN_BAD_SETTING,
                   "the world size is %d (PENSTOCK_WORLD_SIZE or WORLD_SIZE), but --nnodes %d x "
                   "--nproc-per-node %d are %d workers",
                   told, o->nnodes, o->nproc, here);
}
