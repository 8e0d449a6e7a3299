/* A stand-in for libnvidia-ml.so.1 on machines without a GPU.
 *
 * All it says comes from a state file of `key=value` lines, named by FAKE_NVML_STATE or by
 * fake_nvml_state(). The file is looked at again on every call, so a test changes a GPU by
 * replacing the file (by rename, never in place).
 *
 *   count=8                               how many GPUs
 *   gpu.0.name=NVIDIA A100-SXM4-80GB      and uuid, pci, minor, memory_total_mb, memory_used_mb,
 *                                         temperature, power_mw, power_limit_mw, utilisation,
 *                                         sm_clock, memory_clock, throttle, ecc, ecc_corrected,
 *                                         numa, cpus (hex mask), recovery_action, remap_failed
 *   gpu.0.link.0=0000:c4:00.0             an active NVLink and its far end ("down": not active)
 *   gpu.0.link_mbps=25781
 *   gpu.0.compute=4242:1024,77:16         processes, pid:MiB ("?" for unknown memory)
 *   gpu.0.graphics=900:64
 *   gpu.0.loads=4242:80,77:0               how busy each process keeps the GPU, pid:per cent
 *   gpu.0.mig=1                           MIG mode; slices are gpu.0.slice.0=1g.10gb|MIG-...|9728
 *   xid.1=0:79                            the first event: GPU 0, XID 79; numbers only rise
 *   error.nvmlDeviceGetTemperature=3      a call that fails; error.<call>.<gpu> for one GPU only
 *   error.*.3=15                          every call about GPU 3
 *   hang.nvmlDeviceGetPowerUsage=1        a call that does not return while the line is there
 *
 * A value that is left out makes its call return NOT_SUPPORTED.
 */

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

#define MOST_GPUS 32
#define MOST_SLICES 8
#define MOST_LINES 2048
#define MIB (1024ULL * 1024ULL)
#define MEMORY_V2 0x02000028u
#define TEMPERATURE_V1 0x0100000Cu
#define XID_EVENT 8ULL
#define DOUBLE_BIT_EVENT 2ULL
#define FIELD_LINK_SPEED 90
#define FIELD_RECOVERY_ACTION 230

typedef struct { int gpu; int slice; } device_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { unsigned gpu, memory; } load_t;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } sample_t;
typedef struct { unsigned version, sensor; int degrees; } temperature_t;
typedef struct { device_t *device; unsigned long long kind, data; unsigned gi, ci; } event_t;
typedef struct { unsigned last; unsigned long long kinds[MOST_GPUS]; } event_set_t;
typedef struct {
    unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long memory_mb;
} attributes_t;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned kind, result;
    union { double d; unsigned ui; unsigned long long ull; } value;
} field_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text;
static char *lines[MOST_LINES];
static int line_count;
static struct stat seen;
static char state_path[4096];
static int initialised;
static device_t gpus[MOST_GPUS];
static device_t slices[MOST_GPUS][MOST_SLICES];

void fake_nvml_state(const char *path) {
    pthread_mutex_lock(&lock);
    snprintf(state_path, sizeof state_path, "%s", path);
    memset(&seen, 0, sizeof seen);
    pthread_mutex_unlock(&lock);
}

static void load(void) {
    struct stat now;
    const char *path = state_path[0] ? state_path : getenv("FAKE_NVML_STATE");
    if (!path || stat(path, &now) != 0) return;
    if (text && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    free(text);
    text = calloc(1, (size_t)now.st_size + 1);
    size_t size = fread(text, 1, (size_t)now.st_size, file);
    fclose(file);
    text[size] = 0;
    line_count = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && line_count < MOST_LINES;
         line = strtok_r(NULL, "\n", &rest))
        lines[line_count++] = line;
    seen = now;
}

