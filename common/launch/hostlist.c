/* hostlist.c - reads Slurm's lists of hosts and its counts of tasks.
 *
 * DESIGN  A list consists of words, separated by commas outside of brackets.  A word is text with any number of
 * brackets, "r[1-2]n[0-3]"; the last bracket varies fastest.  Lists are never expanded: host i of a word is found
 * by dividing i by the bracket sizes from the right, so a list of millions costs nothing.  A range keeps the width
 * of its first number: 010-012 has three digits, 9-11 as many as it needs.
 */
#include "common/launch/hostlist.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BRACKETS_MAX = 8, DIGITS_MAX = 18 };
#define HOSTS_MAX (UINT64_C(1) << 32)

typedef struct {
    uint64_t first, last;
    int width; /* digits of the first */
} range;

static const char *read_number(const char *at, uint64_t *value, int *digits)
{
    int n  = 0;
    *value = 0;
    for (; at[n] >= '0' && at[n] <= '9'; n++) {
        if (n == DIGITS_MAX) return NULL;
        *value = *value * 10 + (uint64_t)(at[n] - '0');
    }
    *digits = n;
    return n > 0 ? at + n : NULL;
}

/* Reads "3-7" or "12" and returns what follows; NULL: neither. */
static const char *read_range(const char *at, range *r)
{
    int digits;
    at = read_number(at, &r->first, &r->width);
    if (at == NULL) return NULL;
    r->last = r->first;
    if (*at == '-') at = read_number(at + 1, &r->last, &digits);
    return at == NULL || r->last < r->first || r->last - r->first >= HOSTS_MAX ? NULL : at;
}

/* Counts the hosts of a bracket, starting after '['; returns what follows ']', or NULL. */
static const char *read_bracket(const char *at, uint64_t *n)
{
    range r;
    *n = 0;
    do {
        at = read_range(at, &r);
        if (at == NULL) return NULL;
        *n += r.last - r.first + 1;
        if (*n > HOSTS_MAX) return NULL;
    } while (*at == ',' && at++ != NULL);
    return *at == ']' ? at + 1 : NULL;
}

typedef struct {
    uint64_t hosts;
    uint64_t size[BRACKETS_MAX];
    int brackets;
} word;

/* Reads one word and returns the comma or end after it; NULL: malformed. */
static const char *read_word(const char *at, word *w)
{
    *w                = (word){.hosts = 1};
    const char *begin = at;
    while (*at != ',' && *at != '\0') {
        if (*at == ']') return NULL;
        if (*at++ != '[') continue;
        if (w->brackets == BRACKETS_MAX) return NULL;
        at = read_bracket(at, &w->size[w->brackets]);
        if (at == NULL) return NULL;
        w->hosts *= w->size[w->brackets++];
        if (w->hosts > HOSTS_MAX) return NULL;
    }
    return at > begin ? at : NULL;
}

/* Writes number `index` of a bracket that read_bracket() has accepted; returns what follows ']'. */
static const char *write_number(const char *at, uint64_t index, char *text, size_t size)
{
    range r;
    const char *close = strchr(at, ']');
    for (at = read_range(at, &r); at != NULL && index > r.last - r.first;
         at = read_range(at + 1, &r))
        index -= r.last - r.first + 1;
    snprintf(text, size, "%0*" PRIu64, r.width, r.first + index);
    return close + 1;
}

static bool write_host(const char *at, const word *w, uint64_t index, char *host, size_t size)
{
    uint64_t digit[BRACKETS_MAX];
    for (int i = w->brackets - 1; i >= 0; i--) {
        digit[i] = index % w->size[i];
        index /= w->size[i];
    }
    size_t n = 0;
    for (int bracket = 0; *at != ',' && *at != '\0';) {
        char number[24] = {*at, '\0'};
        if (*at == '[')
            at = write_number(at + 1, digit[bracket++], number, sizeof number);
        else
            at++;
        const size_t length = strlen(number);
        if (n + length >= size) return false;
        memcpy(host + n, number, length);
        n += length;
    }
    host[n] = '\0';
    return true;
}

bool hostlist_at(const char *list, uint64_t index, char *host, size_t size)
{
    word w;
    for (const char *at = list, *next; (next = read_word(at, &w)) != NULL; at = next + 1) {
        if (index < w.hosts) return write_host(at, &w, index, host, size);
        index -= w.hosts;
        if (*next == '\0') return false;
    }
    return false;
}

int64_t hostlist_tasks(const char *at, uint64_t node)
{
    while (at != NULL && *at != '\0') {
        uint64_t tasks, nodes = 1;
        int digits;
        at = read_number(at, &tasks, &digits);
        if (at != NULL && strncmp(at, "(x", 2) == 0) {
            at = read_number(at + 2, &nodes, &digits);
            if (at == NULL || *at++ != ')') return -1;
        }
        if (at == NULL || tasks > HOSTS_MAX) return -1;
        if (node < nodes) return (int64_t)tasks;
        node -= nodes;
        if (*at != ',') return -1;
        at++;
    }
    return -1;
}
