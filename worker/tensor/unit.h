/* unit.h - units: tensors that are gathered, prefetched and dropped together.
 *
 * DESIGN.  The tensors are divided in two ways.
 *   pen_unit   tensors that are loaded and dropped together.  The settings wrap, wrap_match and
 *              wrap_min_params define units, so all ranks have the same without a message.  Number 0
 *              is the outermost unit.  It has all tensors that no other unit has, and all tied
 *              tensors, because they are used in more than one place.
 *   handle     tensors that a program names together (pen_unit_get): those it registered with that
 *              label, or whose names begin with it.  A handle covers one or more units, so the same
 *              program runs with every setting of wrap.  With wrap=none "h.3" is a part of the
 *              outermost unit, and only the gradients of that handle are released.
 * Values of wrap:
 *   unit   by the label of registration
 *   layer  by name: the longest prefix of a tensor's name, ending at a dot, that a pattern of
 *          wrap_match matches.  A * does not cross a dot, a leading **. stands for any prefix, a |
 *          separates alternatives.  Without patterns: the prefix up to the first part that is a
 *          number
 *   size   consecutive tensors until they have wrap_min_params elements; a smaller rest is outermost
 *   none   all tensors are outermost
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
    /* elements of tensors that are fetched and dropped: all but those that stay (pen_tensor.stays) */
    uint64_t moving;
    uint32_t n_covers;
    uint32_t *covers; /* [n_covers] units of its tensors, ascending; a unit covers itself */
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
    pen_unit *handle; /* [n_handles] 0: of the outermost unit */
} unit_set;

/* The facts about a tensor that units need. */
typedef struct {
    const char *name, *label; /* label NULL or "": none */
    uint64_t elements;
    size_t bytes;
    bool is_tied; /* has a second name */
    bool stays;
} unit_tensor;

/* NO_MEMORY, or BAD_SETTING for a pattern that is empty or matches no tensor; the sentence lists patterns that would
 * match.  set is safe for units_fini() in any case. */
pen_status units_make(unit_set *set, pen_ctx *ctx, const unit_tensor *tensor, uint32_t n,
                      const unit_rules *rules, pen_error *why);
void units_fini(unit_set *set);

/* "h" and 3: the handle "h.3", or "h" if index is -1 or there is no "h.0".  name NULL: the outermost.
 * NOT_FOUND names the most similar one. */
pen_status units_find(const unit_set *set, const char *name, int64_t index, pen_unit **handle,
                      pen_error *why);

#endif
