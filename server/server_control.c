/* server_control.c - the connection to the scheduler: joining, beating, and what it says. */
#include "server/server_state.h"

#include "common/config.h"
#include "common/log.h"
#include "common/trace.h"
#include "common/transport/own_address.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    HELLO_MS           = 1000,
    SAY_LAUNCHED_MS    = 5000, /* whoever launches servers has started the scheduler before */
    DRAIN_MESSAGES     = 64,
    ARENA_BYTES_MAX    = 32 << 20,
    LINGER_MS          = 1000,
    BEATS_PER_LEASE    = 10,
    SILENCES_PER_LEASE = 4,      /* so long nothing is heard before another connection is tried */
    LATE_KEY           = 0x536e, /* of what is logged once a minute */
    BACK_MS            = 800     /* a connection that is back must have brought WELCOME by then */
};

/* ---- sending --------------------------------------------------------------------------------- */
void server_send(server *s, const wire_control *message)
{
    wire_control c = *message;
    pen_error why;
    c.from = s->incarnation;
    if (wire_control_encode(&c, &s->out, &why) != PEN_OK) {
        server_end(s, &why);
        return;
    }
    /* What is lost is said again: HELLO and BEAT by their timers, the rest because HELLO has it
     * asked for. */
    (void)lifeline_send(s->scheduler, s->out.data, s->out.size, NULL);
}

/* Its address without the scheme, as people write it. */
static const char *scheduler_place(const server *s)
{
    const char *at = strstr(s->scheduler_address, "://");
    return at != NULL ? at + strlen("://") : s->scheduler_address;
}

static void away_too_long(server *s, uint64_t now);

/* Once, and not of a scheduler that is there as soon as this server. */
static void say_waiting(server *s, uint64_t now)
{
    const server_settings *o = &s->settings;
    const uint64_t after     = config_env("PENSTOCK_ROLE") != NULL ? SAY_LAUNCHED_MS : 0;
    if (s->incarnation != 0 || s->has_said_waiting || now - s->started_ms < after) return;
    s->has_said_waiting = true;
    log_notice("waiting for the scheduler, which is to be at %s, for %.3g s at most%s",
               scheduler_place(s), (double)o->init_timeout_ms / 1000,
               own_address_is_here(o->master_addr)
                   ? "; here that name is loopback, this machine itself: say its address"
                   : "");
}

static void hello(void *user)
{
    server *s = user;
    const char *address[64];
    for (uint32_t i = 0; i < s->settings.shards; i++) address[i] = s->shard[i].address;
    wire_control c       = {.kind = WIRE_HELLO};
    c.u.hello.role       = PEN_SERVER;
    c.u.hello.rank       = (int32_t)s->settings.rank;
    c.u.hello.nonce      = s->nonce;
    c.u.hello.pid        = (int32_t)getpid();
    c.u.hello.host       = s->host;
    c.u.hello.machine    = s->machine;
    c.u.hello.local_rank = c.u.hello.node = -1;
    c.u.hello.job                         = s->settings.job;
    c.u.hello.store                       = s->settings.store;
    c.u.hello.n_addresses                 = (uint32_t)s->settings.shards;
    c.u.hello.address                     = address;
    c.u.hello.n_snapshots                 = s->settings.fresh ? 0 : s->n_snapshots;
    c.u.hello.snapshot                    = s->snapshot;
    if (s->is_up) server_send(s, &c);

    const uint64_t now = loop_now_ms(s->loop);
    say_waiting(s, now);
    if (s->incarnation == 0 && now - s->started_ms > s->settings.init_timeout_ms) {
        pen_error why;
        why_set(
            &why, PEN_UNREACHABLE,
            "the scheduler at %s has not answered for %.3g s; start it there, or say where it is "
            "with --master-addr and --master-port; `penstock doctor --master-addr %.200s` tests "
            "the way",
            scheduler_place(s), (double)s->settings.init_timeout_ms / 1000,
            s->settings.master_addr);
        why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
        server_end(s, &why);
        return;
    }
    away_too_long(s, now);
    if (s->incarnation == 0 || s->away_ms != 0)
        loop_timer_start(s->loop, &s->hello, now + HELLO_MS, hello, s);
}

