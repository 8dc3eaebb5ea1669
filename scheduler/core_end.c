/* core_end.c - goodbyes, deaths and the verdict. */
#include "scheduler/core_state.h"
#include <inttypes.h>
#include <string.h>

/* ---- the verdict ----------------------------------------------------------------------------- */
static void tell_removed(scheduler_core *core, const seat *s)
{
    char name[SENTENCE_SEAT_BYTES];
    wire_control c = {.kind = WIRE_VERDICT};
    why_set(&c.u.verdict, PEN_NOT_A_MEMBER, "%s was removed from the job%s%.300s",
            sentence_seat(name, s), core->has_verdict ? ": " : "",
            core->has_verdict ? core->verdict.text : "");
    why_culprit(&c.u.verdict, s->role, s->rank, s->step, NULL);
    core_send(core, s, &c);
}

void core_tell(scheduler_core *core, seat *s)
{
    if (!s->is_bound) return;
    if (s->state == MEMBER_DEAD || !core->has_verdict) {
        tell_removed(core, s);
        return;
    }
    core_send(core, s, &(wire_control){.kind = WIRE_VERDICT, .u.verdict = core->verdict});
    s->is_told = true;
}

void core_verdict(scheduler_core *core, const pen_error *why, uint64_t now_ms)
{
    if (core->has_verdict) return;
    core->has_verdict  = true;
    core->verdict      = *why;
    core->inquest.dead = NULL;
    core->phase        = PHASE_FAILED;
    core->end_ms       = now_ms + CORE_END_MS;
    core_log(core, LOG_NOTICE, "%s", why->text);
    core_keep(core, now_ms);

    const wire_control c = {.kind = WIRE_VERDICT, .u.verdict = *why};
    core_send_all(core, TO_WORKERS | TO_SERVERS | TO_GUESTS, &c);
    seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->roster, &i));) {
        s->is_told = s->is_bound;
        if (s->state == MEMBER_DEAD && s->is_bound) tell_removed(core, s);
    }
    core_settle(core, now_ms);
}

/* What a member says is bounded before it is repeated to all. */
void core_bound_claim(const seat *s, pen_error *why)
{
    why->text[sizeof why->text - 1]     = 0;
    why->tensor[sizeof why->tensor - 1] = 0;
    if (why->missing_n < 0 || why->missing_n > 32) why->missing_n = 0;
    if (why->status >= 0 || pen_status_info(why->status)->status != why->status)
        why->status = PEN_INTERNAL;
    if (why->role < PEN_SCHEDULER || why->role > WIRE_OBSERVER) {
        why->role = s->role;
        why->rank = s->rank;
    }
    char name[SENTENCE_SEAT_BYTES];
    if (!why->text[0])
        snprintf(why->text, sizeof why->text, "%s failed: %s", sentence_seat(name, s),
                 pen_status_info(why->status)->text);
}

void core_failure(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    if (core->has_verdict) core_tell(core, s);
    if (core->has_verdict || core->inquest.dead) return; /* the first cause wins */

    pen_error why = message->u.verdict;
    core_bound_claim(s, &why);
    core_verdict(core, &why, now_ms);
}

/* ---- the inquest: what does a dead worker owe? ----------------------------------------------- */
static void conclude(scheduler_core *core, uint64_t now_ms)
{
    const core_inquest *q    = &core->inquest;
    const sentence_debt debt = {.step   = q->step,
                                .tensor = q->step >= 0 ? core->model.tensor[q->tensor].name : ""};
    pen_error why;
    sentence_worker_gone(q->dead, &debt, q->died_ms, &why);
    core_add_silence(core, q->dead, q->died_ms, &why);
    core_verdict(core, &why, now_ms);
}

static bool all_heard(const scheduler_core *core)
{
    const seat_list *servers = &core->roster.servers;
    for (uint32_t i = 0; i < servers->n; i++)
        if (servers->at[i]->state == MEMBER_ACTIVE && !servers->at[i]->is_heard) return false;
    return true;
}

static void inquire(scheduler_core *core, seat *dead, uint64_t now_ms)
{
    core->inquest = (core_inquest){
        .dead = dead, .died_ms = now_ms, .due_ms = now_ms + CORE_INQUEST_MS, .step = -1};
    wire_control c   = {.kind = WIRE_ENQUIRE};
    c.u.enquire.rank = dead->rank;
    for (uint32_t i = 0; i < core->roster.servers.n; i++)
        core->roster.servers.at[i]->is_heard = false;
    core_send_all(core, TO_SERVERS, &c);
    if (all_heard(core)) conclude(core, now_ms);
}

