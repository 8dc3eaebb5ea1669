/* vec.c - see vec.h. */
#include "common/containers/vec.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_FIRST = 8 };

bool vec_room(void *array, size_t *capacity, size_t n, size_t row_bytes)
{
    void *rows;
    if (n <= *capacity) return true;
    const size_t twice = *capacity == 0 ? ROWS_FIRST : 2 * *capacity;
    const size_t more  = n > twice ? n : twice;
    memcpy(&rows, array, sizeof rows);
    rows = reallocarray(rows, more, row_bytes);
    if (rows == NULL) return false;
    memset((char *)rows + *capacity * row_bytes, 0, (more - *capacity) * row_bytes);
    memcpy(array, &rows, sizeof rows);
    *capacity = more;
    return true;
}

/* The capacity is the next power of two if only this function grew the array. */
bool vec_more(void *array, size_t n, size_t row_bytes)
{
    size_t capacity = n;
    if (n != 0 && (n < ROWS_FIRST || (n & (n - 1)) != 0)) return true;
    return vec_room(array, &capacity, n + 1, row_bytes);
}
