/* A stand-in for libnvidia-ml.so.1: the few calls that the NVML collector makes, answered from a text file.
 *
 * The file named by NVML_STUB_STATE is read anew at each call, so a test can change the machine while it is
 * being watched. Its lines:
 *   gpu  UUID NAME(with _ for blanks) UTIL_% USED_MIB POWER_MW MIG(0|1) GPM(0|1) SM_% STATUS
 *   inst GPU GI_ID PROFILE(index into profiles below) START USED_MIB SM_%
 *   remap GPU PENDING(0|1) FAILED(0|1) (without the line the GPU tells nothing of its rows)
 *   xid GPU CODE (an event, told once; those of one state in their order)
 *   energy GPU MILLIJOULES (of the GPU before it; without the line the GPU has no energy counter)
 * STATUS is the NVML return code that every call on this GPU gives (0: none). GPM metrics are the mean of the
 * two samples' SM_%; other metrics are fixed fractions of it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, UNKNOWN = 999 };
enum { MAX_GPUS = 16, MAX_PARTS = 8 };

typedef struct { int gpu, part; } Handle; /* part -1: the GPU itself */
typedef struct { char uuid[80], name[96]; int util, used_mib, power_mw, mig, gpm; double sm; int status;
                 long long energy_mj; int pending, failed; } Gpu;
typedef struct { int gpu, gi, profile, start, used_mib; double sm; } Part;
typedef struct { int sequence; double sm; } Sample;

static Handle handles[MAX_GPUS][MAX_PARTS + 1];
static Gpu gpus[MAX_GPUS];
static Part parts[MAX_GPUS * MAX_PARTS];
static int gpu_count, part_count, sequence;
static struct { int gpu, code; } xids[MAX_PARTS];
static int xid_count, xids_told;

static const struct { int id, slices, sms, most; unsigned long long mb; const char *name; } profiles[] = {
    {19, 1, 16, 7, 9984, "MIG 1g.10gb"}, {14, 2, 32, 3, 20096, "MIG 2g.20gb"},
    {9, 3, 60, 2, 40448, "MIG 3g.40gb"}, {5, 4, 64, 1, 40448, "MIG 4g.40gb"},
};

static int load(void) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    gpu_count = part_count = xid_count = 0;
    if (!file) return UNKNOWN;
    while (fgets(line, sizeof line, file)) {
        Gpu *g = &gpus[gpu_count];
        Part *p = &parts[part_count];
        if (gpu_count < MAX_GPUS && sscanf(line, "gpu %79s %95s %d %d %d %d %d %lf %d", g->uuid, g->name, &g->util,
                &g->used_mib, &g->power_mw, &g->mig, &g->gpm, &g->sm, &g->status) == 9) {
            g->energy_mj = -1;
            g->pending = g->failed = -1;
            for (char *c = g->name; *c; c++) if (*c == '_') *c = ' ';
            gpu_count++;
        } else if (part_count < MAX_GPUS * MAX_PARTS && sscanf(line, "inst %d %d %d %d %d %lf", &p->gpu, &p->gi,
                &p->profile, &p->start, &p->used_mib, &p->sm) == 6) {
            part_count++;
        } else if (gpu_count) {
            int at, one, two;
            long long energy_mj;
            if (sscanf(line, "energy %d %lld", &at, &energy_mj) == 2 && at >= 0 && at < gpu_count)
                gpus[at].energy_mj = energy_mj;
            else if (sscanf(line, "remap %d %d %d", &at, &one, &two) == 3 && at >= 0 && at < gpu_count) {
                gpus[at].pending = one;
                gpus[at].failed = two;
            } else if (sscanf(line, "xid %d %d", &at, &one) == 2 && at < gpu_count && xid_count < MAX_PARTS) {
                xids[xid_count].gpu = at;
                xids[xid_count++].code = one;
            }
        }
    }
    fclose(file);
    return OK;
}

/* The GPU behind a handle, after reading the state; NULL with *code set when it cannot be used. */
static Gpu *gpu_of(const Handle *handle, int *code) {
    *code = load();
    if (*code == OK && (!handle || handle->gpu >= gpu_count)) *code = INVALID;
    if (*code == OK) *code = gpus[handle->gpu].status;
    return *code == OK ? &gpus[handle->gpu] : NULL;
}

static Part *part_of(int gpu, int gi) {
    for (int i = 0; i < part_count; i++)
        if (parts[i].gpu == gpu && parts[i].gi == gi) return &parts[i];
    return NULL;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return load(); }
