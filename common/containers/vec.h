/* vec.h - growing arrays with overflow checks.  New room is zeroed. */
#ifndef COMMON_VEC_H
#define COMMON_VEC_H

#include <stdbool.h>
#include <stddef.h>

/* Makes room for n rows; `capacity` (size_t) is the current room.  False: no memory, nothing has changed. */
#define VEC_ROOM(array, capacity, n) vec_room(&(array), &(capacity), n, sizeof *(array))

/* Makes room for one row after n, for an array that grows only this way and stores no capacity.  False: no memory,
 * nothing has changed. */
#define VEC_MORE(array, n) vec_more(&(array), n, sizeof *(array))

bool vec_room(void *array, size_t *capacity, size_t n, size_t row_bytes);
bool vec_more(void *array, size_t n, size_t row_bytes);

#endif
