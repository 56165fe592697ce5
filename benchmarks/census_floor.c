/* The floor of what any CUPTI recorder costs: a bare subscriber that throws its buffers away. Loaded like the recorder,
 * through CUDA_INJECTION64_PATH; FLOOR_KINDS lists CUPTI activity kinds by number (default 10,1,22,2). */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void requested(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *size = 1 << 20;
    *max_records = 0;
    *buffer = aligned_alloc(8, *size);
}

static void completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size, (void)valid;
    free(buffer);
}

static void callback(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *info)
{
    (void)data, (void)domain, (void)id, (void)info;
}

static void at_exit(void) { cuptiActivityFlushAll(1); }

int InitializeInjection(void)
{
    CUpti_SubscriberHandle subscriber;
    const char *list = getenv("FLOOR_KINDS");
    char copy[64], *rest = copy, *word;
    if (cuptiSubscribe(&subscriber, callback, NULL) != CUPTI_SUCCESS) {
        fprintf(stderr, "floor: CUPTI is in use\n");
        return 1;
    }
    cuptiActivityRegisterCallbacks(requested, completed);
    snprintf(copy, sizeof copy, "%s", list != NULL ? list : "10,1,22,2");
    while ((word = strsep(&rest, ",")) != NULL)
        if (*word != 0) cuptiActivityEnable((CUpti_ActivityKind)atoi(word));
    atexit(at_exit);
    return 1;
}
