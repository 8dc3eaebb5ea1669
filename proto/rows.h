/* rows.h - rows of a table by key: the part of the table that a key is in, and the bytes of a part as they travel; and
 * arrays of a tensor's chunk, which travel in the same messages.
 *
 * A request about a part of a table, and its answer, are these bytes, little-endian, each array padded to 8 bytes:
 *   u32 n, u32 elements
 *   u64 key[n]        ascending, each once; not in an answer
 *   u32 length[n]     of each row, if the table's rows differ in length; not in a question
 *   value[elements]   of the table's type, in the order of the keys; not in a question
 * If a handler has the rows, a rows_call comes before the question, and a rows_reply before the answer, or instead of
 * it: a push alone, or a refusal, has no answer.
 * A question about an array of a tensor's chunk, its values in float32 or a slot of its update rule, is a PULL: a
 * slots_call and, to set the array, its float32 numbers behind it.  The answer to a read is the array, padded to 8 bytes;
 * else 8 bytes of 0.
 * Thread: nothing is shared.
 */
#ifndef PROTO_ROWS_H
#define PROTO_ROWS_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    ROWS_LENGTH_MAX    = 1 << 20, /* values of one row */
    ROWS_IN_FLIGHT_MAX = 32 /* requests of a rank to a part, from the oldest without an answer on */
};

typedef enum {
    ROWS_ASKED,   /* keys only: a pull */
    ROWS_PUSHED,  /* all of it */
    ROWS_ANSWERED /* no keys */
} rows_form;

/* Points into bytes of any alignment; NULL: not there. */
typedef struct {
    uint32_t n;
    uint32_t elements; /* of all rows together */
    const uint8_t *key, *length, *value;
} rows;

static inline uint64_t rows_key(const rows *r, uint32_t i)
{
    uint64_t key;
    memcpy(&key, r->key + (size_t)i * sizeof key, sizeof key);
    return key;
}

/* Values of row i; dim: those of every row, or 0. */
static inline uint32_t rows_length(const rows *r, uint32_t i, uint32_t dim)
{
    uint32_t length = dim;
    if (dim == 0) memcpy(&length, r->length + (size_t)i * sizeof length, sizeof length);
    return length;
}

/* Bytes of this form; SIZE_MAX: more than a message may have. */
size_t rows_bytes(rows_form form, uint64_t n, uint64_t elements, uint32_t dim, size_t width);

/* Writes the head of rows_bytes() bytes and says where the arrays go. */
rows rows_lay(void *data, rows_form form, uint32_t n, uint32_t elements, uint32_t dim);

/* A request to a handler. */
enum { ROWS_PUSHES = 1, ROWS_PULLS = 2, ROWS_TEXT_MAX = 480 };
typedef struct {
    int32_t cmd;
    uint32_t verbs; /* ROWS_PUSHES, ROWS_PULLS, or both */
    uint64_t zero;
} rows_call;
typedef struct {
    int32_t status; /* pen_status */
    uint32_t text;  /* bytes of the sentence behind it, if status is not OK; padded to 8 */
    uint64_t zero;
} rows_reply;

/* Checks bytes of a peer: the size is exact, keys ascend, lengths are 1 to ROWS_LENGTH_MAX and add up.  CORRUPT says
 * what does not fit.  width: bytes of a value. */
pen_status rows_read(const void *data, size_t size, rows_form form, uint32_t dim, size_t width,
                     rows *r, pen_error *why);

/* The same for a request to a handler; *c is then its head. */
pen_status rows_read_call(const void *data, size_t size, uint32_t dim, size_t width, rows_call *c,
                          rows *r, pen_error *why);

/* The same for its answer.  OK: *r is set if it pulls; otherwise what the handler says, or CORRUPT with *is_bad. */
pen_status rows_read_reply(const void *data, size_t size, bool pulls, uint32_t dim, size_t width,
                           rows *r, bool *is_bad, pen_error *why);

/* A question about an array of a tensor's chunk. */
enum { SLOTS_READ = 1, SLOTS_SET, SLOTS_COUNT };

typedef struct {
    uint32_t what, array; /* array 0: the values; 1 + i: slot i */
    uint64_t round;       /* SET, COUNT: the step that comes next; once it has begun, refused */
    int64_t applied;      /* COUNT: updates of the chunk from now on */
    uint64_t zero;
} slots_call;

/* Checks bytes of a peer: about one of `arrays` arrays of `count` numbers, which lie behind *c if it sets. */
pen_status slots_read(const void *data, size_t size, uint32_t arrays, uint64_t count, slots_call *c,
                      pen_error *why);

static inline size_t slots_answer_bytes(uint32_t what, uint64_t count)
{
    return what == SLOTS_READ ? (size_t)((count * sizeof(float) + 7) / 8 * 8) : 8;
}

/* A mixing function (the finalizer of MurmurHash3, public domain): every bit of the key moves every bit. */
static inline uint64_t rows_hash(uint64_t key)
{
    key = (key ^ key >> 33) * 0xff51afd7ed558ccdu;
    key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53u;
    return key ^ key >> 33;
}

/* The part of a key: by hash, or by contiguous equal ranges of keys. */
static inline uint32_t rows_part_by_hash(uint64_t key, uint32_t parts)
{
    return (uint32_t)((rows_hash(key) >> 32) * parts >> 32);
}
static inline uint32_t rows_part_by_range(uint64_t key, uint32_t parts)
{
    return (uint32_t)((unsigned __int128)key * parts >> 64);
}

#endif
