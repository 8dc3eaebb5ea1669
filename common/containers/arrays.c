/* arrays.c - several arrays in one piece of memory, each at a cache line of its own; and arrays that grow. */
#include "common/containers/arrays.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

enum { LINE = 64 };

/* Includes an unused line after the array.  0: overflow. */
static size_t bytes_of(const array_want *want)
{
    size_t bytes;
    if (__builtin_mul_overflow(want->n, want->row_bytes, &bytes) || bytes > SIZE_MAX / 2) return 0;
    return (bytes + 2 * LINE - 1) / LINE * LINE;
}

void *arrays_new(const array_want *want, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = bytes_of(&want[i]);
        if (bytes == 0 || __builtin_add_overflow(all, bytes, &all) || all > SIZE_MAX / 2)
            return NULL;
    }
    /* Large ones come zeroed from the system; only calloc() knows, and pages that are never used cost nothing. */
    char *memory = calloc(1, all + LINE), *at = memory;
    if (memory == NULL) return NULL;
    at += -(uintptr_t)memory % LINE;
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = bytes_of(&want[i]), used = want[i].n * want[i].row_bytes;
        memcpy(want[i].pointer, &at, sizeof at);
        ASAN_POISON_MEMORY_REGION(at + used, bytes - used);
        at += bytes;
    }
    return memory;
}

static bool is_as_before(const char *const *text, size_t i)
{
    return i > 0 && strcmp(text[i], text[i - 1]) == 0;
}

void *arrays_keep_texts(const char **text, size_t n)
{
    size_t all = 1;
    for (size_t i = 0; i < n; i++)
        if (!is_as_before(text, i)) all += strlen(text[i]) + 1;
    char *const memory = malloc(all), *at = memory;
    if (memory == NULL) return NULL;
    for (size_t i = 0; i < n; i++) {
        if (is_as_before(text, i)) {
            text[i] = text[i - 1];
            continue;
        }
        const char *from = text[i];
        text[i]          = at;
        at               = stpcpy(at, from) + 1;
    }
    return memory;
}

/* ---- arrays that grow ---------------------------------------------------------------------- */
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
