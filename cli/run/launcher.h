/* launcher.h - the state of one `penstock run`; private to cli/run/. */
#ifndef CLI_RUN_LAUNCHER_H
#define CLI_RUN_LAUNCHER_H

#include "cli/job/control.h"
#include "cli/job/job_note.h"
#include "cli/run/options.h"
#include "cli/run/process.h"
#include "proto/stuck.h"

typedef struct {
    run_options options;
    char job[128], program[128], self[1024];
    char log_base[400];             /* folder of the logs of all attempts; "": none yet */
    char log_folder[432];           /* in it, of this attempt; "": no output goes to files */
    int log_fd;                     /* log_folder, open; 0: none */
    char note[JOB_NOTE_PATH_BYTES]; /* this machine's job note, removed at the end; "": none */
    char state[400];                /* folder of the scheduler's persistent state; "": none */
    char address[300];              /* tcp://HOST:PORT of the scheduler */
    char secret_path[600];          /* of the job's temporary secret; "": none */
    int secret_lock;                /* descriptor that protects it from sweeps; 0: none */
    char http[300];                 /* the scheduler's HTTP address, "127.0.0.1:43118"; "": none */
    bool is_named; /* `job` is the scheduler's name for it; false: only local files use it */
    int port, attempt, signals;
    int store_port; /* MASTER_PORT of workers, where PyTorch's rank 0 listens */
    /* scheduler (machine 0 only), servers, workers; a restarted process keeps its place */
    process *all;
    size_t n, capacity;
    control *link;
    pen_error verdict;
    bool has_verdict, stopping;
    bool had_link, is_over; /* is_over: the scheduler has exited after all workers */
    bool told_waiting;
    stuck *stuck; /* of SIGUSR1: collected until stuck_until_ms; NULL: none */
    uint64_t stuck_until_ms;
    uint64_t heard_ms; /* when a line of ours last waited for the verdict */
    uint64_t tell_ms;  /* when the verdict is told without the report; 0: no more */
    bool has_told;
    uint64_t progress_ms;                 /* when progress was last asked for */
    bool shows_progress;                  /* the next STATUS is printed */
    bool asked, answered, scheduler_hung; /* after a failure: does the scheduler still answer? */
    int interrupted, interrupts;
    uint64_t kill_at_ms, leave_at_ms, link_until_ms;
} launcher;

/* launcher.c: names, files, and processes.  A start reuses the entry of an ended process of that role and rank. */
/* The name of --job, or a generated one.  BAD_SETTING: not usable as a file name. */
pen_status launcher_name_job(launcher *l, pen_error *why);
/* Replaces it by the name of the scheduler's job; "": none. */
pen_status launcher_take_name(launcher *l, const char *job, pen_error *why);
pen_status launcher_make_folders(launcher *l, pen_error *why);
void launcher_remove_folders(launcher *l); /* of the state, after the job */
void launcher_write_note(launcher *l);     /* for `penstock status` on this machine */
pen_status launcher_start_scheduler(launcher *l, pen_error *why);
void launcher_choose_store_port(launcher *l); /* once the scheduler's port is known */
pen_status launcher_start_server(launcher *l, int rank, pen_error *why);
pen_status launcher_start_worker(launcher *l, int rank, int local_rank, pen_error *why);
size_t launcher_capacity(const run_options *o); /* processes on this machine, at most */

/* The machine of a server or worker, and the worker's local rank; -1: not started by a launcher. */
int launcher_node_of_server(const run_options *o, int rank);
int launcher_node_of_worker(const run_options *o, int rank, int *local_rank);

/* revive.c: restarts, and processes that start or leave because the job was scaled. */
bool revive_may_restart(const launcher *l, const process *p);
/* A process ended; true: it will be restarted, or the scheduler decides what its end means. */
bool revive_takes_end(launcher *l, process *p, uint64_t now);
void revive_due(launcher *l, uint64_t now); /* starts processes that are due */
uint64_t revive_ms(const launcher *l);      /* time of the next restart; UINT64_MAX: none */
const char *revive_end_note(const launcher *l, const process *p); /* for EXITED; "" */
void revive_scale(launcher *l, int workers, int servers);

/* secure.c: decides whether the job is encrypted, and provides its secret, before any start.
 * Errors  BAD_SETTING  machines 1 and up need a secret. */
pen_status secure_job(launcher *l, pen_error *why);
void secure_forget(launcher *l);
/* Checks what secure_job() would refuse; no side effects. */
pen_status secure_check(const launcher *l, pen_error *why);

/* timeline.c: --trace */
pen_status timeline_begin(const launcher *l, pen_error *why);
/* Checks what timeline_begin() would refuse; leaves nothing behind. */
pen_status timeline_check(pen_error *why);
void timeline_end(const launcher *l); /* after all processes have ended */

/* launcher.c */
/* Live processes of a role: without lost workers, which may hang, but with processes to be restarted.  Role 0: all that
 * run. */
size_t launcher_alive(const launcher *l, int32_t role);
/* Live servers and workers other than the verdict's lost peer, which may hang. */
bool launcher_has_survivors(const launcher *l);
/* A worker failed, and the scheduler has not yet decided whether the job continues without it. */
bool launcher_has_unexplained(const launcher *l);
/* The link broke, but the scheduler may be restarted. */
bool launcher_seeks_link(const launcher *l, uint64_t now);
/* After the first failure survivors get a moment to detect it and report it.  A scheduler that does not answer within
 * that moment is the cause. */
void launcher_ask_scheduler(launcher *l, uint64_t now);
void launcher_ask_stuck(launcher *l, uint64_t now); /* asks for the last collective calls */
void launcher_take_stuck(launcher *l, const wire_control *m);
void launcher_end_stuck(launcher *l); /* prints the answers so far */

#endif
