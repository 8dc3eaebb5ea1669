/* fold_order.h - the order of a group's folds with deterministic=node.  Pure.
 *
 * Members of one node are folded in rank order, then the nodes' results in the order of each node's lowest rank.  "Rank"
 * is the position in the group, "node" what the scheduler has told all workers and servers (`node` of a member in the
 * view): it depends neither on shared memory nor on the path, so all members of a group compute the same order. */
#ifndef WORKER_COLL_FOLD_ORDER_H
#define WORKER_COLL_FOLD_ORDER_H

#include "common/compute/simd/reduce.h"

/* node[n] by position.  *order: one block, freed with free(); NULL if rank order is the same fold: all members on one
 * node, or each on its own.  False: no memory. */
bool fold_order_create(const int *node, int n, reduce_order **order);

/* The next position in the order after the first i; `order` may be NULL.  *ends: it is the last of its node. */
int fold_order_at(const reduce_order *order, int i, bool *ends);

#endif
