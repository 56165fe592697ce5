/* See fake.h. Behaviour is set by FAKE_* variables: BUSY, MISSING (kinds, comma separated), NO_DROPPED, DROPPED,
 * VERSION, LATE_VERSION, DEVICES, TRUTH (file). */
#define _GNU_SOURCE
#include "fake.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
typedef void (*requested_fn)(uint8_t **, size_t *, size_t *);
typedef void (*completed_fn)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef void (*callback_fn)(void *, int, uint32_t, const void *);

enum { MAX_THREADS = 256, QUEUE = 4096 };
struct part { pthread_mutex_t lock; uint8_t *buffer; size_t size, used; bool held; };
struct full { uint8_t *buffer; size_t size, used; };

static struct part parts[MAX_THREADS];
static atomic_int thread_count;
static _Thread_local struct part *mine;
static atomic_bool enabled[64], subscribed, init_callback, initialized;
static _Atomic requested_fn requested;
static _Atomic completed_fn completed;
static _Atomic callback_fn subscriber;
static struct fake_truth private_truth, *truth = &private_truth;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static struct full queue[QUEUE];
static size_t queue_head, queue_tail, in_delivery;
static bool worker_started;

static int setting(const char *name, int fallback)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : fallback;
}

static bool kind_missing(int kind)
{
    const char *list = getenv("FAKE_MISSING");
    char copy[128], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", list != NULL ? list : "");
    while ((word = strsep(&rest, ",")) != NULL)
        if (*word != 0 && atoi(word) == kind) return true;
    return false;
}

static void *worker(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&queue_lock);
        while (queue_head == queue_tail) pthread_cond_wait(&queue_filled, &queue_lock);
        struct full f = queue[queue_head++ % QUEUE];
        in_delivery++;
        pthread_mutex_unlock(&queue_lock);
        completed(NULL, 0, f.buffer, f.size, f.used);
        pthread_mutex_lock(&queue_lock);
        in_delivery--;
        pthread_mutex_unlock(&queue_lock);
    }
    return NULL;
}

static void hand_over(struct full f)
{
    pthread_mutex_lock(&queue_lock);
    if (!worker_started) {
        pthread_t thread;
        worker_started = pthread_create(&thread, NULL, worker, NULL) == 0;
        pthread_detach(thread);
    }
    if (queue_tail - queue_head < QUEUE) queue[queue_tail++ % QUEUE] = f;
    pthread_cond_signal(&queue_filled);
    pthread_mutex_unlock(&queue_lock);
}

static size_t size_of(int kind)
{
    return kind == 10 ? sizeof(struct fake_kernel) : kind == 1 ? sizeof(struct fake_copy)
         : kind == 22 ? sizeof(struct fake_peer) : kind == 2 ? sizeof(struct fake_memset)
         : kind == 51 ? sizeof(struct fake_graph) : 0;
}

__attribute__((constructor)) static void prepare(void)
{
    for (int i = 0; i < MAX_THREADS; i++) pthread_mutex_init(&parts[i].lock, NULL);
}

static struct part *my_part(void)
{
    if (mine == NULL) mine = &parts[atomic_fetch_add(&thread_count, 1) % MAX_THREADS];
    return mine;
}

EXPORT void fake_hold(int hold)
{
    struct part *p = my_part();
    pthread_mutex_lock(&p->lock);
    p->held = hold;
    pthread_mutex_unlock(&p->lock);
}

static void count(const void *record)
{
    int kind = *(const int *)record;
    __atomic_fetch_add(kind == 10 ? &truth->kernels : kind == 2 ? &truth->memsets : &truth->copies, 1, __ATOMIC_RELAXED);
    if (kind == 1 || kind == 22)
        __atomic_fetch_add(&truth->copy_bytes, ((const struct fake_copy *)record)->bytes, __ATOMIC_RELAXED);
}

EXPORT int fake_emit(const void *record)
{
    int kind = *(const int *)record;
    size_t n = size_of(kind);
    if (!atomic_load(&enabled[kind])) return 0;
    struct part *p = my_part();
    pthread_mutex_lock(&p->lock);
    if (p->buffer != NULL && p->size - p->used < n) {
        hand_over((struct full){p->buffer, p->size, p->used});
        p->buffer = NULL;
    }
    if (p->buffer == NULL) {
        size_t max = 0;
        p->used = 0;
        requested(&p->buffer, &p->size, &max);
        /* The recorder says that its buffers are zeroed: hold it to that. */
        for (size_t i = 0; p->buffer != NULL && i < p->size; i += 509)
            if (p->buffer[i] != 0) abort();
    }
    bool fits = p->buffer != NULL;
    if (fits) {
        memcpy(p->buffer + p->used, record, n);
        p->used += n;
        count(record);
    } else {
        __atomic_fetch_add(&truth->refused, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&p->lock);
    return fits;
}

EXPORT int cuptiGetVersion(uint32_t *version)
{
    if (!atomic_load(&initialized) && setting("FAKE_LATE_VERSION", 0)) return 999;
    *version = (uint32_t)setting("FAKE_VERSION", 130001);
    return 0;
}

EXPORT int cuptiGetTimestamp(uint64_t *ns)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    *ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return 0;
}

