/* call.c - a collective call: its names, its sizes, its checks, and the comparison of members' headers. */
#include "worker/collective/coll.h"

#include "common/base/sentence.h"
#include "common/base/why.h"
#include "common/compute/simd/reduce.h"
#include "proto/plan.h"
#include "worker/collective/fault_point.h"

#include <inttypes.h>
#include <string.h>

#ifdef PENSTOCK_FAULT_POINTS
void (*coll_fault_point)(const char *path, uint64_t seq, int step);
engine_pretence engine_pretences[PRETENCE_RANKS_MAX];
#endif

/* ---- names ----------------------------------------------------------------------------------- */
/* clang-format off */
static const struct {
    const char *name;
    bool reduces, has_root, has_counts;
} kinds[COLL_KINDS] = {
    [COLL_BARRIER]        = {"barrier",        false, false, false},
    [COLL_BROADCAST]      = {"broadcast",      false, true,  false},
    [COLL_REDUCE]         = {"reduce",         true,  true,  false},
    [COLL_ALL_REDUCE]     = {"all_reduce",     true,  false, false},
    [COLL_GATHER]         = {"gather",         false, true,  true},
    [COLL_ALL_GATHER]     = {"all_gather",     false, false, true},
    [COLL_SCATTER]        = {"scatter",        false, true,  true},
    [COLL_REDUCE_SCATTER] = {"reduce_scatter", true,  false, true},
    [COLL_ALL_TO_ALL]     = {"all_to_all",     false, false, true},
};

static const char *const ops[] = {
    [PEN_SUM]  = "SUM",  [PEN_AVG]  = "AVG",  [PEN_PROD] = "PROD", [PEN_MIN] = "MIN",
    [PEN_MAX]  = "MAX",  [PEN_LAND] = "LAND", [PEN_LOR]  = "LOR",  [PEN_LXOR] = "LXOR",
    [PEN_BAND] = "BAND", [PEN_BOR]  = "BOR",  [PEN_BXOR] = "BXOR",
};
/* clang-format on */

/* The number may come from another process: any value is possible. */
static bool is_kind(coll_kind kind)
{
    return (unsigned)kind < COLL_KINDS;
}

const char *coll_kind_name(coll_kind kind)
{
    return is_kind(kind) ? kinds[kind].name : "?";
}

const char *coll_op_name(pen_op op)
{
    return (unsigned)op < sizeof ops / sizeof ops[0] ? ops[op] : "?";
}

