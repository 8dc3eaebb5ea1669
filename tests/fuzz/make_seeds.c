/* make_seeds.c - writes the seeds of the file fuzzers: a secret, join lines, a snapshot's part and its manifest.
 *   make_seeds tests/fuzz/corpus      (tests/fuzz/run.sh --corpus builds and runs it) */
#include "common/net/auth/secret.h"
#include "common/snapshot/store.h"
#include "common/snapshot/store_files.h"
#include "common/snapshot/store_manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void save(const char *folder, const char *name, char kind, const void *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    if (file == NULL || fputc(kind, file) == EOF || fwrite(data, 1, size, file) != size ||
        fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void check(pen_status status, const pen_error *why)
{
    if (status == PEN_OK) return;
    fprintf(stderr, "%s\n", why->text);
    exit(1);
}

static void save_secrets(const char *folder)
{
    char text[SECRET_TEXT_BYTES + 1], line[SECRET_JOIN_BYTES];
    secret s;
    for (int i = 0; i < SECRET_BYTES; i++) s.bytes[i] = (uint8_t)(7 * i);
    secret_format(&s, text);
    strcat(text, "\n");
    save(folder, "file", 'f', text, strlen(text));
    secret_join_format(&s, "node-0.example.org", 29500, line);
    save(folder, "join", 'j', line, strlen(line));
    secret_join_format(&s, "fe80::1", 1, line);
    save(folder, "join6", 'j', line, strlen(line));
}

static const store_tensor tensors[] = {
    {.name       = "fc1.weight",
     .elements   = 12,
     .slots      = 2,
     .slot_names = {"m", "v"},
     .optim      = "adamw lr=3e-4",
     .ndim       = 2,
     .shape      = {3, 4}},
    {.name = "b", .elements = 3, .optim = "sgd lr=0.1", .ndim = 1, .shape = {3}}};
static const store_setting settings[] = {{"mode", "ps-bsp"}};
static const store_manifest manifest  = {.step       = 3,
                                         .applied    = 3,
                                         .id         = 0xab,
                                         .job        = "seed",
                                         .n_tensors  = 2,
                                         .n_settings = 1,
                                         .tensor     = tensors,
                                         .setting    = settings,
                                         .format     = STORE_FORMAT,
                                         .version    = "1.0.0"};

static void save_part(const char *folder, const char *path)
{
    static char bytes[1 << 20];
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    save(folder, "part", 'p', bytes, fread(bytes, 1, sizeof bytes, file));
    fclose(file);
}

static void save_store(const char *folder)
{
    char dir[] = "/tmp/make-seeds-XXXXXX", part[80], path[STORE_PATH_BYTES],
         name[STORE_FILE_NAME_BYTES];
    const float values[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    store *s;
    pen_error why;
    size_t size, n;
    uint8_t *bytes = store_manifest_encode(&manifest, &size);
    if (bytes == NULL || mkdtemp(dir) == NULL) exit(1);
    uint8_t *tagged = malloc(size + 1);
    if (tagged == NULL) exit(1);
    tagged[0] = STORE_FORMAT;
    memcpy(tagged + 1, bytes, size);
    save(folder, "manifest", 'm', tagged, size + 1);
    free(tagged);
    free(bytes);
    check(store_open(dir, 0, &s, &why), &why);
    check(store_begin(s, &manifest, &why), &why);
    check(store_put(s, "fc1.weight", "param", 0, 12, values, &why), &why);
    check(store_put(s, "fc1.weight", "m", 0, 12, values, &why), &why);
    check(store_put(s, "fc1.weight", "v", 0, 12, values, &why), &why);
    check(store_put(s, "b", "param", 0, 3, values, &why), &why);
    check(store_put_blob(s, "versions", "12345678", 8, &why), &why);
    check(store_commit(s, &why), &why);
    store_close(s);
    store_file *files;
    snprintf(part, sizeof part, "%s/part-0", dir);
    check(store_files_list(part, &files, &n, &why), &why);
    if (n != 1) exit(1);
    store_file_name(&files[0], name);
    if (!store_files_join(path, part, name)) exit(1);
    save_part(folder, path);
    free(files);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) exit(1);
}

int main(int argc, char **argv)
{
    char folder[4000];
    if (argc != 2) return 2;
    snprintf(folder, sizeof folder, "%s/secret", argv[1]);
    save_secrets(folder);
    snprintf(folder, sizeof folder, "%s/store", argv[1]);
    save_store(folder);
    return 0;
}
