/* launch_test.c - rank and address for every role under every launcher, and Slurm's host lists. */
#include "common/launch/hostlist.h"
#include "common/launch/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *const *environment;

static const char *get(const char *name)
{
    for (const char *const *at = environment; *at != NULL; at += 2)
        if (strcmp(at[0], name) == 0) return at[1];
    return NULL;
}

#define ENV(...)                                                                                   \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static launch_place place;
static pen_error why;

static pen_status resolve(launch_role role, const char *const *values)
{
    const launch_told told = {.role = role};
    environment            = values;
    return launch_resolve(&told, get, &place, &why);
}

static void expect(launch_role role, const char *const *values)
{
    if (resolve(role, values) != PEN_OK) fail_msg("%s", why.text);
}

static void says(launch_item item, const char *text, const char *from)
{
    assert_string_equal(place.value[item].text, text);
    assert_string_equal(place.value[item].from, from);
}

static void expect_error(launch_role role, const char *const *values, const char *part)
{
    assert_int_equal(resolve(role, values), PEN_BAD_SETTING);
    if (strstr(why.text, part) == NULL) fail_msg("'%s' is not in '%s'", part, why.text);
}

static void expect_ignored(const char *name, const char *reason)
{
    for (uint32_t i = 0; i < place.n_ignored; i++) {
        if (strcmp(place.ignored[i].name, name) != 0) continue;
        assert_string_equal(place.ignored[i].why, reason);
        return;
    }
    fail_msg("%s is not among what is ignored", name);
}

/* ---- launchers of workers -------------------------------------------------------------------- */
static void test_launch_kubeflows_variables_mean_one_process_per_node(void **state)
{
    (void)state;
    expect(LAUNCH_WORKER, ENV("PET_NODE_RANK", "2", "PET_NNODES", "3", "PET_NPROC_PER_NODE", "1",
                              "PET_MASTER_ADDR", "job-node-0-0.job", "PET_MASTER_PORT", "29500"));
    says(LAUNCH_RANK, "2", "PET_NODE_RANK");
    says(LAUNCH_WORLD_SIZE, "3", "PET_NNODES");
    says(LAUNCH_ADDR, "job-node-0-0.job", "PET_MASTER_ADDR");
    says(LAUNCH_PORT, "29500", "PET_MASTER_PORT");
    assert_string_equal(place.launcher, "PET_*");
    expect_error(LAUNCH_WORKER,
                 ENV("PET_NODE_RANK", "0", "PET_NNODES", "2", "PET_NPROC_PER_NODE", "4"),
                 "PET_NPROC_PER_NODE is 4; start the program with `penstock run`");
}

/* Kubeflow Trainer sets PET_NPROC_PER_NODE to the number of processors by default. */
static void test_launch_one_process_per_node_overrides_kubeflow(void **state)
{
    (void)state;
    launch_told told = {.role = LAUNCH_WORKER};
    environment =
        ENV("PET_NODE_RANK", "0", "PET_NNODES", "2", "PET_NPROC_PER_NODE", "auto",
            "PENSTOCK_LOCAL_WORLD_SIZE", "1", "PET_MASTER_ADDR", "a", "PET_MASTER_PORT", "1");
    launch_tell(&told, LAUNCH_LOCAL_WORLD_SIZE, "local_world_size", "1", get);
    assert_int_equal(launch_resolve(&told, get, &place, &why), PEN_OK);
    says(LAUNCH_WORLD_SIZE, "2", "PET_NNODES");
    says(LAUNCH_LOCAL_WORLD_SIZE, "1", "PENSTOCK_LOCAL_WORLD_SIZE");
}

#define DMLC                                                                                       \
    "DMLC_PS_ROOT_URI", "10.1.2.3", "DMLC_PS_ROOT_PORT", "8000", "DMLC_NUM_WORKER", "4",           \
        "DMLC_NUM_SERVER", "2"

static void test_launch_names_of_ps_lite_serve_every_role(void **state)
{
    (void)state;
    expect(LAUNCH_WORKER, ENV(DMLC, "DMLC_ROLE", "worker", "DMLC_WORKER_ID", "3"));
    says(LAUNCH_RANK, "3", "DMLC_WORKER_ID");
    says(LAUNCH_WORLD_SIZE, "4", "DMLC_NUM_WORKER");
    says(LAUNCH_SERVERS, "2", "DMLC_NUM_SERVER");
    assert_false(place.is_alone);
    expect(LAUNCH_SERVER, ENV(DMLC, "DMLC_ROLE", "server", "DMLC_NODE_HOST", "10.1.2.4"));
    says(LAUNCH_RANK, "", "");
    says(LAUNCH_ADDR, "10.1.2.3", "DMLC_PS_ROOT_URI");
    says(LAUNCH_HOST, "10.1.2.4", "DMLC_NODE_HOST");
    expect(LAUNCH_SCHEDULER, ENV(DMLC, "DMLC_ROLE", "scheduler"));
    says(LAUNCH_PORT, "8000", "DMLC_PS_ROOT_PORT");
    says(LAUNCH_HOST, "10.1.2.3", "DMLC_PS_ROOT_URI");
    says(LAUNCH_SERVERS, "2", "DMLC_NUM_SERVER");
}

