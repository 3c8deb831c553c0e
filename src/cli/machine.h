/* What a model needs and what this machine has, for the commands that load or describe one. */
#ifndef BL_CLI_MACHINE_H
#define BL_CLI_MACHINE_H

#include <stdint.h>

#include "provider/capabilities.h"

typedef struct {
    bl_capabilities needs, missing;
} bl_cli_needs;

/* Of the model at `path`, from its headers. cpu_mask: the features the engine may use. */
bl_code bl_cli_needs_of(const char *path, uint32_t cpu_mask, bl_cli_needs *ret, bl_err *err) BL_MUST_CHECK;
/* Before a load: BL_ENOTSUP when something is missing. */
bl_code bl_cli_check_needs(const char *path, uint32_t cpu_mask, bl_err *err) BL_MUST_CHECK;

#endif
