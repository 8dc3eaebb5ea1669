/* printer.c - prints like most programs, without fflush():  printer LINES [kill]
 *   printer 3        three lines, then waits for ever
 *   printer 3 kill   three lines, then SIGKILL
 * The lines hold bytes that a terminal would change or act upon.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const long lines = argc > 1 ? atol(argv[1]) : 1;
    for (long i = 0; i < lines; i++) printf("line %ld \001\003\004\r\t\177\x1a end\n", i);
    if (argc > 2) raise(SIGKILL);
    for (;;) pause();
}
