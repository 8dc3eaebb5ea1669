/* limit_disk.c - how fast this machine writes a file: plain writes, and one fdatasync().
 *
 *     limit_disk FOLDER BYTES [TIMES]      the best of TIMES (1)
 *
 * Contains no Penstock code. Writes BYTES of touched memory to a new file of the folder in pieces
 * of 4 MiB, syncs it to the disk, and removes it. Prints one JSON line; "GBps" is the best.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 4 << 20 };

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int fail(const char *path)
{
    perror(path);
    return 1;
}

int main(int argc, char **argv)
{
    char path[1024];
    if (argc < 3) {
        fprintf(stderr, "usage: limit_disk FOLDER BYTES [TIMES]\n");
        return 2;
    }
    const uint64_t bytes = strtoull(argv[2], NULL, 10);
    const int times      = argc > 3 ? atoi(argv[3]) : 1;
    char *memory         = malloc(bytes);
    if (memory == NULL) return fail("memory");
    for (uint64_t i = 0; i < bytes; i += 8)
        memcpy(memory + i, &(uint64_t){i * 0x9e3779b97f4a7c15u}, bytes - i < 8 ? bytes - i : 8);
    snprintf(path, sizeof path, "%s/limit_disk.%d", argv[1], (int)getpid());
    double best = 0, written = 0;
    for (int t = 0; t < times; t++) {
        const double start = now_s();
        const int fd       = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0) return fail(path);
        for (uint64_t at = 0; at < bytes;) {
            const uint64_t left = bytes - at;
            const ssize_t done  = write(fd, memory + at, left < PIECE ? left : PIECE);
            if (done <= 0) return fail(path);
            at += (uint64_t)done;
        }
        const double copied = now_s() - start;
        if (fdatasync(fd) != 0) return fail(path);
        const double spent = now_s() - start;
        close(fd);
        unlink(path);
        if ((double)bytes / spent > best) {
            best    = (double)bytes / spent;
            written = (double)bytes / copied;
        }
    }
    printf("{\"limit\":\"disk\",\"bytes\":%llu,\"GBps\":%.4f,\"to_kernel_GBps\":%.4f}\n",
           (unsigned long long)bytes, best / 1e9, written / 1e9);
    free(memory);
    return 0;
}
