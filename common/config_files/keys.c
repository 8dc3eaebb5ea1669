/* keys.c - finds, converts and prints keys by walking the rows of a table. */
#include "common/config_files/keys.h"

#include "common/base/why.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- finding --------------------------------------------------------------------------------------------- */

static const char *last_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

/* "aio.*" covers "aio" itself and everything below it. */
static bool holds(const char *pattern, const char *path)
{
    const size_t n = strlen(pattern);
    if (n < 2 || strcmp(pattern + n - 2, ".*") != 0) return strcmp(pattern, path) == 0;
    return strncmp(pattern, path, n - 2) == 0 && (path[n - 2] == '.' || path[n - 2] == '\0');
}

const key_row *key_find(const key_row *rows, const char *path, const char **nearest)
{
    int best = 0;
    *nearest = NULL;
    for (const key_row *r = rows; r->path != NULL; r++)
        if (holds(r->path, path)) return r;
    for (const key_row *r = rows; r->path != NULL; r++) {
        const int whole = config_unlikeness(path, r->path);
        const int last  = config_unlikeness(last_of(path), last_of(r->path)) + 1;
        const int apart = last < whole && r->value != KEY_ANY ? last : whole;
        if (*nearest != NULL && apart >= best) continue;
        *nearest = r->path;
        best     = apart;
    }
    return NULL;
}

/* ---- converting ------------------------------------------------------------------------------------------ */

static pen_status refuse(const key_row *row, const document *from, const document_key *key,
                         const char *wanted, pen_error *why)
{
    return why_set(why, PEN_BAD_SETTING, "%s: %s is '%.80s', but must be %s",
                   document_place(from, key).text, row->path, key->text, wanted);
}

static bool read_number(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

static void write_number(double value, char text[static CONFIG_TEXT_BYTES])
{
    char made[32];
    const bool is_whole = value == floor(value) && fabs(value) <= 9007199254740992.0; /* 2^53 */
    snprintf(made, sizeof made, "%.0f", is_whole ? value : 0);
    for (int digits = 6; !is_whole && digits <= 17; digits++) {
        snprintf(made, sizeof made, "%.*g", digits, value);
        if (strtod(made, NULL) == value) break;
    }
    memcpy(text, made, strlen(made) + 1);
}

static int read_switch(const char *text)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 6; i++)
        if (strcasecmp(text, words[i]) == 0) return i % 2;
    return -1;
}

/* "in=out in=out": translates `text`, ignoring case; false if it is not in the list. */
static bool translate(const char *words, const char *text, char value[CONFIG_TEXT_BYTES])
{
    const size_t n = strlen(text);
    for (const char *at = words; *at != '\0'; at += strspn(at, " ")) {
        const size_t in = strcspn(at, "="), all = strcspn(at, " ");
        if (in == n && strncasecmp(at, text, n) == 0) {
            memcpy(value, at + in + 1, all - in - 1); /* our own tables have short words only */
            value[all - in - 1] = '\0';
            return true;
        }
        at += all;
    }
    return false;
}

/* "FULL_SHARD, SHARD_GRAD_OP": the accepted words. */
static void list_words(const char *words, char *text, size_t size)
{
    size_t used     = 0;
    bool is_meaning = false;
    for (const char *at = words; at != NULL && *at != '\0' && used + 3 < size; at++) {
        if (*at == '=') is_meaning = true;
        if (!is_meaning) text[used++] = *at;
        if (*at != ' ') continue;
        text[used++] = ',';
        text[used++] = ' ';
        is_meaning   = false;
    }
    text[used] = '\0';
}

static pen_status convert_word(const key_row *row, const document *from, const document_key *key,
                               char value[CONFIG_TEXT_BYTES], pen_error *why)
{
    char choices[400], wanted[440];
    if (translate(row->words, key->text, value)) return PEN_OK;
    list_words(row->words, choices, sizeof choices);
    snprintf(wanted, sizeof wanted, "one of %s", choices);
    return refuse(row, from, key, wanted, why);
}