/* One that keeps its state may come back: until then this server goes on without it. */
static bool wait_for_scheduler(server *s, const char *how)
{
    const uint64_t now = loop_now_ms(s->loop);
    if (s->grace_ms == 0 || (s->away_ms != 0 && now - s->away_ms >= s->grace_ms)) return false;
    if (s->away_ms == 0) {
        log_warning("the scheduler at %s is gone: %s; going on without it for %.3g s at most",
                    scheduler_place(s), how, (double)s->grace_ms / 1000);
        s->away_ms = now;
        loop_timer_start(s->loop, &s->hello, now + HELLO_MS, hello, s);
    }
    return true;
}

static void scheduler_lost(server *s, const char *how)
{
    pen_error why;
    if (wait_for_scheduler(s, how)) return;
    const char *at = strstr(s->scheduler_address, "://");
    why_set(&why, PEN_UNREACHABLE, "the scheduler at %s is gone: %s",
            at != NULL ? at + strlen("://") : s->scheduler_address, how);
    why_culprit(&why, PEN_SCHEDULER, -1, -1, NULL);
    if (s->will.text[0] != '\0') { /* what all others will say */
        log_info("%s", why.text);
        why = s->will;
    }
    why.last_seen_s = (double)(loop_now_ms(s->loop) - s->heard_ms) / 1000;
    server_end(s, &why);
}

static void away_too_long(server *s, uint64_t now)
{
    if (s->away_ms == 0 || now - s->away_ms < s->grace_ms) return;
    char how[64];
    snprintf(how, sizeof how, "it has not come back for %.3g s", (double)s->grace_ms / 1000);
    scheduler_lost(s, how);
}

static void connection_lost(void *user)
{
    scheduler_lost(user, "its connection broke and did not come back");
}

static uint32_t fill_stats(server *s, wire_stat *stat)
{
    for (int i = 0; i < STAT_COUNT; i++)
        stat[i] = (wire_stat){.name  = stat_rows[i].name,
                              .value = (double)stat_get(&s->stats, (stat_id)i)};
    return STAT_COUNT;
}

/* A process that was stopped for a while must not blame the scheduler for its own silence. */
static void forgive_own_pause(server *s, uint64_t now)
{
    if (s->beat_ms != 0 && now > s->beat_ms + s->lease_ms / 3) s->heard_ms = now;
    s->beat_ms = now + s->lease_ms / BEATS_PER_LEASE;
    if (trace_on() && s->beat_ms > now + TRACE_BEAT_MS) s->beat_ms = now + TRACE_BEAT_MS;
}

/* A network that was gone for a while leaves connections behind that recover too late, or never. */
static void renew_when_silent(server *s, uint64_t now)
{
    const uint64_t since = s->heard_ms > s->renewed_ms ? s->heard_ms : s->renewed_ms;
    if (now < since + s->lease_ms / SILENCES_PER_LEASE) return;
    s->renewed_ms = now;
    lifeline_renew(s->scheduler);
}

static void watch_the_way(server *s, uint64_t now)
{
    char who[300], whom[340], remedy[400];
    snprintf(who, sizeof who, "server %d (%.255s)", s->rank, s->host);
    snprintf(whom, sizeof whom, "the scheduler at %s", scheduler_place(s));
    snprintf(remedy, sizeof remedy, "`penstock doctor --master-addr %.300s` tests the way",
             s->settings.master_addr);
    lifeline_watch(s->scheduler, now - s->heard_ms, s->lease_ms, who, whom, remedy, now);
}

static void beat(void *user)
{
    server *s          = user;
    const uint64_t now = loop_now_ms(s->loop);
    forgive_own_pause(s, now);
    watch_the_way(s, now);
    if (now - s->heard_ms > s->lease_ms) {
        char how[64];
        snprintf(how, sizeof how, "it has not answered for %.3g s", (double)s->lease_ms / 1000);
        scheduler_lost(s, how);
        if (s->has_ended) return;
    }
    renew_when_silent(s, now);
    wire_stat stat[STAT_COUNT];
    wire_control c   = {.kind = WIRE_BEAT};
    c.u.beat.seq     = ++s->beats;
    c.u.beat.step    = s->restored + (int64_t)stat_get(&s->stats, STAT_STEPS);
    c.u.beat.call    = s->is_ready ? "serving" : "starting";
    c.u.beat.n_stats = fill_stats(s, stat);
    c.u.beat.stat    = stat;
    s->beat_ns       = trace_begin();
    if (s->is_up) server_send(s, &c);
    loop_timer_start(s->loop, &s->beat, s->beat_ms, beat, s);
}

