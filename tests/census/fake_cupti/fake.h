/* A test double for CUPTI's and the CUDA driver's interface: no GPU, records come from a script. */
#ifndef FAKE_H
#define FAKE_H
#include <stddef.h>
#include <stdint.h>

/* Record layouts of CUDA 13.0, written down from its documentation; only the fields that the tests set have names. */
struct fake_kernel {
    uint32_t kind; uint8_t a, b; uint16_t registers; uint32_t c[2];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], static_shared, dynamic_shared;
    uint32_t d[2], correlation; int64_t grid_id;
    const char *name;
    void *e; uint64_t f[2]; uint8_t g[4]; uint32_t h; uint64_t node; uint32_t i, graph;
    void *j; uint32_t k[6]; uint64_t l; uint32_t m[2]; uint8_t n[8];
};
struct fake_copy {
    uint32_t kind; uint8_t copy_kind, source, destination, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, a[2];
    void *b; uint64_t node; uint32_t graph, c[3];
    uint64_t copies;
};
struct fake_peer {
    uint32_t kind; uint8_t copy_kind, source, destination, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, source_device, a, destination_device, b, correlation;
    void *c; uint64_t node; uint32_t graph, d[3];
};
struct fake_memset {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation; uint16_t flags, memory; uint32_t a;
    void *b; uint64_t node; uint32_t graph, c[3];
};
struct fake_graph {
    uint32_t kind, correlation;
    uint64_t start, end;
    uint32_t device, graph, context, stream;
    void *a; uint32_t b[2];
};

/* What was really put into buffers: mapped from FAKE_TRUTH so that it outlives SIGKILL. */
struct fake_truth { uint64_t kernels, copies, copy_bytes, memsets, refused; };

int fake_emit(const void *record); /* 1: recorded, 0: its kind is off or no buffer was given */
void fake_hold(int hold);          /* this thread's buffer has an incomplete record: a plain flush leaves it */
int cuInit(unsigned int flags);
#endif