static uint32_t tensor_index(const wire_model *model, const char *name)
{
    uint32_t index = 0;
    while (index < model->n_tensors && strcmp(model->tensor[index].name, name) != 0) index++;
    return index;
}

void core_missing(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    core_inquest *q = &core->inquest;
    core_cycle_missing(core, message, now_ms);
    core_loss_missing(core, message, now_ms);
    if (!q->dead || q->dead->rank != message->u.missing.rank) return;
    s->is_heard        = true;
    const int64_t step = message->u.missing.step;
    const uint32_t tensor =
        tensor_index(&core->model, message->u.missing.tensor ? message->u.missing.tensor : "");
    const bool is_known = message->u.missing.known && step >= 0 && tensor < core->model.n_tensors;
    const bool is_less  = q->step < 0 || step < q->step || (step == q->step && tensor < q->tensor);
    if (is_known && is_less) {
        q->step   = step;
        q->tensor = tensor;
    }
    if (all_heard(core)) conclude(core, now_ms);
}

/* ---- deaths ---------------------------------------------------------------------------------- */
static void judge(scheduler_core *core, seat *dead, uint64_t now_ms)
{
    const bool servers_know = core->phase == PHASE_LOADING || core->phase == PHASE_TRAINING;
    if (dead->role == PEN_WORKER && servers_know) {
        inquire(core, dead, now_ms);
        return;
    }
    pen_error why;
    uint32_t n_tensors;
    const char *tensor = dead->role == PEN_SERVER ? core_model_held(core, dead, &n_tensors) : NULL;
    if (dead->role == PEN_SERVER)
        sentence_server_gone(dead, tensor, n_tensors, core->job_step, now_ms, &why);
    else
        sentence_worker_gone(dead, NULL, now_ms, &why);
    core_add_silence(core, dead, now_ms, &why);
    core_verdict(core, &why, now_ms);
}

static bool was_in(const seat *s)
{
    return s->in_record && s->in_record == s->incarnation;
}

void core_lose(scheduler_core *core, seat *s, member_event event, const char *how, uint64_t now_ms)
{
    const member_state before = s->state;
    char name[SENTENCE_SEAT_BYTES];
    core_move(core, s, event);
    core_log(core, LOG_INFO, "%s: %s", sentence_seat(name, s), how);
    if (s->state == before) return;

    const bool waits = core->settings.on_worker_loss == SCHEDULER_LOSS_WAIT && core->n_servers;
    if (core->phase >= PHASE_STOPPING)
        core_settle(core, now_ms);
    else if (core->phase == PHASE_TRAINING && core->n_servers && !was_in(s))
        return; /* nobody has counted on it yet */
    else if (s->role == PEN_WORKER && core->phase >= PHASE_REGISTERING && core_goes_on(core))
        core_go_on(core, s, now_ms);
    else if (s->role == PEN_SERVER && !core->inquest.dead && core_epoch_survives(core))
        core_epoch_lost(core, s, now_ms);
    else if (s->role == PEN_WORKER && core->phase == PHASE_TRAINING && waits)
        core_wait_for(core, s, now_ms);
    else if (!core->inquest.dead)
        judge(core, s, now_ms);
    else if (all_heard(core))
        conclude(core, now_ms);
}

/* ---- goodbyes -------------------------------------------------------------------------------- */
static bool servers_may_go(const scheduler_core *core)
{
    return core->phase == PHASE_JOINING || core->phase >= PHASE_STOPPING;
}

static void leave(scheduler_core *core, seat *s, uint64_t now_ms)
{
    if (s->role == PEN_SERVER && seat_is_counted(s) && !servers_may_go(core) &&
        !core_scale_may_go(core, s)) {
        core_lose(core, s, MEMBER_EVENT_LOST, "it left while it was needed", now_ms);
        return;
    }
    const member_state before = s->state;
    if (!core_move(core, s, MEMBER_EVENT_BYE)) {
        if (s->state == MEMBER_DEAD) core_tell(core, s);
        return;
    }
    if (s->state == before) return;
    if (s->role == PEN_WORKER && s->state == MEMBER_LEFT) {
        core_shrink_settle(core);
        core_left_registering(core, now_ms);
    }
    core_settle(core, now_ms);
    const bool is_gone =
        s->state == MEMBER_LEFT && (s->role == PEN_SERVER || core_is_elastic(core));
    char name[SENTENCE_SEAT_BYTES];
    if (is_gone)
        core_epoch_want(core, now_ms + CORE_LEAVE_MS, now_ms, "%.120s has left",
                        sentence_seat(name, s));
}

