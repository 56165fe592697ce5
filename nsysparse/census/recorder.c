/*
 * nsysparse census recorder: counts what a CUDA program asks of its GPUs, from inside the program.
 *
 * The CUDA driver loads this library (CUDA_INJECTION64_PATH) and calls InitializeInjection. CUPTI's activity records
 * are summed as their buffers complete; about once an interval one line of running totals goes to one file a process.
 * docs/census.md holds the format. What the design rests on:
 *
 *   - The program's launch path runs one function of this file, buffer_requested, which takes no lock.
 *   - All memory is static or mapped once, and bounded. A full table counts into an "other" bucket.
 *   - One helper thread with every signal blocked does all writing. It alone can be held up by a disk.
 *   - No signal handler, no device synchronization, no wait without an end.
 *   - CUPTI is looked up at run time, so one build serves CUDA 11.8 to 13.x, and a machine without CUPTI stays out.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FORMAT_VERSION 1
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

enum {
    MAX_DEVICES = 32,
    MAX_COPY_KEYS = 64,      /* distinct (kind, source, destination, peer) a device */
    SIZE_BINS = 64,          /* one a power of two */
    MAX_SPANS = 1 << 18,     /* intervals a union keeps open to late records; 4 MiB, touched as used */
    INSERT_REACH = 32,       /* how far back a record is put in its place at once */
    KERNEL_SLOTS = 1 << 12,  /* kernel names, open addressing */
    KERNEL_LIMIT = 3 << 10,  /* names kept; the rest is counted as untracked */
    POINTER_SLOTS = 1 << 13, /* name pointer -> entry, direct mapped */
    NAME_BYTES = 512,
    TOP_KERNELS = 64,
    LAUNCH_SLOTS = 1 << 12,  /* recent graph launches by correlation id, direct mapped */
    BUFFERS = 512,
    BUFFER_BYTES = 256 << 10,
    SMALLEST_BUFFER = 16 << 10,
    LINE_BYTES = 1 << 20,
    KERNELS_EVERY = 60,      /* intervals between two kernels lines */
};
#define HEARTBEAT (60 * SECOND)
#define EXIT_PATIENCE (3 * SECOND)
#define SLOW_AFTER_BYTES (INT64_C(2) << 30)

/* ------------------------------------------------------------------------------------------------ CUPTI's interface
 * The leading fields of its records have been the same from CUDA 11.8 (API version 18) on: newer versions only append.
 * So the prefix is declared here and checked against the headers when the compiler finds them. */

enum {
    ACT_COPY = 1, ACT_MEMSET = 2, ACT_KERNEL_SERIAL = 3, ACT_KERNEL = 10, ACT_PEER_COPY = 22, ACT_GRAPH = 51,
    OLDEST_CUPTI = 18, COPY_COUNT_SINCE = 28,
    RES_MULTIPLE_SUBSCRIBERS = 39,
    DOMAIN_RESOURCE = 3, CBID_INIT_FINISHED = 5,
    ATTR_POOL_LIMIT = 2, ATTR_ZEROED_BUFFER = 5,
    FLUSH_FORCED = 1,
};

struct rec_kernel {
    uint32_t kind;
    uint8_t cache_config, shared_config;
    uint16_t registers;
    uint32_t partitioned[2];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total, correlation;
    int64_t grid_id;
    const char *name;
    void *reserved;
    uint64_t queued, submitted;
    uint8_t launch_type, carveout[2], padding;
    uint32_t shared_executed;
    uint64_t graph_node;
    uint32_t shared_limit, graph;
};

struct rec_copy {
    uint32_t kind;
    uint8_t copy_kind, source, destination, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, padding;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph, channel, channel_type, device_launched;
    uint64_t copy_count; /* from API version 28 on only */
};

struct rec_peer_copy {
    uint32_t kind;
    uint8_t copy_kind, source, destination, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, source_device, source_context, destination_device, destination_context;
    uint32_t correlation;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph;
};

struct rec_memset {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory_kind;
    uint32_t padding;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph;
};

struct rec_graph {
    uint32_t kind, correlation;
    uint64_t start, end;
    uint32_t device, graph;
};

