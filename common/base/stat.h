/* stat.h - named counters with units, cheap to bump and safe to read from another thread.
 *
 * One table, STAT_LIST, gives the name, the unit and the sentence of docs/stats.md.  A stat_set
 * belongs to one process role (a worker context, a server); any thread may add to it.
 */
#ifndef COMMON_STAT_H
#define COMMON_STAT_H

#include "penstock.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* clang-format off */
/*    id               name                unit       kind     meaning */
#define STAT_LIST(X)                                                                                   \
    X(PUSH_BYTES,      "push.bytes",       "bytes", COUNTER, "Gradient payload sent (worker) or received (server).") \
    X(PULL_BYTES,      "pull.bytes",       "bytes", COUNTER, "Parameter payload received (worker) or sent (server).") \
    X(PUSH_OPS,        "push.ops",         "chunks", COUNTER, "Chunks pushed and answered (worker) or accepted (server).") \
    X(PULL_OPS,        "pull.ops",         "chunks", COUNTER, "Chunks pulled (worker) or served (server).")     \
    X(RETRIES,         "retries",          "chunks", COUNTER, "Chunks sent again because no answer had come.")  \
    X(REPEATS,         "repeats",          "chunks", COUNTER, "Repeated pushes recognised and not applied again.") \
    X(BUSY,            "busy",             "chunks", COUNTER, "Pushes turned away for lack of room and sent again later.") \
    X(REFUSED,         "refused",          "frames", COUNTER, "Frames refused: malformed, oversized, truncated, of an unknown version or sender.") \
    X(CORRUPT,         "corrupt",          "chunks", COUNTER, "Payloads whose checksum did not match.")         \
    X(STEPS,           "steps",            "steps", COUNTER, "Steps ended (worker) or committed (server).")    \
    X(STEPS_PLANNED,   "steps.planned",      "steps", GAUGE, "Steps that the loop makes in all (setting steps); 0: not known.") \
    X(SKIPPED,         "steps.skipped",    "steps", COUNTER, "Steps skipped because a gradient was not finite or empty.") \
    X(HELD,            "pulls.held",       "pulls", COUNTER, "Pulls that had to wait for a slower worker (ssp).") \
    X(GAP_MAX,         "gap.max",          "steps", GAUGE, "Largest lead over the slowest worker at which a pull was served.") \
    X(PARKED_BYTES,    "parked.bytes",     "bytes", GAUGE, "Contributions waiting for their turn in rank order.") \
    X(SNAPSHOTS,       "snapshots",        "snapshots", COUNTER, "Snapshots written by this server.")             \
    X(SNAPSHOTS_FAILED, "snapshots.failed", "snapshots", COUNTER, "Snapshots this server could not write: disk, or the one before still under way.") \
    X(SNAPSHOT_COPIED, "snapshots.copied.bytes", "bytes", GAUGE, "Most memory that copies for a snapshot took at one time.") \
    X(PARAM_BYTES,     "mem.param.bytes",  "bytes", GAUGE, "Parameters held by this process for Penstock.")  \
    X(GRAD_BYTES,      "mem.grad.bytes",   "bytes", GAUGE, "Gradients held by Penstock: those of tensors that gave no memory, sums, and buckets on their way.") \
    X(SLOT_BYTES,      "mem.slot.bytes",   "bytes", GAUGE, "Optimizer state held in memory by this process.") \
    X(PARAM_PEAK,      "mem.param.peak.bytes", "bytes", GAUGE, "Most parameters that were held at one time (worker).") \
    X(GRAD_PEAK,       "mem.grad.peak.bytes", "bytes", GAUGE, "Most gradients that were held at one time (worker).") \
    X(SLOT_PEAK,       "mem.slot.peak.bytes", "bytes", GAUGE, "Most optimizer state that was held at one time (worker).") \
    X(MEMORY_PEAK,     "mem.peak.bytes",   "bytes", GAUGE, "Most of all three together that was held at one time (worker).") \
    X(TIER_BYTES,      "tier.bytes",       "bytes", GAUGE, "Room taken on disks for optimizer state and parameters that are not in memory.") \
    X(TIER_READ_BYTES, "tier.read.bytes",  "bytes", COUNTER, "Bytes of them read from disks.")                \
    X(TIER_WRITE_BYTES, "tier.write.bytes", "bytes", COUNTER, "Bytes of them written to disks.")               \
    X(DEVICE_DOWN_GRAD, "device.down.grad.bytes", "bytes", COUNTER, "Gradients copied from a device to the host (worker).") \
    X(DEVICE_DOWN_VALUE, "device.down.value.bytes", "bytes", COUNTER, "Values copied from a device to the host (worker).") \
    X(DEVICE_DOWN_OTHER, "device.down.other.bytes", "bytes", COUNTER, "All else copied from a device to the host (worker): the program's collectives, tests of links.") \
    X(DEVICE_UP_GRAD,  "device.up.grad.bytes", "bytes", COUNTER, "Gradients, or sums of them, copied from the host to a device (worker).") \
    X(DEVICE_UP_VALUE, "device.up.value.bytes", "bytes", COUNTER, "Values copied from the host to a device (worker).") \
    X(DEVICE_UP_OTHER, "device.up.other.bytes", "bytes", COUNTER, "All else copied from the host to a device (worker).") \
    X(COLL_BYTES,      "coll.bytes",       "bytes", COUNTER, "Payload of collectives sent to other workers over the network.") \
    X(COLL_OPS,        "coll.ops",         "calls", COUNTER, "Collectives ended well over the network.") \
    X(SNAPSHOT_TIME,   "snapshot.time.seconds", "seconds", GAUGE, "When this server wrote its newest part of a snapshot, since 1970; 0: never.") \
    X(LAG_BYTES,       "copies.lag.bytes", "bytes", GAUGE,   "Payload that copies of this server's shards have not acknowledged.") \
    X(LAG_ENTRIES,     "copies.lag.entries", "entries", GAUGE, "Changes that copies of this server's shards have not acknowledged.") \
    X(UNSENT,          "queue.depth",      "frames", GAUGE,  "Answers that wait because a worker's connection takes no more.") \
    X(METRICS_REFUSED, "metrics.refused",  "calls", COUNTER, "Calls of pen_metric() with one name too many.") \
    X(HTTP_PORT,       "http.port",        "port",  GAUGE,   "TCP port at which this process shows its metrics; 0: none.")