pen_status key_convert(const key_row *row, const document *from, const document_key *key,
                       char value[CONFIG_TEXT_BYTES], pen_error *why)
{
    double number;
    const bool is_section = key->kind == DOCUMENT_EMPTY;
    snprintf(value, CONFIG_TEXT_BYTES, "%s", key->text);
    if (row->value == KEY_ANY) return PEN_OK;
    if (is_section || (key->kind == DOCUMENT_LIST && row->value != KEY_TEXT))
        return why_set(why, PEN_BAD_SETTING, "%s: %s is a %s, but must be one value",
                       document_place(from, key).text, row->path, is_section ? "section" : "list");
    switch (row->value) {
    case KEY_WHOLE:
    case KEY_NUMBER:
        if (!read_number(key->text, &number)) return refuse(row, from, key, "a number", why);
        if (row->value == KEY_WHOLE && (number != floor(number) || number < 0 || number > 9e15))
            return refuse(row, from, key, "a whole number of at least 0", why);
        write_number(number, value);
        return PEN_OK;
    case KEY_SWITCH:
        if (read_switch(key->text) < 0) return refuse(row, from, key, "true or false", why);
        snprintf(value, CONFIG_TEXT_BYTES, "%s", read_switch(key->text) == 1 ? "yes" : "no");
        return PEN_OK;
    case KEY_WORD: return convert_word(row, from, key, value, why);
    case KEY_TEXT:
    case KEY_ANY: break;
    }
    return PEN_OK;
}

bool key_same_value(const char *a, const char *b)
{
    double x, y;
    if (strcmp(a, b) == 0) return true;
    return read_number(a, &x) && read_number(b, &y) && x == y;
}

/* ---- printing -------------------------------------------------------------------------------------------- */

static void write_auto(const key_row *r, FILE *out)
{
    switch (r->automatic) {
    case AUTO_NEVER: break;
    case AUTO_H2: fprintf(out, "`--hidden-size` squared"); break;
    case AUTO_H2_9: fprintf(out, "0.9 of `--hidden-size` squared"); break;
    case AUTO_H10: fprintf(out, "10 times `--hidden-size`"); break;
    case AUTO_CONSTANT: fprintf(out, "%s", r->usual); break;
    case AUTO_OTHERS: fprintf(out, "left open"); break;
    case AUTO_FLAG: fprintf(out, "`--%s`", r->usual); break;
    }
}

static void write_accepted(const key_row *r, FILE *out)
{
    char words[400];
    switch (r->value) {
    case KEY_WHOLE: fprintf(out, "whole number"); break;
    case KEY_NUMBER: fprintf(out, "number"); break;
    case KEY_SWITCH: fprintf(out, "true or false"); break;
    case KEY_WORD:
        list_words(r->words, words, sizeof words);
        fprintf(out, "%s", words);
        break;
    case KEY_TEXT: fprintf(out, "text"); break;
    case KEY_ANY: fprintf(out, "anything"); break;
    }
}

void keys_write_markdown(const key_row *rows, FILE *out)
{
    fprintf(out, "| key | accepted | becomes | `auto` | meaning here |\n|---|---|---|---|---|\n");
    for (const key_row *r = rows; r->path != NULL; r++) {
        fprintf(out, "| `%s` | ", r->path);
        write_accepted(r, out);
        fprintf(out, " | ");
        if (r->use == KEY_SETS) fprintf(out, "`%s`", r->target);
        if (r->use == KEY_STARTS) fprintf(out, "launcher");
        if (r->use == KEY_JOINS) fprintf(out, "`%s`", r->target);
        if (r->use == KEY_ALWAYS) fprintf(out, "always %s", r->usual);
        if (r->use == KEY_IDLE) fprintf(out, "no effect");
        fprintf(out, " | ");
        write_auto(r, out);
        fprintf(out, " | %s%s |\n", r->doc,
                r->stage == 3   ? " From stage 3."
                : r->stage == 1 ? " From stage 1."
                                : "");
    }
}
