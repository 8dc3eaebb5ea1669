/* wire.c - collectives over the mesh: the path of groups whose members share no memory.
 *
 * DESIGN
 * Headers.  A call's header goes to every member, with the first part for it if there is one.  Larger parts are sent after
 *           the receiver's header has arrived.  A header that differs makes the call suspect: nothing more is computed,
 *           and when all headers have arrived every member derives the same sentence from them.
 * Fewer.    Where each result needs an input of every member, a call proves itself: between two members whose headers
 *           differ, someone on the way of the data sees two that differ, and stops.  So a call that ends was alike on
 *           all members.  Its headers go along with the data; all others are sent only if it takes longer than show_ms,
 *           for then a sentence may have to name who is missing.
 * Many.     In teams of more than MESH_DIAL_ALL no header goes to all.  Calls that do not prove themselves agree along a
 *           binomial tree: a SHOW to the parent says that all below are alike, one from the parent that all are.  Who
 *           sees a difference makes the sentence from the two headers, and the engine asks the job to send it to all.
 */
#include "common/base/clock.h"
#include "common/base/crc.h"
#include "common/base/why.h"
#include "worker/collective/fault_point.h"
#include "worker/collective/net/mesh_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_BYTES = 8 << 20, LEAVE_MS = 2000 };

typedef struct {
    wire_team *team;
} wire_op;
_Static_assert(sizeof(wire_op) <= COLL_OP_BYTES, "an op is the engine's memory");

/* ---- failing --------------------------------------------------------------------------------- */
/* "all_reduce 'loss' (call 4): " and what happened; keeps the first failure. */
__attribute__((format(printf, 4, 5))) static void run_fail(wire_team *team, pen_status status,
                                                           int position, const char *format, ...)
{
    wire_run *run = &team->run;
    char what[512];
    va_list args;
    if (!run->is_running || run->has_failed) return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const bool is_named = run->own.label[0] != '\0';
    why_set(&run->why, status, "%s%s%s%s (call %llu): %s", coll_kind_name(run->call.kind),
            is_named ? " '" : "", run->own.label, is_named ? "'" : "", (unsigned long long)run->seq,
            what);
    why_culprit(&run->why, PEN_WORKER, position >= 0 ? team->ranks[position] : -1, -1,
                run->own.label);
    run->has_failed = true;
}

static void end_run(wire_team *team)
{
    wire_run *run = &team->run;
    transport_unplace(team->m->listener, run);
    mesh_clear(team->m, &run->parked);
    runner_drop(&run->runner);
    run->ended      = run->seq;
    run->is_running = false;
}

/* Afterwards no peer reads or writes this member's buffers. */
static void stop_run(wire_team *team)
{
    if (!team->run.is_running) return;
    mesh_settle(team->m, &team->run, MESH_GRACE_MS);
    end_run(team);
}

void wire_free(wire_team *team)
{
    stop_run(team);
    mesh_clear(team->m, &team->run.next);
    runner_fini(&team->run.runner);
    for (int i = 0; i < WIRE_PLANS; i++) runner_plan_fini(&team->plan[i].plan);
}

/* ---- plans ----------------------------------------------------------------------------------- */
static wire_plan *oldest(wire_team *team)
{
    wire_plan *p = &team->plan[0];
    for (int i = 1; i < WIRE_PLANS; i++)
        if (team->plan[i].used_at < p->used_at) p = &team->plan[i];
    return p;
}

static const runner_plan *find_plan(wire_team *team, const coll_call *call, uint64_t seq,
                                    pen_error *why)
{
    const mesh_options *o      = &team->m->o;
    const schedule_order order = !o->deterministic     ? SCHEDULE_ANY_ORDER
                                 : team->order == NULL ? SCHEDULE_RANK_ORDER
                                                       : SCHEDULE_OTHER_ORDER;
    const schedule_algorithm *a =
        schedule_for_call(o->table, call, team->size, order, team->is_on_one_host);
    schedule *s;
    for (int i = 0; i < WIRE_PLANS; i++) {
        wire_plan *p = &team->plan[i];
        if (p->algorithm != a || p->kind != call->kind || p->root != call->root) continue;
        p->used_at = seq;
        return &p->plan;
    }
    wire_plan *p = oldest(team);
    runner_plan_fini(&p->plan);
    *p = (wire_plan){0};
    if (a->build(call->kind, team->size, team->rank, call->root, &s) != PEN_OK) {
        why_set(why, PEN_NO_MEMORY, "no memory for a schedule of %s", coll_kind_name(call->kind));
        return NULL;
    }
    if (runner_plan_init(&p->plan, s, team->size, why) != PEN_OK) return NULL;
    p->algorithm = a;
    p->kind      = call->kind;
    p->root      = call->root;
    p->used_at   = seq;
    return &p->plan;
}

