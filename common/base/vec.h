/* vec.h - arrays that grow: one overflow-checked way to make room.  What is new is zeroed. */
#ifndef COMMON_VEC_H
#define COMMON_VEC_H

#include <stdbool.h>
#include <stddef.h>

/* Room for n rows; `capacity` (size_t) is how many rows there is room for.  False: no memory, and nothing has changed. */
#define VEC_ROOM(array, capacity, n) vec_room(&(array), &(capacity), n, sizeof *(array))

/* Room for one row behind n, for an array that grows in this way only and keeps no capacity.  False: no memory, and
 * nothing has changed. */
#define VEC_MORE(array, n) vec_more(&(array), n, sizeof *(array))

bool vec_room(void *array, size_t *capacity, size_t n, size_t row_bytes);
bool vec_more(void *array, size_t n, size_t row_bytes);

#endif
