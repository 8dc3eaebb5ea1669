/* server_hosted.c - the shards of one thread: new epochs, sealing, questions. */
#include "server/process/server_state.h"

#include "common/base/log.h"
#include "common/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RESEND_MS     = 200,
    SEAL_WAIT_MS  = 200, /* time for a copy to receive what its primary sent, */
    STATE_WAIT_MS = 5000 /* with states of handlers */
};

void server_shard_forget(server_shard *s)
{
    while (s->n_hosted > 0) server_hosted_destroy(s->hosted[--s->n_hosted]);
    free(s->hosted);
    s->hosted          = NULL;
    s->hosted_capacity = 0;
    server_links_mark(s);
    server_links_sweep(s);
}

/* ---- an epoch -------------------------------------------------------------------------------- */
void server_epoch_update_destroy(server_epoch_update *n)
{
    for (uint32_t i = 0; n->fresh != NULL && i < n->n_fresh; i++)
        server_hosted_destroy(n->fresh[i]);
    free(n->fresh);
    free(n->row);
    free((void *)(uintptr_t)n->view.worker);
    free(n);
}

static const server_row *row_of(const server_epoch_update *n, uint32_t number)
{
    for (uint32_t i = 0; i < n->n_rows; i++)
        if (n->row[i].number == number) return &n->row[i];
    return NULL;
}

static void adopt_fresh(server_shard *s, server_epoch_update *n)
{
    for (uint32_t i = 0; i < n->n_fresh; i++) {
        if (row_of(n, n->fresh[i]->number) == NULL) continue;
        if (server_shard_adopt(s, n->fresh[i]))
            n->fresh[i] = NULL;
        else
            server_no_memory(s->server, "another shard");
    }
}

static void drop_absent(server_shard *s, const server_epoch_update *n)
{
    for (uint32_t i = 0; i < s->n_hosted;) {
        if (row_of(n, s->hosted[i]->number) != NULL) {
            i++;
            continue;
        }
        log_info("shard %u has left this server", s->hosted[i]->number);
        server_hosted_destroy(s->hosted[i]);
        s->hosted[i] = s->hosted[--s->n_hosted];
    }
}

static void dial_copies(server_hosted *h, const server_row *row)
{
    h->n_copies = row->role == SHARD_PRIMARY ? row->n_replicas : 0;
    for (uint32_t i = 0; i < h->n_copies; i++) {
        h->server[i] = row->replica[i].server;
        h->link[i]   = server_link_to(h->place, row->replica[i].server, row->replica[i].incarnation,
                                      row->address[i]);
    }
}

static void resend_timer(void *user)
{
    server_shard *s = user;
    bool has_copies = false;
    for (uint32_t i = 0; i < s->n_hosted; i++) {
        has_copies = has_copies || s->hosted[i]->n_copies > 0;
        shard_resend(s->hosted[i]->shard, loop_now_ms(s->loop));
    }
    if (has_copies)
        loop_timer_start(s->loop, &s->resend_timer, loop_now_ms(s->loop) + RESEND_MS, resend_timer,
                         s);
}

void server_shard_epoch_update(void *user)
{
    server_epoch_update *n = user;
    server_shard *s        = n->to;
    const uint64_t begun   = trace_begin();
    adopt_fresh(s, n);
    drop_absent(s, n);
    server_links_mark(s);
    for (uint32_t i = 0; i < s->n_hosted; i++) {
        server_hosted *h      = s->hosted[i];
        const server_row *row = row_of(n, h->number);
        shard_view view       = n->view;
        view.role             = row->role;
        view.primary          = row->primary;
        view.n_replicas       = row->n_replicas;
        view.replica          = row->replica;
        dial_copies(h, row);
        shard_install(h->shard, &view);
    }
    server_links_sweep(s);
    server_links_notify(s);
    if (s->seal_epoch <= n->view.epoch) s->is_sealing = false;
    trace_span(TRACE_INSTALL, begun, &(trace_note){0});
    server_shard_flush(s);
    resend_timer(s);
    server_epoch_update_destroy(n);
}

/* ---- sealing --------------------------------------------------------------------------------- */
static void notify_sealed(server_shard *s)
{
    server_place_sealed *told = malloc(sizeof *told + s->n_hosted * sizeof *told->report);
    if (told == NULL) {
        server_no_memory(s->server, "the report of a sealed shard");
        return;
    }
    *told = (server_place_sealed){
        .server = s->server, .term = s->seal_term, .epoch = s->seal_epoch, .n = s->n_hosted};
    for (uint32_t i = 0; i < s->n_hosted; i++) told->report[i] = s->hosted[i]->report;
    if (server_notify_main(s->server, SERVER_SEALED, told, 0)) return;
    free(told);
    server_no_memory(s->server, "the report of a sealed shard");
}

/* Primaries first: they notify their copies that nothing more follows. */
void server_shard_try_seal(server_shard *s, bool is_late)
{
    bool all = true;
    for (uint32_t i = 0; i < s->n_hosted; i++) {
        server_hosted *h = s->hosted[i];
        if (h->sealed_epoch != s->seal_epoch && !is_late &&
            !shard_is_level(h->shard, s->seal_epoch)) {
            all = false;
            continue;
        }
        if (h->sealed_epoch != s->seal_epoch) {
            h->sealed_epoch = s->seal_epoch;
            shard_seal(h->shard, s->seal_term, s->seal_epoch, &h->report);
        }
    }
    if (!all) return;
    s->is_sealing = false;
    loop_timer_stop(s->loop, &s->sealing);
    notify_sealed(s);
}

static void seal_late(void *user)
{
    server_shard *s = user;
    if (s->is_sealing) server_shard_try_seal(s, true);
}

void server_shard_seal(void *user)
{
    const server_seal *seal = user;
    server_shard *s         = seal->to;
    s->seal_term            = seal->term;
    s->seal_epoch           = seal->epoch;
    s->is_sealing           = true;
    uint64_t wait_ms        = SEAL_WAIT_MS;
    for (uint32_t i = 0; i < s->n_hosted; i++)
        if (shard_has_handlers(s->hosted[i]->shard)) wait_ms = STATE_WAIT_MS;
    loop_timer_start(s->loop, &s->sealing, loop_now_ms(s->loop) + wait_ms, seal_late, s);
    server_shard_try_seal(s, false);
}

/* ---- questions ------------------------------------------------------------------------------- */
void server_shard_question(void *user)
{
    server_question *q = user;
    for (uint32_t i = 0; i < q->shard->n_hosted; i++) {
        uint64_t step;
        uint32_t chunk;
        const char *tensor;
        q->lacks_values |= shard_lacks_values(q->shard->hosted[i]->shard);
        if (!shard_missing(q->shard->hosted[i]->shard, q->rank, &step, &chunk, &tensor)) continue;
        if (q->is_known && (step > q->step || (step == q->step && chunk > q->chunk))) continue;
        q->is_known = true;
        q->step     = step;
        q->chunk    = chunk;
        snprintf(q->tensor, sizeof q->tensor, "%s", tensor);
    }
    (void)server_notify_main(q->server, SERVER_ANSWERED, q, sizeof *q);
}

void server_shard_capture_idle(void *user)
{
    const server_sign *sign = user;
    for (uint32_t i = 0; i < sign->shard->n_hosted; i++) {
        shard *each = sign->shard->hosted[i]->shard;
        if (shard_role_of(each) == SHARD_PRIMARY) shard_capture_idle(each, sign->step);
    }
}
