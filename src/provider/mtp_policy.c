/* The table of reasons and the decision (mtp_policy.h). Spec provider-contracts.md 6.1, 6.3 to 6.5. */
#include "provider/mtp_policy.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/words.h"
#include "formats/names.h"

/* ---- reasons ------------------------------------------------------------------------------------------- */

const bl_mtp_reason_info *bl_mtp_reason_get(bl_mtp_reason r) {
    static const bl_mtp_reason_info table[BL_MTP_REASON__MAX] = {
        [BL_MTP_READY] = {"ready", false, "the head is usable"},
        [BL_MTP_CONFIG_DISABLED] = {"config_disabled", false,
                                    "the mode is off, or auto for a checkpoint that declares no head"},
        [BL_MTP_KILL_SWITCH_DISABLED] = {"kill_switch_disabled", false,
                                         "DARKBLOOM_CBV2_MTP switches drafting off"},
        [BL_MTP_TARGET_UNSUPPORTED] = {"target_unsupported", false, "the family has no draft heads"},
        [BL_MTP_LOCAL_ARTIFACT_INVALID] = {"local_artifact_invalid", true,
                                           "the folder of mtp_drafter_path is no usable head"},
        [BL_MTP_INLINE_ARTIFACT_INVALID] =
            {"inline_artifact_invalid", true,
             "the checkpoint declares a head, or cannot say, and what is there "
             "fails inspection"},
        [BL_MTP_CATALOG_DISABLED] = {"catalog_disabled", false, "no catalog to look for a head in"},
        [BL_MTP_CATALOG_UNAVAILABLE] = {"catalog_unavailable", false,
                                        "the catalog does not answer, or the program is shutting down"},
        [BL_MTP_CATALOG_MODEL_MISSING] = {"catalog_model_missing", false,
                                          "the catalog does not know the model"},
        [BL_MTP_METADATA_MISSING] = {"metadata_missing", false, "the catalog has no head for the model"},
        [BL_MTP_METADATA_MALFORMED] = {"metadata_malformed", true,
                                       "what the catalog says of the head breaks its format"},
        [BL_MTP_ARTIFACT_NOT_CACHED] = {"artifact_not_cached", false, "the head is not on this machine yet"},
        [BL_MTP_MANIFEST_FETCH_FAILED] = {"manifest_fetch_failed", true,
                                          "the head's manifest could not be fetched"},
        [BL_MTP_MANIFEST_MALFORMED] = {"manifest_malformed", true, "the head's manifest breaks its format"},
        [BL_MTP_MANIFEST_DIGEST_MISMATCH] = {"manifest_digest_mismatch", true,
                                             "the manifest is not the one that the catalog names"},
        [BL_MTP_MANIFEST_BINDING_MISMATCH] = {"manifest_binding_mismatch", true,
                                              "the manifest is of another model, version or size"},
        [BL_MTP_ARTIFACT_OVERSIZE] = {"artifact_oversize", true, "the head is larger than allowed"},
        [BL_MTP_FILE_COUNT_INVALID] = {"file_count_invalid", true, "the head has too many files, or none"},
        [BL_MTP_FILE_TYPE_DISALLOWED] = {"file_type_disallowed", true,
                                         "a file of the head is neither config nor weights"},
        [BL_MTP_PATH_INVALID] = {"path_invalid", true, "a file of the head has a name that is no file name"},
        [BL_MTP_FILE_DOWNLOAD_FAILED] = {"file_download_failed", true,
                                         "a file of the head could not be downloaded"},
        [BL_MTP_FILE_DIGEST_MISMATCH] = {"file_digest_mismatch", true,
                                         "a downloaded file is not what the manifest says"},
        [BL_MTP_WARM_ARTIFACT_CORRUPT] = {"warm_artifact_corrupt", true,
                                          "a head that was stored earlier is damaged"},
        [BL_MTP_PUBLICATION_FAILED] = {"publication_failed", true,
                                       "the downloaded head could not be put into the store"},
        [BL_MTP_ASSISTANT_LOAD_FAILED] = {"assistant_load_failed", true,
                                          "the head's weights could not be loaded"},
        [BL_MTP_ASSISTANT_TARGET_INCOMPATIBLE] = {"assistant_target_incompatible", true,
                                                  "the head is not one of this target"},
        [BL_MTP_ASSISTANT_MEMORY_UNAVAILABLE] = {"assistant_memory_unavailable", true,
                                                 "target and head together do not fit in memory"},
        [BL_MTP_ASSISTANT_RESLICE_FLOOR] = {"assistant_reslice_floor", true,
                                            "with the head, another model would have too little KV memory"},
        [BL_MTP_ASSISTANT_POST_BUILD_HEADROOM] = {"assistant_post_build_headroom", true,
                                                  "too little memory was left after the head was built"},
        [BL_MTP_ENGINE_INACTIVE] = {"engine_inactive", true,
                                    "the head is loaded, but the engine does not draft"},
        [BL_MTP_INERT_KV_UNSUPPORTED] =
            {"inert_kv_unsupported", true,
             "the engine cannot draft with this KV storage: memory is held, nothing "
             "is proposed"},
    };
    BL_ASSERT((unsigned)r < BL_MTP_REASON__MAX);
    return &table[r];
}

/* ---- words --------------------------------------------------------------------------------------------- */

bool bl_mtp_family_embeds(const char *model_type) {
    /* with _text: what checkpoints without the vision tower have as their outer model_type */
    static const char *const words[] = {"qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text"};
    return bl_word_is_one_of(model_type, words, BL_COUNTOF(words));
}

