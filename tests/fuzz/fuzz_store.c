/* fuzz_store.c - any file of a snapshot is refused with a sentence, or is a snapshot that can be read:
 * nothing in it is trusted before it was checked.  The first byte selects: 'm' a manifest alone, anything else a
 * part's whole file. */
#include "common/snapshot/store.h"
#include "common/snapshot/store_files.h"
#include "common/snapshot/store_manifest.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS_MAX = 16, VALUES_MAX = 1 << 16 };

static void check_text(const char *text)
{
    FUZZ_CHECK(text != NULL);
    fuzz_sink += strlen(text);
}

static void check_manifest(const uint8_t *data, size_t size)
{
    store_manifest *m = NULL;
    pen_error why     = {.status = PEN_OK};
    if (size == 0) return;
    const store_bytes bytes = {data + 1, size - 1};
    const pen_status status = store_manifest_decode(bytes, "a file", &m, &why);
    if (status != PEN_OK) {
        FUZZ_CHECK(why.status == status && why.text[0] != '\0');
        return;
    }
    check_text(m->job);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        check_text(m->tensor[i].name);
        FUZZ_CHECK(m->tensor[i].slots >= 0 && m->tensor[i].slots <= STORE_SLOTS_MAX);
        for (int32_t k = 0; k < m->tensor[i].slots; k++) check_text(m->tensor[i].slot_names[k]);
    }
    for (uint32_t i = 0; i < m->n_settings; i++) check_text(m->setting[i].key);
    free(m);
}

static char path_of_store[64];

static void remove_folder(void)
{
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", path_of_store);
    fuzz_sink += (uint64_t)system(command);
}

static const char *folder(void)
{
    if (path_of_store[0] != '\0') return path_of_store;
    snprintf(path_of_store, sizeof path_of_store, "/tmp/fuzz-store-XXXXXX");
    FUZZ_CHECK(mkdtemp(path_of_store) != NULL && atexit(remove_folder) == 0);
    char part[80];
    snprintf(part, sizeof part, "%s/part-0", path_of_store);
    FUZZ_CHECK(mkdir(part, 0700) == 0);
    return path_of_store;
}

static void read_step(store_reader *r, int64_t step)
{
    const store_manifest *m;
    pen_error why = {.status = PEN_OK};
    uint64_t bytes;
    static float values[VALUES_MAX];
    if (store_reader_manifest(r, step, &m, &why) != PEN_OK) return;
    for (uint32_t i = 0; i < m->n_tensors && i < 8; i++) {
        const uint64_t n = m->tensor[i].elements < VALUES_MAX ? m->tensor[i].elements : VALUES_MAX;
        if (store_read(r, step, m->tensor[i].name, "param", 0, n, values, &why) == PEN_OK)
            fuzz_sink += n > 0 ? (uint64_t)(values[0] != 0) : 0;
        else
            FUZZ_CHECK(why.text[0] != '\0');
    }
    const pen_status status = store_verify(r, step, &bytes, &why);
    FUZZ_CHECK(status == PEN_OK || why.text[0] != '\0');
}

static void check_file(const uint8_t *data, size_t size)
{
    char path[128], name[STORE_FILE_NAME_BYTES];
    const store_file file = {.serial = 7, .step = 3, .id = 0xab};
    int64_t steps[STEPS_MAX];
    store_reader *r;
    pen_error why = {.status = PEN_OK};
    store_file_name(&file, name);
    snprintf(path, sizeof path, "%s/part-0/%s", folder(), name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
    const pen_status status = store_reader_open(folder(), &r, &why);
    if (status != PEN_OK) {
        FUZZ_CHECK(why.text[0] != '\0');
        return;
    }
    const size_t n = store_reader_steps(r, steps, STEPS_MAX);
    for (size_t i = 0; i < n && i < STEPS_MAX; i++) read_step(r, steps[i]);
    store_entry entries[STEPS_MAX];
    const size_t all = store_reader_list(r, entries, STEPS_MAX);
    for (size_t i = 0; i < all && i < STEPS_MAX; i++)
        if (!entries[i].is_complete) FUZZ_CHECK(entries[i].trouble != NULL);
    store_reader_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    data[0] == 'm' ? check_manifest(data + 1, size - 1) : check_file(data + 1, size - 1);
    return 0;
}
