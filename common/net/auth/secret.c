/* secret.c - the secret of a job; the only file that includes sodium.h. */
#include "common/net/auth/secret.h"
#include "common/base/why.h"
#include "common/system/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHECK_BYTES  = 4,
    TEXT_LETTERS = SECRET_TEXT_BYTES - 6, /* behind the prefix */
    FILE_BYTES   = 256                    /* a longer file is not a secret */
};

#define PREFIX "pen1:"
static const char context[crypto_kdf_CONTEXTBYTES] = {'p', 'e', 'n', 's', 't', 'o', 'c', 'k'};
_Static_assert(SECRET_BYTES == crypto_kdf_KEYBYTES, "keys are derived from a secret as it is");
_Static_assert(crypto_scalarmult_BYTES == 32 && crypto_scalarmult_SCALARBYTES == 32, "X25519");

static pen_status start(pen_error *why)
{
    if (sodium_init() >= 0) return PEN_OK;
    return why_set(why, PEN_INTERNAL, "cannot start libsodium: no random numbers");
}

pen_status secret_make(secret *made, pen_error *why)
{
    const pen_status status = start(why);
    if (status == PEN_OK) randombytes_buf(made->bytes, sizeof made->bytes);
    return status;
}

void secret_wipe(secret *s)
{
    if (s != NULL) sodium_memzero(s, sizeof *s);
}

/* ---- text ------------------------------------------------------------------------------------ */

