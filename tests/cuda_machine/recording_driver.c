// A library instead of libcuda.so.1 and libcublasLt.so.13: it notes what it is called with, in
// the file that the environment variable RECORD names. Device memory is memory of the host, copies
// and fills are done at once, and kernels do nothing. So the real bindings can be called without a
// GPU. Types are those of cuda.h and cublasLt.h.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Address;
typedef void *Handle;

#define NOTE(...)                                                               \
    do {                                                                        \
        FILE *record = fopen(getenv("RECORD"), "a");                            \
        fprintf(record, __VA_ARGS__);                                           \
        fputc('\n', record);                                                    \
        fclose(record);                                                         \
    } while (0)

static Handle made(Handle *handle) {
    static uintptr_t last = 0x1000;
    return *handle = (Handle)++last;
}
static void *memory(size_t size) { return aligned_alloc(4096, (size + 4095) / 4096 * 4096); }

// Devices and contexts

int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char *name, int size, int device) {
    return strncpy(name, "Recording device", size), 0;
}
int cuDeviceTotalMem(size_t *bytes, int device) { return *bytes = (size_t)8 << 30, 0; }
// The attributes have the numbers of CUdevice_attribute.
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 1: return *value = 1024, 0;
    case 8: return *value = 48 << 10, 0;
    case 16: return *value = 108, 0;
    case 75: return *value = 9, 0;
    default: return *value = 0, 0;
    }
}
int cuDevicePrimaryCtxRetain(Handle *context, int device) { return *context = (Handle)0xC0, 0; }
int cuCtxPushCurrent(Handle context) { return context == (Handle)0xC0 ? 0 : 201; }
int cuCtxPopCurrent(Handle *context) { return *context = (Handle)0xC0, 0; }

// Memory

int cuMemGetInfo(size_t *unused, size_t *total) {
    return *unused = (size_t)7 << 30, *total = (size_t)8 << 30, 0;
}
int cuMemAlloc(Address *address, size_t size) { return *address = (Address)memory(size), 0; }
int cuMemFree(Address address) {
    NOTE("cuMemFree");
    return free((void *)address), 0;
}
int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    NOTE("cuMemHostAlloc %zu bytes, flags %u", size, flags);
    return *address = memory(size), 0;
}
int cuMemFreeHost(void *address) { return free(address), 0; }
int cuMemcpyHtoDAsync(Address to, const void *from, size_t size, Handle stream) {
    return memcpy((void *)to, from, size), 0;
}
int cuMemcpyDtoHAsync(void *to, Address from, size_t size, Handle stream) {
    return memcpy(to, (void *)from, size), 0;
}
int cuMemcpyDtoDAsync(Address to, Address from, size_t size, Handle stream) {
    return memcpy((void *)to, (void *)from, size), 0;
}
int cuMemsetD8Async(Address to, unsigned char value, size_t size, Handle stream) {
    return memset((void *)to, value, size), 0;
}

// Streams, events and graphs

int cuStreamCreate(Handle *stream, unsigned flags) {
    NOTE("cuStreamCreate flags %u", flags);
    return made(stream), 0;
}
int cuStreamDestroy(Handle stream) { return 0; }
int cuStreamSynchronize(Handle stream) { return 0; }
int cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) { return flags; }
int cuStreamBeginCapture(Handle stream, int mode) {
    NOTE("cuStreamBeginCapture mode %d", mode);
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    static int own = 0;
    int before = own;
    own = *mode;
    return *mode = before, 0;
}
int cuStreamEndCapture(Handle stream, Handle *graph) { return made(graph), 0; }
int cuGraphInstantiateWithFlags(Handle *executable, Handle graph, unsigned long long flags) {
    return made(executable), (int)flags;
}
// Some bindings ask for this name, and for a version in which it is the same function.
int cuGraphInstantiate(Handle *executable, Handle graph, unsigned long long flags) {
    return cuGraphInstantiateWithFlags(executable, graph, flags);
}
int cuGraphLaunch(Handle executable, Handle stream) { return 0; }
int cuGraphDestroy(Handle graph) { return 0; }
int cuGraphExecDestroy(Handle executable) { return 0; }
int cuEventCreate(Handle *event, unsigned flags) {
    NOTE("cuEventCreate flags %u", flags);
    return made(event), 0;
}
int cuEventDestroy(Handle event) { return 0; }
int cuEventRecord(Handle event, Handle stream) { return 0; }
int cuEventRecordWithFlags(Handle event, Handle stream, unsigned flags) {
    NOTE("cuEventRecordWithFlags flags %u", flags);
    return 0;
}
int cuEventSynchronize(Handle event) { return 0; }
int cuEventElapsedTime(float *milliseconds, Handle start, Handle end) {
    return *milliseconds = 1.5f, 0;
}