typedef enum {
#define X(id, name, unit, kind, doc) STAT_##id,
    STAT_LIST(X)
#undef X
    STAT_COUNT
} stat_id;
/* clang-format on */

typedef enum { STAT_COUNTER, STAT_GAUGE } stat_kind;

/* What is copied between the host and a device: which of the counters device.*.bytes has it. */
typedef enum { TRAFFIC_OTHER, TRAFFIC_GRAD, TRAFFIC_VALUE } stat_traffic;

typedef struct {
    const char *name, *unit, *doc;
    stat_kind kind;
} stat_row;
extern const stat_row stat_rows[STAT_COUNT];

/* Distributions: counts of values up to each power of two.  Counted only while watched. */
/* clang-format off */
#define STAT_SPREAD_LIST(X)                                                                            \
    X(STEP,       "step.seconds",      "seconds", "A step of this worker, from pen_step_begin() to the end of pen_step_end().") \
    X(EXCHANGE,   "exchange.seconds",  "seconds", "The part of it inside pen_step_end(): what could not be hidden behind computing.") \
    X(STALENESS,  "staleness.steps",   "steps",   "Lead over the slowest worker with which a step ended (worker) or a value was served (server).") \
    X(PUSH,       "push.seconds",      "seconds", "Taking one message of gradients in: checksum, sum, and what it completes.") \
    X(PULL,       "pull.seconds",      "seconds", "Answering one request for values, with the update that it decides.") \
    X(STRAGGLERS, "stragglers.seconds", "seconds", "From the first push of a step until a partition had all it waited for.") \
    X(COLL,       "coll.seconds",      "seconds", "A collective on memory of the host, from the call until it has ended here; steps without servers are made of them.") \
    X(COLL_DEVICE, "coll.device.seconds", "seconds", "A collective on memory of a GPU: its copies and sums, and waiting for the others.") \
    X(SNAPSHOT,   "snapshot.seconds",  "seconds", "Writing one part of a snapshot.")

typedef enum {
#define X(id, name, unit, doc) STAT_SPREAD_##id,
    STAT_SPREAD_LIST(X)
#undef X
    STAT_SPREADS
} stat_spread_id;
/* clang-format on */
extern const stat_row stat_spread_rows[STAT_SPREADS];

enum { STAT_BUCKETS = 24 }; /* the last one has no bound */

typedef struct {
    atomic_uint_fast64_t bucket[STAT_BUCKETS], sum; /* of nanoseconds, or of whole numbers */
} stat_spread;

typedef struct {
    atomic_uint_fast64_t value[STAT_COUNT];
    atomic_bool is_watched; /* set once, before anything is counted */
    stat_spread spread[STAT_SPREADS];
} stat_set;

void stat_add(stat_set *set, stat_id id, uint64_t n);
void stat_max(stat_set *set, stat_id id, uint64_t n);   /* raises to n */
void stat_store(stat_set *set, stat_id id, uint64_t n); /* sets a level, such as bytes held */
/* Memory was taken (bytes > 0) or given back (< 0): level is STAT_PARAM_BYTES, STAT_GRAD_BYTES or
 * STAT_SLOT_BYTES; its peak and that of all three follow. */
void stat_hold(stat_set *set, stat_id level, int64_t bytes);
/* A copy crosses the boundary between the host and a device: up to the device, or down. */
void stat_crossed(stat_set *set, stat_traffic what, bool is_up, uint64_t bytes);
uint64_t stat_get(const stat_set *set, stat_id id);
int stat_find(const char *name); /* -1 when unknown */

/* While not watched, stat_begin() is 0 and reads no clock, and the other two do nothing. */
uint64_t stat_begin(const stat_set *set);
void stat_took(stat_set *set, stat_spread_id id, uint64_t begun); /* begun 0: nothing */
void stat_observe(stat_set *set, stat_spread_id id, uint64_t value);

/* Upper bound of bucket i, in the row's unit; INFINITY for the last one. */
double stat_bound(stat_spread_id id, int i);
double stat_sum(const stat_set *set, stat_spread_id id); /* likewise in the row's unit */

#endif
