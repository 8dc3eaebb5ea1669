/* server_control.c - the connection to the scheduler: joining, heartbeats, commands. */
#include "server/process/server_state.h"

#include "common/base/config.h"
#include "common/base/log.h"
#include "common/net/own_address.h"
#include "common/system/file_limit.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PATIENCE_MS    = 1000,
    LAUNCHED_MS    = 5000, /* the same, when the launcher starts the scheduler first */
    DRAIN_MESSAGES = 64,
    LINGER_MS      = 1000
};

/* ---- sending --------------------------------------------------------------------------------- */
static void send_to_scheduler(void *user, const wire_control *message)
{
    server *s = user;
    pen_error why;
    if (message->kind == WIRE_BEAT) s->beat_ns = trace_begin();
    if (wire_control_encode(message, &s->out, &why) != PEN_OK) {
        server_end(s, &why);
        return;
    }
    (void)lifeline_send(s->scheduler, s->out.data, s->out.size,
                        NULL); /* a lost message is sent again */
}

static void fill_hello(void *user, wire_control *c)
{
    server *s = user;
    for (uint32_t i = 0; i < s->settings.shards; i++) s->address[i] = s->shard[i].address;
    c->u.hello.role       = PEN_SERVER;
    c->u.hello.rank       = (int32_t)s->settings.rank;
    c->u.hello.nonce      = s->nonce;
    c->u.hello.pid        = (int32_t)getpid();
    c->u.hello.host       = s->host;
    c->u.hello.machine    = s->machine;
    c->u.hello.local_rank = c->u.hello.node = -1;
    c->u.hello.job                          = s->settings.job;
    c->u.hello.store                        = s->settings.store;
    c->u.hello.n_addresses                  = (uint32_t)s->settings.shards;
    c->u.hello.address                      = s->address;
    c->u.hello.n_snapshots                  = s->settings.fresh ? 0 : s->n_snapshots;
    c->u.hello.snapshot                     = s->snapshot;
}

static void fill_beat(void *user, wire_control *c)
{
    server *s = user;
    files_tell_exhausted(); /* its connections would not be accepted */
    for (int i = 0; i < STAT_COUNT; i++)
        s->beat_stat[i] = (wire_stat){.name  = stat_rows[i].name,
                                      .value = (double)stat_get(&s->stats, (stat_id)i)};
    c->u.beat.step    = s->restored + (int64_t)stat_get(&s->stats, STAT_STEPS);
    c->u.beat.call    = s->is_ready ? "serving" : "starting";
    c->u.beat.n_stats = STAT_COUNT;
    c->u.beat.stat    = s->beat_stat;
}

/* ---- events of membership -------------------------------------------------------------------- */
static void log_for(void *user, int level, const char *line)
{
    (void)user;
    log_line(level, "%s", line);
}

static void renew(void *user)
{
    server *s = user;
    lifeline_renew(s->scheduler);
}

static void waiting(void *user, uint64_t left_ms)
{
    server *s                = user;
    const server_settings *o = &s->settings;
    (void)left_ms;
    log_notice("waiting for the scheduler at %s, up to %.3g s%s", s->member.scheduler,
               (double)o->init_timeout_ms / 1000,
               own_address_is_here(o->master_addr)
                   ? "; on this machine that name means loopback; use its address"
                   : "");
}

static void unanswered(void *user, pen_error *why)
{
    server *s = user;
    why_set(why, PEN_UNREACHABLE,
            "the scheduler at %s has not answered for %.3g s; start it there, or set its address "
            "with --master-addr and --master-port; `penstock doctor --master-addr %.200s` tests "
            "the connection",
            s->member.scheduler, (double)s->settings.init_timeout_ms / 1000,
            s->settings.master_addr);
}

