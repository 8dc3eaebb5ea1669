/* key_flags.h - keys of accelerate's configuration file as flags: of `penstock config`, and of `penstock run` as
 * `accelerate launch` has them. */
#ifndef CLI_CONFIG_KEY_FLAGS_H
#define CLI_CONFIG_KEY_FLAGS_H

#include "common/config_files/keys.h"

/* The key that a flag names, by the last part of its path; dashes are underscores already.  *text is the value where the
 * name itself says it (--use_fsdp: distributed_type is FSDP), else NULL.  NULL: no key. */
const key_row *key_flag_find(const char *name, const char **text);

/* The last part of a path: what the flag of a key is named; NULL: it is no flag. */
const char *key_flag_name(const key_row *row);

/* Puts it into d, in place of what was there.  BAD_SETTING: the key does not take it. */
pen_status key_flag_put(document *d, const key_row *row, const char *text, pen_error *why);

#endif
