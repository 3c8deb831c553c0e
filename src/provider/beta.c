#include "provider/beta.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"

static const bl_beta_feature features[] = {
    {.id = "gemma-prefill-layer18",
     .title = "Gemma prompt submission every 18 layers",
     .summary = "Submit a prompt's work in slices of 18 layers instead of once.",
     .details =
         "On: the operations of a prompt are submitted every 18 layers, without waiting for the device. Off: "
         "all at once. Answers do not depend on it.",
     .key = BL_CONFIG_PREFILL_LAYER18,
     .needs_restart = true},
    {.id = "gemma-weighted-r1",
     .title = "Gemma fused expert path",
     .summary = "Evaluate the experts of a prompt by sorted assignments, with a fused weighted un-sort.",
     .details = "One switch for two kernels that were measured together only: the weighted un-sort of expert "
                "outputs "
                "and the exact-shape expert products. Off: the plain path of each expert. Answers do not "
                "depend on it.",
     .key = BL_CONFIG_WEIGHTED_R1,
     .needs_restart = true},
    {.id = "mtp",
     .title = "Drafting (multi-token prediction)",
     .summary = "Draft tokens ahead with a draft head and check several in one pass.",
     .details =
         "Auto drafts only with the head that a Qwen 3.5 family checkpoint embeds. Assistants from a catalog "
         "and "
         "mtp_drafter_path need on. Off is the way back: no drafting with any model. The environment "
         "variable "
         "DARKBLOOM_CBV2_MTP set to 0, false, no or off has the last word. There is no command back to auto: "
         "'darkbloom config set backend.mtp_mode auto'. Answers do not depend on it.",
     .key = BL_CONFIG_MTP_MODE,
     .has_auto = true,
     .needs_restart = true},
};

const char *bl_beta_state_name(bl_beta_state s) {
    static const char *const names[BL_BETA_STATE__MAX] = {"off", "on", "auto"};
    BL_ASSERT(s < BL_BETA_STATE__MAX);
    return names[s];
}

const bl_beta_feature *bl_beta_features(size_t *ret_n) {
    *ret_n = BL_COUNTOF(features);
    return features;
}

bl_code bl_beta_find(const char *id, const bl_beta_feature **ret, bl_err *err) {
    for (size_t i = 0; i < BL_COUNTOF(features); i++) {
        if (strcasecmp(features[i].id, id) == 0) {
            *ret = &features[i];
            return BL_OK;
        }
    }
    BL_FAIL(err, BL_ENOTFOUND, "no beta feature '%.60s', allowed: %s, %s, %s", id, features[0].id,
            features[1].id, features[2].id);
}

bl_beta_state bl_beta_requested(const bl_beta_feature *f, const bl_config *c) {
    const bl_config_value *v = bl_config_get(c, f->key);
    if (!f->has_auto) {
        return v->b ? BL_BETA_ON : BL_BETA_OFF;
    }
    return strcmp(v->text, "on") == 0 ? BL_BETA_ON : strcmp(v->text, "off") == 0 ? BL_BETA_OFF : BL_BETA_AUTO;
}

bool bl_beta_is_pinned(const bl_beta_feature *f, const bl_config *c, bool on) {
    const bl_config_value *v = bl_config_get(c, f->key);
    return v->in_file && !v->migrated && bl_beta_requested(f, c) == (on ? BL_BETA_ON : BL_BETA_OFF);
}

const char *bl_beta_line(const bl_config *c, char ret[160]) {
    size_t n = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < BL_COUNTOF(features); i++) {
        bl_beta_state s = bl_beta_requested(&features[i], c);
        int w = snprintf(ret + n, 160 - n, "%s%s=%s%s", i > 0 ? " " : "", features[i].id,
                         bl_beta_state_name(s), s == BL_BETA_AUTO ? " (model-aware)" : "");
        BL_ASSERT(w > 0 && n + (size_t)w < 160);
        n += (size_t)w;
    }
    return ret;
}

bl_code bl_beta_set(const char *path, const bl_beta_feature *f, bool on, bool *ret_written, bl_err *err) {
    bl_config_edit *e = NULL;
    bool written = false;
    const char *value = f->has_auto ? (on ? "\"on\"" : "\"off\"") : on ? "true" : "false";
    bl_code rc = bl_config_edit_begin(path, &e, err);
    /* Looked at inside the lock: another writer may have just pinned it, or unpinned it. */
    if (rc == BL_OK && !bl_beta_is_pinned(f, bl_config_edit_config(e), on)) {
        rc = bl_config_edit_set(e, f->key, NULL, value, err);
        if (rc == BL_OK) {
            rc = bl_config_edit_commit(e, &written, err);
        }
    }
    bl_config_edit_end(e);
    if (rc == BL_OK) {
        *ret_written = written;
    }
    return rc;
}
