/* wire.c - what all planes share: the prefix of every message, and the arena.
 *
 * protobuf-c reports every failure as NULL.  The arena notes a refusal, which tells "too little memory" from "malformed".
 * It frees nothing, so no clean-up path of protobuf-c can free twice.
 */
#include "proto/wire/wire_internal.h"
#include "proto/wire/wire_peer.h"

#include "common/base/crc.h"
#include "common/base/utf8.h"
#include "common/containers/arrays.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature) /* clang; gcc has the macro */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(data, size)   ASAN_POISON_MEMORY_REGION(data, size)
#define UNPOISON(data, size) ASAN_UNPOISON_MEMORY_REGION(data, size)
#else
#define POISON(data, size)   ((void)(data), (void)(size))
#define UNPOISON(data, size) ((void)(data), (void)(size))
#endif

enum {
    ALIGNMENT         = 16,
    BLOCK_BYTES_FIRST = 16 << 10, /* a message about 64 chunks takes a fifth of it */
};

/* ---- arena ----------------------------------------------------------------------------------- */
struct wire_block {
    wire_block *older;
    size_t size, used;
    _Alignas(ALIGNMENT) unsigned char data[];
};

static void *take_for_protobuf(void *arena, size_t bytes)
{
    return wire_arena_take(arena, bytes);
}

static void free_nothing(void *arena, void *data)
{
    (void)arena;
    (void)data;
}

void wire_arena_init(wire_arena *arena, size_t bytes_max)
{
    *arena =
        (wire_arena){.allocator = {take_for_protobuf, free_nothing, arena}, .bytes_max = bytes_max};
}

static void free_blocks(wire_arena *arena)
{
    for (wire_block *b = arena->newest, *older; b != NULL; b = older) {
        older = b->older;
        UNPOISON(b->data, b->size);
        free(b);
    }
    arena->newest = NULL;
    arena->bytes  = 0;
}

void wire_arena_fini(wire_arena *arena)
{
    free_blocks(arena);
}

wire_arena *wire_arena_create(size_t bytes_max)
{
    wire_arena *arena = malloc(sizeof *arena);
    if (arena != NULL) wire_arena_init(arena, bytes_max);
    return arena;
}

void wire_arena_destroy(wire_arena *arena)
{
    if (arena == NULL) return;
    wire_arena_fini(arena);
    free(arena);
}

static bool add_block(wire_arena *arena, size_t size)
{
    wire_block *block = malloc(sizeof *block + size);
    if (block == NULL) return false;
    *block        = (wire_block){.older = arena->newest, .size = size};
    arena->newest = block;
    arena->bytes += size;
    POISON(block->data, size);
    return true;
}

void wire_arena_reset(wire_arena *arena)
{
    size_t bytes = arena->bytes;
    if (arena->newest != NULL && arena->newest->older != NULL) {
        free_blocks(arena);
        add_block(arena, bytes); /* without memory the next message begins with none */
    }
    if (arena->newest == NULL) return;
    arena->newest->used = 0;
    POISON(arena->newest->data,
           arena->newest->size); /* the last message must not be read any more */
}

static bool grow(wire_arena *arena, size_t bytes)
{
    size_t left = arena->bytes_max - arena->bytes;
    size_t size = arena->bytes > 0 ? 2 * arena->bytes : BLOCK_BYTES_FIRST;
    if (size < bytes) size = bytes;
    if (size > left) size = left;
    if (size < bytes) {
        arena->is_full = true;
        return false;
    }
    arena->is_starved = !add_block(arena, size);
    return !arena->is_starved;
}

void *wire_arena_take(wire_arena *arena, size_t bytes)
{
    size_t rounded = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (rounded < bytes) {
        arena->is_full = true;
        return NULL;
    }
    const wire_block *b = arena->newest;
    if ((b == NULL || b->size - b->used < rounded) && !grow(arena, rounded)) return NULL;
    void *data = arena->newest->data + arena->newest->used;
    arena->newest->used += rounded;
    UNPOISON(data, bytes);
    return data;
}

