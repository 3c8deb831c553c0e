/* The plan of one load and its outcome (mtp_load.h). Spec provider-contracts.md 6.6 and 6.7. */
#include "provider/mtp_load.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "base/words.h"

#define DEFAULT_DEPTH 2u /* of a head that says nothing of its block */

/* ---- before -------------------------------------------------------------------------------------------- */

static uint32_t choose_depth(const bl_mtp_settings *s, const bl_mtp_inspection *i) {
    uint32_t own = i->block_size > 1 ? i->block_size - 1 : DEFAULT_DEPTH;
    return BL_MIN(s->depth > 0 ? s->depth : own, BL_MAX_DRAFT);
}

/* A path that is too long stays so, and is refused as that. */
static void expand_home(const bl_mtp_settings *s, char ret[BL_MTP_MAX_PATH + 2]) {
    const char *path = s->drafter_path ? s->drafter_path : "";
    bool tilde = path[0] == '~' && (path[1] == '/' || path[1] == '\0') && s->home;
    snprintf(ret, BL_MTP_MAX_PATH + 2, "%s%s", tilde ? s->home : "", tilde ? path + 1 : path);
}

void bl_mtp_plan_make(const bl_mtp_settings *s, const char *model_path, bl_mtp_plan *ret) {
    bl_mtp_plan p = {0};
    bl_mtp_probe probe;
    const char *dir = model_path && bl_file_is_dir(model_path) ? model_path : NULL;
    bl_mtp_probe_read(dir, &probe);
    expand_home(s, p.drafter_path);
    bl_mtp_request r = {.mode = s->mode,
                        .killed = s->killed,
                        .model_type = probe.model_type,
                        .dir = dir,
                        .probe = &probe,
                        .drafter_path = p.drafter_path};
    bl_mtp_prepare(&r, &p.inspection, &p.decision);
    bl_mtp_probe_done(&probe);
    if (p.decision.reason == BL_MTP_READY) {
        p.depth = choose_depth(s, &p.inspection);
    }
    if (p.decision.outcome != BL_MTP_EXTERNAL) {
        p.drafter_path[0] = '\0';
    }
    *ret = p;
}

bl_code bl_mtp_engine_open(bl_mtp_plan *p, const bl_engine_options *o, bl_engine **ret, bl_err *err) {
    bl_err here;
    bl_code rc = bl_engine_open(o, ret, &here);
    if (rc == BL_ELIMIT && p->decision.outcome == BL_MTP_EXTERNAL && o->draft_depth > 0) {
        bl_engine_options alone = *o;
        alone.draft_depth = 0;
        snprintf(p->no_memory, sizeof p->no_memory, "%s", here.msg);
        rc = bl_engine_open(&alone, ret, &here);
    }
    if (rc != BL_OK && err) {
        *err = here;
    }
    return rc;
}

/* ---- after --------------------------------------------------------------------------------------------- */

static void refuse(bl_mtp_status *s, bl_mtp_reason reason, const char *detail) {
    s->reason = reason;
    s->loud = bl_mtp_reason_get(reason)->loud;
    snprintf(s->detail, sizeof s->detail, "%s", detail);
}

/* False: the loader cannot use the head, and *s says so. */
static bool is_loadable(const bl_model_info *info, bl_mtp_status *s) {
    if (strcmp(info->draft, "none") == 0 && s->source == BL_MTP_SOURCE_LOCAL) {
        refuse(s, BL_MTP_ASSISTANT_LOAD_FAILED, "the engine did not load the folder's head");
        return false;
    }
    if (strcmp(info->draft, "none") == 0) {
        refuse(s, BL_MTP_INLINE_ARTIFACT_INVALID,
               "config.json declared a head when it was probed, and declares none now");
        return false;
    }
    if (strcmp(info->draft, "embedded") != 0) {
        refuse(s, info->draft_foreign ? BL_MTP_ASSISTANT_TARGET_INCOMPATIBLE : BL_MTP_ASSISTANT_LOAD_FAILED,
               info->draft);
        return false;
    }
    return true;
}

static void begin(const bl_mtp_plan *p, bl_mtp_status *s) {
    *s = (bl_mtp_status){.enabled = p->decision.configured,
                         .reason = p->decision.reason,
                         .source = p->decision.source,
                         .loud = p->decision.loud};
    snprintf(s->detail, sizeof s->detail, "%s", p->decision.detail);
}

static void activate(bl_mtp_status *s, uint32_t depth) {
    s->active = true;
    s->depth = depth;
}

void bl_mtp_status_make(const bl_mtp_plan *p, const bl_model_info *info, bl_mtp_status *ret) {
    begin(p, ret);
    if (p->decision.reason != BL_MTP_READY) {
        return;
    }
    if (p->no_memory[0] != '\0') {
        refuse(ret, BL_MTP_ASSISTANT_MEMORY_UNAVAILABLE, p->no_memory);
    } else if (info->draft_depth > 0) {
        activate(ret, info->draft_depth);
    } else if (is_loadable(info, ret)) {
        refuse(ret, BL_MTP_ENGINE_INACTIVE, "the head was loaded, and the engine drafts nothing");
    }
}

void bl_mtp_status_expect(const bl_mtp_plan *p, const bl_model_info *info, bl_mtp_status *ret) {
    begin(p, ret);
    if (p->decision.reason == BL_MTP_READY && is_loadable(info, ret)) {
        activate(ret, p->depth);
    }
}

/* ---- words --------------------------------------------------------------------------------------------- */

static const char *source_name(bl_mtp_source s) {
    static const char *const names[BL_MTP_SOURCE__MAX] = {
        [BL_MTP_SOURCE_NONE] = "none",
        [BL_MTP_SOURCE_INLINE] = "embedded",
        [BL_MTP_SOURCE_LOCAL] = "external",
        [BL_MTP_SOURCE_CATALOG] = "catalog",
    };
    return names[s];
}

void bl_mtp_status_line(const bl_mtp_status *s, char ret[BL_MTP_LINE_BYTES]) {
    if (s->active) {
        snprintf(ret, BL_MTP_LINE_BYTES, "active, %s, k=%u", source_name(s->source), s->depth);
    } else {
        snprintf(ret, BL_MTP_LINE_BYTES, "target-only (%s)", bl_mtp_reason_get(s->reason)->name);
    }
}

void bl_mtp_posture(bool enabled, bool active, const char *reason, char ret[BL_MTP_LINE_BYTES]) {
    if (!enabled) {
        snprintf(ret, BL_MTP_LINE_BYTES, "disabled");
    } else if (active) {
        snprintf(ret, BL_MTP_LINE_BYTES, "enabled, active");
    } else if (strcmp(reason, bl_mtp_reason_get(BL_MTP_INERT_KV_UNSUPPORTED)->name) == 0) {
        snprintf(ret, BL_MTP_LINE_BYTES, "enabled but INERT (%s)", reason);
    } else {
        snprintf(ret, BL_MTP_LINE_BYTES, "enabled but inactive (%.60s)", reason);
    }
}