void secret_format(const secret *s, char text[SECRET_TEXT_BYTES])
{
    uint8_t all[SECRET_BYTES + CHECK_BYTES];
    memcpy(all, s->bytes, SECRET_BYTES);
    uint8_t hash[crypto_generichash_BYTES_MIN];
    crypto_generichash(hash, sizeof hash, s->bytes, SECRET_BYTES, NULL, 0);
    memcpy(all + SECRET_BYTES, hash, CHECK_BYTES);
    memcpy(text, PREFIX, strlen(PREFIX));
    sodium_bin2base64(text + strlen(PREFIX), TEXT_LETTERS + 1, all, sizeof all,
                      sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    sodium_memzero(all, sizeof all);
}

/* libsodium's decoder confuses some letters beyond ASCII: a secret must encode back to the same text. */
static bool is_written_so(const secret *s, const char *text)
{
    char again[SECRET_TEXT_BYTES];
    secret_format(s, again);
    const bool is = memcmp(again, text, SECRET_TEXT_BYTES - 1) == 0;
    sodium_memzero(again, sizeof again);
    return is;
}

pen_status secret_parse(const char *text, size_t size, secret *s, pen_error *why)
{
    uint8_t all[SECRET_BYTES + CHECK_BYTES];
    secret found;
    size_t used = 0;
    if (size < strlen(PREFIX) || memcmp(text, PREFIX, strlen(PREFIX)) != 0)
        return why_set(why, PEN_BAD_SETTING,
                       "expected a secret that begins with %s; `penstock keygen FILE` makes one",
                       PREFIX);
    const bool is_whole =
        size == strlen(PREFIX) + TEXT_LETTERS &&
        sodium_base642bin(all, sizeof all, text + strlen(PREFIX), TEXT_LETTERS, NULL, &used, NULL,
                          sodium_base64_VARIANT_URLSAFE_NO_PADDING) == 0 &&
        used == sizeof all;
    if (is_whole) memcpy(found.bytes, all, SECRET_BYTES);
    const bool is_right = is_whole && is_written_so(&found, text);
    if (is_right) *s = found;
    sodium_memzero(all, sizeof all);
    secret_wipe(&found);
    if (is_right) return PEN_OK;
    if (is_whole)
        return why_set(why, PEN_BAD_SETTING, "invalid secret: the checksum does not match");
    return why_set(why, PEN_BAD_SETTING,
                   "invalid secret: expected %s and %d "
                   "letters",
                   PREFIX, TEXT_LETTERS);
}

void secret_print(const secret *s, char print[SECRET_PRINT_BYTES])
{
    uint8_t subkey[crypto_kdf_BYTES_MIN];
    crypto_kdf_derive_from_key(subkey, sizeof subkey, UINT64_MAX, context, s->bytes);
    sodium_bin2hex(print, SECRET_PRINT_BYTES, subkey, (SECRET_PRINT_BYTES - 1) / 2);
    sodium_memzero(subkey, sizeof subkey);
}

/* ---- join lines ------------------------------------------------------------------------------ */

void secret_join_format(const secret *s, const char *host, uint32_t port,
                        char text[SECRET_JOIN_BYTES])
{
    const bool is_v6 = strchr(host, ':') != NULL && host[0] != '[';
    secret_format(s, text);
    const size_t n = strlen(text);
    snprintf(text + n, SECRET_JOIN_BYTES - n, is_v6 ? "@[%.253s]:%u" : "@%.255s:%u", host, port);
}

static bool parse_port(const char *text, size_t size, uint32_t *port)
{
    char *end;
    if (*text < '0' || *text > '9' || size > 5) return false;
    const unsigned long number = strtoul(text, &end, 10);
    if (end != text + size || number == 0 || number > 65535) return false;
    *port = (uint32_t)number;
    return true;
}

bool secret_is_in(const char *text)
{
    return strstr(text, PREFIX) != NULL;
}

pen_status secret_join_parse(const char *text, secret *s, char host[SECRET_HOST_BYTES],
                             uint32_t *port, pen_error *why)
{
    const char *from  = strstr(text, PREFIX);
    const size_t size = from != NULL ? strcspn(from, " \t\r\n") : 0;
    const char *at    = size > 0 ? memchr(from, '@', size) : NULL;
    const char *colon = at != NULL ? memrchr(at, ':', size - (size_t)(at - from)) : NULL;
    const size_t n    = colon != NULL ? (size_t)(colon - at - 1) : 0;
    uint32_t number   = 0;
    secret found;
    if (n == 0 || n >= SECRET_HOST_BYTES || memchr(at + 1, '/', n) != NULL ||
        !parse_port(colon + 1, size - (size_t)(colon + 1 - from), &number))
        return why_set(why, PEN_BAD_SETTING,
                       "expected a join line SECRET@HOST:PORT, as machine 0 printed it");
    const pen_status status = secret_parse(from, (size_t)(at - from), &found, why);
    if (status != PEN_OK) return status;
    *s = found;
    secret_wipe(&found);
    memcpy(host, at + 1, n);
    host[n] = '\0';
    *port   = number;
    return PEN_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static size_t trim(const char *text, size_t n)
{
    while (n > 0 && memchr(" \t\r\n", text[n - 1], 4) != NULL) n--;
    return n;
}

pen_status secret_read(const char *path, secret *s, pen_error *why)
{
    char text[FILE_BYTES];
    pen_error inner;
    if (start(why) != PEN_OK) return PEN_INTERNAL;
    pen_status status = own_secret_read("the secret", path, text, sizeof text, why);
    if (status == PEN_OK && secret_parse(text, trim(text, strlen(text)), s, &inner) != PEN_OK)
        status = why_set(why, PEN_BAD_SETTING, "%.200s: %s", path, inner.text);
    sodium_memzero(text, sizeof text);
    return status;
}

static bool write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        const ssize_t did = write(fd, text, n);
        if (did < 0 && errno == EINTR) continue;
        if (did <= 0) return false;
        text += did;
        n -= (size_t)did;
    }
    return true;
}

pen_status secret_write(const char *path, const secret *s, pen_error *why)
{
    char text[SECRET_TEXT_BYTES + 1];
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return why_set(why, PEN_STORE, "cannot create %.200s: %s%s", path, strerror(errno),
                       errno == EEXIST ? "; remove it first if no job needs it" : "");
    secret_format(s, text);
    strcat(text, "\n");
    const bool is_written = fchmod(fd, 0600) == 0 && write_all(fd, text, strlen(text));
    const int error       = errno;
    sodium_memzero(text, sizeof text);
    if (close(fd) == 0 && is_written) return PEN_OK;
    unlink(path);
    return why_set(why, PEN_STORE, "cannot write %.200s: %s", path, strerror(error));
}

/* ---- keys ------------------------------------------------------------------------------------ */

void secret_subkey(const secret *s, uint32_t use, uint32_t index, uint8_t key[32])
{
    crypto_kdf_derive_from_key(key, 32, (uint64_t)use << 32 | index, context, s->bytes);
}

void secret_derive(const secret *s, uint32_t use, uint32_t index, uint8_t own[32],
                   uint8_t own_public[32])
{
    secret_subkey(s, use, index, own);
    crypto_scalarmult_base(own_public, own);
}
