/* tls_gcm.c - AES-128-GCM of Intel's multi-buffer library as a provider of OpenSSL.
 *
 * DESIGN
 * Provider.  OpenSSL asks a provider for the cipher once for each connection and direction, then calls its functions for
 *            each record: a nonce, the header of the record, the text, the tag.  Nobody else uses this provider, as it
 *            lives in a library context of its own.
 * Nonces.    A nonce serves one message: after the tag, a new one has to come first.
 */
#include "common/net/transport/tls_gcm.h"

#include <stddef.h>

#ifndef PENSTOCK_IPSEC_MB

struct ossl_lib_ctx_st *tls_gcm_library(void)
{
    return NULL;
}

#else

#include "common/system/library.h"

#include <intel-ipsec-mb.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/provider.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 16, NONCE_BYTES = 12, TAG_BYTES = 16 };

/* clang-format off */
#define OPENSSL_FUNCTIONS(X) \
    X(CRYPTO_memcmp) X(EVP_default_properties_is_fips_enabled) X(OPENSSL_cleanse) X(OSSL_LIB_CTX_free) \
    X(OSSL_LIB_CTX_new) X(OSSL_PARAM_get_octet_string) X(OSSL_PARAM_get_size_t) X(OSSL_PARAM_locate) \
    X(OSSL_PARAM_locate_const) X(OSSL_PARAM_set_int) X(OSSL_PARAM_set_octet_string) X(OSSL_PARAM_set_size_t) \
    X(OSSL_PARAM_set_uint) X(OSSL_PROVIDER_add_builtin) X(OSSL_PROVIDER_load) X(OpenSSL_version_num)
#define INTEL_FUNCTIONS(X) X(alloc_mb_mgr) X(free_mb_mgr) X(imb_get_version) X(init_mb_mgr_auto)
/* clang-format on */

static struct {
    OPENSSL_FUNCTIONS(LIBRARY_MEMBER)
} openssl;

static struct {
    INTEL_FUNCTIONS(LIBRARY_MEMBER)
} intel;

static struct {
    aes_gcm_pre_t set_key;
    aes_gcm_init_t begin;
    aes_gcm_enc_dec_update_t encrypt, decrypt;
    aes_gcm_enc_dec_finalize_t end_encrypted, end_decrypted;
} gcm;

/* ---- one direction of a connection ---------------------------------------------------------------- */
typedef struct {
    struct gcm_key_data key;
    struct gcm_context_data state;
    uint8_t nonce[NONCE_BYTES], tag[TAG_BYTES];
    bool encrypts, has_key, has_nonce, has_begun;
} cipher;

static void *cipher_new(void *provider)
{
    (void)provider;
    cipher *c = aligned_alloc(_Alignof(cipher), sizeof *c);
    if (c != NULL) memset(c, 0, sizeof *c);
    return c;
}

static void cipher_free(void *pointer)
{
    if (pointer != NULL) openssl.OPENSSL_cleanse(pointer, sizeof(cipher));
    free(pointer);
}

static int set_parameters(void *pointer, const OSSL_PARAM *params)
{
    cipher *c           = pointer;
    const OSSL_PARAM *p = openssl.OSSL_PARAM_locate_const(params, OSSL_CIPHER_PARAM_AEAD_TAG);
    size_t size;
    void *tag = c->tag;
    if (p != NULL && (c->encrypts || p->data_size != TAG_BYTES ||
                      !openssl.OSSL_PARAM_get_octet_string(p, &tag, sizeof c->tag, &size)))
        return 0;
    p = openssl.OSSL_PARAM_locate_const(params, OSSL_CIPHER_PARAM_AEAD_IVLEN);
    return p == NULL || (openssl.OSSL_PARAM_get_size_t(p, &size) && size == NONCE_BYTES);
}

static int set_up(cipher *c, bool encrypts, const unsigned char *key, size_t key_size,
                  const unsigned char *nonce, size_t nonce_size, const OSSL_PARAM params[])
{
    if ((key != NULL && key_size != KEY_BYTES) || (nonce != NULL && nonce_size != NONCE_BYTES))
        return 0;
    c->encrypts = encrypts;
    if (key != NULL) {
        gcm.set_key(key, &c->key);
        c->has_key = true;
    }
    if (nonce != NULL) memcpy(c->nonce, nonce, NONCE_BYTES);
    c->has_nonce = nonce != NULL;
    c->has_begun = false;
    return set_parameters(c, params);
}