#if defined(CENSUS_CHECK_HEADERS)
#include <cupti_version.h>
#include <cupti_activity.h>
#define SAME(mine, my_field, theirs, their_field) \
    _Static_assert(offsetof(struct mine, my_field) == offsetof(theirs, their_field), #theirs "." #their_field)
#define CHECK_KERNEL(theirs) \
    SAME(rec_kernel, registers, theirs, registersPerThread); SAME(rec_kernel, start, theirs, start); \
    SAME(rec_kernel, end, theirs, end); SAME(rec_kernel, device, theirs, deviceId); \
    SAME(rec_kernel, grid, theirs, gridX); SAME(rec_kernel, block, theirs, blockX); \
    SAME(rec_kernel, static_shared, theirs, staticSharedMemory); SAME(rec_kernel, name, theirs, name); \
    SAME(rec_kernel, dynamic_shared, theirs, dynamicSharedMemory); SAME(rec_kernel, graph, theirs, graphId); \
    SAME(rec_kernel, correlation, theirs, correlationId); SAME(rec_kernel, graph_node, theirs, graphNodeId)
#define CHECK_COPY(theirs) \
    SAME(rec_copy, copy_kind, theirs, copyKind); SAME(rec_copy, source, theirs, srcKind); \
    SAME(rec_copy, destination, theirs, dstKind); SAME(rec_copy, bytes, theirs, bytes); \
    SAME(rec_copy, start, theirs, start); SAME(rec_copy, end, theirs, end); \
    SAME(rec_copy, device, theirs, deviceId); SAME(rec_copy, correlation, theirs, correlationId); \
    SAME(rec_copy, graph, theirs, graphId)
#define CHECK_MEMSET(theirs) \
    SAME(rec_memset, bytes, theirs, bytes); SAME(rec_memset, start, theirs, start); \
    SAME(rec_memset, end, theirs, end); SAME(rec_memset, device, theirs, deviceId); \
    SAME(rec_memset, correlation, theirs, correlationId); SAME(rec_memset, graph, theirs, graphId)
#define PEER(mine, theirs) SAME(rec_peer_copy, mine, CUpti_ActivityMemcpyPtoP4, theirs)
_Static_assert(CUPTI_API_VERSION >= OLDEST_CUPTI, "CUPTI of CUDA 11.8 or newer is needed");
CHECK_KERNEL(CUpti_ActivityKernel8);
CHECK_COPY(CUpti_ActivityMemcpy5);
CHECK_MEMSET(CUpti_ActivityMemset4);
#if CUPTI_API_VERSION >= 20
CHECK_KERNEL(CUpti_ActivityKernel9);
#endif
#if CUPTI_API_VERSION >= 28
CHECK_COPY(CUpti_ActivityMemcpy6);
SAME(rec_copy, copy_count, CUpti_ActivityMemcpy6, copyCount);
#endif
#if CUPTI_API_VERSION >= 130000
CHECK_KERNEL(CUpti_ActivityKernel10);
#endif
#if CUPTI_API_VERSION >= 130500
CHECK_KERNEL(CUpti_ActivityKernel13);
CHECK_COPY(CUpti_ActivityMemcpy7);
CHECK_MEMSET(CUpti_ActivityMemset5);
#endif
PEER(copy_kind, copyKind); PEER(bytes, bytes); PEER(start, start); PEER(end, end); PEER(device, deviceId);
PEER(source_device, srcDeviceId); PEER(destination_device, dstDeviceId); PEER(correlation, correlationId);
PEER(graph, graphId);
SAME(rec_graph, correlation, CUpti_ActivityGraphTrace, correlationId);
SAME(rec_graph, start, CUpti_ActivityGraphTrace, start);
SAME(rec_graph, end, CUpti_ActivityGraphTrace, end);
SAME(rec_graph, device, CUpti_ActivityGraphTrace, deviceId);
_Static_assert(ACT_GRAPH == (int)CUPTI_ACTIVITY_KIND_GRAPH_TRACE, "kind");
_Static_assert(ACT_PEER_COPY == (int)CUPTI_ACTIVITY_KIND_MEMCPY2, "kind");
_Static_assert(ACT_KERNEL == (int)CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kind");
_Static_assert(ACT_COPY == (int)CUPTI_ACTIVITY_KIND_MEMCPY, "kind");
_Static_assert(CBID_INIT_FINISHED == (int)CUPTI_CBID_RESOURCE_CU_INIT_FINISHED, "callback id");
#endif

typedef void (*buffer_requested_fn)(uint8_t **, size_t *, size_t *);
typedef void (*buffer_completed_fn)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef void (*callback_fn)(void *, int, uint32_t, const void *);

static struct {
    int (*get_version)(uint32_t *);
    int (*get_timestamp)(uint64_t *);
    int (*subscribe)(void **, callback_fn, void *);
    int (*unsubscribe)(void *);
    int (*enable_callback)(uint32_t, void *, int, uint32_t);
    int (*register_callbacks)(buffer_requested_fn, buffer_completed_fn);
    int (*enable)(int);
    int (*disable)(int);
    int (*flush_all)(uint32_t);
    int (*next_record)(uint8_t *, size_t, void **);
    int (*dropped)(void *, uint32_t, size_t *);       /* may be missing */
    int (*set_attribute)(int, size_t *, void *);      /* may be missing */
} cupti;

static struct {
    int (*driver_version)(int *);
    int (*device_count)(int *);
    int (*device_get)(int *, int);
    int (*device_name)(char *, int, int);
    int (*device_uuid)(unsigned char *, int);
    int (*device_pci)(char *, int, int);
    int (*device_attribute)(int *, int, int);
    int (*device_memory)(size_t *, int);
} cuda;

/* --------------------------------------------------------------------------------------------------------- the state */

struct span { uint64_t start, end; };

/* The length of a union of intervals that arrive almost in order. Intervals at or after `horizon` are kept and merged
 * exactly; older ones are only a sum, and what arrives for that past is counted in late_ns instead of guessed. */
struct span_union {
    struct span *spans;
    uint32_t count;
    bool unsorted;
    uint64_t closed_ns, horizon, late_ns;
};

struct tally { uint64_t count, bytes, time_ns, untimed; };

struct copy_key { uint8_t kind, source, destination, outbound; int32_t peer; };

struct copy_class { struct copy_key key; struct tally sum; uint64_t sizes[SIZE_BINS]; };

struct device {
    bool seen;
    struct tally kernels, copies, memsets, graph_spans, other_copies;
    uint64_t batched, graph_launches;
    uint32_t classes;
    struct copy_class by[MAX_COPY_KEYS];
    struct span_union kernel_busy, copy_busy, busy;
};

struct kernel_entry {
    uint64_t hash, count, time_ns, longest_ns;
    int32_t grid[3], block[3], static_shared, dynamic_shared;
    uint32_t device, registers;
    bool used, varies, truncated;
    char name[NAME_BYTES];
};

struct pointer_slot { const char *name; uint32_t device, entry; };

enum { K_KERNELS, K_COPIES, K_PEER, K_MEMSETS, K_GRAPHS, KINDS };
static const char *const kind_names[KINDS] = {"kernels", "copies", "peer_copies", "memsets", "graphs"};
static const int kind_ids[KINDS] = {ACT_KERNEL, ACT_COPY, ACT_PEER_COPY, ACT_MEMSET, ACT_GRAPH};

static struct {
    char folder[PATH_MAX - 128], path[PATH_MAX], program[64];
    uint64_t interval_ns, on_ns, every_ns, start_unix_ns, start_mono_ns;
    bool asked[KINDS];
    uint32_t cupti_version;
    pid_t pid;
} conf;

/* Written under `totals_lock`, which only CUPTI's worker and the helper thread take. */
static pthread_mutex_t totals_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[MAX_DEVICES];
static struct kernel_entry kernels[KERNEL_SLOTS];
static struct pointer_slot pointers[POINTER_SLOTS];
static uint32_t launches[LAUNCH_SLOTS];
static struct span *sort_space;
static uint32_t kernel_names;
static struct { uint64_t count, time_ns; } untracked_kernels;
static uint64_t records, invalid_records, unplaced_records, dropped_records, changes, callback_ns, buffer_bytes_seen;
static bool dropped_unknown;

/* Shared with CUPTI's callbacks, without a lock. */
static uint8_t *pool;
static _Atomic uint64_t pool_used[BUFFERS / 64];
static _Atomic size_t buffer_size = SMALLEST_BUFFER * 4;
static _Atomic uint64_t refused_buffers;
static _Atomic int callbacks_running;
static _Atomic bool init_finished, stopping, in_child;
static int wake_fd = -1;
static sem_t helper_done;

/* The helper thread's own (and InitializeInjection's, before the thread exists). */
static void *subscriber;
static bool attached, kind_missing[KINDS], gave_up, header_written;
static _Thread_local bool on_helper;
static const char *stay_out;
static int out_fd = -1, watch_fd = -1;
static int64_t bytes_written;
static uint64_t covered_ns, on_since_ns, last_written_ns, last_changes, same_until_ns, lines, lost_lines;

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* --------------------------------------------------------------------------------------------- the union of intervals */

/* Bottom-up natural merge sort: buffers arrive as sorted runs, and libc's qsort may allocate. */
static void sort_spans(struct span *spans, uint32_t n)
{
    struct span *from = spans, *to = sort_space;
    for (;;) {
        uint32_t i = 0, out = 0, merges = 0;
        while (i < n) {
            uint32_t middle = i + 1, end;
            while (middle < n && from[middle - 1].start <= from[middle].start) middle++;
            end = middle < n ? middle + 1 : middle;
            while (end < n && from[end - 1].start <= from[end].start) end++;
            uint32_t a = i, b = middle;
            while (a < middle && b < end) to[out++] = from[b].start < from[a].start ? from[b++] : from[a++];
            while (a < middle) to[out++] = from[a++];
            while (b < end) to[out++] = from[b++];
            merges += middle < end;
            i = end;
        }
        struct span *swap = from;
        from = to;
        to = swap;
        if (merges == 0 || n == 0) break;
    }
    if (from != spans) memcpy(spans, from, n * sizeof *spans);
}

static void union_merge(struct span_union *u)
{
    if (u->count == 0) return;
    if (u->unsorted) sort_spans(u->spans, u->count);
    u->unsorted = false;
    uint32_t last = 0;
    for (uint32_t i = 1; i < u->count; i++) {
        if (u->spans[i].start <= u->spans[last].end) {
            if (u->spans[i].end > u->spans[last].end) u->spans[last].end = u->spans[i].end;
        } else {
            u->spans[++last] = u->spans[i];
        }
    }
    u->count = last + 1;
}

static void union_make_room(struct span_union *u)
{
    union_merge(u);
    if (u->count <= MAX_SPANS / 2) return;
    uint32_t retired = u->count - MAX_SPANS / 2;
    for (uint32_t i = 0; i < retired; i++) u->closed_ns += u->spans[i].end - u->spans[i].start;
    u->horizon = u->spans[retired - 1].end;
    u->count -= retired;
    memmove(u->spans, u->spans + retired, u->count * sizeof *u->spans);
}

static void union_add(struct span_union *u, uint64_t start, uint64_t end)
{
    if (start < u->horizon) {
        u->late_ns += (end < u->horizon ? end : u->horizon) - start;
        start = u->horizon;
    }
    if (end <= start) return;
    if (u->count > 0) {
        struct span *last = &u->spans[u->count - 1];
        if (start >= last->start && start <= last->end) {
            if (end > last->end) last->end = end;
            return;
        }
    }
    if (u->count == MAX_SPANS) union_make_room(u);
    uint32_t at = u->count;
    while (at > 0 && u->count - at < INSERT_REACH && u->spans[at - 1].start > start) at--;
    if (at > 0 && u->spans[at - 1].start > start) {
        at = u->count; /* too far back to move: leave it to the sort */
        u->unsorted = true;
    }
    memmove(u->spans + at + 1, u->spans + at, (u->count - at) * sizeof *u->spans);
    u->spans[at] = (struct span){start, end};
    u->count++;
}

static uint64_t union_length(struct span_union *u)
{
    union_merge(u);
    uint64_t total = u->closed_ns;
    for (uint32_t i = 0; i < u->count; i++) total += u->spans[i].end - u->spans[i].start;
    return total;
}

/* ------------------------------------------------------------------------------------------------ one record's share */

static struct device *device_of(uint32_t ordinal)
{
    if (ordinal >= MAX_DEVICES) return NULL;
    struct device *d = &devices[ordinal];
    if (!d->seen) {
        size_t bytes = MAX_SPANS * sizeof(struct span);
        if (sort_space == NULL) {
            void *space = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (space == MAP_FAILED) return NULL;
            sort_space = space;
        }
        void *space = mmap(NULL, 3 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space == MAP_FAILED) return NULL;
        d->kernel_busy.spans = space;
        d->copy_busy.spans = d->kernel_busy.spans + MAX_SPANS;
        d->busy.spans = d->copy_busy.spans + MAX_SPANS;
        d->seen = true;
    }
    return d;
}

/* Adds one operation; returns its length, or 0 when CUPTI could not time it. */
static uint64_t tally_add(struct tally *t, uint64_t bytes, uint64_t start, uint64_t end)
{
    bool timed = start != 0 && end >= start;
    uint64_t length = timed ? end - start : 0;
    t->count++;
    t->bytes += bytes;
    t->time_ns += length;
    t->untimed += !timed;
    return length;
}

static void see_launch(struct device *d, uint32_t graph, uint32_t correlation)
{
    /* All nodes of one launch share its correlation id; ids grow, so a slot that differs is a launch not seen before. */
    if (graph == 0 || launches[correlation % LAUNCH_SLOTS] == correlation) return;
    launches[correlation % LAUNCH_SLOTS] = correlation;
    d->graph_launches++;
}

static struct kernel_entry *find_kernel(const char *name, uint32_t device)
{
    uint32_t slot = (uint32_t)((((uintptr_t)name >> 3) * UINT64_C(0x9E3779B97F4A7C15)) >> 40) + device;
    struct pointer_slot *known = &pointers[slot % POINTER_SLOTS];
    /* A pointer can be reused for another kernel once its module is unloaded: the text decides. */
    if (known->name == name && known->device == device && kernels[known->entry].used
        && strncmp(kernels[known->entry].name, name, NAME_BYTES - 1) == 0)
        return &kernels[known->entry];

    uint64_t hash = UINT64_C(14695981039346656037);
    size_t length = 0;
    for (; name[length] != 0 && length < 65536; length++) hash = (hash ^ (uint8_t)name[length]) * UINT64_C(1099511628211);
    uint32_t at = (uint32_t)((hash ^ (hash >> 32)) + device) % KERNEL_SLOTS;
    while (kernels[at].used && (kernels[at].hash != hash || kernels[at].device != device)) at = (at + 1) % KERNEL_SLOTS;
    if (!kernels[at].used) {
        if (kernel_names >= KERNEL_LIMIT) return NULL;
        kernel_names++;
        kernels[at].used = true;
        kernels[at].hash = hash;
        kernels[at].device = device;
        kernels[at].truncated = length >= NAME_BYTES;
        memcpy(kernels[at].name, name, length < NAME_BYTES ? length : NAME_BYTES - 1);
    }
    *known = (struct pointer_slot){name, device, at};
    return &kernels[at];
}

static void add_kernel(const struct rec_kernel *r)
{
    struct device *d = device_of(r->device);
    if (d == NULL) {
        unplaced_records++;
        return;
    }
    uint64_t length = tally_add(&d->kernels, 0, r->start, r->end);
    if (length > 0) {
        union_add(&d->kernel_busy, r->start, r->end);
        union_add(&d->busy, r->start, r->end);
    }
    see_launch(d, r->graph, r->correlation);
    struct kernel_entry *k = find_kernel(r->name != NULL ? r->name : "(unnamed)", r->device);
    if (k == NULL) {
        untracked_kernels.count++;
        untracked_kernels.time_ns += length;
        return;
    }
    bool same = memcmp(k->grid, r->grid, sizeof k->grid) == 0 && memcmp(k->block, r->block, sizeof k->block) == 0
        && k->dynamic_shared == r->dynamic_shared;
    if (k->count > 0 && !same) k->varies = true;
    if (k->count == 0 || length > k->longest_ns) {
        k->longest_ns = length;
        memcpy(k->grid, r->grid, sizeof k->grid);
        memcpy(k->block, r->block, sizeof k->block);
        k->registers = r->registers;
        k->static_shared = r->static_shared;
        k->dynamic_shared = r->dynamic_shared;
    }
    k->count++;
    k->time_ns += length;
}

static void add_copy(uint32_t device, struct copy_key key, uint64_t bytes, uint64_t start, uint64_t end, uint64_t copies)
{
    struct device *d = device_of(device);
    if (d == NULL) {
        unplaced_records++;
        return;
    }
    if (tally_add(&d->copies, bytes, start, end) > 0) {
        union_add(&d->copy_busy, start, end);
        union_add(&d->busy, start, end);
    }
    if (copies > 1) d->batched += copies - 1;
    uint32_t i = 0;
    while (i < d->classes && memcmp(&d->by[i].key, &key, sizeof key) != 0) i++;
    if (i == MAX_COPY_KEYS) {
        tally_add(&d->other_copies, bytes, start, end);
        return;
    }
    if (i == d->classes) d->by[d->classes++].key = key;
    tally_add(&d->by[i].sum, bytes, start, end);
    d->by[i].sizes[bytes > 0 ? 63 - __builtin_clzll(bytes) : 0]++;
}

static void add_record(const void *record)
{
    uint32_t kind = *(const uint32_t *)record;
    records++;
    if (kind == ACT_KERNEL || kind == ACT_KERNEL_SERIAL) {
        add_kernel(record);
    } else if (kind == ACT_COPY) {
        const struct rec_copy *r = record;
        struct copy_key key = {r->copy_kind, r->source, r->destination, 0, -1};
        add_copy(r->device, key, r->bytes, r->start, r->end, conf.cupti_version >= COPY_COUNT_SINCE ? r->copy_count : 1);
        if (r->device < MAX_DEVICES) see_launch(&devices[r->device], r->graph, r->correlation);
    } else if (kind == ACT_PEER_COPY) {
        const struct rec_peer_copy *r = record;
        bool outbound = r->device == r->source_device;
        uint32_t peer = outbound ? r->destination_device : r->source_device;
        struct copy_key key = {r->copy_kind, r->source, r->destination, outbound, (int32_t)peer};
        add_copy(r->device, key, r->bytes, r->start, r->end, 1);
        if (r->device < MAX_DEVICES) see_launch(&devices[r->device], r->graph, r->correlation);
    } else if (kind == ACT_MEMSET) {
        const struct rec_memset *r = record;
        struct device *d = device_of(r->device);
        if (d == NULL) {
            unplaced_records++;
            return;
        }
        if (tally_add(&d->memsets, r->bytes, r->start, r->end) > 0) union_add(&d->busy, r->start, r->end);
        see_launch(d, r->graph, r->correlation);
    } else if (kind == ACT_GRAPH) {
        const struct rec_graph *r = record;
        struct device *d = device_of(r->device);
        if (d == NULL) {
            unplaced_records++;
            return;
        }
        if (tally_add(&d->graph_spans, 0, r->start, r->end) > 0) union_add(&d->busy, r->start, r->end);
    }
}

/* ------------------------------------------------------------------------------------------------- CUPTI's callbacks */

/* Called on the program's own threads, inside a launch: a free bit is taken with one compare-and-swap. */
static void buffer_requested(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = NULL;
    *size = 0;
    *max_records = 0;
    for (int word = 0; word < BUFFERS / 64; word++) {
        uint64_t used = atomic_load_explicit(&pool_used[word], memory_order_relaxed);
        while (~used != 0) {
            int bit = __builtin_ctzll(~used);
            if (!atomic_compare_exchange_weak(&pool_used[word], &used, used | (UINT64_C(1) << bit))) continue;
            *buffer = pool + (size_t)(word * 64 + bit) * BUFFER_BYTES;
            *size = atomic_load_explicit(&buffer_size, memory_order_relaxed);
            return;
        }
    }
    atomic_fetch_add(&refused_buffers, 1); /* CUPTI drops the records, and counts them */
}

/* Asks CUPTI what it dropped since the last time. Never under totals_lock: CUPTI may hold a lock of its own. */
static void count_dropped(void *context, uint32_t stream)
{
    size_t n = 0;
    bool known = cupti.dropped != NULL && cupti.dropped(context, stream, &n) == 0;
    pthread_mutex_lock(&totals_lock);
    if (!known) dropped_unknown = true;
    else dropped_records += n;
    changes += known && n > 0;
    pthread_mutex_unlock(&totals_lock);
}

/* Called on CUPTI's worker thread, or on the helper thread inside a flush. */
static void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    /* Only buffers of the pool: a tool that took over CUPTI's callbacks could be given some of its own. */
    if (buffer < pool || buffer >= pool + (size_t)BUFFERS * BUFFER_BYTES) return;
    atomic_fetch_add(&callbacks_running, 1);
    uint64_t began = clock_ns(CLOCK_MONOTONIC);
    pthread_mutex_lock(&totals_lock);
    void *record = NULL;
    while (valid > 0) {
        int status = cupti.next_record(buffer, valid, &record);
        if (status != 0) {
            invalid_records += status != 12; /* 12: no more records */
            break;
        }
        add_record(record);
    }
    changes++;
    buffer_bytes_seen += valid;
    if (!on_helper) callback_ns += clock_ns(CLOCK_MONOTONIC) - began; /* the helper's time is taken as a whole */
    pthread_mutex_unlock(&totals_lock);
    count_dropped(context, stream);

    size_t index = (size_t)(buffer - pool) / BUFFER_BYTES;
    memset(buffer, 0, size < BUFFER_BYTES ? size : BUFFER_BYTES); /* CUPTI was told that it gets zeroed buffers */
    atomic_fetch_and(&pool_used[index / 64], ~(UINT64_C(1) << (index % 64)));
    atomic_fetch_sub(&callbacks_running, 1);
}

static void wake_helper(void)
{
    uint64_t one = 1;
    ssize_t ignored = write(wake_fd, &one, sizeof one);
    (void)ignored;
}

static void callback(void *unused, int domain, uint32_t id, const void *data)
{
    (void)unused, (void)data;
    if (domain == DOMAIN_RESOURCE && id == CBID_INIT_FINISHED) {
        atomic_store(&init_finished, true);
        wake_helper();
    }
}

/* ----------------------------------------------------------------------------------------------------- JSON, by hand */

static char line[LINE_BYTES];
static size_t line_length;

static void put(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *format, ...)
{
    if (line_length >= LINE_BYTES) return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + line_length, LINE_BYTES - line_length, format, args);
    va_end(args);
    line_length = n < 0 || (size_t)n >= LINE_BYTES - line_length ? LINE_BYTES : line_length + (size_t)n;
}

