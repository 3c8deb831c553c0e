/* What the files of provider.toml share. */
#ifndef BL_PROVIDER_CONFIG_IMPL_H
#define BL_PROVIDER_CONFIG_IMPL_H

#include <sys/types.h>

#include "provider/config.h"

struct bl_config {
    char path[BL_CONFIG_MAX_PATH];
    bool exists;
    mode_t mode; /* permissions of the file, 0 when it does not exist */
    bl_toml *doc;
    uint64_t version; /* in the file; 0: no stamp */
    bl_config_value values[BL_CONFIG__MAX];
    const bl_toml_node *legacy_mtp; /* [backend] mtp, NULL: none */
    uint32_t n_warnings;
    char warnings[BL_CONFIG_MAX_WARNINGS][256];
};

/* Files that a decoded one replaces: [backend] engine_v2_max_concurrent = 8 of version 1 was a generated
 * default. */
#define CONFIG_GENERATED_CONCURRENCY 8u
#define CONFIG_CURRENT_CONCURRENCY   4u

/* A path for messages: its end where it is long. */
const char *config_shown_path(const char *path, char ret[112]);
/* "PATH:LINE: ..." into the list of warnings; beyond the last place nothing. */
void config_warn(bl_config *c, uint32_t line, const char *fmt, ...) BL_PRINTF(3, 4);

/* Fills c->values from c->doc (config_decode.c). */
bl_code config_decode(bl_config *c, bl_err *err) BL_MUST_CHECK;

/* Index of the word s[0..n) in "a|b|c", -1: none; loose: any case, white space around it ignored, blank is
 * the first. */
int config_word_index(const char *choices, const char *s, bool loose);

#endif
