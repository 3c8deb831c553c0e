/* One load, from what the operator says to what is reported: the plan is made before the engine opens (probe,
 * decision, inspection, each once), the status after it. docs/mtp.md
 *
 * start, run, chat, benchmark and models info all come through here, so none of them can decide for itself.
 */
#ifndef BL_PROVIDER_MTP_LOAD_H
#define BL_PROVIDER_MTP_LOAD_H

#include "bl/bl.h"
#include "provider/mtp_policy.h"

/* Strings are borrowed as long as the plan. */
typedef struct {
    bl_mtp_mode mode;
    bool killed;              /* DARKBLOOM_CBV2_MTP */
    uint32_t depth;           /* tokens to draft at most; 0: what the head is made for (block_size - 1) */
    const char *drafter_path; /* mtp_drafter_path, or NULL; ~ is home */
    const char *home;         /* or NULL */
} bl_mtp_settings;

typedef struct {
    bl_mtp_decision decision;
    bl_mtp_inspection inspection;
    uint32_t depth; /* for bl_engine_options.draft_depth: 0 unless the decision is a head */
    char drafter_path[BL_MTP_MAX_PATH + 2]; /* of an external head; "" otherwise */
    char no_memory[256];                    /* why it was dropped */
} bl_mtp_plan;

/* model_path: as bl_engine_options has it. Cannot fail: what is wrong with a head costs the head. */
void bl_mtp_plan_make(const bl_mtp_settings *s, const char *model_path, bl_mtp_plan *ret);

/* Opens the engine as planned: o holds p's depth. An external head is charged when the engine is admitted;
 * where the target fits without it and not with it, the head is dropped. */
bl_code bl_mtp_engine_open(bl_mtp_plan *p, const bl_engine_options *o, bl_engine **ret,
                           bl_err *err) BL_MUST_CHECK;

typedef struct {
    bool enabled;         /* the mode asks for a head here, whatever became of it */
    bool active;          /* the engine drafts */
    bl_mtp_reason reason; /* BL_MTP_READY if and only if active */
    bl_mtp_source source;
    uint32_t depth; /* in use */
    bool loud;      /* the reason's: a warning is due, with detail */
    char detail[512];
} bl_mtp_status;

/* info: of the engine that was opened by the plan. */
void bl_mtp_status_make(const bl_mtp_plan *p, const bl_model_info *info, bl_mtp_status *ret);
/* What the plan alone says, for reports about a checkpoint that is not loaded: active means that it would be
 * asked for. info: of bl_model_inspect by the same plan, which may find what the inspection cannot (shapes).
 */
void bl_mtp_status_expect(const bl_mtp_plan *p, const bl_model_info *info, bl_mtp_status *ret);

#define BL_MTP_LINE_BYTES 96
/* "active, embedded, k=2", "target-only (config_disabled)". */
void bl_mtp_status_line(const bl_mtp_status *s, char ret[BL_MTP_LINE_BYTES]);
/* "disabled", "enabled, active", "enabled but inactive (engine_inactive)". reason: a name of
 * bl_mtp_reason_get. */
void bl_mtp_posture(bool enabled, bool active, const char *reason, char ret[BL_MTP_LINE_BYTES]);

#endif