int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
        case OK: return "Success";
        case INVALID: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case 15: return "GPU is lost";
        default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = load();
    *count = (unsigned)gpu_count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **device) {
    int code = load();
    if (code != OK) return code;
    if (index >= (unsigned)gpu_count) return INVALID;
    if (gpus[index].status) return gpus[index].status;
    handles[index][MAX_PARTS] = (Handle){(int)index, -1};
    *device = &handles[index][MAX_PARTS];
    return OK;
}

int nvmlDeviceGetUUID(Handle *device, char *uuid, unsigned length) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    return snprintf(uuid, length, "%s", gpu->uuid) < (int)length ? OK : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetName(Handle *device, char *name, unsigned length) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    return snprintf(name, length, "%s", gpu->name) < (int)length ? OK : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetMigMode(Handle *device, unsigned *current, unsigned *pending) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    if (gpu->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)gpu->mig;
    return OK;
}

int nvmlDeviceGetPowerUsage(Handle *device, unsigned *milliwatts) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    if (gpu->power_mw < 0) return NOT_SUPPORTED;
    *milliwatts = (unsigned)gpu->power_mw;
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(Handle *device, unsigned long long *millijoules) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    if (gpu->energy_mj < 0) return NOT_SUPPORTED;
    *millijoules = (unsigned long long)gpu->energy_mj;
    return OK;
}

int nvmlDeviceGetRemappedRows(Handle *device, unsigned *few, unsigned *bad, unsigned *pending, unsigned *failed) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    if (gpu->pending < 0) return NOT_SUPPORTED;
    *few = *bad = 0;
    *pending = (unsigned)gpu->pending;
    *failed = (unsigned)gpu->failed;
    return OK;
}

typedef struct { Handle *device; unsigned long long type, data; unsigned gi, ci; } Event;

int nvmlEventSetCreate(void **events) { *events = &xids_told; return OK; }
int nvmlEventSetFree(void *events) { (void)events; return OK; }

int nvmlDeviceRegisterEvents(Handle *device, unsigned long long types, void *events) {
    int code;
    (void)types, (void)events;
    return gpu_of(device, &code) ? OK : code;
}

int nvmlEventSetWait_v2(void *events, Event *event, unsigned ms) {
    (void)events, (void)ms;
    load();
    if (xids_told >= xid_count) return TIMEOUT;
    event->device = &handles[xids[xids_told].gpu][MAX_PARTS];
    event->type = 8;
    event->data = (unsigned long long)xids[xids_told++].code;
    event->gi = event->ci = 0xFFFFFFFF;
    return OK;
}

typedef struct { unsigned version; unsigned long long total, reserved, available, used; } Memory;

int nvmlDeviceGetMemoryInfo_v2(Handle *device, Memory *memory) {
    int code, used;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    used = gpu->used_mib;
    if (device->part >= 0) {
        Part *part = part_of(device->gpu, device->part);
        if (!part) return NOT_FOUND;
        used = part->used_mib;
    }
    memory->used = (unsigned long long)used << 20;
    memory->total = 80ULL << 30;
    memory->reserved = 600ULL << 20;
    memory->available = memory->total - memory->reserved - memory->used;
    return OK;
}

typedef struct { unsigned gpu, memory; } Rates;

int nvmlDeviceGetUtilizationRates(Handle *device, Rates *rates) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    if (gpu->mig == 1) return NOT_SUPPORTED;
    rates->gpu = (unsigned)gpu->util;
    rates->memory = 0;
    return OK;
}

int nvmlDeviceGetEncoderUtilization(Handle *device, unsigned *percent, unsigned *period_us) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    if (gpu->mig == 1) return NOT_SUPPORTED;
    *percent = 0;
    *period_us = 100000;
    return OK;
}

int nvmlDeviceGetDecoderUtilization(Handle *device, unsigned *percent, unsigned *period_us) {
    return nvmlDeviceGetEncoderUtilization(device, percent, period_us);
}

/* --- MIG --------------------------------------------------------------------------------------- */

typedef struct {
    unsigned version, id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mb;
    char name[96];
} Profile;

