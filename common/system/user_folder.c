/* user_folder.c - chooses, makes and checks the user's folder. */
#include "common/system/user_folder.h"

#include "common/base/config.h"
#include "common/base/why.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IN_RUNTIME, IN_TMP, IN_HOME, PLACES, IN_USUAL_RUNTIME = PLACES, PLACES_TO_LOOK };

static bool format(char path[USER_FOLDER_BYTES], const char *parent, const char *name)
{
    const int n = snprintf(path, USER_FOLDER_BYTES, "%s/%s", parent, name);
    return n > 0 && n < USER_FOLDER_BYTES;
}

static bool is_own_folder(const char *path)
{
    struct stat st;
    return path != NULL && path[0] == '/' && stat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
           st.st_uid == geteuid();
}

static bool name_in_home(char path[USER_FOLDER_BYTES])
{
    const char *home = config_env("HOME");
    char host[65]    = "", name[96], cache[USER_FOLDER_BYTES];
    if (!is_own_folder(home) || gethostname(host, sizeof host - 1) != 0) return false;
    if (strchr(host, '/') != NULL || !format(cache, home, ".cache")) return false;
    (void)mkdir(cache, 0700);
    snprintf(name, sizeof name, "penstock-%s", host);
    return format(path, cache, name);
}

/* Only if it differs from the given one. */
static bool name_in_usual_runtime(char path[USER_FOLDER_BYTES])
{
    const char *runtime = config_env("XDG_RUNTIME_DIR");
    char usual[40];
    snprintf(usual, sizeof usual, "/run/user/%u", (unsigned)geteuid());
    return (runtime == NULL || strcmp(runtime, usual) != 0) && is_own_folder(usual) &&
           format(path, usual, "penstock");
}

/* False: no such folder. */
static bool name_of(int place, char path[USER_FOLDER_BYTES])
{
    const char *runtime = config_env("XDG_RUNTIME_DIR");
    char name[32];
    if (place == IN_RUNTIME) return is_own_folder(runtime) && format(path, runtime, "penstock");
    if (place == IN_HOME) return name_in_home(path);
    if (place == IN_USUAL_RUNTIME) return name_in_usual_runtime(path);
    snprintf(name, sizeof name, "penstock-%u", (unsigned)geteuid());
    return format(path, "/tmp", name);
}

typedef enum { USABLE, UNUSABLE, OPEN_TO_OTHERS } standing;

static standing look_at(const char *path, mode_t *mode)
{
    struct stat st;
    if (lstat(path, &st) != 0) return UNUSABLE;
    if (!S_ISDIR(st.st_mode)) errno = ENOTDIR;
    if (S_ISDIR(st.st_mode) && st.st_uid != geteuid()) errno = EPERM;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid()) return UNUSABLE;
    *mode = st.st_mode & 07777;
    if ((st.st_mode & 0077) != 0) return OPEN_TO_OTHERS;
    return access(path, R_OK | W_OK | X_OK) == 0 ? USABLE : UNUSABLE;
}

pen_status user_folder(char path[USER_FOLDER_BYTES], pen_error *why)
{
    char tried[PLACES * (USER_FOLDER_BYTES + 40)] = "";
    for (int place = 0; place < PLACES; place++) {
        mode_t mode = 0;
        if (!name_of(place, path)) continue;
        const bool is_there  = mkdir(path, 0700) == 0 || errno == EEXIST;
        const standing found = is_there ? look_at(path, &mode) : UNUSABLE;
        if (found == USABLE) return PEN_OK;
        if (found == OPEN_TO_OTHERS)
            return why_set(why, PEN_STORE,
                           "the folder %s is open to others (mode %04o): check its contents, "
                           "then chmod 700 it or remove it",
                           path, (unsigned)mode);
        const size_t n = strlen(tried);
        snprintf(tried + n, sizeof tried - n, "%s%s (%s)", n > 0 ? ", " : "", path,
                 errno == EPERM ? "somebody else's" : strerror(errno));
    }
    path[0] = '\0';
    return why_set(why, PEN_STORE,
                   "no folder for the keys of this user's jobs: %s; set XDG_RUNTIME_DIR to "
                   "your own folder",
                   tried);
}

bool user_folder_next(int *at, char path[USER_FOLDER_BYTES])
{
    while (*at < PLACES_TO_LOOK) {
        mode_t mode;
        if (name_of((*at)++, path) && look_at(path, &mode) == USABLE) return true;
    }
    return false;
}
