/* grad_slot_test.c - every state of a gradient and every event in it. */
#include "worker/tensor/grad_slot_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define VIEWED "pen_view('w'): its gradient was sent by pen_ready() and is no longer here"
#define BOUND                                                                                      \
    "pen_bind('w'): its gradient is being sent; bind between steps, or before its first "          \
    "pen_ready()"
#define TWICE "pen_ready('w') was called twice in step 7"
#define SENT                                                                                       \
    "pen_use: the values of 'w' left after its gradient was sent; use its unit before "            \
    "pen_ready(), or after pen_step_end()"
#define UNSEEN                                                                                     \
    "step 7 has not seen 'w' from this rank; call pen_ready() on it, or register it with "         \
    "PEN_ZERO_IF_UNUSED"

typedef struct { /* the result of an event */
    grad_state next;
    const char *sentence; /* refused, no change: an error of the program */
    const char *internal; /* or our bug: "copied" of "the gradient of 'w' cannot be copied ..." */
} outcome;

static void expect_one(grad_state from, grad_event event, const char *is, const outcome *o)
{
    char text[200];
    pen_error why         = {0};
    grad_slot g           = {.sums = GRAD_SUM_KEPT};
    const bool is_refused = o->sentence != NULL || o->internal != NULL;
    atomic_store(&g.state, (uint8_t)from);
    const pen_status status = grad_slot_move(&g, event, "w", 7, &why);
    assert_int_equal(status, !is_refused           ? PEN_OK
                             : o->sentence != NULL ? PEN_WRONG_STATE
                                                   : PEN_INTERNAL);
    assert_int_equal(grad_slot_next(from, event), is_refused ? -1 : (int)o->next);
    assert_int_equal(grad_slot_state(&g), is_refused ? from : o->next);
    assert_int_equal(g.sums, GRAD_SUM_KEPT);
    if (!is_refused) return;
    snprintf(text, sizeof text, "the gradient of 'w' cannot be %s in step 7: it is %s",
             o->internal != NULL ? o->internal : "", is);
    assert_string_equal(why.text, o->sentence != NULL ? o->sentence : text);
}

static void expect_all(grad_state from, const char *is, const outcome outcomes[GRAD_EVENTS])
{
    for (int event = 0; event < GRAD_EVENTS; event++)
        expect_one(from, (grad_event)event, is, &outcomes[event]);
}

static void a_gradient_of_the_program_may_be_viewed_bound_and_made_ready(void **state)
{
    (void)state;
    static const outcome outcomes[GRAD_EVENTS] = {
        [GRAD_VIEW]   = {GRAD_PROGRAM, NULL, NULL},
        [GRAD_BIND]   = {GRAD_PROGRAM, NULL, NULL},
        [GRAD_READY]  = {GRAD_PROGRAM, NULL, NULL},
        [GRAD_USE]    = {GRAD_PROGRAM, NULL, NULL},
        [GRAD_CLOSE]  = {0, UNSEEN, NULL},
        [GRAD_COPY]   = {GRAD_DEVICE_COPYING, NULL, NULL},
        [GRAD_FAIL]   = {0, NULL, "given up"},
        [GRAD_OFFER]  = {GRAD_OFFERED, NULL, NULL},
        [GRAD_ADD]    = {GRAD_ACCUMULATED, NULL, NULL}, /* on the device */
        [GRAD_LEND]   = {0, NULL, "lent"},
        [GRAD_RETURN] = {GRAD_PROGRAM, NULL, NULL}, /* from an earlier micro-batch */
        [GRAD_NEXT]   = {GRAD_PROGRAM, NULL, NULL}};
    expect_all(GRAD_PROGRAM, "the program's", outcomes);
}

static void a_gradient_copied_from_a_device_is_offered_or_dropped(void **state)
{
    (void)state;
    static const outcome outcomes[GRAD_EVENTS] = {
        [GRAD_VIEW]   = {0, VIEWED, NULL},
        [GRAD_BIND]   = {0, BOUND, NULL},
        [GRAD_READY]  = {0, TWICE, NULL},
        [GRAD_USE]    = {GRAD_DEVICE_COPYING, NULL, NULL}, /* nothing of it was sent */
        [GRAD_CLOSE]  = {0, UNSEEN, NULL},
        [GRAD_COPY]   = {0, NULL, "copied"},
        [GRAD_FAIL]   = {GRAD_PROGRAM, NULL, NULL},
        [GRAD_OFFER]  = {GRAD_OFFERED, NULL, NULL},
        [GRAD_ADD]    = {0, NULL, "added up"},
        [GRAD_LEND]   = {0, NULL, "lent"},
        [GRAD_RETURN] = {GRAD_DEVICE_COPYING, NULL, NULL},
        [GRAD_NEXT]   = {GRAD_DEVICE_COPYING, NULL, NULL}}; /* the one that copies ends it */
    expect_all(GRAD_DEVICE_COPYING, "being copied", outcomes);
}

