/* proof.c - see proof.h. */
#include "common/net/transport/proof.h"

#include "common/net/auth/secret.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

_Static_assert((int)PROOF_BYTES == (int)SECRET_TAG_BYTES &&
                   (int)PROOF_BYTES == (int)TRANSPORT_KEY_BYTES,
               "tags and keys have one size");

enum { VERSION = 1 };
typedef enum { ASK = 1, ANSWER, CLAIM, WELCOME } kind;

#define MARK "\0PenProv"

typedef struct { /* prefix of every message */
    char mark[8];
    uint8_t version, kind, zero[6];
} preface;

typedef struct {
    preface p;
    uint8_t nonce[PROOF_BYTES];
} ask;

typedef struct {
    preface p;
    uint8_t nonce[PROOF_BYTES], tag[PROOF_BYTES];
} answer;

typedef struct {
    preface p;
    uint8_t who[4], index[4], tag[PROOF_BYTES];
} claim;

typedef struct {
    preface p;
    uint8_t tag[PROOF_BYTES];
} welcome;

_Static_assert(sizeof(preface) == 16 && sizeof(ask) == 48 && sizeof(answer) == 80 &&
                   sizeof(claim) == 56 && sizeof(welcome) == 48,
               "messages have no gaps");
_Static_assert(sizeof(answer) == PROOF_MESSAGE_MAX, "the largest");

static const char no_key[]    = "this side does not have the job's token yet",
                  no_proof[]  = "the other end does not prove that it belongs to the job",
                  wrong[]     = "the other end does not have this job's token",
                  refused[]   = "the other end does not admit this process",
                  silent[]    = "a connection that does not prove that it belongs to the job",
                  stranger[]  = "a connection without this job's token",
                  uninvited[] = "a connection in a role that may not come in here";

/* ---- tags ------------------------------------------------------------------------------------ */

typedef struct { /* the content of a tag */
    char label[16];
    uint8_t nonce[2][PROOF_BYTES], who[4], index[4];
    proof_place place;
} statement;

_Static_assert(sizeof(statement) == 16 + 2 * PROOF_BYTES + 8 + PROOF_PLACE_BYTES, "no gaps");

static void put_number(uint8_t at[4], uint32_t n)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(n >> (8 * i));
}

static uint32_t number_at(const uint8_t at[4])
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void make_tag(const proof *self, const char *label, const uint8_t key[PROOF_BYTES],
                     uint32_t who, uint32_t index, uint8_t tag[PROOF_BYTES])
{
    statement s = {.place = self->place};
    memcpy(s.label, label, strlen(label));
    memcpy(s.nonce, self->nonce, sizeof s.nonce);
    put_number(s.who, who);
    put_number(s.index, index);
    secret_tag(key, &s, sizeof s, tag);
}

/* False: there is no key now. */
static bool listener_tag(const proof *self, const char *label, uint8_t tag[PROOF_BYTES])
{
    uint8_t key[PROOF_BYTES];
    if (!self->with->listener_key(self->with->user, key)) return false;
    make_tag(self, label, key, 0, 0, tag);
    explicit_bzero(key, sizeof key);
    return true;
}

static bool dialler_tag(const proof *self, uint32_t who, uint32_t index, uint8_t tag[PROOF_BYTES])
{
    uint8_t key[PROOF_BYTES];
    if (!self->with->dialler_key(self->with->user, who, index, key)) return false;
    make_tag(self, "dialler proves", key, who, index, tag);
    explicit_bzero(key, sizeof key);
    return true;
}

/* ---- messages -------------------------------------------------------------------------------- */

static preface begin(kind k)
{
    return (preface){.mark = MARK, .version = VERSION, .kind = (uint8_t)k};
}

static void put(proof_message *out, const void *message, size_t size)
{
    memcpy(out->data, message, size);
    out->size = size;
}

static bool is_message(const void *head, size_t size, kind k, size_t expected)
{
    const preface p = begin(k);
    return size == expected && memcmp(head, &p, sizeof p) == 0;
}

static proof_stage fail(proof *self, const char *fault)
{
    self->fault        = fault;
    return self->stage = PROOF_FAILED;
}

/* ---- the dialler ----------------------------------------------------------------------------- */

void proof_dial(proof *self, const transport_proof *with, const proof_place *place,
                proof_message *out)
{
    uint8_t key[PROOF_BYTES];
    *self     = (proof){.with = with, .stage = PROOF_ASKED, .place = *place};
    out->size = 0;
    if (!with->listener_key(with->user, key)) {
        fail(self, no_key);
        return;
    }
    explicit_bzero(key, sizeof key);
    ask message = {.p = begin(ASK)};
    secret_draw(self->nonce[0], PROOF_BYTES);
    memcpy(message.nonce, self->nonce[0], PROOF_BYTES);
    put(out, &message, sizeof message);
}

