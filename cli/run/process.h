/* process.h - a child of the launcher: its process group, its output, its exit. */
#ifndef CLI_RUN_PROCESS_H
#define CLI_RUN_PROCESS_H

#include "common/launch/position.h"
#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { PROCESS_TAIL_LINES = 20, PROCESS_LINE_BYTES = 16384, PROCESS_ENV_MAX = 48 };

/* One stream of a child: split into lines, each written to the terminal in one piece and to a file. */
typedef struct {
    int fd;         /* of the pipe; -1 = none left to read */
    FILE *file;     /* NULL = not kept */
    FILE *terminal; /* NULL = not shown */
    char line[PROCESS_LINE_BYTES];
    size_t line_size;
    char tail[PROCESS_TAIL_LINES][256]; /* ring of the last lines */
    uint64_t lines;
} process_stream;

typedef struct {
    int32_t role, rank, local_rank; /* rank: of its role */
    char name[32];                  /* "worker 1" */
    char prefix[32];                /* "[1] " */
    pid_t pid;                      /* 0 = not started or reaped */
    pid_t ended_pid;                /* once ended */
    bool ended, reported;
    int restarts;               /* restarts of this role and rank */
    uint64_t due_ms;            /* not 0: restart time after its end */
    bool is_leaving;            /* the job was scaled down: it may exit */
    bool lost;                  /* a worker the job continues without */
    int exit_code, exit_signal; /* one of them, once ended */
    double started_s, ended_s;
    uint64_t order; /* 1 = the first that ended */
    process_stream out, err;
    char err_path[512];
    launch_position *position; /* of a worker; NULL: none */
    bool has_position;         /* once ended: the next two */
    int64_t step;
    char call[POSITION_CALL_BYTES];
} process;

typedef struct {
    const char *name, *value;
} process_env;

/* Zeroed; NULL: no memory.  Children do not get it: else each start would copy the pages of all before.  n > 0. */
process *process_array_new(size_t n);
void process_array_free(process *all, size_t n);

/* Starts argv (searched in PATH, then in the examples beside this binary) in a new process group that dies with
 * this process.  env is added to the environment. */
pen_status process_start(process *p, char *const *argv, const process_env *env, size_t n_env,
                         pen_error *why);

/* Reads what the child wrote; false when the stream has ended. */
bool process_read(process *p, process_stream *stream);
void process_read_all(process *p, process_stream *stream,
                      int timeout_ms); /* to its end, or until silent for timeout_ms */
void process_drain(process *p);        /* reads the rest without waiting, and closes */

void process_signal(const process *p, int signal); /* its whole group */

/* It ended as a program that cannot be run does, here or in a shell: exit code 126 or 127.  Another try is useless. */
bool process_cannot_run(const process *p);

/* Returns a child that just ended, or NULL. */
process *process_reap(process *all, size_t n);

/* A helper process that kills all groups if this process is killed. */
pen_status process_guard_start(pen_error *why);
void process_guard_stop(void);

#endif
