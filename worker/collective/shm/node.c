/* node.c - one call among members of a host: arrival and agreement. */
#include "worker/collective/shm/node_internal.h"

#include "common/base/why.h"
#include "proto/plan.h"

#include <string.h>

/* ---- starting -------------------------------------------------------------------------------- */
/* Whether writing the output would change the input. */
static bool overlaps(const node_op *op)
{
    const coll_call *c      = op->call;
    const unsigned char *in = c->in, *out = c->out;
    const bool gathers = c->kind == COLL_GATHER || c->kind == COLL_ALL_GATHER;
    if (c->kind == COLL_BROADCAST || op->in_bytes == 0 || op->out_bytes == 0) return false;
    if (gathers && in == out + coll_part_offset(c->counts, c->n, op->team->rank) * op->element)
        return false; /* the part is in its place already */
    return coll_overlap(in, op->in_bytes, out, op->out_bytes);
}

static bool is_aligned(const node_op *op, const void *data)
{
    return (uintptr_t)data % op->element == 0;
}

static pen_status publish_in(node_op *op, node_entry *e, pen_error *why)
{
    op->own.publish = NODE_NOTHING;
    if (op->in_bytes == 0) return PEN_OK;
    if (op->in_bytes <= node_inline_max(op)) {
        op->own.publish = NODE_INLINE;
        memcpy(e->payload, op->call->in, op->in_bytes);
        return PEN_OK;
    }
    const bool is_mapped =
        is_aligned(op, op->call->in) && segment_find(op->call->in, op->in_bytes, &e->in);
    op->own.publish = is_mapped ? NODE_MAPPED : NODE_WINDOW;
    return node_need_window(op->team, node_window_bytes(op->team), why);
}

/* What a fold in place overwrites is saved first: a piece overwrites only inputs that no other piece needs.  Not so in
 * small foreign buffers, where it costs one more wait for each piece, nor where counters of lines are too short. */
static bool is_by_piece(const node_op *op, bool is_mapped)
{
    const coll_kind kind = op->call->kind;
    if (kind != COLL_ALL_REDUCE && kind != COLL_REDUCE) return false;
    return op->in_bytes / NODE_LINE_BYTES < UINT32_MAX &&
           (is_mapped || op->in_bytes >= NODE_PAST_FROM_BYTES);
}

static bool find_out(const node_op *op, const void *out, segment_ref *ref)
{
    return op->out_bytes >= SEGMENT_ALONE_BYTES && is_aligned(op, out) &&
           segment_find(out, op->out_bytes, ref);
}

/* Two members that cannot write into each other's memory: to send a result costs as much as to fold it twice.  Each
 * writes its own output, and reads the other's input in a scratch as long as the input, which no round waits for; in place
 * the scratch is also what is restored.  Without one it reads windows.  If the other's call is another way, it saves by
 * piece. */
static pen_status try_whole(node_op *op, node_entry *e, pen_error *why)
{
    const bool in_place = op->is_apart, must_save = in_place && !op->call->overwrites;
    pen_status status = PEN_OK;
    if (op->own.publish != NODE_WINDOW || op->own.out_mapped || op->call->kind != COLL_ALL_REDUCE ||
        op->team->size != 2 || (!in_place && op->in_bytes >= NODE_WHOLE_BELOW_BYTES))
        return PEN_OK;
    if (must_save || op->in_bytes < NODE_PAST_FROM_BYTES) {
        status        = node_need_scratch(op->team, op->out_bytes, why);
        op->holds_all = status == PEN_OK && find_out(op, op->team->scratch, &e->save);
    }
    if (must_save && !op->holds_all) return status; /* none, or too small to be mapped alone */
    op->is_whole = true;
    op->is_apart = false;
    op->saves    = in_place && op->holds_all;
    return PEN_OK;
}

