/* config.c - the settings engine: tables, sources, flags, print-outs. */
#include "common/base/config.h"

#include "common/base/why.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    ROWS_MAX    = 256,
    NAME_BYTES  = 64, /* longest name of a setting, with its NUL */
    LINE_BYTES  = 1024,
    HELP_WIDTH  = 100,
    NUMBER_SIZE = 32
};
static const char env_prefix[]  = "PENSTOCK_";
static const double exact_up_to = 9007199254740992.0; /* 2^53: limits are held in doubles */

static const config_row *find_row(const config_row *rows, const char *key)
{
    for (const config_row *r = rows; r->name != NULL; r++)
        if (strcmp(r->name, key) == 0) return r;
    return NULL;
}

static void *field_of(const config_row *row, const void *settings)
{
    return (char *)settings + row->offset;
}

/* ---- did you mean ---------------------------------------------------------------------------- */

static int min3(int a, int b, int c)
{
    const int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

int config_unlikeness(const char *key, const char *name)
{
    /* Fewest letters to add, drop, change or swap with their neighbour (optimal string alignment). */
    const int n = (int)strnlen(key, NAME_BYTES), m = (int)strnlen(name, NAME_BYTES);
    int cost[3][NAME_BYTES + 1]; /* of the last two rows and this one, in turn */
    for (int j = 0; j <= m; j++) cost[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = cost[i % 3], *last = cost[(i + 2) % 3], *before = cost[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            now[j] = min3(last[j] + 1, now[j - 1] + 1, last[j - 1] + (key[i - 1] != name[j - 1]));
            if (i > 1 && j > 1 && key[i - 1] == name[j - 2] && key[i - 2] == name[j - 1] &&
                before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
    }
    const int apart = cost[n % 3][m];
    if (apart > 1 && n > 1 && strncmp(key, name, (size_t)n) == 0) return 1;
    if (apart > 2 && strlen(key) > 2 && (strstr(name, key) != NULL || strstr(key, name) != NULL))
        return 2;
    return apart;
}

static void seek_nearest(const config_row *rows, const char *key, const char **nearest, int *best)
{
    for (const config_row *r = rows; r->name != NULL; r++) {
        const int apart = config_unlikeness(key, r->name);
        if (*nearest != NULL && apart >= *best) continue;
        *nearest = r->name;
        *best    = apart;
    }
}

static pen_status refuse_unknown(const config_row *rows, const config_row *const *known,
                                 const char *key, pen_error *why)
{
    const char *nearest = NULL;
    int best            = 0;
    seek_nearest(rows, key, &nearest, &best);
    for (; known != NULL && *known != NULL; known++) seek_nearest(*known, key, &nearest, &best);
    if (nearest == NULL)
        return why_set(why, PEN_BAD_SETTING, "unknown setting '%.80s'; no settings expected here",
                       key);
    return why_set(why, PEN_BAD_SETTING, "unknown setting '%.80s'; did you mean '%s'?", key,
                   nearest);
}

/* ---- one value ------------------------------------------------------------------------------- */

/* Reads and writes numbers with a point, whatever LC_NUMERIC of the program. */
static double read_double(const char *text, char **end)
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) return strtod(text, end);
    const double value = strtod_l(text, end, plain);
    freelocale(plain);
    return value;
}

/* The shortest text that reads back as the same number; whole numbers without an exponent. */
static void write_double(double value, char text[NUMBER_SIZE])
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const locale_t old   = plain != (locale_t)0 ? uselocale(plain) : (locale_t)0;
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, NUMBER_SIZE, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    if (fabs(value) <= exact_up_to && value == floor(value))
        snprintf(text, NUMBER_SIZE, "%.0f", value);
    if (plain != (locale_t)0) {
        uselocale(old);
        freelocale(plain);
    }
}

static pen_status refuse_range(const config_row *row, const char *text, pen_error *why)
{
    char min[NUMBER_SIZE], max[NUMBER_SIZE];
    write_double(row->min, min);
    write_double(row->max, max);
    if (isinf(row->max))
        return why_set(why, PEN_BAD_SETTING, "%s is %.80s, but must be at least %s", row->name,
                       text, min);
    return why_set(why, PEN_BAD_SETTING, "%s is %.80s, but must be between %s and %s", row->name,
                   text, min, max);
}

