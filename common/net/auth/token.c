/* token.c - see token.h. */
#include "common/net/auth/token.h"

#include "common/base/why.h"
#include "common/system/user_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 160, PATH_BYTES = USER_FOLDER_BYTES + NAME_BYTES + 2, FRESH_S = 60 };

#define ENDING ".token"

struct token {
    char path[PATH_BYTES];
    int fd; /* holds the lock */
    struct stat st;
};

/* ---- names ----------------------------------------------------------------------------------- */

/* Loopback of another network namespace is another address. */
static unsigned long long network(void)
{
    struct stat st;
    return stat("/proc/self/ns/net", &st) == 0 ? (unsigned long long)st.st_ino : 0;
}

/* Maps "localhost" and wildcard addresses to "127.0.0.1", so that both sides find the same name. */
static const char *plain(const char *address)
{
    static const char *const same[] = {
        "tcp://localhost:", "tcp://[::1]:",   "tcp://::1:", "tcp://ip6-localhost:",
        "tcp://:",          "tcp://0.0.0.0:", "tcp://[::]:"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strncmp(address, same[i], strlen(same[i])) == 0)
            return address + strlen(same[i]) - 1; /* from its colon on */
    return strncmp(address, "tcp://127.0.0.1:", 16) == 0 ? address + 15 : address;
}

static void name_of(const char *address, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "at%.100s-%llx" ENDING, plain(address), network());
    for (char *c = name; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr(".-", *c) == NULL) *c = '_';
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Removes tokens of dead makers, whose locks are free.  A fresh one may not be locked yet. */
static void remove_left(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat st;
        if (strstr(entry->d_name, ENDING) == NULL) continue;
        const int fd = openat(dirfd(dir), entry->d_name,
                              O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
        if (fd < 0) continue;
        const bool is_old =
            fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && time(NULL) - st.st_mtime > FRESH_S;
        if (is_old && flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(dir), entry->d_name, 0);
        close(fd);
    }
    closedir(dir);
}

/* Written and locked before it gets its name, so it is never visible half-written. */
static pen_status write_locked(token *t, const char *fresh, const secret *s, pen_error *why)
{
    unlink(fresh); /* of a killed process with our pid */
    const pen_status status = secret_write(fresh, s, why);
    if (status != PEN_OK) return status;
    t->fd = open(fresh, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (t->fd >= 0 && fstat(t->fd, &t->st) == 0 && flock(t->fd, LOCK_EX | LOCK_NB) == 0 &&
        rename(fresh, t->path) == 0)
        return PEN_OK;
    why_set(why, PEN_STORE, "cannot create the job's token %s: %s", t->path, strerror(errno));
    unlink(fresh);
    return PEN_STORE;
}

pen_status token_publish(const char *address, const secret *s, token **made, pen_error *why)
{
    char folder[USER_FOLDER_BYTES], name[NAME_BYTES], fresh[PATH_BYTES + 16];
    pen_status status = user_folder(folder, why);
    if (status != PEN_OK) return status;
    token *t = calloc(1, sizeof *t);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the job's token");
    remove_left(folder);
    name_of(address, name);
    snprintf(t->path, sizeof t->path, "%s/%s", folder, name);
    snprintf(fresh, sizeof fresh, "%s.%d", t->path, (int)getpid());
    t->fd  = -1;
    status = write_locked(t, fresh, s, why);
    if (status == PEN_OK) {
        *made = t;
        return PEN_OK;
    }
    if (t->fd >= 0) close(t->fd);
    free(t);
    return status;
}

/* Another scheduler may have replaced the file by now. */
void token_withdraw(token *t)
{
    struct stat st;
    if (t == NULL) return;
    if (lstat(t->path, &st) == 0 && st.st_ino == t->st.st_ino && st.st_dev == t->st.st_dev)
        unlink(t->path);
    close(t->fd);
    free(t);
}

/* ---- finding --------------------------------------------------------------------------------- */

bool token_find(const char *address, secret *s)
{
    char folder[USER_FOLDER_BYTES], name[NAME_BYTES], path[PATH_BYTES];
    name_of(address, name);
    for (int at = 0; user_folder_next(&at, folder);) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (secret_read(path, s, NULL) == PEN_OK) return true;
    }
    return false;
}
