/* unit.h - tensors that are needed and finished together: what is gathered, prefetched and dropped.
 *
 * DESIGN.  Two partitions of the same tensors meet here.
 *   pen_unit   what comes and goes together: made of the tensors and the settings wrap, wrap_match and
 *              wrap_min_params, so it is the same on all ranks without a message.  Number 0 is the
 *              outermost: whatever nobody claimed, and tied tensors, whichever unit they were
 *              registered with, because they are used in more than one place.
 *   handle     what a program asks for by name (pen_unit_get): the tensors it registered with that
 *              label, or whose names begin with it.  A handle covers one unit or more, so the same
 *              program runs with every way of wrapping: with wrap=none "h.3" is a part of the outermost
 *              unit, and what is released is that handle's gradients.
 * How wrap makes units:
 *   unit   by the label of registration
 *   layer  by name: the longest beginning of a tensor's name, cut at a dot, that a pattern of wrap_match
 *          matches; a * does not cross a dot, and a | is between alternatives.  Without patterns: up to the
 * first part
 *          that is a number
 *   size   tensors that follow one another, until they have wrap_min_params elements; the rest that has
 *          fewer is outermost
 *   none   all is outermost
 * Pure: nothing here waits, sends or logs.
 * Source  FSDP's auto wrap policies and their rule for shared parameters (PyTorch 2, fsdp/wrap.py).
 */
#ifndef WORKER_UNIT_H
#define WORKER_UNIT_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { WRAP_UNIT, WRAP_LAYER, WRAP_SIZE, WRAP_NONE } unit_wrap;

struct pen_unit {
    pen_ctx *ctx;
    uint32_t index; /* among the units, or among the handles */
    char *name;     /* "h.3"; "" the outermost; "size 2" made by size */
    uint32_t n_tensors;
    uint32_t *tensor;  /* [n_tensors] ascending numbers of model.tensor[] */
    uint64_t elements; /* of all its tensors */
    size_t bytes;
    /* elements of those that do not stay (pen_tensor.stays): what is fetched and dropped */
    uint64_t moving;
    uint32_t n_covers;
    uint32_t *covers; /* [n_covers] units that its tensors are in, ascending; a unit's is itself */
};

typedef struct {
    unit_wrap wrap;
    const char *match; /* "glob,glob|glob" */
    uint64_t min_params;
} unit_rules;

typedef struct {
    uint32_t n; /* units, at least 1 */
    pen_unit *unit;
    uint32_t *of; /* [tensors] the unit of each */
    uint32_t n_handles;
    pen_unit *handle; /* [n_handles] 0 is that of the outermost */
} unit_set;

/* What is needed to know of a tensor. */
typedef struct {
    const char *name, *label; /* label NULL or "": none */
    uint64_t elements;
    size_t bytes;
    bool is_tied; /* it has a second name */
    bool stays;
} unit_tensor;

/* NO_MEMORY, or BAD_SETTING for a pattern that is empty, or that no tensor of the model matches, with those that
 * would.
 * set is safe for units_fini() in any case. */
pen_status units_make(unit_set *set, pen_ctx *ctx, const unit_tensor *tensor, uint32_t n,
                      const unit_rules *rules, pen_error *why);
void units_fini(unit_set *set);

/* "h" and 3: the handle "h.3", or "h" where index is -1 or there is no "h.0".  NULL: the outermost.
 * NOT_FOUND names the nearest one. */
pen_status units_find(const unit_set *set, const char *name, int64_t index, pen_unit **handle,
                      pen_error *why);

#endif
