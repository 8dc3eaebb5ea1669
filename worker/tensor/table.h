/* table.h - tables by key that a program registered.  In the wire's model they are tensors behind all others. */
#ifndef WORKER_TABLE_H
#define WORKER_TABLE_H

#include "proto/wire/wire.h"

struct pen_table {
    pen_ctx *ctx;
    uint32_t index;              /* among the tables */
    char *name, *init, *handler; /* handler: "" if its rows have a rule */
    wire_tensor desc;
    uint32_t dim, parts; /* dim 0: differs by key */
    bool counts;         /* its rule compares numbers of pushes, so each push goes to every part */
    bool sorts;          /* PEN_KEYS_ANY */
    bool by_range;       /* PEN_KEYS_RANGE */
    pen_place_fn place;  /* NULL: by hash or range */
    void *user;
    pen_dtype push_dtype;
};

struct model;
pen_status table_add(struct model *m, pen_ctx *ctx, const pen_table_desc *d, pen_table **t,
                     pen_error *why);
void table_free(pen_table *t); /* NULL is fine */

#endif
