/* hostlist.h - Slurm's two short forms: lists of hosts in brackets, and tasks per node.
 *
 *   n[1-3,7,010-012],x    n1 n2 n3 n7 n010 n011 n012 x
 *   3,1    2(x2),1        tasks of each node in turn
 *
 * Pure; the input comes from an environment and is not trusted.
 */
#ifndef COMMON_LAUNCH_HOSTLIST_H
#define COMMON_LAUNCH_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Host `index` of the list, in the order of `scontrol show hostnames`.  False: too few hosts, the name does not
 * fit, or the list is malformed before it. */
bool hostlist_at(const char *list, uint64_t index, char *host, size_t size);

/* Tasks of node `node` in "2(x2),1"; -1: malformed, or fewer nodes. */
int64_t hostlist_tasks(const char *tasks_per_node, uint64_t node);

#endif
