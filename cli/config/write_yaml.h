/* write_yaml.h - writes a configuration file of accelerate. */
#ifndef CLI_CONFIG_WRITE_YAML_H
#define CLI_CONFIG_WRITE_YAML_H

#include "common/config_files/document.h"
#include <stdio.h>

/* Writes the keys of a document in alphabetical order, as accelerate does; sections are maps of one level.  Sorts
 * d->keys.  The file reads back as the same keys, kinds and texts. */
pen_status document_write_yaml(document *d, FILE *out, pen_error *why);

#endif