/* ---- headers --------------------------------------------------------------------------------- */
static void attach_show(const wire_run *run, wire_peer *head)
{
    const coll_header *h = &run->own;
    head->has_show       = true;
    head->show           = (wire_show){.kind   = (uint32_t)h->kind,
                                       .op     = (uint32_t)h->op,
                                       .dtype  = (uint32_t)h->dtype,
                                       .root   = h->root,
                                       .n      = h->n,
                                       .counts = h->counts,
                                       .label  = h->label};
    if (run->call.scale == 1) return;
    head->flags |= WIRE_SCALED;
    head->scale = run->call.scale;
}

static wire_mate *touch(wire_team *team, int position)
{
    wire_mate *mate = &team->mate[position];
    if (!mate->is_touched) team->touched[team->n_touched++] = position;
    mate->is_touched = true;
    return mate;
}

static void show(wire_team *team, int to, uint32_t flags)
{
    wire_run *run  = &team->run;
    wire_peer head = {.kind = WIRE_SHOW, .group = team->id, .seq = run->seq};
    pen_error why;
    attach_show(run, &head);
    head.flags |= flags;
    touch(team, to)->is_told = true;
    if (mesh_send_frame(team->m, team->ranks[to], &head, NULL, 0, NULL, &why) != PEN_OK)
        run_fail(team, why.status, to, "%s", why.text);
}

/* To this call; it may be in the next one already. */
static bool has_come(const wire_team *team, int position)
{
    const wire_mate *mate = &team->mate[position];
    return mate->now.has || (mate->next.has && mate->next.seq > team->run.seq);
}

/* To those who send much, and wait for it before they do. */
static void show_to_senders(wire_team *team)
{
    const schedule *s = team->run.plan->s;
    for (uint32_t m = 0; m < s->n_moves && !team->run.has_failed; m++) {
        const int to = s->moves[m].peer;
        if (s->moves[m].verb == MOVE_RECV && !team->mate[to].is_told &&
            runner_missing(&team->run.runner, to) > team->run.eager)
            show(team, to, 0);
    }
}

/* Who has not shown itself may have ended the call, and is asked.  A scale or a difference is known to all before any of
 * them ends. */
static void show_to_all(wire_team *team)
{
    wire_run *run   = &team->run;
    const bool asks = run->proves_itself && !run->is_scaled && !run->is_suspect;
    for (int i = 1; i < team->size && !run->has_failed; i++) {
        const int to = (team->rank + i) % team->size; /* members start with different peers */
        if (!team->mate[to].is_told || (asks && !has_come(team, to))) show(team, to, 0);
    }
    run->has_shown = true;
}

static bool is_alike(const coll_header *a, const coll_header *b)
{
    return a->seq == b->seq && a->n == b->n && a->counts == b->counts && a->kind == b->kind &&
           a->op == b->op && a->dtype == b->dtype && a->root == b->root;
}

static void note(wire_shown *shown, const wire_peer *head)
{
    const wire_show *s = &head->show;
    *shown             = (wire_shown){.has    = true,
                                      .seq    = head->seq,
                                      .scale  = head->flags & WIRE_SCALED ? head->scale : 1,
                                      .header = {.seq    = head->seq,
                                                 .n      = s->n,
                                                 .counts = s->counts,
                                                 .kind   = (int32_t)s->kind,
                                                 .op     = (int32_t)s->op,
                                                 .dtype  = (int32_t)s->dtype,
                                                 .root   = s->root}};
    snprintf(shown->header.label, sizeof shown->header.label, "%s", s->label);
}