pen_status wire_arena_status(const wire_arena *arena)
{
    return arena->is_starved ? PEN_NO_MEMORY : PEN_CORRUPT;
}

/* ---- prefix ---------------------------------------------------------------------------------- */
/* As on the wire; decision.c asserts that this machine is little-endian. */
typedef struct {
    char magic[4];
    uint16_t version, plane;
    uint32_t length[2]; /* a uint64_t that is not aligned to eight */
    uint32_t crc;
} prefix;
_Static_assert(sizeof(prefix) == WIRE_PREFIX_BYTES, "no padding");

static const char magic[4] = {'P', 'N', 'S', 'K'};

static const char *plane_name(int plane)
{
    static const char *const planes[] = {"unknown", "control", "data", "peer"};
    return planes[plane >= WIRE_PLANE_CONTROL && plane <= WIRE_PLANE_PEER ? plane : 0];
}

static pen_status check_prefix(const uint8_t *head, size_t size, int plane, pen_error *why)
{
    if (size < WIRE_PREFIX_BYTES)
        return why_set(why, PEN_CORRUPT,
                       "a head frame of %zu bytes is shorter than its prefix of %d", size,
                       WIRE_PREFIX_BYTES);
    if (size > WIRE_HEAD_BYTES_MAX)
        return why_set(why, PEN_CORRUPT, "a head frame of %zu bytes is over the limit of %d", size,
                       WIRE_HEAD_BYTES_MAX);
    prefix p;
    uint64_t length;
    memcpy(&p, head, sizeof p);
    memcpy(&length, p.length, sizeof length);
    if (memcmp(p.magic, magic, sizeof magic) != 0)
        return why_set(why, PEN_CORRUPT,
                       "not a message of Penstock: it starts with %02x%02x%02x%02x", head[0],
                       head[1], head[2], head[3]);
    if (p.version != WIRE_VERSION)
        return why_set(why, PEN_CORRUPT, "unsupported wire version %u; this is version %d",
                       p.version, WIRE_VERSION);
    if (p.plane != plane)
        return why_set(why, PEN_CORRUPT, "a message of plane %u (%s) came to the %s plane", p.plane,
                       plane_name(p.plane), plane_name(plane));
    if (length != size - WIRE_PREFIX_BYTES)
        return why_set(why, PEN_CORRUPT, "the prefix promises %" PRIu64 " bytes and %zu follow",
                       length, size - WIRE_PREFIX_BYTES);
    uint32_t crc = crc32c(0, head + WIRE_PREFIX_BYTES, size - WIRE_PREFIX_BYTES);
    if (crc != p.crc)
        return why_set(why, PEN_CORRUPT, "the checksum of the head is %08x, expected %08x", crc,
                       p.crc);
    return PEN_OK;
}

pen_status wire_unpack(const void *head, size_t size, int plane,
                       const ProtobufCMessageDescriptor *descriptor, wire_arena *arena,
                       void **message, pen_error *why)
{
    pen_status status = check_prefix(head, size, plane, why);
    if (status != PEN_OK) return status;
    arena->is_full = arena->is_starved = false;
    *message = protobuf_c_message_unpack(descriptor, &arena->allocator, size - WIRE_PREFIX_BYTES,
                                         (const uint8_t *)head + WIRE_PREFIX_BYTES);
    if (*message != NULL) return PEN_OK;
    if (arena->is_starved)
        return why_set(why, PEN_NO_MEMORY, "no memory to decode a head of %zu bytes", size);
    if (arena->is_full)
        return why_set(why, PEN_CORRUPT,
                       "a head of %zu bytes needs more than the %zu bytes it may take to decode",
                       size, arena->bytes_max);
    return why_set(why, PEN_CORRUPT, "the head is not a %s message", plane_name(plane));
}

/* ---- output ---------------------------------------------------------------------------------- */
void wire_out_free(wire_out *out)
{
    free(out->data);
    *out = (wire_out){0};
}

