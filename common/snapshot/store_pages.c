/* store_pages.c - walks the pages of an LMDB file (data format 1, of LMDB 0.9) and trusts none of them.
 *
 *   page    number u64, pad u16, flags u16, then lower u16, upper u16 or (large values) pages u32; 16 bytes
 *   meta    in pages 0 and 1, after the head: magic u32, version u32, address, map size, two trees of 48 bytes,
 *           last page u64, transaction u64; the one with the higher transaction is valid
 *   tree    pad u32 (of the first: page size), flags u16, depth u16, four counts u64, root u64
 *   node    size or page: low u16, high u16; flags u16; key size u16; key; value, or the page it begins on
 */
#include "common/snapshot/store_pages.h"
#include "common/base/why.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEAD_BYTES   = 16,
    META_BYTES   = 152,
    NODE_BYTES   = 8,
    BRANCH       = 1,
    LEAF         = 2,
    LARGE        = 4,
    META         = 8,
    KINDS        = BRANCH | LEAF | LARGE | META | 0x20 | 0x40,
    NODE_LARGE   = 1,
    DEPTH_MAX    = 24,
    PAGE_MIN     = 512,
    PAGE_MAX     = 65536,
    TREES        = 2, /* free pages, then keys and values */
    INTEGER_KEYS = 8, /* of the tree of free pages; 0x4000: the environment is a single file */
    ONE_FILE     = 0x4000
};
static const uint32_t magic       = 0xbeefc0de;
static const uint64_t no_page     = UINT64_MAX;
static const uint64_t map_at_most = (uint64_t)1 << 46;

typedef struct {
    const char *file;
    int fd;
    uint32_t page_bytes;
    uint64_t n_pages; /* in use, per the newest meta page */
    uint64_t transaction;
    uint64_t root[TREES];
    uint16_t depth[TREES];
    uint8_t *seen; /* one bit per page */
    pen_error *why;
} walk;

static uint64_t number(const uint8_t *at, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, bytes); /* native byte order: little-endian on all our machines */
    return value;
}

static pen_status damaged(const walk *w, uint64_t page, const char *what)
{
    return why_set(w->why, PEN_CORRUPT,
                   "%s is damaged or no snapshot (page %" PRIu64 ": %s); move it away", w->file,
                   page, what);
}

static pen_status read_at(const walk *w, uint64_t offset, void *into, size_t bytes)
{
    const ssize_t got = pread(w->fd, into, bytes, (off_t)offset);
    if (got == (ssize_t)bytes) return PEN_OK;
    if (got < 0) return why_set(w->why, PEN_STORE, "cannot read %s: %m", w->file);
    return why_set(w->why, PEN_CORRUPT,
                   "%s is damaged or no snapshot (it ends too early); move it away", w->file);
}

/* Each page may appear once in the trees. */
static pen_status claim(walk *w, uint64_t page, uint64_t n)
{
    if (page < 2 || page >= w->n_pages || n > w->n_pages - page)
        return damaged(w, page, "outside the file");
    for (uint64_t i = page; i < page + n; i++) {
        if (w->seen[i / 8] >> i % 8 & 1) return damaged(w, i, "used twice");
        w->seen[i / 8] |= (uint8_t)(1 << i % 8);
    }
    return PEN_OK;
}

