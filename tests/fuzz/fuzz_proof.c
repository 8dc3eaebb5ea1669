/* fuzz_proof.c - anything in place of the messages of a proof ends it, on both sides, with a sentence and without
 * an answer: no peer gets in.  The first byte selects the target: odd, a listener, at once or after a true question
 * (bit 1); even, a dialler.  The second is the size of the first message; the rest is the second one. */
#include "common/net/auth/secret.h"
#include "common/net/transport/proof.h"
#include "tests/fuzz/fuzz.h"

static secret s;

static bool listener_key(void *user, uint8_t key[TRANSPORT_KEY_BYTES])
{
    secret_proof_key(user, 1, 0, key);
    return true;
}

static bool dialler_key(void *user, uint32_t who, uint32_t index, uint8_t key[TRANSPORT_KEY_BYTES])
{
    secret_proof_key(user, 2 + who % 8, index, key);
    return who < 4;
}

static const transport_proof with = {
    .user = &s, .listener_key = listener_key, .dialler_key = dialler_key};

/* A copy in a block of its own, so that a read past the end is found. */
static proof_stage take(proof *p, const uint8_t *data, size_t size)
{
    proof_message out;
    uint8_t *copy = malloc(size > 0 ? size : 1);
    FUZZ_CHECK(copy != NULL);
    memcpy(copy, data, size);
    const proof_stage stage = proof_take(p, copy, size, &out);
    FUZZ_CHECK(out.size <= sizeof out.data);
    FUZZ_CHECK(stage != PROOF_DONE);
    FUZZ_CHECK(stage != PROOF_FAILED || (out.size == 0 && p->fault != NULL && p->fault[0] != '\0'));
    free(copy);
    return stage;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    static const proof_place place;
    const size_t rest = size - 2, n = data[1] < rest ? data[1] : rest;
    proof p, other;
    proof_message out;
    if (s.bytes[0] == 0) memset(&s, 0x5a, sizeof s);
    proof_dial(&other, &with, &place, &out);
    FUZZ_CHECK(out.size > 0);
    if (data[0] % 2 == 1) {
        proof_listen(&p, &with, &place);
        if ((data[0] & 2) != 0) (void)take(&p, out.data, out.size);
    } else {
        p = other;
    }
    (void)take(&p, data + 2, n);
    (void)take(&p, data + 2 + n, rest - n);
    return 0;
}
