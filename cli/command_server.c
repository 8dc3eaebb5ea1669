/* command_server.c - `penstock server`: one parameter server, for one job. */
#include "cli/command.h"
#include "server/server.h"

#include <signal.h>

static server *running;

static void leave(int signal_)
{
    (void)signal_;
    server_leave(running);
}

int command_server(int argc, char **argv)
{
    server_settings s;
    pen_error why = {0};
    int rest;
    int code = command_settings(
        server_settings_rows, &s, argc, argv,
        "usage: penstock server --master-addr HOST --master-port PORT [--rank I] [--store DIR]",
        &rest);
    if (code >= 0) return code;
    if (rest < argc) return command_fail(EXIT_USAGE, "'%s' is one word too many", argv[rest]);
    if (server_open(&s, &running, &why) != PEN_OK) return command_fail(1, "%s", why.text);

    struct sigaction action = {.sa_handler = leave};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pen_status status = server_serve(running, &why);
    server_close(running);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}
