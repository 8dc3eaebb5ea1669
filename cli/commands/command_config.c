/* command_config.c - `penstock config`: writes a configuration file of accelerate, for `penstock run --config`. */
#include "cli/command.h"
#include "cli/config/key_flags.h"
#include "cli/config/write_yaml.h"
#include "common/base/why.h"
#include "common/config_files/resolve.h"
#include "common/system/own_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEYS_MAX = 256 };

static const char usage[] =
    "usage: penstock config [--config-file X.yml] [--force] [--KEY VALUE]...\n\n"
    "Writes an accelerate configuration file from flags.  Without --config-file (or --out) it "
    "goes\n"
    "to stdout.  --force overwrites an existing file.  KEY is a key of the file, with - or _.  "
    "The\n"
    "first key of section deepspeed_config or fsdp_config sets distributed_type.  Without any "
    "flag,\n"
    "on a terminal, it asks.";

static const char *nearest_key(const char *name)
{
    const char *names[KEYS_MAX], *of;
    size_t n = 0;
    for (const key_row *row = accelerate_keys; row->path != NULL && n < KEYS_MAX; row++)
        if ((of = key_flag_name(row)) != NULL) names[n++] = of;
    return command_nearest(name, names, n);
}

typedef struct {
    document d;
    const char *out;
    bool force;
} request;

/* One flag; *i moves on to its value.  -1: continue; else the exit code. */
static int take_flag(request *r, int argc, char **argv, int *i)
{
    char name[DOCUMENT_PATH_BYTES];
    pen_error why;
    const char *word = argv[*i], *equals = strchr(word, '=');
    if (strncmp(word, "--", 2) != 0 || word[2] == '\0')
        return command_fail(EXIT_USAGE, "unexpected argument '%s'", word);
    const size_t n = equals != NULL ? (size_t)(equals - word - 2) : strlen(word + 2);
    snprintf(name, sizeof name, "%.*s", (int)n, word + 2);
    for (char *c = name; *c != '\0'; c++)
        if (*c == '-') *c = '_';
    if (strcmp(name, "force") == 0) {
        r->force = true;
        return -1;
    }
    const char *text;
    const key_row *row = key_flag_find(name, &text);
    const bool is_out  = strcmp(name, "out") == 0 || strcmp(name, "config_file") == 0;
    if (row == NULL && !is_out)
        return command_fail(EXIT_USAGE,
                            "unknown key '%s'; did you mean '%s'?  (penstock config --help)", name,
                            nearest_key(name));
    if (text == NULL) text = equals != NULL ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (text == NULL) return command_fail(EXIT_USAGE, "--%s needs a value", name);
    if (is_out) {
        r->out = text;
        return -1;
    }
    if (key_flag_put(&r->d, row, text, &why) == PEN_OK) return -1;
    return command_fail(EXIT_USAGE, "%s", why.text);
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
    return document_find(d, path) != NULL ? PEN_OK : document_add(d, path, text, kind, 0, why);
}

/* Keys that were not given, as `accelerate config` writes them. */
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

/* Refuses what `penstock run` would refuse. */
static pen_status check(const document *d, pen_error *why)
{
    static const resolve_flags no_flags = {.lr = NULL};
    resolution r;
    const pen_status status =
        resolve(d, NULL, &no_flags, (resolve_given){nothing_given, NULL}, &r, why);
    for (size_t i = 0; status == PEN_OK && i < r.n_notices; i++)
        fprintf(stderr, "penstock: %s\n", r.notices[i].text);
    resolution_free(&r);
    return status;
}

static pen_status write_file(request *r, pen_error *why)
{
    char temporary[CONFIG_TEXT_BYTES * 2];
    if (!r->force && access(r->out, F_OK) == 0)
        return why_set(why, PEN_BAD_SETTING, "%s already exists; --force overwrites it", r->out);
    FILE *file = own_file_beside(r->out, temporary, sizeof temporary);
    if (file == NULL) return why_set(why, PEN_STORE, "cannot write %.200s: %m", r->out);
    pen_status status = document_write_yaml(&r->d, file, why);
    const bool failed = (fflush(file) != 0) | (fsync(fileno(file)) != 0) | (fclose(file) != 0);
    if (status == PEN_OK && (failed || rename(temporary, r->out) != 0))
        status = why_set(why, PEN_STORE, "cannot write %.200s: %m", r->out);
    if (status != PEN_OK) unlink(temporary);
    return status;
}

