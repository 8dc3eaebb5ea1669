/* command_keygen.c - `penstock keygen`: makes the secret of a job. */
#include "cli/command.h"
#include "common/secret.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: penstock keygen FILE          makes a secret, readable by you alone\n"
    "       penstock keygen --show FILE   prints what two people can compare: eight bytes that "
    "give nothing away\n\n"
    "Every process of a job that leaves one machine reads the same file: --secret-file FILE, or\n"
    "PENSTOCK_SECRET_FILE.  `penstock run` on one machine needs none, and on several makes one\n"
    "itself and prints what the other machines add to their command (--join).\n";

static int show(const char *path)
{
    secret s;
    char print[SECRET_PRINT_BYTES];
    pen_error why;
    if (secret_read(path, &s, &why) != PEN_OK) return command_fail(1, "%s", why.text);
    secret_print(&s, print);
    secret_wipe(&s);
    printf("%s\n", print);
    return 0;
}

static int make(const char *path)
{
    secret s;
    char print[SECRET_PRINT_BYTES];
    pen_error why;
    pen_status status = secret_make(&s, &why);
    if (status == PEN_OK) status = secret_write(path, &s, &why);
    if (status != PEN_OK) return command_fail(1, "%s", why.text);
    secret_print(&s, print);
    secret_wipe(&s);
    fprintf(stderr, "penstock: wrote the secret %s to %s (mode 0600)\n", print, path);
    return 0;
}

int command_keygen(int argc, char **argv)
{
    const bool shows = argc > 1 && strcmp(argv[1], "--show") == 0;
    const char *path = argc > 1 + shows ? argv[1 + shows] : NULL;
    if (path != NULL && (strcmp(path, "--help") == 0 || strcmp(path, "-h") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    if (path == NULL || argc > 2 + shows || path[0] == '-') {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    return shows ? show(path) : make(path);
}
