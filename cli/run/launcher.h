/* launcher.h - one `penstock run`, shared by the files of cli/run/ only. */
#ifndef CLI_RUN_LAUNCHER_H
#define CLI_RUN_LAUNCHER_H

#include "cli/commands/control.h"
#include "cli/commands/job_note.h"
#include "cli/run/options.h"
#include "cli/run/process.h"
#include "proto/stuck.h"

typedef struct {
    run_options options;
    char job[128], program[128], self[1024], log_folder[400];
    char note[JOB_NOTE_PATH_BYTES]; /* this machine's, to be removed at the end; "": none */
    char state[400];                /* where the scheduler keeps what survives it; "": nowhere */
    char address[300];              /* tcp://HOST:PORT of the scheduler */
    char secret_path[600];          /* of a secret that is thrown away with the job; "": none */
    int secret_lock;                /* descriptor that keeps it from being swept; 0: none     */
    char http[300]; /* where the scheduler shows the job: "127.0.0.1:43118"; "": nowhere */
    bool
        is_named; /* `job` is what the scheduler calls it; false: only files here are named by it */
    int port, attempt, signals;
    process *
        all; /* scheduler (machine 0 only), servers, workers; a process that is started again keeps its place */
    size_t n, capacity;
    control *link;
    pen_error verdict;
    bool has_verdict, stopping;
    bool had_link, is_over; /* is_over: the scheduler has ended after all workers */
    bool told_waiting;
    stuck *stuck; /* of SIGUSR1: being collected until stuck_until_ms; NULL: nobody has asked */
    uint64_t stuck_until_ms;
    bool asked, answered, scheduler_hung; /* after a failure: does the scheduler still answer? */
    int interrupted, interrupts;
    uint64_t kill_at_ms, leave_at_ms, link_until_ms;
} launcher;

/* start.c: names, files, and processes.  Each *_start takes the place of an ended process of that role and rank,
 * or a new one. */
/* The name of --job, or one that is made up.  BAD_SETTING: it names no file. */
pen_status launcher_name_job(launcher *l, pen_error *why);
/* The name of the scheduler's job in its place, from a link that was just opened; "": it has none. */
pen_status launcher_take_name(launcher *l, const char *job, pen_error *why);
pen_status launcher_make_folders(launcher *l, pen_error *why);
void launcher_remove_folders(launcher *l); /* of the state; when the job is over */
void launcher_write_note(launcher *l);     /* by which `penstock status` finds the job from here */
pen_status launcher_start_scheduler(launcher *l, pen_error *why);
pen_status launcher_start_server(launcher *l, int rank, pen_error *why);
pen_status launcher_start_worker(launcher *l, int rank, int local_rank, pen_error *why);
size_t launcher_capacity(const run_options *o); /* processes on this machine, at most */

/* Which machine a server or worker runs on, and where among its workers. */
int launcher_node_of_server(const run_options *o, int rank);
int launcher_node_of_worker(const run_options *o, int rank, int *local_rank);

/* revive.c: what is started again, and what is started or ended because the job grew or shrank. */
/* A process ended: true when it will be started again, or when the scheduler says what its end means. */
bool launcher_takes_end(launcher *l, process *p, uint64_t now);
void launcher_revive_due(launcher *l, uint64_t now); /* starts what is due */
uint64_t launcher_revive_ms(const launcher *l);      /* when the next is; UINT64_MAX: none */
const char *launcher_end_note(const launcher *l, const process *p); /* for EXITED; "" */
void launcher_scale(launcher *l, int workers, int servers);

/* secure.c: decides whether the job is encrypted, and has a secret for it; before anything is started.
 * Errors  BAD_SETTING  machines beyond the first need a secret that they were not given. */
pen_status launcher_secure(launcher *l, pen_error *why);
void launcher_forget_secret(launcher *l);
/* What launcher_secure() would refuse; makes and tells nothing. */
pen_status launcher_check_secret(const launcher *l, pen_error *why);

/* timeline.c: --trace */
pen_status launcher_begin_timeline(const launcher *l, pen_error *why);
/* What launcher_begin_timeline() would refuse; leaves nothing behind. */
pen_status launcher_check_timeline(pen_error *why);
void launcher_end_timeline(const launcher *l); /* when all processes have ended */

/* link.c */
/* Processes of a role: without those the job goes on without, which may hang, and with those that are started again.
 * Role 0: all that run. */
size_t launcher_alive(const launcher *l, int32_t role);
/* Servers and workers that live, but for the one the verdict calls lost: that may hang. */
bool launcher_has_survivors(const launcher *l);
/* A worker failed, and whether the job goes on without it has not been heard. */
bool launcher_has_unexplained(const launcher *l);
/* The link broke in a job that outlives its scheduler, which may be started again. */
bool launcher_seeks_link(const launcher *l, uint64_t now);
/* The first failure: survivors get a moment to find out by themselves and say so.  A scheduler that does not
 * answer within that moment is the cause itself. */
void launcher_ask_scheduler(launcher *l, uint64_t now);
void launcher_ask_stuck(launcher *l, uint64_t now); /* where is everybody? */
void launcher_take_stuck(launcher *l, const wire_control *m);
void launcher_end_stuck(launcher *l); /* prints what is known */

#endif
