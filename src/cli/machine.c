#include "cli/machine.h"

#include "backend/backend.h"
#include "base/base.h"
#include "base/file.h"
#include "formats/checkpoint.h"

/* What the machine has, or the control group allows, used or not. */
static uint64_t memory_bytes(void) {
    uint64_t all = 0, kib, limit;
    if (bl_file_read_number("/proc/meminfo", "MemTotal:", &kib)) {
        all = kib << 10;
    }
    /* Control groups, version 2 and 1; "max" is no number and means no limit. */
    if (bl_file_read_number("/sys/fs/cgroup/memory.max", "", &limit) ||
        bl_file_read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", &limit)) {
        all = all == 0 ? limit : BL_MIN(all, limit);
    }
    return all;
}

static bl_code look(const char *path, uint32_t cpu_mask, bool fail, bl_cli_needs *ret, bl_err *err) {
    bl_checkpoint *c = NULL;
    bl_cli_needs n = {0};
    char cpu[64];
    bl_machine m = {.cpu = bl_cpu_flags_name(bl_cpu_detect() & cpu_mask, cpu),
                    .memory_bytes = memory_bytes()};
    BL_TRY(bl_checkpoint_open(path, &c, err));
    /* Not the name it was asked for by: several mean the same model. */
    bl_capabilities_add_path(&n.needs, bl_checkpoint_path(c));
    bl_capabilities_add_config(&n.needs, bl_checkpoint_config(c));
    bl_capabilities_missing(&n.needs, &m, &n.missing);
    bl_code rc = fail ? bl_capabilities_check(&n.needs, &m, bl_checkpoint_name(c), err) : BL_OK;
    bl_checkpoint_free(c);
    if (rc == BL_OK) {
        *ret = n;
    }
    return rc;
}

bl_code bl_cli_needs_of(const char *path, uint32_t cpu_mask, bl_cli_needs *ret, bl_err *err) {
    return look(path, cpu_mask, false, ret, err);
}

bl_code bl_cli_check_needs(const char *path, uint32_t cpu_mask, bl_err *err) {
    bl_cli_needs n;
    return look(path, cpu_mask, true, &n, err);
}