static void on_welcome(void *user, const wire_control *c, bool is_first)
{
    server *s = user;
    s->term   = c->u.welcome.term;
    s->rank   = c->u.welcome.rank;
    snprintf(s->job, sizeof s->job, "%s", c->u.welcome.job);
    trace_who(PEN_SERVER, s->rank, s->job);
    if (is_first)
        log_info("server %d of job '%s' with %" PRIu64 " shards", s->rank, s->job,
                 s->settings.shards);
}

static void on_epoch(void *user, const wire_control *c)
{
    server *s = user;
    if (!s->has_ended) server_epoch_take(s, c);
}

static void on_seal(void *user, uint64_t term, uint64_t epoch)
{
    server *s = user;
    if (!s->has_ended) server_epoch_seal(s, term, epoch);
}

static void left(void *user)
{
    server *s = user;
    loop_stop(s->loop);
}

static void failed(void *user, const pen_error *why)
{
    server_end(user, why);
}

/* ---- time ------------------------------------------------------------------------------------ */
static void watch_the_way(server *s, uint64_t now)
{
    char who[300], whom[340], remedy[400];
    snprintf(who, sizeof who, "server %d (%.255s)", s->rank, s->host);
    snprintf(whom, sizeof whom, "the scheduler at %s", s->member.scheduler);
    snprintf(remedy, sizeof remedy, "`penstock doctor --master-addr %.300s` tests the connection",
             s->settings.master_addr);
    lifeline_watch(s->scheduler, membership_silence_ms(&s->member, now), s->member.setup.lease_ms,
                   who, whom, remedy, now);
}

static void tick(void *user)
{
    server *s          = user;
    const uint64_t now = loop_now_ms(s->loop);
    if (s->member.incarnation != 0) watch_the_way(s, now);
    membership_tick(&s->member, now);
    server_control_after(s);
}

void server_control_after(server *s)
{
    const uint64_t due = membership_due(&s->member);
    if (due == UINT64_MAX)
        loop_timer_stop(s->loop, &s->life);
    else if (s->life.due_ms != due)
        loop_timer_start(s->loop, &s->life, due, tick, s);
}

static void begin_membership(server *s)
{
    static const membership_actions actions = {.send       = send_to_scheduler,
                                               .log        = log_for,
                                               .fill_hello = fill_hello,
                                               .fill_beat  = fill_beat,
                                               .renew      = renew,
                                               .waiting    = waiting,
                                               .unanswered = unanswered,
                                               .welcome    = on_welcome,
                                               .epoch      = on_epoch,
                                               .seal       = on_seal,
                                               .left       = left,
                                               .failed     = failed};
    const char *at                          = strstr(s->scheduler_address, "://");
    const server_settings *o                = &s->settings;
    const membership_setup setup            = {
                   .lease_ms    = o->lease_ms,
                   .answer_ms   = o->init_timeout_ms,
                   .patience_ms = config_env("PENSTOCK_ROLE") != NULL ? LAUNCHED_MS : PATIENCE_MS,
                   .down_ms     = o->down_grace_ms,
                   .beat_ms_max = trace_on() ? TRACE_BEAT_MS : 0,
                   .n_parts     = (uint32_t)o->shards,
                   .scheduler   = at != NULL ? at + strlen("://") : s->scheduler_address,
                   .self        = "this server"};
    membership_init(&s->member, &setup, &actions, s, loop_now_ms(s->loop));
}

/* ---- owed pushes ----------------------------------------------------------------------------- */
static void answer_enquiry(server *s)
{
    wire_control c           = {.kind = WIRE_MISSING};
    c.u.missing.rank         = s->question.rank;
    c.u.missing.known        = s->question.is_known;
    c.u.missing.step         = s->question.is_known ? (int64_t)s->question.step : -1;
    c.u.missing.tensor       = s->question.tensor;
    c.u.missing.lacks_values = s->question.lacks_values;
    server_send(s, &c);
}