/* ---- the meta pages -------------------------------------------------------------------------- */
static pen_status take_meta(walk *w, const uint8_t *meta, uint64_t page)
{
    if (number(meta, 8) != page || !(number(meta + 10, 2) & META))
        return damaged(w, page, "no meta page");
    if (number(meta + 16, 4) != magic || number(meta + 20, 4) != 1)
        return damaged(w, page, "not of LMDB's format 1");
    const uint32_t page_bytes = (uint32_t)number(meta + 40, 4);
    if (page_bytes < PAGE_MIN || page_bytes > PAGE_MAX || (page_bytes & (page_bytes - 1)) ||
        (w->page_bytes != 0 && page_bytes != w->page_bytes))
        return damaged(w, page, "impossible page size");
    if ((number(meta + 44, 2) & ~(uint64_t)ONE_FILE) != INTEGER_KEYS || number(meta + 92, 2) != 0)
        return damaged(w, page, "impossible flags");
    const uint64_t last = number(meta + 136, 8);
    if (last < 1 || last >= map_at_most / page_bytes || number(meta + 32, 8) > map_at_most)
        return damaged(w, page, "impossible size");
    w->page_bytes = page_bytes;
    if (page > 0 && number(meta + 144, 8) <= w->transaction) return PEN_OK;
    w->transaction = number(meta + 144, 8);
    w->n_pages     = last + 1;
    for (int t = 0; t < TREES; t++) {
        w->depth[t] = (uint16_t)number(meta + 40 + 48 * t + 6, 2);
        w->root[t]  = number(meta + 40 + 48 * t + 40, 8);
    }
    return PEN_OK;
}

static pen_status read_metas(walk *w)
{
    uint8_t meta[META_BYTES];
    pen_status status = read_at(w, 0, meta, sizeof meta);
    if (status == PEN_OK) status = take_meta(w, meta, 0);
    if (status == PEN_OK) status = read_at(w, w->page_bytes, meta, sizeof meta);
    return status == PEN_OK ? take_meta(w, meta, 1) : status;
}

static pen_status check_length(walk *w)
{
    struct stat file;
    if (fstat(w->fd, &file) != 0) return why_set(w->why, PEN_STORE, "cannot read %s: %m", w->file);
    const uint64_t needed = w->n_pages * w->page_bytes;
    if ((uint64_t)file.st_size >= needed) return PEN_OK;
    return why_set(w->why, PEN_CORRUPT,
                   "%s is truncated: %" PRIu64 " bytes of %" PRIu64 "; restore it, or move it away",
                   w->file, (uint64_t)file.st_size, needed);
}

/* ---- the trees ------------------------------------------------------------------------------- */
static pen_status check_page(walk *w, int tree, uint64_t page, int depth);

static pen_status check_large(walk *w, uint64_t page, uint64_t bytes)
{
    uint8_t head[HEAD_BYTES];
    if (page >= w->n_pages) return damaged(w, page, "outside the file");
    pen_status status = read_at(w, page * w->page_bytes, head, sizeof head);
    if (status != PEN_OK) return status;
    const uint64_t pages = number(head + 12, 4);
    if (number(head, 8) != page || (number(head + 10, 2) & KINDS) != LARGE)
        return damaged(w, page, "no page of a large value");
    if (pages < (HEAD_BYTES - 1 + bytes) / w->page_bytes + 1)
        return damaged(w, page, "shorter than its value");
    return claim(w, page, pages);
}

/* A list of free pages: a count, then that many numbers. */
static pen_status check_free(const walk *w, uint64_t page, const uint8_t *list, uint64_t bytes)
{
    if (bytes < 8 || number(list, 8) > bytes / 8 - 1)
        return damaged(w, page, "impossible list of free pages");
    for (uint64_t i = 1; i <= number(list, 8); i++) {
        const uint64_t free_page = number(list + 8 * i, 8);
        if (free_page < 2 || free_page >= w->n_pages) return damaged(w, page, "frees no page");
    }
    return PEN_OK;
}

static pen_status check_large_free(walk *w, uint64_t page, uint64_t bytes)
{
    uint8_t *list = malloc(bytes);
    if (list == NULL) return why_set(w->why, PEN_NO_MEMORY, "no memory to check %s", w->file);
    pen_status status = read_at(w, page * w->page_bytes + HEAD_BYTES, list, bytes);
    if (status == PEN_OK) status = check_free(w, page, list, bytes);
    free(list);
    return status;
}

