/* doctor.h - findings about this machine: one group of checks a file, all in one table.
 *
 * A check looks at one thing and says what it found with finding_add().  What lies in files (/proc, /sys) it reads
 * below `root`, so that tests show it machines that they made up.
 */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    FINDING_OK,   /* as it should be                                        */
    FINDING_NOTE, /* nothing is wrong; good to know, or not to be had here  */
    FINDING_LOOK, /* a job will be slow, or only works as long as it is small */
    FINDING_BAD   /* a job will fail                                        */
} finding_level;

typedef struct {
    finding_level level;
    const char *group, *what;    /* of the check */
    char text[400], remedy[300]; /* remedy: "" when there is nothing to do */
} finding;

enum { FINDINGS_MAX = 96 };

typedef struct {
    const char *root;   /* "" for this machine; else a folder that stands for / */
    const char *store;  /* the folder snapshots go to; "" is the one we are in  */
    const char *master; /* host of a scheduler; NULL: none                      */
    uint64_t master_port;
    const char *group, *what; /* of the check that runs now */
    size_t n;
    finding finding[FINDINGS_MAX]; /* more are dropped */
} doctor;

typedef struct {
    const char *group, *what;
    void (*look)(doctor *d);
    const char *doc; /* what it is about */
} doctor_check;

/* Ended by rows of zeros. */
extern const doctor_check doctor_host[], doctor_memory[], doctor_limits[], doctor_network[],
    doctor_disk[], doctor_device[], doctor_job[];
extern const doctor_check *const doctor_all[]; /* the tables above; ended by NULL */

/* remedy: what to do about it; NULL: nothing. */
void finding_add(doctor *d, finding_level level, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* All checks; the worst level is returned. */
finding_level doctor_run(doctor *d);

/* The first line of a file below root, without its end; false: it cannot be read. */
bool doctor_line(const doctor *d, const char *path, char *line, size_t size);
/* A number that a file holds; -1: there is none ("max"). */
int64_t doctor_number(const doctor *d, const char *path);
/* What follows "Key:" in a file of such lines, as a number; -1: it is not there. */
int64_t doctor_key(const doctor *d, const char *path, const char *key);

#endif
