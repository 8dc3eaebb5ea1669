/* core_state.h - the scheduler core's memory, and the functions that need more than one of its parts.
 *
 * DESIGN.  A part has a header and, where they need no other part, functions of its own.  A handler below changes its
 * own part, sends, and notes in `due` what follows for other parts; core.c acts on that.
 */
#ifndef SCHEDULER_CORE_STATE_H
#define SCHEDULER_CORE_STATE_H

#include "common/base/why.h"
#include "scheduler/core/core_job.h"
#include "scheduler/core/epoch/core_epoch.h"
#include "scheduler/core/membership/core_members.h"
#include "scheduler/core/report/core_reports.h"
#include "scheduler/core/member_sentence.h"
#include "scheduler/core/services/core_services.h"

enum { CORE_END_MS = 5000 /* longest wait for the others to end */ };

/* Work that core.c does after a handler. */
typedef enum {
    DUE_VERDICT    = 1 << 0,
    DUE_LOST       = 1 << 1, /* members that `is_lost` */
    DUE_END        = 1 << 2, /* a member that the end may have waited for is gone */
    DUE_JOIN       = 1 << 3, /* a member has come or answered */
    DUE_LEFT       = 1 << 4, /* a worker left, perhaps while others register */
    DUE_MODEL      = 1 << 5, /* a member registered, is ready, or is no longer awaited */
    DUE_TAKEN_OVER = 1 << 6, /* a server died, and others serve its shards */
    DUE_MOVED      = 1 << 7, /* copies have moved */
    DUE_EPOCH      = 1 << 8  /* the epoch change may be opened, or all may be sealed */
} core_due;

struct scheduler_core {
    unsigned due; /* set of core_due */
    core_out out;
    core_job job;
    core_members members;
    core_model model;
    core_epoch epoch;
    core_services services;
    core_reports reports;
};

/* core_rules.c: what the settings and the phase allow */
bool core_runs(const scheduler_core *core); /* registering, loading or training */
bool core_is_holder(const scheduler_core *core, const member_slot *s);
/* The holders of state: servers, or workers in a job without servers. */
const member_slots *core_holders(const scheduler_core *core);
bool core_may_change(const scheduler_core *core); /* training, and all holders can be sealed */
bool core_waits(const scheduler_core *core);      /* on_worker_loss=wait, and servers */
bool core_goes_on(const scheduler_core *core);    /* on_worker_loss=continue, where possible */
bool core_is_elastic(const scheduler_core *core);
bool core_may_sit(const scheduler_core *core, const member_slot *s);
bool core_may_replace(const scheduler_core *core, const member_slot *s);
bool core_is_late(const scheduler_core *core,
                  const member_slot *s); /* present, but not in the view yet */
const member_slot *core_loss_lowest(const scheduler_core *core); /* live worker; NULL: none */
const pen_error *core_loss_of(const scheduler_core *core, int32_t rank); /* NULL: not lost */
/* BAD_SETTING: settings that a job with this number of servers cannot have. */
pen_status core_check_kind(const scheduler_settings *settings, uint32_t n_servers, pen_error *why);

/* core_cause.c: notes a cause; core.c acts on it after the handler */
void core_verdict(scheduler_core *core, const pen_error *why);
void core_lose(scheduler_core *core, member_slot *s, member_event event, const char *how);
void core_left_early(scheduler_core *core, member_slot *s);  /* while others wait for it */
void core_notify(scheduler_core *core, member_slot *s);      /* the verdict, if connected */
void core_bound_claim(const member_slot *s, pen_error *why); /* checks a member's report */
void core_failure(scheduler_core *core, member_slot *s, const wire_control *message);

/* core_join.c.  hello, false: another member must go first; then call it again. */
bool core_hello(scheduler_core *core, uint32_t peer, const wire_control *message);
void core_join_begin(scheduler_core *core); /* once all are here and proven */
void core_join_tick(scheduler_core *core);
uint64_t core_join_next_ms(const scheduler_core *core);

/* core_prove.c: PROVE, PROVEN.  done: false while workers are being asked. */
bool core_prove_done(scheduler_core *core);
void core_prove_anew(scheduler_core *core); /* a worker joined: earlier answers are void */
void core_prove_notify(scheduler_core *core, const member_slot *s); /* repeats PROVE */
void core_proven(scheduler_core *core, member_slot *s, const wire_control *message);

/* core_model.c: REGISTER, READY */
void core_register(scheduler_core *core, member_slot *s, const wire_control *message);
void core_ready(scheduler_core *core, member_slot *s, const wire_control *message);
void core_model_advance(scheduler_core *core); /* once no member is awaited */

/* core_plan.c: the agreed model.  catch_up resends messages that `s` may have missed. */
void core_model_catch_up(scheduler_core *core, const member_slot *s);
/* The first tensor with a part on this server, and the number of such tensors; NULL before the plan. */
const char *core_model_held(const scheduler_core *core, const member_slot *server,
                            uint32_t *n_tensors);

wire_control core_model_committed(const scheduler_core *core, const member_slot *worker);
wire_control core_model_plan(const scheduler_core *core, bool with_model);
bool core_model_adopt(scheduler_core *core, const wire_control *kept); /* false: it is not ours */

/* core_epoch_view.c.  write: a new view for core->epoch; `s` NULL: no step is resolved; false: no memory, and the old
 * view stays.  note: marks the members in it. */
