/* Where models live on this machine, and which path a name means.
 *
 * Two places: the project's own folder of models (by default ~/.cache/darkbloom/models, XDG_CACHE_HOME
 * honoured) and the Hugging Face cache (HF_HUB_CACHE, or HF_HOME/hub, or ~/.cache/huggingface/hub), which is
 * read and never written. models/NAME.gguf                 NAME models/ORG--REPO/...             ORG/REPO;
 * with several GGUF files ORG/REPO/FILE.gguf each hub/models--ORG--REPO/snapshots  ORG/REPO, the snapshot
 * that refs/main names, else the newest A folder counts as a model when it holds config.json with
 * safetensors, or GGUF files. Nothing is opened or parsed here.
 */
#ifndef BL_PROVIDER_STORE_H
#define BL_PROVIDER_STORE_H

#include <stdint.h>

#include "bl/bl_err.h"

#define BL_STORE_MAX_PATH   4096
#define BL_STORE_MAX_MODELS 4096
#define BL_STORE_PARTIAL    ".partial" /* unfinished downloads below the folder of models */

/* What the command line and the environment say; NULL or "" where they say nothing. */
typedef struct {
    const char *models_dir;   /* replaces the default folder */
    const char *cache_home;   /* XDG_CACHE_HOME */
    const char *home;         /* HOME */
    const char *hf_home;      /* HF_HOME */
    const char *hf_hub_cache; /* HF_HUB_CACHE */
} bl_store_settings;

typedef struct {
    char models[BL_STORE_MAX_PATH];
    char hf_hub[BL_STORE_MAX_PATH]; /* "" when no home is known */
} bl_store;

/* BL_EINVAL when no folder can be named (no HOME either). Touches no file. */
bl_code bl_store_init(bl_store *ret, const bl_store_settings *s, bl_err *err) BL_MUST_CHECK;

typedef enum { BL_STORE_OWN, BL_STORE_HF_CACHE } bl_store_origin;

typedef struct {
    char *name;
    char *path;          /* what bl_checkpoint_open takes */
    uint64_t size_bytes; /* weights */
    bl_store_origin origin;
} bl_store_model;

typedef struct {
    bl_store_model *models; /* own ones first, by name within each place */
    size_t n;
} bl_store_list;

/* Missing folders are empty folders. Unreadable ones are an error. */
bl_code bl_store_list_models(const bl_store *s, bl_store_list *ret, bl_err *err) BL_MUST_CHECK;
void bl_store_list_free(bl_store_list *l);

/* A path that exists wins; then exact names, names without regard to case, unique beginnings (of the whole
 * name or of what follows its last slash). Own models win over the Hugging Face cache. *ret_path is freed by
 * the caller (bl_free). BL_ENOTFOUND names the nearest models and how to fetch one; BL_EINVAL lists what an
 * ambiguous beginning could mean. */
bl_code bl_store_resolve(const bl_store *s, const char *name, char **ret_path, bl_err *err) BL_MUST_CHECK;

#endif
