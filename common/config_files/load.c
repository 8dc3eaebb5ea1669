/* load.c - which files to load, how to join them, and what to report. */
#include "common/config_files/load.h"

#include "common/base/why.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Limit of the sentence about keys without effect: it must fit on a log line. */
enum { IDLE_BYTES = 1000 };

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

bool config_files_is_yaml(const char *name)
{
    return ends_with(name, ".yml") || ends_with(name, ".yaml");
}

bool config_files_is_accelerate(const char *name)
{
    return config_files_is_yaml(name) || ends_with(name, ".json");
}

static bool is_named(const char *file)
{
    return file != NULL && file[0] != '\0';
}

bool config_files_is_any(const config_files *files)
{
    return is_named(files->config) || is_named(files->ds_config) ||
           (files->flags != NULL && files->flags->n > 0);
}

/* ---- one file -------------------------------------------------------------------------------------------- */
static pen_status read_bytes(const char *path, char *bytes, size_t *size, pen_error *why)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return why_set(why, PEN_NOT_FOUND, "cannot read %.200s: %m", path);
    *size             = fread(bytes, 1, DOCUMENT_BYTES_MAX + 1, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    if (failed) return why_set(why, PEN_NOT_FOUND, "cannot read %.200s: %m", path);
    if (*size > DOCUMENT_BYTES_MAX)
        return why_set(why, PEN_BAD_SETTING,
                       "%.200s is larger than %d bytes: that is not a configuration", path,
                       DOCUMENT_BYTES_MAX);
    return PEN_OK;
}

pen_status document_read(document *d, const char *path, pen_error *why)
{
    char *bytes = malloc(DOCUMENT_BYTES_MAX + 1);
    size_t size = 0;
    *d          = (document){.keys = NULL};
    if (strlen(path) >= sizeof d->name) {
        free(bytes);
        return why_set(why, PEN_BAD_SETTING, "the name '%.40s...' is longer than %zu bytes", path,
                       sizeof d->name - 1);
    }
    if (bytes == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to read %.200s", path);
    pen_status status = read_bytes(path, bytes, &size, why);
    if (status == PEN_OK)
        status = config_files_is_yaml(path) ? document_parse_yaml(d, path, bytes, size, why)
                                            : document_parse_json(d, path, bytes, size, why);
    free(bytes);
    return status;
}

/* ---- values of auto -------------------------------------------------------------------------------------- */

static pen_status check_number(const char *name, const char *text, bool whole, pen_error *why)
{
    char *end;
    if (text == NULL) return PEN_OK;
    const double value  = strtod(text, &end);
    const bool is_range = value >= 0 && value < 1e30;
    const bool is_whole = is_range && value <= INT_MAX && value == (double)(long)value;
    if (end != text && *end == '\0' && is_range && (is_whole || !whole)) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING, "%s is '%.80s', but must be a %snumber of at least 0",
                   name, text, whole ? "whole " : "");
}

