/* launch_names.c - the launchers Penstock knows, and what their variables mean.
 *
 * DESIGN A launcher is present if its variables show that it started this process.  A set variable alone is not
 * enough: Slurm leaves its variables in interactive shells, and in the daemons through which mpirun starts remote
 * ranks; an Indexed Job numbers pods that may be unrelated.
 */
#include "common/launch/launch_names.h"
#include "common/launch/hostlist.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- detecting the launcher ------------------------------------------------------------------ */
static bool is_any_set(launch_get get, const char *const *names)
{
    for (; *names != NULL; names++)
        if (get(*names) != NULL) return true;
    return false;
}

/* For workers only: on a server, MASTER_ADDR is just an address. */
static bool is_plain(const launch_told *told, launch_get get, const char **ignored)
{
    static const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", NULL};
    (void)ignored;
    return told->role == LAUNCH_WORKER && is_any_set(get, names);
}

static bool is_pet(const launch_told *told, launch_get get, const char **ignored)
{
    (void)told, (void)ignored;
    return get("PET_NODE_RANK") != NULL;
}

static bool is_dmlc(const launch_told *told, launch_get get, const char **ignored)
{
    static const char *const names[] = {"DMLC_PS_ROOT_URI", "DMLC_TRACKER_URI", "DMLC_NUM_WORKER",
                                        NULL};
    (void)told, (void)ignored;
    return is_any_set(get, names);
}

static bool is_kubernetes(const launch_told *told, launch_get get, const char **ignored)
{
    const bool is_job = get("JOB_COMPLETION_INDEX") != NULL;
    if (told->role == LAUNCH_SERVER)
        return is_job || get("POD_NAME") != NULL || get("KUBERNETES_SERVICE_HOST") != NULL;
    if (told->role != LAUNCH_WORKER || !is_job) return false;
    if (get("WORLD_SIZE") != NULL || told->value[LAUNCH_WORLD_SIZE].text[0] != '\0') return true;
    *ignored = "without WORLD_SIZE the pods of a Job have nothing to do with each other";
    return false;
}

static bool is_interactive(launch_get get)
{
    const char *name = get("SLURM_JOB_NAME");
    return get("SLURM_PTY_PORT") != NULL ||
           (name != NULL && (strcmp(name, "bash") == 0 || strcmp(name, "interactive") == 0));
}

static bool is_step(launch_get get)
{
    return get("SLURM_STEP_ID") != NULL || get("SLURM_STEPID") != NULL;
}

static bool is_of_several(launch_get get)
{
    const char *tasks = get("SLURM_STEP_NUM_TASKS");
    return tasks != NULL && atoi(tasks) >= 2;
}

static bool is_slurm(const launch_told *told, launch_get get, const char **ignored)
{
    if (get("SLURM_PROCID") == NULL && get("SLURM_JOB_ID") == NULL) return false;
    if (get("OMPI_COMM_WORLD_RANK") != NULL)
        *ignored = "mpirun started this process, and its daemon is Slurm's task";
    else if (is_interactive(get))
        *ignored = "an interactive shell: there Slurm's variables describe nobody";
    else if (told->role != LAUNCH_SCHEDULER && !is_step(get))
        *ignored = "not in a job step; start it with srun";
    else if (told->role == LAUNCH_WORKER && !is_of_several(get))
        *ignored = "the job step has one task";
    else
        return told->role != LAUNCH_WORKER || get("SLURM_PROCID") != NULL;
    return false;
}

static bool is_ompi(const launch_told *told, launch_get get, const char **ignored)
{
    (void)told, (void)ignored;
    return get("OMPI_COMM_WORLD_RANK") != NULL;
}

static bool is_pmi(const launch_told *told, launch_get get, const char **ignored)
{
    (void)told;
    if (get("PMI_RANK") == NULL && get("PMIX_RANK") == NULL) return false;
    if (get("SLURM_JOB_ID") == NULL) return true;
    *ignored = "Slurm sets it in interactive shells, too, and says the same itself";
    return false;
}

const launcher_row launcher_rows[LAUNCHERS] = {
    [LAUNCHER_PLAIN]      = {"torchrun's names", is_plain, true},
    [LAUNCHER_PET]        = {"PET_*", is_pet, true},
    [LAUNCHER_DMLC]       = {"DMLC_* of ps-lite", is_dmlc, true},
    [LAUNCHER_KUBERNETES] = {"Kubernetes", is_kubernetes, false},
    [LAUNCHER_SLURM]      = {"Slurm", is_slurm, true},
    [LAUNCHER_OMPI]       = {"Open MPI", is_ompi, true},
    [LAUNCHER_PMI]        = {"PMI and PMIx", is_pmi, true},
};

/* ---- values derived from a variable ---------------------------------------------------------- */
static bool read_first_host(const launch_told *told, launch_get get, const char *text, char *value,
                            size_t size)
{
    (void)told, (void)get;
    return hostlist_at(text, 0, value, size);
}