static void on_enquire(server *s, const wire_control *c)
{
    const uint32_t serial = s->question.serial + 1;
    s->question           = (server_question){.rank = c->u.enquire.rank, .serial = serial};
    s->answers_due        = 0;
    for (uint32_t i = 0; i < s->settings.shards; i++) {
        const server_question q = {
            .server = s, .shard = &s->shard[i], .rank = c->u.enquire.rank, .serial = serial};
        s->answers_due += server_post(s->shard[i].loop, server_shard_question, &q, sizeof q);
    }
    if (s->answers_due == 0) answer_enquiry(s);
}

static bool is_before(const server_question *a, const server_question *b)
{
    if (!a->is_known || !b->is_known) return a->is_known;
    return a->step < b->step || (a->step == b->step && a->chunk < b->chunk);
}

void server_answer(void *user)
{
    const server_question *q = user;
    server *s                = q->server;
    if (q->serial == s->question.serial) {
        const bool lacks_values = s->question.lacks_values || q->lacks_values;
        if (is_before(q, &s->question)) s->question = *q;
        s->question.lacks_values = lacks_values;
        if (--s->answers_due == 0) answer_enquiry(s);
    }
}

/* ---- snapshots ------------------------------------------------------------------------------- */
void server_part_written(void *user)
{
    const server_part *part      = user;
    server *s                    = part->server;
    wire_control c               = {.kind = WIRE_SNAPSHOT_PART};
    c.u.snapshot_part.step       = part->step;
    c.u.snapshot_part.status     = part->status;
    c.u.snapshot_part.text       = part->status != PEN_OK ? part->why.text : "";
    c.u.snapshot_part.bytes      = part->bytes;
    c.u.snapshot_part.n_shards   = part->n_shards;
    c.u.snapshot_part.shard      = part->shard;
    c.u.snapshot_part.lacks_room = part->lacks_room;
    c.u.snapshot_part.spare      = s->n_snapshots > 1 ? s->snapshot[0] : -1;
    stat_add(&s->stats, part->status == PEN_OK ? STAT_SNAPSHOTS : STAT_SNAPSHOTS_FAILED, 1);
    if (part->status == PEN_OK) stat_store(&s->stats, STAT_SNAPSHOT_TIME, (uint64_t)time(NULL));
    if (part->status != PEN_OK) /* the scheduler tells the user */
        log_info("the snapshot of step %" PRId64 " was not written: %s", part->step,
                 part->why.text);
    server_send(s, &c);
    free(part->shard);
}

/* The newest complete one is never removed. */
static void make_room(server *s, int64_t gone)
{
    if (s->n_snapshots < 2 || s->snapshot[0] != gone) return;
    memmove(s->snapshot, s->snapshot + 1, --s->n_snapshots * sizeof *s->snapshot);
    store_thread_make_room(s->store, s->snapshot, s->n_snapshots, s->n_servers);
}

/* Removes parts of older snapshots once a newer one is complete on all servers, and this part at once if its snapshot
 * can no longer become complete. */
static void on_snapshot_done(server *s, const wire_control *c)
{
    const uint32_t keep = (uint32_t)s->settings.snapshot_keep;
    if (c->u.snapshot_done.status != PEN_OK) {
        if (c->u.snapshot_done.step >= 0) store_thread_drop(s->store, c->u.snapshot_done.step);
        if (c->u.snapshot_done.makes_room) make_room(s, c->u.snapshot_done.gone);
        return;
    }
    if (s->n_snapshots == SERVER_SNAPSHOTS_MAX)
        memmove(s->snapshot, s->snapshot + 1, --s->n_snapshots * sizeof *s->snapshot);
    s->snapshot[s->n_snapshots++] = c->u.snapshot_done.step;
    const uint32_t gone           = s->n_snapshots > keep ? s->n_snapshots - keep : 0;
    s->n_snapshots -= gone;
    memmove(s->snapshot, s->snapshot + gone, s->n_snapshots * sizeof *s->snapshot);
    store_thread_forget(s->store, s->snapshot, s->n_snapshots, s->n_servers);
}