/* Digits with an optional sign and binary suffix.  Values beyond 63 bits become the largest value, which every
 * range refuses. */
static bool read_whole(const char *text, int64_t *value)
{
    const bool is_negative = *text == '-';
    if (*text == '-' || *text == '+') text++;
    if (!isdigit((unsigned char)*text)) return false;

    int64_t n = 0;
    for (; isdigit((unsigned char)*text); text++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *text - '0', &n))
            n = INT64_MAX;
    static const char suffixes[] = "kmgt";
    const char *suffix = *text != '\0' ? strchr(suffixes, tolower((unsigned char)*text)) : NULL;
    if (suffix != NULL) {
        const int64_t unit = (int64_t)1 << (10 * (suffix - suffixes + 1));
        if (__builtin_mul_overflow(n, unit, &n)) n = INT64_MAX;
        text++;
    }
    *value = is_negative ? -n : n;
    return *text == '\0';
}

static pen_status set_whole(const config_row *row, void *settings, const char *text, pen_error *why)
{
    int64_t value;
    if (!read_whole(text, &value))
        return why_set(why, PEN_BAD_SETTING, "%s is '%.80s', which is not a whole number",
                       row->name, text);
    if (value < (int64_t)row->min || value > (int64_t)row->max) return refuse_range(row, text, why);
    if (row->type == CONFIG_U64)
        *(uint64_t *)field_of(row, settings) = (uint64_t)value;
    else
        *(int64_t *)field_of(row, settings) = value;
    return PEN_OK;
}

static pen_status set_double(const config_row *row, void *settings, const char *text,
                             pen_error *why)
{
    char *end;
    errno              = 0;
    const double value = read_double(text, &end);
    if (end == text || *end != '\0' || isspace((unsigned char)*text) || isnan(value))
        return why_set(why, PEN_BAD_SETTING, "%s is '%.80s', which is not a number", row->name,
                       text);
    /* 1e999 is not the word inf: an overflow never means "no limit". */
    const bool overflowed = errno == ERANGE && isinf(value);
    if (overflowed || value < row->min || value > row->max) return refuse_range(row, text, why);
    *(double *)field_of(row, settings) = value;
    return PEN_OK;
}

/* -1: no word of a bool. */
static int read_bool(const char *text)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (int i = 0; i < (int)(sizeof words / sizeof words[0]); i++)
        if (strcasecmp(words[i], text) == 0) return i % 2;
    return -1;
}

static pen_status set_bool(const config_row *row, void *settings, const char *text, pen_error *why)
{
    const int value = read_bool(text);
    if (value >= 0) {
        *(bool *)field_of(row, settings) = value == 1;
        return PEN_OK;
    }
    return why_set(why, PEN_BAD_SETTING, "%s is '%.80s'; choose yes or no", row->name, text);
}

