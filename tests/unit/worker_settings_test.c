/* worker_settings_test.c - every row of a worker's settings, and the PENSTOCK_* variables of others that it
 * knows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/core/scheduler_settings.h"
#include "server/process/server_settings.h"
#include "tests/support/settings_walk.h"
#include "worker/worker_settings.h"

static bool has(const config_row *rows, const char *name)
{
    for (const config_row *r = rows; r->name != NULL; r++)
        if (strcmp(r->name, name) == 0) return true;
    return false;
}

static void test_worker_settings_keep_the_rules_of_tables(void **state)
{
    (void)state;
    settings_walk(worker_settings_rows, sizeof(worker_settings));
}

static void knows_all(const config_row *rows)
{
    for (const config_row *r = rows; r->name != NULL; r++)
        if (!has(worker_settings_rows, r->name) && !has(settings_foreign, r->name))
            fail_msg("a worker refuses the setting '%s' of another process", r->name);
}

static void test_worker_settings_know_every_name_of_others(void **state)
{
    (void)state;
    knows_all(server_settings_rows);
    knows_all(scheduler_settings_rows);
}

static void test_worker_settings_list_no_foreign_name_without_an_owner(void **state)
{
    (void)state;
    for (const config_row *r = settings_foreign; r->name != NULL; r++) {
        if (!has(server_settings_rows, r->name) && !has(scheduler_settings_rows, r->name) &&
            strcmp(r->name, "role") != 0 && strcmp(r->name, "position_fd") != 0) /* a launcher's */
            fail_msg("'%s' is nobody's setting", r->name);
        assert_false(has(worker_settings_rows, r->name));
    }
}

static void test_worker_settings_accept_variables_of_other_processes(void **state)
{
    (void)state;
    static const char *const fine[] = {"PENSTOCK_ROLE", "PENSTOCK_SHARDS", "PENSTOCK_STORE",
                                       "PENSTOCK_DOWN_GRACE_MS", "PENSTOCK_PARK_BYTES_MAX"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        worker_settings s;
        pen_error why;
        setenv(fine[i], "1m", 1);
        if (worker_settings_load(&s, NULL, &why) != PEN_OK) fail_msg("%s", why.text);
        unsetenv(fine[i]);
    }
}

