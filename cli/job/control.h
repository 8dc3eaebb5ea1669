/* control.h - a blocking client of the scheduler, for commands and the launcher. */
#ifndef CLI_CONTROL_H
#define CLI_CONTROL_H

#include "common/base/config.h"
#include "common/net/auth/auth.h"
#include "proto/wire/wire.h"

/* Settings of every command that talks to a running job, for lists of X (common/base/config.h); wait, what: default and
 * description of timeout_ms. */
/* clang-format off */
#define CONTROL_PLACE(X, wait, what)                                                                                   \
    X(job,         TEXT, "",   0,   0,       NULL, "Name of the job, if several of this user run here.")               \
    X(master_addr, TEXT, "",   0,   0,       NULL, "Host of the scheduler; empty: 127.0.0.1.")                         \
    X(master_port, U64,  "0",  0,   65535,   NULL, "Port of the scheduler; 0: the only job running here.")     \
    X(timeout_ms,  U64,  wait, 100, 3600000, NULL, what)
#define CONTROL_PROTECTION(X)                                                                                          \
    X(encryption, ENUM, "auto", 0, 0, auth_choices,                                                                   \
      "Encryption: auto (as recorded by `penstock run`), on, or clear.")                                      \
    X(secret_file, TEXT, "", 0, 0, NULL, "File with the job's secret; empty: as recorded by `penstock run`.")
/* clang-format on */

typedef struct control control;
struct job_note;

/* Whether members of a job on this host meet on local sockets: the setting local_sockets of this environment. */
bool control_has_local_sockets(void);

/* Encryption of the next control_open(), from the user's flags.  Defaults come from the job note of `penstock run`,
 * else from PENSTOCK_ENCRYPTION and PENSTOCK_SECRET_FILE. */
void control_protect(int encryption, const char *secret_file);

/* Dials "tcp://HOST:PORT" and sends HELLO as `role` (WIRE_LAUNCHER or WIRE_OBSERVER).  Waits at most timeout_ms for
 * the answer; UNREACHABLE with the reason. */
pen_status control_open(const char *address, int32_t role, uint64_t timeout_ms, control **c,
                        pen_error *why);
/* The same as a launcher of `job` that starts `workers` workers; "": any job.  BAD_SETTING: another job runs there. */
pen_status control_join(const char *address, const char *job, int workers, uint64_t timeout_ms,
                        control **c, pen_error *why);
const char *control_job(const control *c);          /* the scheduler's job name; "": none */
void control_close(control *c, uint32_t linger_ms); /* NULL is fine */

pen_status control_send(control *c, wire_control *message, pen_error *why);

/* The next message, BORROWED until the next call; AGAIN: none within timeout_ms; UNREACHABLE: connection lost. */
pen_status control_receive(control *c, uint64_t timeout_ms, wire_control *message, pen_error *why);

/* Sends `question` and waits for a message of `kind`; others are skipped.  *answer is BORROWED until the next call.
 * AGAIN: none within timeout_ms after any other; a VERDICT ends the wait with its status. */
pen_status control_ask(control *c, wire_control *question, wire_control_kind kind,
                       uint64_t timeout_ms, wire_control *answer, pen_error *why);

const char *control_protection(const control *c); /* auth_describe() */
int control_fd(control *c); /* readable when control_receive(c, 0, ...) may succeed */

/* Opens the job at master_addr and master_port as an observer; without them the only job that `penstock run` recorded on
 * this machine, in the folder of common/system/user_folder.h, or the one named `job` ("": any); with master_port alone the
 * job recorded with that port. */
pen_status control_open_job(const char *job, const char *master_addr, uint64_t master_port,
                            uint64_t timeout_ms, control **c, pen_error *why);
/* The note of the job that control_open_job() opened; false: it was not started by `penstock run` of this user here. */
bool control_note(const control *c, struct job_note *note);
const char *control_address(const control *c); /* "tcp://HOST:PORT" */

#endif