static void test_launch_an_unknown_role_is_refused(void **state)
{
    (void)state;
    expect_error(LAUNCH_WORKER, ENV(DMLC, "DMLC_ROLE", "server", "DMLC_WORKER_ID", "0"),
                 "DMLC_ROLE is 'server', but this process is a worker");
    expect_error(LAUNCH_SERVER, ENV(DMLC, "DMLC_ROLE", "worker"),
                 "DMLC_ROLE is 'worker', but this process is a server");
    expect(LAUNCH_SERVER, ENV("DMLC_ROLE", "worker", "MASTER_ADDR", "a", "MASTER_PORT", "7"));
}

static void test_launch_a_worker_without_a_rank_never_trains_alone_by_accident(void **state)
{
    (void)state;
    expect_error(LAUNCH_WORKER, ENV(DMLC, "DMLC_ROLE", "worker"),
                 "DMLC_NUM_WORKER is set but DMLC_WORKER_ID is not");
    expect_error(LAUNCH_WORKER, ENV("PMIX_RANK", "1"), "PMIX_RANK is set but PMI_SIZE is not");
}

static void test_launch_an_indexed_job_works_beside_a_world_size(void **state)
{
    (void)state;
    expect(LAUNCH_WORKER, ENV("JOB_COMPLETION_INDEX", "1", "WORLD_SIZE", "2", "MASTER_ADDR",
                              "train-0.train", "MASTER_PORT", "29500"));
    says(LAUNCH_RANK, "1", "JOB_COMPLETION_INDEX");
    says(LAUNCH_WORLD_SIZE, "2", "WORLD_SIZE");
    assert_false(place.is_alone);
    expect(LAUNCH_WORKER, ENV("JOB_COMPLETION_INDEX", "1"));
    assert_true(place.is_alone);
    expect_ignored("JOB_COMPLETION_INDEX",
                   "without WORLD_SIZE the pods of a Job have nothing to do with each other");
}

#define STEP                                                                                       \
    "SLURM_JOB_ID", "81234", "SLURM_STEP_ID", "2", "SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS",    \
        "4", "SLURM_LOCALID", "0", "SLURM_NODEID", "1", "SLURM_STEP_NUM_NODES", "2",               \
        "SLURM_STEP_TASKS_PER_NODE", "3,1", "SLURM_JOB_NODELIST", "n[1-3]", "SLURM_STEP_NODELIST", \
        "n[2-3]"

static void test_launch_slurm_gives_all_numbers_even_if_tasks_are_uneven(void **state)
{
    (void)state;
    expect(LAUNCH_WORKER, ENV(STEP));
    says(LAUNCH_RANK, "3", "SLURM_PROCID");
    says(LAUNCH_LOCAL_WORLD_SIZE, "1", "SLURM_STEP_TASKS_PER_NODE");
    says(LAUNCH_NODE, "1", "SLURM_NODEID");
    says(LAUNCH_NODES, "2", "SLURM_STEP_NUM_NODES");
    says(LAUNCH_ADDR, "n2", "SLURM_STEP_NODELIST");
    says(LAUNCH_PORT, "16234", "SLURM_JOB_ID");
    expect(LAUNCH_SERVER, ENV(STEP));
    says(LAUNCH_RANK, "3", "SLURM_PROCID");
    says(LAUNCH_ADDR, "n1", "SLURM_JOB_NODELIST");
}

static void test_launch_slurms_scheduler_is_on_the_first_host_when_it_is_external(void **state)
{
    (void)state;
    const launch_told told = {.role = LAUNCH_WORKER, .is_external = true};
    environment            = ENV(STEP);
    assert_int_equal(launch_resolve(&told, get, &place, &why), PEN_OK);
    says(LAUNCH_ADDR, "n1", "SLURM_JOB_NODELIST");
}

static void test_launch_variables_of_two_launchers_are_never_mixed(void **state)
{
    (void)state;
    expect(LAUNCH_WORKER, ENV(STEP, "RANK", "5", "WORLD_SIZE", "8", "MASTER_ADDR", "head",
                              "MASTER_PORT", "29500"));
    says(LAUNCH_RANK, "5", "RANK");
    says(LAUNCH_WORLD_SIZE, "8", "WORLD_SIZE");
    says(LAUNCH_NODE, "", "");
    expect_ignored("SLURM_PROCID", "RANK");
    expect_ignored("SLURM_NODEID", "torchrun's names");
    expect_error(LAUNCH_WORKER, ENV(STEP, "WORLD_SIZE", "8"),
                 "WORLD_SIZE is 8 but SLURM_STEP_NUM_TASKS is 4; unset the wrong one");
    expect(LAUNCH_WORKER, ENV(STEP, "WORLD_SIZE", "4", "MASTER_ADDR", "head"));
    says(LAUNCH_ADDR, "head", "MASTER_ADDR");
}

