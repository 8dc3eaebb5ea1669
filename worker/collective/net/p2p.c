/* p2p.c - p2p messages, the messages between two members: matched by group, sender and tag, in the order sent.
 *
 * DESIGN
 * Small      p2p messages are sent at once with their bytes, within the receiver's budget for unread letters.
 * Others     are announced.  When a receive matches one, the receiver clears it, and its sections arrive on any lane,
 *            directly in the receive's buffer.  A send therefore never fills a peer's memory, and sends and receives
 *            that have all begun cannot wait for each other in a circle.
 * Order      of matching is the order of announcement; numbers reveal a p2p message that was lost with a connection.
 * Unfit      p2p messages (too large for the buffer, another type) fail the receive and stay for a later one.
 */
#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/containers/list.h"
#include "proto/plan.h"
#include "worker/collective/net/mesh_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_BYTES = 64 << 10, COST_BYTES = 256, WINDOW_BYTES = 8 << 20 };

typedef enum { RECV_WAITING, RECV_MOVING, SEND_ANNOUNCED, SEND_MOVING, SEND_LEAVING, ENDED } state;

struct mesh_message {
    mesh_message *next, *prev;
    wire_team *team;
    state state;
    int peer, tag; /* a receive's may be PEN_ANY; peer is set when it matches */
    uint8_t *data;
    size_t n, element;
    pen_dtype dtype;
    uint64_t id;                  /* of an announced p2p message, with its sender */
    size_t bytes, moved, allowed; /* of the p2p message; allowed: cleared so far */
    bool is_send;
    runner_debt debt;
    mesh_result result;
    char label[COLL_LABEL_BYTES], what[COLL_LABEL_BYTES + 8]; /* what: recv 'mail' */
};

/* ---- lists ----------------------------------------------------------------------------------- */
static mesh_message **list_of(mesh_message *one)
{
    return one->is_send ? &one->team->sending : &one->team->receiving;
}

static mesh_message *find_message(mesh_message *m, state is, int peer, uint64_t id)
{
    while (m != NULL && (m->state != is || m->peer != peer || m->id != id)) m = m->next;
    return m;
}

/* ---- endings --------------------------------------------------------------------------------- */
static void end_ok(mesh_message *one, int source, int tag, size_t count)
{
    one->state  = ENDED;
    one->result = (mesh_result){.status = PEN_OK, .source = source, .tag = tag, .count = count};
}

/* result.why is set already. */
static void end_failed(mesh_message *one, int position, int tag, size_t count)
{
    const int rank     = position >= 0 ? one->team->ranks[position] : -1;
    one->state         = ENDED;
    one->result.status = one->result.why.status;
    one->result.source = position;
    one->result.tag    = tag;
    one->result.count  = count;
    why_culprit(&one->result.why, PEN_WORKER, rank, -1, one->label);
}

/* ---- budget ---------------------------------------------------------------------------------- */
static size_t budget(const mesh *m)
{
    return mesh_eager_bytes(m, m->n_peers);
}

void p2p_credit(mesh *m, int rank, uint64_t credit)
{
    mesh_peer *p = &m->peer[rank];
    if (credit > p->p2p_back && credit <= p->p2p_out) p->p2p_back = credit;
}

void p2p_used_up(mesh *m, int rank, const wire_peer *head)
{
    mesh_peer *p = &m->peer[rank];
    pen_error why;
    if (head->kind != WIRE_LETTER || head->flags & WIRE_CALL_FIRST || rank == m->self) return;
    p->p2p_used += head->payload_bytes + COST_BYTES;
    if (p->p2p_used - p->p2p_told < budget(m) / 4) return;
    wire_peer credit = {.kind = WIRE_CREDIT, .credit = p->p2p_used};
    if (mesh_send_frame(m, rank, &credit, NULL, 0, NULL, &why) == PEN_OK) p->p2p_told = p->p2p_used;
}

/* ---- moving announced p2p messages ----------------------------------------------------------------- */
static pen_status clear(mesh_message *one, pen_error *why)
{
    one->allowed = one->moved + WINDOW_BYTES;
    if (one->allowed > one->bytes) one->allowed = one->bytes;
    wire_peer head = {
        .kind = WIRE_CLEAR, .group = one->team->id, .id = one->id, .credit = one->allowed};
    return mesh_send_frame(one->team->m, one->team->ranks[one->peer], &head, NULL, 0, NULL, why);
}