/* Length of the valid UTF-8 sequence at s, or 0. Overlong forms, surrogates and values past U+10FFFF are not valid. */
static int utf8_length(const unsigned char *s)
{
    int n = s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if (s[0] == 0xE0 && n > 0 && s[1] < 0xA0) return 0;
    if (s[0] == 0xED && n > 0 && s[1] > 0x9F) return 0;
    if (s[0] == 0xF0 && n > 0 && s[1] < 0x90) return 0;
    if (s[0] == 0xF4 && n > 0 && s[1] > 0x8F) return 0;
    return n;
}

static void put_string(const char *text)
{
    put("\"");
    for (const unsigned char *s = (const unsigned char *)text; *s != 0;) {
        int n = *s < 0x80 ? 1 : utf8_length(s);
        if (n == 0) put("\\ufffd");
        else if (*s == '"' || *s == '\\' || *s < 0x20 || *s == 0x7F) put("\\u%04x", *s);
        else if (line_length + 4 >= LINE_BYTES) line_length = LINE_BYTES;
        else for (int i = 0; i < n; i++) line[line_length++] = (char)s[i];
        s += n > 0 ? n : 1;
    }
    put("\"");
}

static void put_number_or_null(const char *name, bool known, uint64_t value)
{
    if (known)
        put(",\"%s\":%llu", name, (unsigned long long)value);
    else
        put(",\"%s\":null", name);
}

