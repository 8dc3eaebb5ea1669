/* k8s.c - adapts the manifests of deploy/k8s/base to a command line.
 *
 * DESIGN.  There is one set of manifests, which users can read, apply and patch without this command.  It is built into
 * the program as text (scripts/cmake/embed.cmake).  The command line sets name, settings, numbers of pods, program,
 * image and store; everything else (probes, permissions, limits) stays.  Settings from flags, files and the environment
 * are in PENSTOCK_* by now (cli/run/files.c) and go into the ConfigMap, except those that each pod sets itself.
 */
#include "cli/command.h"
#include "cli/emit/emit.h"
#include "cli/emit/yaml_tree.h"
#include "common/base/why.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MANIFESTS_MAX = 32, NAME_CHARS = 40 };

#define CONTAINER "spec.template.spec.containers.0"

extern const char emit_k8s_base[]; /* written by the build */

typedef struct {
    yaml_tree *all[MANIFESTS_MAX];
    size_t n;
    char name[NAME_CHARS + 1];
    bool failed; /* a path is missing: the manifests changed without this file */
} manifests;

/* ---- names ----------------------------------------------------------------------------------------------- */

/* A Kubernetes name: lower-case letters, digits and dashes, starting with a letter. */
static void choose_name(const run_options *o, char name[NAME_CHARS + 1])
{
    const char *from  = o->job != NULL ? o->job : o->program[0];
    const char *slash = strrchr(from, '/');
    size_t n          = 0;
    for (from = slash != NULL ? slash + 1 : from; *from != '\0' && n < NAME_CHARS; from++) {
        const char c = (char)tolower((unsigned char)*from);
        if (islower((unsigned char)c) || (n > 0 && isdigit((unsigned char)c)))
            name[n++] = c;
        else if (n > 0 && name[n - 1] != '-')
            name[n++] = '-';
    }
    while (n > 0 && name[n - 1] == '-') n--;
    name[n] = '\0';
    if (n == 0) snprintf(name, NAME_CHARS + 1, "job");
}

/* "penstock-server" becomes "NAME-server" anywhere in a text. */
static char *rename_one(void *user, const char *key, const char *text)
{
    const manifests *m      = user;
    static const char old[] = "penstock-";
    const char *there       = strstr(text, old);
    char *made              = NULL;
    if (key != NULL && strcmp(key, "app.kubernetes.io/instance") == 0) return strdup(m->name);
    if (there == NULL || (key != NULL && strcmp(key, "image") == 0)) return NULL;
    if (asprintf(&made, "%.*s%s-%s", (int)(there - text), text, m->name, there + sizeof old - 1) <
        0)
        return NULL;
    return made;
}

static yaml_tree *find_manifest(manifests *m, const char *kind, const char *role)
{
    char name[NAME_CHARS + 16];
    snprintf(name, sizeof name, "%s-%s", m->name, role);
    for (size_t i = 0; i < m->n; i++) {
        const char *k = yaml_tree_text(m->all[i], "kind"),
                   *n = yaml_tree_text(m->all[i], "metadata.name");
        if (k != NULL && n != NULL && strcmp(k, kind) == 0 && strcmp(n, name) == 0)
            return m->all[i];
    }
    m->failed = true;
    return NULL;
}

static void drop(manifests *m, const char *kind, const char *role)
{
    yaml_tree *gone = find_manifest(m, kind, role);
    size_t kept     = 0;
    for (size_t i = 0; i < m->n; i++)
        if (m->all[i] != gone) m->all[kept++] = m->all[i];
    m->n = kept;
    yaml_tree_free(gone);
}

static void must(manifests *m, bool done)
{
    m->failed = m->failed || !done;
}

static void set_number(manifests *m, yaml_tree *tree, const char *path, long value)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", value);
    must(m, tree != NULL && yaml_tree_set(tree, path, text, false));
}

/* ---- settings -------------------------------------------------------------------------------------------- */

/* Settings that each pod sets itself: its rank and address, and files of this machine. */
static bool is_of_the_pod(const char *setting)
{
    static const char *const names[] = {
        "rank",        "world_size",  "local_rank",      "local_world_size",
        "servers",     "host",        "host_id",         "port",
        "scheduler",   "master_addr", "master_port",     "secret_file",
        "http",        "state",       "http_token_file", "config",
        "store",       "job",         "workers_max",     "workers_min",
        "servers_max", NULL};
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], setting) == 0) return true;
    return false;
}