static void count_shown(wire_team *team, int from)
{
    wire_run *run = &team->run;
    run->n_shown++;
    if (run->is_suspect || is_alike(&team->mate[from].now.header, &run->own)) return;
    run->is_suspect = true;
    run->suspect    = from;
}

static void note_agreement(wire_shown *shown, const wire_peer *head)
{
    if (head->kind != WIRE_SHOW || (head->flags & WIRE_AGREES) == 0) return;
    shown->agrees = true;
    shown->refuses |= (head->flags & WIRE_REFUSES) != 0;
}

/* ---- agreement in large teams -------------------------------------------------------------------- */
/* The neighbour in the tree whose word is missing; -1: none. */
static int find_silent(const wire_team *team)
{
    const int own = team->rank, span = schedule_tree_span(own, team->size);
    for (int k = 1; k < span && own + k < team->size; k *= 2)
        if (!team->mate[own + k].now.agrees) return own + k;
    return own > 0 && !team->mate[own - span].now.agrees ? own - span : -1;
}

/* The header that differs may be known here only: the job sends the sentence to all. */
static void fail_with_difference(wire_team *team)
{
    wire_run *run                = &team->run;
    const bool own_first         = team->rank < run->suspect;
    const int first              = own_first ? team->rank : run->suspect,
              second             = own_first ? run->suspect : team->rank;
    const coll_header *headers[] = {&team->mate[first].now.header, &team->mate[second].now.header};
    const int ranks[]            = {team->ranks[first], team->ranks[second]};
    pen_error why;
    if (coll_headers_compare(headers, ranks, 2, &why) == PEN_OK)
        run_fail(team, PEN_MISMATCH, run->suspect, "rank %d shows another call",
                 team->ranks[run->suspect]);
    else
        run->why = why;
    run->has_failed = true;
}

static void agree_along_tree(wire_team *team)
{
    wire_run *run = &team->run;
    const int own = team->rank, span = schedule_tree_span(own, team->size);
    bool refuses = run->call.accepts != NULL && !*run->call.accepts;
    if (run->is_suspect) fail_with_difference(team);
    if (run->has_failed || run->proves_itself || run->has_agreed) return;
    const int silent = find_silent(team);
    if (silent > own) return;
    for (int k = 1; k < span && own + k < team->size; k *= 2)
        refuses |= team->mate[own + k].now.refuses;
    if (!run->has_raised && own > 0)
        show(team, own - span, WIRE_AGREES | (refuses ? WIRE_REFUSES : 0));
    run->has_raised = true;
    if (silent >= 0) return;
    refuses |= own > 0 && team->mate[own - span].now.refuses;
    for (int k = 1; k < span && own + k < team->size; k *= 2)
        show(team, own + k, WIRE_AGREES | (refuses ? WIRE_REFUSES : 0));
    if (run->call.accepts != NULL) *run->call.accepts = !refuses;
    run->has_agreed = true;
}

/* ---- the runner's link ------------------------------------------------------------------------- */
static bool may_send(void *user, int peer, size_t bytes)
{
    wire_team *team        = user;
    const wire_mate *mate  = &team->mate[peer];
    const size_t under_way = mate->sent - mate->back;
    if (team->m->peer[team->ranks[peer]].has_left) return true;
    if (!mate->now.has) return mate->sent + bytes <= team->run.eager;
    return under_way == 0 || under_way + bytes <= team->run.window;
}

/* The CRC of bytes that go to several members is computed once, while nothing has changed. */
static uint32_t sum_up(wire_run *run, const void *data, size_t bytes)
{
    if (run->crc_data != data || run->crc_bytes != bytes || run->crc_turn != run->runner.turn) {
        run->crc       = crc32c(0, data, bytes);
        run->crc_data  = data;
        run->crc_bytes = bytes;
        run->crc_turn  = run->runner.turn;
    }
    return run->crc;
}