static void begin_line(const char *record)
{
    line_length = 0;
    put("{\"record\":\"%s\"", record);
}

/* -------------------------------------------------------------------------------------------------- the output file */

static void say(const char *what, const char *why)
{
    char text[PATH_MAX + 256];
    int n = snprintf(text, sizeof text, "nsysparse census: %s%s%s\n", what, why[0] ? ": " : "", why);
    if (n <= 0) return;
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
    (void)ignored;
}

static void disable_kinds(void)
{
    for (int k = 0; k < KINDS; k++)
        if (conf.asked[k] && !kind_missing[k]) cupti.disable(kind_ids[k]);
}

/* The one way out when writing fails: say so once, leave CUPTI, let the program run on. */
static void give_up(const char *what, const char *why)
{
    if (gave_up) return;
    gave_up = true;
    say(what, why);
    if (attached) {
        disable_kinds();
        cupti.unsubscribe(subscriber);
        attached = false;
    }
    if (out_fd >= 0) close(out_fd);
    out_fd = -1;
}

static void end_line(void)
{
    put("}\n");
    if (gave_up || out_fd < 0) return;
    if (line_length >= LINE_BYTES) {
        lost_lines++; /* a line that does not fit is not cut: it is left out, and counted */
        return;
    }
    ssize_t n;
    do n = write(out_fd, line, line_length);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)line_length) {
        give_up("cannot write, recording stopped", n < 0 ? strerror(errno) : strerror(ENOSPC));
        return;
    }
    bytes_written += n;
    lines++;
}

