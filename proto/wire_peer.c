/* wire_peer.c - headers of the peer plane. */
#include "proto/wire_internal.h"
#include "proto/wire_peer.h"

#include "peer.pb-c.h"

#include <inttypes.h>
#include <string.h>

/* ---- what both directions demand ------------------------------------------------------------- */
static bool is_label(const char *label)
{
    return strnlen(label, WIRE_LABEL_MAX) < WIRE_LABEL_MAX;
}

static pen_status check_show(const wire_show *s, pen_status blame, pen_error *why)
{
    if (s->kind >= WIRE_SHOW_KINDS || s->op > PEN_BXOR || s->dtype > PEN_F8E5M2)
        return why_set(why, blame, "kind %u, operation %u, type %u is not a collective", s->kind,
                       s->op, s->dtype);
    if (s->root < 0 || s->root >= WIRE_ITEMS_MAX)
        return why_set(why, blame, "a call has root %d, which cannot be", s->root);
    return PEN_OK;
}

static pen_status check(const wire_peer *p, pen_status blame, pen_error *why)
{
    if ((int)p->kind < WIRE_SHOW || (int)p->kind >= WIRE_PEER_END)
        return why_set(why, blame, "%d is not a kind of message of the peer plane", (int)p->kind);
    const char *kind = wire_kind_name((int)p->kind);
    if (p->rank < 0 || p->rank >= WIRE_ITEMS_MAX || p->lane >= WIRE_LANES_MAX)
        return why_set(why, blame, "%s is from rank %d, lane %u, which cannot be", kind, p->rank,
                       p->lane);
    if (p->payload_bytes > WIRE_PAYLOAD_BYTES_MAX)
        return why_set(why, blame,
                       "%s announces a payload of %" PRIu64 " bytes, over the limit of %" PRIu64,
                       kind, p->payload_bytes, WIRE_PAYLOAD_BYTES_MAX);
    const bool is_piece = p->kind == WIRE_PART || p->kind == WIRE_SECTION;
    if (is_piece && (p->payload_bytes > p->total || p->offset > p->total - p->payload_bytes))
        return why_set(why, blame,
                       "%s puts %" PRIu64 " bytes at %" PRIu64 ", behind the end at %" PRIu64, kind,
                       p->payload_bytes, p->offset, p->total);
    if (p->dtype > PEN_F8E5M2)
        return why_set(why, blame, "%s has elements of type %u, which is none", kind, p->dtype);
    if ((p->kind == WIRE_SHOW) && !p->has_show)
        return why_set(why, blame, "%s shows no call", kind);
    return p->has_show ? check_show(&p->show, blame, why) : PEN_OK;
}

/* ---- decoding -------------------------------------------------------------------------------- */
static void read_show(const Pen__Show *m, wire_show *s)
{
    *s = (wire_show){.kind   = m->kind,
                     .op     = m->op,
                     .dtype  = m->dtype,
                     .root   = m->root,
                     .n      = m->n,
                     .counts = m->counts,
                     .label  = m->label};
}

static void read_peer(const Pen__Peer *m, wire_peer *p)
{
    *p = (wire_peer){
        .kind          = m->kind < WIRE_PEER_END ? (wire_peer_kind)m->kind : WIRE_PEER_END,
        .job           = m->job,
        .from          = m->from,
        .to            = m->to,
        .rank          = m->rank,
        .lane          = m->lane,
        .dial          = m->dial,
        .group         = m->group,
        .seq           = m->seq,
        .payload_bytes = m->payload_bytes,
        .crc           = m->crc,
        .segment       = m->segment,
        .slot          = m->slot,
        .offset        = m->offset,
        .total         = m->total,
        .flags         = m->flags,
        .scale         = m->scale,
        .tag           = m->tag,
        .dtype         = m->dtype,
        .id            = m->id,
        .credit        = m->credit,
        .label         = m->label,
        .has_show      = m->show != NULL,
    };
    if (m->show != NULL) read_show(m->show, &p->show);
}

pen_status wire_peer_decode(const void *head, size_t size, wire_arena *arena, wire_peer *p,
                            pen_error *why)
{
    void *message;
    pen_status status =
        wire_unpack(head, size, WIRE_PLANE_PEER, &pen__peer__descriptor, arena, &message, why);
    if (status != PEN_OK) return status;
    const Pen__Peer *m = message;
    if (!wire_clean_text(m->label) || !is_label(m->label) ||
        (m->show != NULL && (!wire_clean_text(m->show->label) || !is_label(m->show->label))))
        return why_set(why, PEN_CORRUPT, "%s has a label of %d bytes or more",
                       wire_kind_name((int)m->kind), WIRE_LABEL_MAX);
    read_peer(m, p);
    return check(p, PEN_CORRUPT, why);
}

/* ---- encoding -------------------------------------------------------------------------------- */
static pen_status check_labels(const wire_peer *p, pen_error *why)
{
    if ((p->label != NULL && !is_label(p->label)) ||
        (p->has_show && p->show.label != NULL && !is_label(p->show.label)))
        return why_set(why, PEN_INVALID_ARGUMENT, "%s has a label of %d bytes or more",
                       wire_kind_name((int)p->kind), WIRE_LABEL_MAX);
    return PEN_OK;
}

static void write_show(const wire_show *s, Pen__Show *m)
{
    m->kind   = s->kind;
    m->op     = s->op;
    m->dtype  = s->dtype;
    m->root   = s->root;
    m->n      = s->n;
    m->counts = s->counts;
    if (s->label != NULL) m->label = (char *)(uintptr_t)s->label; /* packing only reads */
}

static void write_peer(const wire_peer *p, Pen__Peer *m)
{
    m->kind          = (uint32_t)p->kind;
    m->job           = p->job;
    m->from          = p->from;
    m->to            = p->to;
    m->rank          = p->rank;
    m->lane          = p->lane;
    m->dial          = p->dial;
    m->group         = p->group;
    m->seq           = p->seq;
    m->payload_bytes = p->payload_bytes;
    m->crc           = p->crc;
    m->segment       = p->segment;
    m->slot          = p->slot;
    m->offset        = p->offset;
    m->total         = p->total;
    m->flags         = p->flags;
    m->scale         = p->scale;
    m->tag           = p->tag;
    m->dtype         = p->dtype;
    m->id            = p->id;
    m->credit        = p->credit;
    if (p->label != NULL) m->label = (char *)(uintptr_t)p->label;
}

pen_status wire_peer_encode(const wire_peer *p, wire_out *out, pen_error *why)
{
    pen_status status = check(p, PEN_INVALID_ARGUMENT, why);
    if (status == PEN_OK) status = check_labels(p, why);
    if (status != PEN_OK) return status;
    Pen__Peer m    = PEN__PEER__INIT;
    Pen__Show show = PEN__SHOW__INIT;
    write_peer(p, &m);
    if (p->has_show) {
        write_show(&p->show, &show);
        m.show = &show;
    }
    return wire_pack(&m.base, WIRE_PLANE_PEER, out, why);
}
