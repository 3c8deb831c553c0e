/* Writes a checkpoint folder: safetensors shards, their index, and the small files beside them.
 *
 *   new -> plan every tensor -> begin -> put data, side files -> finish -> free
 *
 * A shard's header is written before its data, so all tensors are planned first; then the bytes of each
 * tensor arrive in pieces, in order within the tensor, while several tensors may be open at once (a quantised
 * matrix grows its weight, scales and biases together). Memory is the plan alone.
 *
 * Everything is written under temporary names, synced, and renamed by finish, config.json last: a folder is a
 * model when it is whole. free without a successful finish removes what was written. One thread at a time.
 */
#ifndef BL_FORMATS_SAFETENSORS_WRITER_H
#define BL_FORMATS_SAFETENSORS_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"
#include "tensor/dtype.h"

#define BL_SAFETENSORS_SHARD_BYTES ((uint64_t)5000000000) /* what mlx-lm and transformers cut at */

typedef struct bl_safetensors_writer bl_safetensors_writer;

/* dir exists. max_shard_bytes bounds the data of a shard; a tensor larger than that has a shard of its own.
 */
bl_code bl_safetensors_writer_new(const char *dir, uint64_t max_shard_bytes, bl_safetensors_writer **ret,
                                  bl_err *err) BL_MUST_CHECK;
/* Safe at any time; NULL allowed. */
void bl_safetensors_writer_free(bl_safetensors_writer *w);

/* Adds a tensor. dtype: F32 F16 BF16 U8 U32 I32. file: NULL for the numbered shards (model.safetensors when
 * one is enough), or the bare name of a shard of its own ("mtp-00001.safetensors"). *ret_id numbers tensors
 * from 0 in the order of planning. */
bl_code bl_safetensors_writer_plan(bl_safetensors_writer *w, const char *name, bl_dtype dtype,
                                   uint32_t n_dims, const uint64_t *dims, const char *file, uint32_t *ret_id,
                                   bl_err *err) BL_MUST_CHECK;
/* Lists in the index a tensor of a shard that is in the folder already, and stays as it is. size_bytes: for
 * the index' total. */
bl_code bl_safetensors_writer_list(bl_safetensors_writer *w, const char *name, uint64_t size_bytes,
                                   const char *file, bl_err *err) BL_MUST_CHECK;
/* Sum of the planned tensors' bytes. */
uint64_t bl_safetensors_writer_bytes(const bl_safetensors_writer *w);

/* Ends planning: assigns shards. BL_EINVAL when a name was planned twice, BL_ELIMIT beyond the shards that a
 * checkpoint may have. Writes nothing yet. */
bl_code bl_safetensors_writer_begin(bl_safetensors_writer *w, bl_err *err) BL_MUST_CHECK;

/* Appends n bytes to tensor `id`; more than planned is the caller's error (BL_EINVAL). A shard is synced and
 * closed with its last byte. */
bl_code bl_safetensors_writer_put(bl_safetensors_writer *w, uint32_t id, const void *data, size_t n,
                                  bl_err *err) BL_MUST_CHECK;

/* A small file beside the shards ("tokenizer.json"); written now, renamed by finish. */
bl_code bl_safetensors_writer_side(bl_safetensors_writer *w, const char *name, const void *data, size_t n,
                                   bl_err *err) BL_MUST_CHECK;

/* Checks that every tensor is complete, writes model.safetensors.index.json, renames all files and syncs the
 * folder. On failure the files that were renamed already are removed again. */
bl_code bl_safetensors_writer_finish(bl_safetensors_writer *w, bl_err *err) BL_MUST_CHECK;

#endif
