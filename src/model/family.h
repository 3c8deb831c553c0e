/* What a family provides: recognition by the container's own name for the architecture, and two config
 * readers. */
#ifndef BL_MODEL_FAMILY_H
#define BL_MODEL_FAMILY_H

#include "model/decoder.h"
#include "model/model.h"

#define BL_FAMILY_MAX_NAMES 5

typedef struct bl_family {
    const char *name;                            /* "llama" */
    const char *types[BL_FAMILY_MAX_NAMES];      /* model_type of config.json, NULL-terminated */
    const char *gguf_archs[BL_FAMILY_MAX_NAMES]; /* general.architecture */
    const bl_decoder_names *hf_names, *gguf_names;
    /* Fill everything of cfg (zeroed before) but family. `config` is the text model's part of config.json;
     * `arch` is the file's architecture. */
    bl_code (*read_hf)(const bl_checkpoint *c, const json_t *config, bl_decoder_config *cfg, bl_err *err);
    bl_code (*read_gguf)(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg, bl_err *err);
    bool (*ignorable)(const bl_model *m, const char *tensor_name);
} bl_family;

extern const bl_family bl_family_gemma3_text;
extern const bl_family bl_family_gemma4;
extern const bl_family bl_family_gpt_oss;
extern const bl_family bl_family_llama;
extern const bl_family bl_family_qwen3;
extern const bl_family bl_family_qwen3_5;

/* Every layer as the common fields say, with sliding[i] where the family has set layer[i].sliding. */
void bl_family_uniform_layers(bl_decoder_config *cfg);
/* The tensor's name relative to the text model's root, however the container writes that. */
const char *bl_family_strip_root(const char *tensor_name);

/* Readers that families share. `what` of messages is "config.json".
 * ---------------------------------------------------- */

/* The dimensions every decoder declares, for all layers alike. head_dim: from head_dim, else hidden / heads.
 * With cfg->n_experts set, intermediate_size may be missing. */
bl_code bl_family_hf_dims(const json_t *config, bl_decoder_config *cfg, bl_err *err) BL_MUST_CHECK;
/* layer_types, or a pattern where it is missing: every `pattern`-th layer is full, the last too if asked.
 * Sets layer[i].sliding and, for "linear_attention", layer[i].mixer. */
bl_code bl_family_hf_layer_types(const json_t *config, uint32_t pattern, bool last_full,
                                 bl_decoder_config *cfg, bl_err *err) BL_MUST_CHECK;
/* A key that has no default. */
bl_code bl_family_hf_need_u32(const json_t *config, const char *key, uint32_t max, uint32_t *ret,
                              bl_err *err) BL_MUST_CHECK;
/* Every attention layer's heads fit together. */
bl_code bl_family_check_layers(const char *what, const bl_decoder_config *cfg, bl_err *err) BL_MUST_CHECK;
/* Expert counts and widths; n_experts 0 leaves the rest. */
bl_code bl_family_check_experts(const char *what, const bl_decoder_config *cfg, bl_err *err) BL_MUST_CHECK;
bl_code bl_family_hf_act(const json_t *config, const char *key, bl_glu_act *ret, bl_err *err) BL_MUST_CHECK;
/* One rope description: `params` is rope_parameters, one of its members, or rope_scaling (NULL: plain). theta
 * is used when params has no rope_theta, head_dim where it turns a part of the head only. Unknown types are
 * refused by name. */
bl_code bl_family_hf_rope(const json_t *params, double theta, uint32_t head_dim, bl_rope_config *ret,
                          bl_err *err) BL_MUST_CHECK;
/* BL_ENOTSUP when the key holds anything but null, false or 0. */
bl_code bl_family_hf_refuse_set(const json_t *config, const char *key, bl_err *err) BL_MUST_CHECK;

bool bl_family_gguf_has(const bl_gguf *g, const char *arch, const char *key);
/* Metadata "<arch>.<key>". required: absent is BL_EFORMAT. */
bl_code bl_family_gguf_u32(const bl_gguf *g, const char *arch, const char *key, uint32_t min, uint32_t max,
                           bool required, uint32_t *ret, bl_err *err) BL_MUST_CHECK;
bl_code bl_family_gguf_f64(const bl_gguf *g, const char *arch, const char *key, bool required, double *ret,
                           bl_err *err) BL_MUST_CHECK;
/* The dimensions, expert_count included; layers may differ in key/value heads and MLP width. */
bl_code bl_family_gguf_dims(const bl_checkpoint *c, const char *arch, bl_decoder_config *cfg,
                            bl_err *err) BL_MUST_CHECK;
/* One value for all layers, or an array with one for each (as count says). */
bl_code bl_family_gguf_per_layer(const bl_gguf *g, const char *arch, const char *key, uint32_t max,
                                 uint32_t n_layers, uint32_t *ret, bl_err *err) BL_MUST_CHECK;
/* rope.freq_base and rope.scaling.*: none, linear and yarn; other types are refused by name. */
bl_code bl_family_gguf_rope(const bl_gguf *g, const char *arch, double default_theta, bl_rope_config *ret,
                            bl_err *err) BL_MUST_CHECK;

#endif