/* ---- receiving ------------------------------------------------------------------------------- */
static void receive(server *s, const transport_event *event)
{
    wire_control c;
    pen_error why;
    wire_arena_reset(s->arena);
    const pen_status status =
        wire_control_decode(event->head, event->head_size, s->arena, &c, &why);
    if (status == PEN_NO_MEMORY) server_report(s, &why);
    if (status != PEN_OK) {
        stat_add(&s->stats, STAT_REFUSED, 1);
        if (log_allowed(0))
            log_warning("refused a message from %s: %s", s->scheduler_address, why.text);
        return;
    }
    if (c.kind == WIRE_BEAT_ACK && c.u.beat_ack.seq == s->member.beats && s->beat_ns != 0)
        trace_clock_heard(s->beat_ns, c.u.beat_ack.clock_ns, trace_begin());
    if (membership_receive(&s->member, &c, loop_now_ms(s->loop)) || s->has_ended) return;
    switch (c.kind) {
    case WIRE_PLAN: server_epoch_plan(s, &c); break;
    case WIRE_ENQUIRE: on_enquire(s, &c); break;
    case WIRE_SNAPSHOT_DONE: on_snapshot_done(s, &c); break;
    case WIRE_NOTICE: log_notice("%s", c.u.notice.text); break;
    case WIRE_COMMAND: server_command(s, &c); break;
    case WIRE_STOP: server_end(s, NULL); break;
    default: break; /* not for servers */
    }
}

static bool drain(void *user)
{
    server *s          = user;
    const uint64_t now = loop_now_ms(s->loop);
    int n              = 0;
    transport_event event;
    while (n < DRAIN_MESSAGES && !membership_is_over(&s->member) &&
           (event = (transport_event){0}, lifeline_recv(s->scheduler, &event)) == PEN_OK) {
        n++;
        if (event.kind == TRANSPORT_MESSAGE) receive(s, &event);
        if (event.kind == TRANSPORT_UP) membership_up(&s->member, now);
        if (event.kind == TRANSPORT_DOWN) membership_down(&s->member, now);
        /* a single attempt may meet a closing scheduler */
        if (event.kind == TRANSPORT_REFUSED && s->n_refused++ > 0 && log_allowed(1))
            log_warning("no scheduler at %s yet: %s", s->scheduler_address, event.note);
        buf_release(event.body);
    }
    if (n > 0) server_control_after(s);
    return n > 0;
}

/* ---- life ------------------------------------------------------------------------------------ */
void server_control_leave(server *s)
{
    s->has_ended = true; /* its threads have ended: later messages have no receiver */
    if (membership_is_over(&s->member)) return;
    membership_leave(&s->member, loop_now_ms(s->loop));
    server_control_after(s);
    loop_run(s->loop); /* until `left` */
}

pen_status server_control_open(server *s, pen_error *why)
{
    transport_options options = lifeline_options(s->settings.lease_ms);
    options.head_bytes_max    = WIRE_HEAD_BYTES_MAX;
    s->arena                  = wire_arena_create(SERVER_ARENA_BYTES_MAX);
    s->view_arena             = wire_arena_create(SERVER_ARENA_BYTES_MAX);
    if (s->arena == NULL || s->view_arena == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the control plane");
    auth_dial(s->auth, AUTH_SCHEDULER, &options);
    const pen_status status = lifeline_dial(s->scheduler_address, &options, &s->scheduler, why);
    if (status != PEN_OK) return status;
    begin_membership(s);
    server_control_after(s);
    return loop_add(s->loop, lifeline_poll_fd(s->scheduler), drain, s, why);
}

void server_control_close(server *s)
{
    if (s->scheduler != NULL) loop_remove(s->loop, s);
    lifeline_close(s->scheduler, LINGER_MS);
    membership_fini(&s->member);
    wire_arena_destroy(s->arena);
    wire_out_free(&s->out);
    s->scheduler = NULL;
    s->arena     = NULL;
}