static pen_status send_part(void *user, const runner_part *part, const void *data, size_t bytes,
                            runner_debt *debt, pen_error *why)
{
    wire_team *team = user;
    wire_run *run   = &team->run;
    wire_mate *mate = touch(team, part->peer);
    wire_peer head  = {.kind    = WIRE_PART,
                       .group   = team->id,
                       .seq     = run->seq,
                       .segment = part->segment,
                       .slot    = part->slot,
                       .offset  = part->offset,
                       .total   = part->total,
                       .crc     = sum_up(run, data, bytes)};
    if (!mate->is_told) attach_show(run, &head);
    if (run->is_scaled) head.flags |= WIRE_SCALES;
    debt->owner = run;
    pen_status status =
        mesh_send_frame(team->m, team->ranks[part->peer], &head, data, bytes, debt, why);
    if (status != PEN_OK) return status;
    mate->is_told = true;
    mate->sent += bytes;
    stat_add(team->m->o.stats, STAT_COLL_BYTES, bytes);
    return PEN_OK;
}

static bool get_scale(void *user, int position, double *scale)
{
    const wire_team *team   = user;
    const wire_shown *shown = &team->mate[position].now;
    *scale                  = shown->has ? shown->scale : 1;
    return shown->has || (team->run.proves_itself && !team->run.is_scaled);
}

static void at_step(void *user, uint32_t step)
{
    const wire_team *team = user;
    (void)team, (void)step;
    FAULT_POINT("wire", team->run.seq, step);
}

static const runner_link link_of_team = {.may_send = may_send,
                                         .send     = send_part,
                                         .scale    = get_scale,
                                         .step     = HAS_FAULT_POINTS ? at_step : NULL};

/* ---- incoming data --------------------------------------------------------------------------- */
static void tell_used(wire_team *team, int from, size_t bytes)
{
    wire_mate *mate = &team->mate[from];
    pen_error why;
    mate->used += bytes;
    if (mate->used - mate->told < team->run.window / 4) return;
    mate->told     = mate->used;
    wire_peer head = {
        .kind = WIRE_CREDIT, .group = team->id, .seq = team->run.seq, .credit = mate->used};
    if (mesh_send_frame(team->m, team->ranks[from], &head, NULL, 0, NULL, &why) != PEN_OK)
        run_fail(team, why.status, from, "%s", why.text);
}

static runner_part part_of(int from, const wire_peer *head)
{
    return (runner_part){.peer    = from,
                         .segment = head->segment,
                         .slot    = head->slot,
                         .offset  = head->offset,
                         .total   = head->total};
}

static void fill(wire_team *team, int from, const wire_peer *head, buf *body, void *place)
{
    const runner_part part = part_of(from, head);
    if (crc32c(0, body->data, body->size) != head->crc) {
        stat_add(team->m->o.stats, STAT_CORRUPT, 1);
        run_fail(team, PEN_CORRUPT, from,
                 "data of rank %d arrived with a wrong checksum; check the memory and the network "
                 "of both hosts",
                 team->ranks[from]);
        return;
    }
    if (body->data != place && !runner_keep(&team->run.runner, &part, body))
        memcpy(place, body->data, body->size);
    runner_filled(&team->run.runner, &part, body->size);
    tell_used(team, from, body->size);
}

void *wire_place(wire_team *team, int from, const wire_peer *head)
{
    wire_run *run          = &team->run;
    const runner_part part = part_of(from, head);
    const size_t bytes     = (size_t)head->payload_bytes;
    void *place;
    wire_shown shown = team->mate[from].now;
    if (!shown.has && head->has_show) note(&shown, head);
    const bool may_take = run->is_running && head->seq == run->seq && !run->has_failed &&
                          !run->is_suspect && is_alike(&shown.header, &run->own) &&
                          !runner_may_keep(&run->runner, &part, bytes);
    return may_take && runner_place(&run->runner, &part, bytes, &place) == RUNNER_PLACED ? place
                                                                                         : NULL;
}

/* False: the caller keeps the part: it is early, or its sender's header came another way and is not here yet. */
static bool take_part(wire_team *team, int from, const wire_peer *head, buf *body)
{
    wire_run *run          = &team->run;
    const runner_part part = part_of(from, head);
    void *place;
    if (run->has_failed || body == NULL) return true;
    if (!team->mate[from].now.has || (run->is_suspect && body != team->m->placed)) return false;
    run->is_scaled |= (head->flags & WIRE_SCALES) != 0;
    switch (runner_place(&run->runner, &part, body->size, &place)) {
    case RUNNER_PLACED: fill(team, from, head, body, place); return true;
    case RUNNER_LATER: return false;
    case RUNNER_WRONG: break;
    }
    run_fail(team, PEN_MISMATCH, from,
             "rank %d follows another schedule; the settings of collectives must be the same on "
             "all ranks",
             team->ranks[from]);
    return true;
}

