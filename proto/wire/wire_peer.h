/* wire_peer.h - the third plane: heads of messages between two workers, as in wire.h. */
#ifndef PROTO_WIRE_PEER_H
#define PROTO_WIRE_PEER_H

#include "proto/wire/wire.h"

enum {
    WIRE_LABEL_MAX  = 64, /* with its NUL */
    WIRE_LANES_MAX  = 64,
    WIRE_SHOW_KINDS = 9 /* collectives */
};

/* clang-format off */
typedef enum { /* from 64 on: the other planes have 1 to 63 */
    WIRE_SHOW = 64, /* a member has begun this call, with these arguments */
    WIRE_PART,      /* bytes of a collective; the first one to a peer shows the call, too */
    WIRE_CREDIT,    /* bytes of a call (group 0: of messages) that were used up */
    WIRE_LETTER,    /* point to point: with its payload, or CALL_FIRST */
    WIRE_CLEAR,     /* receiver of a LETTER without payload: a place for it is ready */
    WIRE_SECTION,   /* a piece of such a LETTER */
    WIRE_WITHDRAWN, /* such a LETTER will not come; group 0: the sender leaves the job */
    WIRE_PEER_END
} wire_peer_kind;

enum {
    WIRE_SCALED     = 1, /* PART: scale holds */
    WIRE_CALL_FIRST = 2, /* LETTER: its payload follows CLEAR */
    WIRE_SCALES     = 4, /* PART: an input in its data may have a scale */
    WIRE_AGREES     = 8, /* SHOW: so do all below the sender, or all */
    WIRE_REFUSES    = 16 /* SHOW that AGREES: somebody does not accept what the call asks */
};
/* clang-format on */

typedef struct {
    uint32_t kind, op, dtype;
    int32_t root;
    uint64_t n, counts;
    const char *label; /* never NULL after decoding */
} wire_show;

typedef struct {
    wire_peer_kind kind;
    uint64_t job, from, to; /* from, to: incarnations */
    int32_t rank;
    uint32_t lane, dial;
    uint64_t group, seq, payload_bytes;
    uint32_t crc;
    uint32_t segment, slot;
    uint64_t offset, total;
    uint32_t flags;
    double scale;
    int32_t tag;
    uint32_t dtype;
    uint64_t id, credit;
    const char *label; /* never NULL after decoding */
    bool has_show;
    wire_show show;
} wire_peer;

/* As for the data plane.  The receiver checks whether job, incarnations, group and ranks exist.
 * Cost  under 1 us each. */
pen_status wire_peer_encode(const wire_peer *p, wire_out *out, pen_error *why);
pen_status wire_peer_decode(const void *head, size_t size, wire_arena *arena, wire_peer *p,
                            pen_error *why);

#endif
