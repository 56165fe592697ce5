// Native loads for measuring the census: what a program pays per launch, without an interpreter's noise.
//   launch SECONDS          tiny kernels as fast as one thread can launch them
//   threads SECONDS N       the same from N threads, a stream each
//   graph SECONDS NODES     one CUDA graph of tiny kernels, replayed and waited for every 16 replays
//   copies SECONDS          pinned and pageable copies of 4 kB to 32 MB both ways
//   steady SECONDS US       kernels of US microseconds, back to back: the GPU is never idle. Prints progress.
//   idle SECONDS            a small request every 200 ms, otherwise asleep
//   mixed SECONDS END N     kernels, copies, memsets, graphs from N threads; END: return, exit, _exit, fork, exec
// Prints one line of JSON.
#include <cuda_runtime.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#define CHECK(call) do { cudaError_t e_ = (call); if (e_ != cudaSuccess) { \
    fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e_)); _exit(9); } } while (0) // other threads are in CUDA

__global__ void tiny(float *x) { if (threadIdx.x == 0) x[blockIdx.x] += 1.0f; }

__global__ void spin(long long ns)
{
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ns);
}

static double now_s()
{
    using namespace std::chrono;
    return duration<double>(system_clock::now().time_since_epoch()).count();
}

static double cpu_s()
{
    rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + 1e-6 * (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

// Seconds of the same load before measuring begins, so that a recorder's first second is not in the figure.
static double warm_s()
{
    const char *text = getenv("WARM_S");
    return text != nullptr ? atof(text) : 0.0;
}

static long launch_for(double seconds, cudaStream_t stream)
{
    float *x;
    CHECK(cudaMalloc(&x, 4096));
    for (int i = 0; i < 2000; i++) tiny<<<1, 32, 0, stream>>>(x);
    CHECK(cudaStreamSynchronize(stream));
    long n = 0;
    double end = now_s() + seconds;
    while (now_s() < end) {
        for (int i = 0; i < 1000; i++) tiny<<<1, 32, 0, stream>>>(x);
        n += 1000;
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(x));
    return n;
}

static cudaGraphExec_t make_graph(int nodes, cudaStream_t stream, float *x)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < nodes; i++) tiny<<<1, 32, 0, stream>>>(x);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void report(const char *load, double seconds, double count, const char *unit)
{
    printf("{\"load\":\"%s\",\"seconds\":%.6f,\"count\":%.0f,\"unit\":\"%s\",\"cpu_s\":%.6f}\n", load, seconds, count, unit,
           cpu_s());
    fflush(stdout);
}

static void run_launch(double seconds, int threads)
{
    std::vector<std::thread> workers;
    std::atomic<long> total{0};
    for (int i = 0; i < threads; i++)
        workers.emplace_back([&] {
            cudaStream_t s;
            CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
            if (warm_s() > 0) launch_for(warm_s(), s);
            total += launch_for(seconds, s);
        });
    for (auto &w : workers) w.join();
    report(threads > 1 ? "threads" : "launch", seconds, (double)total, "launches");
}

static void run_graph(double seconds, int nodes)
{
    cudaStream_t s;
    float *x;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&x, 4096));
    cudaGraphExec_t exec = make_graph(nodes, s, x);
    double warm_end = now_s() + std::max(0.05, warm_s());
    while (now_s() < warm_end) {
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaStreamSynchronize(s));
    }
    long n = 0;
    double began = now_s();
    while (now_s() - began < seconds) {
        for (int i = 0; i < 16; i++) CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaStreamSynchronize(s));
        n += 16;
    }
    report("graph", now_s() - began, (double)n, "replays");
}

static void run_copies(double seconds)
{
    const size_t largest = 32 << 20;
    char *device, *pinned, *pageable = (char *)malloc(largest);
    CHECK(cudaMalloc(&device, largest));
    CHECK(cudaMallocHost(&pinned, largest));
    memset(pageable, 1, largest);
    double bytes = 0, began = now_s();
    for (int i = 0; now_s() - began < seconds; i++) {
        size_t n = (size_t)4096 << (i % 14);
        char *host = i / 14 % 2 ? pageable : pinned;
        CHECK(cudaMemcpyAsync(device, host, n, cudaMemcpyHostToDevice, 0));
        CHECK(cudaMemcpyAsync(host, device, n, cudaMemcpyDeviceToHost, 0));
        CHECK(cudaStreamSynchronize(0));
        bytes += 2.0 * n;
    }
    report("copies", now_s() - began, bytes, "bytes");
}

