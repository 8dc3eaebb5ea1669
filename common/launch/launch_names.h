/* launch_names.h - the table of launchers and their variables, for launch.c only. */
#ifndef COMMON_LAUNCH_LAUNCH_NAMES_H
#define COMMON_LAUNCH_LAUNCH_NAMES_H

#include "common/launch/launch.h"

typedef enum {
    LAUNCHER_PLAIN, /* RANK and friends; the others follow in lookup order */
    LAUNCHER_PET,
    LAUNCHER_DMLC,
    LAUNCHER_KUBERNETES,
    LAUNCHER_SLURM,
    LAUNCHER_OMPI,
    LAUNCHER_PMI,
    LAUNCHERS
} launcher_id;

typedef struct {
    const char *name;
    /* Whether this launcher started this process.  *ignored: why not, if its variables are set anyway. */
    bool (*is_there)(const launch_told *told, launch_get get, const char **ignored);
    bool needs_rank; /* a worker without a rank is an error, not a job of one */
} launcher_row;

typedef struct {
    launcher_id launcher;
    launch_item item;
    int roles; /* of launch_role */
    const char *name;
    /* Converts the variable's text; NULL: copies it.  False: no value. */
    bool (*read)(const launch_told *told, launch_get get, const char *text, char *value,
                 size_t size);
    const char *how; /* what `read` does, for the documentation */
} launch_name;

extern const launcher_row launcher_rows[LAUNCHERS];
extern const launch_name
    launch_names[]; /* ends with a row of zeros; for each item the first value wins */

#endif
