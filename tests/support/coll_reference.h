/* coll_reference.h - what a collective call gives, by a scalar reference.
 *
 * Inputs are a function of the seed, the call, the rank and the place.  So each member knows all inputs and folds them
 * itself, one element after the other: in rank order, or each node in rank order and then the nodes by their lowest
 * ranks.  Results are compared bit for bit (a NaN with any NaN).
 */
#ifndef TESTS_SUPPORT_COLL_REFERENCE_H
#define TESTS_SUPPORT_COLL_REFERENCE_H

#include "penstock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    BROADCAST,
    REDUCE,
    ALL_REDUCE,
    GATHER,
    ALL_GATHER,
    SCATTER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    KINDS
} kind;

typedef struct {
    pen_dtype type;
    const char *name;
    size_t bytes;
    bool is_float, is_signed;
} call_type;

enum { TYPES = 10, OPS = 11 }; /* OPS: of pen_op, from 0 on */
extern const call_type call_types[TYPES];
extern const char *const call_kind_names[KINDS], *const call_op_names[OPS];

typedef struct {
    kind kind;
    int type; /* of call_types[] */
    pen_op op;
    int size, rank, root;
    const int *node; /* [size] by position; NULL: folds are in rank order */
    uint64_t id;     /* of the call; seeds its random choices */
    size_t n;
    bool has_counts, in_place, is_scaled, is_registered, null_where_allowed;
    bool overwrites;              /* PEN_OVERWRITE; may differ between members */
    size_t offset_in, offset_out; /* bytes after a multiple of 64 */
} test_call;

/* Before the first call; all members of a job have the same seed. */
void call_reference_start(uint64_t seed);

/* A random number that is a function of both. */
uint64_t call_mix(uint64_t a, uint64_t b);

bool call_reduces(kind k);
size_t call_count(const test_call *c, int from, int to); /* elements of a part, or n */
size_t call_elements_in(const test_call *c);             /* of the own rank */
size_t call_elements_out(const test_call *c);
double call_scale(const test_call *c);

/* Writes the own rank's input.  A buffer of the functions below may be at any address. */
void call_write_input(const test_call *c, unsigned char *at);

/* False: *element is the first that is not as it was written. */
bool call_input_is_kept(const test_call *c, const unsigned char *at, size_t *element);

/* False: *element of *part is the first wrong one; part is 0 where outputs have no parts. */
bool call_output_is_right(const test_call *c, const unsigned char *at, int *part, size_t *element);

/* The 16-bit types, for a test of the reference itself: rounded to nearest, ties to even. */
float call_f16_value(uint16_t bits);
uint16_t call_f16_bits(float f);
float call_bf16_value(uint16_t bits);
uint16_t call_bf16_bits(float f);

#endif