static void run_steady(double seconds, long us)
{
    cudaEvent_t done[8];
    for (auto &e : done) CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    double began = now_s(), said = began;
    long launched = 0, completed = 0;
    while (now_s() - began < seconds) {
        if (launched >= 8) {
            CHECK(cudaEventSynchronize(done[launched % 8]));
            completed = launched - 7;
        }
        spin<<<1, 32>>>(us * 1000);
        CHECK(cudaEventRecord(done[launched % 8], 0));
        launched++;
        if (now_s() - said > 0.05) {
            said = now_s();
            printf("{\"unix_ns\":%.0f,\"completed\":%ld}\n", said * 1e9, completed);
            fflush(stdout);
        }
    }
    CHECK(cudaDeviceSynchronize());
    report("steady", now_s() - began, (double)launched, "launches");
}

static void run_idle(double seconds)
{
    float *x;
    CHECK(cudaMalloc(&x, 4096));
    std::vector<double> latencies;
    double began = now_s(), cpu = cpu_s();
    while (now_s() - began < seconds) {
        usleep(200000);
        double t = now_s();
        tiny<<<1, 32>>>(x);
        CHECK(cudaDeviceSynchronize());
        latencies.push_back(now_s() - t);
    }
    std::sort(latencies.begin(), latencies.end());
    printf("{\"load\":\"idle\",\"seconds\":%.6f,\"count\":%zu,\"unit\":\"requests\",\"cpu_s\":%.6f,\"median_latency_us\":%.3f}\n",
           now_s() - began, latencies.size(), cpu_s() - cpu, 1e6 * latencies[latencies.size() / 2]);
}

static void mixed_thread(double seconds, unsigned seed)
{
    cudaStream_t s;
    char *device, *pinned, *pageable = (char *)calloc(1, 1 << 20);
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&device, 1 << 20));
    CHECK(cudaMallocHost(&pinned, 1 << 20));
    cudaGraphExec_t exec = make_graph(20, s, (float *)device);
    double end = now_s() + seconds;
    while (now_s() < end) {
        switch (rand_r(&seed) % 6) {
        case 0: CHECK(cudaMemcpyAsync(device, pinned, 1 + rand_r(&seed) % (1 << 20), cudaMemcpyHostToDevice, s)); break;
        case 1: CHECK(cudaMemcpyAsync(pageable, device, 1 + rand_r(&seed) % 4096, cudaMemcpyDeviceToHost, s)); break;
        case 2: CHECK(cudaMemsetAsync(device, 0, 4096, s)); break;
        case 3: CHECK(cudaGraphLaunch(exec, s)); break;
        case 4: CHECK(cudaStreamSynchronize(s)); break;
        default: for (int i = 0; i < 50; i++) tiny<<<4, 64, 0, s>>>((float *)device);
        }
    }
    CHECK(cudaStreamSynchronize(s));
}

static int run_mixed(double seconds, const std::string &end, unsigned threads, char **arguments)
{
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < threads; i++) workers.emplace_back(mixed_thread, seconds, i + (unsigned)getpid());
    if (end == "fork") {
        usleep((useconds_t)(seconds * 4e5));
        pid_t child = fork();
        if (child == 0) exit(0);
        waitpid(child, nullptr, 0);
    }
    for (auto &w : workers) w.join();
    report("mixed", seconds, 0, "runs");
    if (end == "exit") exit(3);
    if (end == "_exit") _exit(4);
    if (end == "exec") execl("/proc/self/exe", arguments[0], "launch", "0.2", (char *)nullptr);
    return 0;
}

int main(int n, char **a)
{
    std::string load = n > 1 ? a[1] : "";
    double seconds = n > 2 ? atof(a[2]) : 1.0;
    long extra = n > 3 ? atol(a[3]) : 0;
    if (load == "launch") run_launch(seconds, 1);
    else if (load == "threads") run_launch(seconds, extra > 0 ? (int)extra : 4);
    else if (load == "graph") run_graph(seconds, extra > 0 ? (int)extra : 72);
    else if (load == "copies") run_copies(seconds);
    else if (load == "steady") run_steady(seconds, extra > 0 ? extra : 1000);
    else if (load == "idle") run_idle(seconds);
    else if (load == "mixed") return run_mixed(seconds, n > 3 ? a[3] : "return", n > 4 ? (unsigned)atoi(a[4]) : 3, a);
    else { fprintf(stderr, "usage: census_launch LOAD SECONDS [N]\n"); return 2; }
    return 0;
}
