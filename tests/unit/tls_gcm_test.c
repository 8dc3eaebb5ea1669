/* tls_gcm_test.c - the cipher that OpenSSL is given makes what OpenSSL's own makes, and refuses what that one refuses; a
 * member with the one and a member with the other understand each other. */
#include "common/net/transport/tls_gcm.h"
#include "tests/unit/transport_auth_rig.h"

#include <openssl/evp.h>
#include <openssl/provider.h>

enum { TEXT_BYTES = 1 << 14, TAG_BYTES = 16, NONCE_BYTES = 12, HEADER_BYTES = 5 };

static EVP_CIPHER *given, *own;
static uint8_t key[16], nonce[NONCE_BYTES], header[HEADER_BYTES], text[TEXT_BYTES];

static int fetch(void **state)
{
    (void)state;
    srand(7);
    for (size_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)rand();
    for (size_t i = 0; i < sizeof nonce; i++) nonce[i] = (uint8_t)rand();
    for (size_t i = 0; i < sizeof header; i++) header[i] = (uint8_t)rand();
    for (size_t i = 0; i < sizeof text; i++) text[i] = (uint8_t)rand();
    own = EVP_CIPHER_fetch(NULL, "id-aes128-GCM", NULL);
    if (tls_gcm_library() != NULL)
        given = EVP_CIPHER_fetch(tls_gcm_library(), "id-aes128-GCM", TLS_GCM_PROPERTIES);
    return 0;
}

static int release(void **state)
{
    (void)state;
    EVP_CIPHER_free(given);
    EVP_CIPHER_free(own);
    return 0;
}

/* OpenSSL from 3.1 on, and a processor without VAES, use OpenSSL's own. */
static void need_cipher(void)
{
    if (tls_gcm_library() == NULL) skip();
    assert_non_null(given);
    assert_string_equal(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(given)), "penstock");
}

static EVP_CIPHER_CTX *begin(const EVP_CIPHER *cipher, bool encrypts)
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_CipherInit_ex(c, cipher, NULL, key, NULL, encrypts), 1);
    assert_int_equal(EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, -1), 1);
    return c;
}

/* In pieces of at most `piece` bytes. */
static void run(EVP_CIPHER_CTX *c, const uint8_t *in, uint8_t *out, size_t size, size_t piece)
{
    int n;
    assert_int_equal(EVP_CipherUpdate(c, NULL, &n, header, HEADER_BYTES), 1);
    for (size_t at = 0; at < size; at += (size_t)n) {
        const size_t left = size - at;
        assert_int_equal(
            EVP_CipherUpdate(c, out + at, &n, in + at, (int)(left < piece ? left : piece)), 1);
        assert_true(n > 0);
    }
}

static void encrypt(const EVP_CIPHER *cipher, size_t size, size_t piece, uint8_t *out,
                    uint8_t tag[TAG_BYTES])
{
    int n;
    EVP_CIPHER_CTX *c = begin(cipher, true);
    memcpy(out, text, size);
    run(c, out, out, size, piece);
    assert_int_equal(EVP_CipherFinal_ex(c, out + size, &n), 1);
    assert_int_equal(n, 0);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag), 1);
    EVP_CIPHER_CTX_free(c);
}

static bool decrypt(size_t size, size_t piece, const uint8_t *in, uint8_t *out,
                    uint8_t tag[TAG_BYTES])
{
    int n;
    EVP_CIPHER_CTX *c = begin(given, false);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, tag), 1);
    run(c, in, out, size, piece);
    const bool is_right = EVP_CipherFinal_ex(c, out + size, &n) == 1;
    EVP_CIPHER_CTX_free(c);
    return is_right;
}

