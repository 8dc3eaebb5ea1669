/* command_scheduler.c - `penstock scheduler`: one scheduler, for one job. */
#include "cli/command.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "scheduler/shell/scheduler.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static scheduler *running;

static void stop(int signal_)
{
    (void)signal_;
    scheduler_stop(running);
}

/* Removes "--announce-fd N" from argv: the launcher's pipe, which receives the actual ports. */
static int take_announce_fd(int *argc, char **argv)
{
    for (int i = 1; i + 1 < *argc; i++) {
        if (strcmp(argv[i], "--announce-fd") != 0) continue;
        int fd = atoi(argv[i + 1]);
        memmove(argv + i, argv + i + 2, (size_t)(*argc - i - 1) * sizeof *argv);
        *argc -= 2;
        return fd;
    }
    return -1;
}

static void announce(int fd)
{
    const char *address = scheduler_address(running);
    if (fd < 0) {
        fprintf(stderr, "penstock: scheduler listens at %s\n", address);
        if (scheduler_http_at(running)[0] != '\0')
            fprintf(stderr, "penstock: watch the job at http://%s/\n", scheduler_http_at(running));
        return;
    }
    dprintf(fd, "%s %s\n", strrchr(address, ':') + 1, scheduler_http_at(running));
    close(fd);
}

int command_scheduler(int argc, char **argv)
{
    scheduler_settings s;
    pen_error why         = {0};
    const int announce_fd = take_announce_fd(&argc, argv);
    const int code        = command_settings(
               scheduler_settings_rows, &s, argc, argv,
               "usage: penstock scheduler --world-size W [--servers S] [--host HOST] [--port PORT]", NULL);
    if (code >= 0) return code;
    if (announce_fd < 0 &&
        scheduler_find_place(&s, &why) != PEN_OK) /* a launcher passes all flags */
        return command_fail(EXIT_USAGE, "%s", why.text);
    log_format_set(s.log_format);
    log_format_as("scheduler", -1);
    command_raise_files();
    if (scheduler_open(&s, &running, &why) != PEN_OK) return command_fail(1, "%s", why.text);

    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* ulimit -f is reported like a full disk */
    announce(announce_fd);
    pen_status status = scheduler_run(running, NULL); /* it logged the reason */
    scheduler_close(running);
    return status == PEN_OK ? 0 : 1;
}
