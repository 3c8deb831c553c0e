/* Makes a checkpoint with an embedded draft head of one without and of a head: the form in which heads are
 * published (spec provider-contracts.md 7.1 to 7.6). The target's files are taken as they are, the head's
 * tensors go to a shard of their own, the index lists both, and config.json declares the head.
 *
 * Nothing of the target or of the head's source is changed. docs/embed-mtp.md
 */
#ifndef BL_PROVIDER_EMBED_MTP_H
#define BL_PROVIDER_EMBED_MTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"
#include "tensor/mlx_quantize.h"

/* How the head's source stores its norms: w of 1 + w, or 1 + w. */
typedef enum {
    BL_EMBED_NORMS_AUTO, /* as the source's own layers tell, unless the head's norms say otherwise */
    BL_EMBED_NORMS_CENTRED,
    BL_EMBED_NORMS_SHIFTED
} bl_embed_norms;

typedef struct {
    const char *target; /* folder of a Qwen 3.5 checkpoint, quantised or not */
    const char *head;   /* folder of a checkpoint with tensors "mtp.…", or of a head alone; of floats */
    const char *out;    /* absent, or an empty folder */
    bool plain;         /* matrices as bf16 */
    bl_mlx_quantize_format format; /* affine; of matrices unless plain */
    uint32_t block_size;           /* 2 to 8: up to one draft less */
    bl_embed_norms norms;
    bool copy;                 /* weights too: no hard links */
    const atomic_bool *cancel; /* may be NULL; BL_ECANCEL within a block */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *user;
} bl_embed_mtp_options;

typedef struct {
    char model_type[64];                      /* of the target, as its config.json has it */
    bool replaced;                            /* the target had a head, which is not in the result */
    int32_t norm_shift;                       /* added to the head's norms: 1, 0 or -1 */
    double norm_mean;                         /* of its norms, as its source has them */
    uint32_t n_tensors, n_quantized, n_unfit; /* of the head; unfit: the group does not divide the width */
    char first_unfit[128];
    uint64_t unfit_width;
    uint64_t n_head_params, head_bytes;
    uint32_t n_linked, n_copied; /* files of the target */
    uint64_t linked_bytes, copied_bytes;
    uint32_t n_left; /* files and folders of the target that are no part of a checkpoint */
} bl_embed_mtp_report;

/* On failure nothing stays at out. BL_EINVAL: options, an out that holds something, a target that has a head
 * among its other tensors, norms whose convention cannot be told. BL_ENOTSUP: another family, a GGUF file, a
 * quantised head. BL_EFORMAT, naming the tensor with the shape found and the shape allowed: a head that is
 * not of the target's geometry, or has too few tensors or too many. BL_ELIMIT: not enough room on the disk.
 */
bl_code bl_embed_mtp_run(const bl_embed_mtp_options *o, bl_embed_mtp_report *ret, bl_err *err) BL_MUST_CHECK;

#endif
