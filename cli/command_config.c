/* command_config.c - `penstock config`: writes a configuration file of accelerate, for `penstock run --config`. */
#include "cli/command.h"
#include "cli/config/keys.h"
#include "cli/config/resolve.h"
#include "cli/config/write_yaml.h"
#include "common/why.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEYS_MAX = 256 };

static const char usage[] =
    "usage: penstock config --out X.yml [--force] [--KEY VALUE]...\n\n"
    "Writes a configuration file of accelerate, as `accelerate config` does, but from flags: "
    "nothing is\n"
    "asked.  Without --out it is printed, and only with --force a file is written over.  A KEY is "
    "a "
    "key of\n"
    "that file, with - or _.  The first key of a section deepspeed_config or fsdp_config chooses\n"
    "distributed_type.";

static const char *last_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

static bool is_flag(const key_row *row)
{
    return strchr(row->path, '*') == NULL;
}

/* The keys as a table of settings, which is what help is written from. */
static int print_help(void)
{
    config_row rows[KEYS_MAX] = {
        {"out", CONFIG_TEXT, 0, "", 0, 0, NULL, "The file to write."},
        {"force", CONFIG_BOOL, 0, "no", 0, 0, NULL, "Write over it when it is there already."}};
    size_t n = 2;
    for (const key_row *row = accelerate_keys; row->path != NULL && n + 1 < KEYS_MAX; row++)
        if (is_flag(row) && row->use != KEY_IDLE)
            rows[n++] = (config_row){last_of(row->path), CONFIG_TEXT, 0, "", 0, 0, NULL, row->doc};
    return command_help(usage, rows);
}

static const key_row *find_key(const char *name)
{
    for (const key_row *row = accelerate_keys; row->path != NULL; row++)
        if (is_flag(row) && strcmp(last_of(row->path), name) == 0) return row;
    return NULL;
}

static const char *nearest_key(const char *name)
{
    const char *names[256];
    size_t n = 0;
    for (const key_row *row = accelerate_keys; row->path != NULL && n < 256; row++)
        if (is_flag(row)) names[n++] = last_of(row->path);
    return command_nearest(name, names, n);
}

static document_kind kind_of(const key_row *row, const char *text)
{
    if (strcmp(text, "null") == 0) return DOCUMENT_NULL;
    if (row->value == KEY_SWITCH) return DOCUMENT_BOOL;
    if (row->value == KEY_WHOLE || row->value == KEY_NUMBER) return DOCUMENT_NUMBER;
    char *end;
    strtod(text, &end); /* fsdp_sharding_strategy: 1 */
    return row->value == KEY_WORD && *end == '\0' ? DOCUMENT_NUMBER : DOCUMENT_TEXT;
}

typedef struct {
    document d;
    const char *out;
    bool force;
} request;

/* One flag; *i then stands on its value.  -1: go on; else the exit code. */
static int take_flag(request *r, int argc, char **argv, int *i)
{
    char name[DOCUMENT_PATH_BYTES], value[CONFIG_TEXT_BYTES];
    pen_error why;
    const char *word = argv[*i], *equals = strchr(word, '=');
    if (strncmp(word, "--", 2) != 0 || word[2] == '\0')
        return command_fail(EXIT_USAGE, "'%s' is one word too many", word);
    const size_t n = equals != NULL ? (size_t)(equals - word - 2) : strlen(word + 2);
    snprintf(name, sizeof name, "%.*s", (int)n, word + 2);
    for (char *c = name; *c != '\0'; c++)
        if (*c == '-') *c = '_';
    if (strcmp(name, "force") == 0) {
        r->force = true;
        return -1;
    }
    const key_row *row = find_key(name);
    const bool is_out  = strcmp(name, "out") == 0;
    if (row == NULL && !is_out)
        return command_fail(EXIT_USAGE,
                            "unknown key '%s'; did you mean '%s'?  (penstock config --help)", name,
                            nearest_key(name));
    const char *text = equals != NULL ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (text == NULL) return command_fail(EXIT_USAGE, "--%s needs a value", name);
    if (is_out) {
        r->out = text;
        return -1;
    }
    const document_kind kind = kind_of(row, text);
    pen_status status        = document_add(&r->d, row->path, text, kind, 1, &why);
    if (status == PEN_OK && kind != DOCUMENT_NULL)
        status = key_convert(row, &r->d, &r->d.keys[r->d.n - 1], value, &why);
    if (status == PEN_OK && kind == DOCUMENT_BOOL)
        snprintf(r->d.keys[r->d.n - 1].text, CONFIG_TEXT_BYTES, "%s",
                 strcmp(value, "yes") == 0 ? "true" : "false");
    return status == PEN_OK ? -1 : command_fail(EXIT_USAGE, "%s", why.text);
}

static bool has_section(const document *d, const char *section)
{
    for (size_t i = 0; i < d->n; i++)
        if (strncmp(d->keys[i].path, section, strlen(section)) == 0) return true;
    return false;
}

