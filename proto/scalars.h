/* scalars.h - numbers of the program that are summed over the ranks with a step: losses, counts of hits.
 *
 * A pure fold of doubles in rank order: shards and workers get the same bits.  A name travels as its 64-bit hash.  A rank
 * that gives no number for a name has no part in it: `ranks` counts those that did.
 */
#ifndef PROTO_SCALARS_H
#define PROTO_SCALARS_H

#include "proto/plan.h"

uint64_t scalars_name(const char *name); /* XXH3-64 of its bytes */

/* Sets this rank's number, or replaces it.  False: there are WIRE_SCALARS_MAX others. */
bool scalars_set(wire_scalars *s, uint64_t name, double value);

/* What a worker sends of its own: PEN_CORRUPT, naming it, if there are too many, or one counts as that of several ranks. */
pen_status scalars_check(const wire_scalars *s, int32_t rank, pen_error *why);

/* Adds the numbers of the next rank or node.  Names beyond WIRE_SCALARS_MAX are dropped. */
void scalars_add(wire_scalars *sum, const wire_scalars *more);

/* False: no rank gave it. */
bool scalars_find(const wire_scalars *s, uint64_t name, double *sum, uint32_t *ranks);

/* The chunk whose pushes carry a step's numbers: the first that a decision closes, else the first that is trained.  Only
 * its shard adds them up.  False: nothing is trained. */
bool scalars_chunk(const plan *p, uint32_t *chunk);

#endif