/* "a, b, c" */
static void list_choices(const config_row *row, char *text, size_t size)
{
    size_t used = 0;
    text[0]     = '\0';
    for (int i = 0; row->choices[i] != NULL && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", row->choices[i]);
}

bool config_is_switch(const config_row *row)
{
    if (row->type != CONFIG_ENUM) return row->type == CONFIG_BOOL;
    return strcmp(row->choices[0], "no") == 0 && row->choices[1] != NULL &&
           strcmp(row->choices[1], "yes") == 0;
}

/* -1: not among them. */
static int find_choice(const config_row *row, const char *text)
{
    for (int i = 0; row->choices[i] != NULL; i++)
        if (strcmp(row->choices[i], text) == 0) return i;
    return -1;
}

static pen_status set_enum(const config_row *row, void *settings, const char *text, pen_error *why)
{
    int value = find_choice(row, text);
    if (value < 0 && config_is_switch(row)) value = read_bool(text);
    if (value >= 0) {
        *(int *)field_of(row, settings) = value;
        return PEN_OK;
    }
    char choices[384];
    list_choices(row, choices, sizeof choices);
    return why_set(why, PEN_BAD_SETTING, "%s is '%.80s'; choose one of %s", row->name, text,
                   choices);
}

static pen_status set_text(const config_row *row, void *settings, const char *text, pen_error *why)
{
    const size_t length = strlen(text);
    if (length >= CONFIG_TEXT_BYTES)
        return why_set(why, PEN_BAD_SETTING, "%s is %zu bytes long, but at most %d fit", row->name,
                       length, CONFIG_TEXT_BYTES - 1);
    char *field = field_of(row, settings);
    memset(field, 0, CONFIG_TEXT_BYTES);
    memcpy(field, text, length);
    return PEN_OK;
}

static pen_status set_row(const config_row *row, void *settings, const char *text, pen_error *why)
{
    switch (row->type) {
    case CONFIG_U64:
    case CONFIG_I64: return set_whole(row, settings, text, why);
    case CONFIG_F64: return set_double(row, settings, text, why);
    case CONFIG_BOOL: return set_bool(row, settings, text, why);
    case CONFIG_ENUM: return set_enum(row, settings, text, why);
    case CONFIG_TEXT: return set_text(row, settings, text, why);
    }
    assert(!"a table row has one of the types above");
    return PEN_INTERNAL;
}

static bool is_not_given(const config_row *row)
{
    return row->type == CONFIG_F64 && strcmp(row->dfl, "nan") == 0;
}

void config_defaults(const config_row *rows, void *settings)
{
    pen_error why;
    for (const config_row *r = rows; r->name != NULL; r++) {
        assert((r->type != CONFIG_U64 && r->type != CONFIG_I64) ||
               (r->min >= -exact_up_to && r->max <= exact_up_to));
        if (is_not_given(r)) {
            *(double *)field_of(r, settings) = NAN;
            continue;
        }
        const pen_status status = set_row(r, settings, r->dfl, &why);
        assert(status == PEN_OK); /* a default outside of its own range is our bug */
        (void)status;
    }
}

pen_status config_set(const config_row *rows, void *settings, const char *key, const char *text,
                      pen_error *why)
{
    const config_row *row = find_row(rows, key);
    if (row == NULL) return refuse_unknown(rows, NULL, key, why);
    return set_row(row, settings, text, why);
}

void config_get(const config_row *rows, const void *settings, const char *key, char *text,
                size_t size)
{
    const config_row *row = find_row(rows, key);
    if (size > 0) text[0] = '\0';
    if (row == NULL) return;

    char number[NUMBER_SIZE];
    const void *field = field_of(row, settings);
    switch (row->type) {
    case CONFIG_U64: snprintf(text, size, "%" PRIu64, *(const uint64_t *)field); break;
    case CONFIG_I64: snprintf(text, size, "%" PRId64, *(const int64_t *)field); break;
    case CONFIG_F64:
        write_double(*(const double *)field, number);
        snprintf(text, size, "%s", number);
        break;
    case CONFIG_BOOL: snprintf(text, size, "%s", *(const bool *)field ? "yes" : "no"); break;
    case CONFIG_ENUM: snprintf(text, size, "%s", row->choices[*(const int *)field]); break;
    case CONFIG_TEXT: snprintf(text, size, "%s", (const char *)field); break;
    }
}

/* ---- sources --------------------------------------------------------------------------------- */

/* One source being read: each key may appear once in it. */
typedef struct {
    const config_row *rows;
    void *settings;
    pen_error *why;
    uint64_t seen[ROWS_MAX / 64]; /* a bit per row */
} layer;

static pen_status layer_set_row(layer *self, const config_row *row, const char *text)
{
    const size_t i = (size_t)(row - self->rows);
    assert(i < ROWS_MAX);
    if ((self->seen[i / 64] >> i % 64 & 1) != 0)
        return why_set(self->why, PEN_BAD_SETTING, "%s is given twice", row->name);
    self->seen[i / 64] |= (uint64_t)1 << i % 64;
    return set_row(row, self->settings, text, self->why);
}

static pen_status layer_set(layer *self, const char *key, const char *text)
{
    const config_row *row = find_row(self->rows, key);
    if (row == NULL) return refuse_unknown(self->rows, NULL, key, self->why);
    return layer_set_row(self, row, text);
}

/* Appends the place of a refused setting to *why. */
static pen_status refused_in(pen_error *why, pen_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static pen_status refused_in(pen_error *why, pen_status status, const char *format, ...)
{
    if (why == NULL) return status;
    const size_t used = strlen(why->text);
    va_list args;
    va_start(args, format);
    vsnprintf(why->text + used, sizeof why->text - used, format, args);
    va_end(args);
    return status;
}

/* Splits "name=value" at its '='.  False if there is none or the name is too long. */
static bool split(const char *word, size_t length, char key[NAME_BYTES], const char **value)
{
    const char *equals = memchr(word, '=', length);
    if (equals == NULL || equals == word || equals - word >= NAME_BYTES) return false;
    memcpy(key, word, (size_t)(equals - word));
    key[equals - word] = '\0';
    *value             = equals + 1;
    return true;
}

static pen_status refuse_word(pen_error *why, const char *word)
{
    return why_set(why, PEN_BAD_SETTING, "expected name=value, got '%.80s'", word);
}

pen_status config_from_strings(const config_row *rows, void *settings, const char *const *strings,
                               pen_error *why)
{
    layer strings_layer = {.rows = rows, .settings = settings, .why = why};
    for (; strings != NULL && *strings != NULL; strings++) {
        char key[NAME_BYTES];
        const char *value;
        if (!split(*strings, strlen(*strings), key, &value)) return refuse_word(why, *strings);
        const pen_status status = layer_set(&strings_layer, key, value);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static const char *skip_blanks(const char *at)
{
    while (is_blank(*at)) at++;
    return at;
}

/* Copies the value at `at`, up to a blank or between '...', and returns the rest.  NULL: too long, or a quote that
 * does not close at the end of a word. */
static const char *take_value(const char *at, char value[CONFIG_TEXT_BYTES])
{
    const char *start = at, *end;
    if (*at == '\'') {
        start = at + 1;
        end   = strchr(start, '\'');
        if (end == NULL || (end[1] != '\0' && !is_blank(end[1]))) return NULL;
        at = end + 1;
    } else {
        while (*at != '\0' && !is_blank(*at)) at++;
        end = at;
    }
    if (end - start >= CONFIG_TEXT_BYTES) return NULL;
    memcpy(value, start, (size_t)(end - start));
    value[end - start] = '\0';
    return at;
}

static pen_status refuse_value(pen_error *why, const char *key)
{
    return why_set(why, PEN_BAD_SETTING,
                   "the value of %s is longer than %d bytes or has an open quote", key,
                   CONFIG_TEXT_BYTES - 1);
}

pen_status config_from_words(const config_row *rows, void *settings, const char *words,
                             pen_error *why)
{
    layer words_layer = {.rows = rows, .settings = settings, .why = why};
    for (const char *at = skip_blanks(words); *at != '\0'; at = skip_blanks(at)) {
        char key[NAME_BYTES], value[CONFIG_TEXT_BYTES];
        const char *text;
        if (!split(at, strcspn(at, " \t\r\n"), key, &text)) return refuse_word(why, at);
        at = take_value(text, value);
        if (at == NULL) return refuse_value(why, key);
        const pen_status status = layer_set(&words_layer, key, value);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

/* Ends the line at its comment: a '#' at its start or after a blank, and not between quotes. */
static void cut_comment(char *line)
{
    bool is_quoted = false;
    for (char *at = line; *at != '\0'; at++) {
        if (*at == '\'') is_quoted = !is_quoted;
        if (*at == '#' && !is_quoted && (at == line || is_blank(at[-1]))) {
            *at = '\0';
            return;
        }
    }
}

static void cut_trailing_blanks(char *text)
{
    size_t length = strlen(text);
    while (length > 0 && is_blank(text[length - 1])) text[--length] = '\0';
}

/* In a file, an unquoted value ends with its line and may hold blanks. */
static pen_status set_line(layer *self, char *line)
{
    cut_comment(line);
    cut_trailing_blanks(line);
    char *key = line + strspn(line, " \t");
    if (*key == '\0') return PEN_OK;

    char *equals = strchr(key, '=');
    if (equals == NULL || equals == key) return refuse_word(self->why, key);
    char *value = equals + 1 + strspn(equals + 1, " \t");
    *equals     = '\0';
    cut_trailing_blanks(key);
    if (*value != '\'') return layer_set(self, key, value);

    char unquoted[CONFIG_TEXT_BYTES];
    const char *rest = take_value(value, unquoted);
    if (rest == NULL || *rest != '\0') return refuse_value(self->why, key);
    return layer_set(self, key, unquoted);
}

static pen_status read_lines(layer *self, FILE *file, const char *path)
{
    char line[LINE_BYTES];
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        const bool is_whole = strchr(line, '\n') != NULL || feof(file);
        const pen_status status =
            is_whole ? set_line(self, line)
                     : why_set(self->why, PEN_BAD_SETTING,
                               "the line is longer than %d bytes, or not text", LINE_BYTES - 2);
        if (status != PEN_OK)
            return refused_in(self->why, status, "  (from %.200s:%d)", path, number);
    }
    if (ferror(file)) return why_set(self->why, PEN_NOT_FOUND, "cannot read %.200s: %m", path);
    return PEN_OK;
}

pen_status config_from_file(const config_row *rows, void *settings, const char *path,
                            pen_error *why)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return why_set(why, PEN_NOT_FOUND, "cannot open %.200s: %m", path);
    layer file_layer        = {.rows = rows, .settings = settings, .why = why};
    const pen_status status = read_lines(&file_layer, file, path);
    fclose(file);
    return status;
}

static bool is_known(const config_row *const *known, const char *key)
{
    for (; known != NULL && *known != NULL; known++)
        if (find_row(*known, key) != NULL) return true;
    return false;
}

static pen_status set_variable(layer *self, const config_row *const *known, const char *variable)
{
    char key[NAME_BYTES];
    const char *text;
    if (!split(variable, strlen(variable), key, &text)) return refuse_word(self->why, variable);
    for (char *at = key; *at != '\0'; at++) *at = (char)tolower((unsigned char)*at);

    const config_row *row = find_row(self->rows, key);
    if (row != NULL) return layer_set_row(self, row, text);
    return is_known(known, key) ? PEN_OK : refuse_unknown(self->rows, known, key, self->why);
}

pen_status config_from_env(const config_row *rows, void *settings, const config_row *const *known,
                           pen_error *why)
{
    layer env_layer = {.rows = rows, .settings = settings, .why = why};
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        const size_t prefix = sizeof env_prefix - 1;
        if (strncmp(*at, env_prefix, prefix) != 0) continue;
        const pen_status status = set_variable(&env_layer, known, *at + prefix);
        if (status != PEN_OK)
            return refused_in(why, status, "  (from %.*s)", (int)strcspn(*at, "="), *at);
    }
    return PEN_OK;
}

/* The row of a flag, with '-' read as '_'.  --no-name of a switch: its row, and "no" as text. */
static const config_row *find_flag(const config_row *rows, char key[NAME_BYTES], const char **text)
{
    for (char *at = key; *at != '\0'; at++)
        if (*at == '-') *at = '_';
    const config_row *row = find_row(rows, key);
    if (row != NULL || *text != NULL || strncmp(key, "no_", 3) != 0) return row;
    row = find_row(rows, key + 3);
    if (row == NULL || !config_is_switch(row)) return NULL;
    *text = "no";
    return row;
}

bool config_is_switch_value(const config_row *row, const char *word)
{
    static const char *const words[] = {"yes", "no", "on", "off"};
    if (row->type == CONFIG_ENUM && find_choice(row, word) >= 0) return true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i], word) == 0) return true;
    return false;
}

