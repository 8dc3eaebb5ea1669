/* doctor.h - findings about this machine: one group of checks per file, all in one table.
 *
 * A check examines one thing and reports it with finding_add().  Files of /proc and /sys are read below `root`, so that
 * tests can simulate machines.
 */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    FINDING_OK,   /* as expected */
    FINDING_NOTE, /* for information */
    FINDING_LOOK, /* a job may be slow, or fail when it is large */
    FINDING_BAD   /* a job will fail */
} finding_level;

typedef struct {
    finding_level level;
    const char *group, *what;    /* of the check */
    char text[400], remedy[300]; /* remedy: "": none */
} finding;

enum { FINDINGS_MAX = 160 };

typedef struct {
    const char *root;   /* "" for this machine; else a directory that replaces / */
    const char *store;  /* snapshot directory; "": the current one */
    const char *master; /* host of a scheduler; NULL: none */
    uint64_t master_port;
    const char *group, *what; /* of the running check */
    size_t n;
    finding finding[FINDINGS_MAX]; /* more are dropped */
} doctor;

typedef struct {
    const char *group, *what;
    void (*look)(doctor *d);
    const char *doc;
} doctor_check;

/* Each ends with a row of zeros. */
extern const doctor_check doctor_host[], doctor_memory[], doctor_limits[], doctor_network[],
    doctor_transports[], doctor_disk[], doctor_gpu[], doctor_job[];
extern const doctor_check *const doctor_all[]; /* the tables above; ended by NULL */

/* remedy: what to do; NULL: nothing. */
void finding_add(doctor *d, finding_level level, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Runs all checks; returns the worst level. */
finding_level doctor_run(doctor *d);

/* The first line of a file below root, without its newline; false: it cannot be read. */
bool doctor_line(const doctor *d, const char *path, char *line, size_t size);
/* The number in a file; -1: none ("max"). */
int64_t doctor_number(const doctor *d, const char *path);
/* The number after "Key:" in a file of such lines; -1: none. */
int64_t doctor_key(const doctor *d, const char *path, const char *key);

#endif
