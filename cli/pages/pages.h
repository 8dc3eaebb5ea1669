/* pages.h - the flags of every command, collected from its --help, for man pages and completion. */
#ifndef CLI_PAGES_H
#define CLI_PAGES_H

#include "cli/command.h"

typedef struct {
    char name[80];    /* "nproc-per-node"; "" is a heading, and doc its text */
    const char *arg;  /* "N|auto"; NULL: it takes no value */
    bool is_optional; /* the value is optional: yes */
    char also;        /* 'r' of -r, or 0 */
    const char *doc;
    char accepts[512], dfl[CONFIG_TEXT_BYTES]; /* "" if doc says it */
    const char *const *choices;                /* NULL: any text */
} page_flag;

typedef struct {
    char name[64];        /* "run", "snapshot list" */
    const char *doc;      /* one line */
    char *synopsis;       /* lines, without "usage: " */
    char *text;           /* paragraphs, separated by empty lines */
    bool takes_program;   /* the words after the flags are another command line */
    const command *verbs; /* NULL: none */
    page_flag *flag;
    size_t n_flags,
        n_own; /* the first n_own are its own; the others, of `run`, are settings of a job */
} page;

/* All commands, each followed by its verbs.  NULL: no memory. */
page *pages_collect(size_t *n);
void pages_free(page *pages, size_t n);

/* Writes penstock.1, penstock-NAME.1 and penstock-settings.7 into `folder`, created if missing: STORE. */
pen_status pages_write_manuals(const page *pages, size_t n, const char *folder, pen_error *why);
void pages_write_completion(const page *pages, size_t n,
                            FILE *out); /* for bash, and for zsh with bashcompinit */

#endif
