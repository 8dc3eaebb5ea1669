/* table_request.h - one call of pen_kv_push() and its like: keys sorted into the parts of the table, answers put back.
 *
 * DESIGN.  Keys are dealt to parts by counting, in their order; with PEN_KEYS_ANY each part is then sorted, and what
 * comes twice is one key: its gradients are added in float32, in the order of the call, and its values go to all places.
 * The bytes of each part (proto/rows.h) are copies, one behind the other; values go into the program's memory as answers
 * come, or, if rows differ in length, when the last one is there.
 * Thread: begin: the caller's; answers and end: the SDK's.
 */
#ifndef WORKER_TABLE_REQUEST_H
#define WORKER_TABLE_REQUEST_H

#include "proto/rows.h"
#include "worker/ps/ps_client.h"
#include "worker/tensor/table.h"

typedef struct table_request table_request;

typedef struct {         /* of a part that has keys */
    ps_client_sink sink; /* the answer of the part */
    table_request *request;
    uint32_t part;     /* of the table */
    uint32_t first, n; /* its keys, among all different ones */
    uint8_t *bytes;    /* of the question */
    uint32_t size;
    void *answer; /* OWNED: if rows differ in length */
    rows answered;
} table_part;

struct table_request {
    pen_table *table;
    pen_kv kv;
    bool pushes, pulls;
    ps_client_verb
        verb; /* with a handler, both: each request of a rank is numbered, and answered */
    uint32_t n_parts;
    table_part *part;     /* [n_parts] */
    uint32_t *place;      /* [kv.n] positions of the keys in the call, by part and key */
    uint32_t *first;      /* [keys + 1] first place of each different key; NULL: each comes once */
    void *memory, *bytes; /* OWNED: these arrays; all questions */
    bool is_new;          /* kv.out is the SDK's: kv.out_new */
    pen_error *refusal;   /* OWNED: of a handler; NULL: none */
};

/* INVALID_ARGUMENT, TOO_SMALL (*count: elements needed), NO_MEMORY. */
pen_status table_request_begin(pen_table *t, const pen_kv *kv, ps_client_verb verb,
                               table_request **r, uint64_t *count, pen_error *why);

/* Frees it.  *count: elements that came, or that were needed; why may be NULL with PEN_OK.  Returns `status`, or what
 * went wrong here. */
pen_status table_request_end(table_request *r, pen_status status, uint64_t *count, pen_error *why);

#endif
