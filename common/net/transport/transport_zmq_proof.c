/* transport_zmq_proof.c - proofs (proof.h) on the connections of ZeroMQ.
 *
 * DESIGN  A listener.  Until a connection has proven itself, its messages come only here, its end is not reported, and
 * transport_zmq_watch.c treats it as a stranger.  Its only state is a proof, stored with its record in peers.h.
 * A dialler.  ZeroMQ would reconnect by itself, send messages queued for the proven peer on the new connection, and
 * append its messages to those of the old one, indistinguishably.  So with proofs a socket serves one connection:
 * ZeroMQ's reconnect interval is infinite, and the endpoint redials with a new socket.
 */
#include "common/net/transport/transport_zmq.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <sys/socket.h>

enum { PATIENCE_MS = 5000, AGAIN_MS = 100, TRIES_MAX = 10, LOOK_MS = 1 };

static const char no_memory[] = "no memory for the proof of a connection";

typedef int (*address_fn)(int fd, struct sockaddr *address, socklen_t *size);

static proof_place place_of(int fd, address_fn address)
{
    struct sockaddr_storage at = {0};
    socklen_t size             = sizeof at;
    proof_place place          = {{0}};
    if (address(fd, (struct sockaddr *)&at, &size) == 0)
        proof_place_of(&place, &at, size < sizeof at ? size : sizeof at);
    return place;
}

bool prove_nothing(const endpoint *e)
{
    const transport_proof *with = e->options.proof;
    return with->is_open != NULL && with->is_open(with->user);
}

/* ---- a dialler -------------------------------------------------------------------------------- */

long prove_again_ms(endpoint *e)
{
    dialled *l          = &e->link;
    const uint64_t wait = (uint64_t)AGAIN_MS << l->tries, most = e->options.reconnect_ms_max;
    if (l->tries < TRIES_MAX) l->tries++;
    return (long)(wait < most ? wait : most);
}

static void give_up(endpoint *e, const char *fault)
{
    dialled *l = &e->link;
    l->fault   = fault;
    l->broke   = true;
    if (l->tries == 0) l->tries = 1;
    endpoint_set_timer(e, LOOK_MS);
}

static void count_refusal(dialled *l)
{
    if (l->refused < DIAL_REFUSED_MAX) l->refused++;
}

void prove_connected(endpoint *e)
{
    dialled *l = &e->link;
    proof_message out;
    if (prove_nothing(e)) {
        l->proof.stage = PROOF_DONE;
        l->is_up       = true;
        l->tries       = 0;
        return;
    }
    const proof_place place = place_of(l->fd, getpeername);
    proof_dial(&l->proof, e->options.proof, &place, &out);
    if (l->proof.stage == PROOF_FAILED) {
        count_refusal(l);
        give_up(e, l->proof.fault);
        return;
    }
    zmqio_send(e->socket, out.data, out.size, 0);
    endpoint_set_timer(e, PATIENCE_MS);
}

void prove_disconnected(endpoint *e)
{
    if (e->link.proof.stage == PROOF_DONE || e->link.broke) return;
    count_refusal(&e->link);
    give_up(e, proof_end(&e->link.proof));
}

void prove_timed_out(endpoint *e)
{
    count_refusal(&e->link);
    give_up(e, proof_end(&e->link.proof));
}

prove_result prove_dialled(endpoint *e, size_t frames, const char **fault)
{
    dialled *l = &e->link;
    proof_message out;
    if (l->broke) return PROVE_DROP;
    const size_t size = frames == 1 ? zmq_msg_size(&e->head) : 0; /* no such message exists */
    proof_take(&l->proof, zmq_msg_data(&e->head), size, &out);
    if (l->proof.stage == PROOF_FAILED) {
        *fault = l->proof.fault;
        give_up(e, *fault);
        return PROVE_REFUSED;
    }
    if (out.size > 0) zmqio_send(e->socket, out.data, out.size, 0);
    if (l->proof.stage != PROOF_DONE) return PROVE_DROP;
    l->tries = 0;
    endpoint_set_timer(e, 0);
    return PROVE_UP;
}

/* ---- a listener ------------------------------------------------------------------------------- */

static proof *proof_of(endpoint *e, uint32_t number)
{
    void **kept = peers_keep(&e->peers, number);
    if (kept == NULL) return NULL;
    if (*kept == NULL && (*kept = malloc(sizeof(proof))) != NULL) {
        const proof_place place = place_of(zmq_msg_get(&e->head, ZMQ_SRCFD), getsockname);
        proof_listen(*kept, e->options.proof, &place);
    }
    return *kept;
}

static void answer(endpoint *e, uint32_t number, const proof_message *out)
{
    if (out->size > 0 && endpoint_send_to_peer(e, number, out->data, out->size, 0) == PEN_OK)
        watch_gave(e, number, out->size, 1);
}

/* A dialler's empty first message. */
static bool is_word(const endpoint *e, size_t frames)
{
    return frames == 1 && zmq_msg_size(&e->head) == 0;
}

prove_result prove_listening(endpoint *e, uint32_t number, bool is_first, size_t frames,
                             const char **fault)
{
    proof *p = proof_of(e, number);
    proof_message out;
    if (p == NULL) {
        *fault = no_memory;
        watch_end(e, number);
        return PROVE_REFUSED;
    }
    if (p->stage == PROOF_FAILED) return PROVE_DROP; /* sent before its end */
    if (is_first && is_word(e, frames)) return PROVE_DROP;
    proof_take(p, zmq_msg_data(&e->head), frames == 1 ? zmq_msg_size(&e->head) : 0, &out);
    if (p->stage == PROOF_FAILED) {
        *fault = p->fault;
        peers_scold(&e->peers, peers_fd(&e->peers, number));
        watch_end(e, number);
        return PROVE_REFUSED;
    }
    answer(e, number, &out);
    if (p->stage != PROOF_DONE) return PROVE_DROP;
    peers_identify(&e->peers, number, p->is.who, p->is.index);
    peers_admit(&e->peers, number); /* frees the proof */
    return PROVE_DROP;
}