static void fail_torn(wire_team *team)
{
    run_fail(team, PEN_NO_MEMORY, -1,
             "no room for early messages; raise park_bytes_max, or give this process more memory");
}

void wire_starve(wire_team *team)
{
    team->run.next_is_torn = true;
    if (team->run.is_running && !team->run.has_failed) fail_torn(team);
}

static void take_early(wire_team *team, int from, const wire_peer *head, buf *body)
{
    if (head->has_show) {
        wire_mate *mate = touch(team, from);
        note(&mate->next, head);
        note_agreement(&mate->next, head);
    }
    if (head->kind == WIRE_PART)
        team->run.next_is_torn |= !mesh_park(team->m, &team->run.next, head, body);
}

/* True: some kept parts have found their place. */
static bool offer_parked(wire_team *team)
{
    mesh_early_queue all = team->run.parked;
    team->run.parked     = NULL;
    bool any             = false;
    for (mesh_parked *p; (p = mesh_unpark_first(team->m, &all)) != NULL;) {
        const int from = team->position[p->head.rank];
        const bool is_taken =
            p->head.seq != team->run.seq || take_part(team, from, &p->head, p->body);
        if (!is_taken) mesh_park(team->m, &team->run.parked, &p->head, p->body);
        any |= is_taken;
        mesh_drop(p);
    }
    return any;
}

void wire_take(wire_team *team, int from, const wire_peer *head, buf *body)
{
    wire_run *run   = &team->run;
    wire_mate *mate = &team->mate[from];
    if (head->seq <= run->ended || (run->is_running && head->seq < run->seq)) {
        /* It waits in a call that has ended here, and asks who is missing there. */
        if (head->has_show && !mate->is_told && run->seq > 0 && run->seq <= head->seq + 1 &&
            !team->is_large)
            show(team, from, 0);
        return;
    }
    if (!run->is_running || head->seq > run->seq) {
        take_early(team, from, head, body);
        return;
    }
    if (head->kind == WIRE_CREDIT) {
        if (head->credit > mate->back && head->credit <= mate->sent) mate->back = head->credit;
        return;
    }
    touch(team, from);
    if (head->has_show && !mate->now.has) {
        note(&mate->now, head);
        count_shown(team, from);
        (void)offer_parked(team);
    }
    note_agreement(&mate->now, head);
    if (head->kind == WIRE_PART && !take_part(team, from, head, body) &&
        !mesh_park(team->m, &run->parked, head, body))
        fail_torn(team);
}

static void agree(wire_team *team)
{
    wire_run *run = &team->run;
    const coll_header *headers[MESH_DIAL_ALL];
    pen_error why;
    if (run->is_suspect) {
        for (int i = 0; i < team->size; i++) headers[i] = &team->mate[i].now.header;
        if (coll_headers_compare(headers, team->ranks, team->size, &why) != PEN_OK) {
            run->why         = why;
            run->has_failed  = true;
            run->leave_by_ms = clock_ms(&clock_real) + LEAVE_MS;
            return;
        }
        run->is_suspect = false;
        offer_parked(team);
    }
    run->has_agreed = true;
}

static size_t parked_of(const wire_team *team, int position)
{
    size_t sum = 0;
    for (const mesh_parked *p = team->run.parked; p != NULL; p = p->next)
        if (p->head.seq == team->run.seq && p->head.rank == team->ranks[position] && p->body)
            sum += p->body->size;
    return sum;
}

bool wire_minds(const wire_team *team, int position)
{
    const wire_run *run = &team->run;
    if (!run->is_running || run->has_failed) return false;
    const bool needs_header = (!run->proves_itself && !run->has_agreed &&
                               (!team->is_large || position == find_silent(team))) ||
                              (run->is_suspect && !team->is_large);
    const wire_shown *shown = &team->mate[position].now;
    return (needs_header && !(team->is_large ? shown->agrees : shown->has)) ||
           runner_missing(&run->runner, position) > parked_of(team, position);
}

