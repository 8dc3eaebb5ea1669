/* wire_peer.c - headers of the peer plane. */
#include "proto/wire/wire_internal.h"
#include "proto/wire/wire_peer.h"

#include "peer.pb-c.h"

#include <inttypes.h>
#include <string.h>

/* ---- what both directions demand ------------------------------------------------------------- */
static bool is_label(const char *label)
{
    return label == NULL || strnlen(label, WIRE_LABEL_MAX) < WIRE_LABEL_MAX;
}

static pen_status check_show(const wire_show *s, pen_status blame, pen_error *why)
{
    if (s->kind >= WIRE_SHOW_KINDS || s->op > PEN_BXOR || s->dtype > PEN_F8E5M2)
        return why_set(why, blame, "kind %u, operation %u, type %u is not a collective", s->kind,
                       s->op, s->dtype);
    if (s->root < 0 || s->root >= WIRE_ITEMS_MAX)
        return why_set(why, blame, "a call has invalid root %d", s->root);
    return PEN_OK;
}

static pen_status check(const wire_peer *p, pen_status blame, pen_error *why)
{
    if ((int)p->kind < WIRE_SHOW || (int)p->kind >= WIRE_PEER_END)
        return why_set(why, blame, "%d is not a kind of message of the peer plane", (int)p->kind);
    const char *kind = wire_kind_name((int)p->kind);
    if (p->rank < 0 || p->rank >= WIRE_ITEMS_MAX || p->lane >= WIRE_LANES_MAX)
        return why_set(why, blame, "%s has invalid rank %d or lane %u", kind, p->rank, p->lane);
    if (p->payload_bytes > WIRE_PAYLOAD_BYTES_MAX)
        return why_set(why, blame,
                       "%s announces a payload of %" PRIu64 " bytes, over the limit of %" PRIu64,
                       kind, p->payload_bytes, WIRE_PAYLOAD_BYTES_MAX);
    const bool is_piece = p->kind == WIRE_PART || p->kind == WIRE_SECTION;
    if (is_piece && (p->payload_bytes > p->total || p->offset > p->total - p->payload_bytes))
        return why_set(why, blame,
                       "%s puts %" PRIu64 " bytes at %" PRIu64 ", past the end at %" PRIu64, kind,
                       p->payload_bytes, p->offset, p->total);
    if (p->dtype > PEN_F8E5M2)
        return why_set(why, blame, "%s has unknown element type %u", kind, p->dtype);
    if (!is_label(p->label) || (p->has_show && !is_label(p->show.label)))
        return why_set(why, blame, "%s has a label of %d bytes or more", kind, WIRE_LABEL_MAX);
    if (p->kind == WIRE_SHOW && !p->has_show) return why_set(why, blame, "%s has no call", kind);
    return p->has_show ? check_show(&p->show, blame, why) : PEN_OK;
}

/* ---- both directions --------------------------------------------------------------------------- */
#define SHOW_NUMBERS(X) X(kind) X(op) X(dtype) X(root) X(n) X(counts)
/* clang-format off */
#define PEER_NUMBERS(X) \
    X(job) X(from) X(to) X(rank) X(lane) X(dial) X(group) X(seq) X(payload_bytes) X(crc) X(segment) X(slot) \
    X(offset) X(total) X(flags) X(scale) X(tag) X(dtype) X(id) X(credit)
/* clang-format on */

static void read_show(const Pen__Show *theirs, wire_show *ours)
{
    SHOW_NUMBERS(WIRE_READ)
    ours->label = theirs->label;
}

static void read_peer(const Pen__Peer *theirs, wire_peer *ours)
{
    *ours      = (wire_peer){0};
    ours->kind = theirs->kind < WIRE_PEER_END ? (wire_peer_kind)theirs->kind : WIRE_PEER_END;
    PEER_NUMBERS(WIRE_READ)
    ours->label    = theirs->label;
    ours->has_show = theirs->show != NULL;
    if (ours->has_show) read_show(theirs->show, &ours->show);
}

static void write_show(const wire_show *ours, Pen__Show *theirs)
{
    SHOW_NUMBERS(WIRE_WRITE)
    if (ours->label != NULL) WIRE_BORROW(label)
}

static void write_peer(const wire_peer *ours, Pen__Peer *theirs)
{
    theirs->kind = (uint32_t)ours->kind;
    PEER_NUMBERS(WIRE_WRITE)
    if (ours->label != NULL) WIRE_BORROW(label)
}

/* ---- the two doors ------------------------------------------------------------------------------- */
pen_status wire_peer_decode(const void *head, size_t size, wire_arena *arena, wire_peer *p,
                            pen_error *why)
{
    void *message;
    pen_status status =
        wire_unpack(head, size, WIRE_PLANE_PEER, &pen__peer__descriptor, arena, &message, why);
    if (status != PEN_OK) return status;
    const Pen__Peer *m = message;
    (void)wire_clean_text(m->label); /* its length is checked below */
    if (m->show != NULL) (void)wire_clean_text(m->show->label);
    read_peer(m, p);
    return check(p, PEN_CORRUPT, why);
}

pen_status wire_peer_encode(const wire_peer *p, wire_out *out, pen_error *why)
{
    pen_status status = check(p, PEN_INVALID_ARGUMENT, why);
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