/* Rank 0 is on the first host of its step, not always the first of the job. */
static bool read_step_host(const launch_told *told, launch_get get, const char *text, char *value,
                           size_t size)
{
    return !told->is_external && read_first_host(told, get, text, value, size);
}

/* Two jobs of one host need different ports; all processes of a job need the same. */
static bool read_job_port(const launch_told *told, launch_get get, const char *text, char *value,
                          size_t size)
{
    (void)told, (void)get;
    uint64_t number = 0;
    for (const char *at = text; *at != '\0'; at++) {
        const bool is_digit = *at >= '0' && *at <= '9';
        number              = number % 1000000000 * (is_digit ? 10 : 31) +
                 (uint64_t)(is_digit ? *at - '0' : (unsigned char)*at);
    }
    snprintf(value, size, "%" PRIu64, 15000 + number % 10000);
    return text[0] != '\0';
}

static bool read_tasks_here(const launch_told *told, launch_get get, const char *text, char *value,
                            size_t size)
{
    (void)told;
    const char *node = get("SLURM_NODEID");
    if (node == NULL) return false;
    const int64_t tasks = hostlist_tasks(text, strtoull(node, NULL, 10));
    snprintf(value, size, "%" PRId64, tasks);
    return tasks > 0;
}

/* Two steps with one server each would both be rank 0. */
static bool read_if_several(const launch_told *told, launch_get get, const char *text, char *value,
                            size_t size)
{
    (void)told;
    snprintf(value, size, "%s", text);
    return is_of_several(get);
}

/* "penstock-server-2" is the third pod of a StatefulSet; pods of other kinds end in letters or long numbers. */
static bool read_ordinal(const launch_told *told, launch_get get, const char *text, char *value,
                         size_t size)
{
    (void)told, (void)get;
    const char *dash = strrchr(text, '-');
    if (dash == NULL) return false;
    const size_t digits = strspn(dash + 1, "0123456789");
    snprintf(value, size, "%s", dash + 1);
    return digits > 0 && digits < 5 && dash[1 + digits] == '\0';
}

/* With all ranks here the scheduler is here too; otherwise Open MPI does not reveal the host of rank 0. */
static bool read_here(const launch_told *told, launch_get get, const char *text, char *value,
                      size_t size)
{
    (void)told;
    const char *all = get("OMPI_COMM_WORLD_SIZE");
    snprintf(value, size, "127.0.0.1");
    return all != NULL && strcmp(all, text) == 0;
}

/* ---- the table ------------------------------------------------------------------------------- */
enum { W = LAUNCH_WORKER, S = LAUNCH_SERVER, C = LAUNCH_SCHEDULER };

