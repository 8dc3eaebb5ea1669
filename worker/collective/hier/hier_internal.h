/* hier_internal.h - what the files of hier.h share: its team, its op, its phases. */
#ifndef WORKER_COLL_HIER_INTERNAL_H
#define WORKER_COLL_HIER_INTERNAL_H

#include "worker/collective/hier/hier.h"

#include <stdatomic.h>

typedef enum { ON_FLAT, ON_INSIDE, ON_ACROSS } hier_level;

/* What each member sends to all.  Plain bytes. */
typedef struct {
    coll_header header;
    uint64_t is_inside; /* it has mapped the memory of all members on its host */
} hier_shown;

struct hier_team {
    hier_options o;
    void *arrays;                /* all below that have a size */
    int *host_of;                /* [size] */
    atomic_bool is_on_mesh;      /* of the part in progress: what its driver sleeps on */
    uint64_t seq[3];             /* of the calls on each level */
    hier_shown *shown;           /* [size] */
    const coll_header **headers; /* [size], in shown */
    bool all_inside;             /* is_inside of all in this call */
    size_t *counts; /* [inside_size] slices of an all_reduce; elements gathered at each place */
    size_t *column; /* [size] parts of the members with this one's place, by host */
    int *place;     /* [size] of each member on its host */
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

typedef struct {
    struct hier_team *team;
    const coll_call *call;
    hier_phase phase;
    hier_level level;
    bool is_running; /* team->inner is */
    uint64_t seq;
    hier_shown shown;
    coll_call part;
} hier_op;
_Static_assert(sizeof(hier_op) <= COLL_OP_BYTES, "an op must fit into what the engine gives");

/* ---- hier_inner.c ----------------------------------------------------------------------------------------------- */
/* A part of the call: n elements from in to out, not scaled, n from each. */
coll_call hier_part(const hier_op *op, coll_kind kind, size_t n, const void *in, void *out);
pen_status hier_begin_part(hier_op *op, hier_level level, const coll_call *part, pen_error *why);
coll_state hier_advance_part(hier_op *op, pen_error *why);
void hier_abort_part(hier_op *op);
int hier_missing_in_part(hier_op *op, int *positions, int cap); /* positions of the inner team */
pen_status hier_make_scratch(struct hier_team *team, size_t bytes, pen_error *why);
void hier_trim_scratch(struct hier_team *team);            /* after a call: frees a large scratch */
pen_op hier_inner_op(const coll_call *call);               /* an AVG is a SUM until it is divided */
void hier_divide(const hier_op *op, void *sums, size_t n); /* for AVG; otherwise does nothing */

/* ---- hier_parts.c: the phases of all_gather and of reduce_scatter ------------------------------------------------ */
pen_status hier_begin_column(hier_op *op, pen_error *why);
pen_status hier_begin_rows(hier_op *op, pen_error *why);
void hier_finish_rows(hier_op *op);
pen_status hier_begin_shares(hier_op *op, pen_error *why);
pen_status hier_begin_total(hier_op *op, pen_error *why);
void hier_finish_total(hier_op *op);

#endif