static void test_tls_gcm_makes_what_the_cipher_of_openssl_makes(void **state)
{
    static uint8_t expected[TEXT_BYTES + 1], made[TEXT_BYTES + 1], again[TEXT_BYTES + 1];
    uint8_t tag[2][TAG_BYTES];
    (void)state;
    need_cipher();
    for (size_t size = 0; size <= TEXT_BYTES; size += size < 1100 ? 1 : 997) {
        encrypt(own, size, TEXT_BYTES, expected, tag[0]);
        for (size_t piece = 1 + size / 7; piece <= TEXT_BYTES; piece *= 5) {
            encrypt(given, size, piece, made, tag[1]);
            assert_memory_equal(made, expected, size);
            assert_memory_equal(tag[1], tag[0], TAG_BYTES);
            assert_true(decrypt(size, piece, made, again, tag[0]));
            assert_memory_equal(again, text, size);
        }
    }
}

/* McGrew and Viega, "The Galois/Counter Mode of Operation", test case 2. */
static void test_tls_gcm_makes_the_published_answer(void **state)
{
    static const uint8_t zeros[16],
        cipher_text[16] = {0x03, 0x88, 0xda, 0xce, 0x60, 0xb6, 0xa3, 0x92,
                           0xf3, 0x28, 0xc2, 0xb9, 0x71, 0xb2, 0xfe, 0x78},
        proof[16]       = {0xab, 0x6e, 0x47, 0xd4, 0x2c, 0xec, 0x13, 0xbd,
                           0xf5, 0x3a, 0x67, 0xb2, 0x12, 0x57, 0xbd, 0xdf};
    uint8_t out[16], tag[TAG_BYTES];
    int n;
    (void)state;
    need_cipher();
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_EncryptInit_ex(c, given, NULL, zeros, zeros), 1);
    assert_int_equal(EVP_EncryptUpdate(c, out, &n, zeros, 16), 1);
    assert_int_equal(EVP_EncryptFinal_ex(c, out, &n), 1);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, tag), 1);
    assert_memory_equal(out, cipher_text, 16);
    assert_memory_equal(tag, proof, TAG_BYTES);
    EVP_CIPHER_CTX_free(c);
}

static void test_tls_gcm_refuses_a_bit_changed_in_text_header_or_tag(void **state)
{
    enum { SIZE = 100 };
    uint8_t made[SIZE + 1], out[SIZE + 1], tag[TAG_BYTES];
    (void)state;
    need_cipher();
    encrypt(given, SIZE, SIZE, made, tag);
    assert_true(decrypt(SIZE, SIZE, made, out, tag));
    struct {
        uint8_t *bytes;
        size_t size;
    } const parts[] = {
        {made, SIZE}, {header, HEADER_BYTES}, {tag, TAG_BYTES}, {nonce, NONCE_BYTES}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (size_t bit = 0; bit < 8 * parts[i].size; bit++) {
            parts[i].bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_false(decrypt(SIZE, SIZE, made, out, tag));
            parts[i].bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    assert_true(decrypt(SIZE, SIZE, made, out, tag));
}

static void test_tls_gcm_uses_a_nonce_for_one_message_and_takes_no_other_sizes(void **state)
{
    uint8_t out[16], tag[TAG_BYTES] = {0};
    int n;
    (void)state;
    need_cipher();
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_CipherInit_ex(c, given, NULL, key, NULL, 1), 1);
    assert_int_equal(EVP_CipherUpdate(c, out, &n, text, 16), 0); /* no nonce */
    assert_int_equal(EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, -1), 1);
    assert_int_equal(EVP_CipherUpdate(c, NULL, &n, header, HEADER_BYTES), 1);
    assert_int_equal(EVP_CipherUpdate(c, NULL, &n, header, HEADER_BYTES), 0); /* a second header */
    assert_int_equal(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_IVLEN, 16, NULL), 0);
    assert_int_equal(EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, 8, tag), 0);
    assert_int_equal(EVP_CipherUpdate(c, out, &n, text, 16), 1);
    assert_int_equal(EVP_CipherFinal_ex(c, out, &n), 1);
    assert_int_equal(EVP_CipherUpdate(c, out, &n, text, 16), 0);
    assert_int_equal(EVP_CipherFinal_ex(c, out, &n), 0);
    EVP_CIPHER_CTX_free(c);
}

