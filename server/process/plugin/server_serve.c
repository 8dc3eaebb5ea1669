/* server_serve.c - pen_serve: the program itself as a server, with handlers of its own. */
#include "server/process/server.h"

#include "common/base/why.h"
#include "common/base/log.h"
#include "common/system/fp_env.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool is_server(void)
{
    const char *role = config_env("PENSTOCK_ROLE");
    if (role == NULL) role = config_env("DMLC_ROLE");
    return role != NULL && strcmp(role, "server") == 0;
}

static pen_status load(server_settings *s, const char *const settings[], pen_error *why)
{
    config_defaults(server_settings_rows, s);
    pen_status status = config_from_strings(server_settings_rows, s, settings, why);
    if (status == PEN_OK) {
        /* Other variables are settings of workers, who check them. */
        status = PEN_OK;
        for (const config_row *row = server_settings_rows; row->name != NULL && status == PEN_OK;
             row++) {
            const char *text = config_env_of(row->name);
            if (text != NULL) status = config_set(server_settings_rows, s, row->name, text, why);
        }
    }
    return status == PEN_OK ? server_settings_place(s, why) : status;
}

static pen_status serve(const server_settings *s, const pen_handler *handlers, int n,
                        pen_error *why)
{
    server *self;
    pen_status status = server_open(s, handlers, n, &self, why);
    if (status != PEN_OK) return status;
    status = server_serve(self, why);
    server_close(self);
    return status;
}

pen_status pen_serve(const char *const settings[], const pen_handler *handlers, int n)
{
    FP_ENV_OURS();
    static server_settings s;
    pen_error why = {0};
    if (n < 0 || (handlers == NULL && n > 0))
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_serve: n is %d%s", n,
                                 n > 0 ? ", but handlers is NULL" : "");
    if (!is_server()) return PEN_OK;
    pen_status status = load(&s, settings, &why);
    if (status == PEN_OK) {
        log_format_set(s.log_format);
        log_format_as("server", (int)s.rank);
        status = serve(&s, handlers, n, &why);
    }
    if (status != PEN_OK) return last_error_set(&why);
    return last_error_report(PEN_END, "the job of this server has ended");
}
