/* `models pull ORG/REPO`: a repository of the Hugging Face hub (or of a server with its API) into the store.
 *
 * The hub is asked for the revision's files, sizes and hashes; only what running the model needs is fetched:
 *   safetensors  config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
 * chat_template.jinja, model.safetensors or model-*-of-*.safetensors with the index GGUF         one file:
 * the globs decide, else the only one, else by quantisation (Q4_K_M, then Q8_0 and others) Everything arrives
 * in models/.partial/ORG--REPO and moves to models/ORG--REPO when it is whole and its hashes are right, the
 * file that makes a folder a model (config.json) last. models/ORG--REPO/.darkbloom.json remembers the
 * revision and the hashes, so that a second pull fetches only what changed.
 */
#ifndef BL_PROVIDER_HUB_H
#define BL_PROVIDER_HUB_H

#include "provider/pull.h"

#define BL_HUB_DEFAULT_ENDPOINT "https://huggingface.co"
#define BL_HUB_MAX_FILES        512         /* fetched by one pull */
#define BL_HUB_MAX_LISTING      (16u << 20) /* bytes of the hub's answer */

typedef struct {
    bl_pull_options pull;
    const char *endpoint; /* NULL or "": BL_HUB_DEFAULT_ENDPOINT */
    const char *token;    /* for gated and private repositories, or NULL */
    const char *user_agent;
    const char *repo; /* "ORG/REPO" or "ORG/REPO@REVISION" */
    const char *const
        *globs; /* weight files to fetch (fnmatch on the name in the repository); none: as above */
    uint32_t n_globs;
} bl_hub_request;

/* "ORG/REPO" with an optional "@REVISION": is this a name of the hub at all? */
bool bl_hub_is_repo(const char *name);

/* *ret_path (bl_free): what bl_checkpoint_open takes. BL_EINVAL (name, access refused), BL_ENOTFOUND
 * (repository, revision, no file to fetch), BL_ECORRUPT, BL_ELIMIT (space), BL_ECANCEL (what came is kept for
 * the next time), BL_EIO. */
bl_code bl_hub_pull(const bl_hub_request *r, char **ret_path, bl_err *err) BL_MUST_CHECK;

/* A file name that may be made below a folder: relative, no "..", no empty or hidden component, no control
 * bytes or backslash. */
bool bl_hub_safe_name(const char *name);

#endif
