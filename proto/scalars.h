/* scalars.h - numbers of the program that are summed over the ranks with a step: losses, counts of hits.
 *
 * A pure fold of doubles in rank order, so that whoever adds them up, a shard or each worker, gets the
 * same bits.  A name travels as its hash: 64 bits, whatever its length.
 * A rank that gives no number of a name has no part in it: `ranks` counts those that gave one.
 */
#ifndef PROTO_SCALARS_H
#define PROTO_SCALARS_H

#include "proto/plan.h"

uint64_t scalars_name(const char *name); /* XXH3-64 of its bytes */

/* This rank's number; once more replaces it.  False: there are WIRE_SCALARS_MAX others. */
bool scalars_set(wire_scalars *s, uint64_t name, double value);

/* Adds what the next rank, or node, gave.  Names beyond WIRE_SCALARS_MAX are left out. */
void scalars_add(wire_scalars *sum, const wire_scalars *more);

/* False: nobody gave it. */
bool scalars_find(const wire_scalars *s, uint64_t name, double *sum, uint32_t *ranks);

/* The chunk with whose pushes a step's numbers travel: the first that a decision closes, else the first
 * that is trained.  Only its shard adds them up.  False: nothing is trained. */
bool scalars_chunk(const plan *p, uint32_t *chunk);

#endif