/* One flag; if it takes the next word as its value, *i moves to that word. */
static pen_status set_flag(layer *self, int argc, char **argv, int *i)
{
    char key[NAME_BYTES];
    const char *flag = argv[*i] + 2, *text = NULL;
    if (!split(flag, strlen(flag), key, &text)) snprintf(key, sizeof key, "%s", flag);

    const config_row *row = find_flag(self->rows, key, &text);
    if (row == NULL) return refuse_unknown(self->rows, NULL, key, self->why);
    const bool may_stand_alone = config_is_switch(row);
    if (text == NULL && *i + 1 < argc &&
        (!may_stand_alone || config_is_switch_value(row, argv[*i + 1])))
        text = argv[++*i];
    if (text == NULL && may_stand_alone) text = "yes";
    if (text == NULL)
        return why_set(self->why, PEN_BAD_SETTING, "--%s needs a value: --%s=%s", row->name,
                       row->name, row->dfl);
    return layer_set_row(self, row, text);
}

pen_status config_from_argv(const config_row *rows, void *settings, int argc, char **argv,
                            int *rest, pen_error *why)
{
    layer flags = {.rows = rows, .settings = settings, .why = why};
    int i       = 1;
    for (; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || argv[i][2] == '\0') break;
        const pen_status status = set_flag(&flags, argc, argv, &i);
        if (status != PEN_OK) return status;
    }
    *rest = i;
    return PEN_OK;
}

