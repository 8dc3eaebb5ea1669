/* device_internal.h - the layout of a control segment, and what the files of device.h share. */
#ifndef WORKER_COLL_DEVICE_INTERNAL_H
#define WORKER_COLL_DEVICE_INTERNAL_H

#include "common/system/segment.h"
#include "worker/collective/device/device.h"
#include "worker/collective/device/device_sync.h"
#include <pthread.h>
#include <stdatomic.h>

enum {
    DEVICE_TEAMS       = 64,      /* alive at a time, in one process */
    DEVICE_POOL_BYTES  = 4 << 20, /* each of two: the largest one-shot call */
    DEVICE_FLAGS_BYTES = DEVICE_ARRAYS_MAX * DEVICE_FLAG_BYTES,
    DEVICE_CACHED      = 16, /* allocations of each peer that stay mapped */
    DEVICE_RETIRED     = 1024,
    DEVICE_SETTLE_MS   = 200, /* a live peer ends its short kernels much sooner */
    DEVICE_DRAIN_MS    = 5000 /* what the program enqueued before the last call may take longer */
};

/* ---- shared memory ---------------------------------------------------------------------------- */

/* One call of one member; calls alternate between two of these. */
typedef struct {
    _Alignas(64) _Atomic uint64_t arrived; /* seq of the call: header, scale and counts are set */
    _Atomic uint64_t offered;              /* seq of the call: in and out are set */
    uint32_t has_in, has_out, has_counts, in_stream_order;
    double scale;
    device_ref in, out;
    coll_header header;
    uint64_t sends[DEVICE_ARRAYS_MAX], receives[DEVICE_ARRAYS_MAX]; /* all_to_all: elements */
} device_entry;

/* A member's progress in the setup by the first call. */
typedef enum {
    SETUP_NONE,
    SETUP_SHARED,
    SETUP_MAPPED,
    SETUP_OPENED,
    SETUP_TESTED,
    SETUP_MEASURED
} device_setup_state;

/* A member's progress with NCCL; from OPENED on a failure is final, and the same for all.  LEFT: another failed. */
typedef enum {
    NCCL_UNNAMED,
    NCCL_NAMED,
    NCCL_OPENED,
    NCCL_FAILED,
    NCCL_LEFT,
    NCCL_TIMED
} device_nccl_state;

typedef struct {
    _Alignas(64) _Atomic uint64_t step; /* newest barrier signalled, as far as the host knows */
    /* seq while it works on memory of peers, and after a call in stream order until the next; else 0 */
    _Alignas(64) _Atomic uint64_t working;
    _Atomic uint64_t given_up;           /* seq of the call that it gave up */
    _Atomic uint64_t ended;              /* seq of its last call that ended */
    _Alignas(64) _Atomic uint32_t setup; /* device_setup_state; written after its data */
    uint8_t uuid[16];
    device_ref pool;
    device_event_ref event[2];
    uint32_t has_nccl;
    _Atomic uint32_t nccl;              /* device_nccl_state */
    uint8_t nccl_name[NCCL_NAME_BYTES]; /* of member 0 */
    double nccl_ns;
    /* of the group's newest call here: 2 * seq, plus 1 if on a device */
    _Atomic uint64_t mark;
    _Atomic uint32_t refused; /* the first call found that devices cannot carry the group */
    int32_t unreached;        /* RANK whose memory the test did not reach; -1: none */
    int32_t unopened;         /* RANK whose events this one cannot share, or map; -1: none */
    double barrier_ns, bandwidth;
    device_entry entry[2];
} device_slot;

typedef struct {
    uint64_t magic, bytes;
    _Alignas(64) _Atomic uint64_t team[DEVICE_TEAMS]; /* id; 0: free */
    device_slot slot[DEVICE_TEAMS];
} device_control;

/* ---- this process ------------------------------------------------------------------------------- */
struct device_place {
    void *memory;            /* of the segment */
    device_control *control; /* its mapping */
    segment_ref ref;
    char address[128];
    pthread_mutex_t lock; /* protects what follows, and which slots are taken */
    unsigned next;        /* slots are taken in turn, so a slot just left stays readable for long */
    device_team *leaving; /* have ended, but other members may still map their memory */
};

typedef struct {
    device_ref ref; /* with offset 0 */
    char *base;     /* NULL: unused */
    uint64_t used;
} device_mapping;

typedef struct { /* memory of the team; grows */
    char *data;
    size_t bytes;
} device_staging;

struct device_team {
    device_place *place;
    device_team *next_leaving;
    uint64_t leave_by_ms;
    const device_ops *ops;
    device_options options;
    uint64_t id, last; /* last: seq of the last call begun */
    uint64_t step;     /* newest barrier */
    int size, rank, own_slot, device;
    void *arrays; /* all below that are marked [size] */
    int *ranks;
    device_control **peer; /* [size] */
    segment_ref *peer_ref;
    device_slot **slot; /* [size]; NULL: that peer has not created its slot yet */
    char text[160];

