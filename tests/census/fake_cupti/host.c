/* A program that "uses CUDA": runs scripts of records, the first on the main thread, each other on its own.
 *
 * K device start end correlation graph registers gx gy gz bx by bz static dynamic NAME
 * C device kind source destination bytes start end correlation graph copies
 * P device kind source destination bytes start end source-device destination-device correlation graph
 * S device bytes start end correlation graph          G device start end correlation graph
 * sleep MS | steady COUNT US (a kernel and a 1000-byte copy each US microseconds) | hold 0/1
 * exit N | _exit N | raise SIGNAL | fork (child exits) | fork_exit (child _exits) | fork_run SCRIPT (then exits)
 * exec SCRIPT | init
 */
#define _GNU_SOURCE
#include "fake.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char *self;
static char *names[1 << 16]; /* CUPTI's names outlive their records, and are one pointer a kernel */
static unsigned name_count;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *lasting(const char *text)
{
    pthread_mutex_lock(&names_lock);
    unsigned i = 0;
    while (i < name_count && strcmp(names[i], text) != 0) i++;
    if (i == name_count) names[name_count++] = strdup(text);
    pthread_mutex_unlock(&names_lock);
    return names[i];
}

static void pause_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void steady(long n, long us)
{
    cuInit(0);
    static uint32_t correlation = 1;
    for (long i = 0; i < n; i++) {
        uint64_t t = now_ns();
        uint32_t c = __atomic_add_fetch(&correlation, 1, __ATOMIC_RELAXED);
        struct fake_kernel k = {.kind = 10, .start = t, .end = t + 500, .correlation = c, .name = "steady_kernel",
                                .grid = {1, 1, 1}, .block = {32, 1, 1}};
        struct fake_copy m = {.kind = 1, .copy_kind = 1, .source = 1, .destination = 3, .bytes = 1000, .start = t + 500,
                              .end = t + 700, .correlation = c, .copies = 1};
        fake_emit(&k);
        fake_emit(&m);
        if (us > 0) pause_us(us);
    }
}

static void record_line(char *text)
{
    unsigned long long v[16] = {0};
    char name[8192] = "", *at = text + 1;
    int n = 0, fields = *text == 'K' ? 14 : 12;
    for (; n < fields; n++) {
        char *end;
        v[n] = strtoull(at, &end, 10);
        if (end == at) break;
        at = end;
    }
    if (*text == 'K') {
        snprintf(name, sizeof name, "%s", *at == ' ' ? at + 1 : at);
        name[strcspn(name, "\n")] = 0;
        struct fake_kernel k = {.kind = 10, .device = (uint32_t)v[0], .start = v[1], .end = v[2],
            .correlation = (uint32_t)v[3], .graph = (uint32_t)v[4], .registers = (uint16_t)v[5],
            .grid = {(int)v[6], (int)v[7], (int)v[8]}, .block = {(int)v[9], (int)v[10], (int)v[11]},
            .static_shared = (int)v[12], .dynamic_shared = (int)v[13], .name = lasting(name)};
        fake_emit(&k);
    } else if (*text == 'C') {
        struct fake_copy c = {.kind = 1, .device = (uint32_t)v[0], .copy_kind = (uint8_t)v[1], .source = (uint8_t)v[2],
            .destination = (uint8_t)v[3], .bytes = v[4], .start = v[5], .end = v[6], .correlation = (uint32_t)v[7],
            .graph = (uint32_t)v[8], .copies = v[9]};
        fake_emit(&c);
    } else if (*text == 'P') {
        struct fake_peer p = {.kind = 22, .device = (uint32_t)v[0], .copy_kind = (uint8_t)v[1], .source = (uint8_t)v[2],
            .destination = (uint8_t)v[3], .bytes = v[4], .start = v[5], .end = v[6], .source_device = (uint32_t)v[7],
            .destination_device = (uint32_t)v[8], .correlation = (uint32_t)v[9], .graph = (uint32_t)v[10]};
        fake_emit(&p);
    } else if (*text == 'S') {
        struct fake_memset s = {.kind = 2, .device = (uint32_t)v[0], .bytes = v[1], .start = v[2], .end = v[3],
            .correlation = (uint32_t)v[4], .graph = (uint32_t)v[5]};
        fake_emit(&s);
    } else {
        struct fake_graph g = {.kind = 51, .device = (uint32_t)v[0], .start = v[1], .end = v[2],
            .correlation = (uint32_t)v[3], .graph = (uint32_t)v[4]};
        fake_emit(&g);
    }
}

static void *run(void *path);

static void command_line(const char *text)
{
    long a = 0, b = 0;
    char script[4096];
    if (sscanf(text, "sleep %ld", &a) == 1) pause_us(a * 1000);
    else if (sscanf(text, "steady %ld %ld", &a, &b) == 2) steady(a, b);
    else if (sscanf(text, "hold %ld", &a) == 1) fake_hold((int)a);
    else if (sscanf(text, "exit %ld", &a) == 1) exit((int)a);
    else if (sscanf(text, "_exit %ld", &a) == 1) _exit((int)a);
    else if (sscanf(text, "raise %ld", &a) == 1) raise((int)a);
    else if (sscanf(text, "exec %4000s", script) == 1) execl(self, self, script, (char *)NULL);
    else if (strncmp(text, "init", 4) == 0) cuInit(0);
    else if (strncmp(text, "fork", 4) == 0) {
        pid_t child = fork();
        if (child == 0 && strncmp(text, "fork_exit", 9) == 0) _exit(0);
        if (child == 0 && sscanf(text, "fork_run %4000s", script) == 1) run(script);
        if (child == 0) exit(0);
        waitpid(child, NULL, 0);
    }
}

/* Read as a whole first: exit() in a forked child would move the file position that it shares with its parent. */
static char *contents(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t size = 0;
    if (file == NULL) return NULL;
    if (getdelim(&text, &size, 0, file) < 0) text = NULL;
    fclose(file);
    return text;
}

static void *run(void *path)
{
    char *script = contents(path), *rest = script, *text;
    while (rest != NULL && (text = strsep(&rest, "\n")) != NULL) {
        if (*text != 0 && strchr("KCPSG", *text) != NULL && text[1] == ' ') {
            cuInit(0);
            record_line(text);
        }
        else command_line(text);
    }
    free(script);
    return NULL;
}

int main(int n, char **scripts)
{
    pthread_t threads[256];
    self = scripts[0];
    for (int i = 2; i < n && i < 256; i++) /* threads exist before the first CUDA call */
        if (pthread_create(&threads[i], NULL, run, scripts[i]) != 0) return 9;
    if (n > 1) run(scripts[1]);
    for (int i = 2; i < n && i < 256; i++) pthread_join(threads[i], NULL);
    return 0;
}
