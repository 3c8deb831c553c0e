/* What a checkpoint says about its draft head: config.json, the index and one shard, split at bytes 0xfe
 * (which no UTF-8 text holds). Whatever they say, the head is accepted whole or refused with one line and
 * nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "provider/mtp_policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const files[] = {"config.json", "model.safetensors.index.json", "mtp-1.safetensors"};
static char folder[64];

static void remove_folder(void) {
    for (size_t i = 0; i < BL_COUNTOF(files); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void check_accepted(const bl_mtp_probe *p, const bl_mtp_inspection *i) {
    BL_ASSERT(p->declaration == BL_MTP_DECLARED && i->detail[0] == '\0');
    BL_ASSERT(p->config_bytes <= BL_MTP_INSPECT_MAX_BYTES);
    BL_ASSERT(i->n_tensors >= 1 && i->n_tensors <= BL_MTP_MAX_TENSORS);
    BL_ASSERT(i->artifact_bytes > 0 && i->artifact_bytes <= BL_MTP_MAX_PAYLOAD);
    BL_ASSERT(i->resident_bytes > i->artifact_bytes && i->block_size >= 2 && i->block_size <= 8);
    BL_ASSERT(strlen(i->revision) == sizeof i->revision - 1);
}

static void check_mode(bl_mtp_mode mode, const bl_mtp_probe *p) {
    bl_mtp_inspection i;
    bl_mtp_decision d;
    bl_mtp_request r = {.mode = mode, .model_type = p->model_type, .dir = folder, .probe = p};
    bl_mtp_prepare(&r, &i, &d);
    BL_ASSERT((d.outcome == BL_MTP_EMBEDDED) == (i.finding == BL_MTP_FOUND_OK));
    BL_ASSERT((d.outcome == BL_MTP_EMBEDDED) == (d.reason == BL_MTP_READY));
    BL_ASSERT((d.reason == BL_MTP_INLINE_ARTIFACT_INVALID) == d.loud && d.loud == (d.detail[0] != '\0'));
    BL_ASSERT(!strchr(d.detail, '\n') && strlen(d.detail) < sizeof d.detail);
    BL_ASSERT(mode == BL_MTP_MODE_ON || p->declaration != BL_MTP_ABSENT || d.source == BL_MTP_SOURCE_NONE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (folder[0] == '\0') {
        snprintf(folder, sizeof folder, "/tmp/darkbloom-fuzz-mtp-%d", (int)getpid());
        BL_ASSERT(mkdir(folder, 0700) == 0);
        atexit(remove_folder);
    }
    for (size_t i = 0; i < BL_COUNTOF(files); i++) {
        const uint8_t *end = i + 1 < BL_COUNTOF(files) && size > 0 ? memchr(data, 0xfe, size) : NULL;
        size_t n = end ? (size_t)(end - data) : size;
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        FILE *f = fopen(path, "wb");
        BL_ASSERT(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
        data += n + (end != NULL);
        size -= n + (end != NULL);
    }
    bl_mtp_probe p;
    bl_mtp_inspection i;
    bl_mtp_probe_read(folder, &p);
    bl_mtp_inspect(folder, &p, &i); /* whatever the family is */
    if (i.finding == BL_MTP_FOUND_OK) {
        check_accepted(&p, &i);
    } else {
        BL_ASSERT(i.finding != BL_MTP_FOUND_NOT_INSPECTED && i.detail[0] != '\0' && i.artifact_bytes == 0);
    }
    check_mode(BL_MTP_MODE_AUTO, &p);
    check_mode(BL_MTP_MODE_ON, &p);
    bl_mtp_probe_done(&p);
    return 0;
}
