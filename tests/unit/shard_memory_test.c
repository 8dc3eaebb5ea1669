/* shard_memory_test.c - a shard that gets no memory for an answer keeps what it has. */
#include "server/shard/shard_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- memory that runs out: the linker gives the shard these (--wrap) ----------------------------- */
static int allocations_left = -1; /* then none succeeds; -1: all do */

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *from, size_t size);

void *__wrap_calloc(size_t n, size_t size)
{
    if (allocations_left == 0) return NULL;
    if (allocations_left > 0) allocations_left--;
    return __real_calloc(n, size);
}

/* Always moves the block, which a caller must expect. */
void *__wrap_realloc(void *from, size_t size)
{
    void *to = __wrap_calloc(1, size);
    if (to == NULL) return NULL;
    if (from != NULL) memcpy(to, from, size / 2);
    free(from);
    return to;
}

/* ---- tests --------------------------------------------------------------------------------------- */
enum { FULL = 64 };

static shard s;
static const char busy[] = "busy";

static void refuse(uint32_t chunk)
{
    static const wire_data push = {.kind = WIRE_PUSH};
    shard_refuse_chunk(&s, 1, &push, chunk, 1000 + chunk, PEN_AGAIN, busy);
}

static void columns_that_cannot_grow_stay_as_they_were(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < FULL; i++) refuse(i);
    assert_int_equal(s.refusals.n, FULL);
    for (int fails_at = 0; fails_at < 2; fails_at++) {
        const shard_columns before = s.refused;
        allocations_left           = fails_at;
        refuse(FULL + (uint32_t)fails_at);
        allocations_left = -1;
        if (s.refused.capacity != before.capacity) break; /* one allocation was enough */
        assert_memory_equal(&s.refused, &before, sizeof before);
    }
    for (uint32_t i = 0; i < s.refusals.n; i++)
        assert_int_equal(s.refused.seq[i], 1000 + s.refused.chunk[i]);
    memset(s.refused.crc, 0xff,
           s.refused.capacity * sizeof *s.refused.crc); /* all of it is there */
    memset(s.refused.staleness, 0xff, s.refused.capacity * sizeof *s.refused.staleness);
    memset(s.refused.version, 0xff, s.refused.capacity * sizeof *s.refused.version);
    free(s.refused.block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_that_cannot_grow_stay_as_they_were)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
