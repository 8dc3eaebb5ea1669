/* document.h - a configuration file as a flat list: path, value and line of every key, in any format.
 *
 * {"fp16": {"enabled": true}} and the same YAML both become  fp16.enabled  BOOL "true"  line 1.
 * Files come from users: size, depth, number of keys and word lengths are bounded.  A key may appear once.  Every
 * error names the file and the line.
 */
#ifndef COMMON_CONFIG_FILES_DOCUMENT_H
#define COMMON_CONFIG_FILES_DOCUMENT_H

#include "common/base/config.h"
#include "penstock.h"
#include <stddef.h>

typedef enum {
    DOCUMENT_NULL,
    DOCUMENT_BOOL,
    DOCUMENT_NUMBER,
    DOCUMENT_TEXT,
    DOCUMENT_LIST, /* text: its scalars, separated by commas; nested values are left out */
    DOCUMENT_EMPTY /* a map without keys */
} document_kind;

enum {
    DOCUMENT_KEYS_MAX   = 512,
    DOCUMENT_DEPTH_MAX  = 8,
    DOCUMENT_PATH_BYTES = 160,
    DOCUMENT_BYTES_MAX  = 1 << 20
};

typedef struct {
    char path[DOCUMENT_PATH_BYTES]; /* "zero_optimization.offload_param.device" */
    char text[CONFIG_TEXT_BYTES];
    document_kind kind;
    int line; /* from 1; 0: from a flag */
} document_key;

typedef struct {
    char name[CONFIG_TEXT_BYTES]; /* file name as the user wrote it */
    document_key *keys;           /* in file order */
    size_t n;
} document;

/* Parses text in memory; `name` names it in errors. */
pen_status document_parse_json(document *d, const char *name, const char *bytes, size_t size,
                               pen_error *why);
pen_status document_parse_yaml(document *d, const char *name, const char *bytes, size_t size,
                               pen_error *why);

void document_free(document *d); /* empties it */

const document_key *document_find(const document *d, const char *path); /* NULL: not found */

/* Where a key comes from: "ds.json:24", or for a flag "--zero_stage". */
typedef struct {
    char text[CONFIG_TEXT_BYTES + 16];
} document_spot;
document_spot document_place(const document *d, const document_key *key);

/* Adds the keys of `flags` (line 0); they replace those that d has. */
pen_status document_overlay(document *d, const document *flags, pen_error *why);

/* For the two parsers: builds "above.key", and adds a key. */
pen_status document_path(document *d, const char *above, const char *key, int line,
                         char path[DOCUMENT_PATH_BYTES], pen_error *why);
pen_status document_add(document *d, const char *path, const char *text, document_kind kind,
                        int line, pen_error *why);

#endif
