/* key_flags.c - flags become keys of a document. */
#include "cli/config/key_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Flags of `accelerate launch` that have no value. */
static const struct {
    const char *name, *path, *text;
} switches[] = {
    {"use_fsdp", "distributed_type", "FSDP"},
    {"use_deepspeed", "distributed_type", "DEEPSPEED"},
    {"cpu", "use_cpu", "true"},
    {"multi_gpu", "distributed_type", "MULTI_GPU"},
    {"same_network", "same_network", "true"},
    {"debug", "debug", "true"},
    {"downcast_bf16", "downcast_bf16", "yes"},
    {"enable_cpu_affinity", "enable_cpu_affinity", "true"},
};

const char *key_flag_name(const key_row *row)
{
    const char *dot = strrchr(row->path, '.');
    if (strchr(row->path, '*') != NULL) return NULL;
    return dot != NULL ? dot + 1 : row->path;
}

const key_row *key_flag_find(const char *name, const char **text)
{
    const char *nearest, *of;
    *text = NULL;
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        if (strcmp(switches[i].name, name) != 0) continue;
        *text = switches[i].text;
        return key_find(accelerate_keys, switches[i].path, &nearest);
    }
    for (const key_row *row = accelerate_keys; row->path != NULL; row++)
        if ((of = key_flag_name(row)) != NULL && strcmp(of, name) == 0) return row;
    return NULL;
}

static document_kind kind_of(const key_row *row, const char *text)
{
    char *end;
    if (strcmp(text, "null") == 0) return DOCUMENT_NULL;
    if (row->value == KEY_SWITCH) return DOCUMENT_BOOL;
    if (row->value == KEY_WHOLE || row->value == KEY_NUMBER) return DOCUMENT_NUMBER;
    (void)strtod(text, &end); /* fsdp_sharding_strategy: 1 */
    return row->value == KEY_WORD && *end == '\0' ? DOCUMENT_NUMBER : DOCUMENT_TEXT;
}

pen_status key_flag_put(document *d, const key_row *row, const char *text, pen_error *why)
{
    document one = {.name = "the flags"};
    char value[CONFIG_TEXT_BYTES];
    const document_kind kind = kind_of(row, text);
    pen_status status        = document_add(&one, row->path, text, kind, 0, why);
    if (status == PEN_OK && kind != DOCUMENT_NULL)
        status = key_convert(row, &one, &one.keys[0], value, why);
    if (status == PEN_OK && kind == DOCUMENT_BOOL)
        snprintf(one.keys[0].text, CONFIG_TEXT_BYTES, "%s",
                 strcmp(value, "yes") == 0 ? "true" : "false");
    if (status == PEN_OK) status = document_overlay(d, &one, why);
    document_free(&one);
    return status;
}