static pen_status check_value(walk *w, int tree, uint64_t page, const uint8_t *node, uint64_t room)
{
    const uint64_t bytes = number(node, 4), flags = number(node + 4, 2), key = number(node + 6, 2);
    if (key == 0 || (tree == 0 && key != 8)) return damaged(w, page, "impossible key");
    if ((flags & ~(uint64_t)NODE_LARGE) != 0) return damaged(w, page, "impossible flags");
    const uint64_t inside = flags & NODE_LARGE ? 8 : bytes;
    if (NODE_BYTES + key + inside > room) return damaged(w, page, "value outside its page");
    const uint8_t *value = node + NODE_BYTES + key;
    if (!(flags & NODE_LARGE)) return tree == 0 ? check_free(w, page, value, bytes) : PEN_OK;
    const uint64_t large = number(value, 8);
    pen_status status    = check_large(w, large, bytes);
    if (status == PEN_OK && tree == 0) status = check_large_free(w, large, bytes);
    return status;
}

static pen_status check_child(walk *w, int tree, uint64_t page, const uint8_t *node, uint64_t room,
                              int depth)
{
    if (NODE_BYTES + number(node + 6, 2) > room) return damaged(w, page, "key outside its page");
    return check_page(w, tree, number(node, 6), depth - 1);
}

static pen_status check_nodes(walk *w, int tree, uint64_t page, const uint8_t *data, int depth)
{
    const uint64_t lower = number(data + 12, 2), upper = number(data + 14, 2);
    const uint64_t kind = number(data + 10, 2) & KINDS;
    if (number(data, 8) != page || kind != (depth > 1 ? BRANCH : LEAF))
        return damaged(w, page, "not the page its parent means");
    if (lower < HEAD_BYTES || lower % 2 || upper < lower || upper > w->page_bytes)
        return damaged(w, page, "impossible bounds");
    const uint64_t n = (lower - HEAD_BYTES) / 2;
    if (n < (depth > 1 ? 2 : 1)) return damaged(w, page, "empty");
    pen_status status = PEN_OK;
    for (uint64_t i = 0; i < n && status == PEN_OK; i++) {
        const uint64_t at = number(data + HEAD_BYTES + 2 * i, 2);
        if (at < upper || at % 2 || at + NODE_BYTES > w->page_bytes)
            return damaged(w, page, "node outside its page");
        status = depth > 1 ? check_child(w, tree, page, data + at, w->page_bytes - at, depth)
                           : check_value(w, tree, page, data + at, w->page_bytes - at);
    }
    return status;
}

static pen_status check_page(walk *w, int tree, uint64_t page, int depth)
{
    pen_status status = claim(w, page, 1);
    if (status != PEN_OK) return status;
    uint8_t *data = malloc(w->page_bytes);
    if (data == NULL) return why_set(w->why, PEN_NO_MEMORY, "no memory to check %s", w->file);
    status = read_at(w, page * w->page_bytes, data, w->page_bytes);
    if (status == PEN_OK) status = check_nodes(w, tree, page, data, depth);
    free(data);
    return status;
}

static pen_status check_trees(walk *w)
{
    pen_status status = PEN_OK;
    for (int t = 0; t < TREES && status == PEN_OK; t++) {
        if (w->root[t] == no_page) continue;
        if (w->depth[t] < 1 || w->depth[t] > DEPTH_MAX)
            return damaged(w, w->root[t], "impossible depth");
        status = check_page(w, t, w->root[t], w->depth[t]);
    }
    return status;
}

pen_status store_pages_check(const char *file, pen_error *why)
{
    walk w = {.file = file, .why = why, .fd = open(file, O_RDONLY | O_CLOEXEC)};
    if (w.fd < 0) return why_set(why, PEN_STORE, "cannot read %s: %m", file);
    pen_status status = read_metas(&w);
    if (status == PEN_OK) status = check_length(&w);
    if (status == PEN_OK) w.seen = calloc(w.n_pages / 8 + 1, 1);
    if (status == PEN_OK && w.seen == NULL)
        status = why_set(why, PEN_NO_MEMORY, "no memory to check %s", file);
    if (status == PEN_OK) status = check_trees(&w);
    free(w.seen);
    close(w.fd);
    return status;
}
