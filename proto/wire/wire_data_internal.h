/* wire_data_internal.h - shared by the files of the data plane. */
#ifndef PROTO_WIRE_DATA_INTERNAL_H
#define PROTO_WIRE_DATA_INTERNAL_H

#include "proto/wire/wire_internal.h"

/* Of data.pb-c.h. */
typedef struct Pen__Data Pen__Data;
typedef struct Pen__Inputs Pen__Inputs;
typedef struct Pen__Decision Pen__Decision;
typedef struct Pen__Vote Pen__Vote;

/* The generated structs have no const; packing only reads. */
#define WIRE_COLUMN(type, pointer) ((type *)(uintptr_t)(pointer))

/* wire_parts.c */
bool wire_are_scalars(const wire_scalars *s); /* within bounds */

/* Optional parts: absent is NULL there and a flag here. */
void wire_read_inputs(const Pen__Inputs *m, bool *is_there, wire_inputs *in);
void wire_read_decision(const Pen__Decision *m, bool *is_there, wire_decision *decision);
void wire_read_vote(const Pen__Vote *m, wire_vote *vote);
Pen__Inputs *wire_write_inputs(bool is_there, const wire_inputs *in, Pen__Inputs *m);
Pen__Decision *wire_write_decision(bool is_there, const wire_decision *in, Pen__Decision *m);
Pen__Vote *wire_write_vote(bool is_there, const wire_vote *in, Pen__Vote *m);

/* wire_entry.c.  Checks kinds and bounds, and that the entries fill the payload: `blame` with a reason. */
pen_status wire_check_entries(const wire_data *d, pen_status blame, pen_error *why);
pen_status wire_read_entries(const Pen__Data *m, wire_data *d, wire_arena *arena, pen_error *why);
/* wire_pack() of a message with these entries. */
pen_status wire_pack_entries(const wire_data *d, Pen__Data *m, wire_out *out, pen_error *why);

#endif