static pen_status add_missing(document *d, const char *path, const char *text, document_kind kind,
                              pen_error *why)
{
    return document_find(d, path) != NULL ? PEN_OK : document_add(d, path, text, kind, 1, why);
}

/* What `accelerate config` would have written of what nobody asked for. */
static pen_status fill(document *d, pen_error *why)
{
    static const struct {
        const char *path, *text;
        document_kind kind;
    } defaults[] = {
        {"compute_environment", "LOCAL_MACHINE", DOCUMENT_TEXT},
        {"machine_rank", "0", DOCUMENT_NUMBER},
        {"main_process_ip", "", DOCUMENT_NULL},
        {"main_process_port", "", DOCUMENT_NULL},
        {"main_training_function", "main", DOCUMENT_TEXT},
        {"mixed_precision", "no", DOCUMENT_TEXT},
        {"num_machines", "1", DOCUMENT_NUMBER},
        {"num_processes", "1", DOCUMENT_NUMBER},
        {"use_cpu", "false", DOCUMENT_BOOL},
    };
    pen_status status = PEN_OK;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults && status == PEN_OK; i++)
        status = add_missing(d, defaults[i].path, defaults[i].text, defaults[i].kind, why);
    if (status != PEN_OK) return status;
    const document_key *n   = document_find(d, "num_processes");
    const document_key *cpu = document_find(d, "use_cpu");
    const char *kind        = strcmp(n->text, "1") == 0        ? "NO"
                              : strcmp(cpu->text, "true") == 0 ? "MULTI_CPU"
                                                               : "MULTI_GPU";
    if (has_section(d, "deepspeed_config.")) kind = "DEEPSPEED";
    if (has_section(d, "fsdp_config.")) kind = "FSDP";
    status = add_missing(d, "distributed_type", kind, DOCUMENT_TEXT, why);
    kind   = document_find(d, "distributed_type")->text;
    if (status == PEN_OK && strcmp(kind, "DEEPSPEED") == 0 &&
        document_find(d, "deepspeed_config.deepspeed_config_file") == NULL)
        status = add_missing(d, "deepspeed_config.zero_stage", "2", DOCUMENT_NUMBER, why);
    if (status == PEN_OK && strcmp(kind, "FSDP") == 0)
        status =
            add_missing(d, "fsdp_config.fsdp_sharding_strategy", "FULL_SHARD", DOCUMENT_TEXT, why);
    return status;
}

static const char *nothing_given(const void *user, const char *setting, const char **source)
{
    (void)user;
    (void)setting;
    *source = "";
    return NULL;
}

/* `penstock run` would take it. */
static pen_status check(const document *d, pen_error *why)
{
    static const resolve_flags no_flags = {.lr = NULL};
    resolution r;
    const pen_status status =
        resolve(d, NULL, &no_flags, (resolve_given){nothing_given, NULL}, &r, why);
    for (size_t i = 0; status == PEN_OK && i < r.n_notices; i++)
        if (strstr(r.notices[i], "main_training_function") == NULL)
            fprintf(stderr, "penstock: %s\n", r.notices[i]);
    resolution_free(&r);
    return status;
}

static pen_status write_file(request *r, pen_error *why)
{
    char temporary[CONFIG_TEXT_BYTES * 2];
    if (!r->force && access(r->out, F_OK) == 0)
        return why_set(why, PEN_BAD_SETTING, "%s is there already; --force writes over it", r->out);
    snprintf(temporary, sizeof temporary, "%.400s.part", r->out);
    FILE *file = fopen(temporary, "w");
    if (file == NULL) return why_set(why, PEN_STORE, "cannot write %.200s: %m", temporary);
    pen_status status = document_write_yaml(&r->d, file, why);
    const bool failed = (fflush(file) != 0) | (fsync(fileno(file)) != 0) | (fclose(file) != 0);
    if (status == PEN_OK && (failed || rename(temporary, r->out) != 0))
        status = why_set(why, PEN_STORE, "cannot write %.200s: %m", r->out);
    if (status != PEN_OK) unlink(temporary);
    return status;
}

int command_config(int argc, char **argv)
{
    request r = {.d = {.name = "the flags"}, .out = NULL};
    pen_error why;
    int code = -1;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return print_help();
    for (int i = 1; i < argc && code < 0; i++) code = take_flag(&r, argc, argv, &i);
    if (code < 0) {
        pen_status status = fill(&r.d, &why);
        if (status == PEN_OK) status = check(&r.d, &why);
        if (status == PEN_OK)
            status = r.out != NULL ? write_file(&r, &why) : document_write_yaml(&r.d, stdout, &why);
        code = status == PEN_OK ? 0 : command_fail(EXIT_USAGE, "%s", why.text);
    }
    document_free(&r.d);
    return code;
}
