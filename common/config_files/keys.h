/* keys.h - every key of a DeepSpeed JSON file and of an accelerate YAML file, and what it means here.
 *
 * One row per key.  From it come the accepted values, the setting it becomes, the rule for "auto", the notice when it
 * has no effect, docs/config-keys.md, and for accelerate the flag of `penstock config`.
 */
#ifndef COMMON_CONFIG_FILES_KEYS_H
#define COMMON_CONFIG_FILES_KEYS_H

#include "common/config_files/document.h"
#include <stdio.h>

typedef enum {
    KEY_WHOLE,  /* a whole number of at least 0; 2e8 is one     */
    KEY_NUMBER, /* any number                                   */
    KEY_SWITCH, /* true or false                                */
    KEY_WORD,   /* one of `words`                               */
    KEY_TEXT,   /* a string, or a list of scalars               */
    KEY_ANY     /* whatever stands there, also a section        */
} key_value;

typedef enum {
    KEY_SETS,   /* becomes the setting `target`                                             */
    KEY_STARTS, /* says how the launcher starts the job: `target` is a name of resolve.h    */
    KEY_JOINS,  /* with others becomes one setting, by a rule of resolve.c                  */
    KEY_ALWAYS, /* what is always so here when it is `usual`; another value has no effect   */
    KEY_IDLE    /* known, and without effect here; nothing is said when it is `usual`       */
} key_use;

/* What "auto" stands for. */
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
    const char *path; /* "fp16.enabled"; "aio.*" is everything in that section */
    key_value value;
    key_use use;
    const char *target; /* KEY_SETS: a setting; KEY_STARTS: a name of resolve.h   */
    const char *words;  /* KEY_WORD: "FULL_SHARD=full_shard 1=full_shard"         */
    key_auto automatic;
    const char *usual;
    int stage;       /* below this ZeRO stage it has no effect */
    const char *doc; /* one sentence: what it means here, or why it has no effect */
} key_row;           /* tables end with a row of zeros */

extern const key_row deepspeed_keys[];
extern const key_row accelerate_keys[];

/* The row of a path; NULL when there is none.  *nearest is then the path most like it. */
const key_row *key_find(const key_row *rows, const char *path, const char **nearest);

/* The value as a setting wants it: "2e8" -> "200000000", "FULL_SHARD" -> "full_shard", "true" -> "yes".
 * Errors  BAD_SETTING  "ds.json:7: fp16.enabled is 'maybe', but must be true or false". */
pen_status key_convert(const key_row *row, const document *from, const document_key *key,
                       char value[CONFIG_TEXT_BYTES], pen_error *why);

/* Two values of one setting say the same: "1" and "1.0" do. */
bool key_same_value(const char *a, const char *b);

void keys_write_markdown(const key_row *rows, FILE *out); /* for docs/config-keys.md */

#endif
