/* What a checkpoint says about an embedded draft head (multi-token prediction, MTP), and whether what it says
 * can be believed. docs/mtp.md
 *
 * Two steps, because they answer two questions. The probe reads config.json, once, and says whether a head is
 * declared. The inspection takes that probe's result, so that a config.json that changes in between cannot
 * change the answer, reads the index and the headers of the head's shards, and accepts the head or names what
 * is wrong. No weight is read: a shard is mapped and only its header is touched.
 *
 * Neither can fail a load: whatever is wrong with a head costs the head, and the target is served without it.
 */
#ifndef BL_PROVIDER_MTP_PROBE_H
#define BL_PROVIDER_MTP_PROBE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"

/* Loose and strict bound on config.json. The probe's is loose on purpose: a config that is too large to be
 * accepted and declares a head is refused loudly, not taken for one that declares nothing. */
#define BL_MTP_PROBE_MAX_BYTES   ((size_t)64 << 20)
#define BL_MTP_INSPECT_MAX_BYTES ((size_t)1 << 20) /* of config.json and of the index, each */
#define BL_MTP_MAX_TENSORS       512u
#define BL_MTP_MAX_KEY_BYTES     1024u
#define BL_MTP_MAX_SHARD_NAME    255u
#define BL_MTP_MAX_HEADER_BYTES  ((uint64_t)16 << 20)
#define BL_MTP_MAX_PAYLOAD       ((uint64_t)2 << 30)
#define BL_MTP_PREFIX            "mtp." /* the only one the loader knows */
#define BL_MTP_MAX_PATH          4096u  /* of a folder that holds a head alone */
#define BL_MTP_MAX_FILES         64u    /* in it */
#define BL_MTP_SHA256_BYTES      32

typedef enum {
    BL_MTP_ABSENT,         /* config.json was read and declares no head */
    BL_MTP_DECLARED,       /* mtplx_mtp.included is true */
    BL_MTP_UNDETERMINABLE, /* missing, unreadable, beyond the bound, or no JSON object */
    BL_MTP_DECLARATION__MAX
} bl_mtp_declaration;

/* What the inspection found. Each has a short stable name (bl_mtp_finding_name). */
typedef enum {
    BL_MTP_FOUND_NOT_INSPECTED, /* a zeroed inspection accepts nothing */
    BL_MTP_FOUND_OK,
    BL_MTP_FOUND_NO_FOLDER,
    BL_MTP_FOUND_CONFIG_MISSING, /* also a link to nothing */
    BL_MTP_FOUND_CONFIG_LINK,    /* a link to where the checkpoint's links may not lead */
    BL_MTP_FOUND_CONFIG_UNREADABLE,
    BL_MTP_FOUND_CONFIG_IRREGULAR, /* a folder, a pipe */
    BL_MTP_FOUND_CONFIG_EMPTY,
    BL_MTP_FOUND_CONFIG_TOO_LARGE,
    BL_MTP_FOUND_CONFIG_MALFORMED,
    BL_MTP_FOUND_NOT_DECLARED,
    BL_MTP_FOUND_QUANTIZATION, /* mtplx_mtp_quantization is no object, or says nothing about a tensor */
    BL_MTP_FOUND_PREFIX,       /* not "mtp." */
    BL_MTP_FOUND_BLOCK_SIZE,   /* not 2..8 */
    BL_MTP_FOUND_OWN_MATRICES, /* an embedding or output matrix of its own */
    BL_MTP_FOUND_INDEX_MISSING,
    BL_MTP_FOUND_INDEX_LINK,
    BL_MTP_FOUND_INDEX_UNREADABLE,
    BL_MTP_FOUND_INDEX_IRREGULAR,
    BL_MTP_FOUND_INDEX_EMPTY,
    BL_MTP_FOUND_INDEX_TOO_LARGE,
    BL_MTP_FOUND_INDEX_MALFORMED,
    BL_MTP_FOUND_KEY, /* a tensor's name is the prefix alone, or too long */
    BL_MTP_FOUND_NO_TENSORS,
    BL_MTP_FOUND_TOO_MANY_TENSORS,
    BL_MTP_FOUND_SHARD_NAME, /* no bare *.safetensors file name of at most 255 bytes */
    BL_MTP_FOUND_SHARD_MISSING,
    BL_MTP_FOUND_SHARD_LINK,
    BL_MTP_FOUND_SHARD_UNREADABLE,
    BL_MTP_FOUND_SHARD_IRREGULAR,
    BL_MTP_FOUND_SHARD_HEADER_TOO_LARGE,
    BL_MTP_FOUND_SHARD_MALFORMED, /* cut short, or a header that does not fit its file */
    BL_MTP_FOUND_TENSOR_MISSING,  /* in the index, not in its shard */
    BL_MTP_FOUND_TENSOR_EMPTY,
    BL_MTP_FOUND_DTYPE,
    BL_MTP_FOUND_PAYLOAD_TOO_LARGE,
    /* of a folder that holds a head alone */
    BL_MTP_FOUND_FOLDER_LINK,
    BL_MTP_FOUND_FOLDER_PATH,  /* too long, or unreadable */
    BL_MTP_FOUND_FILE_LINK,    /* a member that is a link */
    BL_MTP_FOUND_FILE_STRANGE, /* neither config.json nor *.safetensors, or no regular file */
    BL_MTP_FOUND_TOO_MANY_FILES,
    BL_MTP_FOUND_MODEL_TYPE, /* no head of a family that is known */
    BL_MTP_FOUND_NO_MEMORY,  /* nothing is wrong with the head: it could not be looked at */
    BL_MTP_FOUND__MAX
} bl_mtp_finding;