static void write_note(const char *text)
{
    begin_line("note");
    put(",\"unix_ns\":%llu,\"text\":", (unsigned long long)clock_ns(CLOCK_REALTIME));
    put_string(text);
    end_line();
}

static void put_devices(void)
{
    static const struct { const char *name; int id; } limits[] = {
        {"multiprocessors", 16}, {"compute_major", 75}, {"compute_minor", 76}, {"warp_size", 10},
        {"max_threads_per_multiprocessor", 39}, {"max_blocks_per_multiprocessor", 106},
        {"max_registers_per_multiprocessor", 82}, {"max_shared_per_multiprocessor_bytes", 81},
        {"reserved_shared_per_block_bytes", 111}, {"max_shared_per_block_optin_bytes", 97},
    };
    int count = 0;
    if (cuda.device_count == NULL || cuda.device_get == NULL || cuda.device_count(&count) != 0) {
        put(",\"devices\":null");
        return;
    }
    put(",\"devices\":[");
    for (int ordinal = 0; ordinal < count && ordinal < MAX_DEVICES; ordinal++) {
        char name[256] = "", pci[32] = "";
        unsigned char uuid[16];
        int device, value;
        size_t memory;
        if (cuda.device_get(&device, ordinal) != 0) continue;
        put("%s{\"ordinal\":%d,\"name\":", ordinal ? "," : "", ordinal);
        if (cuda.device_name != NULL && cuda.device_name(name, sizeof name - 1, device) == 0) put_string(name);
        else put("null");
        put(",\"uuid\":");
        if (cuda.device_uuid != NULL && cuda.device_uuid(uuid, device) == 0) {
            put("\"GPU-");
            for (int i = 0; i < 16; i++) put("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
            put("\"");
        } else {
            put("null");
        }
        put(",\"pci\":");
        if (cuda.device_pci != NULL && cuda.device_pci(pci, sizeof pci - 1, device) == 0) put_string(pci);
        else put("null");
        bool known = cuda.device_memory != NULL && cuda.device_memory(&memory, device) == 0;
        put_number_or_null("memory_bytes", known, known ? memory : 0);
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
            known = cuda.device_attribute != NULL && cuda.device_attribute(&value, limits[i].id, device) == 0;
            put_number_or_null(limits[i].name, known, known ? (uint64_t)value : 0);
        }
        put("}");
    }
    put("]");
}

static void put_header_settings(void)
{
    int driver = 0;
    bool driver_known = cuda.driver_version != NULL && cuda.driver_version(&driver) == 0;
    put_number_or_null("cuda_driver", driver_known, (uint64_t)driver);
    uint32_t version = conf.cupti_version;
    bool version_known = version != 0 || (cupti.get_version != NULL && cupti.get_version(&version) == 0);
    put_number_or_null("cupti", version_known, version);
    put(",\"interval_ns\":%llu,\"kinds\":{", (unsigned long long)conf.interval_ns);
    for (int k = 0; k < KINDS; k++)
        put("%s\"%s\":%s", k ? "," : "", kind_names[k],
            !conf.asked[k] ? "false" : !kind_missing[k] && stay_out == NULL ? "true" : "null");
    put("},\"graph_mode\":\"%s\",\"duty\":", conf.asked[K_GRAPHS] ? "graph" : "node");
    if (conf.every_ns > 0)
        put("{\"on_ns\":%llu,\"every_ns\":%llu}", (unsigned long long)conf.on_ns, (unsigned long long)conf.every_ns);
    else
        put("null");
}