static void a_gradient_that_waits_for_other_names_is_accumulated_or_lent(void **state)
{
    (void)state;
    static const outcome outcomes[GRAD_EVENTS] = {[GRAD_VIEW]   = {0, VIEWED, NULL},
                                                  [GRAD_BIND]   = {0, BOUND, NULL},
                                                  [GRAD_READY]  = {0, TWICE, NULL},
                                                  [GRAD_USE]    = {0, SENT, NULL},
                                                  [GRAD_CLOSE]  = {GRAD_OFFERED, NULL, NULL},
                                                  [GRAD_COPY]   = {0, NULL, "copied"},
                                                  [GRAD_FAIL]   = {0, NULL, "given up"},
                                                  [GRAD_OFFER]  = {0, NULL, "offered"},
                                                  [GRAD_ADD]    = {GRAD_ACCUMULATED, NULL, NULL},
                                                  [GRAD_LEND]   = {GRAD_LENT, NULL, NULL},
                                                  [GRAD_RETURN] = {GRAD_OFFERED, NULL, NULL},
                                                  [GRAD_NEXT]   = {GRAD_PROGRAM, NULL, NULL}};
    expect_all(GRAD_OFFERED, "offered", outcomes);
}

static void
an_accumulated_gradient_belongs_to_the_program_again_in_the_next_micro_batch(void **state)
{
    (void)state;
    static const outcome outcomes[GRAD_EVENTS] = {[GRAD_VIEW]   = {0, VIEWED, NULL},
                                                  [GRAD_BIND]   = {0, BOUND, NULL},
                                                  [GRAD_READY]  = {0, TWICE, NULL},
                                                  [GRAD_USE]    = {0, SENT, NULL},
                                                  [GRAD_CLOSE]  = {GRAD_ACCUMULATED, NULL, NULL},
                                                  [GRAD_COPY]   = {0, NULL, "copied"},
                                                  [GRAD_FAIL]   = {0, NULL, "given up"},
                                                  [GRAD_OFFER]  = {0, NULL, "offered"},
                                                  [GRAD_ADD]    = {0, NULL, "added up"},
                                                  [GRAD_LEND]   = {0, NULL, "lent"},
                                                  [GRAD_RETURN] = {GRAD_ACCUMULATED, NULL, NULL},
                                                  [GRAD_NEXT]   = {GRAD_PROGRAM, NULL, NULL}};
    expect_all(GRAD_ACCUMULATED, "in a sum", outcomes);
}

static void a_lent_gradient_belongs_to_the_program_again_when_the_step_ends(void **state)
{
    (void)state;
    static const outcome outcomes[GRAD_EVENTS] = {[GRAD_VIEW]   = {0, VIEWED, NULL},
                                                  [GRAD_BIND]   = {0, BOUND, NULL},
                                                  [GRAD_READY]  = {0, TWICE, NULL},
                                                  [GRAD_USE]    = {0, SENT, NULL},
                                                  [GRAD_CLOSE]  = {GRAD_LENT, NULL, NULL},
                                                  [GRAD_COPY]   = {0, NULL, "copied"},
                                                  [GRAD_FAIL]   = {0, NULL, "given up"},
                                                  [GRAD_OFFER]  = {0, NULL, "offered"},
                                                  [GRAD_ADD]    = {0, NULL, "added up"},
                                                  [GRAD_LEND]   = {0, NULL, "lent"},
                                                  [GRAD_RETURN] = {GRAD_RETURNED, NULL, NULL},
                                                  [GRAD_NEXT]   = {GRAD_PROGRAM, NULL, NULL}};
    expect_all(GRAD_LENT, "lent", outcomes);
}

static void a_returned_gradient_does_not_belong_to_the_program_before_the_step_ends(void **state)
{
    (void)state;
    static const outcome outcomes[GRAD_EVENTS] = {
        [GRAD_VIEW]   = {0, VIEWED, NULL},
        [GRAD_BIND]   = {0, BOUND, NULL},
        [GRAD_READY]  = {0, TWICE, NULL},
        [GRAD_USE]    = {0, SENT, NULL},
        [GRAD_CLOSE]  = {GRAD_RETURNED, NULL, NULL},
        [GRAD_COPY]   = {0, NULL, "copied"},
        [GRAD_FAIL]   = {0, NULL, "given up"},
        [GRAD_OFFER]  = {0, NULL, "offered"},
        [GRAD_ADD]    = {0, NULL, "added up"},
        [GRAD_LEND]   = {0, NULL, "lent"},
        [GRAD_RETURN] = {GRAD_RETURNED, NULL, NULL}, /* called for each of its names */
        [GRAD_NEXT]   = {GRAD_PROGRAM, NULL, NULL}};
    expect_all(GRAD_RETURNED, "returned", outcomes);
}

static void a_step_begins_without_sums_and_with_gradients_of_the_program(void **state)
{
    (void)state;
    for (int from = 0; from < GRAD_STATES; from++) {
        grad_slot g = {.sums = GRAD_SUM_KEPT | GRAD_SUM_ON_DEVICE};
        atomic_store(&g.state, (uint8_t)from);
        grad_slot_begin(&g);
        assert_int_equal(g.sums, 0);
        assert_int_equal(grad_slot_state(&g),
                         from == GRAD_DEVICE_COPYING ? GRAD_DEVICE_COPYING : GRAD_PROGRAM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gradient_of_the_program_may_be_viewed_bound_and_made_ready),
        cmocka_unit_test(a_gradient_copied_from_a_device_is_offered_or_dropped),
        cmocka_unit_test(a_gradient_that_waits_for_other_names_is_accumulated_or_lent),
        cmocka_unit_test(
            an_accumulated_gradient_belongs_to_the_program_again_in_the_next_micro_batch),
        cmocka_unit_test(a_lent_gradient_belongs_to_the_program_again_when_the_step_ends),
        cmocka_unit_test(a_returned_gradient_does_not_belong_to_the_program_before_the_step_ends),
        cmocka_unit_test(a_step_begins_without_sums_and_with_gradients_of_the_program)};
    return cmocka_run_group_tests_name("grad_slot", tests, NULL, NULL);
}
