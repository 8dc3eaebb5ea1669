/* slots.h - an array of a chunk as it travels: its values in float32, or a slot of its update rule.
 *
 * A question is a PULL with sizes, as of rows, about a chunk of a tensor: a slots_call and, to set the array, its
 * float32 numbers behind it.  The answer to a read is the array, padded to 8 bytes; else 8 bytes of 0.  All is
 * little-endian.
 */
#ifndef PROTO_SLOTS_H
#define PROTO_SLOTS_H

#include <stddef.h>
#include <stdint.h>

enum { SLOTS_READ = 1, SLOTS_SET, SLOTS_COUNT };

typedef struct {
    uint32_t what, array; /* array 0: the values; 1 + i: slot i */
    uint64_t
        round; /* SET, COUNT: the step that comes next.  Once it has begun, a repeat is refused */
    int64_t applied; /* COUNT: updates of the chunk from now on */
    uint64_t zero;
} slots_call;

static inline size_t slots_answer_bytes(uint32_t what, uint64_t count)
{
    return what == SLOTS_READ ? (size_t)((count * sizeof(float) + 7) / 8 * 8) : 8;
}

#endif
