/* config.h - one table row per setting; everything else is derived from the row.
 *
 * A row gives: the struct field, the --flag, the PENSTOCK_NAME variable, the config-file key, the default, the
 * accepted range, the unit, the help line and the line in docs/settings.md.  Later sources win:  default < program
 * (pen_init strings) < file < environment < flag.  A caller reads its sources in that order; each function below
 * overrides earlier values.  Within one source a key may appear once.  Items before a refused one stay set.  Unknown
 * keys are errors, with the nearest known key in the sentence.  Flags accept '_' and '-'.  Nothing else in the tree
 * may call getenv(); config_env() reads launchers' variables.
 */
#ifndef COMMON_CONFIG_H
#define COMMON_CONFIG_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
    CONFIG_U64,  /* uint64_t; k, m, g, t are binary suffixes: 64m */
    CONFIG_I64,  /* int64_t; the same suffixes */
    CONFIG_F64,  /* double; "inf" where max is INFINITY; a default "nan" = not given */
    CONFIG_BOOL, /* bool; yes no true false on off 1 0 */
    CONFIG_ENUM, /* int: the index into choices; no, yes, ...: also takes the words of a bool */
    CONFIG_TEXT  /* char[CONFIG_TEXT_BYTES] */
} config_type;
enum { CONFIG_TEXT_BYTES = 256 };

typedef struct {
    const char *name; /* snake_case, unit last: lease_ms, park_bytes_max; at most 63 letters */
    config_type type;
    size_t offset;   /* of the field inside the settings struct */
    const char *dfl; /* default, as a user would write it */
    double min, max; /* inclusive, whole numbers at most 2^53; ignored for bool, enum, text */
    const char *const *choices; /* CONFIG_ENUM only: NULL-terminated */
    const char *doc;            /* one sentence: the effect of raising it, and why */
} config_row;                   /* tables end with a row of zeros */

/* A list of X(name, kind, default, min, max, choices, meaning) gives both the fields of the struct and the rows:
 * LIST(CONFIG_FIELD), and LIST(ROW) with ROW(...) CONFIG_ROW(the_struct, __VA_ARGS__). */
typedef char config_text[CONFIG_TEXT_BYTES];
#define CONFIG_TYPE_U64                                       uint64_t
#define CONFIG_TYPE_I64                                       int64_t
#define CONFIG_TYPE_F64                                       double
#define CONFIG_TYPE_BOOL                                      bool
#define CONFIG_TYPE_ENUM                                      int
#define CONFIG_TYPE_TEXT                                      config_text
#define CONFIG_FIELD(name, kind, dfl, min, max, choices, doc) CONFIG_TYPE_##kind name;
#define CONFIG_ROW(of, name, kind, dfl, min, max, choices, doc)                                    \
    {#name, CONFIG_##kind, offsetof(of, name), dfl, min, max, choices, doc},

/* Sets every field to its default.  Asserts that each default passes its own check. */
void config_defaults(const config_row *rows, void *settings);

/* Sets one field from text.  On failure *settings is unchanged and *why explains (BAD_SETTING):
 * "unknown setting 'lease_s'; did you mean 'lease_ms'?" */
pen_status config_set(const config_row *rows, void *settings, const char *key, const char *text,
                      pen_error *why);

/* Writes the value of one field as text, as config_set() would read it; "" for an unknown key. */
void config_get(const config_row *rows, const void *settings, const char *key, char *text,
                size_t size);

/* "name=value" strings ended by NULL (pen_init's argument); NULL is none. */
pen_status config_from_strings(const config_row *rows, void *settings, const char *const *strings,
                               pen_error *why);

/* "key=value key='va lue'": the tail of a member string such as "adamw lr=3e-4 beta2=0.95". */
pen_status config_from_words(const config_row *rows, void *settings, const char *words,
                             pen_error *why);

/* Lines "key = value" or "key = 'value'"; '#' at the start of a line or after a blank starts a comment.  Errors
 * name file and line; NOT_FOUND if unreadable. */
pen_status config_from_file(const config_row *rows, void *settings, const char *path,
                            pen_error *why);

/* PENSTOCK_<NAME> for every row.  A PENSTOCK_* variable that is in no table of `known` is an error:
 * "unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)".  `known` is a
 * NULL-terminated list of tables that may share the environment (launcher, worker, server). */
pen_status config_from_env(const config_row *rows, void *settings, const config_row *const *known,
                           pen_error *why);

/* A bool, or an enum whose choices begin with no, yes: its flag may stand alone, and means yes. */
bool config_is_switch(const config_row *row);

/* The words that the flag of a switch takes as its value after a blank: yes, no, on, off, or another choice.  Other bool
 * words may be programs, such as "true". */
bool config_is_switch_value(const config_row *row, const char *word);

/* Reads --name=value and --name value (for switches also --name and --no-name) from argv, up to the first word that is
 * not a flag, or "--": *rest is its index, or argc if nothing is left.  argv[0] is skipped. */
pen_status config_from_argv(const config_row *rows, void *settings, int argc, char **argv,
                            int *rest, pen_error *why);

/* The accepted values of a row, for people: "100 to 600000", "yes or no", "sgd, adam"; and its default. */
void config_accepted(const config_row *row, char *text, size_t size);
const char *config_default(const config_row *row);

void config_write_help(const config_row *rows, FILE *out); /* for --help */
/* A line of docs/settings.md: flag, variable, readers, default, accepted values, meaning. */
void config_write_markdown(const config_row *row, const char *readers, FILE *out);

/* The only door to the environment, for variables of other launchers (RANK, SLURM_PROCID, ...). */
const char *config_env(const char *name);

/* The variable of a setting: "lease_ms" is PENSTOCK_LEASE_MS.  A name that does not fit is truncated. */
enum { CONFIG_VARIABLE_BYTES = 128 };
void config_variable(const char *setting, char name[CONFIG_VARIABLE_BYTES]);
const char *config_env_of(const char *setting); /* its value; NULL: not set */

/* Distance of two names, for "did you mean": 0 is equal.  A name that begins with the key ("np",
 * "nproc_per_node") or contains it, or is in it ("timeout", "init_timeout_ms"), is near at any length. */
int config_unlikeness(const char *key, const char *name);

#endif
