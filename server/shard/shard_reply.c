/* shard_reply.c - answers: large values at once by reference, everything else packed at the flush. */
#include "server/shard/shard_state.h"

#include "common/base/crc.h"
#include "common/containers/arrays.h"

#include <stdlib.h>
#include <string.h>

enum { PREPARED_BYTES_MAX = 1 << 20 };

/* ---- columns --------------------------------------------------------------------------------- */
/* Reserves `n` entries in the columns of a message; all columns are one block.  False: no memory, nothing has changed.
 * Keeps chunk and seq. */
static bool reserve(shard_columns *c, uint32_t n)
{
    if (n <= c->capacity) return true;
    shard_columns more = {.capacity = n < 64 ? 64 : n * 2};
    more.block = ARRAYS_NEW(ARRAY(more.seq, more.capacity), ARRAY(more.version, more.capacity),
                            ARRAY(more.chunk, more.capacity), ARRAY(more.crc, more.capacity),
                            ARRAY(more.staleness, more.capacity), ARRAY(more.size, more.capacity));
    if (more.block == NULL) return false;
    if (c->capacity > 0) {
        memcpy(more.seq, c->seq, c->capacity * sizeof *c->seq);
        memcpy(more.chunk, c->chunk, c->capacity * sizeof *c->chunk);
    }
    free(c->block);
    *c = more;
    return true;
}

/* One number for all if all are equal. */
static void set_seq(wire_data *d, const uint64_t *seq, uint32_t n)
{
    d->step = n > 0 ? seq[0] : 0;
    d->seq  = NULL;
    for (uint32_t i = 1; i < n; i++)
        if (seq[i] != d->step) d->seq = seq;
}

/* ---- refusals -------------------------------------------------------------------------------- */
void shard_refuse(shard *s, uint32_t peer, const wire_data *d, pen_status status, const char *text)
{
    wire_data answer = {.kind   = WIRE_REFUSED,
                        .step   = d->step,
                        .n      = d->n,
                        .chunk  = d->chunk,
                        .seq    = d->seq,
                        .status = status,
                        .text   = text};
    shard_send(s, peer, d->rank, &answer, NULL);
}

void shard_refuse_flush(shard *s, uint32_t peer, const wire_data *d)
{
    if (s->refusals.n == 0) return;
    wire_data answer = {.kind   = WIRE_REFUSED,
                        .n      = s->refusals.n,
                        .chunk  = s->refused.chunk,
                        .status = s->refusals.status,
                        .text   = s->refusals.reason};
    set_seq(&answer, s->refused.seq, s->refusals.n);
    s->refusals.n = 0;
    shard_send(s, peer, d->rank, &answer, NULL);
}

void shard_refuse_chunk(shard *s, uint32_t peer, const wire_data *d, uint32_t number, uint64_t seq,
                        pen_status status, const char *reason)
{
    shard_refusals *r = &s->refusals;
    if (r->n > 0 && (r->status != status || r->reason != reason)) shard_refuse_flush(s, peer, d);
    if (!reserve(&s->refused, r->n + 1)) return; /* it asks again */
    r->status              = status;
    r->reason              = reason;
    s->refused.chunk[r->n] = number;
    s->refused.seq[r->n++] = seq;
    /* All other sentences are made for one chunk and are freed with it. */
    if (status != PEN_AGAIN && status != PEN_CORRUPT) shard_refuse_flush(s, peer, d);
}

/* ---- outboxes -------------------------------------------------------------------------------- */
static shard_outbox *outbox_of(shard *s, uint32_t peer)
{
    if (s->last_outbox < s->n_outboxes && s->outbox[s->last_outbox].peer == peer)
        return &s->outbox[s->last_outbox];
    for (uint32_t i = 0; i < s->n_outboxes; i++) {
        if (s->outbox[i].peer != peer) continue;
        s->last_outbox = i;
        return &s->outbox[i];
    }
    if (!VEC_ROOM(s->outbox, s->outboxes_capacity, s->n_outboxes + 1)) return NULL;
    s->last_outbox    = s->n_outboxes++;
    shard_outbox *box = &s->outbox[s->last_outbox];
    *box              = (shard_outbox){.peer = peer};
    return box;
}

