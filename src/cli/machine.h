/* What a model needs and what this machine has, for the commands that load or describe one. */
#ifndef BL_CLI_MACHINE_H
#define BL_CLI_MACHINE_H

#include <stdint.h>

#include "formats/checkpoint.h"
#include "provider/capabilities.h"

typedef struct {
    bl_capabilities needs, missing;
} bl_cli_needs;

/* cpu_mask: the features the engine may use. */
void bl_cli_needs_of(const bl_checkpoint *c, uint32_t cpu_mask, bl_cli_needs *ret);
/* Before a load: BL_ENOTSUP when something is missing. */
bl_code bl_cli_check_needs(const bl_checkpoint *c, uint32_t cpu_mask, bl_err *err) BL_MUST_CHECK;

#endif