/* In place: where the results go, or what they overwrite. */
static pen_status publish_in_place(node_op *op, node_entry *e, pen_error *why)
{
    op->is_apart = !is_by_piece(op, op->own.out_mapped);
    op->saves    = !op->is_apart && !op->call->overwrites;
    if (!op->is_apart && !op->saves) return PEN_OK;
    if (node_need_scratch(op->team, op->out_bytes, why) != PEN_OK) return why->status;
    segment_ref scratch;
    const bool is_mapped = find_out(op, op->team->scratch, &scratch);
    if (op->is_apart) {
        op->out            = op->team->scratch;
        op->own.out_mapped = is_mapped;
        e->out             = scratch;
    } else if (op->own.out_mapped) {
        op->own.out_mapped = op->own.saves = is_mapped;
        e->save                            = scratch;
    }
    return PEN_OK;
}

/* Where the results of a call go that is too large for its entry.  Others write only results that they fold.  A buffer
 * that shares pages with other data cannot be detached. */
static pen_status publish_out(node_op *op, node_entry *e, pen_error *why)
{
    op->own.out_mapped = find_out(op, op->out, &e->out);
    pen_status status  = try_whole(op, e, why);
    if (status == PEN_OK && op->is_apart) status = publish_in_place(op, e, why);
    return status;
}

static void publish_counts(const node_op *op, node_entry *e)
{
    const coll_call *c = op->call;
    if (c->kind != COLL_ALL_TO_ALL) return;
    e->has_counts = c->counts != NULL || c->out_counts != NULL;
    for (int i = 0; i < op->team->size; i++) {
        e->sends[i]    = coll_part(c->counts, c->n, i);
        e->receives[i] = coll_part(c->out_counts, c->n, i);
    }
}

