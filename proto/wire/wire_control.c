/* wire_control.c - messages of the control plane, each a list of fields for both directions.
 *
 * DESIGN.  FIELDS_<MESSAGE> lists the fields of a message once: type and name, which is the same in our struct and in
 * protobuf-c's.  Each list makes two functions, read_<message> (theirs to ours, for decoding) and write_<message> (ours to
 * theirs, for encoding), so no field is sent and not received, and every bound holds in both directions.  A pass remembers
 * its first failure.  The functions do not return early: after a failure they go on with empty lists, and the result is
 * dropped at the end.
 *
 * To add a field: control.proto, the struct in wire.h, its line here, tests/support/wire_samples.c.
 * To add a kind: the same, and a line in KINDS.
 */
#include "proto/wire/wire_internal.h"

#include "control.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    SCRATCH_BYTES_MAX =
        256 << 20, /* for encoding: lists of at most WIRE_ITEMS_MAX generated structs */
    COPY_BYTES_MAX = 64 << 20,
    DIMENSIONS_MAX = sizeof((wire_tensor){0}.shape) / sizeof(int64_t),
    MISSING_MAX    = sizeof((pen_error){0}.missing) / sizeof(int32_t)
};

/* ---- one pass over a message ----------------------------------------------------------------- */
typedef struct {
    wire_arena *arena;
    const char *kind;
    pen_status blame, status; /* blame: status of a bad field; status: the first failure */
    pen_error *why;
} pass;

#define REFUSE(p, ...) refuse(p, (p)->blame, __VA_ARGS__)

__attribute__((format(printf, 3, 4))) static void refuse(pass *p, pen_status status,
                                                         const char *format, ...)
{
    if (p->status != PEN_OK) return;
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->status = why_set(p->why, status, "%s %s", p->kind, text);
}

/* Zeroed room for n things; NULL: n is 0 or out of bounds, or no memory. */
static void *room(pass *p, size_t n, size_t bytes_each)
{
    if (p->status != PEN_OK || n == 0) return NULL;
    if (n > WIRE_ITEMS_MAX) {
        REFUSE(p, "has a list of %zu entries; %d are allowed", n, WIRE_ITEMS_MAX);
        return NULL;
    }
    void *data = wire_arena_take(p->arena, n * bytes_each);
    if (data == NULL) {
        const bool is_starved = wire_arena_status(p->arena) == PEN_NO_MEMORY;
        refuse(p, is_starved ? PEN_NO_MEMORY : p->blame,
               "has a list of %zu entries and no %s for it", n, is_starved ? "memory" : "room");
        return NULL;
    }
    return memset(data, 0, n * bytes_each);
}

static int32_t in_range(pass *p, const char *what, int32_t value, int32_t min, int32_t max)
{
    if (value < min || value > max)
        REFUSE(p, "has %s %d, which is not in %d..%d", what, value, min, max);
    return value;
}

static void check_shape(pass *p, const char *tensor, const int64_t *shape, size_t ndim)
{
    if (ndim > DIMENSIONS_MAX)
        REFUSE(p, "gives '%.64s' %zu dimensions; %d are allowed", tensor, ndim, DIMENSIONS_MAX);
    for (size_t i = 0; i < ndim && i < DIMENSIONS_MAX; i++)
        if (shape[i] < 1) REFUSE(p, "gives '%.64s' a dimension of %" PRId64, tensor, shape[i]);
}

/* ---- texts and lists of numbers, in ---------------------------------------------------------- */
static const char *read_text(pass *p, char *text)
{
    if (!wire_clean_text(text)) REFUSE(p, "has a text of %d bytes or more", WIRE_TEXT_MAX);
    return text;
}

static const char *const *read_texts(pass *p, char **text, size_t n, uint32_t *n_out)
{
    const char **out = room(p, n, sizeof *out);
    if (out == NULL) return NULL;
    for (size_t i = 0; i < n; i++) out[i] = read_text(p, text[i]);
    *n_out = (uint32_t)n;
    return out;
}

/* Truncates what does not fit. */
static void read_chars(pass *p, char *text, char *out, size_t size)
{
    snprintf(out, size, "%s", read_text(p, text));
}

static const void *read_numbers(pass *p, const void *data, size_t n, uint32_t max, uint32_t *n_out)
{
    if (n > max) REFUSE(p, "has a list of %zu entries; %u are allowed", n, max);
    if (n == 0 || n > max) return NULL;
    *n_out = (uint32_t)n;
    return data;
}

static const void *read_bytes(pass *p, ProtobufCBinaryData in, int max, size_t *size)
{
    if (in.len > (size_t)max) REFUSE(p, "carries %zu bytes; %d are allowed", in.len, max);
    *size = in.len;
    return in.len > 0 ? in.data : NULL;
}