static void put_setting(manifests *m, yaml_tree *settings, const char *setting, const char *value)
{
    char variable[CONFIG_VARIABLE_BYTES], path[sizeof variable + 8];
    config_variable(setting, variable);
    snprintf(path, sizeof path, "data.%s", variable);
    must(m, yaml_tree_set(settings, path, value, true));
}

static void put_number(manifests *m, yaml_tree *settings, const char *setting, long value)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", value);
    put_setting(m, settings, setting, text);
}

static void put_given(manifests *m, yaml_tree *settings)
{
    for (int i = 0; command_tables[i] != NULL; i++) {
        for (const config_row *row = command_tables[i]; row->name != NULL; row++) {
            const char *value = config_env_of(row->name);
            if (value != NULL && !is_of_the_pod(row->name))
                put_setting(m, settings, row->name, value);
        }
    }
}

/* What the launcher in each pod reads: MIN:N:MAX, or one number. */
static void put_range(manifests *m, yaml_tree *settings, const char *variable, int min, int now,
                      int max)
{
    char text[48], path[40];
    if (min == max)
        snprintf(text, sizeof text, "%d", now);
    else
        snprintf(text, sizeof text, "%d:%d:%d", min, now, max);
    snprintf(path, sizeof path, "data.%s", variable);
    must(m, yaml_tree_set(settings, path, text, true));
}

static void put_settings(manifests *m, const run_options *o)
{
    yaml_tree *settings = find_manifest(m, "ConfigMap", "settings");
    if (settings == NULL) return;
    char wait[24];
    snprintf(wait, sizeof wait, "%s", yaml_tree_text(settings, "data.PENSTOCK_INIT_TIMEOUT_MS"));
    must(m, yaml_tree_clear(settings, "data"));
    put_setting(m, settings, "job", m->name);
    put_range(m, settings, "PET_NNODES", o->nnodes, o->nnodes, o->nnodes_max);
    put_range(m, settings, "PET_NPROC_PER_NODE", o->nproc_min, o->nproc, o->nproc_max);
    put_number(m, settings, "world_size", (long)o->nproc * o->nnodes);
    put_number(m, settings, "servers", o->servers);
    put_setting(m, settings, "init_timeout_ms", wait); /* a later flag overrides it */
    if (o->replicas > 0) put_number(m, settings, "replicas", o->replicas);
    if (o->mode != NULL) put_setting(m, settings, "mode", o->mode);
    if (o->resume) put_setting(m, settings, "resume", "yes");
    if (o->fresh) put_setting(m, settings, "fresh", "yes");
    if (run_options_is_elastic(o)) {
        put_number(m, settings, "workers_min", (long)o->nproc_min * o->nnodes);
        put_number(m, settings, "workers_max", (long)o->nproc_max * o->nnodes_max);
        put_number(m, settings, "servers_max", o->servers_max);
    }
    put_given(m, settings);
}

/* ---- pods ------------------------------------------------------------------------------------------------ */

static void put_store(manifests *m, const run_options *o, yaml_tree *server, yaml_tree *worker)
{
    static const char *const mount[]  = {"name", "store", "mountPath", "/store", NULL};
    static const char *const folder[] = {"name", "PENSTOCK_STORE", "value", "/store", NULL};
    yaml_tree *writer                 = server != NULL ? server : worker;
    if (o->store == NULL) {
        drop(m, "PersistentVolumeClaim", "store");
        if (server == NULL) return;
        must(m, yaml_tree_drop(server, CONTAINER ".env", "PENSTOCK_STORE"));
        must(m, yaml_tree_drop(server, CONTAINER ".volumeMounts", "store"));
        must(m, yaml_tree_drop(server, "spec.template.spec.volumes", "store"));
        return;
    }
    fprintf(stderr, "penstock: the store is the volume %s-store, mounted by all pods\n", m->name);
    if (writer == server) return;
    char claim[NAME_CHARS + 16];
    snprintf(claim, sizeof claim, "%s-store", m->name);
    must(m, yaml_tree_add_map(worker, CONTAINER ".volumeMounts", mount));
    must(m, yaml_tree_add_map(worker, CONTAINER ".env", folder));
    must(m, yaml_tree_add_claim(worker, "spec.template.spec.volumes", "store", claim));
}

/* "penstock run" in the pod of a node; tini is process 1, which handles SIGTERM. */
static void put_program(manifests *m, const run_options *o, yaml_tree *worker)
{
    char restarts[16];
    snprintf(restarts, sizeof restarts, "%d", o->max_restarts);
    const char *const before[] = {"tini",           "-g",     "--", "penstock", "run",
                                  "--max-restarts", restarts, NULL};
    must(m, yaml_tree_clear(worker, CONTAINER ".command"));
    for (int i = 0; before[i] != NULL; i++)
        must(m, yaml_tree_add(worker, CONTAINER ".command", before[i]));
    for (char **word = o->program; *word != NULL; word++)
        must(m, yaml_tree_add(worker, CONTAINER ".command", *word));
    set_number(m, worker, "spec.completions", o->nnodes);
    set_number(m, worker, "spec.parallelism", o->nnodes);
    set_number(m, worker, "spec.backoffLimitPerIndex", o->max_restarts);
}

