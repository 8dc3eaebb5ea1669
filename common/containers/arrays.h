/* arrays.h - several zeroed arrays in one allocation, created and freed together; and arrays that grow. */
#ifndef COMMON_ARRAYS_H
#define COMMON_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    void *pointer; /* address of the pointer to set */
    size_t n, row_bytes;
} array_want;

#define ARRAY(pointer, n)                                                                          \
    {                                                                                              \
        &(pointer), (n), sizeof *(pointer)                                                         \
    }

/* Sets all pointers: ARRAYS_NEW(ARRAY(t->rank, n), ARRAY(t->slot, 2 * n)).  free() the result.  NULL: no memory,
 * nothing has changed. */
#define ARRAYS_NEW(...)                                                                            \
    arrays_new((const array_want[]){__VA_ARGS__},                                                  \
               sizeof((const array_want[]){__VA_ARGS__}) / sizeof(array_want))

void *arrays_new(const array_want *want, size_t n);

/* Copies n texts into one allocation, and points text[] there; equal neighbours become one.  free() the result.  NULL: no
 * memory, nothing has changed. */
void *arrays_keep_texts(const char **text, size_t n);

/* ---- arrays that grow, with overflow checks; new room is zeroed ---------------------------- */
/* Makes room for n rows; `capacity` (size_t) is the current room.  False: no memory, nothing has changed. */
#define VEC_ROOM(array, capacity, n) vec_room(&(array), &(capacity), n, sizeof *(array))

/* Makes room for one row after n, for an array that grows only this way and stores no capacity.  False: no memory,
 * nothing has changed. */
#define VEC_MORE(array, n) vec_more(&(array), n, sizeof *(array))

bool vec_room(void *array, size_t *capacity, size_t n, size_t row_bytes);
bool vec_more(void *array, size_t n, size_t row_bytes);

#endif