void wire_lost(wire_team *team, int position, mesh_loss loss, const char *how)
{
    const wire_run *run = &team->run;
    const int rank      = team->ranks[position];
    if (!run->is_running || run->has_failed) return;
    const bool owes =
        loss != MESH_LEFT && (runner_owes(&run->runner, position) || mesh_has_posts(team->m, rank));
    const bool waits = loss != MESH_BROKE_OUT && wire_minds(team, position);
    if (owes || waits)
        run_fail(team, PEN_PEER_LOST, position, "rank %d (%s): %s", rank, team->m->peer[rank].host,
                 how);
}

/* ---- the path -------------------------------------------------------------------------------- */
static void begin_mates(wire_team *team, uint64_t seq)
{
    wire_run *run   = &team->run;
    const int n     = team->n_touched;
    team->n_touched = 0;
    for (int k = 0; k < n; k++) {
        const int i           = team->touched[k];
        wire_mate *mate       = &team->mate[i];
        const bool is_there   = mate->next.has && mate->next.seq == seq;
        const wire_shown next = mate->next;
        *mate                 = (wire_mate){.now = is_there ? next : (wire_shown){0}};
        if (next.has && next.seq > seq) mate->next = next;
        if (mate->now.has || mate->next.has) touch(team, i);
        if (mate->now.has) count_shown(team, i);
    }
    touch(team, team->rank)->now =
        (wire_shown){.has = true, .seq = seq, .header = run->own, .scale = run->call.scale};
    count_shown(team, team->rank);
}

/* Each result needs elements of every member's input, and they are sent. */
static bool proves_itself(const coll_call *call, const schedule *s)
{
    const bool needs_all = call->kind == COLL_ALL_REDUCE || call->kind == COLL_ALL_GATHER ||
                           call->kind == COLL_REDUCE_SCATTER;
    return needs_all && call->counts == NULL && call->n >= (s->by_counts ? 1 : s->units);
}

static pen_status wire_start(void *user, void *memory, const coll_call *call, uint64_t seq,
                             pen_error *why)
{
    wire_team *team    = user;
    wire_run *run      = &team->run;
    *(wire_op *)memory = (wire_op){.team = team};
    if (run->is_running)
        return why_set(why, PEN_WRONG_STATE, "a call of this group is still in progress");
    const runner_plan *plan = find_plan(team, call, seq, why);
    if (plan == NULL) return why->status;
    pen_status status =
        runner_start(&run->runner, plan, call, team->size, team->rank, &link_of_team, team, why);
    if (status != PEN_OK) return status;
    run->runner.order = team->order;
    run->is_running   = true;
    run->has_begun = run->is_suspect = run->has_failed = run->has_agreed = run->has_shown = false;
    run->proves_itself = proves_itself(call, plan->s);
    run->is_scaled     = call->scale != 1 && !plan->s->scales_first;
    run->show_at_ms    = run->proves_itself ? clock_ms(&clock_real) + team->m->o.show_ms : 0;
    run->has_raised    = false;
    run->plan          = plan;
    run->seq           = seq;
    run->call          = *call;
    run->n_shown       = 0;
    run->leave_by_ms   = 0;
    run->crc_data      = NULL;
    run->eager         = mesh_eager_bytes(team->m, team->size);
    run->window        = 2 * run->eager < WINDOW_BYTES ? 2 * run->eager : WINDOW_BYTES;
    run->parked        = run->next;
    run->next          = NULL;
    coll_header_of(call, team->size, seq, &run->own);
    begin_mates(team, seq);
    if (run->next_is_torn) fail_torn(team);
    run->next_is_torn = false;
    return PEN_OK;
}