static void read_shape(pass *p, const Pen__Tensor *theirs, wire_tensor *ours)
{
    check_shape(p, theirs->name, theirs->shape, theirs->n_shape);
    if (theirs->n_shape > DIMENSIONS_MAX) return;
    ours->ndim = (int32_t)theirs->n_shape;
    for (size_t i = 0; i < theirs->n_shape; i++) ours->shape[i] = theirs->shape[i];
}

static void read_absent(pass *p, const Pen__Verdict *theirs, pen_error *ours)
{
    uint32_t n             = 0;
    const int32_t *missing = read_numbers(p, theirs->missing, theirs->n_missing, MISSING_MAX, &n);
    for (uint32_t i = 0; i < n; i++) ours->missing[i] = missing[i];
    ours->missing_n = (int32_t)n;
}

/* ---- the same, out; the generated structs have no const, but packing only reads -------------- */
#define BORROW(type, pointer) ((type *)(uintptr_t)(pointer))

static char *write_text(pass *p, const char *text)
{
    if (text == NULL) return BORROW(char, protobuf_c_empty_string);
    if (strnlen(text, WIRE_TEXT_MAX) == WIRE_TEXT_MAX)
        REFUSE(p, "has a text of %d bytes or more: '%.40s...'", WIRE_TEXT_MAX, text);
    return BORROW(char, text);
}

static char **write_texts(pass *p, const char *const *text, uint32_t n, size_t *n_out)
{
    if (n > 0 && text == NULL) REFUSE(p, "has a list of %u texts, which is NULL", n);
    char **out = room(p, n, sizeof *out);
    if (out == NULL) return NULL;
    for (uint32_t i = 0; i < n; i++) out[i] = write_text(p, text[i]);
    *n_out = n;
    return out;
}

static void *write_numbers(pass *p, const void *data, uint32_t n, uint32_t max, size_t *n_out)
{
    if (n > max) REFUSE(p, "has a list of %u entries; %u are allowed", n, max);
    if (n > 0 && data == NULL) REFUSE(p, "has a list of %u entries, which is NULL", n);
    *n_out = p->status == PEN_OK ? n : 0;
    return BORROW(void, data);
}

static ProtobufCBinaryData write_bytes(pass *p, const void *data, size_t size, int max)
{
    if (size > (size_t)max) REFUSE(p, "carries %zu bytes; %d are allowed", size, max);
    if (size > 0 && data == NULL) REFUSE(p, "carries %zu bytes, which are NULL", size);
    return (ProtobufCBinaryData){p->status == PEN_OK ? size : 0, BORROW(uint8_t, data)};
}

static void write_shape(pass *p, const wire_tensor *ours, Pen__Tensor *theirs)
{
    size_t ndim = ours->ndim < 0 ? SIZE_MAX : (size_t)ours->ndim;
    check_shape(p, theirs->name, ours->shape, ndim);
    theirs->n_shape = p->status == PEN_OK ? ndim : 0;
    theirs->shape   = BORROW(int64_t, ours->shape);
}

static void write_absent(pass *p, const pen_error *ours, Pen__Verdict *theirs)
{
    uint32_t n      = ours->missing_n < 0 ? UINT32_MAX : (uint32_t)ours->missing_n;
    theirs->missing = write_numbers(p, ours->missing, n, MISSING_MAX, &theirs->n_missing);
}

/* One initialised message of a kind, or NULL. */
static void *make_message(pass *p, const ProtobufCMessageDescriptor *descriptor)
{
    void *message = room(p, 1, descriptor->sizeof_message);
    if (message != NULL) descriptor->message_init(message);
    return message;
}

/* n pointers to consecutive initialised messages, or NULL. */
static void *make_list(pass *p, const ProtobufCMessageDescriptor *descriptor, const void *from,
                       size_t n)
{
    if (n > 0 && from == NULL) REFUSE(p, "has a list of %zu entries, which is NULL", n);
    void **list    = room(p, n, sizeof *list);
    char *messages = list != NULL ? room(p, n, descriptor->sizeof_message) : NULL;
    if (messages == NULL) return NULL;
    for (size_t i = 0; i < n; i++) {
        list[i] = messages + i * descriptor->sizeof_message;
        descriptor->message_init(list[i]);
    }
    return list;
}

/* ---- types of fields: how each is read and written ------------------------------------------- */
/* clang-format off */