bool coll_reduces(coll_kind kind)
{
    return is_kind(kind) && kinds[kind].reduces;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

size_t coll_part(const size_t *counts, size_t n, int who)
{
    return counts != NULL ? counts[who] : n;
}

size_t coll_part_offset(const size_t *counts, size_t n, int who)
{
    if (counts == NULL) return n * (size_t)who;
    size_t sum = 0;
    for (int i = 0; i < who; i++) sum += counts[i];
    return sum;
}

coll_piece coll_between(const coll_call *call, int from, int to)
{
    const coll_piece none = {0};
    switch (call->kind) {
    case COLL_BROADCAST: return from == call->root ? (coll_piece){.n = call->n} : none;
    case COLL_GATHER:
        if (to != call->root) return none;
        return (coll_piece){.n = coll_part(call->counts, call->n, from)};
    case COLL_ALL_GATHER: return (coll_piece){.n = coll_part(call->counts, call->n, from)};
    case COLL_SCATTER:
        if (from != call->root) return none;
        break;
    case COLL_REDUCE_SCATTER:
    case COLL_ALL_TO_ALL: break;
    default: return none;
    }
    return (coll_piece){coll_part_offset(call->counts, call->n, to),
                        coll_part(call->counts, call->n, to)};
}

size_t coll_put_offset(const coll_call *call, int from)
{
    switch (call->kind) {
    case COLL_GATHER:
    case COLL_ALL_GATHER: return coll_part_offset(call->counts, call->n, from);
    case COLL_ALL_TO_ALL: return coll_part_offset(call->out_counts, call->n, from);
    default: return 0;
    }
}

bool coll_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

size_t coll_in_elements(const coll_call *call, int size, int rank)
{
    switch (call->kind) {
    case COLL_BROADCAST: return rank == call->root ? call->n : 0;
    case COLL_REDUCE:
    case COLL_ALL_REDUCE: return call->n;
    case COLL_GATHER:
    case COLL_ALL_GATHER: return coll_part(call->counts, call->n, rank);
    case COLL_SCATTER:
        return rank == call->root ? coll_part_offset(call->counts, call->n, size) : 0;
    case COLL_REDUCE_SCATTER:
    case COLL_ALL_TO_ALL: return coll_part_offset(call->counts, call->n, size);
    default: return 0;
    }
}

size_t coll_out_elements(const coll_call *call, int size, int rank)
{
    switch (call->kind) {
    case COLL_BROADCAST:
    case COLL_ALL_REDUCE: return call->n;
    case COLL_REDUCE: return rank == call->root ? call->n : 0;
    case COLL_GATHER: return rank == call->root ? coll_part_offset(call->counts, call->n, size) : 0;
    case COLL_ALL_GATHER: return coll_part_offset(call->counts, call->n, size);
    case COLL_SCATTER:
    case COLL_REDUCE_SCATTER: return coll_part(call->counts, call->n, rank);
    case COLL_ALL_TO_ALL: return coll_part_offset(call->out_counts, call->n, size);
    default: return 0;
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

static pen_status check_types(const coll_call *call, const char *function, pen_error *why)
{
    if (call->kind == COLL_BARRIER) return PEN_OK;
    if (call->dtype == PEN_F8E4M3 || call->dtype == PEN_F8E5M2)
        return why_set(why, PEN_UNSUPPORTED,
                       "%s: %s is for wire and storage only; pass these bytes as u8", function,
                       plan_dtype_name(call->dtype));
    if (plan_dtype_bytes(call->dtype) == 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: invalid element type %d; use one of pen_dtype, such as PEN_F32",
                       function, (int)call->dtype);
    if (!coll_reduces(call->kind)) return PEN_OK;
    if ((unsigned)call->op >= sizeof ops / sizeof ops[0])
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: invalid operation %d; use one of pen_op, such as PEN_SUM", function,
                       (int)call->op);
    if (!reduce_is_legal(call->op, call->dtype))
        return why_set(why, PEN_UNSUPPORTED, "%s: %s of %s is not defined; it needs integers",
                       function, coll_op_name(call->op), plan_dtype_name(call->dtype));
    return PEN_OK;
}

static pen_status check_root(const coll_call *call, int size, const char *function, pen_error *why)
{
    if (!kinds[call->kind].has_root || (call->root >= 0 && call->root < size)) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT, "%s: invalid root %d; expected 0 to %d", function,
                   call->root, size - 1);
}

/* More than memory can hold: the sums of coll_part_offset() would wrap around. */
static bool is_too_much(const size_t *counts, size_t n, int size, size_t element)
{
    size_t room = PTRDIFF_MAX / element;
    if (counts == NULL) return n > room / (size_t)size;
    for (int i = 0; i < size; i++) {
        if (counts[i] > room) return true;
        room -= counts[i];
    }
    return false;
}

static bool has_own_part(coll_kind kind)
{
    return kind == COLL_GATHER || kind == COLL_ALL_GATHER || kind == COLL_SCATTER ||
           kind == COLL_REDUCE_SCATTER;
}

static pen_status check_all_to_all(const coll_call *call, int rank, const char *function,
                                   pen_error *why)
{
    if ((call->counts == NULL) != (call->out_counts == NULL))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: expected in_counts and out_counts, or neither", function);
    if (call->counts != NULL && call->counts[rank] != call->out_counts[rank])
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: this member sends %zu elements to itself, but expects %zu", function,
                       call->counts[rank], call->out_counts[rank]);
    return PEN_OK;
}

static pen_status check_counts(const coll_call *call, int size, int rank, const char *function,
                               pen_error *why)
{
    const size_t element = call->kind == COLL_BARRIER ? 1 : plan_dtype_bytes(call->dtype);
    const int parts      = kinds[call->kind].has_counts ? size : 1;
    if (is_too_much(call->counts, call->n, parts, element) ||
        (call->kind == COLL_ALL_TO_ALL && is_too_much(call->out_counts, call->n, parts, element)))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: more elements than memory can hold; n and counts are elements, not "
                       "negative",
                       function);
    if (call->kind == COLL_ALL_TO_ALL) return check_all_to_all(call, rank, function, why);
    if (has_own_part(call->kind) && call->counts != NULL && call->counts[rank] != call->n)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: n is %zu, but counts[%d], this member's part, is %zu", function,
                       call->n, rank, call->counts[rank]);
    return PEN_OK;
}

