#include "cli/common.h"

bl_code bl_cli_open_store(const bl_cli_store_args *a, bl_store *ret, bl_err *err) {
    bl_store_settings s = {.models_dir = a->models_dir,
                           .cache_home = a->cache_home,
                           .home = a->home,
                           .hf_home = a->hf_home,
                           .hf_hub_cache = a->hf_hub_cache};
    return bl_store_init(ret, &s, err);
}
