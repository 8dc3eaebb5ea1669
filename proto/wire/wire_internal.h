/* wire_internal.h - what all planes share: arena, prefix, strings.  Seen by proto/wire/wire*.c only. */
#ifndef PROTO_WIRE_INTERNAL_H
#define PROTO_WIRE_INTERNAL_H

#include "common/base/why.h"
#include "proto/wire/wire.h"

#include <protobuf-c/protobuf-c.h>

enum { WIRE_PLANE_CONTROL = 1, WIRE_PLANE_DATA = 2, WIRE_PLANE_PEER = 3 };

/* ---- arena ----------------------------------------------------------------------------------- */
typedef struct wire_block wire_block;

/* Blocks of doubling size; a reset merges them, so that the next message of that size needs no malloc. */
struct wire_arena {
    ProtobufCAllocator allocator; /* takes from this arena; frees nothing */
    wire_block *newest;
    size_t bytes, bytes_max;  /* of all blocks */
    bool is_full, is_starved; /* during the last decoding: over bytes_max; no memory */
};

void wire_arena_init(wire_arena *arena, size_t bytes_max);
void wire_arena_fini(wire_arena *arena);
void *wire_arena_take(wire_arena *arena,
                      size_t bytes); /* 16-byte aligned; NULL: wire_arena_status() */
/* Of a failed wire_arena_take(): NO_MEMORY, or CORRUPT: over bytes_max, which no message needs. */
pen_status wire_arena_status(const wire_arena *arena);

/* ---- prefix and body ------------------------------------------------------------------------- */
/* Checks the whole prefix, then unpacks the body into the arena: CORRUPT or NO_MEMORY. */
pen_status wire_unpack(const void *head, size_t size, int plane,
                       const ProtobufCMessageDescriptor *descriptor, wire_arena *arena,
                       void **message, pen_error *why);

/* Writes prefix and message to `out`. */
pen_status wire_pack(const ProtobufCMessage *message, int plane, wire_out *out, pen_error *why);

/* ---- strings --------------------------------------------------------------------------------- */
/* Replaces control characters and invalid UTF-8 by '?': texts of peers are printed in logs, on terminals and in JSON.
 * False: not shorter than WIRE_TEXT_MAX. */
bool wire_clean_text(char *text);

/* ---- fields that have one name in our struct and in protobuf-c's --------------------------------- */
/* For lists of fields: X(name).  `ours` and `theirs` are the two structs; the generated ones have no const, but packing
 * only reads. */
#define WIRE_READ(name)   ours->name = theirs->name;
#define WIRE_WRITE(name)  theirs->name = ours->name;
#define WIRE_BORROW(name) theirs->name = (__typeof__(theirs->name))(uintptr_t)ours->name;

/* A status of penstock.h, else INTERNAL. */
pen_status wire_known_status(int32_t status);

#endif
