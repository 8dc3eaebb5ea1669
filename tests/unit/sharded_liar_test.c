/* sharded_liar_test.c - a worker of a job without servers, or of a node, sends the others numbers that cannot be, in the
 * calls that go beside the gradients: they read and write nothing by them, and say whose they are. */
#include "tests/unit/worker_train_rig.h"

#include "worker/train/group_calls.h"

/* ---- lies ------------------------------------------------------------------------------------ */
enum { COPY_BYTES = 1 << 16 };

/* What one member sends in calls with this label; the others see it, and not itself. */
static struct {
    const char *label;
    int who;
    size_t from, bytes; /* these become ones; bytes 0: all from there on */
    int32_t lowest;
    atomic_int told; /* so often */
} lie;

static bool lies(const group_calls *t, const char *label)
{
    if (lie.label == NULL || strcmp(label, lie.label) != 0 || t->group->rank != lie.who)
        return false;
    atomic_fetch_add(&lie.told, 1);
    return true;
}

static void twist(void *copy, const void *data, size_t bytes)
{
    assert_true(bytes <= COPY_BYTES && lie.from < bytes);
    memcpy(copy, data, bytes);
    memset((char *)copy + lie.from, 0xff, lie.bytes > 0 ? lie.bytes : bytes - lie.from);
}

pen_status __real_group_calls_submit(void *user, const coll_call *call, coll_done_fn done,
                                     void *done_user, pen_error *why);
pen_status __wrap_group_calls_submit(void *user, const coll_call *call, coll_done_fn done,
                                     void *done_user, pen_error *why);
void __real_group_calls_gather(group_calls *t, pen_dtype dtype, size_t n, const size_t *counts,
                               const void *in, void *out, const char *label);
void __wrap_group_calls_gather(group_calls *t, pen_dtype dtype, size_t n, const size_t *counts,
                               const void *in, void *out, const char *label);
pen_status __real_group_calls_broadcast(group_calls *t, void *data, size_t bytes, const char *label,
                                        pen_error *why);
pen_status __wrap_group_calls_broadcast(group_calls *t, void *data, size_t bytes, const char *label,
                                        pen_error *why);
pen_status __real_group_calls_lowest(group_calls *t, int32_t own, int32_t *lowest,
                                     const char *label, pen_error *why);
pen_status __wrap_group_calls_lowest(group_calls *t, int32_t own, int32_t *lowest,
                                     const char *label, pen_error *why);

pen_status __wrap_group_calls_submit(void *user, const coll_call *call, coll_done_fn done,
                                     void *done_user, pen_error *why)
{
    static _Alignas(8) char copy[COPY_BYTES]; /* until the call ends */
    coll_call told = *call;
    if (lies(user, call->label)) {
        twist(copy, call->in, call->n);
        told.in = copy;
    }
    return __real_group_calls_submit(user, &told, done, done_user, why);
}

void __wrap_group_calls_gather(group_calls *t, pen_dtype dtype, size_t n, const size_t *counts,
                               const void *in, void *out, const char *label)
{
    static _Alignas(8) char copy[COPY_BYTES]; /* until the call ends */
    const bool is_lie = lies(t, label);
    if (is_lie) twist(copy, in, n * (dtype == PEN_F64 ? 8 : 1));
    __real_group_calls_gather(t, dtype, n, counts, is_lie ? copy : in, out, label);
}

pen_status __wrap_group_calls_broadcast(group_calls *t, void *data, size_t bytes, const char *label,
                                        pen_error *why)
{
    static _Alignas(8) char copy[COPY_BYTES];
    const bool is_lie = lies(t, label);
    if (is_lie) twist(copy, data, bytes);
    return __real_group_calls_broadcast(t, is_lie ? copy : data, bytes, label, why);
}

pen_status __wrap_group_calls_lowest(group_calls *t, int32_t own, int32_t *lowest,
                                     const char *label, pen_error *why)
{
    return __real_group_calls_lowest(t, lies(t, label) ? lie.lowest : own, lowest, label, why);
}

/* ---- jobs ------------------------------------------------------------------------------------ */
static const job usual = {
    .tensor        = {{"w", "sgd lr=0.1", "bsp", "raw", PEN_F32, PEN_F32, 9001}},
    .ranks         = 2,
    .mode          = "zero1",
    .nan_step      = -1,
    .snapshot_step = -1,
    .setting       = "shared_memory=no",
};

static void tell(const char *label, int who, size_t from, size_t bytes)
{
    lie.label  = label;
    lie.who    = who;
    lie.from   = from;
    lie.bytes  = bytes;
    lie.lowest = INT32_MIN / 4;
    atomic_store(&lie.told, 0);
}

static job *run_told(const job *wanted)
{
    job *j = run(wanted);
    assert_true(atomic_load(&lie.told) > 0);
    lie.label = NULL;
    return j;
}

static void is_refused(const job *wanted, int by, const char *sentence)
{
    job *j = run_told(wanted);
    if (!j->member[by].failed || strstr(j->member[by].said, sentence) == NULL)
        fail_msg("rank %d said '%s', not '%s'", by, j->member[by].said, sentence);
    forget(j);
}

/* ---- tests ----------------------------------------------------------------------------------- */
/* Behind a weight, a loss scale, a clip bound and four words. */
static void test_liar_more_scalars_than_there_can_be_are_refused(void **state)
{
    (void)state;
    tell("weights and rates of a step", 1, 3 * 8 + 4 * 4, 4);
    is_refused(&usual, 0, "rank 1 has 4294967295 scalars in a step, where ");
}

