/* coll_rig.c - a job of several members in one process. */
#include "coll_rig.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SETTINGS_MAX = 16 };

static pen_ctx *make_context(int rank, int n, const char *const *settings)
{
    char own[4][32];
    const char *all[SETTINGS_MAX + 8];
    size_t at = 0;
    pen_ctx *ctx;
    pen_error why;
    snprintf(own[0], sizeof own[0], "rank=%d", rank);
    snprintf(own[1], sizeof own[1], "world_size=%d", n);
    snprintf(own[2], sizeof own[2], "local_rank=%d", rank);
    snprintf(own[3], sizeof own[3], "local_world_size=%d", n);
    for (size_t i = 0; i < 4; i++) all[at++] = own[i];
    all[at++] = "master_addr=127.0.0.1";
    all[at++] = "master_port=9";
    for (size_t i = 0; settings != NULL && settings[i] != NULL && i < SETTINGS_MAX; i++) {
        const bool is_own = settings[i][1] == ':';
        if (is_own && settings[i][0] != '0' + rank) continue;
        const char *text = settings[i] + (is_own ? 2 : 0);
        if (strncmp(text, "local_rank=", 11) == 0)
            all[2] = text;
        else
            all[at++] = text;
    }
    all[at] = NULL;
    if (context_create(all, &ctx, &why) != PEN_OK) fail_msg("%s", why.text);
    return ctx;
}

/* The proofs, as the scheduler would find them. */
static void share(rig *r, coll_member *members, int n)
{
    int32_t rank[RIG_RANKS_MAX];
    uint64_t number[RIG_RANKS_MAX];
    for (int i = 0; i < n; i++) {
        const uint32_t read =
            n > 1 ? coll_engine_prove(r->ctx[i]->coll, members, n, rank, number) : 0;
        members[i].sharing = i;
        for (uint32_t k = read; k-- > 0;) {
            if (number[k] != coll_engine_number(r->ctx[rank[k]]->coll)) fail_msg("another number");
            if (rank[k] < i) members[i].sharing = rank[k];
        }
    }
}

/* Ranks with one host_id are a node. */
static int node_of(const rig *r, int rank)
{
    int first = 0;
    while (strcmp(r->ctx[first]->settings.host_id, r->ctx[rank]->settings.host_id) != 0) first++;
    return first;
}

void rig_start(rig *r, int n, const char *const *settings, const coll_job *job)
{
    coll_member members[RIG_RANKS_MAX];
    pen_error why;
    void *user = r->user;
    *r         = (rig){.n = n, .user = user};
    for (int i = 0; i < n; i++) {
        r->ctx[i] = make_context(i, n, settings);
        if (context_make_coll(r->ctx[i], n > 1 ? job : NULL, r, &why) != PEN_OK)
            fail_msg("%s", why.text);
        members[i]         = (coll_member){.rank        = i,
                                           .local_rank  = r->ctx[i]->env.local_rank,
                                           .node        = node_of(r, i),
                                           .incarnation = 100 + (uint64_t)i,
                                           .host        = "testhost"};
        members[i].address = coll_engine_addresses(r->ctx[i]->coll, &members[i].n_addresses);
    }
    share(r, members, n);
    for (int i = 0; i < n && n > 1; i++)
        (void)coll_engine_joined(r->ctx[i]->coll, members, n, 4711, &why);
}

typedef struct {
    rig *r;
    int rank;
} member_slot;

static void *sit(void *user)
{
    member_slot *s = user;
    s->r->fn(s->r, s->rank);
    return NULL;
}

void rig_run(rig *r, rig_fn fn)
{
    pthread_t thread[RIG_RANKS_MAX];
    member_slot seats[RIG_RANKS_MAX];
    r->fn = fn;
    for (int i = 0; i < r->n; i++) {
        seats[i] = (member_slot){r, i};
        assert_int_equal(pthread_create(&thread[i], NULL, sit, &seats[i]), 0);
    }
    for (int i = 0; i < r->n; i++) pthread_join(thread[i], NULL);
    assert_int_equal(atomic_load(&r->failures), 0);
}

void rig_stop(rig *r)
{
    for (int i = 0; i < r->n; i++) {
        coll_engine_destroy(r->ctx[i]->coll);
        r->ctx[i]->coll = NULL;
        context_destroy(r->ctx[i]);
    }
}

void rig_check_at(rig *r, bool so, const char *text, const char *file, int line)
{
    if (so) return;
    atomic_fetch_add(&r->failures, 1);
    fprintf(stderr, "%s:%d: not so: %s; last error: %s\n", file, line, text, pen_last_error(NULL));
}