void core_bye(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    (void)message;
    const wire_control byed = {.kind = WIRE_BYED};
    const bool is_kept      = core->actions.keep && s->role == PEN_WORKER && s->rank >= 0;
    if (!is_kept) core_send(core, s, &byed);
    s->has_said_bye = true;
    if (s->rank >= 0)
        leave(core, s, now_ms);
    else
        core_dismiss(core, s, now_ms);
    if (!is_kept) return; /* else whoever comes after this scheduler must know that it has left */
    if (core->phase == PHASE_TRAINING && !core_keep(core, now_ms)) return;
    core_send(core, s, &byed);
}

void core_dismiss(scheduler_core *core, seat *guest, uint64_t now_ms)
{
    roster_dismiss(&core->roster, guest);
    core_settle(core, now_ms);
}

/* Who came while the last of the others left: there is nobody to train with. */
static void turn_away_the_late(scheduler_core *core)
{
    char name[SENTENCE_SEAT_BYTES];
    for (uint32_t i = 0; i < core->roster.workers.n; i++) {
        const seat *s = core->roster.workers.at[i];
        if (core_is_late(core, s))
            core_refuse(core, s->peer, PEN_NOT_A_MEMBER,
                        "%s comes too late: all workers of the job have left it",
                        sentence_seat(name, s));
    }
}

static void stop(scheduler_core *core, uint64_t now_ms)
{
    turn_away_the_late(core);
    core->phase  = PHASE_STOPPING;
    core->end_ms = now_ms + CORE_END_MS;
    core_keep(core, now_ms);
    core_send_all(core, TO_SERVERS, &(wire_control){.kind = WIRE_STOP});
}

/* ---- what a launcher saw --------------------------------------------------------------------- */
static void describe_exit(const wire_control *c, char *text, size_t size)
{
    if (c->u.exited.signal)
        snprintf(text, size, "was killed by signal %d", (int)c->u.exited.signal);
    else
        snprintf(text, size, "exited with code %d", (int)c->u.exited.code);
}

static void fail_before_join(scheduler_core *core, int32_t role, int32_t rank, const char *how,
                             uint64_t now_ms)
{
    pen_error why;
    why_set(&why, PEN_PEER_LOST, "%s %d %s before it joined", sentence_role(role), (int)rank, how);
    why_culprit(&why, role, rank, -1, NULL);
    core_verdict(core, &why, now_ms);
}

/* How many workers the launchers that are here have started. */
static uint32_t started(const scheduler_core *core)
{
    const seat_list *guests = &core->roster.guests;
    uint32_t n              = 0;
    for (uint32_t i = 0; i < guests->n; i++) {
        const seat *s = guests->at[i];
        if (s->role == WIRE_LAUNCHER && s->is_bound && s->said_local_size > 0)
            n += (uint32_t)s->said_local_size;
    }
    return n;
}

/* When all that were started have ended, the others have to be started on a machine that is not here yet: it has as
 * long to come as workers have to join. */
static void wait_for_machines(scheduler_core *core, uint32_t n_passed, uint64_t now_ms)
{
    if (core->has_begun && !core->is_for_machines) return;
    if (!core->has_begun) core->joining_ms = now_ms;
    core->has_begun = core->is_for_machines = n_passed >= started(core);
}

/* A launcher may run programs that never call us.  When none of them does, the job is over once
 * they have ended; when only some do, it can never begin. */
void core_pass_by(scheduler_core *core, uint64_t now_ms)
{
    const seat_list *workers = &core->roster.workers;
    const seat *passed       = NULL;
    uint32_t n               = 0;
    for (uint32_t i = 0; i < workers->n; i++) {
        if (!workers->at[i]->has_passed) continue;
        passed = workers->at[i];
        n++;
    }
    if (!n || core->phase != PHASE_JOINING) return;
    if (roster_count(workers, MEMBER_ABSENT) < workers->n) {
        fail_before_join(core, PEN_WORKER, passed->rank, "exited with code 0", now_ms);
    } else if (n == workers->n) {
        stop(core, now_ms);
        core_settle(core, now_ms);
    } else {
        wait_for_machines(core, n, now_ms);
    }
}

/* A worker that said goodbye and failed after all is started again where the job waits for its workers: its seat must
 * be free for it. */
static member_event event_of_exit(const scheduler_core *core, const seat *s)
{
    const bool is_awaited = s->role == PEN_WORKER && s->state == MEMBER_LEFT && core->n_servers &&
                            core->phase == PHASE_TRAINING &&
                            core->settings.on_worker_loss == SCHEDULER_LOSS_WAIT;
    return is_awaited ? MEMBER_EVENT_LOST : MEMBER_EVENT_EXITED;
}

