/* launch.h - who this process is in its job, from whatever launcher started it.
 *
 * One table (launch_names.c) says which variable of which launcher means what for which role; the same
 * table is what `penstock env` prints and docs/design/environment.md lists.  Launchers are looked at in its order:
 * what was set for Penstock, then RANK and friends, PET_*, DMLC_*, an Indexed Job, Slurm, MPI.
 *
 * The first launcher that is there says the numbers; its world is whole, and nothing of it is mixed with
 * another's.  Two exceptions, both usual in scripts: WORLD_SIZE, LOCAL_RANK and their like may complete what a launcher
 * has no word for (when both speak of the world's size they must agree), and MASTER_ADDR and MASTER_PORT come before a
 * launcher's own.
 * With no launcher at all a program is alone.
 * Pure: the environment is a function.
 */
#ifndef COMMON_LAUNCH_LAUNCH_H
#define COMMON_LAUNCH_LAUNCH_H

#include "penstock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef const char *(*launch_get)(const char *name); /* NULL when not set */

typedef enum { LAUNCH_WORKER = 1, LAUNCH_SERVER = 2, LAUNCH_SCHEDULER = 4 } launch_role;
enum { LAUNCH_ALL = 7 };

typedef enum {
    LAUNCH_RANK,
    LAUNCH_WORLD_SIZE,
    LAUNCH_LOCAL_RANK,
    LAUNCH_LOCAL_WORLD_SIZE,
    LAUNCH_NODE,
    LAUNCH_NODES,
    LAUNCH_SERVERS,
    LAUNCH_ADDR, /* of the scheduler */
    LAUNCH_PORT,
    LAUNCH_HOST, /* by which others reach this process */
    LAUNCH_ITEMS
} launch_item;

enum { LAUNCH_TEXT_BYTES = 256, LAUNCH_FROM_BYTES = 40, LAUNCH_IGNORED_MAX = 64 };

typedef struct {
    char text[LAUNCH_TEXT_BYTES]; /* "" when nobody says it */
    char from[LAUNCH_FROM_BYTES]; /* "SLURM_PROCID", "PENSTOCK_RANK", "--rank", "the default" */
} launch_value;

/* What the process was told itself.  `firm` comes before every launcher (flags, PENSTOCK_*); what is not firm is
 * the program's own word, behind RANK and friends and before all others. */
typedef struct {
    launch_role role;
    launch_value value[LAUNCH_ITEMS];
    bool is_firm[LAUNCH_ITEMS];
    bool
        is_port_final; /* the port is the scheduler's own, not a launcher's beside which it stands */
    bool is_external;  /* somebody else runs the scheduler, so rank 0 need not be where it is */
    int64_t ranks_max; /* of an elastic job: ranks up to here are possible; 0: the world's size */
} launch_told;

typedef struct {
    const char *name; /* the variable */
    const char *why;  /* "MASTER_ADDR comes first" */
} launch_ignored;

typedef struct {
    const char *launcher; /* "torchrun's names", "Slurm", ...; NULL: none */
    bool is_alone;        /* a worker without others */
    launch_value value[LAUNCH_ITEMS];
    uint32_t n_ignored;
    launch_ignored ignored[LAUNCH_IGNORED_MAX];
} launch_place;

/* BAD_SETTING names the variable that is missing, wrong or contradicts another: "RANK is set but WORLD_SIZE is
 * not; ...".  What is found until then is in *place. */
pen_status launch_resolve(const launch_told *told, launch_get get, launch_place *place,
                          pen_error *why);

/* A number that launch_resolve() has checked; `otherwise` when nobody says it. */
int64_t launch_number(const launch_place *place, launch_item item, int64_t otherwise);

/* Takes text as what the process was told; the name is its setting's.  "" is nothing. */
void launch_tell(launch_told *told, launch_item item, const char *setting, const char *text,
                 launch_get get);

const char *launch_item_name(launch_item item); /* "rank" */

void launch_write_markdown(FILE *out); /* for docs/design/environment.md */

#endif