static pen_status check_autos(const config_files *files, pen_error *why)
{
    const resolve_flags *f = &files->autos;
    const bool has_autos   = f->hidden_size != NULL || f->lr != NULL || f->weight_decay != NULL ||
                           f->warmup_steps != NULL || f->total_steps != NULL;
    if (has_autos && !config_files_is_any(files))
        return why_set(why, PEN_BAD_SETTING,
                       "--hidden-size, --lr, --weight-decay, --warmup-steps and --total-steps "
                       "say what auto is in --config or --ds-config, and there is neither; say "
                       "--optim 'adamw lr=...' and --schedule");
    pen_status status = check_number("hidden_size", f->hidden_size, true, why);
    if (status == PEN_OK) status = check_number("lr", f->lr, false, why);
    if (status == PEN_OK) status = check_number("weight_decay", f->weight_decay, false, why);
    if (status == PEN_OK) status = check_number("warmup_steps", f->warmup_steps, true, why);
    if (status == PEN_OK) status = check_number("total_steps", f->total_steps, true, why);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------------------- */

/* Looks in the current folder, as accelerate does, then beside the file that names it; there also for an absolute path
 * that does not exist here, as a copied file has. */
static const char *seek(const document *yaml, const char *name, char path[CONFIG_TEXT_BYTES * 2])
{
    struct stat info;
    const char *slash = strrchr(yaml->name, '/'), *last = strrchr(name, '/');
    snprintf(path, CONFIG_TEXT_BYTES * 2, "%.*s/%s", slash != NULL ? (int)(slash - yaml->name) : 1,
             slash != NULL ? yaml->name : ".", name[0] == '/' ? last + 1 : name);
    return stat(name, &info) != 0 && stat(path, &info) == 0 ? path : name;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat one, two;
    return stat(a, &one) == 0 && stat(b, &two) == 0 && one.st_ino == two.st_ino &&
           one.st_dev == two.st_dev;
}

/* The JSON file that is given, or named by the YAML file; NULL: none. */
static pen_status choose_json(const char *given, const document *yaml, const char **json,
                              char path[CONFIG_TEXT_BYTES * 2], pen_error *why)
{
    const document_key *key  = document_find(yaml, "deepspeed_config.deepspeed_config_file");
    const document_key *kind = document_find(yaml, "distributed_type");
    *json                    = is_named(given) ? given : NULL;
    if (key == NULL || key->kind == DOCUMENT_NULL) return PEN_OK;
    if (kind != NULL && strcmp(kind->text, "DEEPSPEED") != 0) return PEN_OK;
    const char *named = seek(yaml, key->text, path);
    if (*json != NULL && !is_same_file(*json, named))
        return why_set(why, PEN_BAD_SETTING,
                       "--ds-config %s and %s (deepspeed_config_file: %s) contradict each other",
                       *json, document_place(yaml, key).text, key->text);
    if (*json == NULL) *json = named;
    return PEN_OK;
}

static pen_status read_both(const config_files *files, document *yaml, document *json,
                            const char **json_name, pen_error *why)
{
    char path[CONFIG_TEXT_BYTES * 2];
    pen_status status = PEN_OK;
    if (is_named(files->config)) status = document_read(yaml, files->config, why);
    if (status == PEN_OK && files->flags != NULL)
        status = document_overlay(yaml, files->flags, why);
    if (status == PEN_OK) status = choose_json(files->ds_config, yaml, json_name, path, why);
    if (status == PEN_OK && *json_name != NULL) status = document_read(json, *json_name, why);
    return status;
}

pen_status config_files_load(const config_files *files, resolve_given given, resolution *out,
                             pen_error *why)
{
    document yaml = {.keys = NULL}, json = {.keys = NULL};
    const char *json_name = NULL;
    *out                  = (resolution){.notices = NULL};
    pen_status status     = check_autos(files, why);
    if (status != PEN_OK || !config_files_is_any(files)) return status;
    status = read_both(files, &yaml, &json, &json_name, why);
    if (status == PEN_OK)
        status = resolve(yaml.keys != NULL ? &yaml : NULL, json_name != NULL ? &json : NULL,
                         &files->autos, given, out, why);
    document_free(&yaml);
    document_free(&json);
    return status;
}

/* ---- reporting ------------------------------------------------------------------------------------------- */

static void tell_idle(const resolution *r, void (*tell)(const char *line, void *user), void *user)
{
    char text[IDLE_BYTES + 2 * RESOLVED_LINE_BYTES];
    size_t used = 0, left = 0;
    for (size_t i = 0; i < r->n_notices; i++) {
        const char *key = r->notices[i].key;
        if (key[0] == '\0') continue;
        if (used > 0 && used + strlen(key) > IDLE_BYTES) {
            left++;
            continue;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                                 used > 0 ? ", " : "no effect here: ", key);
    }
    if (used == 0) return;
    if (left > 0) used += (size_t)snprintf(text + used, sizeof text - used, " and %zu more", left);
    snprintf(text + used, sizeof text - used,
             "; `penstock docs config-keys.md` says why of each key");
    tell(text, user);
}

void config_files_tell(const resolution *r, void (*tell)(const char *line, void *user), void *user)
{
    char line[3 * RESOLVED_LINE_BYTES];
    tell_idle(r, tell, user);
    for (size_t i = 0; i < r->n_notices; i++)
        if (r->notices[i].key[0] == '\0') tell(r->notices[i].text, user);
    for (size_t i = 0; i < r->settings.n; i++) {
        const resolved_value *v = &r->settings.values[i];
        if (strncmp(v->source, "auto", 4) != 0 && strstr(v->source, "(auto") == NULL) continue;
        snprintf(line, sizeof line, "%s = %s, %s", v->name, v->value, v->source);
        tell(line, user);
    }
}