bool core_epoch_write(scheduler_core *core, const resolved *s, bool members_changed);
void core_epoch_note(scheduler_core *core);
void core_epoch_fail(scheduler_core *core); /* verdict: no memory */
wire_control core_epoch_seal(const scheduler_core *core);
void core_epoch_notify(const scheduler_core *core,
                       const member_slot *s); /* the view, and an open SEAL */

/* core_epoch.c: EPOCH, SEAL, SEALED */
void core_epoch_begin(scheduler_core *core); /* the first view */
/* Asks for an epoch change at `due_ms`. */
void core_epoch_want(scheduler_core *core, uint64_t due_ms, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A worker died between the first view and the first step. */
void core_epoch_want_without_dead(scheduler_core *core);
bool core_epoch_survives(const scheduler_core *core); /* a full copy of every shard lives */
void core_epoch_lost(scheduler_core *core, const member_slot *server);
void core_sealed(scheduler_core *core, member_slot *s, const wire_control *message);
void core_caught_up(scheduler_core *core, member_slot *s, const wire_control *message);
void core_suspect(scheduler_core *core, member_slot *s, const wire_control *message);
void core_epoch_advance(scheduler_core *core); /* opens the change, or decides it */
void core_epoch_tick(scheduler_core *core);
uint64_t core_epoch_next_ms(const scheduler_core *core);
/* For placement_goal(); the caller frees.  NULL: no memory. */
placement_server *core_epoch_servers(const scheduler_core *core);

/* core_wait.c: on_worker_loss=wait */
void core_wait_for(scheduler_core *core, member_slot *dead);
void core_wait_in_vain(scheduler_core *core,
                       const member_slot *s); /* gives up if it will not return */
void core_wait_tick(scheduler_core *core);
uint64_t core_wait_next_ms(const scheduler_core *core);

/* core_reach.c: UNREACHED */
void core_unreached(scheduler_core *core, member_slot *s, const wire_control *message);
void core_reach_tick(scheduler_core *core);

/* For a member lost by silence: adds which members cannot reach it either, and a remedy. */
void core_add_silence(const scheduler_core *core, const member_slot *s, uint64_t at_ms,
                      pen_error *why);
/* It joined and fell silent before the job began. */
void core_missed(const scheduler_core *core, const member_slot *s, uint64_t waits_ms,
                 pen_error *why);
uint64_t core_reach_next_ms(const scheduler_core *core);

/* core_scale.c: SCALE, DRAIN */
void core_scale(scheduler_core *core, member_slot *s, const wire_control *message);
void core_drain_ask(scheduler_core *core, member_slot *s, const wire_control *message);
void core_scale_settle(scheduler_core *core); /* stops servers that are empty */
bool core_scale_may_go(const scheduler_core *core, const member_slot *server);

/* core_persist.c: persists the state.  False: it could not, and there is a verdict. */
bool core_persist(scheduler_core *core);

/* core_death.c: which pushes does a dead worker owe? */
void core_judge(scheduler_core *core, member_slot *dead);
void core_missing(scheduler_core *core, member_slot *s, const wire_control *message);
void core_conclude(scheduler_core *core); /* ends the query with the answers so far */
uint64_t core_death_next_ms(const scheduler_core *core);

/* core_leave.c */
void core_bye(scheduler_core *core, member_slot *s);
void core_dismiss(scheduler_core *core, member_slot *observer);
void core_exited(scheduler_core *core, const wire_control *message);
/* Ends a job in which some or all workers ended without joining. */
void core_pass_by(scheduler_core *core);

/* core_end.c */
void core_verdict_notify(scheduler_core *core);
void core_stop(scheduler_core *core);   /* all workers have left in good order */
void core_settle(scheduler_core *core); /* ends the job if no member is awaited */
void core_end_tick(scheduler_core *core);
uint64_t core_end_next_ms(const scheduler_core *core);

/* core_loss.c: on_worker_loss=continue */
void core_go_on(scheduler_core *core, member_slot *dead);
void core_loss_catch_up(scheduler_core *core, const member_slot *s);
void core_loss_missing(scheduler_core *core, const wire_control *message);

/* core_fault.c: FAULT, OVERDUE */
void core_fault(scheduler_core *core, member_slot *s, const wire_control *message);
void core_overdue(scheduler_core *core, member_slot *s, const wire_control *message);
/* Writes the wait in place `index` if it still lasts, as far as known; false: it has ended. */
bool core_overdue_waiting(const scheduler_core *core, int index, uint64_t now_ms, sentence *text);

/* core_cycle.c: waits that cannot end */
void core_cycle_beat(scheduler_core *core, member_slot *waiting); /* at its BEAT */
void core_cycle_missing(scheduler_core *core, const wire_control *message);
void core_left_registering(scheduler_core *core);

/* core_kv.c */
void core_kv_ask(scheduler_core *core, member_slot *s, const wire_control *message);

/* core_snapshot.c */
void core_snapshot_fail(scheduler_core *core, const char *text); /* all that are being written */
void core_snapshot_please(scheduler_core *core, member_slot *s, const wire_control *message);
void core_snapshot_part(scheduler_core *core, member_slot *s, const wire_control *message);

/* core_last_will.c */
void core_last_will_write(scheduler_core *core);
void core_last_will_notify(scheduler_core *core, const member_slot *s);
void core_last_will_heard_step(scheduler_core *core); /* the first step makes it due */
void core_last_will_tick(scheduler_core *core);
uint64_t core_last_will_next_ms(const scheduler_core *core);

/* core_status.c */
void core_status(scheduler_core *core, uint32_t peer);

#endif
