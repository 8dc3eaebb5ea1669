/* job_note.c - writes, reads and lists the notes of jobs, and removes those of jobs that are gone. */
#include "cli/job/job_note.h"

#include "common/base/why.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool put(const job_note *n, int fd)
{
    json_t *object = json_pack("{ss ss si si ss ss ss sb ss}", "job", n->job, "address", n->address,
                               "pid", (int)n->pid, "scheduler", (int)n->scheduler, "encryption",
                               n->encryption, "secret_file", n->secret_file, "http", n->http,
                               "local_sockets", n->local_sockets, "transport", n->transport);
    const bool is_put =
        object != NULL && json_dumpfd(object, fd, 0) == 0 && write(fd, "\n", 1) == 1;
    json_decref(object);
    return is_put;
}

bool job_note_write(const job_note *n, bool gives_way, char path[JOB_NOTE_PATH_BYTES])
{
    char folder[USER_FOLDER_BYTES], at[JOB_NOTE_PATH_BYTES], fresh[JOB_NOTE_PATH_BYTES + 16];
    pen_error why;
    job_note other;
    path[0] = '\0';
    if (user_folder(folder, &why) != PEN_OK) return false;
    snprintf(at, sizeof at, "%s/%.100s.json", folder, n->job);
    if (gives_way && job_note_read(at, &other)) return false;
    snprintf(fresh, sizeof fresh, "%s.%d", at, (int)getpid());
    const int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    const bool is_whole = put(n, fd);
    close(fd);
    if (is_whole && rename(fresh, at) == 0) {
        strcpy(path, at);
        return true;
    }
    unlink(fresh); /* half a note would look like a dead job */
    return false;
}

/* Also removes the job's temporary secret beside the note. */
static void remove_orphan(const char *path, const char *secret_file)
{
    const size_t folder = (size_t)(strrchr(path, '/') - path) + 1, n = strlen(secret_file);
    const bool is_ours = strncmp(path, secret_file, folder) == 0 && n > folder + 4 &&
                         strchr(secret_file + folder, '/') == NULL &&
                         strcmp(secret_file + n - 4, ".key") == 0;
    if (is_ours) unlink(secret_file);
    unlink(path);
}

static void copy_text(char *to, size_t size, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(to, size, "%s", text != NULL ? text : "");
}

bool job_note_read(const char *path, job_note *n)
{
    if (access(path, F_OK) != 0) return false;
    json_t *object = json_load_file(path, 0, NULL);
    copy_text(n->job, sizeof n->job, object, "job");
    copy_text(n->address, sizeof n->address, object, "address");
    copy_text(n->encryption, sizeof n->encryption, object, "encryption");
    copy_text(n->secret_file, sizeof n->secret_file, object, "secret_file");
    copy_text(n->http, sizeof n->http, object, "http");
    copy_text(n->transport, sizeof n->transport, object, "transport");
    n->local_sockets = json_is_true(json_object_get(object, "local_sockets"));
    n->scheduler     = (pid_t)json_integer_value(json_object_get(object, "scheduler"));
    n->pid           = (pid_t)json_integer_value(json_object_get(object, "pid"));
    json_decref(object);
    const bool is_alive =
        n->address[0] != '\0' && n->pid > 0 && (kill(n->pid, 0) == 0 || errno == EPERM);
    if (!is_alive) remove_orphan(path, n->secret_file);
    return is_alive;
}

pen_status job_note_each(job_note_fn take, void *user, pen_error *why)
{
    char folder[USER_FOLDER_BYTES], path[USER_FOLDER_BYTES + 258];
    pen_status status = user_folder(folder, why);
    if (status != PEN_OK) return status;
    DIR *dir = opendir(folder);
    if (dir == NULL) return why_set(why, PEN_STORE, "cannot read %s: %m", folder);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        job_note one;
        const size_t n = strlen(entry->d_name);
        if (n < 5 || strcmp(entry->d_name + n - 5, ".json") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (job_note_read(path, &one)) take(user, &one);
    }
    closedir(dir);
    return PEN_OK;
}
