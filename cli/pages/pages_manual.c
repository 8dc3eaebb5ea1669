/* pages_manual.c - the man pages: roff from the pages that pages.c collected. */
#include "cli/pages/pages.h"
#include "common/base/why.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* Date of the text, not of the build: builds must be reproducible. */
static const char date[] = "2026-11-22";

static void write_title(FILE *out, const char *name, int section)
{
    fprintf(out,
            ".\\\" Written by `penstock docs man`; edit the tables in the source instead.\n.TH ");
    for (; *name != '\0'; name++) fputc(*name == ' ' ? '-' : toupper((unsigned char)*name), out);
    fprintf(out, " %d %s \"Penstock %d.%d.%d\" \"Penstock Manual\"\n", section, date,
            PEN_VERSION_MAJOR, PEN_VERSION_MINOR, PEN_VERSION_PATCH);
}

/* Escapes dashes, backslashes, and dots and quotes at the start of a line. */
static void write_text(FILE *out, const char *text, size_t size)
{
    bool at_start = true;
    for (size_t i = 0; i < size && text[i] != '\0'; i++) {
        const char c = text[i];
        if (at_start && (c == '.' || c == '\'')) fputs("\\&", out);
        if (c == '\\')
            fputs("\\e", out);
        else if (c == '-')
            fputs("\\-", out);
        else
            fputc(c, out);
        at_start = c == '\n';
    }
}

static void write_words(FILE *out, const char *text)
{
    write_text(out, text, strlen(text));
}

static void write_sentence(FILE *out, const char *text)
{
    fputc(toupper((unsigned char)*text), out);
    write_words(out, text + (*text != '\0'));
}

static void write_synopsis(FILE *out, const char *synopsis)
{
    fprintf(out, ".SH SYNOPSIS\n.nf\n");
    write_words(out, synopsis);
    fprintf(out, ".fi\n");
}

/* Paragraphs; indented text stays unchanged. */
static void write_paragraphs(FILE *out, const char *text)
{
    bool is_open = false, is_list = false;
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        const bool indented = length > 0 && text[0] == ' ';
        if (is_list && !indented) fprintf(out, ".fi\n.RE\n");
        if (length > 0 && (!is_open || (is_list && !indented))) fprintf(out, ".PP\n");
        if (indented && !is_list) fprintf(out, ".RS\n.nf\n");
        is_list = indented;
        is_open = length > 0;
        if (length > 0) {
            write_text(out, text, length);
            fputc('\n', out);
        }
        text += length + (text[length] == '\n');
    }
    if (is_list) fprintf(out, ".fi\n.RE\n");
}

static void write_flag(FILE *out, const page_flag *f)
{
    if (f->name[0] == '\0') {
        fprintf(out, ".SS ");
        write_words(out, f->doc);
        fputc('\n', out);
        return;
    }
    fprintf(out, ".TP\n");
    if (f->also != 0) fprintf(out, "\\fB\\-%c\\fR, ", f->also);
    fprintf(out, "\\fB\\-\\-");
    write_words(out, f->name);
    fprintf(out, "\\fR");
    if (f->arg != NULL) fprintf(out, f->is_optional ? "[=\\fI" : "=\\fI");
    if (f->arg != NULL) write_words(out, f->arg);
    if (f->arg != NULL) fprintf(out, f->is_optional ? "\\fR]" : "\\fR");
    fputc('\n', out);
    write_words(out, f->doc);
    fputc('\n', out);
    if (f->accepts[0] == '\0') return;
    if (strcmp(f->accepts, "text") != 0) {
        fprintf(out, "Accepts ");
        write_words(out, f->accepts);
        fprintf(out, "; default: ");
    } else {
        fprintf(out, "Default: ");
    }
    write_words(out, f->dfl);
    fprintf(out, ".\n");
}

static void write_flags(FILE *out, const page *p)
{
    for (size_t i = 0; i < p->n_own; i++) write_flag(out, &p->flag[i]);
}

static void write_verbs(FILE *out, const page *p)
{
    for (const page *v = p + 1;
         p->verbs != NULL && strncmp(v->name, p->name, strlen(p->name)) == 0 &&
         v->name[strlen(p->name)] == ' ';
         v++) {
        fprintf(out, ".SH \"");
        for (const char *c = v->name; *c != '\0'; c++) fputc(toupper((unsigned char)*c), out);
        fprintf(out, "\"\n");
        write_sentence(out, v->doc);
        fprintf(out, ".\n");
        if (v->synopsis != NULL && v->synopsis[0] != '\0') {
            fprintf(out, ".PP\n.nf\n");
            write_words(out, v->synopsis);
            fprintf(out, ".fi\n");
        }
        write_flags(out, v);
    }
}

static void write_end(FILE *out, const page *p)
{
    fprintf(out, ".SH \"EXIT STATUS\"\n");
    write_words(out, p->takes_program
                         ? "0; the code of the process that failed first; 128 + n "
                           "if signal n killed it; 2 for a usage error."
                         : "0: success.  1: failure; the reason is on standard error.  2: "
                           "usage error.");
    fprintf(out, "\n.SH \"SEE ALSO\"\n.BR penstock (1),\n.BR penstock\\-settings (7)\n");
}