static uint64_t hash_of(const coll_header *header)
{
    uint64_t word, hash = 0xcbf29ce484222325u;
    for (size_t at = 0; at + sizeof word <= sizeof *header; at += sizeof word) {
        memcpy(&word, (const unsigned char *)header + at, sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static pen_status publish(node_op *op, pen_error *why)
{
    node_entry *e = node_entry_of(op, op->team->rank);
    memset(&e->header, 0, sizeof e->header);
    coll_header_of(op->call, op->team->size, op->seq, &e->header);
    e->hash           = hash_of(&e->header);
    e->scale          = op->call->scale;
    pen_status status = publish_in(op, e, why);
    op->out           = op->call->out;
    op->is_apart      = overlaps(op);
    if (status == PEN_OK && op->in_bytes > node_inline_max(op)) status = publish_out(op, e, why);
    if (status != PEN_OK) return status;
    publish_counts(op, e);
    op->own.is_whole  = op->is_whole;
    op->own.holds_all = op->holds_all;
    e->publish        = op->own.publish;
    e->out_mapped     = op->own.out_mapped;
    e->saves          = op->own.saves;
    e->is_whole       = op->is_whole;
    e->holds_all      = op->holds_all;
    e->window         = op->team->window_ref;
    atomic_store(&e->arrived, op->seq); /* of two that arrive at once, one sees the other */
    return PEN_OK;
}

/* ---- arriving -------------------------------------------------------------------------------- */
static bool has_arrived(const node_op *op, int who)
{
    const node_slot *s = op->team->slot[who];
    return s != NULL && atomic_load(&s->entry[op->seq & 1].arrived) >= op->seq;
}

static bool all_arrived(node_op *op)
{
    node_team *t = op->team;
    for (; op->came < t->size; op->came++) {
        if (t->slot[op->came] == NULL && !node_find_peers(t) && t->slot[op->came] == NULL)
            return false;
        if (!has_arrived(op, op->came)) return false;
    }
    return true;
}

static pen_status node_start(void *team, void *memory, const coll_call *call, uint64_t seq,
                             pen_error *why)
{
    node_team *t = team;
    node_op *op  = memory;
    *op = (node_op){.team = t, .call = call, .seq = seq, .element = plan_dtype_bytes(call->dtype)};
    op->in_bytes  = coll_in_elements(call, t->size, t->rank) * op->element;
    op->out_bytes = coll_out_elements(call, t->size, t->rank) * op->element;
    op->is_shared = call->kind == COLL_BROADCAST || call->kind == COLL_ALL_GATHER;
    t->last       = seq;
    NODE_FAULT_POINT(op);
    atomic_store_explicit(&node_own_slot(t)->saved, seq << 32, memory_order_release);
    pen_status status = publish(op, why);
    if (status != PEN_OK)
        node_end(op, COLL_FAILED);
    else if (all_arrived(op))
        node_team_ring(t); /* the last one: nobody could go on before */
    return status;
}

/* ---- agreement ------------------------------------------------------------------------------- */
static pen_status compare(const node_op *op, pen_error *why)
{
    const node_team *t  = op->team;
    const uint64_t hash = node_entry_of(op, t->rank)->hash;
    bool differs        = false;
    for (int i = 0; i < t->size; i++) {
        t->headers[i] = &node_entry_of(op, i)->header;
        differs |= node_entry_of(op, i)->hash != hash;
    }
    if (differs) {
        pen_status status = coll_headers_compare(t->headers, t->ranks, t->size, why);
        if (status != PEN_OK) return status;
    }
    return op->call->kind == COLL_ALL_TO_ALL ? node_check_counts(op, why) : PEN_OK;
}

/* Maps only memory of that peer, at an offset that its elements can have. */
static pen_status map(const node_op *op, int who, const segment_ref *said, size_t bytes, void *data,
                      pen_error *why)
{
    node_team *t          = op->team;
    const segment_ref ref = *said; /* its owner may change it at any time */
    void *where           = NULL;
    if (ref.pid != t->peer[who].ref.pid || ref.offset % op->element != 0)
        return why_set(why, PEN_CORRUPT, "rank %d names memory that is not its own", t->ranks[who]);
    pen_status status = segment_map(&ref, bytes, &where, why);
    if (status != PEN_OK) return status;
    t->mapped[t->n_mapped++] = ref;
    memcpy(data, &where, sizeof where);
    return PEN_OK;
}

/* All members decide alike, because all see the same entries. */
static void agree(node_op *op)
{
    const node_team *t = op->team;
    bool is_small = true, all_out = true, all_whole = true;
    op->is_scaled = false;
    op->by_window = false;
    for (int i = 0; i < t->size; i++) {
        const uint32_t publish = t->said[i].publish;
        t->scale[i]            = node_entry_of(op, i)->scale;
        is_small &= publish == NODE_NOTHING || publish == NODE_INLINE;
        op->by_window |= publish == NODE_WINDOW;
        all_whole &= t->said[i].is_whole && publish == NODE_WINDOW;
        op->is_scaled |= t->scale[i] != 1;
    }
    op->is_small = is_small;
    op->is_whole &= all_whole;
    op->holds_all &= op->is_whole;
    for (int i = 0; i < t->size; i++) t->said[i].holds_all &= op->is_whole;
    for (int i = 0; i < t->size; i++)
        if (node_gets(op, i)) all_out &= t->said[i].out_mapped;
    const bool shares = node_gets(op, op->call->kind == COLL_REDUCE ? op->call->root : 0);
    op->pushes        = shares && all_out;
    op->takes         = shares && !all_out;
}

/* Maps what this member reads and writes of a peer, before it sets any flag that lets the peer end. */
static pen_status open_memory(node_op *op, int who, pen_error *why)
{
    node_team *t          = op->team;
    const node_entry *e   = node_entry_of(op, who);
    const node_said *said = &t->said[who];
    pen_status status     = PEN_OK;
    t->save[who]          = NULL;
    t->in[who] = said->publish == NODE_INLINE || said->publish == NODE_NOTHING ? e->payload : NULL;
    if (op->is_small) return PEN_OK;
    if (who == t->rank) {
        t->in[who]      = op->call->in;
        t->out[who]     = op->out;
        t->save[who]    = op->saves ? t->scratch : NULL;
        t->windows[who] = op->holds_all ? t->scratch : t->window;
        return PEN_OK;
    }
    const size_t out = coll_out_elements(op->call, t->size, who) * op->element;
    if (said->publish == NODE_MAPPED) status = map(op, who, &e->in, said->bytes, &t->in[who], why);
    if (status == PEN_OK && op->pushes && node_gets(op, who))
        status = map(op, who, &e->out, out, &t->out[who], why);
    if (status == PEN_OK && op->pushes && node_gets(op, who) && said->saves)
        status = map(op, who, &e->save, out, &t->save[who], why);
    if (status == PEN_OK && (said->publish == NODE_WINDOW || op->takes))
        status = map(op, who, said->holds_all ? &e->save : &e->window,
                     said->holds_all ? said->bytes : node_window_bytes(t), &t->windows[who], why);
    return status;
}

static pen_status enter(node_op *op, pen_error *why)
{
    node_team *t      = op->team;
    pen_status status = compare(op, why);
    for (int i = 0; status == PEN_OK && i < t->size; i++) status = node_read_said(op, i, why);
    if (status != PEN_OK) return status;
    agree(op);
    if (op->is_apart && !op->is_small && op->out == op->call->out) {
        status  = node_need_scratch(t, op->out_bytes, why);
        op->out = t->scratch;
    }
    for (int i = 0; status == PEN_OK && i < t->size; i++) {
        status = open_memory(op, i, why);
        if (status == PEN_UNREACHABLE) op->lost = i + 1;
    }
    if (status != PEN_OK) return status;
    node_plan(op);
    if (op->rounds > UINT32_MAX) /* the limit of the counters */
        return why_set(why, PEN_CORRUPT, "%s (call %llu) has parts that are too long",
                       coll_kind_name(op->call->kind), (unsigned long long)op->seq);
    if (t->said[t->rank].publish != NODE_WINDOW) op->fill = op->rounds;
    if (!node_gets(op, t->rank)) op->take = op->rounds;
    return PEN_OK;
}

static coll_state node_advance(void *memory, pen_error *why)
{
    node_op *op = memory;
    if (op->stage == NODE_ARRIVING) {
        const bool is_complete = all_arrived(op);
        if (node_team_is_refused(op->team)) return node_turn_back(op, why);
        if (!is_complete) return node_is_revoked(op) ? node_given_up(op, why) : COLL_RUNNING;
        NODE_FAULT_POINT(op);
        const pen_status status = enter(op, why);
        op->stage               = NODE_WORKING;
        if (status != PEN_OK && op->lost == 0) {
            node_give_up(op); /* peers may be at work on our memory */
            return COLL_FAILED;
        }
        if (op->lost != 0) return node_given_up(op, why); /* it arrived, and has died since */
        if (node_is_revoked(op)) return node_given_up(op, why);
    }
    return node_work(op, why);
}

static void node_abort(void *memory)
{
    node_give_up(memory);
}

static int node_missing(void *memory, int *positions, int cap)
{
    node_op *op  = memory;
    node_team *t = op->team;
    int n        = 0;
    for (int i = 0; i < t->size && n < cap; i++) {
        if (i == t->rank || (op->lost != 0 && i != op->lost - 1)) continue;
        const bool came    = has_arrived(op, i);
        const bool through = op->stage == NODE_WORKING && came &&
                             atomic_load_explicit(&t->slot[i]->worked, memory_order_acquire) >=
                                 (op->seq << 32 | op->rounds);
        if (op->stage == NODE_WORKING ? !through : !came) positions[n++] = i;
    }
    return n;
}

const coll_path coll_path_node = {
    .name    = "node",
    .start   = node_start,
    .advance = node_advance,
    .abort   = node_abort,
    .missing = node_missing,
};
