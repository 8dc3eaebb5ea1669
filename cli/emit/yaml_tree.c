/* yaml_tree.c - manifests as trees, on libyaml's documents. */
#include "cli/emit/yaml_tree.h"

#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct yaml_tree {
    yaml_document_t document;
};

static yaml_node_t *at(yaml_tree *tree, int node)
{
    return yaml_document_get_node(&tree->document, node);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static pen_status read_one(yaml_parser_t *parser, yaml_tree **tree, pen_error *why)
{
    *tree = calloc(1, sizeof **tree);
    if (*tree == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a manifest");
    if (yaml_parser_load(parser, &(*tree)->document) == 0) {
        free(*tree);
        *tree = NULL;
        return why_set(why, PEN_BAD_SETTING, "line %zu of the manifests is not valid YAML: %s",
                       parser->problem_mark.line + 1,
                       parser->problem != NULL ? parser->problem : "no memory");
    }
    if (yaml_document_get_root_node(&(*tree)->document) != NULL) return PEN_OK;
    yaml_tree_free(*tree); /* the end, or nothing between two lines "---" */
    *tree = NULL;
    return PEN_OK;
}

pen_status yaml_tree_read(const char *text, size_t size, yaml_tree **trees, size_t max, size_t *n,
                          pen_error *why)
{
    yaml_parser_t parser;
    pen_status status = PEN_OK;
    *n                = 0;
    if (yaml_parser_initialize(&parser) == 0)
        return why_set(why, PEN_NO_MEMORY, "no memory to read YAML");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    while (status == PEN_OK) {
        yaml_tree *tree;
        status = read_one(&parser, &tree, why);
        if (status != PEN_OK || tree == NULL) break;
        if (*n < max) {
            trees[(*n)++] = tree;
            continue;
        }
        yaml_tree_free(tree);
        status = why_set(why, PEN_BAD_SETTING, "more than %zu manifests", max);
    }
    yaml_parser_delete(&parser);
    for (size_t i = 0; status != PEN_OK && i < *n; i++) yaml_tree_free(trees[i]);
    return status;
}

void yaml_tree_free(yaml_tree *tree)
{
    if (tree == NULL) return;
    yaml_document_delete(&tree->document);
    free(tree);
}

/* ---- places ---------------------------------------------------------------------------------------------- */

static bool is_text(const yaml_node_t *node, const char *text, size_t size)
{
    return node->type == YAML_SCALAR_NODE && node->data.scalar.length == size &&
           memcmp(node->data.scalar.value, text, size) == 0;
}

/* The child node at a map's key or a list's index; 0: none. */
static int child(yaml_tree *tree, int above, const char *key, size_t size)
{
    const yaml_node_t *node = at(tree, above);
    if (node->type == YAML_MAPPING_NODE) {
        const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
        for (; pair < node->data.mapping.pairs.top; pair++)
            if (is_text(at(tree, pair->key), key, size)) return pair->value;
    }
    if (node->type == YAML_SEQUENCE_NODE) {
        const size_t n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
        const size_t i = strtoul(key, NULL, 10);
        if (key[0] >= '0' && key[0] <= '9' && i < n) return node->data.sequence.items.start[i];
    }
    return 0;
}

/* libyaml counts nodes from 1, and the root is the first. */
static int find_node(yaml_tree *tree, const char *path, size_t size)
{
    int node = 1;
    while (size > 0 && node != 0) {
        const char *dot   = memchr(path, '.', size);
        const size_t part = dot != NULL ? (size_t)(dot - path) : size;
        node              = child(tree, node, path, part);
        const size_t used = dot != NULL ? part + 1 : part;
        path += used;
        size -= used;
    }
    return node;
}

const char *yaml_tree_text(yaml_tree *tree, const char *path)
{
    const int node = find_node(tree, path, strlen(path));
    if (node == 0 || at(tree, node)->type != YAML_SCALAR_NODE) return NULL;
    return (const char *)at(tree, node)->data.scalar.value;
}

/* ---- changing -------------------------------------------------------------------------------------------- */

static bool put(yaml_node_t *node, const char *text, bool quoted)
{
    char *copy = strdup(text);
    if (copy == NULL) return false;
    free(node->data.scalar.value); /* libyaml's own strings come from malloc, too */
    node->data.scalar.value  = (yaml_char_t *)copy;
    node->data.scalar.length = strlen(text);
    node->data.scalar.style  = quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE;
    return true;
}

static int make_node(yaml_tree *tree, const char *text, bool quoted)
{
    return yaml_document_add_scalar(
        &tree->document, NULL, (const yaml_char_t *)text, (int)strlen(text),
        quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE);
}

/* Adds to a map; false: no memory. */
static bool pair(yaml_tree *tree, int map, const char *name, int value)
{
    const int key = make_node(tree, name, false);
    return key != 0 && value != 0 &&
           yaml_document_append_mapping_pair(&tree->document, map, key, value) != 0;
}

bool yaml_tree_set(yaml_tree *tree, const char *path, const char *text, bool quoted)
{
    const int there = find_node(tree, path, strlen(path));
    if (there != 0)
        return at(tree, there)->type == YAML_SCALAR_NODE && put(at(tree, there), text, quoted);
    const char *dot = strrchr(path, '.');
    const int above = dot != NULL ? find_node(tree, path, (size_t)(dot - path)) : 0;
    if (above == 0 || at(tree, above)->type != YAML_MAPPING_NODE) return false;
    return pair(tree, above, dot + 1, make_node(tree, text, quoted));
}

bool yaml_tree_put(yaml_tree *tree, const char *path, const char *key, const char *text)
{
    const int there = find_node(tree, path, strlen(path));
    if (there == 0 || at(tree, there)->type != YAML_MAPPING_NODE) return false;
    return pair(tree, there, key, make_node(tree, text, true));
}

bool yaml_tree_clear(yaml_tree *tree, const char *path)
{
    const int there = find_node(tree, path, strlen(path));
    if (there == 0 || at(tree, there)->type == YAML_SCALAR_NODE) return false;
    yaml_node_t *node = at(tree, there);
    if (node->type == YAML_MAPPING_NODE)
        node->data.mapping.pairs.top = node->data.mapping.pairs.start;
    else
        node->data.sequence.items.top = node->data.sequence.items.start;
    return true;
}

static int make_map(yaml_tree *tree)
{
    return yaml_document_add_mapping(&tree->document, NULL, YAML_FLOW_MAPPING_STYLE);
}

static bool append(yaml_tree *tree, const char *path, int item)
{
    const int list = find_node(tree, path, strlen(path));
    return list != 0 && item != 0 && at(tree, list)->type == YAML_SEQUENCE_NODE &&
           yaml_document_append_sequence_item(&tree->document, list, item) != 0;
}

bool yaml_tree_add(yaml_tree *tree, const char *path, const char *text)
{
    return append(tree, path, make_node(tree, text, true));
}

bool yaml_tree_add_map(yaml_tree *tree, const char *path, const char *const *pairs)
{
    const int map = make_map(tree);
    for (; map != 0 && pairs[0] != NULL; pairs += 2)
        if (!pair(tree, map, pairs[0], make_node(tree, pairs[1], true))) return false;
    return append(tree, path, map);
}

bool yaml_tree_add_claim(yaml_tree *tree, const char *path, const char *name, const char *claim)
{
    const int map = make_map(tree), inner = make_map(tree);
    return map != 0 && inner != 0 && pair(tree, inner, "claimName", make_node(tree, claim, true)) &&
           pair(tree, map, "name", make_node(tree, name, true)) &&
           pair(tree, map, "persistentVolumeClaim", inner) && append(tree, path, map);
}

bool yaml_tree_drop(yaml_tree *tree, const char *path, const char *name)
{
    const int there = find_node(tree, path, strlen(path));
    if (there == 0 || at(tree, there)->type != YAML_SEQUENCE_NODE) return false;
    yaml_node_t *list      = at(tree, there);
    yaml_node_item_t *kept = list->data.sequence.items.start;
    for (yaml_node_item_t *i = kept; i < list->data.sequence.items.top; i++) {
        const int named = child(tree, *i, "name", 4);
        if (named == 0 || !is_text(at(tree, named), name, strlen(name))) *kept++ = *i;
    }
    const bool is_gone            = kept < list->data.sequence.items.top;
    list->data.sequence.items.top = kept;
    return is_gone;
}

static void change_one(yaml_tree *tree, int node, const char *key,
                       char *(*change)(void *user, const char *key, const char *text), void *user)
{
    yaml_node_t *n = at(tree, node);
    if (n->type == YAML_SCALAR_NODE) {
        const bool quoted = n->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        char *text        = change(user, key, (const char *)n->data.scalar.value);
        if (text != NULL) put(n, text, quoted);
        free(text);
        return;
    }
    if (n->type == YAML_SEQUENCE_NODE)
        for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top;
             i++)
            change_one(tree, *i, NULL, change, user);
    if (n->type == YAML_MAPPING_NODE)
        for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++)
            change_one(tree, p->value, (const char *)at(tree, p->key)->data.scalar.value, change,
                       user);
}

void yaml_tree_each(yaml_tree *tree, char *(*change)(void *user, const char *key, const char *text),
                    void *user)
{
    change_one(tree, 1, NULL, change, user);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

pen_status yaml_tree_write(yaml_tree *tree, FILE *out, pen_error *why)
{
    yaml_emitter_t emitter;
    if (yaml_emitter_initialize(&emitter) == 0) {
        yaml_tree_free(tree);
        return why_set(why, PEN_NO_MEMORY, "no memory to write YAML");
    }
    yaml_emitter_set_output_file(&emitter, out);
    yaml_emitter_set_unicode(&emitter, 1);
    yaml_emitter_set_width(&emitter, -1);
    tree->document.start_implicit = 0; /* the line "---" */
    const bool good               = yaml_emitter_dump(&emitter, &tree->document) != 0 &&
                      yaml_emitter_close(&emitter) != 0 && fflush(out) == 0;
    const pen_status status =
        good ? PEN_OK
             : why_set(why, PEN_STORE, "cannot write the manifests: %s",
                       emitter.problem != NULL ? emitter.problem : "no memory");
    yaml_emitter_delete(&emitter);
    free(tree); /* yaml_emitter_dump() has freed its document */
    return status;
}
