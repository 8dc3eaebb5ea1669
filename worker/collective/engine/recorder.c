/* recorder.c - the flight recorder. */
#include "worker/collective/engine/recorder.h"

#include "common/base/why.h"
#include "proto/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pen_status recorder_init(record *r, pen_error *why)
{
    r->n     = 0;
    r->entry = calloc(RECORD_CALLS, sizeof *r->entry);
    return r->entry != NULL ? PEN_OK
                            : why_set(why, PEN_NO_MEMORY, "no memory for the flight recorder");
}

void recorder_fini(record *r)
{
    free(r->entry);
    r->entry = NULL;
}

uint64_t recorder_begin(record *r, const recorder_entry *entry)
{
    r->entry[r->n % RECORD_CALLS] = *entry;
    return r->n++;
}

void recorder_end(record *r, uint64_t handle, pen_status status, uint64_t now_ms)
{
    if (handle + RECORD_CALLS < r->n) return;
    recorder_entry *e = &r->entry[handle % RECORD_CALLS];
    e->status         = (int32_t)status;
    e->ended_ms       = now_ms;
}

static void write_entry(FILE *out, const recorder_entry *e, int rank, uint64_t now_ms)
{
    char label[COLL_LABEL_BYTES];
    /* A label is the program's text: characters that JSON does not allow in a string become '?'. */
    size_t i = 0;
    for (; e->label[i] != '\0' && i < COLL_LABEL_BYTES - 1; i++) {
        const unsigned char c = (unsigned char)e->label[i];
        label[i]              = c < 0x20 || c == '"' || c == '\\' ? '?' : e->label[i];
    }
    label[i]           = '\0';
    const bool is_over = e->ended_ms != 0;
    fprintf(out, "{\"rank\":%d,\"group\":\"%016llx\",\"size\":%d,\"call\":%llu,\"kind\":\"%s\",",
            rank, (unsigned long long)e->group, e->size, (unsigned long long)e->seq,
            coll_kind_name((coll_kind)e->kind));
    if (coll_reduces((coll_kind)e->kind))
        fprintf(out, "\"op\":\"%s\",", coll_op_name((pen_op)e->op));
    fprintf(out,
            "\"dtype\":\"%s\",\"n\":%llu,\"root\":%d,\"label\":\"%s\",\"age_ms\":%llu,"
            "\"took_ms\":%llu,\"state\":\"%s\"}\n",
            plan_dtype_name((pen_dtype)e->dtype), (unsigned long long)e->n, e->root, label,
            (unsigned long long)(now_ms - e->begun_ms),
            (unsigned long long)((is_over ? e->ended_ms : now_ms) - e->begun_ms),
            is_over ? pen_status_info((pen_status)e->status)->name : "RUNNING");
}

char *recorder_json(const record *r, int rank, uint64_t now_ms, uint64_t most)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) return NULL;
    if (most > RECORD_CALLS) most = RECORD_CALLS;
    const uint64_t first = r->n > most ? r->n - most : 0;
    for (uint64_t i = first; i < r->n; i++)
        write_entry(out, &r->entry[i % RECORD_CALLS], rank, now_ms);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}
