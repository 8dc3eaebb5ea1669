/* secure.c - whether a job is encrypted, and where its secret comes from.
 *
 * DESIGN.  The launcher decides once and passes the decision to all its children (PENSTOCK_ENCRYPTION), so that all
 * agree.  A job that stays on this host needs neither (common/net/local_socket.h).  If a job needs a secret and none is
 * given, one is created here and deleted with the job: a file of mode 0600 in the user's folder of notes; children and
 * `penstock status` get its path, never its content.  Other machines get it with the join line that this command prints,
 * from stdin or from a file, never from their command line.
 *
 * A killed launcher cannot remove its file.  While alive it holds a lock on the file; the next launcher of this user
 * removes files without a lock.
 */
#include "cli/run/launcher.h"
#include "common/base/config.h"
#include "common/base/why.h"
#include "common/net/auth/auth.h"
#include "common/system/user_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pen_status parse_choice(int *choice, pen_error *why)
{
    const char *text = config_env("PENSTOCK_ENCRYPTION");
    for (*choice = AUTH_AUTO; text != NULL && auth_choices[*choice] != NULL; ++*choice)
        if (strcmp(text, auth_choices[*choice]) == 0) return PEN_OK;
    if (text == NULL) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING, "encryption is '%.64s', but must be auto, on or clear",
                   text);
}

/* Whether the job uses TCP: it listens or dials beyond this host, or has no local sockets. */
static bool uses_tcp(const run_options *o)
{
    const char *host = config_env("PENSTOCK_HOST");
    return !auth_is_loopback(o->master_addr) || (host != NULL && !auth_is_loopback(host)) ||
           !control_has_local_sockets();
}

/* A younger file may not be locked yet. */
enum { SWEEP_AFTER_S = 10 };

static bool is_left_over(int folder, const char *name)
{
    struct stat st;
    const size_t n = strlen(name);
    if (n < 5 || strcmp(name + n - 4, ".key") != 0) return false;
    const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    const bool is_it = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == getuid() &&
                       time(NULL) - st.st_mtime > SWEEP_AFTER_S &&
                       flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return is_it;
}

static void sweep_keys(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (is_left_over(dirfd(dir), e->d_name)) unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
}

static pen_status keep_secret(launcher *l, const secret *s, pen_error *why)
{
    char folder[USER_FOLDER_BYTES];
    pen_status status = user_folder(folder, why);
    if (status != PEN_OK) return status;
    snprintf(l->secret_path, sizeof l->secret_path, "%s/%s-%d.key", folder, l->job, (int)getpid());
    unlink(l->secret_path); /* of a killed launcher with our process id */
    sweep_keys(folder);
    status = secret_write(l->secret_path, s, why);
    if (status != PEN_OK) {
        l->secret_path[0] = '\0';
        return status;
    }
    l->secret_lock = open(l->secret_path, O_RDONLY | O_CLOEXEC);
    if (l->secret_lock < 0 || flock(l->secret_lock, LOCK_SH | LOCK_NB) != 0)
        return why_set(why, PEN_STORE, "cannot lock %s: %m", l->secret_path);
    return PEN_OK;
}

static void print_join(const launcher *l, const secret *s)
{
    char line[SECRET_JOIN_BYTES];
    const run_options *o = &l->options;
    if (o->nnodes_max < 2) return;
    secret_join_format(s, o->master_addr, (uint32_t)o->master_port, line);
    fprintf(
        stderr,
        "penstock: on each other machine, give the same command its --node-rank and --join -, and "
        "paste this line:  %s\n",
        line);
    explicit_bzero(line, sizeof line);
}

/* A given secret must be readable; machines 1 and up need one. */
static pen_status check_given(const run_options *o, bool *is_file, pen_error *why)
{
    const char *given = config_env("PENSTOCK_SECRET_FILE");
    secret s;
    *is_file = given != NULL && given[0] != '\0' && !o->has_join;
    if (*is_file) {
        const pen_status status =
            secret_read(given, &s, why); /* one error here instead of one per child */
        secret_wipe(&s);
        return status;
    }
    if (o->has_join || run_options_has_scheduler(o)) return PEN_OK;
    return why_set(
        why, PEN_BAD_SETTING,
        "machine %d needs the job's secret; use --join - and paste the line from machine 0, "
        "or --secret-file FILE on all machines, or --encryption clear on all",
        o->node_rank);
}

static pen_status find_secret(launcher *l, pen_error *why)
{
    run_options *o = &l->options;
    bool is_file;
    secret s;
    pen_status status = check_given(o, &is_file, why);
    if (status != PEN_OK || is_file) return status;
    status = o->has_join ? PEN_OK : secret_make(&s, why);
    if (o->has_join) s = o->join;
    if (status == PEN_OK) status = keep_secret(l, &s, why);
    if (status == PEN_OK) setenv("PENSTOCK_SECRET_FILE", l->secret_path, 1);
    if (status == PEN_OK && !o->has_join) print_join(l, &s);
    secret_wipe(&s);
    secret_wipe(&o->join);
    return status;
}

/* This command was given a secret. */
static bool has_given(const run_options *o)
{
    const char *given = config_env("PENSTOCK_SECRET_FILE");
    return o->has_join || (given != NULL && given[0] != '\0');
}

static bool needs_secret(const run_options *o, int choice)
{
    return choice == AUTH_ON || (choice == AUTH_AUTO && (has_given(o) || uses_tcp(o)));
}

pen_status secure_check(const launcher *l, pen_error *why)
{
    int choice;
    bool is_file;
    const run_options *o = &l->options;
    if (parse_choice(&choice, why) != PEN_OK) return why->status;
    return needs_secret(o, choice) ? check_given(o, &is_file, why) : PEN_OK;
}

pen_status secure_job(launcher *l, pen_error *why)
{
    int choice;
    const run_options *o    = &l->options;
    const pen_status status = parse_choice(&choice, why);
    if (status != PEN_OK) return status;
    if (!needs_secret(o, choice)) return PEN_OK;
    setenv("PENSTOCK_ENCRYPTION", "on", 1);
    return find_secret(l, why);
}

void secure_forget(launcher *l)
{
    if (l->secret_path[0] != '\0') unlink(l->secret_path);
    if (l->secret_lock > 0) close(l->secret_lock);
    l->secret_path[0] = '\0';
    l->secret_lock    = 0;
}
