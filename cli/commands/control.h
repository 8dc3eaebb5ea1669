/* control.h - a blocking client of the scheduler, for commands and the launcher. */
#ifndef CLI_CONTROL_H
#define CLI_CONTROL_H

#include "common/base/config.h"
#include "common/net/auth/guard.h"
#include "proto/wire.h"

/* Settings of every command that asks a running job, for lists of X (common/base/config.h); wait, what: of timeout_ms. */
/* clang-format off */
#define CONTROL_PLACE(X, wait, what)                                                                                   \
    X(master_addr, TEXT, "",   0,   0,       NULL, "Host of the scheduler; empty: 127.0.0.1.")                         \
    X(master_port, U64,  "0",  0,   65535,   NULL, "Port of the scheduler; 0: that of the only job running here.")     \
    X(timeout_ms,  U64,  wait, 100, 3600000, NULL, what)
#define CONTROL_PROTECTION(X)                                                                                          \
    X(encryption, ENUM, "auto", 0, 0, guard_choices,                                                                   \
      "How the job is reached: auto as `penstock run` wrote down, on, or clear.")                                      \
    X(secret_file, TEXT, "", 0, 0, NULL, "The job's secret; empty: that which `penstock run` wrote down.")
/* clang-format on */

typedef struct control control;

/* How the next control_open() is encrypted: what the user said.  Without it, and for what was left at its
 * default, what `penstock run` wrote down of the job, else PENSTOCK_ENCRYPTION and PENSTOCK_SECRET_FILE. */
void control_protect(int encryption, const char *secret_file);

/* Dials "tcp://HOST:PORT" and says HELLO as `role` (WIRE_LAUNCHER or WIRE_OBSERVER).
 * Waits at most timeout_ms for the answer: UNREACHABLE with a sentence that says what was found. */
pen_status control_open(const char *address, int32_t role, uint64_t timeout_ms, control **c,
                        pen_error *why);
/* The same as a launcher of the job `job` that starts so many workers; "" takes part in whatever job that is.
 * BAD_SETTING: it is another one. */
pen_status control_join(const char *address, const char *job, int workers, uint64_t timeout_ms,
                        control **c, pen_error *why);
const char *control_job(const control *c); /* as the scheduler said it; "": it has no name */
void control_close(control *c, uint32_t linger_ms); /* NULL is fine */

pen_status control_send(control *c, wire_control *message, pen_error *why);

/* The next message, BORROWED until the next call; PEN_AGAIN when none came within timeout_ms, UNREACHABLE when
 * the connection is gone. */
pen_status control_receive(control *c, uint64_t timeout_ms, wire_control *message, pen_error *why);

/* Sends `question` and waits for a message of `kind`; others are passed over.  *answer is BORROWED until the next call.
 * AGAIN: none came within timeout_ms after any other; a VERDICT ends the waiting with its status. */
pen_status control_ask(control *c, wire_control *question, wire_control_kind kind,
                       uint64_t timeout_ms, wire_control *answer, pen_error *why);

const char *control_protection(const control *c); /* "encrypted", "loopback: proven", ... */
int control_fd(control *c); /* readable when control_receive(c, 0, ...) may succeed */

/* "tcp://ADDR:PORT" of the job meant: master_addr and master_port when given, else the only job that `penstock run` wrote
 * down on this machine, in the folder of common/base/user_folder.h; with master_port alone, the one written down with it. */
pen_status control_find_job(const char *master_addr, uint64_t master_port, char *address,
                            size_t size, pen_error *why);

#endif