const char *config_env(const char *name)
{
    return getenv(name);
}

void config_variable(const char *setting, char name[CONFIG_VARIABLE_BYTES])
{
    size_t n = (size_t)snprintf(name, CONFIG_VARIABLE_BYTES, "%s", env_prefix);
    for (; *setting != '\0' && n + 1 < CONFIG_VARIABLE_BYTES; setting++)
        name[n++] = (char)toupper((unsigned char)*setting);
    name[n] = '\0';
}

const char *config_env_of(const char *setting)
{
    char name[CONFIG_VARIABLE_BYTES];
    config_variable(setting, name);
    return config_env(name);
}

/* ---- print-outs ------------------------------------------------------------------------------ */

void config_accepted(const config_row *row, char *text, size_t size)
{
    char min[NUMBER_SIZE], max[NUMBER_SIZE];
    switch (row->type) {
    case CONFIG_BOOL: snprintf(text, size, "yes or no"); return;
    case CONFIG_ENUM: list_choices(row, text, size); return;
    case CONFIG_TEXT: snprintf(text, size, "text"); return;
    case CONFIG_U64:
    case CONFIG_I64:
    case CONFIG_F64:
        write_double(row->min, min);
        write_double(row->max, max);
        if (isinf(row->max))
            snprintf(text, size, "at least %s", min);
        else
            snprintf(text, size, "%s to %s", min, max);
    }
}

