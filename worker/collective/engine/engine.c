/* engine.c - the engine: creation and destruction, and the members that joined. */
#include "worker/collective/engine/engine.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/net/own_address.h"
#include "worker/collective/engine/engine_internal.h"
#include "worker/collective/engine/self_message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MESH_LINGER_MS = 500 };

/* ---- creation -------------------------------------------------------------------------------- */
static void add_address(coll_engine *e, const char *text)
{
    if (e->n_addresses == ENGINE_ADDRESSES) return;
    snprintf(e->address_text[e->n_addresses], ENGINE_ADDRESS_SIZE, "%s", text);
    e->address[e->n_addresses] = e->address_text[e->n_addresses];
    e->n_addresses++;
}

static pen_status open_mesh(coll_engine *e, pen_error *why)
{
    const worker_settings *s = e->setup.settings;
    const worker_env *env    = e->setup.env;
    pen_status status;
    char shown[ENGINE_ADDRESS_SIZE];
    own_address own;
    status = schedule_table_parse(s->coll_algorithm, &e->table, why);
    if (status != PEN_OK) return status;
    const own_address_query query = {.given       = env->host,
                                     .scheduler   = env->addr,
                                     .port        = env->port,
                                     .patience_ms = s->init_timeout_ms};
    status                        = own_address_find(&query, &own, why);
    if (status != PEN_OK) return status;
    const mesh_options o = {.listen         = own.listen,
                            .lanes          = s->coll_lanes,
                            .heartbeat_ms   = s->lease_ms / 2,
                            .park_bytes_max = s->park_bytes_max,
                            .deterministic  = s->deterministic != SUMS_LOOSE,
                            .table          = e->table,
                            .auth           = e->setup.auth,
                            .stats          = e->setup.stats,
                            .lease_ms       = s->lease_ms,
                            .name_ms        = s->init_timeout_ms,
                            .unreached      = e->job.unreached,
                            .user           = e->user};
    status               = mesh_create(&o, &e->mesh, why);
    if (status != PEN_OK) return status;
    own_address_show(&own, mesh_address(e->mesh), shown, sizeof shown);
    add_address(e, shown);
    e->mesh_fd = mesh_poll_fd(e->mesh);
    e->news_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return e->news_fd >= 0 ? PEN_OK : why_set(why, PEN_INTERNAL, "no eventfd: %s", strerror(errno));
}

static pen_status open_links(coll_engine *e, pen_error *why)
{
    pen_error reason;
    char host[ENGINE_ADDRESS_SIZE], same[ENGINE_ADDRESS_SIZE];
    pen_status status = open_mesh(e, why);
    if (status != PEN_OK) return status;
    engine_write_agreed(e, same, sizeof same);
    if (same[0] != '\0') add_address(e, same); /* every member is told it, and copies it */
    if (e->setup.settings->shared_memory) {
        if (node_place_create(&e->place, &reason) == PEN_OK)
            add_address(e, node_place_address(e->place));
        else
            log_notice("no shared memory; collectives use sockets: %s", reason.text);
    }
    /* Does not touch the driver: a process that uses no device must not load it. */
    if (e->place != NULL && device_all[0]->event_new != NULL && !device_is_host(device_all[0]) &&
        device_place_create(&e->device_place, &reason) == PEN_OK)
        add_address(e, device_place_address(e->device_place));
    if (e->setup.settings->host_id[0] != '\0') {
        snprintf(host, sizeof host, "host:%s", e->setup.settings->host_id);
        add_address(e, host);
    }
    return PEN_OK;
}

static void init_locks(coll_engine *e)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->making, NULL);
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->mesh_lock, NULL);
    pthread_cond_init(&e->ended, &attributes);
    pthread_cond_init(&e->work, &attributes);
    pthread_condattr_destroy(&attributes);
}

