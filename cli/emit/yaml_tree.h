/* yaml_tree.h - manifests as trees: read, changed in place, written; their order and styles stay.
 *
 * A place in a tree is a path such as "spec.template.spec.containers.0.env": keys, and places in lists from 0.  Keys that
 * hold a dot are reached through yaml_tree_each() alone.
 */
#ifndef CLI_EMIT_YAML_TREE_H
#define CLI_EMIT_YAML_TREE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct yaml_tree yaml_tree;

/* The documents of a text, at most max.  Errors  BAD_SETTING: no YAML, or more than max.   NO_MEMORY */
pen_status yaml_tree_read(const char *text, size_t size, yaml_tree **trees, size_t max, size_t *n,
                          pen_error *why);
void yaml_tree_free(yaml_tree *tree); /* NULL is fine */

/* The text at a path; NULL: there is none. */
const char *yaml_tree_text(yaml_tree *tree, const char *path);

/* Puts a text where a scalar is, or under a new key of the map above it.  quoted: it is a text whatever it looks like.
 * false: there is no such place. */
bool yaml_tree_set(yaml_tree *tree, const char *path, const char *text, bool quoted);

/* Makes the map or list at a path empty; false: there is none. */
bool yaml_tree_clear(yaml_tree *tree, const char *path);

/* Adds to the list at a path: a text, or a map of pairs (key, text, ..., NULL) in one line. */
bool yaml_tree_add(yaml_tree *tree, const char *path, const char *text);
bool yaml_tree_add_map(yaml_tree *tree, const char *path, const char *const *pairs);

/* Adds to a list of volumes one of this name, of a claim. */
bool yaml_tree_add_claim(yaml_tree *tree, const char *path, const char *name, const char *claim);

/* Removes from the list at a path the maps whose `name` is this one. */
bool yaml_tree_drop(yaml_tree *tree, const char *path, const char *name);

/* Every scalar but the keys of maps, with the key above it (NULL in lists).  change() returns a text to put in its place,
 * of malloc, or NULL. */
void yaml_tree_each(yaml_tree *tree, char *(*change)(void *user, const char *key, const char *text),
                    void *user);

/* Writes it, after a line "---", and frees it. */
pen_status yaml_tree_write(yaml_tree *tree, FILE *out, pen_error *why);

#endif