static void free_outbox(shard_outbox *box)
{
    for (int i = 0; i < SHARD_LISTS; i++) free(box->list[i].line);
    buf_release(box->rows);
}

void shard_reply_forget_peer(shard *s, uint32_t peer)
{
    for (uint32_t i = 0; i < s->n_outboxes; i++) {
        if (s->outbox[i].peer != peer) continue;
        free_outbox(&s->outbox[i]);
        s->outbox[i] = s->outbox[--s->n_outboxes];
        return;
    }
}

/* ---- packed lists ---------------------------------------------------------------------------- */
static bool add_line(shard_list *list, const shard_core_action *a)
{
    if (!VEC_ROOM(list->line, list->capacity, list->n + 1)) return false;
    list->line[list->n++] = (shard_line){
        .chunk = a->index, .staleness = a->staleness, .seq = a->seq, .repeated = a->repeated};
    return true;
}

static bool fill_columns(shard *s, const shard_list *list, buf *payload)
{
    if (!reserve(&s->columns, list->n)) return false;
    uint8_t *at = payload != NULL ? payload->data : NULL;
    for (uint32_t i = 0; i < list->n; i++) {
        shard_chunk *k          = &s->chunk[list->line[i].chunk];
        s->columns.chunk[i]     = k->number;
        s->columns.seq[i]       = list->line[i].seq;
        s->columns.staleness[i] = list->line[i].staleness;
        s->columns.version[i]   = k->version;
        if (at == NULL) continue;
        buf *wire = shard_chunk_wire(s, k);
        if (wire == NULL) return false;
        s->columns.crc[i] = k->crc;
        memcpy(at, wire->data, wire->size);
        at += wire->size;
        buf_release(wire);
    }
    return true;
}

static void send_values(shard *s, shard_outbox *box, shard_list_kind kind)
{
    shard_list *list = &box->list[kind];
    buf *payload     = kind != SHARD_APPLIED ? buf_new(list->bytes) : NULL;
    if ((payload != NULL || kind == SHARD_APPLIED) && fill_columns(s, list, payload)) {
        wire_vote vote;
        wire_data d = {.kind      = WIRE_VALUES,
                       .flags     = kind == SHARD_FIRST_VALUES ? WIRE_INITIAL : 0,
                       .n_votes   = shard_scalars_notify(s, list->line, list->n, &vote),
                       .vote      = &vote,
                       .n         = list->n,
                       .chunk     = s->columns.chunk,
                       .crc       = payload != NULL ? s->columns.crc : NULL,
                       .version   = s->columns.version,
                       .staleness = s->columns.staleness};
        set_seq(&d, s->columns.seq, list->n);
        shard_send(s, box->peer, box->rank, &d, payload);
        stat_add(s->options.stats, STAT_PULL_BYTES, list->bytes);
        if (payload != NULL) stat_add(s->options.stats, STAT_PULL_OPS, list->n);
    }
    buf_release(payload);
    list->n     = 0;
    list->bytes = 0;
}

/* ---- rows of tables -------------------------------------------------------------------------- */
static void send_rows(shard *s, shard_outbox *box)
{
    shard_list *list = &box->list[SHARD_ROWS];
    if (fill_columns(s, list, NULL)) {
        const uint8_t *at = box->rows->data;
        for (uint32_t i = 0; i < list->n; i++) {
            s->columns.size[i] = list->line[i].size;
            s->columns.crc[i]  = crc32c(0, at, list->line[i].size);
            at += list->line[i].size;
        }
        wire_data d     = {.kind      = WIRE_VALUES,
                           .n         = list->n,
                           .chunk     = s->columns.chunk,
                           .seq       = s->columns.seq,
                           .crc       = s->columns.crc,
                           .version   = s->columns.version,
                           .staleness = s->columns.staleness,
                           .size      = s->columns.size};
        box->rows->size = list->bytes;
        shard_send(s, box->peer, box->rank, &d, box->rows);
        stat_add(s->options.stats, STAT_PULL_BYTES, list->bytes);
        stat_add(s->options.stats, STAT_PULL_OPS, list->n);
    }
    buf_release(box->rows);
    box->rows   = NULL;
    list->n     = 0;
    list->bytes = 0;
}

