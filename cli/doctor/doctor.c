/* doctor.c - runs the tables of checks; reads small files below a root. */
#include "cli/doctor/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const doctor_check *const doctor_all[] = {doctor_host,    doctor_memory,     doctor_limits,
                                          doctor_network, doctor_transports, doctor_disk,
                                          doctor_gpu,     doctor_job,        NULL};

void finding_add(doctor *d, finding_level level, const char *remedy, const char *format, ...)
{
    if (d->n == FINDINGS_MAX) return;
    finding *f = &d->finding[d->n++];
    *f         = (finding){.level = level, .group = d->group, .what = d->what};
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    snprintf(f->remedy, sizeof f->remedy, "%s", remedy != NULL ? remedy : "");
}

finding_level doctor_run(doctor *d)
{
    finding_level worst = FINDING_OK;
    for (size_t t = 0; doctor_all[t] != NULL; t++)
        for (const doctor_check *c = doctor_all[t]; c->what != NULL; c++) {
            d->group = c->group;
            d->what  = c->what;
            c->look(d);
        }
    for (size_t i = 0; i < d->n; i++)
        if (d->finding[i].level > worst) worst = d->finding[i].level;
    return worst;
}

static FILE *open_below(const doctor *d, const char *path)
{
    char whole[1024];
    snprintf(whole, sizeof whole, "%s%s", d->root, path);
    return fopen(whole, "re");
}

bool doctor_line(const doctor *d, const char *path, char *line, size_t size)
{
    FILE *file = open_below(d, path);
    if (file == NULL) return false;
    const bool there = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (there) line[strcspn(line, "\n")] = '\0';
    return there;
}

int64_t doctor_number(const doctor *d, const char *path)
{
    char line[64], *end;
    if (!doctor_line(d, path, line, sizeof line)) return -1;
    const long long n = strtoll(line, &end, 10);
    return end == line || n < 0 ? -1 : n;
}

int64_t doctor_key(const doctor *d, const char *path, const char *key)
{
    char line[256];
    int64_t found     = -1;
    const size_t size = strlen(key);
    FILE *file        = open_below(d, path);
    while (file != NULL && found < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, size) == 0 && line[size] == ':')
            found = strtoll(line + size + 1, NULL, 10);
    if (file != NULL) fclose(file);
    return found;
}