pen_status coll_engine_create(const coll_setup *setup, const coll_job *job, void *user,
                              coll_engine **out, pen_error *why)
{
    coll_engine *e = calloc(1, sizeof *e);
    if (e == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for collectives");
    e->setup      = *setup;
    e->news_fd    = -1;
    e->job        = job != NULL ? *job : (coll_job){0};
    e->user       = user;
    e->world_size = setup->env->world_size;
    e->rank       = setup->env->rank;
    e->is_alone   = e->world_size == 1;
    e->stretch    = 1;
    e->order      = (sum_order)setup->settings->deterministic;
    e->two_level  = setup->settings->two_level;
    e->warn_ms    = setup->settings->warn_ms;
    e->verdict_ms =
        setup->settings->lease_ms > ENGINE_FAULT_MS ? setup->settings->lease_ms : ENGINE_FAULT_MS;
    init_locks(e);
    pen_status status = recorder_init(&e->record, why);
    if (status == PEN_OK && !e->is_alone) status = open_links(e, why);
    if (status == PEN_OK && e->is_alone) status = group_connect(e, *setup->world, why);
    if (status != PEN_OK) {
        coll_engine_destroy(e);
        return status;
    }
    *out = e;
    return PEN_OK;
}

/* ---- destruction ----------------------------------------------------------------------------- */
static void free_members(coll_engine *e)
{
    free(e->members);
    free(e->texts);
    free(e->loss);
}

pen_status coll_engine_tune(coll_engine *e, const char *rules, uint64_t lanes, pen_error *why)
{
    schedule_table *next = NULL;
    pen_status status    = schedule_table_parse(rules, &next, why);
    if (status == PEN_OK && e->mesh != NULL) {
        pthread_mutex_lock(&e->mesh_lock);
        schedule_table_swap(e->table, next);
        mesh_use_lanes(e->mesh, lanes);
        pthread_mutex_unlock(&e->mesh_lock);
    }
    schedule_table_free(next);
    return status;
}

void coll_engine_destroy(coll_engine *e)
{
    if (e == NULL) return;
    pthread_mutex_lock(&e->lock);
    e->is_stopping = true;
    pthread_mutex_unlock(&e->lock);
    engine_wake(e);
    if (e->has_thread) pthread_join(e->thread, NULL);
    self_messages_end(e);
    /* Frees groups that the program did not free, and a world whose group_connect() failed half-way. */
    pen_group *_Atomic *const world = e->setup.world;
    while (e->n_groups > 0) {
        pen_group *g = e->group[e->n_groups - 1];
        if (g == *world) *world = NULL;
        group_destroy(g);
    }
    if (*world != NULL && (*world)->engine == e) {
        group_destroy(*world);
        *world = NULL;
    }
    free(e->group);
    if (e->mesh != NULL) mesh_destroy(e->mesh, MESH_LINGER_MS);
    if (e->news_fd >= 0) close(e->news_fd);
    schedule_table_free(e->table);
    device_place_destroy(e->device_place);
    node_place_destroy(e->place);
    free_members(e);
    recorder_fini(&e->record);
    pthread_cond_destroy(&e->ended);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->making);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->mesh_lock);
    free(e);
}

const char *const *coll_engine_addresses(const coll_engine *e, uint32_t *n)
{
    *n = e->n_addresses;
    return e->address;
}

char *coll_engine_recorder(coll_engine *e)
{
    pthread_mutex_lock(&e->lock);
    char *text = recorder_json(&e->record, e->rank, clock_ms(&clock_real), RECORD_CALLS);
    pthread_mutex_unlock(&e->lock);
    return text;
}

/* ---- joining --------------------------------------------------------------------------------- */
static const char *find_address(const coll_member *m, const char *prefix)
{
    for (uint32_t i = 0; i < m->n_addresses; i++)
        if (strncmp(m->address[i], prefix, strlen(prefix)) == 0) return m->address[i];
    return "";
}

uint64_t coll_engine_number(const coll_engine *e)
{
    return e->place != NULL ? node_place_number(e->place) : 0;
}

uint32_t coll_engine_prove(const coll_engine *e, const coll_member *members, int n, int32_t *rank,
                           uint64_t *number)
{
    const coll_member own = {.n_addresses = e->n_addresses, .address = e->address};
    const bool keep       = e->world_size <= NODE_MEMBERS_MAX;
    uint32_t read         = 0;
    for (int i = 0; i < n && e->place != NULL; i++) {
        const char *address = find_address(&members[i], "node:");
        if (members[i].rank == e->rank || address[0] == '\0' ||
            strcmp(find_address(&members[i], "host:"), find_address(&own, "host:")) != 0)
            continue;
        rank[read]   = members[i].rank;
        number[read] = node_read_number(address, keep);
        read += number[read] != 0;
    }
    return read;
}

