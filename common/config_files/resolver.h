/* resolver.h - private to the files of resolve.c. */
#ifndef COMMON_CONFIG_FILES_RESOLVER_H
#define COMMON_CONFIG_FILES_RESOLVER_H

#include "common/config_files/keys.h"
#include "common/config_files/resolve.h"

typedef struct {
    const key_row *row;
    const document *from;
    const document_key *key;
    char value[CONFIG_TEXT_BYTES]; /* in the setting's form */
    bool is_auto;                  /* value is unused */
    bool is_out;                   /* without effect: reported, then ignored */
} fact;

typedef struct {
    const document *yaml, *json;
    const resolve_flags *flags;
    resolve_given given;
    resolution *out;
    pen_error *why;
    fact *facts;
    size_t n;
    int stage;                           /* the ZeRO stage of the effective mode; 0: none */
    int n_open;                          /* values that are auto and that nothing says */
    char open[400], open_flags[160];     /* "lr, weight_decay"; "--lr, --weight-decay" */
    char open_file[RESOLVED_LINE_BYTES]; /* the sentence of the first */
} resolver;

/* facts.c */
pen_status facts_collect(resolver *r, const document *from, const key_row *rows);
fact *facts_find(resolver *r, const char *path); /* NULL: not found, or without effect */
pen_status facts_compare(resolver *r,
                         const char *target); /* NULL: all targets; mode: only the first */
pen_status facts_contradict(resolver *r, const fact *a, const fact *b);
void facts_place(const fact *f, char *text, size_t size); /* "ds.json:24" */
/* Ignores the first `bytes` letters of the key's path, for a section; 0: the whole key. */
void facts_ignore(resolver *r, const fact *f, size_t bytes, const char *reason); /* one notice */
void facts_leave(resolver *r, fact *f,
                 const char *reason); /* the same for one key, which has no effect from then on */
/* Notes an auto that nothing says; resolver_end_open() refuses all of them, or leaves them to the program. how: "; it is made from ...", or "". */
void resolver_open(resolver *r, const fact *f, const char *flag, const char *value,
                   const char *how);
pen_status resolver_end_open(resolver *r);
/* Reports a value left open. */
void resolver_notice(resolver *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The remedy's words: "say --weight-decay", or "set PENSTOCK_WEIGHT_DECAY"; value "N" is named with it, "" is not. */
const char *resolver_remedy(const resolver *r, const char *flag, const char *value, char text[128]);

/* resolver.c */
const char *resolver_given(const resolver *r, const char *setting, const char **source);
pen_status resolver_put(resolver *r, const char *setting, const char *value, const char *source);
/* A value needed to start processes, which no other source sets. */
pen_status resolver_put_start(resolver *r, const char *name, const char *value, const char *source);

/* The file's update rule, overridden by name by a flag or the environment (`layer`). */
pen_status resolver_override_optim(resolver *r, const char *file, const char *given,
                                   const char *place, const char *layer);

/* resolve_rules.c: settings that several keys form together. */
pen_status resolve_precision(resolver *r);
pen_status resolve_optim(resolver *r);
pen_status resolve_schedule(resolver *r);
pen_status resolve_units(resolver *r);

#endif
