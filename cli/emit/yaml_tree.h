/* yaml_tree.h - manifests as trees: read, changed in place, written; order and style are kept.
 *
 * A path is, for example, "spec.template.spec.containers.0.env": keys, and list indices from 0.  Keys that contain a dot
 * are reachable only through yaml_tree_each().
 */
#ifndef CLI_EMIT_YAML_TREE_H
#define CLI_EMIT_YAML_TREE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct yaml_tree yaml_tree;

/* Parses the documents of a text, at most max.  Errors  BAD_SETTING: invalid YAML, or more than max.   NO_MEMORY */
pen_status yaml_tree_read(const char *text, size_t size, yaml_tree **trees, size_t max, size_t *n,
                          pen_error *why);
void yaml_tree_free(yaml_tree *tree); /* NULL is fine */

/* The text at a path; NULL: none. */
const char *yaml_tree_text(yaml_tree *tree, const char *path);

/* Replaces a scalar, or adds a key to the map above it.  quoted: always a string.  false: no such path. */
bool yaml_tree_set(yaml_tree *tree, const char *path, const char *text, bool quoted);

/* Adds a key, which may contain dots, to the map at a path. */
bool yaml_tree_put(yaml_tree *tree, const char *path, const char *key, const char *text);

/* Empties the map or list at a path; false: none. */
bool yaml_tree_clear(yaml_tree *tree, const char *path);

/* Appends to the list at a path: a text, or a one-line map of pairs (key, text, ..., NULL). */
bool yaml_tree_add(yaml_tree *tree, const char *path, const char *text);
bool yaml_tree_add_map(yaml_tree *tree, const char *path, const char *const *pairs);

/* Appends a volume of this name and claim to a list of volumes. */
bool yaml_tree_add_claim(yaml_tree *tree, const char *path, const char *name, const char *claim);

/* Removes the maps with this `name` from the list at a path. */
bool yaml_tree_drop(yaml_tree *tree, const char *path, const char *name);

/* Calls change() for every scalar except map keys, with the key above it (NULL in lists); it returns the new text, of
 * malloc, or NULL. */
void yaml_tree_each(yaml_tree *tree, char *(*change)(void *user, const char *key, const char *text),
                    void *user);

/* Writes it, after a line "---", and frees it. */
pen_status yaml_tree_write(yaml_tree *tree, FILE *out, pen_error *why);

#endif
