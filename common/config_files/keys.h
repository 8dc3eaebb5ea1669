/* keys.h - every key of a DeepSpeed JSON file and of an accelerate YAML file, and its meaning here.
 *
 * One row per key.  It gives the accepted values, the setting the key becomes, the rule for "auto", the notice if it
 * has no effect, its entry in docs/config-keys.md, and for accelerate the flag of `penstock config`.
 */
#ifndef COMMON_CONFIG_FILES_KEYS_H
#define COMMON_CONFIG_FILES_KEYS_H

#include "common/config_files/document.h"
#include <stdio.h>

typedef enum {
    KEY_WHOLE,  /* a whole number of at least 0; 2e8 is accepted */
    KEY_NUMBER, /* any number */
    KEY_SWITCH, /* true or false */
    KEY_WORD,   /* one of `words` */
    KEY_TEXT,   /* a string, or a list of scalars */
    KEY_ANY     /* any value, also a section */
} key_value;

typedef enum {
    KEY_SETS,   /* becomes the setting `target` */
    KEY_STARTS, /* tells the launcher how to start the job: `target` is a name of resolve.h */
    KEY_JOINS,  /* forms one setting together with others, by a rule of resolve.c */
    KEY_ALWAYS, /* fixed here to `usual`; another value has no effect */
    KEY_IDLE    /* known, but without effect; no notice if it is `usual` */
} key_use;

/* The meaning of "auto". */
typedef enum {
    AUTO_NEVER,    /* not accepted */
    AUTO_H2,       /* hidden size squared, */
    AUTO_H2_9,     /* 0.9 of that, */
    AUTO_H10,      /* and ten times the hidden size, as accelerate fills them in */
    AUTO_CONSTANT, /* `usual` */
    AUTO_OTHERS,   /* left to the other file, the batch plan or the program */
    AUTO_FLAG      /* the flag of `penstock run` named `usual` */
} key_auto;

typedef struct {
    const char *path; /* "fp16.enabled"; "aio.*" covers the whole section */
    key_value value;
    key_use use;
    const char *target; /* KEY_SETS: a setting; KEY_STARTS: a name of resolve.h */
    const char *words;  /* KEY_WORD: "FULL_SHARD=full_shard 1=full_shard" */
    key_auto automatic;
    const char *usual;
    int stage;       /* no effect below this ZeRO stage */
    const char *doc; /* one sentence: its meaning here, or why it has no effect */
} key_row;           /* tables end with a row of zeros */

extern const key_row deepspeed_keys[];
extern const key_row accelerate_keys[];

/* Finds the row of a path.  NULL: not found; *nearest is then the most similar path. */
const key_row *key_find(const key_row *rows, const char *path, const char **nearest);

/* Converts a value to the setting's form: "2e8" -> "200000000", "FULL_SHARD" -> "full_shard", "true" -> "yes".
 * Errors  BAD_SETTING  "ds.json:7: fp16.enabled is 'maybe', but must be true or false". */
pen_status key_convert(const key_row *row, const document *from, const document_key *key,
                       char value[CONFIG_TEXT_BYTES], pen_error *why);

/* Whether two values mean the same: "1" and "1.0" do. */
bool key_same_value(const char *a, const char *b);

void keys_write_markdown(const key_row *rows, FILE *out); /* for docs/config-keys.md */

#endif
