/* server_plugin.c - handlers of the program's own: their plugin, and what happens when one crashes or hangs. */
#include "server/process/server_state.h"

#include "common/base/log.h"
#include "server/process/plugin/handler_guard.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_MS = 500, HANDLERS_MAX = 256 };

/* ---- loading --------------------------------------------------------------------------------- */
static pen_status load(server *s, pen_error *why)
{
    const char *name = s->settings.plugin;
    char path[CONFIG_TEXT_BYTES + 2];
    const pen_handler *(*plugin)(int *n);
    int n = 0;
    /* Stays loaded until the process ends: a thread of the plugin's own may be on its way out after close(). */
    snprintf(path, sizeof path, "%s%s", strchr(name, '/') == NULL ? "./" : "", name);
    void *code = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (code == NULL)
        return why_set(why, PEN_BAD_SETTING, "cannot load the plugin: %.400s", dlerror());
    *(void **)(&plugin) = dlsym(code, "pen_plugin");
    if (plugin == NULL)
        return why_set(why, PEN_BAD_SETTING,
                       "the plugin %.200s has no function pen_plugin(); penstock.h describes it",
                       path);
    s->handlers.at     = plugin(&n);
    s->handlers.plugin = name;
    if (s->handlers.at == NULL || n < 1 || n > HANDLERS_MAX)
        return why_set(why, PEN_BAD_SETTING,
                       "pen_plugin() of %.200s gives %d handlers; expected 1 to %d", path,
                       s->handlers.at == NULL ? 0 : n, HANDLERS_MAX);
    s->handlers.n = (uint32_t)n;
    return PEN_OK;
}

/* ---- crashes and hangs ----------------------------------------------------------------------- */
static bool look(server *s)
{
    pen_error error;
    char text[sizeof error.text];
    if (s->is_stuck ||
        handler_guard_look(s->settings.handler_timeout_ms, s->rank, text, sizeof text) == 0)
        return s->is_stuck;
    s->is_stuck = true;
    why_set(&error, PEN_ABORTED, "%s", text);
    why_culprit(&error, PEN_SERVER, s->rank, -1, NULL);
    log_error("%s", text);
    s->take(s, SERVER_FAILED, &error);
    return true;
}

static void watch(void *user)
{
    server *s = user;
    if (!look(s)) loop_timer_start(s->loop, &s->watching, loop_now_ms(s->loop) + LOOK_MS, watch, s);
}

static bool on_crash(void *user)
{
    server *s = user;
    uint64_t n;
    if (read(s->crash_fd, &n, sizeof n) != (ssize_t)sizeof n) return false;
    (void)look(s);
    return true;
}

pen_status server_plugin_open(server *s, pen_error *why)
{
    s->crash_fd = -1;
    if (s->settings.plugin[0] != '\0' && s->handlers.n > 0)
        return why_set(
            why, PEN_BAD_SETTING,
            "this program has handlers of its own, and the setting plugin is '%s'; leave "
            "it empty",
            s->settings.plugin);
    if (s->settings.plugin[0] != '\0' && load(s, why) != PEN_OK) return why->status;
    if (s->handlers.n == 0) return PEN_OK;
    for (uint32_t i = 0; i < s->handlers.n; i++) {
        const pen_handler *h = &s->handlers.at[i];
        if (h->name == NULL || h->name[0] == '\0' || strlen(h->name) >= 128)
            return why_set(why, PEN_BAD_SETTING,
                           "handler %u has no valid name; expected 1 to 127 bytes", i);
        if (h->request == NULL)
            return why_set(why, PEN_BAD_SETTING, "handler '%s' has no function request", h->name);
        if ((h->save == NULL) != (h->load == NULL))
            return why_set(why, PEN_BAD_SETTING,
                           "handler '%s' has only one of save and load; set both, or none",
                           h->name);
        for (int k = 0; k < 8; k++)
            if (h->reserved[k] != 0 || h->reserved32 != 0)
                return why_set(why, PEN_BAD_SETTING,
                               "handler '%s' has garbage in reserved; initialise it with {0}",
                               h->name);
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(s->handlers.at[k].name, h->name) == 0)
                return why_set(why, PEN_BAD_SETTING, "two handlers are named '%s'", h->name);
    }
    s->crash_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->crash_fd < 0) return why_set(why, PEN_NO_MEMORY, "cannot make an eventfd: %m");
    handler_guard_watch(s->crash_fd);
    loop_timer_start(s->loop, &s->watching, loop_now_ms(s->loop) + LOOK_MS, watch, s);
    return loop_add(s->loop, s->crash_fd, on_crash, s, why);
}

void server_plugin_close(server *s)
{
    handler_guard_watch(-1);
    if (s->handlers.n > 0 && s->crash_fd >= 0) close(s->crash_fd);
}