static void on_beat_ack(const server *s, const wire_control *c)
{
    if (c->u.beat_ack.seq != s->beats || s->beat_ns == 0) return;
    trace_clock_heard(s->beat_ns, c->u.beat_ack.clock_ns, trace_begin());
}

/* ---- joining --------------------------------------------------------------------------------- */
static void on_welcome(server *s, const wire_control *c)
{
    const bool is_first = s->incarnation == 0;
    if (!is_first && c->u.welcome.incarnation != s->incarnation) {
        pen_error why;
        why_set(&why, PEN_NOT_A_MEMBER,
                "the scheduler at %s does not know server %d any more: it began anew, or another "
                "server has its place",
                scheduler_place(s), s->rank);
        server_end(s, &why);
        return;
    }
    if (s->away_ms != 0) log_notice("the scheduler at %s is back", scheduler_place(s));
    s->away_ms     = 0;
    s->grace_ms    = c->u.welcome.grace_ms;
    s->incarnation = c->u.welcome.incarnation;
    s->term        = c->u.welcome.term;
    s->rank        = c->u.welcome.rank;
    s->lease_ms    = c->u.welcome.lease_ms < 100 ? 100 : c->u.welcome.lease_ms;
    snprintf(s->job, sizeof s->job, "%s", c->u.welcome.job);
    trace_who(PEN_SERVER, s->rank, s->job);
    loop_timer_stop(s->loop, &s->hello);
    loop_timer_stop(s->loop, &s->lost);
    loop_timer_start(s->loop, &s->beat, loop_now_ms(s->loop), beat, s);
    if (is_first)
        log_info("server %d of job '%s' with %" PRIu64 " shards", s->rank, s->job,
                 s->settings.shards);
}

/* ---- who owes what --------------------------------------------------------------------------- */
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
        server_question *q = malloc(sizeof *q);
        if (q == NULL) continue;
        *q = (server_question){
            .server = s, .shard = &s->shard[i], .rank = c->u.enquire.rank, .serial = serial};
        if (server_post(s->shard[i].loop, server_shard_question, q))
            s->answers_due++;
        else
            free(q);
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
    server_question *q = user;
    server *s          = q->server;
    if (q->serial == s->question.serial) {
        const bool lacks_values = s->question.lacks_values || q->lacks_values;
        if (is_before(q, &s->question)) s->question = *q;
        s->question.lacks_values = lacks_values;
        if (--s->answers_due == 0) answer_enquiry(s);
    }
    free(q);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
void server_part_written(void *user)
{
    server_part *part            = user;
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
    if (part->status != PEN_OK && (!part->is_late || log_allowed(LATE_KEY)))
        log_warning("the snapshot of step %" PRId64 " was not written: %s", part->step,
                    part->why.text);
    server_send(s, &c);
    free(part->shard);
    free(part);
}

/* The newest complete one never goes. */
static void make_room(server *s, int64_t gone)
{
    if (s->n_snapshots < 2 || s->snapshot[0] != gone) return;
    memmove(s->snapshot, s->snapshot + 1, --s->n_snapshots * sizeof *s->snapshot);
    store_thread_make_room(s->store, s->snapshot, s->n_snapshots, s->n_servers);
}

/* Parts of older snapshots go only when a newer one is known to be whole everywhere; and this part at once when that
 * one never will be. */
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

/* ---- commands -------------------------------------------------------------------------------- */
static void on_command(server *s, const wire_control *c)
{
    char text[96];
    snprintf(text, sizeof text, "server %d has no handler for command %d", s->rank,
             c->u.command.head);
    wire_control reply   = {.kind = WIRE_REPLY};
    reply.u.reply.id     = c->u.command.id;
    reply.u.reply.role   = c->u.command.role;
    reply.u.reply.rank   = c->u.command.rank;
    reply.u.reply.asker  = c->u.command.asker;
    reply.u.reply.status = PEN_NOT_FOUND;
    reply.u.reply.text   = text;
    server_send(s, &reply);
}

