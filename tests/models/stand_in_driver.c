/* Stands in for NVIDIA's driver, libcuda.so.1: a "cubin" is the path of a shared object, whose
   kernel runs on this CPU at once, in the thread that launches it.

   It has two devices, and is as strict as a driver where ours could go wrong: what is loaded in the
   context of a device can be launched in that one only, and without a context nothing works. Tests
   ask it what was called, and let calls fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_FOUND = 500,
       INVALID_HANDLE = 400, NOT_SUPPORTED = 801, DEVICES = 2 };

typedef struct { void *library; long device; } Module;
typedef struct { void (*start)(void **, unsigned); long device; } Function;

static char told[1 << 20];
static char failing[64];
static int failure;
static __thread long contexts[16]; /* device + 1, the newest last */
static __thread int depth;

/* For tests. */

const char *stand_in_told(void) { return told; }
void stand_in_forget(void) { told[0] = 0; }
int stand_in_depth(void) { return depth; }

/* Let the next call of a function return a status. */
void stand_in_fail(const char *name, int status) {
    snprintf(failing, sizeof failing, "%s", name);
    failure = status;
}

static int tell(const char *name, const char *values) {
    size_t used = strlen(told);
    snprintf(told + used, sizeof told - used, "%s %s\n", name, values);
    if (strcmp(name, failing)) return SUCCESS;
    failing[0] = 0;
    return failure;
}

static long current(void) { return depth ? contexts[depth - 1] : 0; }

#define TELL(...)                                     \
    do {                                              \
        char values[128];                             \
        snprintf(values, sizeof values, __VA_ARGS__); \
        int status = tell(__func__, values);          \
        if (status) return status;                    \
    } while (0)
#define NEED_CONTEXT \
    if (!current()) return INVALID_CONTEXT

/* The driver. */

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }

int cuDeviceGet(int *device, int number) {
    TELL("%d", number);
    *device = number;
    return number < DEVICES ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    TELL("%d device=%d", attribute, device);
    *value = attribute == 97 ? 227 << 10 : 0; /* shared memory that a block can ask for */
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    TELL("device=%d", device);
    *context = (void *)(long)(device + 1);
    return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) {
    if (!context || depth == 16) return INVALID_VALUE;
    contexts[depth++] = (long)context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) {
    NEED_CONTEXT;
    --depth;
    if (context) *context = (void *)contexts[depth];
    return SUCCESS;
}

int cuModuleLoadData(void **module, const void *image) {
    NEED_CONTEXT;
    TELL("device=%ld", current() - 1);
    void *library = dlopen(image, RTLD_NOW | RTLD_LOCAL);
    if (!library) return NOT_FOUND;
    Module *made = malloc(sizeof *made);
    *made = (Module){library, current() - 1};
    *module = made;
    return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    NEED_CONTEXT;
    TELL("%s", name);
    Module *of = module;
    char entry[64];
    snprintf(entry, sizeof entry, "start_%s", name);
    void *start = dlsym(of->library, entry);
    if (!start) return NOT_FOUND;
    Function *made = malloc(sizeof *made);
    *made = (Function){(void (*)(void **, unsigned))start, of->device};
    *function = made;
    return SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    NEED_CONTEXT;
    TELL("%d=%d", attribute, value);
    return ((Function *)function)->device == current() - 1 ? SUCCESS : INVALID_HANDLE;
}

int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *launch) {
    NEED_CONTEXT;
    TELL("device=%ld", ((Function *)function)->device);
    *clusters = launch ? 1 : 0;
    return SUCCESS;
}

int cuLaunchKernel(void *function, unsigned blocks, unsigned y, unsigned z, unsigned threads,
                   unsigned thread_y, unsigned thread_z, unsigned shared_bytes, void *stream,
                   void **arguments, void **extra) {
    NEED_CONTEXT;
    TELL("blocks=%u threads=%u shared=%u stream=%ld device=%ld", blocks, threads, shared_bytes,
         (long)stream, current() - 1);
    Function *of = function;
    if (of->device != current() - 1) return INVALID_HANDLE;
    if (y * z * thread_y * thread_z != 1 || threads != 512 || extra) return INVALID_VALUE;
    of->start(arguments, blocks);
    return SUCCESS;
}

int cuGetErrorName(int status, const char **name) { *name = status ? "an error" : "success"; return SUCCESS; }
int cuGetErrorString(int status, const char **words) { return cuGetErrorName(status, words); }

static int missing(void) { return NOT_SUPPORTED; }

/* The bindings ask for each function by its name without the ending. */
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                        int *found) {
    char longer[128];
    Dl_info self;
    dladdr((void *)cuGetProcAddress_v2, &self);
    void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    snprintf(longer, sizeof longer, "%s_v2", name);
    *function = dlsym(library, longer);
    if (!*function) *function = dlsym(library, name);
    if (!*function) *function = (void *)missing;
    if (found) *found = 0;
    (void)version, (void)flags;
    return SUCCESS;
}