bool bl_mtp_family_assists(const char *model_type) {
    static const char *const words[] = {"gemma4", "gemma4_text"};
    return bl_word_is_one_of(model_type, words, BL_COUNTOF(words));
}

static const char *const mode_names[BL_MTP_MODE__MAX] = {
    [BL_MTP_MODE_AUTO] = "auto",
    [BL_MTP_MODE_ON] = "on",
    [BL_MTP_MODE_OFF] = "off",
};

bl_code bl_mtp_mode_parse(const char *s, bl_mtp_mode *ret, bl_err *err) {
    for (int i = 0; i < BL_MTP_MODE__MAX; i++) {
        if (strcmp(s, mode_names[i]) == 0) {
            *ret = (bl_mtp_mode)i;
            return BL_OK;
        }
    }
    BL_FAIL(err, BL_EINVAL, "mtp_mode is '%.*s', allowed are 'auto', 'on' and 'off'",
            bl_name_shown(s, strlen(s)), s);
}

const char *bl_mtp_mode_name(bl_mtp_mode m) {
    return (unsigned)m < BL_MTP_MODE__MAX ? mode_names[m] : "unknown";
}

/* ---- the decision -------------------------------------------------------------------------------------- */

/* Without a folder there is nothing to inspect, so nothing counts as declared: auto must not go on to heads
 * outside the checkpoint. */
static bool may_declare(const bl_mtp_request *r) {
    return r->dir && r->probe && r->probe->declaration != BL_MTP_ABSENT;
}

static bool is_enabled(const bl_mtp_request *r) {
    switch (r->mode) {
    case BL_MTP_MODE_ON:
        return true;
    case BL_MTP_MODE_AUTO:
        return bl_mtp_family_embeds(r->model_type) && may_declare(r);
    default:
        return false;
    }
}

bool bl_mtp_asks(const bl_mtp_request *r) {
    return !r->stopping && !r->killed && is_enabled(r) && bl_mtp_family_embeds(r->model_type) &&
           may_declare(r);
}

/* A head that was looked at and is wrong is not replaced silently: not by one from outside, and not by one
 * from the catalog. */
static void decide_inspected(const bl_mtp_inspection *i, bl_mtp_outcome outcome, bl_mtp_reason invalid,
                             bl_mtp_decision *d) {
    if (i->finding == BL_MTP_FOUND_OK) {
        d->outcome = outcome;
        d->reason = BL_MTP_READY;
        return;
    }
    d->reason = invalid;
    memcpy(d->detail, i->detail, sizeof d->detail);
}

bool bl_mtp_asks_local(const bl_mtp_request *r) {
    return !r->stopping && !r->killed && is_enabled(r) && !bl_mtp_asks(r) &&
           bl_mtp_family_embeds(r->model_type) && !bl_word_is_blank(r->drafter_path);
}

static void decide_elsewhere(const bl_mtp_request *r, bl_mtp_decision *d) {
    if (!bl_mtp_family_embeds(r->model_type) && !bl_mtp_family_assists(r->model_type)) {
        d->reason = BL_MTP_TARGET_UNSUPPORTED;
    } else if (!bl_word_is_blank(r->drafter_path)) {
        d->source = BL_MTP_SOURCE_LOCAL;
        d->reason = BL_MTP_ASSISTANT_TARGET_INCOMPATIBLE;
        snprintf(d->detail, sizeof d->detail, "%s",
                 "mtp_drafter_path is set, but this program runs heads of Qwen 3.5 targets only");
    } else {
        d->source = BL_MTP_SOURCE_CATALOG;
        d->reason = BL_MTP_CATALOG_DISABLED;
    }
}

void bl_mtp_decide(const bl_mtp_request *r, const bl_mtp_inspection *inspection, bl_mtp_decision *ret) {
    bl_mtp_decision d = {.outcome = BL_MTP_TARGET_ONLY, .configured = is_enabled(r)};
    if (r->stopping) {
        d.reason = BL_MTP_CATALOG_UNAVAILABLE;
    } else if (r->killed) {
        d.reason = BL_MTP_KILL_SWITCH_DISABLED;
    } else if (!d.configured) {
        d.reason = BL_MTP_CONFIG_DISABLED;
    } else if (bl_mtp_asks(r)) {
        BL_ASSERT(inspection);
        d.source = BL_MTP_SOURCE_INLINE;
        decide_inspected(inspection, BL_MTP_EMBEDDED, BL_MTP_INLINE_ARTIFACT_INVALID, &d);
    } else if (bl_mtp_asks_local(r)) {
        BL_ASSERT(inspection);
        d.source = BL_MTP_SOURCE_LOCAL;
        decide_inspected(inspection, BL_MTP_EXTERNAL, BL_MTP_LOCAL_ARTIFACT_INVALID, &d);
    } else {
        decide_elsewhere(r, &d);
    }
    d.loud = bl_mtp_reason_get(d.reason)->loud;
    *ret = d;
}

void bl_mtp_prepare(const bl_mtp_request *r, bl_mtp_inspection *ret_inspection, bl_mtp_decision *ret) {
    *ret_inspection = (bl_mtp_inspection){0};
    if (bl_mtp_asks(r)) {
        bl_mtp_inspect(r->dir, r->probe, ret_inspection);
    } else if (bl_mtp_asks_local(r)) {
        bl_mtp_inspect_local(r->drafter_path, ret_inspection);
    }
    bl_mtp_decide(r, ret_inspection, ret);
}