static pen_status copy_members(coll_engine *e, const coll_member *members, int n, pen_error *why)
{
    const size_t many = (size_t)n;
    const char **text;
    e->members =
        ARRAYS_NEW(ARRAY(text, 3 * many), ARRAY(e->local_rank, many), ARRAY(e->node_of, many),
                   ARRAY(e->place_of, many), ARRAY(e->is_lost, many));
    for (size_t i = 0; i < many && e->members != NULL; i++) {
        text[i]            = members[i].host != NULL ? members[i].host : "unknown";
        text[many + i]     = find_address(&members[i], "node:");
        text[2 * many + i] = find_address(&members[i], "cuda:");
        e->local_rank[i]   = members[i].local_rank;
        e->node_of[i]      = members[i].node;
        const int sharing  = members[i].sharing;
        e->place_of[i]     = sharing >= 0 && sharing < n ? sharing : (int)i;
    }
    e->texts = e->members != NULL ? arrays_keep_texts(text, 3 * many) : NULL;
    if (e->texts == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %d members", n);
    e->host           = text;
    e->node_address   = text + many;
    e->device_address = text + 2 * many;
    e->n_members      = n;
    return PEN_OK;
}

static pen_status set_peers(coll_engine *e, const coll_member *members, int n, uint64_t job,
                            pen_error *why)
{
    uint64_t *incarnation;
    const char **address;
    void *arrays = ARRAYS_NEW(ARRAY(incarnation, (size_t)n), ARRAY(address, (size_t)n));
    pen_status status =
        arrays != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for %d members", n);
    for (int i = 0; i < n && status == PEN_OK; i++) {
        incarnation[i] = members[i].incarnation;
        address[i]     = find_address(&members[i], "tcp:");
        if (address[i][0] == '\0')
            status = why_set(
                why, PEN_UNREACHABLE,
                "rank %d sent no address for collectives; use one version of Penstock on all ranks",
                i);
    }
    if (status == PEN_OK) {
        pthread_mutex_lock(&e->mesh_lock);
        status = mesh_set_peers(e->mesh, e->rank, n, incarnation, address, e->host, job, why);
        pthread_mutex_unlock(&e->mesh_lock);
    }
    free(arrays);
    return status;
}

/* With more members than cores, spinning keeps other members from working; with many more, so does waking. */
static void choose_waits(coll_engine *e)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const char *own  = e->host[e->rank];
    int sharing = 0, here = 0;
    for (int i = 0; i < e->n_members; i++) {
        sharing += e->place_of[i] == e->place_of[e->rank];
        here += e->host[i] == own || strcmp(e->host[i], own) == 0;
    }
    if (e->place != NULL && sharing > cores) node_set_spin(e->place, 0);
    e->has_core   = here <= cores;
    e->is_crowded = here > ENGINE_CROWD * cores;
    e->stretch    = here > ENGINE_NAP_CROWD ? (double)here / ENGINE_NAP_CROWD : 1;
}

pen_status coll_engine_joined(coll_engine *e, const coll_member *members, int n, uint64_t job,
                              pen_error *why)
{
    if (e->is_alone) return PEN_OK;
    coll_member *by_rank = calloc((size_t)n, sizeof *by_rank);
    pen_status status    = PEN_OK;
    if (by_rank == NULL)
        status = why_set(why, PEN_NO_MEMORY, "no memory for %d members", n);
    else if (n != e->world_size)
        status = why_set(why, PEN_INTERNAL, "%d members in a world of %d", n, e->world_size);
    for (int i = 0; i < n && status == PEN_OK; i++)
        if (members[i].rank >= 0 && members[i].rank < n) by_rank[members[i].rank] = members[i];
    if (status == PEN_OK) status = copy_members(e, by_rank, n, why);
    if (status == PEN_OK) status = set_peers(e, by_rank, n, job, why);
    if (status == PEN_OK) choose_waits(e);
    if (status == PEN_OK) status = group_connect(e, *e->setup.world, why);
    if (status == PEN_OK && e->setup.settings->servers <= 0)
        status = group_reach(e, *e->setup.world, why); /* training needs it */
    if (status == PEN_OK) status = engine_compare_agreed(by_rank, n, why);
    if (status != PEN_OK) coll_engine_fail(e, why);
    free(by_rank);
    return status;
}