static void withdraw(wire_team *team, int position, uint64_t id)
{
    pen_error why;
    wire_peer head = {.kind = WIRE_WITHDRAWN, .group = team->id, .id = id};
    (void)mesh_send_frame(team->m, team->ranks[position], &head, NULL, 0, NULL, &why);
}

static void send_sections(mesh_message *one)
{
    wire_team *team = one->team;
    do {
        size_t bytes = one->allowed - one->moved;
        if (bytes > RUNNER_CHUNK_BYTES) bytes = RUNNER_CHUNK_BYTES;
        wire_peer head = {.kind   = WIRE_SECTION,
                          .group  = team->id,
                          .id     = one->id,
                          .offset = one->moved,
                          .total  = one->bytes,
                          .crc    = crc32c(0, one->data + one->moved, bytes)};
        if (mesh_send_frame(team->m, team->ranks[one->peer], &head, one->data + one->moved, bytes,
                            &one->debt, &one->result.why) != PEN_OK) {
            end_failed(one, one->peer, one->tag, 0);
            return;
        }
        one->moved += bytes;
    } while (one->moved < one->allowed);
    if (one->moved == one->bytes) one->state = SEND_LEAVING;
}

static void take_clear(wire_team *team, int from, const wire_peer *head)
{
    mesh_message *one = find_message(team->sending, SEND_ANNOUNCED, from, head->id);
    if (one == NULL) one = find_message(team->sending, SEND_MOVING, from, head->id);
    if (one == NULL) {
        withdraw(team, from, head->id);
        return;
    }
    const bool is_first = one->state == SEND_ANNOUNCED;
    if (head->credit > one->bytes || (!is_first && head->credit <= one->allowed)) return;
    one->state   = SEND_MOVING;
    one->allowed = head->credit;
    send_sections(one);
}

static bool is_sound(wire_team *team, mesh_message *one, const wire_peer *head, const buf *body)
{
    if (body == NULL || crc32c(0, body->data, body->size) == head->crc) return true;
    stat_add(team->m->o.stats, STAT_CORRUPT, 1);
    why_set(&one->result.why, PEN_CORRUPT,
            "%s: data of rank %d with tag %d arrived with a wrong checksum; check the memory and "
            "the network of both hosts",
            one->what, head->rank, one->result.tag);
    return false;
}

static void take_section(wire_team *team, int from, const wire_peer *head, const buf *body)
{
    mesh_message *one = find_message(team->receiving, RECV_MOVING, from, head->id);
    const size_t size = body != NULL ? body->size : 0;
    if (one == NULL) return; /* the receive was cancelled */
    if (head->total != one->bytes || size > one->bytes || head->offset > one->bytes - size) {
        mesh_refuse(team->m, "it does not fit its message", head);
        return;
    }
    if (!is_sound(team, one, head, body)) {
        end_failed(one, from, one->result.tag, 0);
        return;
    }
    if (size > 0) memcpy(one->data + head->offset, body->data, size);
    one->moved += size;
    if (one->moved >= one->bytes)
        end_ok(one, from, one->result.tag, one->bytes / one->element);
    else if (one->allowed < one->bytes && one->allowed - one->moved <= WINDOW_BYTES / 2 &&
             clear(one, &one->result.why) != PEN_OK)
        end_failed(one, from, one->result.tag, 0);
}

/* ---- matching -------------------------------------------------------------------------------- */
static bool matches(const mesh_message *one, int from, int tag)
{
    return one->state == RECV_WAITING && (one->peer == PEN_ANY || one->peer == from) &&
           (one->tag == PEN_ANY || one->tag == tag);
}

