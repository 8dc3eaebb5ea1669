/* worker_env_test.c - a worker's rank and world under each launcher, and under an incomplete one. */
#include "worker/worker_env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The environment of a test: name, value, name, value, ..., NULL. */
static const char *const *environment;

static const char *get(const char *name)
{
    for (const char *const *at = environment; *at != NULL; at += 2)
        if (strcmp(at[0], name) == 0) return at[1];
    return NULL;
}

static pen_status resolve_with(const char *const *settings, const char *const *values,
                               worker_env *env, pen_error *why)
{
    worker_settings s;
    config_defaults(worker_settings_rows, &s);
    assert_int_equal(config_from_strings(worker_settings_rows, &s, settings, why), PEN_OK);
    environment = values;
    return worker_env_resolve(&s, get, env, why);
}

static pen_status resolve(const char *const *values, worker_env *env, pen_error *why)
{
    return resolve_with(NULL, values, env, why);
}

#define ENV(...)                                                                                   \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define PLAIN(rank, size)                                                                          \
    "RANK", rank, "WORLD_SIZE", size, "MASTER_ADDR", "10.0.0.7", "MASTER_PORT", "29500"

static void expect_error(const char *const *values, const char *sentence)
{
    worker_env env;
    pen_error why;
    assert_int_equal(resolve(values, &env, &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, sentence);
}

/* ---- plain ----------------------------------------------------------------------------------- */
static void test_env_empty_is_alone(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    assert_int_equal(resolve(ENV("HOME", "/root"), &env, &why), PEN_OK);
    assert_true(env.alone);
    assert_int_equal(env.rank, 0);
    assert_int_equal(env.world_size, 1);
}

static void test_env_rank_and_friends_are_taken(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    assert_int_equal(
        resolve(ENV(PLAIN("3", "4"), "LOCAL_RANK", "1", "LOCAL_WORLD_SIZE", "2"), &env, &why),
        PEN_OK);
    assert_false(env.alone);
    assert_int_equal(env.rank, 3);
    assert_int_equal(env.world_size, 4);
    assert_int_equal(env.local_rank, 1);
    assert_int_equal(env.local_world_size, 2);
    assert_string_equal(env.addr, "10.0.0.7");
    assert_int_equal(env.port, 29500);
    assert_string_equal(env.source, "RANK");
}

static void test_env_incomplete_set_names_the_missing_variable(void **state)
{
    (void)state;
#define NEEDS                                                                                      \
    "; a job needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, a program on its own none of "   \
    "them"
    expect_error(ENV("RANK", "1"), "RANK is set but WORLD_SIZE is not" NEEDS);
    expect_error(ENV("WORLD_SIZE", "4"), "WORLD_SIZE is set but RANK is not" NEEDS);
    expect_error(ENV("MASTER_ADDR", "a"), "MASTER_ADDR is set but RANK is not" NEEDS);
    expect_error(ENV("RANK", "1", "WORLD_SIZE", "2"), "RANK is set but MASTER_ADDR is not" NEEDS);
    expect_error(ENV("RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "a"),
                 "MASTER_ADDR is set but MASTER_PORT is not" NEEDS);
}

static void test_env_invalid_values_are_refused_by_name(void **state)
{
    (void)state;
    expect_error(ENV(PLAIN("x", "4")), "RANK is 'x': not a number from 0 to 1048576");
    expect_error(ENV(PLAIN("-1", "4")), "RANK is '-1': not a number from 0 to 1048576");
    expect_error(ENV(PLAIN("4", "4")), "rank 4 is outside a world of 4; ranks count from 0");
    expect_error(ENV("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "70000"),
                 "MASTER_PORT is '70000': not a number from 0 to 65535");
}

static void test_env_world_of_one_without_servers_is_alone(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    assert_int_equal(resolve(ENV("RANK", "0", "WORLD_SIZE", "1"), &env, &why), PEN_OK);
    assert_true(env.alone);
    assert_int_equal(
        resolve_with((const char *const[]){"servers=1", NULL}, ENV(PLAIN("0", "1")), &env, &why),
        PEN_OK);
    assert_false(env.alone);
}

static void test_env_port_of_torchruns_agent_is_left_to_it(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    assert_int_equal(
        resolve(ENV(PLAIN("0", "2"), "TORCHELASTIC_USE_AGENT_STORE", "True"), &env, &why), PEN_OK);
    assert_int_equal(env.port, 29501);
    const char *const ported[] = {"port=4242", NULL};
    assert_int_equal(resolve_with(ported,
                                  ENV(PLAIN("0", "2"), "TORCHELASTIC_USE_AGENT_STORE", "True"),
                                  &env, &why),
                     PEN_OK);
    assert_int_equal(env.port, 4242);
}

static void test_env_beats_program_and_penstock_beats_both(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    const char *const settings[] = {"rank=7", "world_size=8", NULL};
    assert_int_equal(resolve_with(settings, ENV(PLAIN("1", "4")), &env, &why), PEN_OK);
    assert_int_equal(env.rank, 1);
    /* The settings hold the value of PENSTOCK_RANK: then the variable is set too. */
    assert_int_equal(resolve_with(settings, ENV(PLAIN("1", "9"), "PENSTOCK_RANK", "7"), &env, &why),
                     PEN_OK);
    assert_int_equal(env.rank, 7);
    assert_int_equal(env.world_size, 9);
}

/* ---- Slurm ----------------------------------------------------------------------------------- */
#define SLURM                                                                                      \
    "SLURM_PROCID", "2", "SLURM_STEP_NUM_TASKS", "4", "SLURM_STEP_ID", "0", "SLURM_LOCALID", "1",  \
        "SLURM_JOB_ID", "81234"

static void test_env_slurm_step_is_understood(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    assert_int_equal(resolve(ENV(SLURM, "SLURM_STEP_NODELIST", "node[03-07,12],x"), &env, &why),
                     PEN_OK);
    assert_false(env.alone);
    assert_int_equal(env.rank, 2);
    assert_int_equal(env.world_size, 4);
    assert_int_equal(env.local_rank, 1);
    assert_string_equal(env.addr, "node03");
    assert_int_equal(env.port, 16234);
    assert_string_equal(env.source, "SLURM_PROCID");
}

static void test_env_slurm_interactive_shell_is_alone(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    assert_int_equal(resolve(ENV("SLURM_PROCID", "0", "SLURM_NTASKS", "4"), &env, &why), PEN_OK);
    assert_true(env.alone);
    assert_int_equal(resolve(ENV(SLURM, "SLURM_JOB_NAME", "bash"), &env, &why), PEN_OK);
    assert_true(env.alone);
    assert_int_equal(resolve(ENV(SLURM, "SLURM_JOB_NAME", "interactive"), &env, &why), PEN_OK);
    assert_true(env.alone);
    assert_int_equal(
        resolve(ENV("SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1", "SLURM_STEP_ID", "0"), &env,
                &why),
        PEN_OK);
    assert_true(env.alone);
}

static void test_env_plain_beats_slurm(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    assert_int_equal(resolve(ENV(SLURM, PLAIN("1", "2")), &env, &why), PEN_OK);
    assert_int_equal(env.rank, 1);
    assert_int_equal(env.world_size, 2);
}

/* ---- OpenMPI --------------------------------------------------------------------------------- */
#define OMPI(local_rank, local_size)                                                               \
    "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_RANK",        \
        local_rank, "OMPI_COMM_WORLD_LOCAL_SIZE", local_size

static void test_env_openmpi_on_one_host_needs_no_address(void **state)
{
    (void)state;
    worker_env env;
    pen_error why;
    assert_int_equal(resolve(ENV(OMPI("1", "2")), &env, &why), PEN_OK);
    assert_int_equal(env.rank, 1);
    assert_int_equal(env.world_size, 2);
    assert_string_equal(env.addr, "127.0.0.1");
    assert_int_equal(env.port, 29500);
}

static void test_env_openmpi_on_two_hosts_needs_an_address(void **state)
{
    (void)state;
    expect_error(ENV(OMPI("0", "1")), "OMPI_COMM_WORLD_RANK is set but MASTER_ADDR is not" NEEDS);
    worker_env env;
    pen_error why;
    assert_int_equal(resolve(ENV(OMPI("0", "1"), "MASTER_ADDR", "head"), &env, &why), PEN_OK);
    assert_string_equal(env.addr, "head");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_env_empty_is_alone),
        cmocka_unit_test(test_env_rank_and_friends_are_taken),
        cmocka_unit_test(test_env_incomplete_set_names_the_missing_variable),
        cmocka_unit_test(test_env_invalid_values_are_refused_by_name),
        cmocka_unit_test(test_env_world_of_one_without_servers_is_alone),
        cmocka_unit_test(test_env_port_of_torchruns_agent_is_left_to_it),
        cmocka_unit_test(test_env_beats_program_and_penstock_beats_both),
        cmocka_unit_test(test_env_slurm_step_is_understood),
        cmocka_unit_test(test_env_slurm_interactive_shell_is_alone),
        cmocka_unit_test(test_env_plain_beats_slurm),
        cmocka_unit_test(test_env_openmpi_on_one_host_needs_no_address),
        cmocka_unit_test(test_env_openmpi_on_two_hosts_needs_an_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
