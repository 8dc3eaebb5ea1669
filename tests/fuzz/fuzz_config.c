/* fuzz_config.c - any settings file or member string is refused with a
 * sentence, or gives settings that are in range and that read back as they were written. */
#include "common/base/config.h"
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    uint64_t bytes;
    int64_t offset;
    double rate;
    bool flag;
    int mode;
    char text[CONFIG_TEXT_BYTES];
} settings;

static const char *const modes[] = {"bsp", "ssp", "async", NULL};

/* clang-format off */
static const config_row rows[] = {
    {"bytes",  CONFIG_U64,  offsetof(settings, bytes),  "64m",  1,    1e12, NULL,  "A size."},
    {"offset", CONFIG_I64,  offsetof(settings, offset), "-3",   -100, 100,  NULL,  "A signed one."},
    {"rate",   CONFIG_F64,  offsetof(settings, rate),   "1e-3", 0,    1e6,  NULL,  "A fraction."},
    {"flag",   CONFIG_BOOL, offsetof(settings, flag),   "yes",  0,    0,    NULL,  "A switch."},
    {"mode",   CONFIG_ENUM, offsetof(settings, mode),   "bsp",  0,    0,    modes, "A choice."},
    {"text",   CONFIG_TEXT, offsetof(settings, text),   "",     0,    0,    NULL,  "A text."},
    {0},
};
/* clang-format on */

static void check_settings(const settings *s)
{
    FUZZ_CHECK(s->bytes >= 1 && s->bytes <= 1000000000000);
    FUZZ_CHECK(s->offset >= -100 && s->offset <= 100);
    FUZZ_CHECK(s->rate >= 0 && s->rate <= 1e6);
    FUZZ_CHECK(s->mode >= 0 && s->mode <= 2);
    FUZZ_CHECK(memchr(s->text, '\0', sizeof s->text) != NULL);

    settings back;
    memset(&back, 0, sizeof back);
    config_defaults(rows, &back);
    for (const config_row *row = rows; row->name != NULL; row++) {
        char text[CONFIG_TEXT_BYTES], again[CONFIG_TEXT_BYTES];
        pen_error why;
        config_get(rows, s, row->name, text, sizeof text);
        FUZZ_CHECK(config_set(rows, &back, row->name, text, &why) == PEN_OK);
        config_get(rows, &back, row->name, again, sizeof again);
        FUZZ_CHECK(strcmp(text, again) == 0);
    }
    FUZZ_CHECK(memcmp(&back.rate, &s->rate, sizeof s->rate) == 0 && back.bytes == s->bytes);
}

static pen_status read_file(settings *s, const uint8_t *data, size_t size, pen_error *why)
{
    static int file = -1;
    if (file < 0) file = memfd_create("settings", 0);
    FUZZ_CHECK(file >= 0 && ftruncate(file, 0) == 0);
    FUZZ_CHECK(pwrite(file, data, size, 0) == (ssize_t)size);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return config_from_file(rows, s, path, why);
}

static pen_status read_words(settings *s, const uint8_t *data, size_t size, pen_error *why)
{
    char *words = malloc(size + 1);
    FUZZ_CHECK(words != NULL);
    memcpy(words, data, size);
    words[size]       = '\0';
    pen_status status = config_from_words(rows, s, words, why);
    free(words);
    return status;
}

/* The first byte selects: 'w' words, anything else a file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    settings s;
    pen_error why = {.status = PEN_OK};
    memset(&s, 0, sizeof s);
    config_defaults(rows, &s);
    pen_status status = data[0] == 'w' ? read_words(&s, data + 1, size - 1, &why)
                                       : read_file(&s, data + 1, size - 1, &why);
    FUZZ_CHECK(status == PEN_OK || (why.status == status && why.text[0] != '\0'));
    check_settings(&s);
    return 0;
}