static proof_stage take_answer(proof *self, const void *head, size_t size, proof_message *out)
{
    answer heard;
    uint8_t expected[PROOF_BYTES];
    claim message = {.p = begin(CLAIM)};
    if (!is_message(head, size, ANSWER, sizeof heard)) return fail(self, no_proof);
    memcpy(&heard, head, sizeof heard);
    memcpy(self->nonce[1], heard.nonce, PROOF_BYTES);
    if (!listener_tag(self, "listener proves", expected)) return fail(self, no_key);
    if (!secret_is_tag(heard.tag, expected)) return fail(self, wrong);
    put_number(message.who, self->with->who);
    put_number(message.index, self->with->index);
    if (!dialler_tag(self, self->with->who, self->with->index, message.tag))
        return fail(self, no_key);
    put(out, &message, sizeof message);
    return self->stage = PROOF_CLAIMED;
}

static proof_stage take_welcome(proof *self, const void *head, size_t size)
{
    welcome heard;
    uint8_t expected[PROOF_BYTES];
    if (!is_message(head, size, WELCOME, sizeof heard)) return fail(self, no_proof);
    memcpy(&heard, head, sizeof heard);
    if (!listener_tag(self, "listener admits", expected)) return fail(self, no_key);
    if (!secret_is_tag(heard.tag, expected)) return fail(self, wrong);
    return self->stage = PROOF_DONE;
}

const char *proof_end(const proof *self)
{
    if (self->stage == PROOF_FAILED) return self->fault;
    return self->stage == PROOF_CLAIMED ? refused : no_proof;
}

/* ---- the listener ---------------------------------------------------------------------------- */

void proof_listen(proof *self, const transport_proof *with, const proof_place *place)
{
    *self = (proof){.with = with, .stage = PROOF_LISTENS, .place = *place};
}

static proof_stage take_ask(proof *self, const void *head, size_t size, proof_message *out)
{
    ask heard;
    answer message = {.p = begin(ANSWER)};
    if (!is_message(head, size, ASK, sizeof heard)) return fail(self, silent);
    memcpy(&heard, head, sizeof heard);
    memcpy(self->nonce[0], heard.nonce, PROOF_BYTES);
    secret_draw(self->nonce[1], PROOF_BYTES);
    memcpy(message.nonce, self->nonce[1], PROOF_BYTES);
    if (!listener_tag(self, "listener proves", message.tag)) return fail(self, no_key);
    put(out, &message, sizeof message);
    return self->stage = PROOF_ANSWERED;
}

static proof_stage take_claim(proof *self, const void *head, size_t size, proof_message *out)
{
    claim heard;
    uint8_t expected[PROOF_BYTES];
    welcome message = {.p = begin(WELCOME)};
    if (!is_message(head, size, CLAIM, sizeof heard)) return fail(self, stranger);
    memcpy(&heard, head, sizeof heard);
    if (!dialler_tag(self, number_at(heard.who), number_at(heard.index), expected))
        return fail(self, uninvited);
    if (!secret_is_tag(heard.tag, expected)) return fail(self, stranger);
    if (!listener_tag(self, "listener admits", message.tag)) return fail(self, no_key);
    put(out, &message, sizeof message);
    self->is           = (transport_identity){number_at(heard.who), number_at(heard.index)};
    return self->stage = PROOF_DONE;
}

proof_stage proof_take(proof *self, const void *head, size_t size, proof_message *out)
{
    out->size = 0;
    switch (self->stage) {
    case PROOF_NEW: return fail(self, no_proof);
    case PROOF_LISTENS: return take_ask(self, head, size, out);
    case PROOF_ANSWERED: return take_claim(self, head, size, out);
    case PROOF_ASKED: return take_answer(self, head, size, out);
    case PROOF_CLAIMED: return take_welcome(self, head, size);
    case PROOF_DONE:
    case PROOF_FAILED: break;
    }
    return self->stage;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Converts an IPv4-mapped address to IPv4: a listener on all addresses may see it mapped. */
static bool address_of(const struct sockaddr_in6 *a, struct in6_addr *number)
{
    *number = a->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(number) ||
           (IN6_IS_ADDR_V4MAPPED(number) && number->s6_addr[12] == IN_LOOPBACKNET);
}

static void put_internet(proof_place *place, const struct in6_addr *number, in_port_t port)
{
    place->bytes[0] = 'i';
    memcpy(place->bytes + 1, &port, sizeof port);
    memcpy(place->bytes + 1 + sizeof port, number, sizeof *number);
}

void proof_place_of(proof_place *place, const void *address, size_t size)
{
    const struct sockaddr *any = address;
    struct in6_addr number     = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memset(place, 0, sizeof *place);
    if (any->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
        const struct sockaddr_in *a = address;
        memcpy(number.s6_addr + 12, &a->sin_addr, 4);
        if (number.s6_addr[12] == IN_LOOPBACKNET) put_internet(place, &number, a->sin_port);
    } else if (any->sa_family == AF_INET6 && size >= sizeof(struct sockaddr_in6)) {
        const struct sockaddr_in6 *a = address;
        if (address_of(a, &number)) put_internet(place, &number, a->sin6_port);
    } else if (any->sa_family == AF_UNIX && size > offsetof(struct sockaddr_un, sun_path)) {
        const size_t n  = size - offsetof(struct sockaddr_un, sun_path);
        place->bytes[0] = 'u';
        memcpy(place->bytes + 1, ((const struct sockaddr_un *)address)->sun_path,
               n < PROOF_PLACE_BYTES - 1 ? n : PROOF_PLACE_BYTES - 1);
    }
}
