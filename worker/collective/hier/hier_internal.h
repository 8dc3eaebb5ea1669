/* hier_internal.h - what the files of hier.h share: its team, its op, its phases. */
#ifndef WORKER_COLL_HIER_INTERNAL_H
#define WORKER_COLL_HIER_INTERNAL_H

#include "worker/collective/hier/hier.h"

#include <stdatomic.h>

typedef enum { ON_FLAT, ON_INSIDE, ON_ACROSS, ON_DEVICE, LEVELS } hier_level;

enum { HIER_PIECES = 16 };

/* What each member sends to all.  Plain bytes. */
typedef struct {
    coll_header header;
    /* it has mapped the memory of all members on its host; of calls on devices: these work together */
    uint64_t is_inside;
} hier_shown;

typedef struct {
    unsigned char *data;
    size_t bytes;
} hier_memory;

/* Calls on device memory.  Memory that is too small is put aside, because work in progress may use it. */
typedef struct {
    hier_devices o;
    bool is_proved, is_refused; /* by the first call */
    bool is_unsettled;          /* a call has ended: only `end` tells whether the device is done */
    hier_memory room, pinned;   /* of the device; of the host */
    unsigned char **old_room, **old_pinned;
    size_t n_old_room, n_old_pinned;
    device_event *down[HIER_PIECES], *end;

    /* Of the call in progress: all in device memory; elements of hier_dtype() except `narrow` and `whole`. */
    unsigned char *column;  /* what travels: this member's share of its host's result */
    unsigned char *columns; /* the columns of all places; the input as float32 */
    unsigned char *narrow;  /* the share in 16 bits */
    unsigned char *whole;   /* the result of a call in place; else NULL */
    size_t *part;           /* [across_size] elements of the column's parts */
    size_t *chunk;          /* [across_size] those of the piece that travels */
    int n_parts, n_pieces, piece;
    bool piece_travels;
} hier_device;

struct hier_team {
    hier_options o;
    void *arrays;           /* all below that have a size */
    int *host_of;           /* [size] */
    atomic_bool is_on_mesh; /* of the part in progress: what its driver sleeps on */
    uint64_t seq[LEVELS];   /* of the calls on each level */
    hier_device device;
    hier_shown *shown;           /* [size] */
    const coll_header **headers; /* [size], in shown */
    bool all_inside;             /* is_inside of all in this call */
    size_t *counts; /* [inside_size] slices of an all_reduce; elements gathered at each place */
    size_t *column; /* [size] parts of the members with this one's place, by host */
    int *place;     /* [size] of each member on its host */
    int *host;      /* [size] of first members: hosts before theirs */
    int *at;        /* [size] position by place and position in `across`; if hosts are even */
    unsigned char *scratch; /* results between phases: inputs stay unchanged */
    size_t scratch_size;
    /* the op of the part in progress, one at a time */
    _Alignas(64) uint8_t inner[COLL_OP_BYTES];
};

typedef enum {
    PHASE_ENTRY,
    PHASE_WHOLE,   /* the call itself, among all */
    PHASE_SCATTER, /* all_reduce: inside */
    PHASE_FOLD,    /*             across */
    PHASE_GATHER,  /*             inside */
    PHASE_ROOT,    /* broadcast: inside the root's host */
    PHASE_HOSTS,   /*            across */
    PHASE_LEAVES,  /*            inside the others */
    PHASE_COLUMN,  /* all_gather: across */
    PHASE_ROWS,    /*             inside */
    PHASE_SHARES,  /* reduce_scatter: inside */
    PHASE_TOTAL,   /*                 across */
    PHASE_END
} hier_phase;

/* Of a call on device memory: hier_device.c. */
typedef enum {
    DEVICES_TRIAL,  /* inside, before the first call's entry */
    DEVICES_ENTRY,  /* among all */
    DEVICES_NODE,   /* inside: each member gets its share of the host's result */
    DEVICES_PIECES, /* across: the shares, in pieces */
    DEVICES_SPREAD, /* inside: all get what has arrived */
    DEVICES_LAST,   /* until the device is done */
    DEVICES_END
} hier_device_phase;

typedef struct {
    struct hier_team *team;
    const coll_call *call;
    hier_phase phase;
    hier_level level;
    bool is_running; /* team->inner is */
    bool on_devices;
    hier_device_phase at; /* on_devices */
    uint64_t seq;
    hier_shown shown;
    coll_call part;
} hier_op;
_Static_assert(sizeof(hier_op) <= COLL_OP_BYTES, "an op must fit into what the engine gives");

/* ---- hier_inner.c ----------------------------------------------------------------------------------------------- */
/* A reduction whose bits depend on the order: SUM, PROD, AVG of floats. */
bool hier_depends_on_order(const coll_call *call);
/* Such a reduction of 16-bit floats; its parts have the type of hier_dtype(), float32.  Else hier_dtype() is the
 * call's. */
bool hier_is_wide(const coll_call *call);
pen_dtype hier_dtype(const coll_call *call);
/* A part of the call: n elements from in to out, not scaled, n from each. */
coll_call hier_part(const hier_op *op, coll_kind kind, size_t n, const void *in, void *out);
pen_status hier_begin_part(hier_op *op, hier_level level, const coll_call *part, pen_error *why);
coll_state hier_advance_part(hier_op *op, pen_error *why);
void hier_serve_mesh(const struct hier_team *team); /* others may wait for unsent data */
void hier_abort_part(hier_op *op);
int hier_missing_in_part(hier_op *op, int *positions, int cap); /* positions of the inner team */
pen_status hier_make_scratch(struct hier_team *team, size_t bytes, pen_error *why);
void hier_trim_scratch(struct hier_team *team);            /* after a call: frees a large scratch */
pen_op hier_inner_op(const coll_call *call);               /* an AVG is a SUM until it is divided */
void hier_divide(const hier_op *op, void *sums, size_t n); /* for AVG; otherwise does nothing */

/* ---- hier_entry.c ------------------------------------------------------------------------------------------------- */
pen_status hier_begin_entry(hier_op *op, pen_error *why);
pen_status hier_compare(hier_op *op, pen_error *why); /* what the entry has brought */
bool hier_may_fold_in_two(const hier_options *o, const coll_call *call);
size_t hier_slice(const struct hier_team *team, size_t n, int place);
bool hier_is_at_root(const struct hier_team *team, int root);
/* Position in `across`: hosts before that one. */
int hier_place_across(const struct hier_team *team, int position);

/* ---- hier_device.c ------------------------------------------------------------------------------------------------ */
pen_status hier_begin_on_devices(hier_op *op, pen_error *why);
coll_state hier_advance_on_devices(hier_op *op, pen_error *why);
void hier_abort_on_devices(hier_op *op);
pen_status hier_follow_devices(const hier_op *op, device_stream stream, pen_error *why);

/* ---- hier_parts.c: the phases of all_gather and of reduce_scatter ------------------------------------------------ */
/* Counts the elements of each place's column, and of the parts in this member's.  Returns the sum of all. */
size_t hier_count_columns(const hier_op *op);
pen_status hier_begin_column(hier_op *op, pen_error *why);
pen_status hier_begin_rows(hier_op *op, pen_error *why);
void hier_finish_rows(hier_op *op);
pen_status hier_begin_shares(hier_op *op, pen_error *why);
pen_status hier_begin_total(hier_op *op, pen_error *why);
void hier_finish_total(hier_op *op);

#endif
