/* key_flags.h - keys of accelerate's configuration file as flags of `penstock config`, and of `penstock run`, which
 * accepts those of `accelerate launch`. */
#ifndef CLI_CONFIG_KEY_FLAGS_H
#define CLI_CONFIG_KEY_FLAGS_H

#include "common/config_files/keys.h"

/* The key of a flag, by the last part of its path; dashes are already underscores.  *text is the value if the name
 * implies it (--use_fsdp: distributed_type is FSDP), else NULL.  NULL: unknown. */
const key_row *key_flag_find(const char *name, const char **text);

/* The last part of a path, which is the flag's name; NULL: not a flag. */
const char *key_flag_name(const key_row *row);

/* Sets it in d, replacing an earlier value.  BAD_SETTING: the key does not accept it. */
pen_status key_flag_put(document *d, const key_row *row, const char *text, pen_error *why);

#endif