static void test_launch_mpirun_in_a_slurm_job_is_mpirun(void **state)
{
    (void)state;
    expect(LAUNCH_WORKER, ENV(STEP, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2",
                              "OMPI_COMM_WORLD_LOCAL_RANK", "1", "OMPI_COMM_WORLD_LOCAL_SIZE", "2",
                              "OMPI_COMM_WORLD_NODE_RANK", "1", "PMIX_NAMESPACE", "1234500001"));
    says(LAUNCH_RANK, "1", "OMPI_COMM_WORLD_RANK");
    says(LAUNCH_ADDR, "127.0.0.1", "OMPI_COMM_WORLD_LOCAL_SIZE");
    says(LAUNCH_PORT, "15001", "PMIX_NAMESPACE");
    says(LAUNCH_NODE, "", ""); /* Open MPI's NODE_RANK is a rank within the node */
    expect_ignored("SLURM_PROCID", "mpirun started this process, and its daemon is Slurm's task");
}

static void test_launch_pmi_of_an_interactive_slurm_shell_is_ignored(void **state)
{
    (void)state;
    expect(LAUNCH_WORKER, ENV("SLURM_JOB_ID", "7", "SLURM_JOB_NAME", "bash", "PMIX_RANK", "0"));
    assert_true(place.is_alone);
    expect(LAUNCH_WORKER, ENV("PMI_RANK", "1", "PMI_SIZE", "2", "MASTER_ADDR", "head"));
    says(LAUNCH_RANK, "1", "PMI_RANK");
    says(LAUNCH_PORT, "29500", "the default");
}

/* ---- servers and the scheduler --------------------------------------------------------------- */
static void test_launch_servers_of_a_stateful_set_have_its_ordinals(void **state)
{
    (void)state;
    expect(LAUNCH_SERVER, ENV("POD_NAME", "penstock-server-12", "MASTER_ADDR", "penstock-scheduler",
                              "MASTER_PORT", "29500"));
    says(LAUNCH_RANK, "12", "POD_NAME");
    says(LAUNCH_ADDR, "penstock-scheduler", "MASTER_ADDR");
    expect(LAUNCH_SERVER, ENV("KUBERNETES_SERVICE_HOST", "10.0.0.1", "HOSTNAME", "ps-1"));
    says(LAUNCH_RANK, "1", "HOSTNAME");
    expect(LAUNCH_SERVER, ENV("POD_NAME", "server-7d4f9c-x2b7q"));
    says(LAUNCH_RANK, "", "");
    expect(LAUNCH_SERVER, ENV("HOSTNAME", "ps-1")); /* any host may have this name */
    says(LAUNCH_RANK, "", "");
}

static void test_launch_a_server_without_variables_dials_this_host(void **state)
{
    (void)state;
    expect(LAUNCH_SERVER, ENV("HOME", "/"));
    says(LAUNCH_ADDR, "127.0.0.1", "the default");
    says(LAUNCH_PORT, "29400", "the default");
    expect(LAUNCH_SCHEDULER, ENV("HOME", "/"));
    says(LAUNCH_PORT, "", "");
}

static void test_launch_one_server_in_its_own_step_takes_the_free_rank(void **state)
{
    (void)state;
    expect(LAUNCH_SERVER, ENV("SLURM_JOB_ID", "7", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0",
                              "SLURM_STEP_NUM_TASKS", "1", "SLURM_JOB_NODELIST", "x"));
    says(LAUNCH_RANK, "", "");
    says(LAUNCH_ADDR, "x", "SLURM_JOB_NODELIST");
}

static void test_launch_explicit_settings_come_first_with_their_source(void **state)
{
    (void)state;
    launch_told told = {.role = LAUNCH_SERVER};
    environment      = ENV("PENSTOCK_RANK", "2", "MASTER_ADDR", "a", "MASTER_PORT", "1");
    launch_tell(&told, LAUNCH_RANK, "rank", "2", get);
    launch_tell(&told, LAUNCH_ADDR, "master_addr", "b", get);
    assert_int_equal(launch_resolve(&told, get, &place, &why), PEN_OK);
    says(LAUNCH_RANK, "2", "PENSTOCK_RANK");
    says(LAUNCH_ADDR, "b", "--master-addr");
    says(LAUNCH_PORT, "1", "MASTER_PORT");
    expect_ignored("MASTER_ADDR", "--master-addr");
}