    /* Set by the first call. */
    int setup;
    bool is_ready, is_refused, is_one_device;
    const device_sync *sync;
    uint64_t one_shot_bytes, measured_ns;
    int rounds;
    char *pool;
    char **pools;                               /* [size] own and mapped */
    device_ref *pool_ref;                       /* [size] */
    device_event *own_event[2], *end, **events; /* events: [2 * size] of peers */
    struct device_words {
        device_stop stop;
        uint32_t pattern[32], answer[32];
    } * words; /* host memory that kernels read and write */
    device_stop *stop;
    device_staging in, out;
    bool is_stopped;   /* device_team_stop() */
    bool is_unsettled; /* a call has ended in stream order: only `end` tells whether it is done */
    char **retired;    /* smaller staging memory, which the device and others may still use */
    size_t n_retired;
    device_ref *unused; /* mappings of peers' memory that the device may still use */
    size_t n_unused;
    device_mapping *mapped; /* [size * DEVICE_CACHED] */
    uint64_t uses;
    void *nccl; /* NULL: not used */
    int nccl_stage;
    bool nccl_is_faster; /* for calls that are large and that no rule names */
    bool is_enqueuing;   /* the timed call */
    bool is_pending;     /* HOSTFLAG: a signal whose event is not done yet */

    /* Of the call in progress; all [size]. */
    const void **operands;
    void **results;
    double *scale;
    const coll_header **headers;
};

typedef struct {
    device_team *team;
    const coll_call *call;
    uint64_t seq;
    int stage;
    size_t element, in_bytes, out_bytes;
    const char *in; /* the input to work on: the caller's, staged, or in the pool */
    char *out;      /* where the result goes first */
    bool is_one_shot, copies_out, is_scaled, has_enqueued, has_written;
    bool is_by_nccl;
    bool leaves; /* a second barrier follows the work; the same on every member */
} device_op;

_Static_assert(sizeof(device_op) <= COLL_OP_BYTES, "an op fits into what the engine gives");

static inline void device_ring(const device_team *team)
{
    if (team->options.ring != NULL) team->options.ring(team->options.user);
}

/* Any copy of a team. */
static inline pen_status device_team_copy(const device_team *team, stat_traffic what, void *to,
                                          const void *from, size_t bytes, device_stream stream,
                                          pen_error *why)
{
    return device_copy(team->ops, what, team->options.stats, to, from, bytes, stream, why);
}

/* ---- device_place.c ------------------------------------------------------------------------------ */
bool device_find_peers(device_team *team); /* finds all slots; false: some do not exist yet */
pen_status device_open_peers(device_team *team, const char *const *address, pen_error *why);
void device_close_peers(device_team *team);
pen_status device_take_slot(device_team *team, pen_error *why);
void device_leave_slot(device_team *team);
bool device_has_left(const device_team *team, int who);
void device_team_free(device_team *team); /* not its memory on the device */
/* Takes the team, which has left its slot.  Its memory is freed when the last other member has left, too: memory that
 * another process maps must not be freed.  At the latest after DEVICE_DRAIN_MS: a member that is gone never leaves. */
void device_place_take(device_place *place, device_team *team);

/* ---- device_setup.c: the setup by the first call ---------------------------------------------------- */
pen_status device_setup(device_team *team, device_stream stream, pen_error *why); /* OK, AGAIN */
void device_unmap_peers(device_team *team);
void device_free_memory(device_team *team);

/* ---- device_map.c: memory of other members --------------------------------------------------------- */
/* A member may name a pointer of this process only if it is this process. */
pen_status device_check_process(const device_team *team, int who, const device_ref *ref,
                                uint64_t process, pen_error *why);
pen_status device_check_room(const device_team *team, int who, const device_ref *mapped,
                             uint64_t offset, size_t bytes, pen_error *why);
/* Maps the first `bytes` of what a member names; CORRUPT: they are not inside an allocation of its process. */
pen_status device_map_cached(device_team *team, int who, const device_ref *said, size_t bytes,
                             char **data, pen_error *why);

/* ---- device_work.c: what a call moves ----------------------------------------------------------------- */
bool device_moves(const device_op *op);       /* it moves data; the same on every member */
bool device_is_small(const device_op *op);    /* one-shot; the same on every member */
bool device_shows_in(const device_op *op);    /* peers read this member's input */
bool device_shows_out(const device_op *op);   /* peers write this member's output */
bool device_is_own_part(const device_op *op); /* in place: it overwrites the input with itself */
pen_status device_check_counts(const device_op *op, pen_error *why);
pen_status device_work(device_op *op, pen_error *why); /* enqueues; inputs of all are ready */

/* ---- device_nccl.c: setup returns OK or AGAIN ---- */
pen_status device_nccl_setup(device_team *team, device_stream stream, pen_error *why);
bool device_nccl_is_ruled(
    const device_op *op); /* a rule names it for this call, also if it is small */
bool device_nccl_carries(const device_op *op); /* once all have arrived; the same on every member */
pen_status device_nccl_start(device_op *op, pen_error *why);
/* AGAIN: NCCL is still enqueuing it, and nothing may follow in the stream.  Else OK, or the error of its link. */
pen_status device_nccl_taken(const device_op *op, pen_error *why);

static inline device_slot *device_own_slot(const device_team *team)
{
    return team->slot[team->rank];
}

static inline device_entry *device_entry_of(const device_op *op, int who)
{
    return &op->team->slot[who]->entry[op->seq % 2];
}

#endif