static int encrypt_init(void *c, const unsigned char *key, size_t key_size,
                        const unsigned char *nonce, size_t nonce_size, const OSSL_PARAM params[])
{
    return set_up(c, true, key, key_size, nonce, nonce_size, params);
}

static int decrypt_init(void *c, const unsigned char *key, size_t key_size,
                        const unsigned char *nonce, size_t nonce_size, const OSSL_PARAM params[])
{
    return set_up(c, false, key, key_size, nonce, nonce_size, params);
}

static bool begin(cipher *c, const void *header, size_t size)
{
    if (!c->has_key || !c->has_nonce || c->has_begun) return false;
    gcm.begin(&c->key, &c->state, c->nonce, header, size);
    return c->has_begun = true;
}

/* Without `out`: the header, which is proven and not encrypted.  It comes first, in one piece. */
static int update(void *pointer, unsigned char *out, size_t *written, size_t room,
                  const unsigned char *in, size_t size)
{
    cipher *c = pointer;
    *written  = size;
    if (out == NULL) return begin(c, in, size);
    if (room < size || (!c->has_begun && !begin(c, NULL, 0))) return 0;
    (c->encrypts ? gcm.encrypt : gcm.decrypt)(&c->key, &c->state, out, in, size);
    return 1;
}

static int final(void *pointer, unsigned char *out, size_t *written, size_t room)
{
    (void)out, (void)room;
    cipher *c = pointer;
    uint8_t tag[TAG_BYTES];
    *written = 0;
    if (!c->has_begun && !begin(c, NULL, 0)) return 0;
    (c->encrypts ? gcm.end_encrypted : gcm.end_decrypted)(&c->key, &c->state, tag, sizeof tag);
    const bool is_right = c->encrypts || openssl.CRYPTO_memcmp(tag, c->tag, sizeof tag) == 0;
    if (c->encrypts) memcpy(c->tag, tag, sizeof tag);
    c->has_nonce = c->has_begun = false;
    return is_right;
}

static bool set_size(OSSL_PARAM params[], const char *name, size_t value)
{
    OSSL_PARAM *p = openssl.OSSL_PARAM_locate(params, name);
    return p == NULL || openssl.OSSL_PARAM_set_size_t(p, value);
}

static bool set_flag(OSSL_PARAM params[], const char *name)
{
    OSSL_PARAM *p = openssl.OSSL_PARAM_locate(params, name);
    return p == NULL || openssl.OSSL_PARAM_set_int(p, 1);
}

static int describe(OSSL_PARAM params[])
{
    OSSL_PARAM *p = openssl.OSSL_PARAM_locate(params, OSSL_CIPHER_PARAM_MODE);
    return (p == NULL || openssl.OSSL_PARAM_set_uint(p, EVP_CIPH_GCM_MODE)) &&
           set_size(params, OSSL_CIPHER_PARAM_BLOCK_SIZE, 1) &&
           set_size(params, OSSL_CIPHER_PARAM_KEYLEN, KEY_BYTES) &&
           set_size(params, OSSL_CIPHER_PARAM_IVLEN, NONCE_BYTES) &&
           set_flag(params, OSSL_CIPHER_PARAM_AEAD) &&
           set_flag(params, OSSL_CIPHER_PARAM_CUSTOM_IV);
}

static int get_parameters(void *pointer, OSSL_PARAM params[])
{
    const cipher *c = pointer;
    OSSL_PARAM *p   = openssl.OSSL_PARAM_locate(params, OSSL_CIPHER_PARAM_AEAD_TAG);
    return set_size(params, OSSL_CIPHER_PARAM_KEYLEN, KEY_BYTES) &&
           set_size(params, OSSL_CIPHER_PARAM_IVLEN, NONCE_BYTES) &&
           set_size(params, OSSL_CIPHER_PARAM_AEAD_TAGLEN, TAG_BYTES) &&
           (p == NULL || (c->encrypts && p->data_size <= TAG_BYTES &&
                          openssl.OSSL_PARAM_set_octet_string(p, c->tag, p->data_size)));
}

