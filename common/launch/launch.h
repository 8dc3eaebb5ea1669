/* launch.h - this process's place in its job, from its launcher.
 *
 * One table (launch_names.c) says what each launcher's variables mean for each role.  `penstock env` prints it and
 * docs/environment.md lists it.  Launchers are tried in table order: Penstock's own variables, then RANK
 * and friends, PET_*, DMLC_*, an Indexed Job, Slurm, MPI.
 *
 * The first launcher present gives all numbers; they are never mixed with another's.  Scripts usually need two
 * exceptions: WORLD_SIZE, LOCAL_RANK etc. may add what a launcher lacks (two world sizes must agree), and
 * MASTER_ADDR and MASTER_PORT override a launcher's own.  Without a launcher, the program is a job of one.  Pure:
 * the environment is a function.
 */
#ifndef COMMON_LAUNCH_LAUNCH_H
#define COMMON_LAUNCH_LAUNCH_H

#include "common/base/config.h"

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
    LAUNCH_HOST, /* address of this process for others */
    LAUNCH_ITEMS
} launch_item;

enum { LAUNCH_TEXT_BYTES = 256, LAUNCH_FROM_BYTES = 40, LAUNCH_IGNORED_MAX = 64 };

typedef struct {
    char text[LAUNCH_TEXT_BYTES]; /* "" if not given */
    char from[LAUNCH_FROM_BYTES]; /* "SLURM_PROCID", "PENSTOCK_RANK", "--rank", "the default" */
} launch_value;

/* Values given directly.  Firm ones (flags, PENSTOCK_*) override every launcher; others come from the program,
 * after RANK and friends and before all other launchers. */
typedef struct {
    launch_role role;
    launch_value value[LAUNCH_ITEMS];
    bool is_firm[LAUNCH_ITEMS];
    bool is_port_final; /* the port is the scheduler's own, not a launcher's */
    bool is_external;   /* an external scheduler, possibly not on rank 0's host */
    int64_t ranks_max;  /* of an elastic job: upper bound of ranks; 0: the world size */
} launch_told;

typedef struct {
    const char *name; /* the variable */
    const char *why;  /* "MASTER_ADDR comes first" */
} launch_ignored;

typedef struct {
    const char *launcher; /* "torchrun's names", "Slurm", ...; NULL: none */
    bool is_alone;        /* a worker in a job of one */
    launch_value value[LAUNCH_ITEMS];
    uint32_t n_ignored;
    launch_ignored ignored[LAUNCH_IGNORED_MAX];
} launch_place;

/* BAD_SETTING names the missing, wrong or contradictory variable: "RANK is set but WORLD_SIZE is not; ...".
 * *place then has the values found so far. */
pen_status launch_resolve(const launch_told *told, launch_get get, launch_place *place,
                          pen_error *why);

/* A number checked by launch_resolve(); `otherwise` if not given. */
int64_t launch_number(const launch_place *place, launch_item item, int64_t otherwise);

/* Adds a directly given value under its setting's name.  "" is ignored. */
void launch_tell(launch_told *told, launch_item item, const char *setting, const char *text,
                 launch_get get);

/* The same with a number, unless it is `unsaid`; from the environment. */
void launch_tell_number(launch_told *told, launch_item item, const char *setting, int64_t value,
                        int64_t unsaid);

typedef struct {
    launch_item item;
    const char *setting;
} launch_setting;

/* Resolves *told and stores these values as settings, which checks them again. */
pen_status launch_settle(const launch_told *told, const launch_setting *all, int n,
                         const config_row *rows, void *settings, pen_error *why);

const char *launch_item_name(launch_item item); /* "rank" */

void launch_write_markdown(FILE *out); /* for docs/environment.md */

#endif
