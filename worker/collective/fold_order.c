/* fold_order.c - sorts the members of a group by node. */
#include "worker/collective/fold_order.h"

#include <stdlib.h>

static bool is_first_of_node(const int *node, int position)
{
    for (int i = 0; i < position; i++)
        if (node[i] == node[position]) return false;
    return true;
}

bool fold_order_create(const int *node, int n, reduce_order **order)
{
    int n_nodes = 0, at = 0;
    *order = NULL;
    for (int i = 0; i < n; i++) n_nodes += is_first_of_node(node, i);
    if (n_nodes <= 1 || n_nodes == n) return true;
    reduce_order *made =
        malloc(sizeof *made + ((size_t)n + (size_t)n_nodes) * sizeof(int)); /* turn, end */
    if (made == NULL) return false;
    int *turn = (int *)(void *)(made + 1), *end = turn + n;
    *made = (reduce_order){.turn = turn, .end = end};
    for (int first = 0; first < n; first++) {
        if (!is_first_of_node(node, first)) continue;
        for (int i = first; i < n; i++)
            if (node[i] == node[first]) turn[at++] = i;
        end[made->n_parts++] = at;
    }
    *order = made;
    return true;
}

int fold_order_at(const reduce_order *order, int i, bool *ends)
{
    *ends = false;
    if (order == NULL) return i;
    for (int p = 0; p < order->n_parts; p++) *ends |= order->end[p] == i + 1;
    return order->turn[i];
}