/* clang-format off */
const launch_name launch_names[] = {
    {LAUNCHER_PLAIN,      LAUNCH_RANK,             W,         "RANK",                       NULL, NULL},
    {LAUNCHER_PLAIN,      LAUNCH_WORLD_SIZE,       W | C,     "WORLD_SIZE",                 NULL, NULL},
    {LAUNCHER_PLAIN,      LAUNCH_LOCAL_RANK,       W,         "LOCAL_RANK",                 NULL, NULL},
    {LAUNCHER_PLAIN,      LAUNCH_LOCAL_WORLD_SIZE, W,         "LOCAL_WORLD_SIZE",           NULL, NULL},
    {LAUNCHER_PLAIN,      LAUNCH_NODE,             W,         "GROUP_RANK",                 NULL, NULL},
    {LAUNCHER_PLAIN,      LAUNCH_NODES,            W,         "GROUP_WORLD_SIZE",           NULL, NULL},
    {LAUNCHER_PLAIN,      LAUNCH_ADDR,             W | S,     "MASTER_ADDR",                NULL, NULL},
    {LAUNCHER_PLAIN,      LAUNCH_PORT,             W | S | C, "MASTER_PORT",                NULL, NULL},

    {LAUNCHER_PET,        LAUNCH_RANK,             W,         "PET_NODE_RANK",              NULL, "with one process per node"},
    {LAUNCHER_PET,        LAUNCH_WORLD_SIZE,       W,         "PET_NNODES",                 NULL, "with one process per node"},
    {LAUNCHER_PET,        LAUNCH_LOCAL_WORLD_SIZE, W,         "PET_NPROC_PER_NODE",         NULL, "more than 1 is for `penstock run`"},
    {LAUNCHER_PET,        LAUNCH_NODE,             W,         "PET_NODE_RANK",              NULL, NULL},
    {LAUNCHER_PET,        LAUNCH_NODES,            W,         "PET_NNODES",                 NULL, NULL},
    {LAUNCHER_PET,        LAUNCH_ADDR,             W | S,     "PET_MASTER_ADDR",            NULL, NULL},
    {LAUNCHER_PET,        LAUNCH_PORT,             W | S | C, "PET_MASTER_PORT",            NULL, NULL},

    {LAUNCHER_DMLC,       LAUNCH_RANK,             W,         "DMLC_WORKER_ID",             NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_RANK,             S,         "DMLC_SERVER_ID",             NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_RANK,             W | S,     "DMLC_RANK",                  NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_RANK,             W | S,     "DMLC_TASK_ID",               NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_WORLD_SIZE,       W | C,     "DMLC_NUM_WORKER",            NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_SERVERS,          W | C,     "DMLC_NUM_SERVER",            NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_ADDR,             W | S,     "DMLC_PS_ROOT_URI",           NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_ADDR,             W | S,     "DMLC_TRACKER_URI",           NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_PORT,             W | S | C, "DMLC_PS_ROOT_PORT",          NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_PORT,             W | S | C, "DMLC_TRACKER_PORT",          NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_HOST,             W | S,     "DMLC_NODE_HOST",             NULL, NULL},
    {LAUNCHER_DMLC,       LAUNCH_HOST,             C,         "DMLC_PS_ROOT_URI",           NULL, "where it listens"},

    {LAUNCHER_KUBERNETES, LAUNCH_RANK,             W | S,     "JOB_COMPLETION_INDEX",       NULL, "of an Indexed Job; of a worker only beside WORLD_SIZE"},
    {LAUNCHER_KUBERNETES, LAUNCH_RANK,             S,         "POD_NAME",                   read_ordinal, "the number at its end, in a StatefulSet"},
    {LAUNCHER_KUBERNETES, LAUNCH_RANK,             S,         "HOSTNAME",                   read_ordinal, "the same"},

    {LAUNCHER_SLURM,      LAUNCH_RANK,             W | S,     "SLURM_PROCID",               read_if_several, "in a job step of several tasks"},
    {LAUNCHER_SLURM,      LAUNCH_WORLD_SIZE,       W,         "SLURM_STEP_NUM_TASKS",       NULL, NULL},
    {LAUNCHER_SLURM,      LAUNCH_LOCAL_RANK,       W,         "SLURM_LOCALID",              NULL, NULL},
    {LAUNCHER_SLURM,      LAUNCH_LOCAL_WORLD_SIZE, W,         "SLURM_STEP_TASKS_PER_NODE",  read_tasks_here, "the entry of this node in a list such as 3,1 or 2(x4)"},
    {LAUNCHER_SLURM,      LAUNCH_NODE,             W,         "SLURM_NODEID",               NULL, NULL},
    {LAUNCHER_SLURM,      LAUNCH_NODES,            W,         "SLURM_STEP_NUM_NODES",       NULL, NULL},
    {LAUNCHER_SLURM,      LAUNCH_ADDR,             W,         "SLURM_STEP_NODELIST",        read_step_host, "its first host; not with scheduler=external"},
    {LAUNCHER_SLURM,      LAUNCH_ADDR,             W | S,     "SLURM_JOB_NODELIST_HET_GROUP_0", read_first_host, "its first host"},
    {LAUNCHER_SLURM,      LAUNCH_ADDR,             W | S,     "SLURM_JOB_NODELIST",         read_first_host, "its first host"},
    {LAUNCHER_SLURM,      LAUNCH_PORT,             W | S | C, "SLURM_HET_JOB_ID",           read_job_port, "15000 and its last four digits"},
    {LAUNCHER_SLURM,      LAUNCH_PORT,             W | S | C, "SLURM_JOB_ID",               read_job_port, "15000 and its last four digits"},

    {LAUNCHER_OMPI,       LAUNCH_RANK,             W | S,     "OMPI_COMM_WORLD_RANK",       NULL, NULL},
    {LAUNCHER_OMPI,       LAUNCH_WORLD_SIZE,       W,         "OMPI_COMM_WORLD_SIZE",       NULL, NULL},
    {LAUNCHER_OMPI,       LAUNCH_LOCAL_RANK,       W,         "OMPI_COMM_WORLD_LOCAL_RANK", NULL, NULL},
    {LAUNCHER_OMPI,       LAUNCH_LOCAL_WORLD_SIZE, W,         "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
    {LAUNCHER_OMPI,       LAUNCH_ADDR,             W,         "OMPI_COMM_WORLD_LOCAL_SIZE", read_here, "127.0.0.1 when all ranks are on this host"},
    {LAUNCHER_OMPI,       LAUNCH_PORT,             W,         "PMIX_NAMESPACE",             read_job_port, "a number from 15000 to 24999 made of it"},

    {LAUNCHER_PMI,        LAUNCH_RANK,             W | S,     "PMI_RANK",                   NULL, NULL},
    {LAUNCHER_PMI,        LAUNCH_RANK,             W | S,     "PMIX_RANK",                  NULL, NULL},
    {LAUNCHER_PMI,        LAUNCH_WORLD_SIZE,       W,         "PMI_SIZE",                   NULL, NULL},
    {LAUNCHER_PMI,        LAUNCH_LOCAL_RANK,       W,         "MPI_LOCALRANKID",            NULL, NULL},
    {LAUNCHER_PMI,        LAUNCH_LOCAL_WORLD_SIZE, W,         "MPI_LOCALNRANKS",            NULL, NULL},
    {0},
};
/* clang-format on */