/* ---- the provider ------------------------------------------------------------------------------- */
static const OSSL_ALGORITHM *query(void *provider, int operation, int *no_cache)
{
    static const OSSL_DISPATCH functions[] = {
        {OSSL_FUNC_CIPHER_NEWCTX, (void (*)(void))cipher_new},
        {OSSL_FUNC_CIPHER_FREECTX, (void (*)(void))cipher_free},
        {OSSL_FUNC_CIPHER_ENCRYPT_INIT, (void (*)(void))encrypt_init},
        {OSSL_FUNC_CIPHER_DECRYPT_INIT, (void (*)(void))decrypt_init},
        {OSSL_FUNC_CIPHER_UPDATE, (void (*)(void))update},
        {OSSL_FUNC_CIPHER_FINAL, (void (*)(void)) final},
        {OSSL_FUNC_CIPHER_GET_PARAMS, (void (*)(void))describe},
        {OSSL_FUNC_CIPHER_GET_CTX_PARAMS, (void (*)(void))get_parameters},
        {OSSL_FUNC_CIPHER_SET_CTX_PARAMS, (void (*)(void))set_parameters},
        {0, NULL}};
    static const OSSL_ALGORITHM ciphers[] = {
        {"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6", "provider=penstock", functions, NULL},
        {NULL, NULL, NULL, NULL}};
    (void)provider;
    *no_cache = 0;
    return operation == OSSL_OP_CIPHER ? ciphers : NULL;
}

static int provider_init(const OSSL_CORE_HANDLE *core, const OSSL_DISPATCH *in,
                         const OSSL_DISPATCH **out, void **provider)
{
    static const OSSL_DISPATCH functions[] = {
        {OSSL_FUNC_PROVIDER_QUERY_OPERATION, (void (*)(void))query}, {0, NULL}};
    (void)in;
    *provider = (void *)(uintptr_t)core;
    *out      = functions;
    return 1;
}

/* ---- the two libraries -------------------------------------------------------------------------- */
/* Only its functions for VAES are faster; a library that has not passed its own test is not used. */
static bool take_functions(void)
{
    const uint64_t needed = IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ |
                            IMB_FEATURE_SAFE_DATA | IMB_FEATURE_SELF_TEST_PASS;
    IMB_ARCH arch;
    IMB_MGR *m = intel.alloc_mb_mgr(0);
    if (m == NULL) return false;
    intel.init_mb_mgr_auto(m, &arch);
    const bool is_fast = arch == IMB_ARCH_AVX512 && (m->features & needed) == needed;
    gcm.set_key        = m->gcm128_pre;
    gcm.begin          = m->gcm128_init;
    gcm.encrypt        = m->gcm128_enc_update;
    gcm.decrypt        = m->gcm128_dec_update;
    gcm.end_encrypted  = m->gcm128_enc_finalize;
    gcm.end_decrypted  = m->gcm128_dec_finalize;
    intel.free_mb_mgr(m);
    return is_fast;
}

static bool load(void)
{
    static const char *const openssl_names[] = {OPENSSL_FUNCTIONS(LIBRARY_NAME)};
    static const char *const intel_names[]   = {INTEL_FUNCTIONS(LIBRARY_NAME)};
    return library_load(PENSTOCK_SSL, openssl_names, sizeof openssl_names / sizeof *openssl_names,
                        &openssl, NULL) == PEN_OK &&
           openssl.OpenSSL_version_num() < 0x30100000L &&
           !openssl.EVP_default_properties_is_fips_enabled(NULL) &&
           library_load(PENSTOCK_IPSEC_MB, intel_names, sizeof intel_names / sizeof *intel_names,
                        &intel, NULL) == PEN_OK &&
           intel.imb_get_version() >> 8 == IMB_VERSION_NUM >> 8 && take_functions();
}

static OSSL_LIB_CTX *library;

static void start(void)
{
    if (!load()) return;
    OSSL_LIB_CTX *made = openssl.OSSL_LIB_CTX_new();
    if (made != NULL && openssl.OSSL_PROVIDER_add_builtin(made, "penstock", provider_init) == 1 &&
        openssl.OSSL_PROVIDER_load(made, "default") != NULL &&
        openssl.OSSL_PROVIDER_load(made, "penstock") != NULL)
        library = made;
    else
        openssl.OSSL_LIB_CTX_free(made);
}

OSSL_LIB_CTX *tls_gcm_library(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return library;
}

#endif