/* ---- questions, on a terminal --------------------------------------------------------------------------- */
static const struct {
    const char *key, *text, *usual;
    const char *needs; /* asked if this answer was given to `sharding`; NULL: always */
} questions[] = {
    {"num_machines", "Number of machines", "1", NULL},
    {"num_processes", "Number of workers on all machines together", "1", NULL},
    {"mixed_precision", "Precision: no, bf16 or fp16", "no", NULL},
    {NULL, "Shard over the workers: no, zero (DeepSpeed) or fsdp", "no", NULL},
    {"zero_stage", "ZeRO stage: 1 optimizer state, 2 and gradients, 3 and parameters", "2", "zero"},
    {"fsdp_sharding_strategy", "FULL_SHARD, SHARD_GRAD_OP or NO_SHARD", "FULL_SHARD", "fsdp"},
    {"fsdp_transformer_layer_cls_to_wrap", "Class of the layers to wrap (empty: by units)", "",
     "fsdp"},
};

/* False: the end of the input. */
static bool read_answer(const char *text, const char *usual, char answer[CONFIG_TEXT_BYTES])
{
    fprintf(stderr, "%s%s%s%s: ", text, usual[0] != '\0' ? " [" : "", usual,
            usual[0] != '\0' ? "]" : "");
    if (fgets(answer, CONFIG_TEXT_BYTES, stdin) == NULL) return false;
    answer[strcspn(answer, "\n")] = '\0';
    if (answer[0] == '\0') snprintf(answer, CONFIG_TEXT_BYTES, "%s", usual);
    return true;
}

/* Repeats a question until its answer is one.  -1: go on; else the exit code. */
static int ask(request *r)
{
    static char file[CONFIG_TEXT_BYTES];
    char answer[CONFIG_TEXT_BYTES], sharding[CONFIG_TEXT_BYTES] = "no";
    pen_error why;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        const char *key = questions[i].key, *text;
        if (questions[i].needs != NULL && strcmp(questions[i].needs, sharding) != 0) continue;
        if (!read_answer(questions[i].text, questions[i].usual, answer))
            return command_fail(EXIT_USAGE, "no answer; nothing was written");
        const bool is_known =
            strcmp(answer, "no") == 0 || strcmp(answer, "zero") == 0 || strcmp(answer, "fsdp") == 0;
        pen_status status = PEN_OK;
        if (key == NULL && !is_known)
            status = why_set(&why, PEN_BAD_SETTING, "'%.40s' is not one of these", answer);
        else if (key == NULL)
            snprintf(sharding, sizeof sharding, "%s", answer);
        else if (answer[0] != '\0')
            status = key_flag_put(&r->d, key_flag_find(key, &text), answer, &why);
        if (status == PEN_OK) continue;
        fprintf(stderr, "penstock: %s\n", why.text);
        i--;
    }
    if (!read_answer("File to write", "accelerate.yml", file))
        return command_fail(EXIT_USAGE, "no answer; nothing was written");
    r->out = file;
    return -1;
}

int command_config(int argc, char **argv)
{
    request r = {.d = {.name = "the flags"}, .out = NULL};
    pen_error why;
    int code = -1;
    if (command_asks_help(argc, argv)) {
        /* The keys as a table of settings, for --help. */
        config_row rows[KEYS_MAX] = {
            {"config_file", CONFIG_TEXT, 0, "", 0, 0, NULL, "File to write; same as --out."},
            {"force", CONFIG_BOOL, 0, "no", 0, 0, NULL, "Overwrite an existing file."}};
        size_t n = 2;
        for (const key_row *row = accelerate_keys; row->path != NULL && n + 1 < KEYS_MAX; row++)
            if (key_flag_name(row) != NULL && row->use != KEY_IDLE)
                rows[n++] =
                    (config_row){key_flag_name(row), CONFIG_TEXT, 0, "", 0, 0, NULL, row->doc};
        return command_help(usage, rows);
    }
    const bool asks = argc == 1 && isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    if (asks) code = ask(&r);
    for (int i = 1; i < argc && code < 0; i++) code = take_flag(&r, argc, argv, &i);
    if (code < 0) {
        pen_status status = fill(&r.d, &why);
        if (status == PEN_OK) status = check(&r.d, &why);
        if (status == PEN_OK)
            status = r.out != NULL ? write_file(&r, &why) : document_write_yaml(&r.d, stdout, &why);
        code = status == PEN_OK ? 0 : command_fail(EXIT_USAGE, "%s", why.text);
        if (asks && code == 0)
            fprintf(stderr, "penstock: wrote %s; penstock run --config %s PROG uses it\n", r.out,
                    r.out);
    }
    document_free(&r.d);
    return code;
}