static void test_worker_settings_refuse_unknown_variables(void **state)
{
    (void)state;
    static const struct {
        const char *name, *sentence;
    } bad[] = {
        {"PENSTOCK_SHARD",
         "unknown setting 'shard'; did you mean 'shards'?  (from PENSTOCK_SHARD)"},
        {"PENSTOCK_DOWN_GRACE",
         "unknown setting 'down_grace'; did you mean 'down_grace_ms'?  (from PENSTOCK_DOWN_GRACE)"},
        {"PENSTOCK_ROL", "unknown setting 'rol'; did you mean 'role'?  (from PENSTOCK_ROL)"},
        {"PENSTOCK_IO_THREAD",
         "unknown setting 'io_thread'; did you mean 'io_threads'?  (from PENSTOCK_IO_THREAD)"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        worker_settings s;
        pen_error why = {.text = ""};
        setenv(bad[i].name, "1", 1);
        assert_int_equal(worker_settings_load(&s, NULL, &why), PEN_BAD_SETTING);
        assert_string_equal(why.text, bad[i].sentence);
        unsetenv(bad[i].name);
    }
}

static void test_worker_settings_name_the_wire_formats(void **state)
{
    (void)state;
    static const char *const good[] = {"wire=f16", NULL}, *const bad[] = {"wire=bf8", NULL};
    worker_settings s;
    pen_error why;
    assert_int_equal(worker_settings_load(&s, good, &why), PEN_OK);
    assert_string_equal(worker_wire_name(s.wire), "f16");
    assert_int_equal(worker_settings_load(&s, bad, &why), PEN_BAD_SETTING);
}

static void test_worker_settings_refuse_sums_of_nodes_that_contradict_the_rest(void **state)
{
    (void)state;
    static const char *const good[]         = {"mode=ps-bsp", "two_level=yes", "servers=2", NULL},
                             *const no[]    = {"mode=ps-hier", "two_level=no", "servers=2", NULL},
                             *const eager[] = {"commit=eager", "two_level=yes", "servers=2", NULL};
    worker_settings s;
    pen_error why;
    assert_int_equal(worker_settings_load(&s, good, &why), PEN_OK);
    assert_int_equal(worker_settings_load(&s, no, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, "two_level=no and mode=ps-hier contradict each other"));
    assert_int_equal(worker_settings_load(&s, eager, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, "commit=eager and two_level=yes contradict each other"));
}

static void test_worker_settings_know_the_words_of_others_for_a_mode(void **state)
{
    (void)state;
    static const struct {
        const char *setting;
        int mode, stage;
    } same[] = {{"mode=ddp", MODE_ALLREDUCE, 0},
                {"mode=no_shard", MODE_ALLREDUCE, 0},
                {"mode=NO_SHARD", MODE_ALLREDUCE, 0},
                {"mode=ps", MODE_PS_BSP, 0},
                {"mode=zero1", MODE_ZERO1, 1},
                {"mode=shard_grad_op", MODE_ZERO2, 2},
                {"mode=SHARD_GRAD_OP", MODE_ZERO2, 2},
                {"mode=full_shard", MODE_ZERO3, 3},
                {"mode=FULL_SHARD", MODE_ZERO3, 3},
                {"mode=HYBRID_SHARD", MODE_HYBRID_SHARD, 3},
                {"mode=HYBRID_SHARD_ZERO2", MODE_HYBRID_SHARD_ZERO2, 2}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        const char *const given[] = {same[i].setting, NULL};
        worker_settings s;
        pen_error why;
        assert_int_equal(worker_settings_load(&s, given, &why), PEN_OK);
        assert_int_equal(s.mode, same[i].mode);
        assert_int_equal(worker_mode_stage(s.mode), same[i].stage);
        assert_int_equal(worker_mode_is_hybrid(s.mode), strstr(same[i].setting, "YBRID") != NULL);
    }
}

static void test_worker_settings_refuse_shards_beyond_any_memory(void **state)
{
    (void)state;
    static const struct {
        const char *given[4], *sentence;
    } bad[] = {{{"mode=zero2", "on_worker_loss=continue"}, "takes its part of the optimizer state"},
               {{"mode=hybrid_shard", "servers=1"}, "contradict each other"},
               {{"mode=ddp", "accum_reduce=each"}, "use accum_reduce=last, or mode=zero2"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        worker_settings s;
        pen_error why = {.text = ""};
        assert_int_equal(worker_settings_load(&s, bad[i].given, &why), PEN_UNSUPPORTED);
        if (strstr(why.text, bad[i].sentence) == NULL) fail_msg("%s", why.text);
    }
}

/* Most people try its rate first: the program's weight decay does not apply to it. */
static void test_worker_settings_merge_a_rule_from_program_and_user(void **state)
{
    (void)state;
    static const char *const program[] = {"optim=adamw lr=3e-4 weight_decay=0.1", NULL};
    static const char *const mistake[] = {"optim=adamw lrr=1", NULL};
    worker_settings s;
    pen_error why;
    setenv("PENSTOCK_OPTIM", "adamw lr=0.1", 1);
    if (worker_settings_load(&s, program, &why) != PEN_OK) fail_msg("%s", why.text);
    assert_string_equal(s.optim, "adamw weight_decay=0.1 lr=0.1");
    setenv("PENSTOCK_OPTIM", "lion lr=0.1", 1);
    if (worker_settings_load(&s, program, &why) != PEN_OK) fail_msg("%s", why.text);
    assert_string_equal(s.optim, "lion lr=0.1");
    unsetenv("PENSTOCK_OPTIM");
    assert_int_equal(worker_settings_load(&s, mistake, &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, "adamw: unknown setting 'lrr'; did you mean 'lr'?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worker_settings_keep_the_rules_of_tables),
        cmocka_unit_test(test_worker_settings_know_every_name_of_others),
        cmocka_unit_test(test_worker_settings_list_no_foreign_name_without_an_owner),
        cmocka_unit_test(test_worker_settings_accept_variables_of_other_processes),
        cmocka_unit_test(test_worker_settings_refuse_unknown_variables),
        cmocka_unit_test(test_worker_settings_name_the_wire_formats),
        cmocka_unit_test(test_worker_settings_refuse_sums_of_nodes_that_contradict_the_rest),
        cmocka_unit_test(test_worker_settings_know_the_words_of_others_for_a_mode),
        cmocka_unit_test(test_worker_settings_refuse_shards_beyond_any_memory),
        cmocka_unit_test(test_worker_settings_merge_a_rule_from_program_and_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