EXPORT int cuptiSubscribe(void **handle, callback_fn function, void *data)
{
    (void)data;
    if (setting("FAKE_BUSY", 0) || atomic_exchange(&subscribed, true)) return 39;
    const char *file = getenv("FAKE_TRUTH");
    if (file != NULL && truth == &private_truth) {
        int fd = open(file, O_RDWR | O_CREAT, 0600);
        if (ftruncate(fd, sizeof *truth) == 0)
            truth = mmap(NULL, sizeof *truth, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    subscriber = function;
    *handle = &parts;
    return 0;
}

EXPORT int cuptiUnsubscribe(void *handle)
{
    (void)handle;
    atomic_store(&subscribed, false);
    return 0;
}

EXPORT int cuptiEnableCallback(uint32_t on, void *handle, int domain, uint32_t id)
{
    (void)handle;
    if (domain == 3 && id == 5) atomic_store(&init_callback, on != 0);
    return 0;
}

EXPORT int cuptiActivityRegisterCallbacks(requested_fn r, completed_fn c)
{
    requested = r;
    completed = c;
    return 0;
}

EXPORT int cuptiActivityEnable(int kind)
{
    if (kind_missing(kind)) return 21;
    atomic_store(&enabled[kind], true);
    return 0;
}

EXPORT int cuptiActivityDisable(int kind)
{
    atomic_store(&enabled[kind], false);
    return 0;
}

EXPORT int cuptiActivitySetAttribute(int attribute, size_t *size, void *value)
{
    (void)attribute, (void)size, (void)value;
    return 0;
}

EXPORT int cuptiActivityFlushAll(uint32_t flag)
{
    int n = atomic_load(&thread_count);
    for (int i = 0; i < n && i < MAX_THREADS; i++) {
        struct part *p = &parts[i];
        struct full f = {NULL, 0, 0};
        pthread_mutex_lock(&p->lock);
        if (p->buffer != NULL && p->used > 0 && (!p->held || flag == 1)) {
            f = (struct full){p->buffer, p->size, p->used};
            p->buffer = NULL;
        }
        pthread_mutex_unlock(&p->lock);
        if (f.buffer != NULL) completed(NULL, 0, f.buffer, f.size, f.used);
    }
    for (bool empty = false; !empty;) { /* the real one, too, returns when all is delivered */
        pthread_mutex_lock(&queue_lock);
        struct full f = {NULL, 0, 0};
        if (queue_head != queue_tail) f = queue[queue_head++ % QUEUE];
        empty = f.buffer == NULL && in_delivery == 0;
        pthread_mutex_unlock(&queue_lock);
        if (f.buffer != NULL) completed(NULL, 0, f.buffer, f.size, f.used);
    }
    return 0;
}

EXPORT int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    size_t at = *record == NULL ? 0 : (size_t)((uint8_t *)*record - buffer) + size_of(*(int *)*record);
    if (at >= valid) return 12;
    if (size_of(*(int *)(buffer + at)) == 0) return 21;
    *record = buffer + at;
    return 0;
}

#ifndef FAKE_LACKS_DROPPED
EXPORT int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *n)
{
    static atomic_bool told;
    (void)context, (void)stream;
    *n = atomic_exchange(&told, true) ? 0 : (size_t)setting("FAKE_DROPPED", 0);
    return setting("FAKE_NO_DROPPED", 0) ? 999 : 0;
}
#endif

static void load_injection(void)
{
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*start)(void) = NULL;
    if (library != NULL) {
        void *symbol = dlsym(library, "InitializeInjection");
        memcpy(&start, &symbol, sizeof start);
    }
    if (start != NULL) start();
    else if (path != NULL) fprintf(stderr, "fake driver: %s\n", dlerror());
    atomic_store(&initialized, true);
    if (atomic_load(&subscribed) && atomic_load(&init_callback)) atomic_load(&subscriber)(NULL, 3, 5, NULL);
}

/* The CUDA driver loads the injection library inside the first cuInit; other threads wait for it there. */
EXPORT int cuInit(unsigned int flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)flags;
    if (!atomic_load(&initialized)) pthread_once(&once, load_injection);
    return 0;
}

EXPORT int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
EXPORT int cuDeviceGetCount(int *n)
{
    *n = setting("FAKE_DEVICES", 1);
    return atomic_load(&initialized) ? 0 : 3;
}
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
EXPORT int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Fake \"GPU\" %d", device);
    return 0;
}
EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(16 * device + i);
    return 0;
}
EXPORT int cuDeviceGetPCIBusId(char *text, int size, int device)
{
    snprintf(text, (size_t)size, "0000:%02x:00.0", device);
    return 0;
}
EXPORT int cuDeviceGetAttribute(int *value, int id, int device)
{
    (void)device;
    *value = id == 16 ? 132 : id == 39 ? 2048 : id == 106 ? 32 : id == 82 ? 65536 : id == 81 ? 233472 : id == 10 ? 32 : 9;
    return id == 111 ? 1 : 0; /* one limit that this "driver" does not know */
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)8 << 30; return 0; }
