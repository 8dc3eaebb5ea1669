/* fuzz_safetensors.c - any file of tensors is refused with a sentence, or all of its rows lie
 * inside of it and can be read. */
#include "common/snapshot/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

enum { ROWS_MAX = 64, VALUES_MAX = 1 << 16 };

static void read_row(safetensors_reader *r, const safetensors_row *row, uint64_t bytes)
{
    static float values[VALUES_MAX];
    pen_error why = {.status = PEN_OK};
    FUZZ_CHECK(row->name != NULL && row->ndim >= 0 && row->ndim <= SAFETENSORS_DIMS_MAX);
    FUZZ_CHECK(row->begin <= row->end && row->end <= bytes);
    fuzz_sink += strlen(row->name) + (size_t)row->dtype;
    const size_t n = row->elements < VALUES_MAX ? (size_t)row->elements : VALUES_MAX;
    for (int from_end = 0; from_end < 2; from_end++) {
        const uint64_t start = from_end ? row->elements - n : 0;
        if (safetensors_read(r, row, start, n, values, &why) != PEN_OK)
            FUZZ_CHECK(why.status != PEN_OK && why.text[0] != '\0');
        else if (n > 0)
            fuzz_sink += values[0] != 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int file = -1;
    if (file < 0) file = memfd_create("tensors", 0);
    FUZZ_CHECK(file >= 0 && ftruncate(file, 0) == 0);
    FUZZ_CHECK(pwrite(file, data, size, 0) == (ssize_t)size);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);

    safetensors_reader *r;
    pen_error why = {.status = PEN_OK};
    size_t n      = 0;
    if (safetensors_open(path, &r, &why) != PEN_OK) {
        FUZZ_CHECK(why.status != PEN_OK && why.text[0] != '\0');
        return 0;
    }
    const safetensors_row *rows = safetensors_rows(r, &n);
    for (size_t i = 0; i < n && i < ROWS_MAX; i++) read_row(r, &rows[i], size);
    safetensors_close(r);
    return 0;
}
