/* Whether a checkpoint drafts: decided once a load, from the operator's mode, the checkpoint's family and
 * what its config.json declared when it was probed. docs/mtp.md
 *
 * The decision is pure: it reads no file and no environment. What was read is in the probe and the inspection
 * (mtp_probe.h) that it is given, so a file that changes later changes nothing. It says whether a head may be
 * loaded; loading it, and the reasons that can come up there, are the engine's.
 */
#ifndef BL_PROVIDER_MTP_POLICY_H
#define BL_PROVIDER_MTP_POLICY_H

#include <stdbool.h>

#include "bl/bl_err.h"
#include "provider/mtp_probe.h"

/* ---- reasons ------------------------------------------------------------------------------------------- */

/* Why a target is served alone. The names (bl_mtp_reason_get) are stable and hold nothing of the checkpoint:
 * they may be counted over many machines. */
typedef enum {
    BL_MTP_READY, /* none: the head may be loaded */
    /* policy */
    BL_MTP_CONFIG_DISABLED,
    BL_MTP_KILL_SWITCH_DISABLED,
    BL_MTP_TARGET_UNSUPPORTED,
    /* the head's own files */
    BL_MTP_LOCAL_ARTIFACT_INVALID,
    BL_MTP_INLINE_ARTIFACT_INVALID,
    /* catalog */
    BL_MTP_CATALOG_DISABLED,
    BL_MTP_CATALOG_UNAVAILABLE,
    BL_MTP_CATALOG_MODEL_MISSING,
    BL_MTP_METADATA_MISSING,
    BL_MTP_METADATA_MALFORMED,
    BL_MTP_ARTIFACT_NOT_CACHED,
    /* files of a published head */
    BL_MTP_MANIFEST_FETCH_FAILED,
    BL_MTP_MANIFEST_MALFORMED,
    BL_MTP_MANIFEST_DIGEST_MISMATCH,
    BL_MTP_MANIFEST_BINDING_MISMATCH,
    BL_MTP_ARTIFACT_OVERSIZE,
    BL_MTP_FILE_COUNT_INVALID,
    BL_MTP_FILE_TYPE_DISALLOWED,
    BL_MTP_PATH_INVALID,
    BL_MTP_FILE_DOWNLOAD_FAILED,
    BL_MTP_FILE_DIGEST_MISMATCH,
    BL_MTP_WARM_ARTIFACT_CORRUPT,
    BL_MTP_PUBLICATION_FAILED,
    /* load and engine */
    BL_MTP_ASSISTANT_LOAD_FAILED,
    BL_MTP_ASSISTANT_TARGET_INCOMPATIBLE,
    BL_MTP_ASSISTANT_MEMORY_UNAVAILABLE,
    BL_MTP_ASSISTANT_RESLICE_FLOOR,
    BL_MTP_ASSISTANT_POST_BUILD_HEADROOM,
    BL_MTP_ENGINE_INACTIVE,
    BL_MTP_INERT_KV_UNSUPPORTED,
    BL_MTP_REASON__MAX
} bl_mtp_reason;

typedef struct {
    const char *name;
    /* A warning is due: a head was asked for or declared, and something is wrong with it. Otherwise the
     * reason is a choice or a lack, and is shown where status is shown only. */
    bool loud;
    const char *doc;
} bl_mtp_reason_info;

/* r < BL_MTP_REASON__MAX. */
const bl_mtp_reason_info *bl_mtp_reason_get(bl_mtp_reason r);

/* ---- what the operator says ---------------------------------------------------------------------------- */

typedef enum { BL_MTP_MODE_AUTO, BL_MTP_MODE_ON, BL_MTP_MODE_OFF, BL_MTP_MODE__MAX } bl_mtp_mode;

/* Exactly "auto", "on" or "off"; BL_EINVAL otherwise. */
bl_code bl_mtp_mode_parse(const char *s, bl_mtp_mode *ret, bl_err *err) BL_MUST_CHECK;
const char *bl_mtp_mode_name(bl_mtp_mode m);

/* ---- the decision -------------------------------------------------------------------------------------- */

/* Families by config.json's model_type: any case, white space around it ignored. NULL and blank are none. */
bool bl_mtp_family_embeds(
    const char *model_type); /* qwen3_5, qwen3_5_moe, either with _text: may carry a head */
bool bl_mtp_family_assists(const char *model_type); /* gemma4: takes a head that is published separately */

/* All pointers are borrowed. */
typedef struct {
    bl_mtp_mode mode;
    bool killed;            /* DARKBLOOM_CBV2_MTP: bl_word_is_off */
    bool stopping;          /* the program is shutting down */
    const char *model_type; /* the target's; probe.model_type, unless the caller knows better; may be NULL */
    const char *dir;        /* the target's folder; NULL when it has none (a GGUF file) */
    const bl_mtp_probe *probe; /* of dir, taken once; NULL is absent */
    const char *drafter_path;  /* mtp_drafter_path; NULL or blank is unset */
} bl_mtp_request;

typedef enum { BL_MTP_TARGET_ONLY, BL_MTP_EMBEDDED, BL_MTP_EXTERNAL, BL_MTP_OUTCOME__MAX } bl_mtp_outcome;

/* Where the head that was asked about is. */
typedef enum {
    BL_MTP_SOURCE_NONE,
    BL_MTP_SOURCE_INLINE,
    BL_MTP_SOURCE_LOCAL,
    BL_MTP_SOURCE_CATALOG,
    BL_MTP_SOURCE__MAX
} bl_mtp_source;

typedef struct {
    bl_mtp_outcome outcome;
    bl_mtp_reason reason; /* BL_MTP_READY if and only if the outcome is a head */
    bl_mtp_source source;
    bool configured;  /* the mode asks for a head here; stays true under the kill switch */
    bool loud;        /* the reason's */
    char detail[256]; /* for a loud reason: one line that names the file, what was found, what is allowed */
} bl_mtp_decision;

/* Whether the decision depends on an inspection of the checkpoint's own head, or of the folder drafter_path
 * (never both). False: none is to be made, nothing further is read. */
bool bl_mtp_asks(const bl_mtp_request *r);
bool bl_mtp_asks_local(const bl_mtp_request *r);
/* inspection: of r->dir by r->probe where bl_mtp_asks says so, of r->drafter_path where bl_mtp_asks_local
 * does, else ignored and may be NULL. Heads from a catalog are not built: where the mode asks for one the
 * answer is target-only, with the source that was asked for and a reason. */
void bl_mtp_decide(const bl_mtp_request *r, const bl_mtp_inspection *inspection, bl_mtp_decision *ret);
/* Inspects where asked, and decides. *ret_inspection is zeroed where nothing was inspected. */
void bl_mtp_prepare(const bl_mtp_request *r, bl_mtp_inspection *ret_inspection, bl_mtp_decision *ret);

#endif