/* ---- receiving ------------------------------------------------------------------------------- */
static void receive(server *s, const transport_event *event)
{
    wire_control c;
    pen_error why;
    wire_arena_reset(s->arena);
    if (wire_control_decode(event->head, event->head_size, s->arena, &c, &why) != PEN_OK) {
        stat_add(&s->stats, STAT_REFUSED, 1);
        if (log_allowed(0))
            log_warning("a message from %s was refused: %s", s->scheduler_address, why.text);
        return;
    }
    s->heard_ms = loop_now_ms(s->loop);
    switch (c.kind) {
    case WIRE_WELCOME: on_welcome(s, &c); break;
    case WIRE_EPOCH: server_epoch_take(s, &c, event->head, event->head_size); break;
    case WIRE_PLAN: server_epoch_plan(s, event->head, event->head_size); break;
    case WIRE_SEAL: server_epoch_seal(s, &c); break;
    case WIRE_BEAT_ACK: on_beat_ack(s, &c); break; /* that it came is all it has to say */
    case WIRE_ENQUIRE: on_enquire(s, &c); break;
    case WIRE_SNAPSHOT_DONE: on_snapshot_done(s, &c); break;
    case WIRE_NOTICE: log_notice("%s", c.u.notice.text); break;
    case WIRE_WILL: s->will = c.u.verdict; break;
    case WIRE_COMMAND: on_command(s, &c); break;
    case WIRE_VERDICT: server_end(s, &c.u.verdict); break;
    case WIRE_STOP: server_end(s, NULL); break;
    default: break; /* for others */
    }
}

static void on_up(server *s)
{
    s->is_up = true;
    if (s->lost.due_ms != 0) /* something else may answer at its port: WELCOME counts */
        loop_timer_start(s->loop, &s->lost, loop_now_ms(s->loop) + BACK_MS, connection_lost, s);
    hello(s);
}

static void on_down(server *s)
{
    s->is_up = false;
    if (s->incarnation == 0) return; /* before the first answer, init_timeout_ms counts */
    if (s->lost.due_ms != 0) return; /* it was not back for good */
    loop_timer_start(s->loop, &s->lost, loop_now_ms(s->loop) + s->settings.down_grace_ms,
                     connection_lost, s);
}

static bool drain(void *user)
{
    server *s = user;
    int n     = 0;
    transport_event event;
    while (n < DRAIN_MESSAGES && !s->has_ended &&
           (event = (transport_event){0}, lifeline_recv(s->scheduler, &event)) == PEN_OK) {
        n++;
        if (event.kind == TRANSPORT_MESSAGE) receive(s, &event);
        if (event.kind == TRANSPORT_UP) on_up(s);
        if (event.kind == TRANSPORT_DOWN) on_down(s);
        /* one attempt may meet a scheduler that is just closing */
        if (event.kind == TRANSPORT_REFUSED && s->n_refused++ > 0 && log_allowed(1))
            log_warning("no scheduler at %s so far: %s", s->scheduler_address, event.note);
        buf_release(event.body);
    }
    return n > 0;
}

/* ---- life
 * -----------------------------------------------------------------------------------------------
 */
pen_status server_control_open(server *s, pen_error *why)
{
    transport_options options = lifeline_options(s->settings.lease_ms);
    options.head_bytes_max    = WIRE_HEAD_BYTES_MAX;
    s->arena                  = wire_arena_create(ARENA_BYTES_MAX);
    if (s->arena == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the control plane");
    guard_dial(s->guard, GUARD_SCHEDULER, &options);
    const pen_status status = lifeline_dial(s->scheduler_address, &options, &s->scheduler, why);
    if (status != PEN_OK) return status;
    s->started_ms = s->heard_ms = loop_now_ms(s->loop);
    loop_timer_start(s->loop, &s->hello, s->started_ms + HELLO_MS, hello, s);
    return loop_add(s->loop, lifeline_poll_fd(s->scheduler), drain, s, why);
}

void server_control_close(server *s)
{
    if (s->scheduler != NULL) loop_remove(s->loop, s);
    lifeline_close(s->scheduler, LINGER_MS);
    wire_arena_destroy(s->arena);
    wire_out_free(&s->out);
    s->scheduler = NULL;
    s->arena     = NULL;
}
