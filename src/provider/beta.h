/* Optional behaviour that an operator switches by name (docs/config.md, "Beta features"): a registry over
 * keys of provider.toml. Switching pins the value in the file, so that a later change of a default does not
 * move this machine.
 */
#ifndef BL_PROVIDER_BETA_H
#define BL_PROVIDER_BETA_H

#include "provider/config.h"

typedef enum { BL_BETA_OFF, BL_BETA_ON, BL_BETA_AUTO, BL_BETA_STATE__MAX } bl_beta_state;

/* "off", "on", "auto" */
const char *bl_beta_state_name(bl_beta_state s);

typedef struct {
    const char *id, *title;
    const char *summary; /* one line */
    const char *details; /* sentences */
    bl_config_id key;    /* a BOOL, or a CHOICE of auto, on and off */
    bool has_auto;       /* neither on nor off: decided by the model */
    bool needs_restart;  /* is read once, when a process starts */
} bl_beta_feature;

const bl_beta_feature *bl_beta_features(size_t *ret_n);
/* By id, in any case. BL_ENOTFOUND lists the ids. */
bl_code bl_beta_find(const char *id, const bl_beta_feature **ret, bl_err *err) BL_MUST_CHECK;

/* What the configuration asks for. */
bl_beta_state bl_beta_requested(const bl_beta_feature *f, const bl_config *c);
/* The file itself says so: on or off stands in it, and not only in what a default or an earlier version's key
 * means. */
bool bl_beta_is_pinned(const bl_beta_feature *f, const bl_config *c, bool on);

/* Every feature on one line: "gemma-weighted-r1=on mtp=auto (model-aware)". Returns ret. */
const char *bl_beta_line(const bl_config *c, char ret[160]);

/* Pins on or off in the file. *ret_written false: it was pinned already, and nothing was touched. */
bl_code bl_beta_set(const char *path, const bl_beta_feature *f, bool on, bool *ret_written,
                    bl_err *err) BL_MUST_CHECK;

#endif
