/* memory.h - memory of the product's pure cores in the simulator, of which some may be refused.
 *
 * tests/CMakeLists.txt compiles the cores with these names in place of those of the C library and of common/containers/.
 * The simulator around them, and the codec below, have all the memory they want.
 */
#ifndef TESTS_SIM_MEMORY_H
#define TESTS_SIM_MEMORY_H

#include <stdbool.h>

/* Counts anew.  The at-th request from here on is refused, and the `many` - 1 after it; at 0: none is. */
void sim_memory_begin(long at, long many);
long sim_memory_asked(void); /* requests since then */
bool sim_memory_has_refused(void);
/* true: none is counted or refused until false, as while a process starts. */
void sim_memory_hold(bool holds);

#endif