static void put_amount(manifests *m, yaml_tree *worker, const char *path, long each,
                       const char *unit)
{
    char text[32];
    snprintf(text, sizeof text, "%ld%s", each, unit);
    must(m, yaml_tree_set(worker, path, text, true));
}

/* Of the workers that one pod may have: a processor, 1 GiB and 256 MiB of shared memory each; with device=cuda a GPU. */
static void put_resources(manifests *m, const run_options *o, yaml_tree *worker)
{
    static const char *const maps[] = {CONTAINER ".resources.requests",
                                       CONTAINER ".resources.limits"};
    const char *device              = config_env("PENSTOCK_DEVICE");
    char gpus[16];
    snprintf(gpus, sizeof gpus, "%d", o->nproc_max);
    put_amount(m, worker, CONTAINER ".resources.requests.cpu", o->nproc_max, "");
    put_amount(m, worker, CONTAINER ".resources.limits.cpu", 2L * o->nproc_max, "");
    put_amount(m, worker, CONTAINER ".resources.requests.memory", o->nproc_max, "Gi");
    put_amount(m, worker, CONTAINER ".resources.limits.memory", o->nproc_max, "Gi");
    put_amount(m, worker, "spec.template.spec.volumes.1.emptyDir.sizeLimit", 256L * o->nproc_max,
               "Mi");
    for (int i = 0; i < 2 && device != NULL && strcmp(device, "cuda") == 0; i++)
        must(m, yaml_tree_put(worker, maps[i], "nvidia.com/gpu", gpus));
}

static void put_all(manifests *m, const run_options *o)
{
    for (size_t i = 0; i < m->n; i++) yaml_tree_each(m->all[i], rename_one, m);
    yaml_tree *scheduler = find_manifest(m, "StatefulSet", "scheduler");
    yaml_tree *server    = find_manifest(m, "StatefulSet", "server");
    yaml_tree *worker    = find_manifest(m, "Job", "worker");
    if (m->failed) return;
    put_settings(m, o);
    put_program(m, o, worker);
    put_resources(m, o, worker);
    must(m, yaml_tree_set(scheduler, CONTAINER ".image", o->image, true));
    must(m, yaml_tree_set(worker, CONTAINER ".image", o->image, true));
    must(m, yaml_tree_set(server, CONTAINER ".image", o->image, true));
    set_number(m, server, "spec.replicas", o->servers);
    put_store(m, o, o->servers > 0 ? server : NULL, worker);
    if (o->servers > 0) return;
    drop(m, "StatefulSet", "server");
    drop(m, "Service", "server");
    drop(m, "PodDisruptionBudget", "server");
}

/* ---- the command ----------------------------------------------------------------------------------------- */

static pen_status write_all(manifests *m, FILE *out, pen_error *why)
{
    pen_status status = PEN_OK;
    for (size_t i = 0; i < m->n; i++) {
        if (status == PEN_OK)
            status = yaml_tree_write(m->all[i], out, why);
        else
            yaml_tree_free(m->all[i]);
    }
    m->n = 0;
    return status;
}

int emit_k8s(const run_options *o, FILE *out)
{
    manifests m = {.n = 0};
    pen_error why;
    if (o->image == NULL)
        return command_fail(
            EXIT_USAGE,
            "--emit k8s needs --image NAME: an image with %s, based on the penstock "
            "image",
            o->program[0]);
    choose_name(o, m.name);
    pen_status status =
        yaml_tree_read(emit_k8s_base, strlen(emit_k8s_base), m.all, MANIFESTS_MAX, &m.n, &why);
    if (status != PEN_OK) return command_fail(1, "%s", why.text);
    put_all(&m, o);
    if (m.failed) {
        for (size_t i = 0; i < m.n; i++) yaml_tree_free(m.all[i]);
        return command_fail(1, "this build is inconsistent: its manifests do not match its code");
    }
    status = write_all(&m, out, &why);
    if (status != PEN_OK) return command_fail(1, "%s", why.text);
    fprintf(stderr,
            "penstock: run once before:  penstock keygen --k8s %s-secret | kubectl apply -f -\n",
            m.name);
    return 0;
}