/* The same with servers, where a node adds up.  Behind a weight and a word. */
static const job of_a_node = {
    .tensor        = {{"w", "sgd lr=0.1", "bsp", "raw", PEN_F32, PEN_F32, 9001}},
    .ranks         = 2,
    .servers       = 1,
    .mode          = "ps-hier",
    .nan_step      = -1,
    .snapshot_step = -1,
};

static void test_liar_a_node_refuses_more_scalars_than_there_can_be(void **state)
{
    (void)state;
    tell("weights of a node", 1, 2 * 8, 4);
    is_refused(&of_a_node, 0, "rank 1 has 4294967295 scalars in a step, where ");
}

/* The first number is the lowest chunk that is not finite. */
static void test_liar_a_chunk_that_is_not_there_is_ignored(void **state)
{
    (void)state;
    tell("sums of squares", 1, 0, sizeof(double));
    job *j = run_told(&usual);
    for (int r = 0; r < 2; r++) {
        assert_false(j->member[r].failed);
        assert_int_equal(j->member[r].step.applied, STEPS);
    }
    forget(j);
}

static void test_liar_a_rank_that_is_not_there_is_not_named(void **state)
{
    (void)state;
    job wanted      = usual;
    wanted.nan_step = STEPS - 1;
    tell("whose gradient is not finite", 1, 0, 0);
    job *j = run_told(&wanted);
    for (int r = 0; r < 2; r++) {
        assert_false(j->member[r].failed);
        assert_int_equal(j->member[r].step.outcome, PEN_SKIPPED_NONFINITE);
        assert_in_range(j->member[r].step.bad_rank, 0, 1);
    }
    forget(j);
}

/* Behind a number, a step and the 64 steps of snapshots to keep. */
static void test_liar_more_snapshots_than_can_be_kept_are_refused(void **state)
{
    (void)state;
    tell("which snapshot to go on from", 0, 8 + 8 + 64 * 8, 4);
    is_refused(&usual, 1, "rank 0 keeps 4294967295 snapshots, where 64 are the most");
}

static void test_liar_a_failure_that_is_no_failure_is_a_lie(void **state)
{
    (void)state;
    tell("which snapshot to go on from", 0, 8 + 8 + 64 * 8 + 4, 0);
    job *j = run_told(&usual);
    assert_true(j->member[1].failed);
    assert_int_equal(j->member[1].error.status, PEN_CORRUPT);
    for (const char *c = j->member[1].said; *c != '\0'; c++) assert_in_range(*c, 0x20, 0x7e);
    forget(j);
}

static void test_liar_a_snapshot_fails_by_no_failure_and_the_job_goes_on(void **state)
{
    (void)state;
    char store[] = "/tmp/penstock-liar-test-XXXXXX", setting[64], command[64];
    job wanted   = usual;
    assert_non_null(mkdtemp(store));
    snprintf(setting, sizeof setting, "store=%s", store);
    wanted.setting       = setting;
    wanted.snapshot_step = 1;
    tell("result of a snapshot", 1, 0, 0);
    job *j           = run_told(&wanted);
    const member *at = &j->member[0];
    assert_int_equal(at->error.status, PEN_CORRUPT);
    assert_int_equal(at->error.rank, 1);
    assert_ptr_equal(strstr(at->said, "rank 1: ?"), at->said);
    for (int r = 0; r < 2; r++) assert_int_equal(j->member[r].step.applied, STEPS);
    forget(j);
    snprintf(command, sizeof command, "rm -r %s", store);
    assert_int_equal(system(command), 0);
}

/* Rank 1 sends a length that would place its bytes before the others' memory. */
static pen_status send_a_length(pen_ctx *ctx, member *m)
{
    pen_tensor *w;
    pen_bytes got[2] = {{0}};
    uint64_t length  = UINT64_MAX - 7, all[2];
    pen_register(ctx, &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {5}}, &w);
    const pen_status status = pen_commit(ctx);
    if (status != PEN_OK) return status;
    if (m->rank == 1)
        return pen_all_gather(pen_world(ctx), &length, 1, all, NULL, PEN_U64,
                              &(pen_opts){.label = "pen_gather_bytes"}, NULL);
    return pen_gather_bytes(pen_world(ctx), "0123456789abcdef", 16, got, PEN_EVERY, NULL);
}

static void test_liar_a_length_beyond_memory_is_refused(void **state)
{
    (void)state;
    job wanted     = usual;
    wanted.setting = "optim=sgd lr=1";
    wanted.instead = send_a_length;
    job *j         = run(&wanted);
    if (strstr(j->member[0].said, "rank 1 says that its object has 18446744073709551608 bytes") ==
        NULL)
        fail_msg("rank 0 said '%s'", j->member[0].said);
    assert_int_equal(j->member[0].error.status, PEN_CORRUPT);
    forget(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_liar_more_scalars_than_there_can_be_are_refused),
        cmocka_unit_test(test_liar_a_node_refuses_more_scalars_than_there_can_be),
        cmocka_unit_test(test_liar_a_chunk_that_is_not_there_is_ignored),
        cmocka_unit_test(test_liar_a_rank_that_is_not_there_is_not_named),
        cmocka_unit_test(test_liar_more_snapshots_than_can_be_kept_are_refused),
        cmocka_unit_test(test_liar_a_failure_that_is_no_failure_is_a_lie),
        cmocka_unit_test(test_liar_a_snapshot_fails_by_no_failure_and_the_job_goes_on),
        cmocka_unit_test(test_liar_a_length_beyond_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