static void test_launch_a_name_that_is_too_long_for_a_host_is_refused(void **state)
{
    (void)state;
    char name[300];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    expect_error(LAUNCH_SERVER, ENV("MASTER_ADDR", name),
                 "MASTER_ADDR is too long for a host name");
}

/* ---- lists of hosts -------------------------------------------------------------------------- */
static void expect_hosts(const char *list, const char *const *hosts)
{
    char host[64];
    uint64_t i = 0;
    for (; hosts[i] != NULL; i++) {
        assert_true(hostlist_at(list, i, host, sizeof host));
        assert_string_equal(host, hosts[i]);
    }
    assert_false(hostlist_at(list, i, host, sizeof host));
}

static void test_launch_brackets_turn_into_hosts_in_order(void **state)
{
    (void)state;
    expect_hosts("a", ENV("a"));
    expect_hosts("n[1-3,7,010-012],x", ENV("n1", "n2", "n3", "n7", "n010", "n011", "n012", "x"));
    expect_hosts("n[9-11]", ENV("n9", "n10", "n11"));
    expect_hosts("r[1-2]n[08-09]z", ENV("r1n08z", "r1n09z", "r2n08z", "r2n09z"));
    char host[64];
    assert_true(hostlist_at("n[0-999999999],x", 999999999, host, sizeof host));
    assert_string_equal(host, "n999999999");
    assert_false(hostlist_at("far-too-long", 0, host, 4));
}

static void test_launch_malformed_lists_have_no_hosts(void **state)
{
    (void)state;
    static const char *const lists[] = {
        "",      ",a",   "n[",   "n[]",   "n[1",      "n[1-]", "n[3-1]",
        "n[1,]", "n]1[", "n[a]", "n[-1]", "n[1-2-3]", "n[1]]", "[0-99999999999999999999]"};
    char host[64];
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (hostlist_at(lists[i], 0, host, sizeof host)) fail_msg("%s: %s", lists[i], host);
}

static void test_launch_tasks_of_each_node_are_counted(void **state)
{
    (void)state;
    assert_int_equal(hostlist_tasks("3,1", 0), 3);
    assert_int_equal(hostlist_tasks("3,1", 1), 1);
    assert_int_equal(hostlist_tasks("3,1", 2), -1);
    assert_int_equal(hostlist_tasks("2(x3),1", 2), 2);
    assert_int_equal(hostlist_tasks("2(x3),1", 3), 1);
    assert_int_equal(hostlist_tasks("2(x", 0), -1);
    assert_int_equal(hostlist_tasks("2x", 1), -1);
    assert_int_equal(hostlist_tasks("", 0), -1);
}

/* With a list as argument it prints its hosts; tests/fleet/slurm.bats compares them with Slurm's own. */
static int print_hosts(const char *list)
{
    char host[64];
    for (uint64_t i = 0; hostlist_at(list, i, host, sizeof host); i++) printf("%s\n", host);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) return print_hosts(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch_kubeflows_variables_mean_one_process_per_node),
        cmocka_unit_test(test_launch_one_process_per_node_overrides_kubeflow),
        cmocka_unit_test(test_launch_names_of_ps_lite_serve_every_role),
        cmocka_unit_test(test_launch_an_unknown_role_is_refused),
        cmocka_unit_test(test_launch_a_worker_without_a_rank_never_trains_alone_by_accident),
        cmocka_unit_test(test_launch_an_indexed_job_works_beside_a_world_size),
        cmocka_unit_test(test_launch_slurm_gives_all_numbers_even_if_tasks_are_uneven),
        cmocka_unit_test(test_launch_slurms_scheduler_is_on_the_first_host_when_it_is_external),
        cmocka_unit_test(test_launch_variables_of_two_launchers_are_never_mixed),
        cmocka_unit_test(test_launch_mpirun_in_a_slurm_job_is_mpirun),
        cmocka_unit_test(test_launch_pmi_of_an_interactive_slurm_shell_is_ignored),
        cmocka_unit_test(test_launch_servers_of_a_stateful_set_have_its_ordinals),
        cmocka_unit_test(test_launch_a_server_without_variables_dials_this_host),
        cmocka_unit_test(test_launch_one_server_in_its_own_step_takes_the_free_rank),
        cmocka_unit_test(test_launch_explicit_settings_come_first_with_their_source),
        cmocka_unit_test(test_launch_a_name_that_is_too_long_for_a_host_is_refused),
        cmocka_unit_test(test_launch_brackets_turn_into_hosts_in_order),
        cmocka_unit_test(test_launch_malformed_lists_have_no_hosts),
        cmocka_unit_test(test_launch_tasks_of_each_node_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