/* Of the process that sat there before, or of one that is missed: the job waits for another. */
static bool is_old_news(const seat *s, int32_t pid)
{
    const bool sat_another = s->has_come_back || s->was_missed;
    return s->is_missed || (sat_another && seat_is_here(s) && s->pid != pid);
}

void core_exited(scheduler_core *core, seat *launcher, const wire_control *message, uint64_t now_ms)
{
    (void)launcher;
    const int32_t role = message->u.exited.role, rank = message->u.exited.rank;
    if (role != PEN_WORKER && role != PEN_SERVER) return;
    char how[64], name[SENTENCE_SEAT_BYTES];
    describe_exit(message, how, sizeof how);
    const bool in_order = !message->u.exited.signal && !message->u.exited.code;
    seat *s             = roster_find(&core->roster, role, rank);
    const char *note    = message->u.exited.note ? message->u.exited.note : "";
    if (s && is_old_news(s, message->u.exited.pid)) return;

    if (!s || s->state == MEMBER_ABSENT) {
        if (!in_order && core->phase == PHASE_TRAINING && core->n_servers)
            core_log(core, LOG_WARNING, "%s %d %s before it joined", sentence_role(role), (int)rank,
                     how);
        else if (!in_order)
            fail_before_join(core, role, rank, how, now_ms);
    } else if (!in_order ||
               (role == PEN_SERVER && !servers_may_go(core) && !core_scale_may_go(core, s))) {
        core_lose(core, s, event_of_exit(core, s), how, now_ms);
        if (s->awaited_ms && !core->has_verdict && strcmp(note, "no restarts left") == 0)
            core_wait_in_vain(core, s, now_ms);
    } else if (seat_is_here(s)) {
        if (role == PEN_WORKER)
            core_log(core, LOG_WARNING, "%s ended without pen_finalize()", sentence_seat(name, s));
        leave(core, s, now_ms);
    }
    if (in_order && role == PEN_WORKER && s) s->has_ended = true;
    if (in_order && s && s->awaited_ms && s->has_left_early && !core->has_verdict)
        core_wait_in_vain(core, s, now_ms);
    if (in_order && role == PEN_WORKER && s && s->state == MEMBER_ABSENT) {
        s->has_passed = true;
        core_pass_by(core, now_ms);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */
/* A launcher hangs up when it has read the verdict and its processes have ended. */
static bool is_waited_for(const scheduler_core *core, const seat *s)
{
    if (s->role == WIRE_LAUNCHER) return core->phase == PHASE_FAILED && s->is_bound && s->is_told;
    if (s->rank < 0 || !seat_is_here(s)) return false;
    if (core->phase == PHASE_STOPPING) return s->role == PEN_SERVER;
    return s->is_bound || !s->is_told; /* told and gone: it needs nothing from us any more */
}

static const seat *first_waited_for(const scheduler_core *core)
{
    const seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->roster, &i));)
        if (is_waited_for(core, s)) return s;
    return NULL;
}

static bool is_outstanding(const scheduler_core *core, const seat *worker)
{
    if (worker->state == MEMBER_LEFT || core_is_late(core, worker)) return false;
    if (worker->state == MEMBER_DEAD) return !core_goes_on(core);
    /* a seat that was empty all the time, or is again */
    return worker->state != MEMBER_ABSENT || core->phase != PHASE_TRAINING || !core->n_servers;
}

static bool all_have_left(const scheduler_core *core)
{
    const seat_list *workers = &core->roster.workers;
    for (uint32_t i = 0; i < workers->n; i++)
        if (is_outstanding(core, workers->at[i])) return false;
    return true;
}

void core_settle(scheduler_core *core, uint64_t now_ms)
{
    const bool runs = core->phase >= PHASE_REGISTERING && core->phase <= PHASE_TRAINING;
    if (runs && all_have_left(core)) stop(core, now_ms);
    if (core->phase != PHASE_STOPPING && core->phase != PHASE_FAILED) return;
    if (!core->is_empty && !first_waited_for(core))
        core_end(core, core->has_verdict ? core->verdict.status : PEN_OK);
}

void core_end_tick(scheduler_core *core, uint64_t now_ms)
{
    if (core->inquest.dead && core->inquest.due_ms <= now_ms) conclude(core, now_ms);
    const bool ends = core->phase == PHASE_STOPPING || core->phase == PHASE_FAILED;
    if (!ends || core->end_ms > now_ms) return;

    const seat *late = first_waited_for(core);
    char name[SENTENCE_SEAT_BYTES];
    if (late && core->phase == PHASE_STOPPING)
        core_log(core, LOG_WARNING, "%s has not ended %d s after it was asked to",
                 sentence_seat(name, late), CORE_END_MS / 1000);
    core_end(core, core->has_verdict ? core->verdict.status : PEN_OK);
}
