/* proof.h - mutual proof of membership in the first messages of a connection.  Pure: bytes in, bytes out, no I/O
 * and no clock.
 *
 * DESIGN.  For unencrypted connections.  No secret is sent.
 *   ASK      dialler:   a nonce
 *   ANSWER   listener:  its own nonce, and a tag made with its role's key
 *   CLAIM    dialler:   its identity, and a tag made with the key of that role and rank
 *   WELCOME  listener:  another tag; now both may send
 * Each tag is a keyed hash of its own label, both nonces, the dialler's identity, and the place: the listener's
 * address as each end sees it in its own socket.  So a tag fits one message of one connection: a recorded one has
 * another nonce, a reflected one another label and key, a relayed one another place.  The listener proves itself
 * first: a dialler reveals nothing, not even its identity, to a false listener. Messages have fixed sizes, and
 * every byte counts.  Anything else ends the proof, without a second try on a connection.
 */
#ifndef COMMON_TRANSPORT_PROOF_H
#define COMMON_TRANSPORT_PROOF_H

#include "common/net/transport/transport.h"

enum {
    PROOF_BYTES       = 32, /* of a nonce, key or tag */
    PROOF_PLACE_BYTES = 128,
    PROOF_MESSAGE_MAX = 80
};

typedef struct { /* all zero: unknown, or possibly different at both ends */
    uint8_t bytes[PROOF_PLACE_BYTES];
} proof_place;

typedef struct {
    uint8_t data[PROOF_MESSAGE_MAX];
    size_t size; /* 0: nothing to send */
} proof_message;

typedef enum {
    PROOF_NEW,      /* not begun; accepts nothing */
    PROOF_LISTENS,  /* listener: waits to be asked     */
    PROOF_ASKED,    /* dialler:  waits for the answer   */
    PROOF_CLAIMED,  /* dialler:  waits to be let in     */
    PROOF_ANSWERED, /* listener: waits for the claim    */
    PROOF_DONE,
    PROOF_FAILED
} proof_stage;

typedef struct {
    const transport_proof *with; /* BORROWED */
    proof_stage stage;
    uint8_t nonce[2][PROOF_BYTES]; /* of the dialler, of the listener */
    proof_place place;
    transport_identity is; /* listener, DONE: the dialler's identity */
    const char *fault;     /* of FAILED: fault of the other side, for people */
} proof;

/* Starts a dialler's proof; send *out.  FAILED: it has no key now. */
void proof_dial(proof *self, const transport_proof *with, const proof_place *place,
                proof_message *out);
void proof_listen(proof *self, const transport_proof *with, const proof_place *place);

/* A message of the other side.  Send *out unless empty.  After DONE all messages belong to the layer above; after
 * FAILED close the connection. */
proof_stage proof_take(proof *self, const void *head, size_t size, proof_message *out);

/* Why a dialler was not admitted, by its stage; for a connection that ends before DONE. */
const char *proof_end(const proof *self);

/* The place of an end, from its socket: the listener's own address, the dialler's peer address.  Only for this
 * host; other addresses may be translated and are left out. */
void proof_place_of(proof_place *place, const void *address, size_t size);

#endif