static void write_header(void)
{
    header_written = true;
    snprintf(conf.path, sizeof conf.path, "%s/census-%d-%llu.jsonl", conf.folder, (int)conf.pid,
             (unsigned long long)conf.start_unix_ns);
    out_fd = open(conf.path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (out_fd < 0) {
        give_up("cannot create a file in the census folder, nothing is recorded", strerror(errno));
        return;
    }
    begin_line("header");
    put(",\"format\":\"nsysparse-census\",\"version\":%d,\"pid\":%d,\"program\":", FORMAT_VERSION, (int)conf.pid);
    put_string(conf.program);
    put(",\"start_unix_ns\":%llu", (unsigned long long)conf.start_unix_ns);
    put_header_settings();
    put_devices();
    end_line();
    if (stay_out != NULL) write_note(stay_out);
    int driver = 0;
    if (cuda.driver_version != NULL && cuda.driver_version(&driver) == 0 && conf.cupti_version != 0) {
        int major = conf.cupti_version >= 1000 ? (int)conf.cupti_version / 10000 : conf.cupti_version >= 19 ? 12 : 11;
        if (driver / 1000 > major) write_note("CUPTI is older than the driver: records can be missing without a sign");
    }
}

/* ------------------------------------------------------------------------------------------------------ totals lines */

static bool recorded(int kind) { return conf.asked[kind] && !kind_missing[kind]; }

static void put_tally(const struct tally *t, bool bytes)
{
    put("\"count\":%llu", (unsigned long long)t->count);
    if (bytes) put(",\"bytes\":%llu", (unsigned long long)t->bytes);
    put(",\"time_ns\":%llu,\"untimed\":%llu", (unsigned long long)t->time_ns, (unsigned long long)t->untimed);
}

static void put_busy(struct span_union *u)
{
    put(",\"busy_ns\":%llu,\"busy_late_ns\":%llu", (unsigned long long)union_length(u), (unsigned long long)u->late_ns);
}

static void put_memory_kind(uint8_t kind)
{
    static const char *const names[] = {"unknown", "pageable", "pinned",        "device",
                                        "array",   "managed",  "device_static", "managed_static"};
    if (kind < sizeof names / sizeof *names) put("\"%s\"", names[kind]);
    else put("\"memory_kind_%u\"", kind);
}

static void put_copy_class(const struct copy_class *c)
{
    static const char *const names[] = {"unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"};
    if (c->key.kind < sizeof names / sizeof *names) put("{\"kind\":\"%s\"", names[c->key.kind]);
    else put("{\"kind\":\"copy_kind_%u\"", c->key.kind);
    put(",\"src\":");
    put_memory_kind(c->key.source);
    put(",\"dst\":");
    put_memory_kind(c->key.destination);
    if (c->key.peer < 0) put(",\"peer\":null,\"outbound\":null,");
    else put(",\"peer\":%d,\"outbound\":%s,", c->key.peer, c->key.outbound ? "true" : "false");
    put_tally(&c->sum, true);
    put(",\"sizes\":{");
    const char *comma = "";
    for (int bin = 0; bin < SIZE_BINS; bin++) {
        if (c->sizes[bin] == 0) continue;
        put("%s\"%d\":%llu", comma, bin, (unsigned long long)c->sizes[bin]);
        comma = ",";
    }
    put("}}");
}

static void put_device_copies(struct device *d)
{
    put(",\"copies\":{");
    put_tally(&d->copies, true);
    put_busy(&d->copy_busy);
    put(",\"batched\":%llu,\"by\":[", (unsigned long long)d->batched);
    for (uint32_t i = 0; i < d->classes; i++) {
        if (i > 0) put(",");
        put_copy_class(&d->by[i]);
    }
    put("],\"other\":{");
    put_tally(&d->other_copies, true);
    put("}}");
}

static void put_device_totals(int ordinal, struct device *d)
{
    put("{\"device\":%d,\"kernels\":", ordinal);
    if (recorded(K_KERNELS)) {
        put("{");
        put_tally(&d->kernels, false);
        put_busy(&d->kernel_busy);
        put("}");
    } else {
        put("null");
    }
    if (recorded(K_COPIES)) put_device_copies(d);
    else put(",\"copies\":null");
    put(",\"memsets\":");
    if (recorded(K_MEMSETS)) {
        put("{");
        put_tally(&d->memsets, true);
        put("}");
    } else {
        put("null");
    }
    put(",\"graphs\":");
    if (recorded(K_GRAPHS))
        put("{\"launches\":%llu,\"time_ns\":%llu,\"untimed\":%llu}", (unsigned long long)d->graph_spans.count,
            (unsigned long long)d->graph_spans.time_ns, (unsigned long long)d->graph_spans.untimed);
    else if (recorded(K_KERNELS) && !conf.asked[K_GRAPHS])
        put("{\"launches\":%llu,\"time_ns\":null,\"untimed\":null}", (unsigned long long)d->graph_launches);
    else
        put("null");
    if (recorded(K_KERNELS) && recorded(K_COPIES) && recorded(K_MEMSETS)) put_busy(&d->busy);
    else put(",\"busy_ns\":null,\"busy_late_ns\":null");
    put("}");
}

static uint64_t covered_until(uint64_t now)
{
    return covered_ns + (attached ? now - on_since_ns : 0);
}

static void write_totals(const char *why, bool final)
{
    uint64_t unix_ns = clock_ns(CLOCK_REALTIME), mono = clock_ns(CLOCK_MONOTONIC), cupti_ns = 0;
    bool clock_known = attached && cupti.get_timestamp(&cupti_ns) == 0;
    if (attached) count_dropped(NULL, 0);
    begin_line("totals");
    put(",\"unix_ns\":%llu", (unsigned long long)unix_ns);
    put_number_or_null("cupti_ns", clock_known, cupti_ns);
    put(",\"final\":%s,\"why\":\"%s\",\"on\":%s,\"covered_ns\":%llu", final ? "true" : "false", why,
        attached ? "true" : "false", (unsigned long long)covered_until(mono));
    put_number_or_null("same_until_unix_ns", same_until_ns != 0, same_until_ns);
    pthread_mutex_lock(&totals_lock);
    put_number_or_null("dropped", !dropped_unknown && cupti.dropped != NULL && stay_out == NULL, dropped_records);
    put(",\"records\":%llu,\"invalid_records\":%llu,\"unplaced_records\":%llu,\"refused_buffers\":%llu",
        (unsigned long long)records, (unsigned long long)invalid_records, (unsigned long long)unplaced_records,
        (unsigned long long)atomic_load(&refused_buffers));
    put(",\"lost_lines\":%llu,\"cost_ns\":%llu,\"devices\":[", (unsigned long long)lost_lines,
        (unsigned long long)(callback_ns + clock_ns(CLOCK_THREAD_CPUTIME_ID)));
    const char *comma = "";
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (!devices[i].seen) continue;
        put("%s", comma);
        put_device_totals(i, &devices[i]);
        comma = ",";
    }
    put("]");
    last_changes = changes;
    pthread_mutex_unlock(&totals_lock);
    same_until_ns = 0;
    last_written_ns = mono;
    end_line();
}

static void put_kernel(const struct kernel_entry *k)
{
    put("{\"device\":%u,\"name\":", k->device);
    put_string(k->name);
    put(",\"name_hash\":\"%016llx\",\"name_cut\":%s,\"count\":%llu,\"time_ns\":%llu,\"longest_ns\":%llu",
        (unsigned long long)k->hash, k->truncated ? "true" : "false", (unsigned long long)k->count,
        (unsigned long long)k->time_ns, (unsigned long long)k->longest_ns);
    put(",\"grid\":[%d,%d,%d],\"block\":[%d,%d,%d],\"registers\":%u,\"static_shared_bytes\":%d,"
        "\"dynamic_shared_bytes\":%d,\"shape_varies\":%s}",
        k->grid[0], k->grid[1], k->grid[2], k->block[0], k->block[1], k->block[2], k->registers, k->static_shared,
        k->dynamic_shared, k->varies ? "true" : "false");
}

/* Keeps the TOP_KERNELS slots that took the most time, longest first; returns how many. */
static uint32_t top_kernels(uint32_t top[TOP_KERNELS])
{
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < KERNEL_SLOTS; slot++) {
        if (!kernels[slot].used) continue;
        if (n == TOP_KERNELS && kernels[slot].time_ns <= kernels[top[n - 1]].time_ns) continue;
        uint32_t at = n < TOP_KERNELS ? n++ : n - 1;
        for (; at > 0 && kernels[top[at - 1]].time_ns < kernels[slot].time_ns; at--) top[at] = top[at - 1];
        top[at] = slot;
    }
    return n;
}

static void write_kernels(bool final)
{
    uint32_t top[TOP_KERNELS];
    if (!recorded(K_KERNELS)) return;
    begin_line("kernels");
    put(",\"unix_ns\":%llu,\"final\":%s", (unsigned long long)clock_ns(CLOCK_REALTIME), final ? "true" : "false");
    pthread_mutex_lock(&totals_lock);
    uint32_t n = top_kernels(top);
    uint64_t count = 0, time_ns = 0;
    for (uint32_t i = 0; i < KERNEL_SLOTS; i++) {
        if (!kernels[i].used) continue;
        count += kernels[i].count;
        time_ns += kernels[i].time_ns;
    }
    put(",\"names\":%u,\"top\":[", kernel_names);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) put(",");
        put_kernel(&kernels[top[i]]);
        count -= kernels[top[i]].count;
        time_ns -= kernels[top[i]].time_ns;
    }
    put("],\"rest\":{\"names\":%u,\"count\":%llu,\"time_ns\":%llu}", kernel_names - n, (unsigned long long)count,
        (unsigned long long)time_ns);
    put(",\"untracked\":{\"count\":%llu,\"time_ns\":%llu}", (unsigned long long)untracked_kernels.count,
        (unsigned long long)untracked_kernels.time_ns);
    pthread_mutex_unlock(&totals_lock);
    end_line();
}

/* -------------------------------------------------------------------------------------------- attaching, detaching */

