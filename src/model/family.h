/* What a family provides: recognition by the container's own name for the architecture, and two config
 * readers. */
#ifndef BL_MODEL_FAMILY_H
#define BL_MODEL_FAMILY_H

#include "model/decoder.h"
#include "model/model.h"

typedef struct {
    const char *name;      /* "llama": also the model_type of config.json */
    const char *gguf_arch; /* general.architecture */
    const bl_decoder_names *hf_names;
    /* Fill everything of cfg (zeroed before) but family and tied-ness found from tensors. */
    bl_code (*read_hf)(const bl_checkpoint *c, bl_decoder_config *cfg, bl_err *err);
    bl_code (*read_gguf)(const bl_checkpoint *c, bl_decoder_config *cfg, bl_err *err);
    bool (*ignorable)(const char *tensor_name);
} bl_family;

extern const bl_family bl_family_gemma3_text;
extern const bl_family bl_family_llama;

/* Readers that families share. `what` of messages is "config.json".
 * ---------------------------------------------------- */

/* The dimensions every decoder declares. head_dim: from head_dim, else hidden / heads. */
bl_code bl_family_hf_dims(const json_t *config, bl_decoder_config *cfg, bl_err *err) BL_MUST_CHECK;
/* Refuses quantised variants of config.json that this version does not read. */
bl_code bl_family_hf_refuse_quantised(const json_t *config, bl_err *err) BL_MUST_CHECK;
bl_code bl_family_hf_act(const json_t *config, const char *key, bl_glu_act *ret, bl_err *err) BL_MUST_CHECK;
/* One rope description: `params` is rope_parameters, one of its members, or rope_scaling (NULL: plain). theta
 * is used when params has no rope_theta. Types other than default, linear and llama3 are refused by name. */
bl_code bl_family_hf_rope(const json_t *params, double theta, bl_rope_config *ret, bl_err *err) BL_MUST_CHECK;
/* BL_ENOTSUP when the key holds anything but null, false or 0. */
bl_code bl_family_hf_refuse_set(const json_t *config, const char *key, bl_err *err) BL_MUST_CHECK;

/* Metadata "<arch>.<key>". required: absent is BL_EFORMAT. */
bl_code bl_family_gguf_u32(const bl_gguf *g, const char *arch, const char *key, uint32_t min, uint32_t max,
                           bool required, uint32_t *ret, bl_err *err) BL_MUST_CHECK;
bl_code bl_family_gguf_f64(const bl_gguf *g, const char *arch, const char *key, bool required, double *ret,
                           bl_err *err) BL_MUST_CHECK;
bl_code bl_family_gguf_dims(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg,
                            bl_err *err) BL_MUST_CHECK;
/* rope.freq_base and rope.scaling.*: none and linear; other types are refused by name. */
bl_code bl_family_gguf_rope(const bl_gguf *g, const char *arch, double default_theta, bl_rope_config *ret,
                            bl_err *err) BL_MUST_CHECK;

#endif
