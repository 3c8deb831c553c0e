#include "cli/machine.h"

#include "backend/backend.h"
#include "base/base.h"
#include "base/file.h"

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

/* cpu: what the result borrows. */
static bl_machine this_machine(uint32_t cpu_mask, char cpu[64]) {
    return (bl_machine){.cpu = bl_cpu_flags_name(bl_cpu_detect() & cpu_mask, cpu),
                        .memory_bytes = memory_bytes()};
}

/* Not by the name it was asked for: several mean the same model. */
static bl_capabilities needs_of(const bl_checkpoint *c) {
    bl_capabilities needs = {0};
    bl_capabilities_add_path(&needs, bl_checkpoint_path(c));
    bl_capabilities_add_config(&needs, bl_checkpoint_config(c));
    return needs;
}

void bl_cli_needs_of(const bl_checkpoint *c, uint32_t cpu_mask, bl_cli_needs *ret) {
    char cpu[64];
    const bl_machine m = this_machine(cpu_mask, cpu);
    ret->needs = needs_of(c);
    bl_capabilities_missing(&ret->needs, &m, &ret->missing);
}

bl_code bl_cli_check_needs(const bl_checkpoint *c, uint32_t cpu_mask, bl_err *err) {
    char cpu[64];
    const bl_machine m = this_machine(cpu_mask, cpu);
    const bl_capabilities needs = needs_of(c);
    return bl_capabilities_check(&needs, &m, bl_checkpoint_name(c), err);
}