static const char *attach(void)
{
    int status = cupti.subscribe(&subscriber, callback, NULL);
    if (status == RES_MULTIPLE_SUBSCRIBERS) return "CUPTI is in use by another tool, nothing is recorded";
    if (status != 0) return "CUPTI refused the subscription, nothing is recorded";
    size_t size = 1, limit = 32, limit_size = sizeof limit;
    uint8_t zeroed = 1;
    if (cupti.set_attribute != NULL) {
        cupti.set_attribute(ATTR_ZEROED_BUFFER, &size, &zeroed);
        /* The default of 250 pools of 3 MB could take 800 MB of the program's GPU memory. */
        cupti.set_attribute(ATTR_POOL_LIMIT, &limit_size, &limit);
    }
    if (cupti.register_callbacks(buffer_requested, buffer_completed) != 0) {
        cupti.unsubscribe(subscriber);
        return "CUPTI refused the buffer callbacks, nothing is recorded";
    }
    cupti.enable_callback(1, subscriber, DOMAIN_RESOURCE, CBID_INIT_FINISHED);
    bool any = false;
    for (int k = 0; k < KINDS; k++) {
        if (!conf.asked[k]) continue;
        kind_missing[k] = cupti.enable(kind_ids[k]) != 0;
        any |= !kind_missing[k];
    }
    attached = true;
    on_since_ns = clock_ns(CLOCK_MONOTONIC);
    return any ? NULL : "CUPTI knows none of the record kinds asked for, nothing is recorded";
}

/* CUPTI stays in the process: taking it out with cuptiFinalize breaks running programs (figures in docs/census.md). */
static void detach(void)
{
    disable_kinds();
    cupti.flush_all(0);
    covered_ns += clock_ns(CLOCK_MONOTONIC) - on_since_ns;
    attached = false;
    cupti.unsubscribe(subscriber);
}

static void attach_again(void)
{
    const char *problem = attach();
    if (problem != NULL) write_note(problem);
}

static bool read_switch(void)
{
    char path[PATH_MAX], text[8] = "";
    snprintf(path, sizeof path, "%s/control", conf.folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return true;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n < 3 || strncmp(text, "off", 3) != 0;
}

/* Whether recording should be on now, and when that next changes by itself. */
static bool wanted(bool switched_on, uint64_t now, uint64_t *until)
{
    *until = UINT64_MAX;
    if (!switched_on || conf.every_ns == 0) return switched_on;
    uint64_t cycle = (now - conf.start_mono_ns) / conf.every_ns, phase = (now - conf.start_mono_ns) % conf.every_ns;
    bool on = phase < conf.on_ns;
    *until = conf.start_mono_ns + cycle * conf.every_ns + (on ? conf.on_ns : conf.every_ns);
    return on;
}

/* ---------------------------------------------------------------------------------------------------- helper thread */

enum { WOKE_BY_TIME = 0, WOKE_BY_FOLDER = 1, WOKE_BY_PROGRAM = 2 };

static int wait_until(uint64_t deadline)
{
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    int ms = deadline <= now ? 0 : (int)((deadline - now + MS - 1) / MS);
    struct pollfd fds[2] = {{wake_fd, POLLIN, 0}, {watch_fd, POLLIN, 0}};
    int woke = 0;
    if (poll(fds, watch_fd >= 0 ? 2 : 1, ms) <= 0) return WOKE_BY_TIME;
    char sink[4096];
    ssize_t ignored;
    if (fds[0].revents & POLLIN) {
        ignored = read(wake_fd, sink, 8);
        woke |= WOKE_BY_PROGRAM;
    }
    if (watch_fd >= 0 && fds[1].revents != 0) {
        ignored = read(watch_fd, sink, sizeof sink);
        if (ignored <= 0) {
            close(watch_fd); /* the folder is gone: the next tick finds out */
            watch_fd = -1;
        }
        woke |= WOKE_BY_FOLDER;
    }
    (void)ignored;
    return woke;
}

static off_t marks_size(void)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/marks.jsonl", conf.folder);
    return stat(path, &st) == 0 ? st.st_size : 0;
}

/* Smaller buffers when little happens: a flush hands over only buffers whose every record is complete. */
static void adapt_buffers(void)
{
    static uint64_t seen_before;
    pthread_mutex_lock(&totals_lock);
    uint64_t seen = buffer_bytes_seen;
    pthread_mutex_unlock(&totals_lock);
    uint64_t want = (seen - seen_before) / 8;
    seen_before = seen;
    want = want < SMALLEST_BUFFER ? SMALLEST_BUFFER : want > BUFFER_BYTES ? BUFFER_BYTES : want & ~UINT64_C(4095);
    atomic_store(&buffer_size, (size_t)want);
}

static void tick(const char *why)
{
    struct stat st;
    if (out_fd >= 0 && fstat(out_fd, &st) == 0 && st.st_nlink == 0) {
        give_up("the census file is gone, recording stopped", conf.path);
        return;
    }
    if (attached) cupti.flush_all(0);
    pthread_mutex_lock(&totals_lock);
    bool changed = changes != last_changes;
    pthread_mutex_unlock(&totals_lock);
    uint64_t quiet = clock_ns(CLOCK_MONOTONIC) - last_written_ns;
    bool slow = bytes_written > SLOW_AFTER_BYTES && quiet < HEARTBEAT;
    bool periodic = strcmp(why, "interval") == 0;
    if (!periodic || (changed && !slow) || quiet >= HEARTBEAT) {
        write_totals(why, false);
    } else if (!changed) {
        same_until_ns = clock_ns(CLOCK_REALTIME);
    }
    if (periodic) adapt_buffers();
}

static void write_last_lines(void)
{
    if (gave_up) return;
    if (!header_written) write_header();
    if (attached) cupti.flush_all(FLUSH_FORCED);
    /* A buffer that CUPTI's worker is in the middle of belongs to the last line. */
    for (int i = 0; i < 200 && atomic_load(&callbacks_running) > 0; i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    write_kernels(true);
    write_totals("exit", true);
}

static void run_until_stopped(void)
{
    bool switched_on = read_switch();
    uint64_t next_tick = clock_ns(CLOCK_MONOTONIC) + conf.interval_ns, until;
    uint64_t ticks = 0, retry_at = 0, kernels_changes = 0;
    off_t marks = marks_size();
    while (!atomic_load(&stopping) && !gave_up) {
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        bool on = wanted(switched_on, now, &until);
        if (on != attached && (!on || now >= retry_at)) {
            if (on) attach_again();
            else detach();
            if (on == attached) tick(on ? "on" : "off");
            /* Refused: ask again later, not at once. */
            if (on && !attached) retry_at = now + HEARTBEAT;
        }
        int woke = wait_until(until < next_tick ? until : next_tick);
        bool due = clock_ns(CLOCK_MONOTONIC) >= next_tick;
        if (due || (woke & WOKE_BY_FOLDER)) { /* the watch does not see changes made on another host */
            switched_on = read_switch();
            off_t size = marks_size();
            if (size != marks) tick("mark");
            marks = size;
        }
        if (!due) continue;
        tick("interval");
        if (++ticks % KERNELS_EVERY == 0 && last_changes != kernels_changes) {
            write_kernels(false);
            kernels_changes = last_changes;
        }
        next_tick += conf.interval_ns;
        now = clock_ns(CLOCK_MONOTONIC);
        if (next_tick < now) next_tick = now + conf.interval_ns; /* held up: do not catch up in a burst */
    }
}

/* The header names the devices, and the driver's queries answer only once cuInit has finished. CUPTI says when; who is
 * not attached to CUPTI asks the driver, a few times. */
static void wait_for_driver(void)
{
    for (int tries = 0; !atomic_load(&stopping) && !atomic_load(&init_finished); tries++) {
        int count;
        wait_until(clock_ns(CLOCK_MONOTONIC) + conf.interval_ns);
        pthread_mutex_lock(&totals_lock);
        bool works = records > 0;
        pthread_mutex_unlock(&totals_lock);
        if (works) return;
        if (!attached && (tries >= 10 || cuda.device_count == NULL || cuda.device_count(&count) == 0)) return;
    }
}

static void *helper(void *unused)
{
    (void)unused;
    on_helper = true;
    prctl(PR_SET_NAME, "nsysparse-cens", 0, 0, 0);
    if (stay_out != NULL) say(stay_out, "");
    watch_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch_fd >= 0 && inotify_add_watch(watch_fd, conf.folder, IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE_SELF) < 0) {
        close(watch_fd);
        watch_fd = -1;
    }
    wait_for_driver();
    if (!atomic_load(&stopping)) write_header();
    if (stay_out == NULL) {
        if (!atomic_load(&stopping)) run_until_stopped();
        write_last_lines();
    } else if (!header_written) {
        write_header();
    }
    if (watch_fd >= 0) close(watch_fd);
    sem_post(&helper_done);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------ start and end */

static void at_fork_in_child(void)
{
    atomic_store(&in_child, true); /* the helper thread did not come along, and CUDA does not work here */
}

static void at_exit(void)
{
    if (atomic_load(&in_child) || getpid() != conf.pid) return;
    atomic_store(&stopping, true);
    wake_helper();
    uint64_t deadline = clock_ns(CLOCK_REALTIME) + EXIT_PATIENCE;
    struct timespec until = {(time_t)(deadline / SECOND), (long)(deadline % SECOND)};
    while (sem_timedwait(&helper_done, &until) != 0 && errno == EINTR) continue;
}

static uint64_t seconds_from(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    if (text == NULL || *text == 0) return fallback;
    char *end;
    double value = strtod(text, &end);
    if (*end != 0 || !(value >= 0.0) || value > 1e6) return fallback;
    return (uint64_t)(value * 1e9);
}

static bool word_in(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == 0 || at[length] == ',')) return true;
    return false;
}

