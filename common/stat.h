/* stat.h - named counters with units, cheap to bump and safe to read from another thread.
 *
 * One table, STAT_LIST, gives the name, the unit and the sentence of docs/stats.md.  A stat_set
 * belongs to one process role (a worker context, a server); any thread may add to it.
 */
#ifndef COMMON_STAT_H
#define COMMON_STAT_H

#include "penstock.h"
#include <stdatomic.h>
#include <stdint.h>

/* clang-format off */
/*    id               name                unit       meaning */
#define STAT_LIST(X)                                                                                   \
    X(PUSH_BYTES,      "push.bytes",       "bytes",   "Gradient payload sent (worker) or received (server).") \
    X(PULL_BYTES,      "pull.bytes",       "bytes",   "Parameter payload received (worker) or sent (server).") \
    X(PUSH_OPS,        "push.ops",         "chunks",  "Chunks pushed and answered (worker) or accepted (server).") \
    X(PULL_OPS,        "pull.ops",         "chunks",  "Chunks pulled (worker) or served (server).")     \
    X(RETRIES,         "retries",          "chunks",  "Chunks sent again because no answer had come.")  \
    X(REPEATS,         "repeats",          "chunks",  "Repeated pushes recognised and not applied again.") \
    X(BUSY,            "busy",             "chunks",  "Pushes turned away for lack of room and sent again later.") \
    X(REFUSED,         "refused",          "frames",  "Frames refused: malformed, oversized, truncated, of an unknown version or sender.") \
    X(CORRUPT,         "corrupt",          "chunks",  "Payloads whose checksum did not match.")         \
    X(STEPS,           "steps",            "steps",   "Steps ended (worker) or committed (server).")    \
    X(SKIPPED,         "steps.skipped",    "steps",   "Steps skipped because a gradient was not finite or empty.") \
    X(HELD,            "pulls.held",       "pulls",   "Pulls that had to wait for a slower worker (ssp).") \
    X(GAP_MAX,         "gap.max",          "steps",   "Largest lead over the slowest worker at which a pull was served.") \
    X(PARKED_BYTES,    "parked.bytes",     "bytes",   "Contributions waiting for their turn in rank order.") \
    X(SNAPSHOTS,       "snapshots",        "snapshots", "Snapshots written by this server.")             \
    X(SNAPSHOTS_FAILED, "snapshots.failed", "snapshots", "Snapshots this server could not write: disk, or the one before still under way.") \
    X(SNAPSHOT_COPIED, "snapshots.copied.bytes", "bytes", "Most memory that copies for a snapshot took at one time.") \
    X(PARAM_BYTES,     "mem.param.bytes",  "bytes",   "Parameters held by this process for Penstock.")  \
    X(GRAD_BYTES,      "mem.grad.bytes",   "bytes",   "Gradients held by Penstock: those of tensors that gave no memory, sums, and buckets on their way.") \
    X(SLOT_BYTES,      "mem.slot.bytes",   "bytes",   "Optimizer state held in memory by this process.") \
    X(PARAM_PEAK,      "mem.param.peak.bytes", "bytes", "Most parameters that were held at one time (worker).") \
    X(GRAD_PEAK,       "mem.grad.peak.bytes", "bytes", "Most gradients that were held at one time (worker).") \
    X(SLOT_PEAK,       "mem.slot.peak.bytes", "bytes", "Most optimizer state that was held at one time (worker).") \
    X(MEMORY_PEAK,     "mem.peak.bytes",   "bytes",   "Most of all three together that was held at one time (worker).") \
    X(TIER_BYTES,      "tier.bytes",       "bytes",   "Room taken on disks for optimizer state and parameters that are not in memory.") \
    X(TIER_READ_BYTES, "tier.read.bytes",  "bytes",   "Bytes of them read from disks.")                \
    X(TIER_WRITE_BYTES, "tier.write.bytes", "bytes",  "Bytes of them written to disks.")               \
    X(COLL_BYTES,      "coll.bytes",       "bytes",   "Payload of collectives sent to other workers over the network.") \
    X(COLL_OPS,        "coll.ops",         "calls",   "Collectives ended well over the network.")

typedef enum {
#define X(id, name, unit, doc) STAT_##id,
    STAT_LIST(X)
#undef X
    STAT_COUNT
} stat_id;
/* clang-format on */

typedef struct {
    const char *name, *unit, *doc;
} stat_row;
extern const stat_row stat_rows[STAT_COUNT];

typedef struct {
    atomic_uint_fast64_t value[STAT_COUNT];
} stat_set;

void stat_add(stat_set *set, stat_id id, uint64_t n);
void stat_max(stat_set *set, stat_id id, uint64_t n);   /* raises to n */
void stat_store(stat_set *set, stat_id id, uint64_t n); /* sets a level, such as bytes held */
/* Memory was taken (bytes > 0) or given back (< 0): level is STAT_PARAM_BYTES, STAT_GRAD_BYTES or
 * STAT_SLOT_BYTES; its peak and that of all three follow. */
void stat_hold(stat_set *set, stat_id level, int64_t bytes);
uint64_t stat_get(const stat_set *set, stat_id id);
int stat_find(const char *name); /* -1 when unknown */

#endif