pen_status wire_pack(const ProtobufCMessage *message, int plane, wire_out *out, pen_error *why)
{
    uint64_t length = protobuf_c_message_get_packed_size(message);
    size_t size     = WIRE_PREFIX_BYTES + length;
    if (size > WIRE_HEAD_BYTES_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "a %s message of %zu bytes is over the limit of %d", plane_name(plane), size,
                       WIRE_HEAD_BYTES_MAX);
    if (!VEC_ROOM(out->data, out->capacity, size))
        return why_set(why, PEN_NO_MEMORY, "no memory for a head of %zu bytes", size);

    protobuf_c_message_pack(message, out->data + WIRE_PREFIX_BYTES);
    prefix p = {.version = WIRE_VERSION, .plane = (uint16_t)plane};
    memcpy(p.magic, magic, sizeof magic);
    memcpy(p.length, &length, sizeof length);
    p.crc = crc32c(0, out->data + WIRE_PREFIX_BYTES, length);
    memcpy(out->data, &p, sizeof p);
    out->size = size;
    return PEN_OK;
}

/* ---- strings and numbers --------------------------------------------------------------------- */
bool wire_clean_text(char *text)
{
    return utf8_clean(text, WIRE_TEXT_MAX) < WIRE_TEXT_MAX;
}

pen_status wire_known_status(int32_t status)
{
    return pen_status_info((pen_status)status)->status == PEN_STATUS_MAX_ ? PEN_INTERNAL
                                                                          : (pen_status)status;
}

/* clang-format off */
#define KINDS(X) \
    X(PUSH) X(RECEIPT) X(PREPARED) X(PULL) X(VALUES) X(REFUSED) X(INQUIRE) X(WAITING) \
    X(INIT) X(LOG) X(LOGGED) \
    X(HELLO) X(WELCOME) X(EPOCH) X(REGISTER) X(PLAN) X(READY) X(COMMITTED) X(BEAT) \
    X(BEAT_ACK) X(NOTICE) X(VERDICT) X(FAILURE) X(EXITED) X(BYE) X(BYED) \
    X(STOP) X(SNAPSHOT_PLEASE) X(SNAPSHOT_PART) X(SNAPSHOT_DONE) X(ENQUIRE) X(MISSING) \
    X(STATUS_ASK) X(STATUS) X(WILL) X(COMMAND) X(REPLY) X(LOST) X(FAULT) X(FAULTED) X(OVERDUE) \
    X(SHRINK) X(SHRUNK) X(STORE) X(STORED) X(RECORD_ASK) X(RECORD) \
    X(SEAL) X(SEALED) X(CAUGHT_UP) X(SUSPECT) X(SCALE) X(DRAIN) X(RESIZED) X(PROVE) X(PROVEN) X(UNREACHED) \
    X(SHOW) X(PART) X(CREDIT) X(LETTER) X(CLEAR) X(SECTION) X(WITHDRAWN)
/* clang-format on */
static const char *const names[] = {
#define X(kind) [WIRE_##kind] = #kind,
    KINDS(X)
#undef X
};
_Static_assert((int)WIRE_INIT < (int)WIRE_HELLO && (int)WIRE_CONTROL_END <= (int)WIRE_SHOW &&
                   (int)WIRE_PEER_END <= (int)WIRE_LOG,
               "the planes share one range of numbers");

bool wire_is_data_kind(int kind)
{
    return (kind >= WIRE_PUSH && kind <= WIRE_INIT) || (kind >= WIRE_LOG && kind < WIRE_KIND_END);
}

bool wire_is_control_kind(int kind)
{
    return (kind >= (int)WIRE_HELLO && kind <= (int)WIRE_BEAT_ACK) ||
           (kind >= (int)WIRE_NOTICE && kind < (int)WIRE_CONTROL_END);
}

const char *wire_kind_name(int kind)
{
    bool is_known = kind > 0 && kind < (int)(sizeof names / sizeof names[0]) && names[kind] != NULL;
    return is_known ? names[kind] : "?";
}