uint8_t *shard_reply_rows(shard *s, const shard_core_action *a, size_t size)
{
    shard_outbox *box = outbox_of(s, a->peer);
    if (box == NULL) return NULL;
    shard_list *list = &box->list[SHARD_ROWS];
    if (list->n > 0 && (list->bytes + size > box->rows->size || list->n == WIRE_ITEMS_MAX))
        send_rows(s, box);
    if (box->rows == NULL) box->rows = buf_new(size > SHARD_SMALL_BYTES ? size : SHARD_SMALL_BYTES);
    if (box->rows == NULL || !add_line(list, a)) return NULL;
    uint8_t *at                  = (uint8_t *)box->rows->data + list->bytes;
    list->line[list->n - 1].size = (uint32_t)size;
    list->bytes += size;
    box->rank     = a->rank;
    box->is_dirty = true;
    memset(at + size - sizeof(uint64_t), 0, sizeof(uint64_t)); /* what pads the last array */
    return at;
}

void shard_reply_rows_flush(shard *s, uint32_t peer)
{
    shard_outbox *box = outbox_of(s, peer);
    if (box != NULL && box->list[SHARD_ROWS].n > 0) send_rows(s, box);
}

static void send_receipts(shard *s, shard_outbox *box, shard_list_kind kind)
{
    shard_list *list = &box->list[kind];
    if (kind == SHARD_RECEIPT && s->n_backups == 0) {
        /* An answer in the same turn makes the receipt unnecessary. */
        uint32_t kept = 0;
        for (uint32_t i = 0; i < list->n; i++) {
            const shard_line *line = &list->line[i];
            const shard_chunk *k   = &s->chunk[line->chunk];
            const bool is_answered = k->decided && !line->repeated &&
                                     (shard_core_round(s->core, line->chunk) > line->seq ||
                                      shard_core_is_prepared(s->core, k->partition, line->seq));
            if (!is_answered) list->line[kept++] = *line;
        }
        list->n = kept;
    }
    if (list->n > 0 && fill_columns(s, list, NULL)) {
        wire_data d = {.kind  = WIRE_RECEIPT,
                       .flags = kind == SHARD_FIRST_RECEIPT ? WIRE_INITIAL : 0,
                       .n     = list->n,
                       .chunk = s->columns.chunk};
        set_seq(&d, s->columns.seq, list->n);
        shard_send(s, box->peer, box->rank, &d, NULL);
    }
    list->n = 0;
}

/* ---- entry points of the actions ------------------------------------------------------------- */
void shard_note(shard *s, shard_list_kind kind, const shard_core_action *a)
{
    shard_outbox *box = outbox_of(s, a->peer);
    if (box == NULL || !add_line(&box->list[kind], a)) return; /* it asks again */
    box->rank     = a->rank;
    box->is_dirty = true;
    if (box->list[kind].n < WIRE_ITEMS_MAX) return;
    if (kind == SHARD_APPLIED)
        send_values(s, box, kind);
    else
        send_receipts(s, box, kind);
}

static void serve_alone(shard *s, const shard_core_action *a, shard_chunk *k)
{
    buf *wire = shard_chunk_wire(s, k);
    if (wire == NULL) return;
    const shard_line line = {.chunk = a->index};
    wire_vote vote;
    wire_data d = {.kind      = WIRE_VALUES,
                   .n_votes   = shard_scalars_notify(s, &line, 1, &vote),
                   .vote      = &vote,
                   .step      = a->seq,
                   .flags     = a->initial ? WIRE_INITIAL : 0,
                   .n         = 1,
                   .chunk     = &k->number,
                   .crc       = &k->crc,
                   .version   = &k->version,
                   .staleness = &a->staleness};
    shard_send(s, a->peer, a->rank, &d, wire);
    stat_add(s->options.stats, STAT_PULL_BYTES, wire->size);
    stat_add(s->options.stats, STAT_PULL_OPS, 1);
    buf_release(wire);
}