/* Copies the value of a key; 0 if there is none. */
static int value(char *out, size_t size, const char *format, ...) {
    char key[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    size_t length = strlen(key);
    int found = 0;
    pthread_mutex_lock(&lock);
    load();
    for (int i = 0; i < line_count && !found; i++)
        if (!strncmp(lines[i], key, length) && lines[i][length] == '=') {
            snprintf(out, size, "%s", lines[i] + length + 1);
            found = 1;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static long long number(long long otherwise, const char *format, ...) {
    char key[256], out[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    return value(out, sizeof out, "%s", key) ? strtoll(out, NULL, 0) : otherwise;
}

/* Hangs or fails if the state says so. */
static int trouble(const char *call, int gpu) {
    while (number(0, "hang.%s", call)) usleep(10000);
    if (!initialised && strcmp(call, "nvmlInitWithFlags")) return UNINITIALIZED;
    long long code = number(0, "error.%s", call);
    if (!code && gpu >= 0) code = number(0, "error.%s.%d", call, gpu);
    if (!code && gpu >= 0) code = number(0, "error.*.%d", gpu);
    return (int)code;
}

#define ENTER(gpu) \
    do { \
        int code = trouble(__func__, gpu); \
        if (code) return code; \
    } while (0)

static int count(void) {
    long long n = number(0, "count");
    return n > MOST_GPUS ? MOST_GPUS : (int)n;
}

static int copy(char *out, unsigned size, const char *from) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, from);
    return SUCCESS;
}

static int text_of(device_t *d, const char *what, char *out, unsigned size) {
    char found[256];
    if (!value(found, sizeof found, "gpu.%d.%s", d->gpu, what)) return NOT_SUPPORTED;
    return copy(out, size, found);
}

static int unsigned_of(device_t *d, const char *what, unsigned *out) {
    long long found = number(-1, "gpu.%d.%s", d->gpu, what);
    if (found < 0) return NOT_SUPPORTED;
    *out = (unsigned)found;
    return SUCCESS;
}

static void fill_pci(pci_t *pci, const char *bus_id) {
    unsigned function = 0;
    memset(pci, 0, sizeof *pci);
    sscanf(bus_id, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus,
             pci->device);
    pci->id = 0x20B210DE;
}

/* --- the library and the system */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(-1);
    for (int i = 0; i < MOST_GPUS; i++) {
        gpus[i] = (device_t){i, -1};
        for (int j = 0; j < MOST_SLICES; j++) slices[i][j] = (device_t){i, j};
    }
    initialised++;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires restart";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER(-1);
    char found[96];
    return copy(out, size, value(found, sizeof found, "driver") ? found : "550.54.15");
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    ENTER(-1);
    return copy(out, size, "12.550.54.15");
}

int nvmlSystemGetCudaDriverVersion(int *out) {
    ENTER(-1);
    *out = (int)number(12040, "cuda");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER(-1);
    *out = (int)number(12040, "cuda");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(-1);
    *out = (unsigned)count();
    return SUCCESS;
}

/* --- handles */

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    ENTER((int)index);
    if ((int)index >= count()) return INVALID_ARGUMENT;
    *out = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **out) {
    for (int i = 0; i < count(); i++) {
        char found[96];
        if (!value(found, sizeof found, "gpu.%d.uuid", i) || strcmp(found, uuid)) continue;
        ENTER(i);
        *out = &gpus[i];
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device_t **out) {
    pci_t wanted, here;
    fill_pci(&wanted, bus_id);
    for (int i = 0; i < count(); i++) {
        char found[64];
        if (!value(found, sizeof found, "gpu.%d.pci", i)) continue;
        fill_pci(&here, found);
        if (strcmp(here.bus_id, wanted.bus_id)) continue;
        ENTER(i);
        *out = &gpus[i];
        return SUCCESS;
    }
    return NOT_FOUND;
}

/* --- what a device is */

static int slice_part(device_t *d, int part, char *out, size_t size) {
    char found[256], *rest = NULL, *word;
    if (!value(found, sizeof found, "gpu.%d.slice.%d", d->gpu, d->slice)) return NOT_FOUND;
    word = strtok_r(found, "|", &rest);
    for (int i = 0; i < part && word; i++) word = strtok_r(NULL, "|", &rest);
    if (!word) return NOT_SUPPORTED;
    snprintf(out, size, "%s", word);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t *d, char *out, unsigned size) {
    ENTER(d->gpu);
    if (d->slice < 0) return text_of(d, "name", out, size);
    char name[96], profile[32], whole[160];
    int code = text_of(d, "name", name, sizeof name);
    if (!code) code = slice_part(d, 0, profile, sizeof profile);
    if (code) return code;
    snprintf(whole, sizeof whole, "%s MIG %s", name, profile);
    return copy(out, size, whole);
}

int nvmlDeviceGetUUID(device_t *d, char *out, unsigned size) {
    ENTER(d->gpu);
    char uuid[96];
    if (d->slice < 0) return text_of(d, "uuid", out, size);
    int code = slice_part(d, 1, uuid, sizeof uuid);
    return code ? code : copy(out, size, uuid);
}

int nvmlDeviceGetIndex(device_t *d, unsigned *out) {
    ENTER(d->gpu);
    *out = (unsigned)d->gpu;
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(device_t *d, unsigned *out) {
    ENTER(d->gpu);
    return unsigned_of(d, "minor", out);
}

int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out) {
    ENTER(d->gpu);
    char found[64];
    if (!value(found, sizeof found, "gpu.%d.pci", d->gpu)) return NOT_SUPPORTED;
    fill_pci(out, found);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t *d, memory_t *out) {
    ENTER(d->gpu);
    unsigned total, used;
    if (unsigned_of(d, "memory_total_mb", &total) || unsigned_of(d, "memory_used_mb", &used))
        return NOT_SUPPORTED;
    *out = (memory_t){total * MIB, (total - used) * MIB, used * MIB};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device_t *d, memory_v2_t *out) {
    ENTER(d->gpu);
    if (out->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
    unsigned total, used, reserved = (unsigned)number(0, "gpu.%d.memory_reserved_mb", d->gpu);
    if (unsigned_of(d, "memory_total_mb", &total) || unsigned_of(d, "memory_used_mb", &used))
        return NOT_SUPPORTED;
    out->total = total * MIB;
    out->reserved = reserved * MIB;
    out->used = used * MIB;
    out->free = (total - used - reserved) * MIB;
    return SUCCESS;
}

static int mask(device_t *d, const char *what, unsigned words, unsigned long *out) {
    char found[64];
    if (!value(found, sizeof found, "gpu.%d.%s", d->gpu, what)) return NOT_SUPPORTED;
    memset(out, 0, words * sizeof *out);
    out[0] = strtoul(found, NULL, 16);
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinity(device_t *d, unsigned words, unsigned long *out) {
    ENTER(d->gpu);
    return mask(d, "cpus", words, out);
}

int nvmlDeviceGetMemoryAffinity(device_t *d, unsigned words, unsigned long *out, unsigned scope) {
    ENTER(d->gpu);
    (void)scope;
    unsigned node;
    if (unsigned_of(d, "numa", &node)) return NOT_SUPPORTED;
    memset(out, 0, words * sizeof *out);
    out[0] = 1UL << node;
    return SUCCESS;
}

/* --- how it does */

int nvmlDeviceGetTemperature(device_t *d, unsigned sensor, unsigned *out) {
    (void)sensor;
    ENTER(d->gpu);
    return unsigned_of(d, "temperature", out);
}

int nvmlDeviceGetTemperatureV(device_t *d, temperature_t *out) {
    ENTER(d->gpu);
    if (out->version != TEMPERATURE_V1) return ARGUMENT_VERSION_MISMATCH;
    return unsigned_of(d, "temperature", (unsigned *)&out->degrees);
}

int nvmlDeviceGetFanSpeed(device_t *d, unsigned *out) {
    ENTER(d->gpu);
    return unsigned_of(d, "fan", out);
}

int nvmlDeviceGetPowerUsage(device_t *d, unsigned *out) {
    ENTER(d->gpu);
    return unsigned_of(d, "power_mw", out);
}

int nvmlDeviceGetEnforcedPowerLimit(device_t *d, unsigned *out) {
    ENTER(d->gpu);
    return unsigned_of(d, "power_limit_mw", out);
}

int nvmlDeviceGetPowerManagementLimit(device_t *d, unsigned *out) {
    ENTER(d->gpu);
    return unsigned_of(d, "power_limit_mw", out);
}

int nvmlDeviceGetUtilizationRates(device_t *d, load_t *out) {
    ENTER(d->gpu);
    if (number(0, "gpu.%d.mig", d->gpu)) return NOT_SUPPORTED;
    out->memory = 0;
    return unsigned_of(d, "utilisation", &out->gpu);
}

int nvmlDeviceGetClockInfo(device_t *d, unsigned kind, unsigned *out) {
    ENTER(d->gpu);
    return unsigned_of(d, kind == 2 ? "memory_clock" : "sm_clock", out);
}

int nvmlDeviceGetCurrentClocksEventReasons(device_t *d, unsigned long long *out) {
    ENTER(d->gpu);
    *out = (unsigned long long)number(1, "gpu.%d.throttle", d->gpu);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device_t *d, unsigned long long *out) {
    ENTER(d->gpu);
    *out = (unsigned long long)number(1, "gpu.%d.throttle", d->gpu);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device_t *d, unsigned kind, unsigned counter,
                                unsigned long long *out) {
    (void)counter;
    ENTER(d->gpu);
    long long found = number(-1, kind ? "gpu.%d.ecc" : "gpu.%d.ecc_corrected", d->gpu);
    if (found < 0) return NOT_SUPPORTED;
    *out = (unsigned long long)found;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(device_t *d, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    ENTER(d->gpu);
    if (number(-1, "gpu.%d.ecc", d->gpu) < 0) return NOT_SUPPORTED;
    *corrected = *uncorrected = *pending = 0;
    *failed = (unsigned)number(0, "gpu.%d.remap_failed", d->gpu);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(device_t *d, int wanted, field_t *out) {
    ENTER(d->gpu);
    for (int i = 0; i < wanted; i++) {
        const char *what = out[i].field == FIELD_LINK_SPEED        ? "link_mbps"
                           : out[i].field == FIELD_RECOVERY_ACTION ? "recovery_action"
                                                                   : "";
        out[i].kind = 1;
        out[i].result = (unsigned)unsigned_of(d, what, &out[i].value.ui);
    }
    return SUCCESS;
}

static int processes(device_t *d, const char *what, unsigned *size, process_t *out) {
    char found[4096], *rest = NULL;
    unsigned n = 0;
    if (!value(found, sizeof found, "gpu.%d.%s", d->gpu, what)) found[0] = 0;
    unsigned total = found[0] != 0;
    for (char *c = found; *c; c++) total += *c == ',';
    if (total > *size) {
        *size = total;
        return INSUFFICIENT_SIZE;
    }
    for (char *one = strtok_r(found, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        char *memory = strchr(one, ':');
        int known = memory && memory[1] != '?';
        out[n] = (process_t){(unsigned)atoi(one), ~0ULL, 0xFFFFFFFFu, 0xFFFFFFFFu};
        if (known) out[n].used = strtoull(memory + 1, NULL, 10) * MIB;
        n++;
    }
    *size = n;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *size, process_t *out) {
    ENTER(d->gpu);
    return processes(d, "compute", size, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t *d, unsigned *size, process_t *out) {
    ENTER(d->gpu);
    return processes(d, "graphics", size, out);
}

int nvmlDeviceGetComputeRunningProcesses_v2(device_t *d, unsigned *size, process_t *out) {
    ENTER(d->gpu);
    return processes(d, "compute", size, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(device_t *d, unsigned *size, process_t *out) {
    ENTER(d->gpu);
    return processes(d, "graphics", size, out);
}

int nvmlDeviceGetProcessUtilization(device_t *d, sample_t *out, unsigned *size,
                                    unsigned long long since_us) {
    char found[4096], *rest = NULL;
    unsigned n = 0;
    ENTER(d->gpu);
    if (!value(found, sizeof found, "gpu.%d.loads", d->gpu)) return NOT_SUPPORTED;
    if (!found[0]) return NOT_FOUND;
    unsigned total = 1;
    for (char *c = found; *c; c++) total += *c == ',';
    if (!out || total > *size) {
        *size = total;
        return INSUFFICIENT_SIZE;
    }
    for (char *one = strtok_r(found, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        char *load = strchr(one, ':');
        out[n++] = (sample_t){(unsigned)atoi(one), since_us + 1, load ? (unsigned)atoi(load + 1) : 0,
                              0, 0, 0};
    }
    *size = n;
    return SUCCESS;
}

/* --- what other programs ask for, and these GPUs do not tell */

int nvmlDeviceGetEncoderUtilization(device_t *d, unsigned *load, unsigned *period) {
    (void)load, (void)period;
    ENTER(d->gpu);
    return NOT_SUPPORTED;
}

int nvmlDeviceGetDecoderUtilization(device_t *d, unsigned *load, unsigned *period) {
    (void)load, (void)period;
    ENTER(d->gpu);
    return NOT_SUPPORTED;
}

#define NOT_TOLD(name) \
    int name(device_t *d, unsigned *out) { \
        (void)out; \
        ENTER(d->gpu); \
        return NOT_SUPPORTED; \
    }

NOT_TOLD(nvmlDeviceGetPersistenceMode)
NOT_TOLD(nvmlDeviceGetPerformanceState)
NOT_TOLD(nvmlDeviceGetComputeMode)
NOT_TOLD(nvmlDeviceGetDisplayActive)
NOT_TOLD(nvmlDeviceGetDisplayMode)
NOT_TOLD(nvmlDeviceGetDriverModel)
NOT_TOLD(nvmlDeviceGetDriverModel_v2)
NOT_TOLD(nvmlDeviceGetNumaNodeId)

/* --- NVLink */

static int link_end(device_t *d, unsigned link, char *out, size_t size) {
    if (!value(out, size, "gpu.%d.link.0", d->gpu)) return NOT_SUPPORTED;
    return value(out, size, "gpu.%d.link.%u", d->gpu, link) ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkState(device_t *d, unsigned link, unsigned *out) {
    ENTER(d->gpu);
    char end[64];
    int code = link_end(d, link, end, sizeof end);
    *out = !code && strcmp(end, "down");
    return code;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *d, unsigned link, pci_t *out) {
    ENTER(d->gpu);
    char end[64];
    int code = link_end(d, link, end, sizeof end);
    if (!code) fill_pci(out, end);
    return code;
}

/* --- MIG */

int nvmlDeviceGetMigMode(device_t *d, unsigned *current, unsigned *pending) {
    ENTER(d->gpu);
    int code = unsigned_of(d, "mig", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *d, unsigned *out) {
    ENTER(d->gpu);
    *out = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned index, device_t **out) {
    ENTER(d->gpu);
    char found[256];
    if (index >= MOST_SLICES) return INVALID_ARGUMENT;
    if (!value(found, sizeof found, "gpu.%d.slice.%u", d->gpu, index)) return NOT_FOUND;
    *out = &slices[d->gpu][index];
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(device_t *d, unsigned *out) {
    *out = d->slice >= 0;
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(device_t *d, attributes_t *out) {
    ENTER(d->gpu);
    char profile[32], memory[32];
    int code = slice_part(d, 0, profile, sizeof profile);
    if (!code) code = slice_part(d, 2, memory, sizeof memory);
    if (code) return code;
    memset(out, 0, sizeof *out);
    out->gi_slices = out->ci_slices = (unsigned)atoi(profile);
    out->memory_mb = strtoull(memory, NULL, 10);
    return SUCCESS;
}

/* --- events */

/* The lowest event above `after`; 0 if there is none. */
static unsigned next_event(unsigned after, int *gpu, int *xid) {
    unsigned best = 0;
    pthread_mutex_lock(&lock);
    load();
    for (int i = 0; i < line_count; i++) {
        unsigned n;
        int g, x;
        if (sscanf(lines[i], "xid.%u=%d:%d", &n, &g, &x) != 3) continue;
        if (n > after && (!best || n < best)) {
            best = n;
            *gpu = g;
            *xid = x;
        }
    }
    pthread_mutex_unlock(&lock);
    return best;
}

int nvmlEventSetCreate(event_set_t **out) {
    ENTER(-1);
    int gpu, xid;
    *out = calloc(1, sizeof **out);
    /* What happened before is not told. */
    for (unsigned n; (n = next_event((*out)->last, &gpu, &xid));) (*out)->last = n;
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(device_t *d, unsigned long long *out) {
    ENTER(d->gpu);
    *out = XID_EVENT | DOUBLE_BIT_EVENT | 1ULL;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t *d, unsigned long long kinds, event_set_t *set) {
    ENTER(d->gpu);
    set->kinds[d->gpu] |= kinds;
    return SUCCESS;
}

int nvmlEventSetWait_v2(event_set_t *set, event_t *out, unsigned timeout_ms) {
    (void)timeout_ms;
    ENTER(-1);
    int gpu = 0, xid = 0;
    for (unsigned n; (n = next_event(set->last, &gpu, &xid));) {
        set->last = n;
        if (gpu < 0 || gpu >= MOST_GPUS || !(set->kinds[gpu] & XID_EVENT)) continue;
        *out = (event_t){&gpus[gpu], XID_EVENT, (unsigned long long)xid, 0xFFFFFFFFu, 0xFFFFFFFFu};
        return SUCCESS;
    }
    return TIMEOUT;
}

int nvmlEventSetFree(event_set_t *set) {
    free(set);
    return SUCCESS;
}
