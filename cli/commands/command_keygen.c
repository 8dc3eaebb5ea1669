/* command_keygen.c - `penstock keygen`: creates the secret of a job, as a file or as a Kubernetes Secret. */
#include "cli/command.h"
#include "common/net/auth/secret.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: penstock keygen FILE          creates a secret, readable only by you\n"
    "       penstock keygen --show FILE   prints an 8-byte fingerprint to compare secrets\n"
    "       penstock keygen --k8s [NAME]  prints a Kubernetes Secret (penstock-secret) with a new\n"
    "                                     secret and the token for /metrics and the page\n\n"
    "All processes of a job on several machines read the same file: --secret-file FILE or\n"
    "PENSTOCK_SECRET_FILE.  `penstock run` on one machine needs no secret.  On several machines "
    "it\n"
    "creates one itself and prints the --join line for the others.\n";

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

static int make_key_file(const char *path)
{
    secret s;
    char print[SECRET_PRINT_BYTES];
    pen_error why;
    pen_status status = secret_make(&s, &why);
    if (status == PEN_OK) status = secret_write(path, &s, &why);
    if (status != PEN_OK) return command_fail(1, "%s", why.text);
    secret_print(&s, print);
    secret_wipe(&s);
    fprintf(stderr, "penstock: wrote secret %s to %s (mode 0600)\n", print, path);
    return 0;
}

/* Kubernetes names: lower-case letters, digits, '-' and '.'. */
static bool is_name(const char *name)
{
    const size_t n = strlen(name);
    return n > 0 && n <= 253 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == n &&
           strchr("-.", name[0]) == NULL && strchr("-.", name[n - 1]) == NULL;
}

/* To stdout, so that no file is left behind. */
static int print_k8s(const char *name)
{
    secret s, token;
    pen_error why;
    char text[SECRET_TEXT_BYTES], token_text[SECRET_TEXT_BYTES];
    if (!is_name(name))
        return command_fail(EXIT_USAGE,
                            "invalid Secret name '%s'; use lower-case letters, digits and dashes",
                            name);
    if (secret_make(&s, &why) != PEN_OK || secret_make(&token, &why) != PEN_OK)
        return command_fail(1, "%s", why.text);
    secret_format(&s, text);
    secret_format(&token, token_text);
    printf("apiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  labels:\n"
           "    app.kubernetes.io/name: penstock\ntype: Opaque\nimmutable: true\nstringData:\n"
           "  secret: \"%s\"\n  http-token: \"%s\"\n",
           name, text, strchr(token_text, ':') + 1);
    secret_wipe(&s);
    secret_wipe(&token);
    explicit_bzero(text, sizeof text);
    explicit_bzero(token_text, sizeof token_text);
    return 0;
}

int command_keygen(int argc, char **argv)
{
    const bool shows  = argc > 1 && strcmp(argv[1], "--show") == 0;
    const bool prints = argc > 1 && strcmp(argv[1], "--k8s") == 0;
    const int at      = 1 + (shows || prints);
    const char *path  = argc > at ? argv[at] : prints ? "penstock-secret" : NULL;
    if (path != NULL && (strcmp(path, "--help") == 0 || strcmp(path, "-h") == 0))
        return command_help(usage, NULL);
    if (path == NULL || argc > at + 1 || path[0] == '-') {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    if (prints) return print_k8s(path);
    return shows ? show(path) : make_key_file(path);
}