void shard_serve(shard *s, const shard_core_action *a)
{
    shard_chunk *k    = &s->chunk[a->index];
    const size_t size = k->count * plan_dtype_bytes(k->dtype);
    if (size >= SHARD_SMALL_BYTES) {
        serve_alone(s, a, k);
        return;
    }
    const shard_list_kind kind = a->initial ? SHARD_FIRST_VALUES : SHARD_VALUES;
    shard_outbox *box          = outbox_of(s, a->peer);
    if (box == NULL) return;
    box->rank = a->rank;
    if (box->list[kind].bytes + size > SHARD_BATCH_BYTES) send_values(s, box, kind);
    if (!add_line(&box->list[kind], a)) return;
    box->list[kind].bytes += size;
    box->is_dirty = true;
}

/* ---- PREPARED -------------------------------------------------------------------------------- */
static buf *pack_squares(const shard *s, const uint32_t *partition, uint32_t n, size_t bytes,
                         wire_vote *vote)
{
    buf *payload = buf_new(bytes);
    if (payload == NULL) return NULL;
    uint8_t *at = payload->data;
    for (uint32_t i = 0; i < n; i++) {
        const shard_partition *p = &s->partition[partition[i]];
        vote[i]                  = p->vote;
        memcpy(at, p->squares, p->blocks * sizeof(double));
        at += p->blocks * sizeof(double);
    }
    return payload;
}

/* To one peer, or (SHARD_NONE) to the latest peer of each live rank. */
static void send_votes(shard *s, const uint32_t *partition, uint32_t n, size_t bytes, uint32_t peer,
                       int32_t rank)
{
    wire_vote vote[PLAN_PARTITIONS_MAX];
    buf *payload = pack_squares(s, partition, n, bytes, vote);
    if (payload == NULL) return;
    wire_data d = {
        .kind = WIRE_PREPARED, .step = s->partition[partition[0]].step, .n_votes = n, .vote = vote};
    if (peer != SHARD_NONE) shard_send(s, peer, rank, &d, payload);
    for (uint32_t r = 0; peer == SHARD_NONE && r < s->setup.world_size; r++)
        if (s->incarnation[r] != 0 && s->peer_of[r] != SHARD_NONE)
            shard_send(s, s->peer_of[r], (int32_t)r, &d, payload);
    buf_release(payload);
}

void shard_send_prepared(shard *s, uint32_t partition, uint32_t peer, int32_t rank)
{
    stat_add(s->options.stats, STAT_REPEATS, 1);
    send_votes(s, &partition, 1, s->partition[partition].blocks * sizeof(double), peer, rank);
}

static void flush_prepared(shard *s)
{
    if (!s->has_fresh) return;
    s->has_fresh = false;
    uint32_t group[PLAN_PARTITIONS_MAX], n = 0;
    size_t bytes = 0;
    for (uint32_t i = 0; i < s->n_partitions; i++) {
        shard_partition *p = &s->partition[i];
        if (!p->is_fresh) continue;
        p->is_fresh       = false;
        const size_t more = p->blocks * sizeof(double);
        if (n > 0 &&
            (bytes + more > PREPARED_BYTES_MAX || p->step != s->partition[group[0]].step)) {
            send_votes(s, group, n, bytes, SHARD_NONE, -1);
            n     = 0;
            bytes = 0;
        }
        group[n++] = i;
        bytes += more;
    }
    if (n > 0) send_votes(s, group, n, bytes, SHARD_NONE, -1);
}

void shard_reply_flush(shard *s)
{
    flush_prepared(s);
    for (uint32_t i = 0; i < s->n_outboxes; i++) {
        shard_outbox *box = &s->outbox[i];
        if (!box->is_dirty) continue;
        box->is_dirty = false;
        for (int kind = 0; kind <= SHARD_APPLIED; kind++)
            if (box->list[kind].n > 0 && kind == SHARD_ROWS)
                send_rows(s, box);
            else if (box->list[kind].n > 0)
                send_values(s, box, (shard_list_kind)kind);
        send_receipts(s, box, SHARD_RECEIPT);
        send_receipts(s, box, SHARD_FIRST_RECEIPT);
    }
}

void shard_reply_fini(shard *s)
{
    for (uint32_t i = 0; i < s->n_outboxes; i++) free_outbox(&s->outbox[i]);
    free(s->outbox);
    free(s->columns.block);
    free(s->refused.block);
}