/* The buffers may be equal, or, where parts differ, one may be the member's own part of the other. */
static bool overlap_is_meant(const coll_call *call, int rank, size_t element)
{
    if (call->in == call->out) return true;
    const size_t own         = element * coll_part_offset(call->counts, call->n, rank);
    const unsigned char *in  = call->in;
    const unsigned char *out = call->out;
    if (call->kind == COLL_GATHER || call->kind == COLL_ALL_GATHER) return in == out + own;
    if (call->kind == COLL_SCATTER || call->kind == COLL_REDUCE_SCATTER) return out == in + own;
    return false;
}

static pen_status check_buffers(const coll_call *call, int size, int rank, const char *function,
                                pen_error *why)
{
    const size_t element = plan_dtype_bytes(call->dtype);
    const size_t n_in    = coll_in_elements(call, size, rank),
                 n_out   = coll_out_elements(call, size, rank);
    if (call->kind == COLL_BROADCAST && n_out > 0 && call->out == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "%s: buf is NULL", function);
    if (n_in > 0 && call->in == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: in is NULL, but this member has %zu elements", function, n_in);
    if (n_out > 0 && call->out == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: out is NULL, but this member gets %zu elements", function, n_out);
    if (coll_overlap(call->in, n_in * element, call->out, n_out * element) &&
        !overlap_is_meant(call, rank, element))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%s: in and out overlap; use the same pointer, or separate buffers",
                       function);
    return PEN_OK;
}

pen_status coll_call_check(const coll_call *call, int size, int rank, const char *function,
                           pen_error *why)
{
    pen_status status = check_types(call, function, why);
    if (status == PEN_OK) status = check_root(call, size, function, why);
    if (status == PEN_OK) status = check_counts(call, size, rank, function, why);
    if (status == PEN_OK) status = check_buffers(call, size, rank, function, why);
    if (status == PEN_OK && call->scale != 1 && !coll_reduces(call->kind))
        return why_set(why, PEN_INVALID_ARGUMENT, "%s: PEN_SCALED is for calls that reduce",
                       function);
    return status;
}

/* ---- headers --------------------------------------------------------------------------------- */

void coll_header_of(const coll_call *call, int size, uint64_t seq, coll_header *header)
{
    const uint64_t shown = call->shown != NULL ? COLL_IN_PLACE_OF : 0;
    if (shown != 0) call = call->shown;
    const bool is_barrier = call->kind == COLL_BARRIER, has_counts = call->counts != NULL;
    memset(header, 0, sizeof *header); /* every byte: it is sent as bytes */
    header->seq   = seq;
    header->kind  = (int32_t)call->kind;
    header->dtype = is_barrier ? PEN_U8 : (int32_t)call->dtype;
    header->op    = coll_reduces(call->kind) ? (int32_t)call->op : 0;
    header->root  = kinds[call->kind].has_root ? call->root : 0;
    if (!is_barrier && !has_counts) header->n = call->n;
    if (call->on_device) header->n |= COLL_ON_DEVICE;
    header->n |= shown;
    if (call->any_memory) header->n |= COLL_ANY_MEMORY;
    if (has_counts && call->kind != COLL_ALL_TO_ALL) {
        /* FNV-1a over the bytes of every count; never 0, which means no counts. */
        uint64_t hash = 14695981039346656037u;
        for (int i = 0; i < size; i++)
            for (int shift = 0; shift < 64; shift += 8)
                hash = (hash ^ ((uint64_t)call->counts[i] >> shift & 0xff)) * 1099511628211u;
        header->counts = hash != 0 ? hash : 1;
    }
    if (call->label != NULL) {
        /* Truncates between characters, not inside one. */
        size_t n = strnlen(call->label, COLL_LABEL_BYTES);
        if (n == COLL_LABEL_BYTES)
            for (n--; n > 0 && ((unsigned char)call->label[n] & 0xc0) == 0x80;) n--;
        memcpy(header->label, call->label, n);
    }
}

static uint64_t amount_of(const coll_header *h)
{
    return h->n & ~(COLL_ON_DEVICE | COLL_ANY_MEMORY | COLL_IN_PLACE_OF);
}

static bool is_same_memory(const coll_header *a, const coll_header *b)
{
    if (((a->n ^ b->n) & COLL_IN_PLACE_OF) != 0) return false;
    return ((a->n | b->n) & COLL_ANY_MEMORY) != 0 || ((a->n ^ b->n) & COLL_ON_DEVICE) == 0;
}

/* Labels are for people: members may name the same call differently. */
static bool agrees(const coll_header *a, const coll_header *b)
{
    return a->seq == b->seq && amount_of(a) == amount_of(b) && is_same_memory(a, b) &&
           a->counts == b->counts && a->kind == b->kind && a->op == b->op && a->dtype == b->dtype &&
           a->root == b->root;
}

static void add_amount(sentence *text, const coll_header *h)
{
    const uint64_t n = amount_of(h);
    char digits[SENTENCE_COUNT_BYTES];
    const char *dtype = plan_dtype_name((pen_dtype)h->dtype);
    if (h->counts != 0)
        sentence_add(text, "%s in counts #%08x", dtype, (unsigned)(h->counts ^ h->counts >> 32));
    else if (h->kind == COLL_ALL_TO_ALL && n == 0)
        sentence_add(text, "%s in counts", dtype);
    else
        sentence_add(text, "%s %s", sentence_count(digits, n), dtype);
}

/* "1,000 f32 SUM root 1 'loss'"; if kinds differ: "an all_reduce of 1,000 f32 SUM 'loss'". */
static void add_what(sentence *text, const coll_header *h, bool with_kind, bool with_seq,
                     bool with_memory)
{
    const coll_kind kind = (coll_kind)h->kind;
    const char *name     = coll_kind_name(kind);
    if (with_seq) sentence_add(text, "call %" PRIu64 ", ", h->seq);
    if (with_kind)
        sentence_add(text, "%s %s%s", name[0] == 'a' ? "an" : "a", name,
                     kind == COLL_BARRIER ? "" : " of ");
    if (kind != COLL_BARRIER) add_amount(text, h);
    if (coll_reduces(kind)) sentence_add(text, " %s", coll_op_name((pen_op)h->op));
    if (is_kind(kind) && kinds[kind].has_root) sentence_add(text, " root %d", (int)h->root);
    if (h->label[0] != '\0') sentence_add(text, " '%.*s'", COLL_LABEL_BYTES - 1, h->label);
    if (with_memory) sentence_add(text, " in %s memory", h->n & COLL_ON_DEVICE ? "device" : "host");
}

static pen_status differ(const coll_header *const *headers, const int *ranks, int culprit,
                         int usual, pen_error *why)
{
    const coll_header *odd = headers[culprit], *other = headers[usual];
    const bool kind_differs = odd->kind != other->kind, seq_differs = odd->seq != other->seq;
    /* A barrier has nothing but its kind to print. */
    const bool with_kind   = kind_differs || other->kind == COLL_BARRIER;
    const bool with_memory = !is_same_memory(odd, other);
    sentence text          = {0};
    if (kind_differs && seq_differs)
        sentence_add(&text, "this call");
    else if (kind_differs)
        sentence_add(&text, "call %" PRIu64, other->seq);
    else
        sentence_add(&text, "%s", coll_kind_name((coll_kind)other->kind));
    if (!kind_differs && !seq_differs) sentence_add(&text, " (call %" PRIu64 ")", other->seq);
    sentence_add(&text, " differs: rank %d has ", ranks[culprit]);
    add_what(&text, odd, with_kind, seq_differs, with_memory);
    sentence_add(&text, ", rank %d has ", ranks[usual]);
    add_what(&text, other, with_kind, seq_differs, with_memory);
    why_set(why, PEN_MISMATCH, "%s", text.text);
    char label[COLL_LABEL_BYTES] = {0};
    memcpy(label, odd->label, sizeof label - 1);
    why_culprit(why, PEN_WORKER, ranks[culprit], -1, label);
    return PEN_MISMATCH;
}

/* A header without a buffer agrees with either kind of memory, but the two kinds do not agree with each other. */
static int first_definite(const coll_header *const *headers, int size)
{
    int i = 0;
    while (i < size && (headers[i]->n & COLL_ANY_MEMORY) != 0) i++;
    return i < size ? i : 0;
}

pen_status coll_headers_compare(const coll_header *const *headers, const int *ranks, int size,
                                pen_error *why)
{
    const int first = first_definite(headers, size);
    int odd         = 0;
    while (odd < size && agrees(headers[first], headers[odd])) odd++;
    if (odd >= size) return PEN_OK;
    /* The lowest position with the most frequent header. */
    int usual = 0, best_votes = 0;
    for (int i = 0; i < size && best_votes * 2 <= size; i++) {
        int votes = 0;
        for (int j = 0; j < size; j++) votes += agrees(headers[i], headers[j]);
        if (votes > best_votes) {
            usual      = i;
            best_votes = votes;
        }
    }
    int culprit = 0;
    while (culprit < size && agrees(headers[culprit], headers[usual])) culprit++;
    return culprit < size ? differ(headers, ranks, culprit, usual, why)
                          : differ(headers, ranks, odd, first, why);
}
