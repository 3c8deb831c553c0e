/* A checkpoint on disk, whichever its container: a .gguf file, or a folder with config.json and safetensors.
 * One place that knows which files belong to it; the loader and the chat layer both stand on it. Immutable
 * after open.
 */
#ifndef BL_FORMATS_CHECKPOINT_H
#define BL_FORMATS_CHECKPOINT_H

#include <jansson.h>

#include "bl/bl_err.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

typedef enum { BL_CKPT_GGUF, BL_CKPT_HF } bl_checkpoint_kind;

typedef struct bl_checkpoint bl_checkpoint;

/* path: a .gguf file, or a folder holding config.json and either model.safetensors or
 * model.safetensors.index.json with its shards (spec §7.2, all checks of §7.3 "Set"). A folder with exactly
 * one *.gguf and no config.json is that file. Links inside a folder are followed only when they stay below
 * the folder's real parent tree "…/models--x--y/" (the Hugging Face cache layout) and refused otherwise. */
bl_code bl_checkpoint_open(const char *path, bl_checkpoint **ret, bl_err *err) BL_MUST_CHECK;
void bl_checkpoint_free(bl_checkpoint *c);

/* Tensors of an embedded draft head. Shards that the index gives to such tensors alone are no condition of
 * the model: one that is missing, damaged, out of bounds or at odds with the index is left out, with all of
 * its tensors. */
#define BL_CHECKPOINT_HEAD_PREFIX "mtp."
/* Why the first of them was left out; NULL: none was. */
const char *bl_checkpoint_left_out(const bl_checkpoint *c);

/* Adds a draft head that is published in a folder of its own: config.json and *.safetensors with names
 * without the prefix. Its tensors appear under the prefix, in place of those that the checkpoint has of its
 * own, and config.json reads as if it declared them (mtplx_mtp, mtplx_mtp_quantization). Views that were
 * handed out before are of no head any more, so call it first. On failure c is what it was. BL_ENOTSUP for a
 * GGUF file. */
bl_code bl_checkpoint_attach_head(bl_checkpoint *c, const char *dir, bl_err *err) BL_MUST_CHECK;

/* The path of `file` (a bare name) of the folder `dir`, under the rule on links above, without opening
 * anything. Caller frees (bl_free). BL_ENOTFOUND when it is absent or a link to nothing, BL_EFORMAT when it
 * is a link that may not be followed. */
bl_code bl_checkpoint_locate(const char *dir, const char *file, char **ret, bl_err *err) BL_MUST_CHECK;

bl_checkpoint_kind bl_checkpoint_kind_of(const bl_checkpoint *c);
const char *bl_checkpoint_path(const bl_checkpoint *c); /* as opened */
const char *
bl_checkpoint_name(const bl_checkpoint *c); /* last path component without .gguf: the default model id */
const bl_gguf *bl_checkpoint_gguf(const bl_checkpoint *c);             /* NULL for HF */
const json_t *bl_checkpoint_config(const bl_checkpoint *c);            /* config.json, NULL for GGUF */
const json_t *bl_checkpoint_generation_config(const bl_checkpoint *c); /* or NULL */

size_t bl_checkpoint_count(const bl_checkpoint *c);
const bl_tensor_view *bl_checkpoint_at(const bl_checkpoint *c, size_t i);
const bl_tensor_view *bl_checkpoint_find(const bl_checkpoint *c,
                                         const char *name); /* NULL when absent; O(log n) */
/* Sum of tensor bytes. */
uint64_t bl_checkpoint_tensor_bytes(const bl_checkpoint *c);
/* Drops the pages of a tensor's bytes from this process (madvise): called by the loader once they are
 * re-laid. */
void bl_checkpoint_release_pages(const bl_checkpoint *c, const bl_tensor_view *t);

/* To be called when all tensors have been read: BL_ECORRUPT, naming the file, when one was cut short or
 * written to since it was opened; shards of a draft head alone are not looked at, because what is drafted
 * from them is verified. A file that was replaced by rename or deleted is intact: the map holds the old one.
 */
bl_code bl_checkpoint_check_intact(const bl_checkpoint *c, bl_err *err) BL_MUST_CHECK;

/* Reads a side file of the folder (tokenizer.json, chat_template.jinja...), bounded. BL_ENOTFOUND when absent
 * (always for GGUF). */
bl_code bl_checkpoint_read_side(const bl_checkpoint *c, const char *file, size_t max_bytes, bl_buf *ret,
                                bl_err *err) BL_MUST_CHECK;

#endif