/* False: it does not fit, and the receive has failed. */
static bool fits(mesh_message *one, int from, const wire_peer *head)
{
    const int rank = one->team->ranks[from];
    if (head->dtype != (uint32_t)one->dtype) {
        why_set(&one->result.why, PEN_MISMATCH,
                "%s is for %s, but rank %d sent %llu %s with tag %d", one->what,
                plan_dtype_name(one->dtype), rank, (unsigned long long)head->total,
                plan_dtype_name((pen_dtype)head->dtype), head->tag);
    } else if (head->total > one->n) {
        why_set(&one->result.why, PEN_TOO_SMALL,
                "%s has room for %zu elements, but rank %d sent %llu with tag %d; the message "
                "waits for a larger receive",
                one->what, one->n, rank, (unsigned long long)head->total, head->tag);
    } else {
        return true;
    }
    end_failed(one, from, head->tag, head->total);
    return false;
}

/* A p2p message to oneself is copied from the sender's buffer. */
static void take_own(mesh_message *one, const wire_peer *head)
{
    mesh_message *from =
        find_message(one->team->sending, SEND_ANNOUNCED, one->team->rank, head->id);
    if (from == NULL) return; /* it was cancelled */
    if (from->bytes > 0) memmove(one->data, from->data, from->bytes);
    end_ok(one, one->team->rank, head->tag, from->bytes / one->element);
    end_ok(from, one->team->rank, head->tag, from->n);
}

static void take_bytes(mesh_message *one, int from, const wire_peer *head, const buf *body)
{
    wire_team *team = one->team;
    one->result.tag = head->tag;
    p2p_used_up(team->m, head->rank, head);
    if (head->payload_bytes != one->bytes) {
        why_set(&one->result.why, PEN_CORRUPT, "%s: %llu elements of rank %d have %llu bytes",
                one->what, (unsigned long long)head->total, head->rank,
                (unsigned long long)head->payload_bytes);
        end_failed(one, from, head->tag, 0);
    } else if (!is_sound(team, one, head, body)) {
        end_failed(one, from, head->tag, 0);
    } else {
        if (one->bytes > 0) memcpy(one->data, body->data, one->bytes);
        end_ok(one, from, head->tag, head->total);
    }
}

static void accept_message(mesh_message *one, int from, const wire_peer *head, const buf *body)
{
    one->bytes = head->total * one->element;
    if (!(head->flags & WIRE_CALL_FIRST)) {
        take_bytes(one, from, head, body);
    } else if (from == one->team->rank) {
        take_own(one, head);
    } else {
        one->state      = RECV_MOVING;
        one->peer       = from;
        one->id         = head->id;
        one->result.tag = head->tag;
        if (clear(one, &one->result.why) != PEN_OK) end_failed(one, from, head->tag, 0);
    }
}

/* True: a receive has it, or will have it. */
static bool offer(wire_team *team, int from, const wire_peer *head, const buf *body)
{
    for (mesh_message *one = team->receiving; one != NULL; one = one->next) {
        if (!matches(one, from, head->tag) || !fits(one, from, head)) continue;
        accept_message(one, from, head, body);
        return true;
    }
    return false;
}

static void on_message(wire_team *team, int from, const wire_peer *head, buf *body)
{
    if (head->seq <= team->p2p_from[from]) {
        mesh_refuse(team->m, "it came before", head);
        return;
    }
    if (head->seq > team->p2p_from[from] + 1)
        p2p_lost(team, from, MESH_BROKE, "its connection lost a message");
    team->p2p_from[from] = head->seq;
    if (!offer(team, from, head, body)) mesh_park(team->m, &team->p2p_messages, head, body);
}

/* Takes the oldest kept p2p message that matches. */
static void look_through(mesh_message *one)
{
    wire_team *team = one->team;
    mesh_parked *p  = team->p2p_messages;
    while (p != NULL && !matches(one, team->position[p->head.rank], p->head.tag)) p = p->next;
    if (p == NULL || !fits(one, team->position[p->head.rank], &p->head)) return;
    mesh_unpark(team->m, &team->p2p_messages, p);
    accept_message(one, team->position[p->head.rank], &p->head, p->body);
    mesh_drop(p);
}

static void forget_announced(wire_team *team, int from, uint64_t id)
{
    mesh_parked *p = team->p2p_messages;
    while (p != NULL && (team->position[p->head.rank] != from || p->head.id != id ||
                         (p->head.flags & WIRE_CALL_FIRST) == 0))
        p = p->next;
    if (p == NULL) return;
    mesh_unpark(team->m, &team->p2p_messages, p);
    mesh_drop(p);
}

