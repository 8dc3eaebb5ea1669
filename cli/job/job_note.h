/* job_note.h - what `penstock run` records about a job on its machine, so that `penstock status` and other commands find
 * it: a JSON file JOB.json of mode 0600 in the user's folder (common/system/user_folder.h). */
#ifndef CLI_JOB_NOTE_H
#define CLI_JOB_NOTE_H

#include "common/base/config.h"
#include "common/system/user_folder.h"

#include <stdbool.h>
#include <sys/types.h>

enum { JOB_NOTE_PATH_BYTES = USER_FOLDER_BYTES + 128 };

typedef struct job_note {
    char job[128], address[300], encryption[16], secret_file[CONFIG_TEXT_BYTES];
    char http[310]; /* "http://HOST:PORT" of its page; "": none */
    bool local_sockets;
    char transport[8];    /* of settings */
    pid_t pid, scheduler; /* of the launcher; of the scheduler here, 0: on another machine */
} job_note;

/* Writes it and returns its path.  False, with "" in path: it failed, or `gives_way` and a live launcher has written one
 * for this job here. */
bool job_note_write(const job_note *note, bool gives_way, char path[JOB_NOTE_PATH_BYTES]);

/* False: none.  A note whose launcher was killed is removed, with its temporary secret. */
bool job_note_read(const char *path, job_note *note);

/* Calls take() with each job of this user on this machine.  Errors  STORE  the folder cannot be read. */
typedef void (*job_note_fn)(void *user, const job_note *note);
pen_status job_note_each(job_note_fn take, void *user, pen_error *why);

#endif