const char *config_default(const config_row *row)
{
    if (is_not_given(row)) return "none";
    return row->dfl[0] != '\0' ? row->dfl : "''";
}

/* Writes words from `column` on, wrapped at HELP_WIDTH; the cursor is at `at`. */
static void write_wrapped(FILE *out, const char *text, int column, int *at)
{
    for (text = skip_blanks(text); *text != '\0'; text = skip_blanks(text)) {
        const int length = (int)strcspn(text, " ");
        if (*at > column && *at + 1 + length > HELP_WIDTH) {
            fprintf(out, "\n%*s", column, "");
            *at = column;
        }
        *at += fprintf(out, "%s%.*s", *at > column ? " " : "", length, text);
        text += length;
    }
}

/* As a flag is written; _ works too. */
static void write_hyphens(FILE *out, const char *name)
{
    for (; *name != '\0'; name++) fputc(*name == '_' ? '-' : *name, out);
}

void config_write_help(const config_row *rows, FILE *out)
{
    enum { DEFAULT_WIDTH_MAX = 16 };
    int name_width = 0, default_width = 0;
    for (const config_row *r = rows; r->name != NULL; r++) {
        const int name = (int)strlen(r->name), dfl = (int)strlen(config_default(r));
        if (name > name_width) name_width = name;
        if (dfl > default_width && dfl <= DEFAULT_WIDTH_MAX) default_width = dfl;
    }

    const int column = 2 + 2 + name_width + 2 + default_width + 2;
    for (const config_row *r = rows; r->name != NULL; r++) {
        char accepted[512];
        config_accepted(r, accepted, sizeof accepted);
        int at = fprintf(out, "  --") + (int)strlen(r->name);
        write_hyphens(out, r->name);
        at += fprintf(out, "%*s  %-*s", name_width - (int)strlen(r->name), "", default_width,
                      config_default(r));
        if (at > column - 2) at = fprintf(out, "\n") - 1; /* a long default gets its own line */
        fprintf(out, "%*s", column - at, "");
        at = column;
        write_wrapped(out, r->doc, column, &at);
        if (r->type != CONFIG_TEXT) {
            write_wrapped(out, "Accepts", column, &at);
            write_wrapped(out, accepted, column, &at);
            fprintf(out, ".");
        }
        fprintf(out, "\n");
    }
}

/* Escapes bars, which would end the cell. */
static void write_cell(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
    }
}

void config_write_markdown(const config_row *row, const char *readers, FILE *out)
{
    char accepted[512];
    char variable[CONFIG_VARIABLE_BYTES];
    config_accepted(row, accepted, sizeof accepted);
    config_variable(row->name, variable);
    fprintf(out, "| `--");
    write_hyphens(out, row->name);
    fprintf(out, "` | `%s` | %s | `", variable, readers);
    write_cell(out, config_default(row));
    fprintf(out, "` | ");
    write_cell(out, accepted);
    fprintf(out, " | ");
    write_cell(out, row->doc);
    fprintf(out, " |\n");
}