/* Everything that is ever taken from config.json. Read-only after bl_mtp_probe_read. A zeroed one is a
 * checkpoint without a folder: absent. */
typedef struct {
    bl_mtp_declaration declaration;
    char model_type[64];   /* as written; "" when there is none, or it is longer */
    uint64_t config_bytes; /* 0 when it could not be read */
    uint8_t config_sha256[BL_MTP_SHA256_BYTES];
    json_t *head;         /* mtplx_mtp, NULL unless declared; owned */
    json_t *quantization; /* mtplx_mtp_quantization or NULL; owned */
    bl_mtp_finding cause; /* why undeterminable */
    char detail[256];     /* the same in a sentence that names the file */
} bl_mtp_probe;

/* dir: the checkpoint's folder; NULL (a caller that has none, or a GGUF file) gives absent. Reads config.json
 * of at most 64 MiB. *ret needs no initialisation and is done by bl_mtp_probe_done. */
void bl_mtp_probe_read(const char *dir, bl_mtp_probe *ret);
void bl_mtp_probe_done(bl_mtp_probe *p);

typedef struct {
    bl_mtp_finding finding;
    char detail[256]; /* one line naming the file, the value found and the value allowed; "" when ok */
    /* below: when ok */
    uint32_t n_tensors, block_size;
    uint64_t artifact_bytes; /* of the head's tensors */
    uint64_t resident_bytes; /* ceil(1.2 * artifact_bytes) */
    uint8_t config_sha256[BL_MTP_SHA256_BYTES], index_sha256[BL_MTP_SHA256_BYTES];
    char revision[sizeof "inline-01234567-01234567"]; /* or local- and 16 digits */
} bl_mtp_inspection;

/* Strict inspection (spec provider-contracts.md 7.3) of what the probe of the same folder found. Does not
 * read config.json. */
void bl_mtp_inspect(const char *dir, const bl_mtp_probe *probe, bl_mtp_inspection *ret);

/* The same of a folder that holds nothing but a head: config.json of at most 1 MiB whose model_type is
 * qwen3_5_mtp or qwen3_5_moe_mtp, and *.safetensors with names without the prefix; no links, at most 64 files
 * and 2 GiB (spec provider-contracts.md 8.2). */
void bl_mtp_inspect_local(const char *path, bl_mtp_inspection *ret);

/* "declared", "absent", "undeterminable". */
const char *bl_mtp_declaration_name(bl_mtp_declaration d);
/* "ok", "config_too_large", ...: stable, holds nothing of the checkpoint. */
const char *bl_mtp_finding_name(bl_mtp_finding f);

#endif
