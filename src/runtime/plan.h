/* The memory plan: what a loaded model will take, from headers alone. The same numbers are printed by `models
 * info`, used for admission, and held to by the loader. */
#ifndef BL_RUNTIME_PLAN_H
#define BL_RUNTIME_PLAN_H

#include "backend/backend.h"
#include "bl/bl.h"
#include "model/model.h"
#include "runtime/exec.h"
#include "runtime/kv.h"

/* Fills info from headers. */
bl_code bl_plan_make(const bl_model *m, const bl_backend *b, const bl_kv_geometry *kv,
                     const bl_exec_size *size, uint64_t prefix_cache_bytes, bl_model_info *ret,
                     bl_err *err) BL_MUST_CHECK;

/* Samplers of an engine: one for each thread, or one where a single sequence runs. */
uint32_t bl_plan_samplers(const bl_backend *b, uint32_t n_seqs);

/* Bytes this process may still take: the smaller of what the machine has available and what its control group
 * leaves. 0 when neither can be read. */
uint64_t bl_plan_available_bytes(void);

#endif
