/* order3.h - a byte model that only counts: it predicts a byte from the few bytes before it. */
#ifndef TESTS_ORDER3_H
#define TESTS_ORDER3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORDER3_MOST = 3 };

typedef struct order3 order3;

/* A model that uses the `order` bytes before (0 to 3).
 * Ownership  the caller's, for order3_free(); NULL: no memory.
 * Source     Witten & Bell, "The Zero-Frequency Problem", IEEE Transactions on Information Theory 37(4), 1991, method C,
 *            interpolated with the next shorter context: P(c|h) = (n(hc) + kinds(h) P(c|h')) / (n(h) + kinds(h)), where
 *            kinds(h) is how many different bytes followed h; the shortest is mixed with 1/256. */
order3 *order3_new(int order);
void order3_free(order3 *m);

bool order3_learn(order3 *m, const uint8_t *bytes, size_t n); /* once; false: no memory */

double order3_chance(const order3 *m, const uint8_t *before, int known,
                     uint8_t byte); /* known bytes end at before */

/* Mean of -log2 of the probability of each byte; the first bytes have shorter contexts. */
double order3_bits(const order3 *m, const uint8_t *bytes, size_t n);

#endif
