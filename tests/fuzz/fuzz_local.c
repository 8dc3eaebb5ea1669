/* fuzz_local.c - any address that a peer announces is looked for without a fault. */
#include "common/net/local_socket.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[LOCAL_SOCKET_PATH_BYTES], *address = malloc(size + 1);
    FUZZ_CHECK(address != NULL);
    memcpy(address, data, size);
    address[size] = '\0';
    if (local_socket_find(address, path)) /* of a job of this user */
        FUZZ_CHECK(memchr(path, '\0', sizeof path) != NULL);
    (void)local_socket_is_of(address, size > 0 ? data[0] : 0);
    (void)local_socket_is_taken(address);
    free(address);
    return 0;
}
