/* meet.h - barriers and reductions of a few values: everybody comes, then everybody is told.
 *
 * DESIGN.  The k-th MEET of every worker belongs together; k is its generation.  An arrival is
 * idempotent, so it may be sent again until it is answered, and a meeting that is over is answered
 * from memory.  Several may be open at once, because a request need not be waited for: a
 * generation is taken while it lies within MEET_WINDOW of the newest one that is over; others are
 * ignored and come again. Inputs are kept until the last is there and then reduced in rank order,
 * so the bits of the result do not depend on who came first.
 */
#ifndef SCHEDULER_MEET_H
#define SCHEDULER_MEET_H

#include "proto/wire.h"

enum {
    MEET_WINDOW      = 16,
    MEET_SLOTS       = 2 * MEET_WINDOW,     /* the open ones, and as many that are over */
    MEET_BYTES_MAX   = WIRE_MEET_BYTES_MAX, /* of one rank's values */
    MEET_LABEL_BYTES = 128
};

typedef struct {
    bool is_used, is_over;
    uint64_t generation, since_ms;
    uint64_t warn_ms;  /* when those who wait are told next; of the caller, 0 at first */
    int32_t op, dtype; /* op -1: a barrier */
    uint64_t count;
    char label[MEET_LABEL_BYTES];
    uint32_t n_come;
    int32_t first_rank;
    bool *has_come; /* [n_ranks] */
    uint8_t *data;  /* [n_ranks][size]; when it is over the result, [size] */
    size_t size;
    pen_status status; /* when it is over: UNSUPPORTED where dtype or op has no sum */
} meet;

typedef struct {
    uint32_t n_ranks;
    uint64_t newest_over;
    meet slot[MEET_SLOTS];
} meet_table; /* zero, and n_ranks set, is an empty one */

typedef enum {
    MEET_WAIT,     /* taken                                                              */
    MEET_KNOWN,    /* had been taken: it may want to know whom it waits for              */
    MEET_COMPLETE, /* the last one came: tell everybody                                  */
    MEET_REPEATED, /* it was over: tell this rank again                                  */
    MEET_IGNORED,  /* outside the window                                                 */
    MEET_FAILED    /* *why says what differs (MISMATCH), is malformed, or NO_MEMORY      */
} meet_outcome;

void meet_fini(meet_table *table);

/* rank < n_ranks.  *m is the meeting, unless IGNORED or FAILED. */
meet_outcome meet_arrive(meet_table *table, int32_t rank, const wire_control *message,
                         uint64_t now_ms, meet **m, pen_error *why);

/* Ends an open one with this failure; who came and who comes is told so. */
void meet_give_up(meet_table *table, meet *m, pen_status status);

/* "barrier 'epoch end' (call 212)" */
void meet_name(const meet *m, char *text, size_t size);

#endif