static void take_withdrawn(wire_team *team, int from, uint64_t id)
{
    mesh_message *one = find_message(team->receiving, RECV_MOVING, from, id);
    forget_announced(team, from, id);
    if (one == NULL) return;
    why_set(&one->result.why, PEN_TIMED_OUT, "%s: rank %d cancelled its send", one->what,
            team->ranks[from]);
    end_failed(one, from, one->result.tag, 0);
}

void p2p_take(wire_team *team, int from, const wire_peer *head, buf *body)
{
    switch (head->kind) {
    case WIRE_LETTER: on_message(team, from, head, body); break;
    case WIRE_CLEAR: take_clear(team, from, head); break;
    case WIRE_SECTION: take_section(team, from, head, body); break;
    default: take_withdrawn(team, from, head->id); break;
    }
}

/* All of it was sent before the connection ended. */
static bool is_sent(const mesh_message *one)
{
    return one->state == SEND_LEAVING && one->debt.n == 0 && !one->debt.is_cancelled &&
           !mesh_has_posts(one->team->m, one->team->ranks[one->peer]);
}

/* A peer that left with a goodbye may have received what was being sent to it. */
void p2p_lost(wire_team *team, int position, mesh_loss loss, const char *how)
{
    mesh_message *const lists[] = {team->receiving, team->sending};
    for (int i = 0; i < 2; i++)
        for (mesh_message *one = lists[i]; one != NULL; one = one->next) {
            if (one->state == ENDED || one->peer != position || is_sent(one)) continue;
            if (loss == MESH_LEFT && one->state == SEND_LEAVING) continue;
            if (loss == MESH_BROKE_OUT && !one->is_send) continue;
            why_set(&one->result.why, PEN_PEER_LOST, "%s: rank %d: %s", one->what,
                    team->ranks[position], how);
            end_failed(one, position, one->tag, 0);
        }
}

/* ---- functions of mesh.h --------------------------------------------------------------------- */
static mesh_message *make_message(wire_team *team, bool is_send, int peer, int tag,
                                  const void *data, size_t n, pen_dtype dtype, const char *label)
{
    const char *verb  = is_send ? "send" : "recv";
    mesh_message *one = calloc(1, sizeof *one);
    if (one == NULL) return NULL;
    *one            = (mesh_message){.team    = team,
                                     .is_send = is_send,
                                     .peer    = peer,
                                     .tag     = tag,
                                     .data    = (uint8_t *)(uintptr_t)data,
                                     .n       = n,
                                     .dtype   = dtype,
                                     .element = plan_dtype_bytes(dtype),
                                     .result  = {.source = peer, .tag = tag}};
    one->debt.owner = one;
    one->bytes      = n * one->element;
    snprintf(one->label, sizeof one->label, "%s", label != NULL ? label : "");
    const char *quote = one->label[0] != '\0' ? "'" : "";
    snprintf(one->what, sizeof one->what, "%s%s%s%s%s", verb, quote[0] != '\0' ? " " : "", quote,
             one->label, quote);
    return one;
}

static pen_status send_message(mesh_message *one, wire_peer *head, pen_error *why)
{
    mesh *m           = one->team->m;
    mesh_peer *p      = &m->peer[one->team->ranks[one->peer]];
    const size_t cost = one->bytes + COST_BYTES, most = budget(m);
    const bool is_small =
        one->bytes <= SMALL_BYTES && cost <= most / 4 && p->p2p_out - p->p2p_back + cost <= most;
    if (is_small) {
        head->crc  = crc32c(0, one->data, one->bytes);
        one->state = SEND_LEAVING;
    } else {
        head->flags = WIRE_CALL_FIRST;
        one->state  = SEND_ANNOUNCED;
    }
    pen_status status = mesh_send_frame(m, one->team->ranks[one->peer], head, one->data,
                                        is_small ? one->bytes : 0, &one->debt, why);
    if (status == PEN_OK && is_small) p->p2p_out += cost;
    return status;
}

