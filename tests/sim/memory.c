/* memory.c - the names by which the cores ask for memory, and the count that refuses some. */
#include "tests/sim/memory.h"

#include "common/containers/arrays.h"
#include "common/containers/buf.h"
#include "proto/wire/wire.h"

#include <stdlib.h>
#include <string.h>

static long asked, first, end;
static bool is_held;

void sim_memory_begin(long at, long many)
{
    asked = 0;
    first = at;
    end   = at > 0 ? at + many : 0;
}

long sim_memory_asked(void)
{
    return asked;
}

bool sim_memory_has_refused(void)
{
    return first > 0 && asked >= first;
}

void sim_memory_hold(bool holds)
{
    is_held = holds;
}

static bool is_refused(void)
{
    if (is_held) return false;
    asked++;
    return asked >= first && asked < end;
}

/* The names that the cores call. */
void *sim_malloc(size_t size);
void *sim_calloc(size_t n, size_t size);
void *sim_realloc(void *from, size_t size);
void *sim_aligned_alloc(size_t alignment, size_t size);
char *sim_strdup(const char *text);
buf *sim_buf_new(size_t size);
void *sim_arrays_new(const array_want *want, size_t n);
bool sim_vec_room(void *array, size_t *capacity, size_t n, size_t row_bytes);
bool sim_vec_more(void *array, size_t n, size_t row_bytes);
wire_arena *sim_wire_arena_create(size_t bytes);

void *sim_malloc(size_t size)
{
    return is_refused() ? NULL : malloc(size);
}

void *sim_calloc(size_t n, size_t size)
{
    return is_refused() ? NULL : calloc(n, size);
}

void *sim_realloc(void *from, size_t size)
{
    return is_refused() ? NULL : realloc(from, size);
}

void *sim_aligned_alloc(size_t alignment, size_t size)
{
    return is_refused() ? NULL : aligned_alloc(alignment, size);
}

char *sim_strdup(const char *text)
{
    return is_refused() ? NULL : strdup(text);
}

buf *sim_buf_new(size_t size)
{
    return is_refused() ? NULL : buf_new(size);
}

void *sim_arrays_new(const array_want *want, size_t n)
{
    return is_refused() ? NULL : arrays_new(want, n);
}

bool sim_vec_room(void *array, size_t *capacity, size_t n, size_t row_bytes)
{
    return n > *capacity && is_refused() ? false : vec_room(array, capacity, n, row_bytes);
}

bool sim_vec_more(void *array, size_t n, size_t row_bytes)
{
    return is_refused() ? false : vec_more(array, n, row_bytes);
}

wire_arena *sim_wire_arena_create(size_t bytes)
{
    return is_refused() ? NULL : wire_arena_create(bytes);
}