/* One value:  F(type, name) */
#define READ_NUMBER(name)  ours->name = theirs->name;
#define WRITE_NUMBER(name) theirs->name = ours->name;
#define READ_BOOL(name)    ours->name = theirs->name != 0;
#define WRITE_BOOL(name)   theirs->name = ours->name;
#define READ_TEXT(name)    ours->name = read_text(p, theirs->name);
#define WRITE_TEXT(name)   theirs->name = write_text(p, ours->name);
#define READ_CHARS(name)   read_chars(p, theirs->name, ours->name, sizeof ours->name);
#define WRITE_CHARS(name)  theirs->name = write_text(p, ours->name);
#define READ_STATUS(name)  ours->name = wire_known_status(theirs->name);
#define WRITE_STATUS(name) theirs->name = (int32_t)ours->name;
#define READ_ROLE(name)    ours->name = in_range(p, #name, theirs->name, 0, WIRE_OBSERVER);
#define WRITE_ROLE(name)   theirs->name = in_range(p, #name, ours->name, 0, WIRE_OBSERVER);
#define READ_RANK(name)    ours->name = in_range(p, #name, theirs->name, -1, WIRE_ITEMS_MAX - 1);
#define WRITE_RANK(name)   theirs->name = in_range(p, #name, ours->name, -1, WIRE_ITEMS_MAX - 1);
#define READ_OUTCOME(name) \
    ours->name = in_range(p, #name, (int32_t)theirs->name, 0, PEN_SKIPPED_EMPTY);
#define WRITE_OUTCOME(name) \
    theirs->name = (uint32_t)in_range(p, #name, ours->name, 0, PEN_SKIPPED_EMPTY);
#define READ_DTYPE(name)   ours->name = in_range(p, #name, (int32_t)theirs->name, 0, PEN_F8E5M2);
#define WRITE_DTYPE(name)  theirs->name = in_range(p, #name, (int32_t)ours->name, 0, PEN_F8E5M2);
#define READ_SHARD(name) \
    ours->name = (uint32_t)in_range(p, #name, (int32_t)theirs->name, 0, WIRE_PARTITIONS_MAX - 1);
#define WRITE_SHARD(name) \
    theirs->name = (uint32_t)in_range(p, #name, (int32_t)ours->name, 0, WIRE_PARTITIONS_MAX - 1);
#define READ_COPY(name) \
    ours->name = in_range(p, #name, theirs->name, WIRE_PRIMARY, WIRE_LEARNER);
#define WRITE_COPY(name) \
    theirs->name = in_range(p, #name, ours->name, WIRE_PRIMARY, WIRE_LEARNER);

/* Many values:  F(type, name, our count) */
#define READ_BYTES(name, n) \
    ours->name = read_bytes(p, theirs->name, WIRE_CALL_BYTES_MAX, &ours->n);
#define WRITE_BYTES(name, n) \
    theirs->name = write_bytes(p, ours->name, ours->n, WIRE_CALL_BYTES_MAX);
#define READ_BLOB(name, n) \
    ours->name = read_bytes(p, theirs->name, WIRE_BLOB_BYTES_MAX, &ours->n);
#define WRITE_BLOB(name, n) \
    theirs->name = write_bytes(p, ours->name, ours->n, WIRE_BLOB_BYTES_MAX);
#define READ_MEMBERS(name, n)  READ_NUMBERS(name, n, WIRE_ITEMS_MAX)
#define WRITE_MEMBERS(name, n) WRITE_NUMBERS(name, n, WIRE_ITEMS_MAX)
#define READ_TEXTS(name, n) \
    ours->name = read_texts(p, theirs->name, theirs->n_##name, &ours->n);
#define WRITE_TEXTS(name, n) \
    theirs->name = write_texts(p, ours->name, ours->n, &theirs->n_##name);
#define READ_STEPS(name, n)    READ_NUMBERS(name, n, WIRE_ITEMS_MAX)
#define WRITE_STEPS(name, n)   WRITE_NUMBERS(name, n, WIRE_ITEMS_MAX)
#define READ_SHARDS(name, n)   READ_NUMBERS(name, n, WIRE_PARTITIONS_MAX)
#define WRITE_SHARDS(name, n)  WRITE_NUMBERS(name, n, WIRE_PARTITIONS_MAX)
#define READ_RANKS(name, n)    READ_NUMBERS(name, n, MISSING_MAX)
#define WRITE_RANKS(name, n)   WRITE_NUMBERS(name, n, MISSING_MAX)
#define READ_SHAPE(name, n)    read_shape(p, theirs, ours);
#define WRITE_SHAPE(name, n)   write_shape(p, ours, theirs);
#define READ_ABSENT(name, n)   read_absent(p, theirs, ours);
#define WRITE_ABSENT(name, n)  write_absent(p, ours, theirs);
#define READ_NUMBERS(name, n, max) \
    ours->name = read_numbers(p, theirs->name, theirs->n_##name, max, &ours->n);
#define WRITE_NUMBERS(name, n, max) \
    theirs->name = write_numbers(p, ours->name, ours->n, max, &theirs->n_##name);

/* Messages in messages:  F(LIST, type, their name, our name, our count) */
#define READ_LIST(type, name, list, n) \
    ours->list = read_list_##type(p, theirs->name, theirs->n_##name, &ours->n);
#define WRITE_LIST(type, name, list, n) \
    theirs->name = write_list_##type(p, ours->list, ours->n, &theirs->n_##name);
#define READ_MEMBER(name)  read_one_member(p, theirs->name, &ours->name);
#define WRITE_MEMBER(name) theirs->name = write_one_member(p, &ours->name);
#define READ_DECISION(name) \
    ours->has_##name = read_one_decision(p, theirs->name, &ours->name);
#define WRITE_DECISION(name) \
    theirs->name = write_one_decision(p, ours->has_##name, &ours->name);
#define READ_REASON(name)  read_reason(p, theirs->name, ours);
#define WRITE_REASON(name) theirs->name = write_reason(p, ours);
#define READ_WHY(name)     read_reason(p, theirs->name, &ours->name);
#define WRITE_WHY(name)    theirs->name = write_reason(p, &ours->name);
/* clang-format on */

/* ---- what messages hold ---------------------------------------------------------------------- */
#define READ_FIELD(type, ...)  READ_##type(__VA_ARGS__)
#define WRITE_FIELD(type, ...) WRITE_##type(__VA_ARGS__)

#define MESSAGE(name, Theirs, Ours, FIELDS)                                                        \
    static void read_##name(pass *p, const Pen__##Theirs *theirs, Ours *ours)                      \
    {                                                                                              \
        (void)p, (void)theirs, (void)ours;                                                         \
        FIELDS(READ_FIELD)                                                                         \
    }                                                                                              \
    static void write_##name(pass *p, const Ours *ours, Pen__##Theirs *theirs)                     \
    {                                                                                              \
        (void)p, (void)theirs, (void)ours;                                                         \
        FIELDS(WRITE_FIELD)                                                                        \
    }

/* A message that also comes in lists. */
#define LISTED(name, Theirs, Ours, FIELDS)                                                         \
    MESSAGE(name, Theirs, Ours, FIELDS)                                                            \
    static const Ours *read_list_##name(pass *p, Pen__##Theirs **theirs, size_t n,                 \
                                        uint32_t *n_out)                                           \
    {                                                                                              \
        Ours *ours = room(p, n, sizeof *ours);                                                     \
        if (ours == NULL) return NULL;                                                             \
        for (size_t i = 0; i < n; i++) read_##name(p, theirs[i], &ours[i]);                        \
        *n_out = (uint32_t)n;                                                                      \
        return ours;                                                                               \
    }                                                                                              \
    static Pen__##Theirs **write_list_##name(pass *p, const Ours *ours, uint32_t n, size_t *n_out) \
    {                                                                                              \
        Pen__##Theirs **theirs = make_list(p, &pen__##name##__descriptor, ours, n);                \
        if (theirs == NULL) return NULL;                                                           \
        for (uint32_t i = 0; i < n; i++) write_##name(p, &ours[i], theirs[i]);                     \
        *n_out = n;                                                                                \
        return theirs;                                                                             \
    }

/* clang-format off */
#define FIELDS_MEMBER(F) \
    F(ROLE, role) F(RANK, rank) F(NUMBER, incarnation) F(TEXT, host) F(NUMBER, pid) \
    F(NUMBER, local_rank) F(NUMBER, node) F(RANK, sharing) F(TEXTS, address, n_addresses)
#define FIELDS_STAT(F) F(TEXT, name) F(NUMBER, value)
#define FIELDS_PAIR(F) F(TEXT, key) F(TEXT, value)
#define FIELDS_GROUP(F) F(TEXT, name) F(TEXT, optim) F(TEXT, sync) F(TEXT, wire) F(TEXT, schedule)
#define FIELDS_TENSOR(F) \
    F(TEXT, name) F(DTYPE, dtype) F(DTYPE, grad_dtype) F(SHAPE, shape, ndim) F(NUMBER, group) \
    F(NUMBER, flags) F(NUMBER, priority) F(TEXT, init) F(TEXT, handler)
#define FIELDS_REPLICA(F) F(SHARD, shard) F(RANK, server) F(NUMBER, place) F(COPY, role)
#define FIELDS_DECISION(F) \
    F(NUMBER, clip) F(NUMBER, gscale) F(NUMBER, norm) F(NUMBER, applied) F(OUTCOME, outcome)
#define FIELDS_SEALED_REPORT(F) \
    F(SHARD, shard) F(COPY, role) F(NUMBER, index) F(NUMBER, digest) F(NUMBER, step) \
    F(NUMBER, clock) F(BOOL, all_prepared) F(DECISION, decision)
/* clang-format on */

LISTED(member, Member, wire_member, FIELDS_MEMBER)
LISTED(stat, Stat, wire_stat, FIELDS_STAT)
LISTED(pair, Pair, wire_pair, FIELDS_PAIR)
LISTED(group, Group, wire_group, FIELDS_GROUP)
LISTED(tensor, Tensor, wire_tensor, FIELDS_TENSOR)
LISTED(replica, Replica, wire_replica, FIELDS_REPLICA)
MESSAGE(decision, Decision, wire_decision, FIELDS_DECISION)

static bool read_one_decision(pass *p, const Pen__Decision *theirs, wire_decision *ours)
{
    if (theirs != NULL) read_decision(p, theirs, ours);
    return theirs != NULL;
}

static Pen__Decision *write_one_decision(pass *p, bool is_there, const wire_decision *ours)
{
    Pen__Decision *theirs = is_there ? make_message(p, &pen__decision__descriptor) : NULL;
    if (theirs != NULL) write_decision(p, ours, theirs);
    return theirs;
}

LISTED(sealed_report, SealedReport, wire_sealed_report, FIELDS_SEALED_REPORT)

static void read_one_member(pass *p, const Pen__Member *theirs, wire_member *ours)
{
    ours->host = "";
    if (theirs != NULL) read_member(p, theirs, ours);
}

static Pen__Member *write_one_member(pass *p, const wire_member *ours)
{
    Pen__Member *theirs = make_message(p, &pen__member__descriptor);
    if (theirs != NULL) write_member(p, ours, theirs);
    return theirs;
}

/* clang-format off */
#define FIELDS_MEMBER_STATUS(F) \
    F(MEMBER, member) F(TEXT, state) F(NUMBER, last_seen_s) F(NUMBER, step) F(TEXT, call) \
    F(NUMBER, call_s) F(LIST, stat, stat, stat, n_stats)
#define FIELDS_EVENT(F) F(NUMBER, number) F(NUMBER, at_s) F(NUMBER, level) F(TEXT, text)
#define FIELDS_VERDICT(F) \
    F(STATUS, status) F(ROLE, role) F(RANK, rank) F(ABSENT, missing, missing_n) F(NUMBER, step) \
    F(NUMBER, last_seen_s) F(CHARS, tensor) F(CHARS, text)
/* clang-format on */

LISTED(member_status, MemberStatus, wire_member_status, FIELDS_MEMBER_STATUS)
LISTED(event, Event, wire_event, FIELDS_EVENT)

/* A failure is a verdict in an envelope; the functions of VERDICT are made with the other kinds. */
static void read_verdict(pass *p, const Pen__Verdict *theirs, pen_error *ours);
static void write_verdict(pass *p, const pen_error *ours, Pen__Verdict *theirs);

static void read_reason(pass *p, const Pen__Verdict *theirs, pen_error *ours)
{
    if (theirs == NULL)
        REFUSE(p, "gives no reason");
    else
        read_verdict(p, theirs, ours);
}

static Pen__Verdict *write_reason(pass *p, const pen_error *ours)
{
    Pen__Verdict *theirs = make_message(p, &pen__verdict__descriptor);
    if (theirs != NULL) write_verdict(p, ours, theirs);
    return theirs;
}

/* clang-format off */
#define FIELDS_HELLO(F) \
    F(ROLE, role) F(RANK, rank) F(NUMBER, world_size) F(NUMBER, servers) F(NUMBER, nonce) \
    F(TEXT, host) F(NUMBER, pid) F(TEXT, job) F(TEXTS, address, n_addresses) \
    F(NUMBER, local_rank) F(NUMBER, node) F(STEPS, snapshot, n_snapshots) F(TEXT, store) \
    F(NUMBER, local_world_size) F(TEXT, machine) F(NUMBER, number) F(BOOL, holds_state)
#define FIELDS_WELCOME(F) \
    F(NUMBER, incarnation) F(RANK, rank) F(NUMBER, term) F(TEXT, job) F(NUMBER, lease_ms) \
    F(NUMBER, grace_ms) F(NUMBER, local_rank) F(NUMBER, node)
#define FIELDS_EPOCH(F) \
    F(NUMBER, term) F(NUMBER, epoch) F(TEXT, job) F(LIST, member, worker, worker, n_workers) \
    F(LIST, member, server, server, n_servers) F(LIST, replica, replica, replica, n_replicas) \
    F(NUMBER, step) F(BOOL, members_changed) F(DECISION, decision)
#define FIELDS_REGISTER(F) \
    F(LIST, tensor, tensor, tensor, n_tensors) F(LIST, group, group, group, n_groups) \
    F(LIST, pair, setting, setting, n_settings)
#define FIELDS_PLAN(F) \
    F(LIST, tensor, tensor, model.tensor, model.n_tensors) \
    F(LIST, group, group, model.group, model.n_groups) \
    F(LIST, pair, setting, model.setting, model.n_settings) F(SHARDS, shard, n_partitions) \
    F(NUMBER, restore) F(NUMBER, n_shards) F(LIST, replica, replica, replica, n_replicas) \
    F(NUMBER, ranks_max) F(NUMBER, epoch) F(NUMBER, term)
#define FIELDS_READY(F)     F(NUMBER, restored) F(NUMBER, applied) F(BLOB, states, states_bytes)
#define FIELDS_COMMITTED(F) F(NUMBER, step) F(NUMBER, applied) F(BLOB, states, states_bytes)
#define FIELDS_BEAT(F) \
    F(NUMBER, seq) F(NUMBER, step) F(TEXT, call) F(NUMBER, call_ms) \
    F(LIST, stat, stat, stat, n_stats)
#define FIELDS_BEAT_ACK(F) F(NUMBER, seq) F(NUMBER, job_step) F(NUMBER, clock_ns)
#define FIELDS_NOTICE(F) F(TEXT, text)
#define FIELDS_FAILURE(F) F(REASON, why)
#define FIELDS_EXITED(F) \
    F(ROLE, role) F(RANK, rank) F(NUMBER, pid) F(NUMBER, code) F(NUMBER, signal) F(TEXT, note) \
    F(NUMBER, step) F(TEXT, call)
#define FIELDS_BYE(F)
#define FIELDS_BYED(F)
#define FIELDS_STOP(F)
#define FIELDS_SNAPSHOT_PLEASE(F) F(NUMBER, id)
#define FIELDS_SNAPSHOT_PART(F) F(NUMBER, step) F(STATUS, status) F(TEXT, text) F(NUMBER, bytes) \
    F(SHARDS, shard, n_shards) F(BOOL, lacks_room) F(NUMBER, spare)
#define FIELDS_SNAPSHOT_DONE(F) F(NUMBER, step) F(STATUS, status) F(TEXT, text) F(BOOL, makes_room) F(NUMBER, gone)
#define FIELDS_ENQUIRE(F) F(RANK, rank)
#define FIELDS_MISSING(F) F(RANK, rank) F(NUMBER, step) F(TEXT, tensor) F(BOOL, known) F(BOOL, lacks_values)
#define FIELDS_STATUS_ASK(F)
#define FIELDS_STATUS(F) \
    F(TEXT, job) F(TEXT, phase) F(NUMBER, term) F(NUMBER, epoch) F(NUMBER, step) \
    F(NUMBER, uptime_s) F(LIST, member_status, member, member, n_members) F(TEXT, mode) \
    F(NUMBER, snapshot) F(NUMBER, refused) F(TEXTS, waiting, n_waiting) \
    F(LIST, replica, replica, replica, n_replicas) F(LIST, event, event, event, n_events) \
    F(SHARDS, shard_bytes, n_shards) F(MEMBER, scheduler) F(NUMBER, steps) F(NUMBER, steps_per_s)
#define FIELDS_WILL(F) FIELDS_VERDICT(F)
#define FIELDS_COMMAND(F) \
    F(NUMBER, id) F(ROLE, role) F(RANK, rank) F(NUMBER, asker) F(NUMBER, head) \
    F(BYTES, body, body_size) F(NUMBER, done_below)
#define FIELDS_REPLY(F) \
    F(NUMBER, id) F(ROLE, role) F(RANK, rank) F(NUMBER, asker) F(STATUS, status) F(TEXT, text) \
    F(BYTES, data, data_size)
#define FIELDS_LOST(F) F(RANK, rank) F(NUMBER, incarnation) F(WHY, why)
#define FIELDS_FAULT(F) F(NUMBER, group) F(NUMBER, call) F(WHY, why)
#define FIELDS_FAULTED(F) FIELDS_FAULT(F)
#define FIELDS_OVERDUE(F) \
    F(TEXT, what) F(NUMBER, waited_ms) F(RANKS, missing, n_missing) F(BOOL, quiet)
#define FIELDS_SHRINK(F) F(NUMBER, group) F(MEMBERS, rank, n_ranks)
#define FIELDS_SHRUNK(F) \
    F(NUMBER, group) F(NUMBER, new_group) F(MEMBERS, rank, n_ranks) F(STATUS, status) F(TEXT, text)
#define FIELDS_STORE(F) \
    F(NUMBER, id) F(NUMBER, done_below) F(NUMBER, op) F(TEXT, key) F(BLOB, data, data_size) \
    F(NUMBER, delta)
#define FIELDS_STORED(F) \
    F(NUMBER, id) F(STATUS, status) F(TEXT, text) F(BLOB, data, data_size) F(NUMBER, value)
#define FIELDS_RECORD_ASK(F) F(NUMBER, id) F(NUMBER, asker)
#define FIELDS_RECORD(F) \
    F(NUMBER, id) F(NUMBER, asker) F(RANK, rank) F(STATUS, status) F(TEXT, text) \
    F(BLOB, data, data_size)
#define FIELDS_SEAL(F) F(NUMBER, term) F(NUMBER, epoch)
#define FIELDS_SEALED(F) \
    F(NUMBER, term) F(NUMBER, epoch) F(LIST, sealed_report, report, report, n_reports)
#define FIELDS_CAUGHT_UP(F) F(SHARD, shard) F(RANK, server)
#define FIELDS_SUSPECT(F) F(SHARD, shard) F(RANK, server) F(NUMBER, waited_ms)
#define FIELDS_SCALE(F) F(RANK, workers) F(RANK, servers)
#define FIELDS_DRAIN(F) F(RANK, server)
#define FIELDS_RESIZED(F) F(STATUS, status) F(TEXT, text)
#define FIELDS_PROVE(F) F(NUMBER, round) F(LIST, member, worker, worker, n_workers)
#define FIELDS_PROVEN(F) F(NUMBER, round) F(MEMBERS, rank, n_ranks) F(MEMBERS, number, n_numbers)
#define FIELDS_UNREACHED(F) F(ROLE, role) F(RANK, rank) F(TEXT, address) F(TEXT, words)

/* kind, their name in Control.body, their type, where ours is in wire_control (u: nowhere) */
#define KINDS(X)                                                          \
    X(HELLO,           hello,           Hello,          u.hello)           \
    X(WELCOME,         welcome,         Welcome,        u.welcome)         \
    X(EPOCH,           record,          EpochRecord,    u.epoch)           \
    X(REGISTER,        register_,       Register,       u.register_)       \
    X(PLAN,            plan,            Plan,           u.plan)            \
    X(READY,           ready,           Ready,          u.ready)           \
    X(COMMITTED,       committed,       Committed,      u.committed)       \
    X(BEAT,            beat,            Beat,           u.beat)            \
    X(BEAT_ACK,        beat_ack,        BeatAck,        u.beat_ack)        \
    X(NOTICE,          notice,          Notice,         u.notice)          \
    X(VERDICT,         verdict,         Verdict,        u.verdict)         \
    X(FAILURE,         failure,         Failure,        u.verdict)         \
    X(EXITED,          exited,          Exited,         u.exited)          \
    X(BYE,             bye,             Bye,            u)                 \
    X(BYED,            byed,            Byed,           u)                 \
    X(STOP,            stop,            Stop,           u)                 \
    X(SNAPSHOT_PLEASE, snapshot_please, SnapshotPlease, u.snapshot_please) \
    X(SNAPSHOT_PART,   snapshot_part,   SnapshotPart,   u.snapshot_part)   \
    X(SNAPSHOT_DONE,   snapshot_done,   SnapshotDone,   u.snapshot_done)   \
    X(ENQUIRE,         inquire,         Inquire,        u.enquire)         \
    X(MISSING,         missing,         Missing,        u.missing)         \
    X(STATUS_ASK,      status_ask,      StatusAsk,      u)                 \
    X(STATUS,          status,          Status,         u.status)          \
    X(WILL,            will,            Verdict,        u.verdict)         \
    X(COMMAND,         command,         Command,        u.command)         \
    X(REPLY,           reply,           Reply,          u.reply)           \
    X(LOST,            lost,            Lost,           u.lost)            \
    X(FAULT,           fault,           Fault,          u.fault)           \
    X(FAULTED,         faulted,         Fault,          u.fault)           \
    X(OVERDUE,         overdue,         Overdue,        u.overdue)         \
    X(SHRINK,          shrink,          Shrink,         u.shrink)          \
    X(SHRUNK,          shrunk,          Shrunk,         u.shrunk)          \
    X(STORE,           store,           Store,          u.store)           \
    X(STORED,          stored,          Stored,         u.stored)          \
    X(RECORD_ASK,      record_ask,      CallsAsk,       u.record_ask)      \
    X(RECORD,          calls,           Calls,          u.record)          \
    X(SEAL,            seal,            Seal,           u.seal)            \
    X(SEALED,          sealed,          Sealed,         u.sealed)          \
    X(CAUGHT_UP,       caught_up,       CaughtUp,       u.caught_up)       \
    X(SUSPECT,         suspect,         Suspect,        u.suspect)         \
    X(SCALE,           scale,           Scale,          u.scale)           \
    X(DRAIN,           drain,           Drain,          u.drain)           \
    X(RESIZED,         resized,         Resized,        u.resized)         \
    X(PROVE,           prove,           Prove,          u.prove)           \
    X(PROVEN,          proven,          Proven,         u.proven)         \
    X(UNREACHED,       unreached,       Unreached,      u.unreached)
/* clang-format on */

/* The structs of the union in wire_control have no names of their own. */
#define X(KIND, field, Theirs, where)                                                              \
    typedef __typeof__(((wire_control *)0)->where) ours_##field;                                   \
    MESSAGE(field, Theirs, ours_##field, FIELDS_##KIND)
KINDS(X)
#undef X

_Static_assert((int)WIRE_HELLO == (int)PEN__CONTROL__BODY_HELLO &&
                   (int)WIRE_EPOCH == (int)PEN__CONTROL__BODY_RECORD &&
                   (int)WIRE_REPLY == (int)PEN__CONTROL__BODY_REPLY &&
                   (int)WIRE_RECORD == (int)PEN__CONTROL__BODY_CALLS &&
                   (int)WIRE_PROVEN == (int)PEN__CONTROL__BODY_PROVEN &&
                   (int)WIRE_UNREACHED == (int)PEN__CONTROL__BODY_UNREACHED &&
                   (int)WIRE_CONTROL_END == (int)WIRE_UNREACHED + 1,
               "the kinds are the field numbers of Control.body");

/* ---- the two doors --------------------------------------------------------------------------- */
static void read_body(pass *p, const Pen__Control *m, wire_control *c)
{
    switch ((int)m->body_case) {
#define X(KIND, field, Theirs, where)                                                              \
    case WIRE_##KIND: read_##field(p, m->field, &c->where); return;
        KINDS(X)
#undef X
    default: REFUSE(p, "is of kind %d, which this version does not know", (int)m->body_case);
    }
}

/* The descriptor of a kind's message; NULL: no such kind. */
static const ProtobufCMessageDescriptor *describe(int kind)
{
    if (!wire_is_control_kind(kind)) return NULL;
    return protobuf_c_message_descriptor_get_field(&pen__control__descriptor, (unsigned)kind)
        ->descriptor;
}

static void write_body(pass *p, const wire_control *c, Pen__Control *m)
{
    m->body_case = (Pen__Control__BodyCase)c->kind;
    m->hello =
        make_message(p, describe((int)c->kind)); /* the union holds pointers to messages only */
    if (m->hello == NULL) return;
    switch (c->kind) {
#define X(KIND, field, Theirs, where)                                                              \
    case WIRE_##KIND: write_##field(p, &c->where, m->field); return;
        KINDS(X)
#undef X
    case WIRE_CONTROL_END: return;
    }
}

pen_status wire_control_decode(const void *head, size_t size, wire_arena *arena, wire_control *c,
                               pen_error *why)
{
    void *message;
    pen_status status = wire_unpack(head, size, WIRE_PLANE_CONTROL, &pen__control__descriptor,
                                    arena, &message, why);
    if (status != PEN_OK) return status;
    const Pen__Control *m = message;
    const char *kind      = wire_kind_name((int)m->body_case);
    bool is_known         = describe((int)m->body_case) != NULL;
    pass p                = {.arena = arena,
                             .kind  = is_known ? kind : "a control message",
                             .blame = PEN_CORRUPT,
                             .why   = why};
    *c = (wire_control){.kind = (wire_control_kind)m->body_case, .from = m->from};
    read_body(&p, m, c);
    return p.status;
}

pen_status wire_control_encode(const wire_control *c, wire_out *out, pen_error *why)
{
    if (describe((int)c->kind) == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "%d is not a kind of message of the control plane", (int)c->kind);
    wire_arena scratch;
    wire_arena_init(&scratch, SCRATCH_BYTES_MAX);
    pass p         = {.arena = &scratch,
                      .kind  = wire_kind_name((int)c->kind),
                      .blame = PEN_INVALID_ARGUMENT,
                      .why   = why};
    Pen__Control m = PEN__CONTROL__INIT;
    m.from         = c->from;
    write_body(&p, c, &m);
    pen_status status =
        p.status == PEN_OK ? wire_pack(&m.base, WIRE_PLANE_CONTROL, out, why) : p.status;
    wire_arena_fini(&scratch);
    return status;
}

bool wire_control_copy(const wire_control *c, wire_arena **arena, wire_control *copy)
{
    pen_error why;
    wire_control made;
    wire_out bytes   = {0};
    wire_arena *kept = wire_arena_create(COPY_BYTES_MAX);
    const bool done  = kept != NULL && wire_control_encode(c, &bytes, &why) == PEN_OK &&
                      wire_control_decode(bytes.data, bytes.size, kept, &made, &why) == PEN_OK;
    wire_out_free(&bytes);
    wire_arena_destroy(done ? *arena : kept);
    if (!done) return false;
    *arena = kept;
    *copy  = made;
    return true;
}