/* Sends this member's header where it is needed, and compares those of the others. */
static void tend_headers(wire_team *team)
{
    wire_run *run     = &team->run;
    const bool to_all = team->is_large ? run->is_scaled
                                       : run->is_suspect || run->is_scaled ||
                                             clock_ms(&clock_real) >= run->show_at_ms;
    if (!run->has_shown && to_all)
        show_to_all(team);
    else if (!run->has_begun)
        show_to_senders(team);
    if (!run->has_begun) {
        /* A peer that left before this call began here sends no message about it. */
        for (int i = 0; i < team->size && team->m->n_left > 0; i++)
            if (mesh_is_away(team->m, team->ranks[i]))
                wire_lost(team, i, MESH_LEFT, "it has left the job");
    }
    run->has_begun = true;
    if (team->is_large)
        agree_along_tree(team);
    else if (!run->has_failed && !run->has_agreed && run->n_shown == team->size)
        agree(team);
}

static bool has_left(const wire_team *team)
{
    for (int i = 0; i < team->size && team->m->n_posts > 0; i++)
        if (i != team->rank && mesh_has_posts(team->m, team->ranks[i])) return false;
    return true;
}

static coll_state finish(wire_team *team)
{
    runner_finish(&team->run.runner);
    stat_add(team->m->o.stats, STAT_COLL_OPS, 1);
    end_run(team);
    return COLL_DONE;
}

/* The others need this member's header to find the same sentence: it must be sent completely. */
static bool must_stay(wire_team *team)
{
    const wire_run *run = &team->run;
    if (run->leave_by_ms == 0 || clock_ms(&clock_real) >= run->leave_by_ms) return false;
    if (runner_lent(&run->runner) > 0) mesh_await_returns(team->m);
    return !has_left(team) || runner_lent(&run->runner) > 0;
}

static coll_state wire_advance(void *memory, pen_error *why)
{
    wire_team *team = ((wire_op *)memory)->team;
    wire_run *run   = &team->run;
    pen_error reason;
    int rank = -1;
    for (bool did = !run->has_failed; did;) {
        while (did && !run->is_suspect && !run->has_failed) {
            const uint64_t turn = run->runner.turn;
            did                 = false;
            if (runner_advance(&run->runner, &did, &reason) != PEN_OK)
                run_fail(team, reason.status, -1, "%s", reason.text);
            if (run->runner.turn != turn) did |= offer_parked(team);
        }
        tend_headers(team);
        if (runner_is_cancelled(&run->runner, &rank))
            run_fail(team, PEN_PEER_LOST, team->position[rank],
                     "rank %d (%s): its connection ended before it had sent everything", rank,
                     team->m->peer[rank].host);
        const uint32_t lent = runner_lent(&run->runner);
        did                 = !run->has_failed && run->runner.is_blocked && lent > 0;
        if (did) mesh_await_returns(team->m);
        did = did && runner_lent(&run->runner) < lent;
    }
    if (run->has_failed && must_stay(team)) return COLL_RUNNING;
    if (run->has_failed) {
        if (why != NULL) *why = run->why;
        stop_run(team);
        return COLL_FAILED;
    }
    const bool is_alike_here = run->has_agreed || (run->proves_itself && !run->is_suspect);
    if (!is_alike_here || !has_left(team)) return COLL_RUNNING;
    if (!runner_is_done(&run->runner) && runner_lent(&run->runner) > 0) mesh_await_returns(team->m);
    return runner_is_done(&run->runner) ? finish(team) : COLL_RUNNING;
}

static void wire_abort(void *memory)
{
    stop_run(((wire_op *)memory)->team);
}

static int wire_missing(void *memory, int *positions, int cap)
{
    const wire_team *team = ((wire_op *)memory)->team;
    const wire_run *run   = &team->run;
    int n                 = 0;
    const int silent =
        team->is_large && !run->proves_itself && !run->has_agreed ? find_silent(team) : -1;
    if (silent >= 0 && cap > 0) positions[n++] = silent;
    for (int i = 0; !team->is_large && i < team->size && n < cap; i++)
        if (!has_come(team, i)) positions[n++] = i;
    for (int i = 0, all_came = n == 0; i < team->size && n < cap && all_came; i++)
        if (i != team->rank && runner_expects(&run->runner, i)) positions[n++] = i;
    return n;
}

const coll_path coll_path_wire = {.name    = "wire",
                                  .start   = wire_start,
                                  .advance = wire_advance,
                                  .abort   = wire_abort,
                                  .missing = wire_missing};
