/* lines.c - with log_format=json everything a job prints is one JSON object per line.
 *
 * DESIGN.  Our processes write such objects to stderr themselves; these pass unchanged.  Output of a program is wrapped
 * here, where its rank is known.  The launcher's own stderr is replaced by a FILE that wraps each line.
 */
#include "cli/run/lines.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static bool is_json;
static char own_line[PROCESS_LINE_BYTES];
static size_t own_size;
static const char *hidden;
static uint64_t newest_ms;

static void write_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t sent = write(fd, bytes, n);
        if (sent < 0 && errno != EINTR) return;
        if (sent <= 0) continue;
        bytes += sent;
        n -= (size_t)sent;
    }
}

static void end_own_line(void)
{
    char line[2 * PROCESS_LINE_BYTES];
    const char *text   = own_line;
    own_line[own_size] = '\0';
    own_size           = 0;
    if (strncmp(text, "penstock: ", 10) == 0) text += 10;
    if (*text == '\0') return; /* an empty line is for people */
    write_all(STDERR_FILENO, line,
              log_json(line, sizeof line, LOG_NOTICE, "launcher", -1, NULL, text));
}

static ssize_t take_own(void *user, const char *bytes, size_t n)
{
    (void)user;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != '\n') own_line[own_size++] = bytes[i];
        if (bytes[i] == '\n' || own_size == sizeof own_line - 1) end_own_line();
    }
    return (ssize_t)n;
}

void lines_begin(const char *format)
{
    static FILE *own;
    is_json = format != NULL && strcmp(format, "json") == 0;
    if (!is_json) return;
    log_format_set(LOG_JSON);
    log_format_as("launcher", -1);
    own = fopencookie(NULL, "w", (cookie_io_functions_t){.write = take_own});
    if (own == NULL) return; /* then our own lines stay text */
    setvbuf(own, NULL, _IONBF, 0);
    stderr = own;
}

void lines_hide(const char *verdict)
{
    hidden = verdict;
}

uint64_t lines_newest_ms(void)
{
    return newest_ms;
}

void lines_show(const process *p, process_stream *s)
{
    if (p->role == PEN_WORKER) newest_ms = clock_ms(&clock_real);
    if (s == &p->err && hidden != NULL) {
        s->line[s->line_size] = '\0';
        if (strstr(s->line, hidden) != NULL) return;
    }
    if (!is_json) {
        fputs(p->prefix, s->terminal);
        fwrite(s->line, 1, s->line_size, s->terminal);
        fflush(s->terminal);
        return;
    }
    const bool is_out = s == &p->out;
    const int fd      = is_out ? STDOUT_FILENO : STDERR_FILENO;
    if (s->line[0] == '{' && s->line_size > 2 && s->line[s->line_size - 2] == '}') {
        write_all(fd, s->line, s->line_size);
        return;
    }
    char line[2 * PROCESS_LINE_BYTES], text[PROCESS_LINE_BYTES], role[16];
    memcpy(text, s->line, s->line_size);
    text[s->line_size - 1] = '\0';
    snprintf(role, sizeof role, "%.*s", (int)strcspn(p->name, " "), p->name);
    write_all(fd, line,
              log_json(line, sizeof line, -1, role, p->rank, is_out ? "stdout" : "stderr", text));
}
