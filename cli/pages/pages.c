/* pages.c - collects --help of every command.
 *
 * DESIGN.  Nothing is described twice: each command is called with --help while command_listen() collects its usage and
 * its table of settings.  `run` uses argp, whose table is read directly.
 */
#include "cli/pages/pages.h"

#include "cli/run/options.h"
#include "common/containers/arrays.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

static page_flag *add_flag(page *p)
{
    if (!VEC_MORE(p->flag, p->n_flags)) return NULL;
    p->flag[p->n_flags] = (page_flag){0};
    return &p->flag[p->n_flags++];
}

static void spell(char *to, size_t size, const char *name)
{
    snprintf(to, size, "%s", name);
    for (; *to != '\0'; to++)
        if (*to == '_') *to = '-';
}

static const char *value_of(const config_row *row)
{
    switch (row->type) {
    case CONFIG_BOOL: return "yes|no";
    case CONFIG_TEXT: return "TEXT";
    case CONFIG_ENUM: return "WORD";
    default: return "N";
    }
}

static bool add_row(page *p, const config_row *row)
{
    static const char *const switches[] = {"yes", "no", NULL};
    page_flag *f                        = add_flag(p);
    if (f == NULL) return false;
    spell(f->name, sizeof f->name, row->name);
    f->arg         = value_of(row);
    f->is_optional = config_is_switch(row);
    f->doc         = row->doc;
    f->choices     = row->type == CONFIG_BOOL ? switches : row->choices;
    config_accepted(row, f->accepts, sizeof f->accepts);
    snprintf(f->dfl, sizeof f->dfl, "%s", config_default(row));
    return true;
}

static bool has_flag(const page *p, const char *name)
{
    for (size_t i = 0; i < p->n_flags; i++)
        if (strcmp(p->flag[i].name, name) == 0) return true;
    return false;
}

/* Every setting of a job that is not a flag of its own. */
static bool add_settings(page *p)
{
    char name[80];
    for (int t = 0; command_tables[t] != NULL; t++)
        for (const config_row *row = command_tables[t]; row->name != NULL; row++) {
            spell(name, sizeof name, row->name);
            if (!has_flag(p, name) && !add_row(p, row)) return false;
        }
    return true;
}

/* Lines that start with "usage: " or its indentation are the synopsis; the others are text. */
static void take_usage(page *p, const char *usage)
{
    enum { INDENT = sizeof "usage: " - 1 };
    size_t synopsis_size, text_size;
    FILE *synopsis = open_memstream(&p->synopsis, &synopsis_size);
    FILE *text     = open_memstream(&p->text, &text_size);
    bool is_head   = true;
    while (synopsis != NULL && text != NULL && *usage != '\0') {
        const int length = (int)strcspn(usage, "\n");
        is_head          = is_head && (strncmp(usage, "usage: ", INDENT) == 0 ||
                              strncmp(usage, "       ", INDENT) == 0);
        if (is_head)
            fprintf(synopsis, "%.*s\n", length - INDENT, usage + INDENT);
        else
            fprintf(text, "%.*s\n", length, usage);
        usage += length + (usage[length] == '\n');
    }
    if (synopsis != NULL) fclose(synopsis);
    if (text != NULL) fclose(text);
}

static void hear(const char *usage, const config_row *rows, void *user)
{
    page *p = user;
    take_usage(p, usage);
    for (; rows != NULL && rows->name != NULL; rows++)
        if (!add_row(p, rows)) return;
}

/* Choices of flags that are also settings: --mode. */
static void take_choices(page *p)
{
    for (size_t i = 0; i < p->n_flags; i++)
        for (int t = 0; command_tables[t] != NULL; t++)
            for (const config_row *row = command_tables[t]; row->name != NULL; row++) {
                char name[80];
                spell(name, sizeof name, row->name);
                if (strcmp(p->flag[i].name, name) == 0) p->flag[i].choices = row->choices;
            }
}

/* Reads the table of argp; flags that are also settings get their choices. */
static void take_run(page *p)
{
    take_usage(p, run_options_usage);
    p->takes_program = true;
    for (const struct argp_option *row = run_options_rows; row->name != NULL || row->doc != NULL;
         row++) {
        page_flag *f = add_flag(p);
        if (f == NULL) return;
        snprintf(f->name, sizeof f->name, "%s", row->name != NULL ? row->name : "");
        f->arg  = row->arg;
        f->doc  = row->doc;
        f->also = row->key > ' ' && row->key < 127 ? (char)row->key : 0;
    }
    take_choices(p);
    p->n_own = p->n_flags;
    add_settings(p);
}

static void collect(page *p, const command *of, const command *verb)
{
    const command *c = verb != NULL ? verb : of;
    char name[64], flag[] = "--help";
    snprintf(p->name, sizeof p->name, "%s%s%s", of->name, verb != NULL ? " " : "",
             verb != NULL ? verb->name : "");
    p->doc   = c->doc;
    p->verbs = verb != NULL ? NULL : of->verbs;
    if (c->main == command_run) {
        take_run(p);
        return;
    }
    snprintf(name, sizeof name, "%s", c->name);
    command_listen(hear, p);
    c->main(2, (char *[]){name, flag, NULL});
    command_listen(NULL, NULL);
    p->n_own = p->n_flags;
}

page *pages_collect(size_t *n)
{
    *n = 0;
    for (const command *c = command_all; c->name != NULL; c++) {
        ++*n;
        for (const command *v = c->verbs; v != NULL && v->name != NULL; v++) ++*n;
    }
    page *all = calloc(*n + 1, sizeof *all),
         *p   = all; /* the row of zeros ends the verbs of the last */
    if (all == NULL) return NULL;
    for (const command *c = command_all; c->name != NULL; c++) {
        collect(p++, c, NULL);
        for (const command *v = c->verbs; v != NULL && v->name != NULL; v++) collect(p++, c, v);
    }
    return all;
}

void pages_free(page *pages, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(pages[i].synopsis);
        free(pages[i].text);
        free(pages[i].flag);
    }
    free(pages);
}
