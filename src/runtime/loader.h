/* From a path to a model that can run: checkpoint → family → memory plan → weights. Threads: one owner, the
 * opening thread.
 */
#ifndef BL_RUNTIME_LOADER_H
#define BL_RUNTIME_LOADER_H

#include "backend/backend.h"
#include "bl/bl.h"
#include "formats/checkpoint.h"
#include "model/model.h"
#include "runtime/exec.h"
#include "runtime/kv.h"

#define BL_DEFAULT_CHUNK 256u
#define BL_MAX_CHUNK     4096u

typedef struct {
    bl_checkpoint *ckpt;
    bl_backend *backend;
    bl_model *model;
    bl_model_info info;
    bl_kv_geometry kv; /* of the plan; layers borrowed from model */
    bl_exec_size size;
    uint32_t chunk_rows; /* of one prompt in a step */
} bl_loaded;

/* Opens, recognises, checks tensors and the backend's support, and makes the memory plan: headers only. *ret
 * is filled on success only. */
bl_code bl_loader_inspect(const bl_engine_options *o, bl_loaded *ret, bl_err *err) BL_MUST_CHECK;
/* Refuses a plan above the limit (BL_ELIMIT with both numbers), then reads the weights. On failure l can
 * still be done. */
bl_code bl_loader_load(const bl_engine_options *o, bl_loaded *l, bl_err *err) BL_MUST_CHECK;
void bl_loader_done(bl_loaded *l);

#endif