static bool read_settings(void)
{
    const char *folder = getenv("NSYSPARSE_CENSUS_DIR"), *kinds = getenv("NSYSPARSE_CENSUS_KINDS");
    if (folder == NULL || *folder == 0 || strlen(folder) >= sizeof conf.folder) return false;
    memcpy(conf.folder, folder, strlen(folder) + 1);
    conf.interval_ns = seconds_from("NSYSPARSE_CENSUS_INTERVAL", SECOND);
    if (conf.interval_ns < 10 * MS) conf.interval_ns = 10 * MS;
    if (conf.interval_ns > 3600 * SECOND) conf.interval_ns = 3600 * SECOND;
    conf.on_ns = seconds_from("NSYSPARSE_CENSUS_ON", 0);
    conf.every_ns = seconds_from("NSYSPARSE_CENSUS_EVERY", 0);
    if (conf.on_ns == 0 || conf.on_ns >= conf.every_ns) conf.every_ns = 0;
    if (kinds == NULL || *kinds == 0) kinds = "kernels,copies,memsets";
    for (int k = 0; k < KINDS; k++) conf.asked[k] = word_in(kinds, kind_names[k]);
    conf.asked[K_PEER] = conf.asked[K_COPIES];
    snprintf(conf.program, sizeof conf.program, "%s", program_invocation_short_name);
    conf.pid = getpid();
    conf.start_unix_ns = clock_ns(CLOCK_REALTIME);
    conf.start_mono_ns = clock_ns(CLOCK_MONOTONIC);
    return true;
}

static void *open_cupti(void)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so"};
    const char *chosen = getenv("NSYSPARSE_CENSUS_CUPTI");
    void *handle = NULL;
    if (chosen != NULL && *chosen != 0) return dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    /* One that the program has loaded comes first: two CUPTIs in one process do not get along. */
    for (size_t i = 0; handle == NULL && i < sizeof names / sizeof *names; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
#ifdef CENSUS_CUPTI_PATH
    if (handle == NULL) handle = dlopen(CENSUS_CUPTI_PATH, RTLD_NOW | RTLD_LOCAL);
#endif
    for (size_t i = 0; handle == NULL && i < sizeof names / sizeof *names; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return handle;
}

/* POSIX lets dlsym's result be a function; ISO C does not, hence the copy. */
static bool look_up(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static const char *load_cupti(void)
{
    void *h = open_cupti();
    if (h == NULL) return "CUPTI was not found, nothing is recorded";
    bool all = look_up(h, "cuptiGetVersion", &cupti.get_version) & look_up(h, "cuptiGetTimestamp", &cupti.get_timestamp)
        & look_up(h, "cuptiSubscribe", &cupti.subscribe) & look_up(h, "cuptiUnsubscribe", &cupti.unsubscribe)
        & look_up(h, "cuptiEnableCallback", &cupti.enable_callback)
        & look_up(h, "cuptiActivityRegisterCallbacks", &cupti.register_callbacks)
        & look_up(h, "cuptiActivityEnable", &cupti.enable) & look_up(h, "cuptiActivityDisable", &cupti.disable)
        & look_up(h, "cuptiActivityFlushAll", &cupti.flush_all)
        & look_up(h, "cuptiActivityGetNextRecord", &cupti.next_record);
    look_up(h, "cuptiActivityGetNumDroppedRecords", &cupti.dropped);
    look_up(h, "cuptiActivitySetAttribute", &cupti.set_attribute);
    if (!all) return "CUPTI lacks a function, nothing is recorded";
    /* Newer CUPTIs can refuse this until the driver is ready; then the header asks again. Old ones always answer. */
    if (cupti.get_version(&conf.cupti_version) != 0) conf.cupti_version = 0;
    else if (conf.cupti_version < OLDEST_CUPTI) return "CUPTI is older than CUDA 11.8, nothing is recorded";
    return NULL;
}

static void load_driver(void)
{
    void *h = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (h == NULL) h = RTLD_DEFAULT;
    look_up(h, "cuDriverGetVersion", &cuda.driver_version);
    look_up(h, "cuDeviceGetCount", &cuda.device_count);
    look_up(h, "cuDeviceGet", &cuda.device_get);
    look_up(h, "cuDeviceGetName", &cuda.device_name);
    if (!look_up(h, "cuDeviceGetUuid_v2", &cuda.device_uuid)) look_up(h, "cuDeviceGetUuid", &cuda.device_uuid);
    look_up(h, "cuDeviceGetPCIBusId", &cuda.device_pci);
    look_up(h, "cuDeviceGetAttribute", &cuda.device_attribute);
    look_up(h, "cuDeviceTotalMem_v2", &cuda.device_memory);
}

static bool start_helper(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* the program's signals are the program's; a full disk's SIGXFSZ stays pending here */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, helper, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    return started;
}

/* The CUDA driver's entry point, called inside the program's first cuInit. */
__attribute__((visibility("default"))) int InitializeInjection(void)
{
    static atomic_flag once = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&once) || !read_settings()) return 1;
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pool = mmap(NULL, (size_t)BUFFERS * BUFFER_BYTES, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (wake_fd < 0 || pool == MAP_FAILED || sem_init(&helper_done, 0, 0) != 0) return 1;
    load_driver();
    stay_out = load_cupti();
    uint64_t until;
    if (stay_out == NULL && wanted(read_switch(), conf.start_mono_ns, &until)) stay_out = attach();
    if (stay_out != NULL && attached) {
        cupti.unsubscribe(subscriber);
        attached = false;
    }
    if (!start_helper()) {
        if (attached) {
            disable_kinds();
            cupti.unsubscribe(subscriber);
        }
        return 1;
    }
    pthread_atfork(NULL, NULL, at_fork_in_child);
    atexit(at_exit);
    return 1;
}
