/* proof.h - both ends of a connection prove that they belong to the job, in its first messages.  Pure: bytes in, bytes
 * out, no I/O and no clock.
 *
 * DESIGN.  For connections that are not encrypted.  Nothing that is secret travels.
 *   ASK      dialler:   a nonce
 *   ANSWER   listener:  a nonce of its own, and a tag made with its role's key
 *   CLAIM    dialler:   who it is, and a tag made with the key of that role and rank
 *   WELCOME  listener:  another tag; now both may speak
 * Each tag is a keyed hash of its own label, both nonces, who the dialler is, and the place: where the listener is, as
 * each end sees it in its own socket.  So a tag fits one message of one connection: a recorded one has another nonce,
 * one that is sent back has another label and key, and one that a squatter relays between two honest ends has another
 * place.  The listener proves itself first: a dialler tells nothing, not even who it is, to what is not its listener.
 * Messages have fixed sizes, and every byte of them counts.  Whatever else comes ends the proof, and there is no second
 * try on a connection.
 */
#ifndef COMMON_TRANSPORT_PROOF_H
#define COMMON_TRANSPORT_PROOF_H

#include "common/net/transport/transport.h"

enum {
    PROOF_BYTES       = 32, /* of a nonce, key or tag */
    PROOF_PLACE_BYTES = 128,
    PROOF_MESSAGE_MAX = 80
};

typedef struct { /* all zero: not known, or one that ends may see differently */
    uint8_t bytes[PROOF_PLACE_BYTES];
} proof_place;

typedef struct {
    uint8_t data[PROOF_MESSAGE_MAX];
    size_t size; /* 0: nothing is to be sent */
} proof_message;

typedef enum {
    PROOF_NEW,      /* begun by neither; takes nothing */
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
    uint8_t nonce[2][PROOF_BYTES]; /* the dialler's, the listener's */
    proof_place place;
    transport_identity is; /* listening and DONE: who dialled */
    const char *fault;     /* of FAILED: what the other side did, for people */
} proof;

/* A dialler begins, and sends what is in *out.  FAILED: it has no key now. */
void proof_dial(proof *self, const transport_proof *with, const proof_place *place,
                proof_message *out);
void proof_listen(proof *self, const transport_proof *with, const proof_place *place);

/* A message of the other side.  What is in *out is sent, when there is something.  After DONE all that comes is for
 * whoever is above; after FAILED the connection is to be ended. */
proof_stage proof_take(proof *self, const void *head, size_t size, proof_message *out);

/* Why a dialler was not let in, by how far it came: for when the connection ends before DONE. */
const char *proof_end(const proof *self);

/* The place of an end, from its socket: the listener's own address, the dialler's peer's.  Only of this host; other
 * addresses may be translated on the way, and are left out. */
void proof_place_of(proof_place *place, const void *address, size_t size);

#endif