static void test_tls_gcm_leaves_the_default_library_context_alone(void **state)
{
    (void)state;
    need_cipher();
    EVP_CIPHER *c = EVP_CIPHER_fetch(NULL, "AES-128-GCM", TLS_GCM_PROPERTIES);
    assert_non_null(c);
    assert_string_equal(OSSL_PROVIDER_get0_name(EVP_CIPHER_get0_provider(c)), "default");
    EVP_CIPHER_free(c);
}

/* ---- in a connection ------------------------------------------------------------------------------ */
static bool has_own_cipher; /* that of OpenSSL, whatever the processor can do */
struct ossl_lib_ctx_st *__real_tls_gcm_library(void);
struct ossl_lib_ctx_st *__wrap_tls_gcm_library(void);

struct ossl_lib_ctx_st *__wrap_tls_gcm_library(void)
{
    return has_own_cipher ? NULL : __real_tls_gcm_library();
}

static void check_arrives(transport *from, uint32_t peer, transport *to, const buf *sent)
{
    transport_event event = {0};
    buf *copy             = buf_new(sent->size);
    memcpy(copy->data, sent->data, sent->size);
    assert_int_equal(transport_send(from, peer, "body", 4, copy), PEN_OK);
    for (const uint64_t until = now_ms() + PATIENCE_MS; now_ms() < until;) {
        if (transport_recv(to, &event) != PEN_OK) continue;
        if (event.kind == TRANSPORT_MESSAGE) break;
        buf_release(event.body);
    }
    assert_int_equal(event.kind, TRANSPORT_MESSAGE);
    assert_int_equal(event.body->size, sent->size);
    assert_memory_equal(event.body->data, sent->data, sent->size);
    buf_release(event.body);
}

static void test_tls_gcm_and_the_cipher_of_openssl_understand_each_other(void **state)
{
    (void)state;
    rig_address    = "socket://127.0.0.1:0";
    auth *server   = open_auth(0, AUTH_SERVER, 0);
    auth *worker   = open_auth(0, AUTH_WORKER, 3);
    buf *body      = buf_new(3 * MIB + 5);
    uint8_t *bytes = body->data;
    for (size_t i = 0; i < body->size; i++) bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int ciphers = 0; ciphers < 4; ciphers++) {
        has_own_cipher    = ciphers & 1;
        transport *listen = listen_with(server, (transport_options){0});
        has_own_cipher    = ciphers & 2;
        transport *d      = dial_with(worker, AUTH_SERVER, listen);
        await_up(listen, d);
        assert_int_equal(transport_send(d, 0, "hello", 5, NULL), PEN_OK);
        const uint32_t peer = await(listen, TRANSPORT_MESSAGE).peer;
        check_arrives(d, 0, listen, body);
        check_arrives(listen, peer, d, body);
        transport_close(d, 0);
        transport_close(listen, 0);
    }
    has_own_cipher = false;
    buf_release(body);
    auth_close(server);
    auth_close(worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_gcm_makes_what_the_cipher_of_openssl_makes),
        cmocka_unit_test(test_tls_gcm_makes_the_published_answer),
        cmocka_unit_test(test_tls_gcm_refuses_a_bit_changed_in_text_header_or_tag),
        cmocka_unit_test(test_tls_gcm_uses_a_nonce_for_one_message_and_takes_no_other_sizes),
        cmocka_unit_test(test_tls_gcm_leaves_the_default_library_context_alone),
        cmocka_unit_test_setup_teardown(
            test_tls_gcm_and_the_cipher_of_openssl_understand_each_other, make_secrets,
            remove_secrets),
    };
    return cmocka_run_group_tests(tests, fetch, release);
}
