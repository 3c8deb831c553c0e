#include "base/mapguard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

/* A slot is free when begin is 0. Written under `mu`; the handler reads without it: size_bytes is stored
 * before begin (release), so that a handler that sees begin (acquire) sees the size. */
typedef struct {
    atomic_uintptr_t begin;
    atomic_uintptr_t size_bytes;
    atomic_bool cut;
} slot;

static slot slots[BL_MAPGUARD_MAX];
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous;
static uintptr_t page_bytes;

static slot *find_slot(uintptr_t addr) {
    for (size_t i = 0; i < BL_MAPGUARD_MAX; i++) {
        uintptr_t begin =
            atomic_load_explicit(&slots[i].begin, memory_order_acquire); /* pairs with bl_mapguard_add */
        if (begin != 0 && addr >= begin &&
            addr - begin < atomic_load_explicit(&slots[i].size_bytes, memory_order_relaxed)) {
            return &slots[i];
        }
    }
    return NULL;
}

/* Hands a fault that is not ours to whom it belonged before us. */
static void pass_on(int sig, siginfo_t *info, void *context) {
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(sig, info, context);
    } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
        signal(sig, SIG_DFL); /* the access repeats and ends the process as it would have */
    } else {
        previous.sa_handler(sig);
    }
}

/* Only loads, stores and mmap: safe in a handler. The page becomes zeros for good, and the access repeats. */
static void on_sigbus(int sig, siginfo_t *info, void *context) {
    uintptr_t addr = (uintptr_t)info->si_addr;
    slot *s = info->si_code == BUS_ADRERR ? find_slot(addr) : NULL;
    if (s) {
        void *page = (void *)(addr & ~(page_bytes - 1));
        atomic_store_explicit(&s->cut, true, memory_order_release); /* pairs with bl_mapguard_check */
        if (mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
            return;
        }
    }
    pass_on(sig, info, context);
}

/* Puts our handler in front, also when somebody has replaced it since the last guard. */
static void install_locked(void) {
    struct sigaction sa = {0}, now;
    if (sigaction(SIGBUS, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_sigbus) {
        return;
    }
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sa.sa_sigaction = on_sigbus;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, &previous);
}

bl_code bl_mapguard_add(const uint8_t *data, uint64_t size_bytes, bl_err *err) {
    bool done = false;
    pthread_mutex_lock(&mu);
    install_locked();
    for (size_t i = 0; i < BL_MAPGUARD_MAX && !done; i++) {
        if (atomic_load_explicit(&slots[i].begin, memory_order_relaxed) == 0) {
            atomic_store_explicit(&slots[i].cut, false, memory_order_relaxed);
            atomic_store_explicit(&slots[i].size_bytes, (uintptr_t)size_bytes, memory_order_relaxed);
            atomic_store_explicit(&slots[i].begin, (uintptr_t)data,
                                  memory_order_release); /* pairs with find_slot */
            done = true;
        }
    }
    pthread_mutex_unlock(&mu);
    if (!done) {
        BL_FAIL(err, BL_ELIMIT, "%d files are mapped already, allowed are %d", BL_MAPGUARD_MAX,
                BL_MAPGUARD_MAX);
    }
    return BL_OK;
}

void bl_mapguard_remove(const uint8_t *data) {
    pthread_mutex_lock(&mu);
    for (size_t i = 0; data && i < BL_MAPGUARD_MAX; i++) {
        if (atomic_load_explicit(&slots[i].begin, memory_order_relaxed) == (uintptr_t)data) {
            atomic_store_explicit(&slots[i].begin, 0, memory_order_relaxed);
        }
    }
    pthread_mutex_unlock(&mu);
}

bl_code bl_mapguard_check(const uint8_t *data, const char *name, bl_err *err) {
    const slot *s = find_slot((uintptr_t)data);
    if (s && atomic_load_explicit(&s->cut, memory_order_acquire)) { /* pairs with on_sigbus */
        BL_FAIL(err, BL_ECORRUPT,
                "file '%s' was cut short while it was read, allowed are files that keep their size", name);
    }
    return BL_OK;
}
