/* arrays.h - several zeroed arrays in one allocation: created and freed together. */
#ifndef COMMON_ARRAYS_H
#define COMMON_ARRAYS_H

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

#endif