static void write_page(FILE *out, const page *p)
{
    char name[80];
    snprintf(name, sizeof name, "penstock %s", p->name);
    write_title(out, name, 1);
    fprintf(out, ".SH NAME\npenstock\\-%s \\- ", p->name);
    write_words(out, p->doc);
    fputc('\n', out);
    write_synopsis(out, p->synopsis != NULL ? p->synopsis : "");
    fprintf(out, ".SH DESCRIPTION\n");
    write_sentence(out, p->doc);
    fprintf(out, ".\n");
    write_paragraphs(out, p->text != NULL ? p->text : "");
    if (p->n_flags > 0) fprintf(out, ".SH OPTIONS\n");
    write_flags(out, p);
    write_verbs(out, p);
    write_end(out, p);
}

static void write_page_of_all(FILE *out, const page *p, size_t n)
{
    write_title(out, "penstock", 1);
    fprintf(out, ".SH NAME\npenstock \\- distributed training with parameter servers or without\n"
                 ".SH SYNOPSIS\n.B penstock\n.I COMMAND\n.RI [ ARGS ]\n.SH DESCRIPTION\n");
    write_words(
        out,
        "Distributed training with servers, which hold the sharded model and apply the updates, or "
        "without, with collectives among the workers.  Programs use penstock.h.\n");
    fprintf(out, ".SH COMMANDS\n");
    for (size_t i = 0; i < n; i++) {
        if (strchr(p[i].name, ' ') != NULL) continue;
        fprintf(out, ".TP\n.BR penstock\\-%s (1)\n", p[i].name);
        write_sentence(out, p[i].doc);
        fprintf(out, ".\n");
    }
    fprintf(
        out,
        ".SH EXAMPLE\n.nf\npenstock run \\-\\-nproc\\-per\\-node 2 \\-\\-servers 1 ./program\n.fi\n"
        ".SH \"SEE ALSO\"\n.BR penstock\\-run (1),\n.BR penstock\\-settings (7)\n");
}

static void write_setting(const config_row *row, const char *readers, void *user)
{
    FILE *out = user;
    char accepts[512], variable[CONFIG_VARIABLE_BYTES];
    config_accepted(row, accepts, sizeof accepts);
    config_variable(row->name, variable);
    fprintf(out, ".TP\n\\fB%s\\fR, \\fB%s\\fR\n", row->name, variable);
    write_words(out, row->doc);
    fprintf(out, "\nRead by: %s. Accepts ", readers);
    write_words(out, accepts);
    fprintf(out, "; default: ");
    write_words(out, config_default(row));
    fprintf(out, ".\n");
}

static void write_page_of_settings(FILE *out)
{
    write_title(out, "penstock settings", 7);
    fprintf(out, ".SH NAME\npenstock\\-settings \\- settings of a job\n.SH DESCRIPTION\n");
    write_words(
        out,
        "Each setting is a flag of the processes that read it and of `penstock run` (with - "
        "or _), an "
        "environment variable, a key of the file named by PENSTOCK_CONFIG, and, for workers, a "
        "string of pen_init().\nLater sources override earlier ones: default, program, file, "
        "environment, flag.\n");
    fprintf(out, ".SH SETTINGS\n");
    command_each_setting(write_setting, out);
    fprintf(out, ".SH \"SEE ALSO\"\n.BR penstock (1),\n.BR penstock\\-run (1)\n");
}

static FILE *open_page(const char *folder, const char *name, char section, pen_error *why)
{
    char path[CONFIG_TEXT_BYTES * 2];
    snprintf(path, sizeof path, "%.300s/penstock%s%s.%c", folder, name[0] != '\0' ? "-" : "", name,
             section);
    FILE *file = fopen(path, "w");
    if (file == NULL) why_set(why, PEN_STORE, "cannot write %.300s: %m", path);
    return file;
}

static pen_status close_page(FILE *file, const char *folder, pen_error *why)
{
    const bool failed = ferror(file) != 0;
    return (fclose(file) != 0) | failed
               ? why_set(why, PEN_STORE, "cannot write into %.300s: %m", folder)
               : PEN_OK;
}

pen_status pages_write_manuals(const page *pages, size_t n, const char *folder, pen_error *why)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return why_set(why, PEN_STORE, "cannot make the folder %.300s: %m", folder);
    FILE *file = open_page(folder, "", '1', why);
    if (file == NULL) return PEN_STORE;
    write_page_of_all(file, pages, n);
    pen_status status = close_page(file, folder, why);
    for (size_t i = 0; i < n && status == PEN_OK; i++) {
        if (strchr(pages[i].name, ' ') != NULL) continue;
        if ((file = open_page(folder, pages[i].name, '1', why)) == NULL) return PEN_STORE;
        write_page(file, &pages[i]);
        status = close_page(file, folder, why);
    }
    if (status != PEN_OK || (file = open_page(folder, "settings", '7', why)) == NULL)
        return PEN_STORE;
    write_page_of_settings(file);
    return close_page(file, folder, why);
}
