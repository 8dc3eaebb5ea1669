/* command_top.c - `penstock top`: prints the table of top.c repeatedly; q ends it. */
#include "cli/command.h"
#include "cli/commands/top.h"
#include "cli/job/control.h"
#include "common/base/clock.h"
#include "common/base/why.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

typedef struct {
    CONTROL_PLACE(CONFIG_FIELD, "", "")
    CONTROL_PROTECTION(CONFIG_FIELD)
    double interval;
    uint64_t count;
} top_settings;

#define ROW(...) CONFIG_ROW(top_settings, __VA_ARGS__)
/* clang-format off */
static const config_row top_rows[] = {
    ROW(interval, F64, "1", 0.1, 3600, NULL, "Update interval in seconds.")
    ROW(count,    U64, "0", 0,   1e15, NULL, "Number of tables to print (also -n); 0: until q, or the end of the job.")
    CONTROL_PLACE(ROW, "5000", "Maximum time to wait for an answer.")
    CONTROL_PROTECTION(ROW)
    {0},
};
/* clang-format on */

static volatile sig_atomic_t is_told_to_end;

static void end(int signal)
{
    (void)signal;
    is_told_to_end = 1;
}

/* Unbuffered keys; false: not a terminal. */
static bool listen_to_keys(struct termios *before)
{
    struct termios raw;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, before) != 0)
        return false;
    raw = *before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

/* False after q or a signal. */
static bool rest(double seconds, bool has_keys)
{
    const uint64_t until = clock_ms(&clock_real) + (uint64_t)(seconds * 1000);
    for (uint64_t now; !is_told_to_end && (now = clock_ms(&clock_real)) < until;) {
        struct pollfd keys = {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN};
        char key;
        if (poll(&keys, 1, (int)(until - now)) > 0 &&
            (read(STDIN_FILENO, &key, 1) != 1 || key == 'q'))
            return false;
    }
    return !is_told_to_end;
}

static pen_status watch(const top_settings *s, control *link, top *t, bool has_keys, pen_error *why)
{
    for (uint64_t i = 0; s->count == 0 || i < s->count; i++) {
        wire_control question = {.kind = WIRE_STATUS_ASK}, answer;
        if (i > 0 && !rest(s->interval, has_keys)) return PEN_OK;
        const pen_status status =
            control_ask(link, &question, WIRE_STATUS, s->timeout_ms, &answer, why);
        if (status == PEN_AGAIN)
            return why_set(why, PEN_TIMED_OUT, "the scheduler did not answer within %" PRIu64 " ms",
                           s->timeout_ms);
        if (status != PEN_OK) return status;
        if (!top_take(t, &answer)) return why_set(why, PEN_NO_MEMORY, "no memory for the table");
        /* Redraws a terminal; prints tables one below the other otherwise. */
        struct winsize size     = {0};
        const bool is_terminal  = isatty(STDOUT_FILENO);
        const char *no_color    = config_env("NO_COLOR");
        const bool has_no_color = no_color != NULL && no_color[0] != '\0';
        if (is_terminal) ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
        if (is_terminal) fputs("\033[H\033[J", stdout);
        if (!is_terminal && i > 0) fputc('\n', stdout);
        top_print(t, is_terminal && !has_no_color, is_terminal ? size.ws_col : 0, stdout);
    }
    return PEN_OK;
}

/* "-n 3", as in watch and top. */
static void spell_count(int argc, char **argv)
{
    static char count[] = "--count";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-n") == 0) argv[i] = count;
}

int command_top(int argc, char **argv)
{
    top_settings s;
    control *link;
    struct termios before;
    pen_error why = {0};
    spell_count(argc, argv);
    const int code = command_settings(
        top_rows, &s, argc, argv,
        "usage: penstock top [-n COUNT] [--interval SECONDS] [--master-addr HOST --master-port "
        "PORT]\n\n"
        "Shows steps and bytes per second of every server and worker, and which member waits for\n"
        "which.  q quits.  Without a terminal the tables are printed one after another.  NO_COLOR\n"
        "disables colors.",
        NULL);
    if (code >= 0) return code;
    control_protect(s.encryption, s.secret_file);
    if (control_open_job(s.job, s.master_addr, s.master_port, s.timeout_ms, &link, &why) != PEN_OK)
        return command_fail(1, "%s", why.text);
    top *t = top_create();
    sigaction(SIGINT, &(struct sigaction){.sa_handler = end}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = end}, NULL);
    const bool has_keys = listen_to_keys(&before);
    const pen_status status =
        t != NULL ? watch(&s, link, t, has_keys, &why) : why_set(&why, PEN_NO_MEMORY, "no memory");
    if (has_keys) tcsetattr(STDIN_FILENO, TCSANOW, &before);
    top_destroy(t);
    control_close(link, 0);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}
