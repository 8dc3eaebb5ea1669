/* command_server.c - `penstock server`: one parameter server, for one job. */
#include "cli/command.h"
#include "common/base/log.h"
#include "server/process/server.h"

#include <malloc.h>
#include <signal.h>

enum { MMAPPED_BYTES_MIN = 64 << 10 };

static server *running;
static volatile sig_atomic_t was_told; /* by a signal to leave */

static void leave(int signal_)
{
    (void)signal_;
    was_told = 1;
    server_leave(running);
}

int command_server(int argc, char **argv)
{
    server_settings s;
    pen_error why  = {0};
    const int code = command_settings(
        server_settings_rows, &s, argc, argv,
        "usage: penstock server [--master-addr HOST] [--master-port PORT] [--rank I] [--store DIR]",
        NULL);
    if (code >= 0) return code;
    if (server_settings_place(&s, &why) != PEN_OK) return command_fail(EXIT_USAGE, "%s", why.text);
    log_format_set(s.log_format);
    log_format_as("server", (int)s.rank);
    command_raise_files();
    /* With state in files, freed memory goes back to the system at once, above all large blocks. */
    if (s.offload_optimizer == OFFLOAD_NVME || s.offload_param == OFFLOAD_NVME)
        mallopt(M_MMAP_THRESHOLD, MMAPPED_BYTES_MIN);
    if (server_open(&s, NULL, 0, &running, &why) != PEN_OK) return command_fail(1, "%s", why.text);

    struct sigaction action = {.sa_handler = leave};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* ulimit -f is reported like a full disk */
    pen_status status = server_serve(running, &why);
    server_close(running);
    /* The stop of a whole job is reported once, not by each server. */
    if (status == PEN_ABORTED && was_told) return 1;
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}