int nvmlDeviceGetGpuInstanceProfileInfoV(Handle *device, unsigned index, Profile *info) {
    int code;
    if (!gpu_of(device, &code)) return code;
    if (index >= sizeof profiles / sizeof *profiles) return NOT_SUPPORTED;
    info->id = (unsigned)profiles[index].id;
    info->slices = (unsigned)profiles[index].slices;
    info->sms = (unsigned)profiles[index].sms;
    info->instances = (unsigned)profiles[index].most;
    info->memory_mb = profiles[index].mb;
    snprintf(info->name, sizeof info->name, "%s", profiles[index].name);
    return OK;
}

int nvmlDeviceGetGpuInstances(Handle *device, unsigned profile_id, Handle **found, unsigned *count) {
    int code;
    unsigned room = *count;
    if (!gpu_of(device, &code)) return code;
    *count = 0;
    for (int i = 0; i < part_count; i++) {
        if (parts[i].gpu != device->gpu || profiles[parts[i].profile].id != (int)profile_id) continue;
        if (*count == room) return INSUFFICIENT_SIZE;
        handles[device->gpu][i % MAX_PARTS] = (Handle){device->gpu, parts[i].gi};
        found[(*count)++] = &handles[device->gpu][i % MAX_PARTS];
    }
    return OK;
}

typedef struct { Handle *device; unsigned id, profile_id, start, size; } Instance;

int nvmlGpuInstanceGetInfo(Handle *instance, Instance *info) {
    int code;
    Part *part;
    if (!gpu_of(instance, &code)) return code;
    part = part_of(instance->gpu, instance->part);
    if (!part) return NOT_FOUND;
    info->device = &handles[instance->gpu][MAX_PARTS];
    info->id = (unsigned)part->gi;
    info->profile_id = (unsigned)profiles[part->profile].id;
    info->start = (unsigned)part->start;
    info->size = (unsigned)profiles[part->profile].slices;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle *device, unsigned *count) {
    int code;
    if (!gpu_of(device, &code)) return code;
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle *device, unsigned index, Handle **part) {
    int code;
    unsigned seen = 0;
    if (!gpu_of(device, &code)) return code;
    for (int i = 0; i < part_count; i++) {
        if (parts[i].gpu != device->gpu || seen++ != index) continue;
        handles[device->gpu][i % MAX_PARTS] = (Handle){device->gpu, parts[i].gi};
        *part = &handles[device->gpu][i % MAX_PARTS];
        return OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(Handle *part, unsigned *id) {
    *id = (unsigned)part->part;
    return part->part >= 0 ? OK : INVALID;
}

/* --- GPM --------------------------------------------------------------------------------------- */

typedef struct { unsigned version, supported; } Support;

int nvmlGpmQueryDeviceSupport(Handle *device, Support *support) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    support->supported = (unsigned)gpu->gpm;
    return OK;
}

int nvmlGpmSampleAlloc(Sample **sample) { return (*sample = calloc(1, sizeof **sample)) ? OK : UNKNOWN; }
int nvmlGpmSampleFree(Sample *sample) { free(sample); return OK; }

int nvmlGpmSampleGet(Handle *device, Sample *sample) {
    int code;
    Gpu *gpu = gpu_of(device, &code);
    if (!gpu) return code;
    *sample = (Sample){++sequence, gpu->sm};
    return OK;
}

int nvmlGpmMigSampleGet(Handle *device, unsigned gi, Sample *sample) {
    int code;
    Part *part;
    if (!gpu_of(device, &code)) return code;
    part = part_of(device->gpu, (int)gi);
    if (!part) return NOT_FOUND;
    *sample = (Sample){++sequence, part->sm};
    return OK;
}

typedef struct { unsigned id; int code; double value; const char *text[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } Metrics;

int nvmlGpmMetricsGet(Metrics *ask) {
    double sm;
    if (!ask->first || !ask->second || ask->first->sequence >= ask->second->sequence) return INVALID;
    sm = (ask->first->sm + ask->second->sm) / 2;
    for (unsigned i = 0; i < ask->count; i++) {
        Metric *m = &ask->metrics[i];
        m->code = OK;
        switch (m->id) {
            case 1: m->value = sm < 0 ? 55 : sm; break;            /* engine: there even where SM is not */
            case 2: if (sm < 0) m->code = NOT_SUPPORTED; m->value = sm; break;
            case 3: m->value = sm / 2; break;
            case 5: m->value = sm / 4; break;
            case 10: m->value = sm < 0 ? NAN : sm / 5; break;
            case 20: case 21: m->value = 1000; break;              /* MiB/s */
            case 60: case 61: m->value = 20000; break;
            default: m->value = 0;                                /* as a real driver says of a metric it lacks */
        }
    }
    return OK;
}
