/* Inside of embed_mtp*.c. */
#ifndef BL_PROVIDER_EMBED_MTP_JOB_H
#define BL_PROVIDER_EMBED_MTP_JOB_H

#include <jansson.h>
#include <limits.h>

#include "formats/checkpoint.h"
#include "provider/embed_mtp.h"
#include "provider/quantize_job.h"

typedef struct {
    const bl_embed_mtp_options *o;
    bl_checkpoint *target, *head;
    const json_t *text; /* the target's text model in its config.json */
    json_t *map;        /* the target's weight_map; NULL: one file, model.safetensors */
    bl_quantize_options quantize;
    bl_quantize_work work; /* its plan holds the head's tensors */
    bl_embed_mtp_report report;
    char parent[PATH_MAX], folder[PATH_MAX]; /* out's parent; where the files are while they are made */
    bool made;                               /* the folder exists */
} bl_embed_mtp;

/* ---- the head (embed_mtp_head.c) ---- */

/* Plans the head's tensors in the form that the target's readers expect, and holds them against the target's
 * geometry. */
bl_code bl_embed_mtp_plan_head(bl_embed_mtp *e, bl_err *err) BL_MUST_CHECK;

/* ---- files (embed_mtp_folder.c) ---- */

/* The shard of a tensor of the target. */
const char *bl_embed_mtp_shard_of(const bl_embed_mtp *e, const char *tensor);
/* Makes the folder beside out. */
bl_code bl_embed_mtp_make_folder(bl_embed_mtp *e, bl_err *err) BL_MUST_CHECK;
/* Links or copies the target's files into it, after asking whether head_bytes more have room. */
bl_code bl_embed_mtp_take_files(bl_embed_mtp *e, uint64_t head_bytes, bl_err *err) BL_MUST_CHECK;
/* Gives the folder its name. */
bl_code bl_embed_mtp_publish(bl_embed_mtp *e, bl_err *err) BL_MUST_CHECK;
/* Removes it, whatever is in it. */
void bl_embed_mtp_remove_folder(bl_embed_mtp *e);

#endif
