/* fuzz_secret.c - any key file or join line is refused with a sentence that does not repeat it,
 * or is a secret that is written as it was read.  The first byte selects: 'j' a join line, anything else a file. */
#include "common/net/auth/secret.h"
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void check_join(const uint8_t *data, size_t size)
{
    char *line    = malloc(size + 1), host[SECRET_HOST_BYTES], again[SECRET_JOIN_BYTES];
    uint32_t port = 0, same_port;
    secret s, same;
    pen_error why = {.status = PEN_OK};
    FUZZ_CHECK(line != NULL);
    memcpy(line, data, size);
    line[size]              = '\0';
    const pen_status status = secret_join_parse(line, &s, host, &port, &why);
    if (status == PEN_OK) {
        FUZZ_CHECK(port >= 1 && port <= 65535 && host[0] != '\0');
        FUZZ_CHECK(memchr(host, '\0', sizeof host) != NULL && strpbrk(host, " \t\r\n/") == NULL);
        secret_join_format(&s, host, port, again);
        char same_host[SECRET_HOST_BYTES];
        FUZZ_CHECK(secret_join_parse(again, &same, same_host, &same_port, &why) == PEN_OK);
        FUZZ_CHECK(memcmp(&s, &same, sizeof s) == 0 && port == same_port);
    } else {
        FUZZ_CHECK(status == PEN_BAD_SETTING && why.status == status && why.text[0] != '\0');
    }
    free(line);
}

static void check_file(const uint8_t *data, size_t size)
{
    static int file = -1;
    if (file < 0) file = memfd_create("secret", 0);
    FUZZ_CHECK(file >= 0 && fchmod(file, 0600) == 0 && ftruncate(file, 0) == 0);
    FUZZ_CHECK(pwrite(file, data, size, 0) == (ssize_t)size);
    char path[64], text[SECRET_TEXT_BYTES];
    secret s, same;
    pen_error why = {.status = PEN_OK};
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    const pen_status status = secret_read(path, &s, &why);
    if (status == PEN_OK) {
        secret_format(&s, text);
        FUZZ_CHECK(secret_parse(text, strlen(text), &same, &why) == PEN_OK);
        FUZZ_CHECK(memcmp(&s, &same, sizeof s) == 0);
        FUZZ_CHECK(size >= strlen(text) && memcmp(data, text, strlen(text)) == 0);
    } else {
        FUZZ_CHECK(status == PEN_BAD_SETTING && why.status == status && why.text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    data[0] == 'j' ? check_join(data + 1, size - 1) : check_file(data + 1, size - 1);
    return 0;
}
