/* command_scale.c - `penstock scale` and `penstock drain`: change the size of a running job. */
#include "cli/command.h"
#include "cli/job/control.h"
#include "common/base/why.h"
#include "proto/settings.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    CONTROL_PLACE(CONFIG_FIELD, "", "")
    CONTROL_PROTECTION(CONFIG_FIELD)
    int64_t workers, servers;
} resize_settings;

#define ROW(...) CONFIG_ROW(resize_settings, __VA_ARGS__)
/* clang-format off */
static const config_row scale_rows[] = {
    ROW(workers, I64, "-1", -1, SETTINGS_WORKERS_MAX, NULL, "Target number of workers; -1 leaves it unchanged.")
    ROW(servers, I64, "-1", -1, SETTINGS_SERVERS_MAX, NULL, "Target number of servers; -1 leaves it unchanged.")
    CONTROL_PLACE(ROW, "5000", "Maximum time to wait for an answer.")
    CONTROL_PROTECTION(ROW)
    {0},
};

static const config_row drain_rows[] = {
    CONTROL_PLACE(ROW, "600000", "Maximum time to wait until the server is empty.")
    CONTROL_PROTECTION(ROW)
    {0},
};
/* clang-format on */

/* Sends the request and prints the answer; returns the exit code. */
static int ask(const resize_settings *s, wire_control *question)
{
    control *link;
    wire_control answer;
    pen_error why = {0};
    control_protect(s->encryption, s->secret_file);
    if (control_open_job(s->job, s->master_addr, s->master_port,
                         s->timeout_ms < 5000 ? s->timeout_ms : 5000, &link, &why) != PEN_OK)
        return command_fail(1, "%s", why.text);
    pen_status status = control_ask(link, question, WIRE_RESIZED, s->timeout_ms, &answer, &why);
    if (status == PEN_OK && answer.u.resized.status != PEN_OK) {
        status = answer.u.resized.status;
        snprintf(why.text, sizeof why.text, "%.600s", answer.u.resized.text);
    } else if (status == PEN_OK) {
        printf("%s\n", answer.u.resized.text);
    }
    control_close(link, 0);
    if (status == PEN_AGAIN)
        return command_fail(1,
                            "no answer within %" PRIu64 " ms; `penstock status` shows the progress",
                            s->timeout_ms);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}

int command_scale(int argc, char **argv)
{
    resize_settings s = {0};
    const int code    = command_settings(scale_rows, &s, argc, argv,
                                         "usage: penstock scale [--workers N] [--servers M]", NULL);
    if (code >= 0) return code;
    if (s.workers < 0 && s.servers < 0)
        return command_fail(EXIT_USAGE, "specify --workers N or --servers M");
    wire_control question    = {.kind = WIRE_SCALE};
    question.u.scale.workers = (int32_t)s.workers;
    question.u.scale.servers = (int32_t)s.servers;
    return ask(&s, &question);
}

int command_drain(int argc, char **argv)
{
    resize_settings s = {0};
    char *end         = NULL;
    int rest;
    int code = command_settings(
        drain_rows, &s, argc, argv,
        "usage: penstock drain RANK   (rank of the server, see penstock status)", &rest);
    if (code >= 0) return code;
    const long server = rest < argc ? strtol(argv[rest], &end, 10) : -1;
    if (server < 0 || server >= SETTINGS_SERVERS_MAX || end == argv[rest] || *end != '\0')
        return command_fail(
            EXIT_USAGE,
            "missing server rank, for example: penstock drain 1   (see penstock status)");
    if (rest + 1 < argc)
        return command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[rest + 1]);
    wire_control question   = {.kind = WIRE_DRAIN};
    question.u.drain.server = (int32_t)server;
    return ask(&s, &question);
}