/* To oneself: announced without a message. */
static void send_own(mesh_message *one, wire_peer *head)
{
    wire_team *team = one->team;
    head->rank      = team->m->self;
    head->flags     = WIRE_CALL_FIRST;
    one->state      = SEND_ANNOUNCED;
    if (!offer(team, team->rank, head, NULL)) mesh_park(team->m, &team->p2p_messages, head, NULL);
}

pen_status mesh_send(wire_team *team, int to, int tag, const void *data, size_t n, pen_dtype dtype,
                     const char *label, mesh_message **message, pen_error *why)
{
    mesh_message *one = make_message(team, true, to, tag, data, n, dtype, label);
    pen_status status = PEN_OK;
    if (one == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a message");
    if (team->m->peer[team->ranks[to]].has_left) {
        why_set(why, PEN_PEER_LOST, "%s: rank %d has left the job", one->what, team->ranks[to]);
        free(one);
        return PEN_PEER_LOST;
    }
    one->id        = ++team->m->next_message;
    wire_peer head = {.kind  = WIRE_LETTER,
                      .group = team->id,
                      .seq   = team->p2p_to[to] + 1,
                      .total = n,
                      .tag   = tag,
                      .dtype = (uint32_t)dtype,
                      .id    = one->id,
                      .label = one->label};
    LIST_APPEND(team->sending, one);
    if (to == team->rank)
        send_own(one, &head);
    else
        status = send_message(one, &head, why);
    if (status != PEN_OK) {
        LIST_REMOVE(team->sending, one);
        free(one);
        return status;
    }
    team->p2p_to[to]++;
    *message = one;
    return PEN_OK;
}

pen_status mesh_recv(wire_team *team, int from, int tag, void *data, size_t n, pen_dtype dtype,
                     const char *label, mesh_message **message, pen_error *why)
{
    mesh_message *one = make_message(team, false, from, tag, data, n, dtype, label);
    if (one == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a message");
    one->state = RECV_WAITING;
    LIST_APPEND(team->receiving, one);
    look_through(one);
    const bool is_gone =
        from >= 0 && from != team->rank &&
        (team->m->peer[team->ranks[from]].is_lost || mesh_is_away(team->m, team->ranks[from]));
    if (one->state == RECV_WAITING && is_gone) {
        why_set(why, PEN_PEER_LOST, "%s: rank %d is gone", one->what, team->ranks[from]);
        LIST_REMOVE(team->receiving, one);
        free(one);
        return PEN_PEER_LOST;
    }
    *message = one;
    return PEN_OK;
}

static bool has_left(mesh_message *one)
{
    mesh *m = one->team->m;
    mesh_collect(m);
    if (one->debt.n > 0) mesh_await_returns(m);
    return one->debt.n == 0 && !mesh_has_posts(m, one->team->ranks[one->peer]);
}

bool mesh_test(mesh_message *one, mesh_result *result)
{
    if (one->state == SEND_LEAVING && has_left(one)) {
        end_ok(one, one->peer, one->tag, one->n);
        if (one->debt.is_cancelled) {
            why_set(&one->result.why, PEN_PEER_LOST,
                    "%s: the connection to rank %d ended before everything was sent", one->what,
                    one->team->ranks[one->peer]);
            end_failed(one, one->peer, one->tag, 0);
        }
    }
    if (one->state != ENDED || one->debt.n > 0) return false;
    *result = one->result;
    LIST_REMOVE(*list_of(one), one);
    free(one);
    return true;
}

void mesh_cancel(mesh_message *one)
{
    wire_team *team   = one->team;
    const bool is_out = one->state == SEND_ANNOUNCED || one->state == SEND_MOVING;
    mesh_settle(team->m, one, MESH_GRACE_MS);
    if (is_out && one->peer == team->rank)
        take_withdrawn(team, team->rank, one->id);
    else if (is_out)
        withdraw(team, one->peer, one->id);
    LIST_REMOVE(*list_of(one), one);
    free(one);
}

void p2p_free(wire_team *team)
{
    while (team->receiving != NULL) mesh_cancel(team->receiving);
    while (team->sending != NULL) mesh_cancel(team->sending);
    for (mesh_parked *p; (p = mesh_unpark_first(team->m, &team->p2p_messages)) != NULL;) {
        p2p_used_up(team->m, p->head.rank, &p->head);
        mesh_drop(p);
    }
}