// Kernels

int cuModuleLoadData(Handle *module, const void *image) {
    NOTE("cuModuleLoadData %.3s", (const char *)image + 1);
    return made(module), 0;
}
int cuModuleUnload(Handle module) { return 0; }
int cuModuleGetFunction(Handle *function, Handle module, const char *name) {
    return *function = strdup(name), 0;
}
int cuFuncLoad(Handle function) { return 0; }
static void note_probe(void **parameters) {
    NOTE("probe's arguments: %d %d %d %d", **(int **)parameters[0],
         *(Address *)parameters[1] == 0, *(int *)parameters[2], *(int *)parameters[3]);
}
int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned width,
                   unsigned height, unsigned depth, unsigned shared, Handle stream,
                   void **parameters, void **extra) {
    if (strcmp(function, "probe")) return 0;
    NOTE("probe grid %u %u %u, block %u %u %u, shared %u, extra %d", x, y, z, width, height, depth,
         shared, extra != 0);
    return note_probe(parameters), 0;
}
typedef struct {
    unsigned id, value[17];
} Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    Handle stream;
    const Attribute *attributes;
    unsigned count;
} Launch;
int cuLaunchKernelEx(const Launch *launch, Handle function, void **parameters, void **extra) {
    if (strcmp(function, "probe")) return 0;
    const unsigned *grid = launch->grid, *block = launch->block;
    NOTE("probe grid %u %u %u, block %u %u %u, shared %u, extra %d, stream %d, %u attribute: %u %u",
         grid[0], grid[1], grid[2], block[0], block[1], block[2], launch->shared, extra != 0,
         launch->stream != 0, launch->count, launch->attributes->id, launch->attributes->value[1]);
    return note_probe(parameters), 0;
}

// What the bindings and NVRTC ask for

int cuGetErrorString(int error, const char **text) { return *text = "recorded", 0; }
int cuGetExportTable(const void **table, const void *id) { return *table = 0, 500; }
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    Dl_info own;
    dladdr((void *)cuInit, &own);
    *function = dlsym(dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD), name);
    if (found) *found = *function ? 0 : 1;
    return *function ? 0 : 500;
}

// cuBLASLt

typedef struct {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} Result;

int cublasLtCreate(Handle *library) { return made(library), 0; }
int cublasLtMatmulDescCreate(Handle *operation, int compute, int scale) {
    NOTE("cublasLtMatmulDescCreate compute %d, scale %d", compute, scale);
    return made(operation), 0;
}
int cublasLtMatmulDescDestroy(Handle operation) { return 0; }
int cublasLtMatmulDescSetAttribute(Handle operation, int name, const void *value, size_t size) {
    NOTE("cublasLtMatmulDescSetAttribute %d, %zu bytes", name, size);
    return 0;
}
int cublasLtMatrixLayoutCreate(Handle *layout, int type, uint64_t rows, uint64_t columns,
                               int64_t leading) {
    NOTE("cublasLtMatrixLayoutCreate type %d, %d x %d, %d", type, (int)rows, (int)columns,
         (int)leading);
    return made(layout), 0;
}
int cublasLtMatrixLayoutSetAttribute(Handle layout, int name, const void *value, size_t size) {
    return 0;
}
int cublasLtMatrixLayoutDestroy(Handle layout) { return 0; }
int cublasLtMatmulPreferenceCreate(Handle *preference) { return made(preference), 0; }
int cublasLtMatmulPreferenceDestroy(Handle preference) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(Handle preference, int name, const void *value,
                                         size_t size) {
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(Handle library, Handle operation, Handle a, Handle b, Handle c,
                                   Handle d, Handle preference, int wanted, Result *results,
                                   int *found) {
    memset(results, 0, sizeof(Result));
    results->algorithm[0] = 4321, results->workspace_bytes = 1024;
    return *found = wanted > 0, 0;
}
int cublasLtMatmul(Handle library, Handle operation, const float *alpha, void *a, Handle a_layout,
                   void *b, Handle b_layout, const float *beta, void *c, Handle c_layout, void *d,
                   Handle d_layout, const uint64_t *algorithm, void *workspace,
                   size_t workspace_bytes, Handle stream) {
    NOTE("cublasLtMatmul alpha %g, beta %g, in place %d %d, algorithm %d, workspace %zu", *alpha,
         *beta, c == d, c_layout == d_layout, (int)algorithm[0], workspace_bytes);
    return (uintptr_t)workspace % 256 ? 7 : 0;
}
size_t cublasLtGetVersion(void) { return 130000; }
const char *cublasLtGetStatusName(int status) { return "CUBLAS_STATUS_INVALID_VALUE"; }
