/* strategy_choice_test.c - the choice of a strategy reads nothing that pen-io replaces. */
#include "worker/io/thread/io_thread.h"
#include "worker/train/strategy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    pen_ctx ctx;
    io_thread io;
    pen_tensor tensor, *tensors;
    pen_params group;
    wire_member *worker; /* [2] of the view */
} job;

/* Two workers of one node and a model that is worth summing there; freed with free_job(). */
static job *new_job(void)
{
    job *j                    = calloc(1, sizeof *j);
    j->worker                 = calloc(2, sizeof *j->worker);
    j->worker[0]              = (wire_member){.rank = 0, .node = 7, .sharing = 3};
    j->worker[1]              = (wire_member){.rank = 1, .node = 7, .sharing = 3};
    j->tensors                = &j->tensor;
    j->tensor                 = (pen_tensor){.trained = true, .elements = 1 << 20, .ctx = &j->ctx};
    j->io.view                = (wire_epoch){.n_workers = 2, .worker = j->worker};
    j->io.ctx                 = &j->ctx;
    j->ctx.link               = &j->io.link;
    j->ctx.mode               = MODE_PS_BSP;
    j->ctx.has_servers        = true;
    j->ctx.settings.two_level = TWO_LEVEL_AUTO;
    j->ctx.settings.commit    = COMMIT_DECIDE;
    j->ctx.settings.deterministic = SUMS_BY_NODE;
    j->ctx.model.tensor           = &j->tensors;
    j->group.rule                 = STEP_TWO_PHASE;
    j->ctx.model.group[0]         = &j->group;
    j->ctx.model.n_tensors        = 1;
    return j;
}

static void free_job(job *j)
{
    free(j->worker);
    free(j);
}

/* As pen-io does when an epoch comes: the old view is gone. */
static void replace_view(job *j)
{
    memset(j->worker, 0xa5, 2 * sizeof *j->worker);
    free(j->worker);
    j->worker  = NULL;
    j->io.view = (wire_epoch){0};
}

static void
the_choice_is_that_of_the_commit_even_if_an_epoch_replaces_the_view_at_once(void **state)
{
    (void)state;
    job *j = new_job();
    io_view_settle(&j->io);
    replace_view(j);
    assert_true(strategy_sums_in_nodes(&j->ctx));
    free_job(j);
}

static void workers_of_a_node_that_share_no_memory_push_by_themselves(void **state)
{
    (void)state;
    job *j               = new_job();
    j->worker[1].sharing = 4;
    io_view_settle(&j->io);
    assert_false(strategy_sums_in_nodes(&j->ctx));
    free_job(j);
}

static void a_worker_alone_on_its_node_pushes_by_itself(void **state)
{
    (void)state;
    job *j            = new_job();
    j->worker[1].node = 8;
    io_view_settle(&j->io);
    assert_int_equal(j->io.committed.nodes, 2);
    assert_false(strategy_sums_in_nodes(&j->ctx));
    free_job(j);
}

static void whether_gradients_are_given_back_does_not_change_with_the_view(void **state)
{
    (void)state;
    job *j                  = new_job();
    const wire_replica copy = {.role = WIRE_PRIMARY + 1};
    j->ctx.stage            = 2;
    j->ctx.rule             = STEP_TWO_PHASE;
    io_view_settle(&j->io);
    assert_true(io_gives_back(&j->io));
    j->io.view.n_replicas = 1;
    j->io.view.replica    = &copy;
    assert_true(io_gives_back(&j->io));
    io_view_settle(&j->io);
    assert_false(io_gives_back(&j->io));
    free_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            the_choice_is_that_of_the_commit_even_if_an_epoch_replaces_the_view_at_once),
        cmocka_unit_test(workers_of_a_node_that_share_no_memory_push_by_themselves),
        cmocka_unit_test(a_worker_alone_on_its_node_pushes_by_itself),
        cmocka_unit_test(whether_gradients_are_given_back_does_not_change_with_the_view)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
