/* A libcuda.so.1 without a GPU, for tests: device memory is host memory, and streams are queues.
 *
 *   cuMemcpy*Async, cuLaunchKernel ...   push(stream, op)         nothing happens yet
 *   cuEventSynchronize ...               steps until it is done   which stream steps is drawn
 *
 * Work happens only when something waits for it, or by chance at any call, so what is not ordered by
 * a stream or an event is done in an order that the seed chooses: a missing wait shows as wrong data.
 * Kernels are run by a hook (their twins in Python) with the very bytes of the launch's arguments.
 * One lock is held throughout; a hook must not call back.
 *
 * Stricter than the real one: asynchronous copies only between device memory and memory that is
 * registered; memory that queued work touches cannot be freed; of a stream that is captured only
 * launches, copies, fills and host functions. As strict: the context is a thread's when it has said
 * so, and is gone with its last holder; a thread that captures may not allocate, free, load code or
 * wait, which spoils its capture; more than 48 KiB of a block's shared memory have to be allowed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
    ALREADY_REGISTERED = 712, LAUNCH_FAILED = 719, UNSUPPORTED = 900, INVALIDATED = 901,
};
enum { SHARED = 48 << 10, MOST_SHARED = 227 << 10, MAX_DYNAMIC_SHARED = 8 };

typedef int Result;
typedef uint64_t Pointer;
typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Function { char name[256]; unsigned shared; } Function;

enum Kind { COPY, FILL, RECORD, WAIT, LAUNCH, HOST };

enum Way { INSIDE, IN, OUT };          /* of a copy */

typedef struct Op {
    enum Kind kind;
    enum Way way;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    unsigned word;
    Event *event;
    unsigned long round;          /* of the event: which record a wait is for */
    char name[256];
    unsigned grid[3], block[3];
    void *arguments;
    uint64_t handle;
    struct Op *next;
} Op;

typedef struct Queue { Op *head, *tail; } Queue;
struct Stream { Queue waiting; Queue *capture; Stream *next; };
struct Event { unsigned long recorded, done, at; int timed; };
typedef struct Span { Pointer start; size_t bytes; int host; struct Span *next; } Span;

typedef int (*LaunchHook)(const char *, const unsigned *, const unsigned *, const void *, size_t);
typedef int (*HostHook)(uint64_t);

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static Stream *streams, *zero;
static Span *spans;
static size_t used_bytes, total_bytes = (size_t)1 << 30;
static int devices = 1, version = 13000, init_result = OK, lost = OK;
static uint64_t chance = 1;
static unsigned eager_percent = 10;
static char fail_name[64];
static int fail_after = -1, fail_result, op_fault_after = -1, op_fault_result;
static LaunchHook launch_hook;
static HostHook host_hook;
static unsigned long copies, launches, handles, ticks;     /* ticks: the clock of the device */
static int holders, context = 1;                            /* of the primary context; which one */
static __thread int current, capturing, spoiled;            /* what a thread has */
static size_t moved[3];                                     /* bytes of copies, by their way */

static unsigned draw(unsigned bound) {
    chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
    return (unsigned)(chance >> 33) % bound;
}

/* ---- running what streams hold ---- */

static int is_ready(const Op *op) { return op->kind != WAIT || op->event->done >= op->round; }

static void run(Op *op) {
    if (lost) return;
    if (op_fault_after == 0) { lost = op_fault_result; op_fault_after = -1; return; }
    if (op_fault_after > 0) op_fault_after--;
    if (op->kind != RECORD && op->kind != WAIT) ticks++;
    switch (op->kind) {
    case COPY: memmove(op->to, op->from, op->bytes); copies++, moved[op->way] += op->bytes; break;
    case FILL: for (size_t i = 0; i < op->bytes / 4; i++) ((unsigned *)op->to)[i] = op->word; break;
    case RECORD:
        if (op->event->done < op->round) op->event->done = op->round, op->event->at = ticks;
        break;
    case LAUNCH:
        launches++;
        if (!launch_hook || launch_hook(op->name, op->grid, op->block, op->arguments, op->bytes))
            lost = LAUNCH_FAILED;
        break;
    case HOST: if (!host_hook || host_hook(op->handle)) lost = LAUNCH_FAILED; break;
    case WAIT: break;
    }
}

static void push(Queue *queue, Op *op) {
    op->next = NULL;
    if (queue->tail) queue->tail->next = op; else queue->head = op;
    queue->tail = op;
}

static void step(Stream *stream) {
    Op *op = stream->waiting.head;
    stream->waiting.head = op->next;
    if (!op->next) stream->waiting.tail = NULL;
    run(op);
    free(op->arguments);
    free(op);
}

static Stream *pick(void) {
    unsigned ready = 0;
    for (Stream *s = streams; s; s = s->next)
        if (s->waiting.head && is_ready(s->waiting.head)) ready++;
    if (!ready) return NULL;
    unsigned chosen = draw(ready);
    for (Stream *s = streams; s; s = s->next)
        if (s->waiting.head && is_ready(s->waiting.head) && !chosen--) return s;
    return NULL;
}

/* Steps of the stream alone and of what it waits for, or of any streams, as drawn, until done. */
static int need(Stream *stream, Event *event, unsigned long round);

static Stream *recorder(Event *event, unsigned long round) {
    for (Stream *s = streams; s; s = s->next)
        for (Op *op = s->waiting.head; op; op = op->next)
            if (op->kind == RECORD && op->event == event && op->round == round) return s;
    return NULL;
}

static int need(Stream *stream, Event *event, unsigned long round) {
    int alone = draw(2);
    while (!lost && (event ? event->done < round : stream->waiting.head != NULL)) {
        Stream *next;
        if (alone) {
            next = event ? recorder(event, round) : stream;
            if (!next) return NOT_READY;
            if (!is_ready(next->waiting.head)) {
                Op *head = next->waiting.head;
                if (need(NULL, head->event, head->round)) return NOT_READY;
            }
        } else {
            next = pick();
        }
        if (!next) return NOT_READY;
        step(next);
    }
    return OK;
}

/* At the start of every call: perhaps something runs; perhaps the call is to fail. */
static Result enter(const char *name) {
    if (init_result) return init_result;
    if (!holders || current != context) return INVALID_CONTEXT;
    if (lost) return lost;
    if (fail_after >= 0 && !strcmp(name, fail_name) && fail_after-- == 0) return fail_result;
    while (draw(100) < eager_percent) {
        Stream *stream = pick();
        if (!stream) break;
        step(stream);
    }
    return lost;
}

#define BEGIN                                   \
    pthread_mutex_lock(&lock);                  \
    Result result = enter(__func__);            \
    if (result) goto end;
#define END                                     \
    goto end;                                   \
end:                                            \
    pthread_mutex_unlock(&lock);                \
    return result;
#define REFUSE(code) do { result = (code); goto end; } while (0)
#define NOT_WHILE_CAPTURING if (capturing) { spoiled = 1; REFUSE(UNSUPPORTED); }

static Op *make(enum Kind kind) {
    Op *op = calloc(1, sizeof *op);
    op->kind = kind;
    return op;
}

static Op *put(Stream *stream, Op *op) {
    push(stream->capture ? stream->capture : &stream->waiting, op);
    return op;
}

/* The stream 0, which waits for no other and which no other waits for: ours are non-blocking. */
static Stream *default_stream(void) {
    if (!zero) {
        zero = calloc(1, sizeof *zero);
        zero->next = streams;
        streams = zero;
    }
    return zero;
}

static int has(Pointer start, size_t bytes, int host) {
    for (Span *s = spans; s; s = s->next)
        if (s->host == host && start >= s->start && start + bytes <= s->start + s->bytes) return 1;
    return 0;
}

static void add_span(Pointer start, size_t bytes, int host) {
    Span *span = malloc(sizeof *span);
    *span = (Span){start, bytes, host, spans};
    spans = span;
}

static int in_use(const Span *span) {
    for (Stream *s = streams; s; s = s->next)
        for (Op *op = s->waiting.head; op; op = op->next) {
            Pointer to = (Pointer)op->to, from = (Pointer)op->from;
            if ((to >= span->start && to < span->start + span->bytes) ||
                (from >= span->start && from < span->start + span->bytes)) return 1;
        }
    return 0;
}

/* Its bytes; 0 if there is no such span, or something that is to run touches it. */
static size_t take_span(Pointer start, int host) {
    for (Span **at = &spans; *at; at = &(*at)->next)
        if ((*at)->start == start && (*at)->host == host) {
            Span *found = *at;
            size_t bytes = found->bytes;
            if (!lost && in_use(found)) return 0;
            *at = found->next;
            free(found);
            return bytes;
        }
    return 0;
}

/* ---- the machine ---- */

Result cuInit(unsigned flags) { return init_result; }
Result cuDriverGetVersion(int *found) { *found = version; return OK; }
Result cuDeviceGetCount(int *count) { *count = devices; return OK; }
Result cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= devices) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}
Result cuDeviceGetName(char *name, int bytes, int device) {
    snprintf(name, (size_t)bytes, "Fake H200");
    return OK;
}
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = total_bytes; return OK; }
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : 1;
    return OK;
}
Result cuDevicePrimaryCtxRetain(void **found, int device) {
    pthread_mutex_lock(&lock);
    holders++;
    *found = (void *)(intptr_t)context;
    pthread_mutex_unlock(&lock);
    return OK;
}
Result cuDevicePrimaryCtxRelease_v2(int device) {
    pthread_mutex_lock(&lock);
    Result result = holders ? OK : INVALID_CONTEXT;
    if (holders && --holders == 0) context++;
    pthread_mutex_unlock(&lock);
    return result;
}
Result cuCtxSetCurrent(void *wanted) { current = (int)(intptr_t)wanted; return OK; }
Result cuMemGetInfo_v2(size_t *left, size_t *total) {
    BEGIN
    *left = total_bytes - used_bytes;
    *total = total_bytes;
    END
}

/* ---- memory ---- */

Result cuMemAlloc_v2(Pointer *pointer, size_t bytes) {
    BEGIN
    NOT_WHILE_CAPTURING
    void *memory;
    if (!bytes) REFUSE(INVALID_VALUE);
    if (used_bytes + bytes > total_bytes || posix_memalign(&memory, 512, bytes))
        REFUSE(OUT_OF_MEMORY);
    memset(memory, 0xFB, bytes);
    used_bytes += bytes;
    add_span((Pointer)memory, bytes, 0);
    *pointer = (Pointer)memory;
    END
}
Result cuMemFree_v2(Pointer pointer) {
    pthread_mutex_lock(&lock);
    size_t bytes = capturing ? 0 : take_span(pointer, 0);
    if (bytes) {
        used_bytes -= bytes;
        memset((void *)pointer, 0xDD, bytes);
        free((void *)pointer);
    }
    pthread_mutex_unlock(&lock);
    return bytes ? OK : INVALID_HANDLE;
}
Result cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
    BEGIN
    NOT_WHILE_CAPTURING
    if (!bytes) REFUSE(INVALID_VALUE);
    for (Span *s = spans; s; s = s->next)
        if (s->host && (Pointer)start < s->start + s->bytes && s->start < (Pointer)start + bytes)
            REFUSE(ALREADY_REGISTERED);
    add_span((Pointer)start, bytes, 1);
    END
}
Result cuMemHostUnregister(void *start) {
    pthread_mutex_lock(&lock);
    size_t bytes = take_span((Pointer)start, 1);
    pthread_mutex_unlock(&lock);
    return bytes ? OK : INVALID_HANDLE;
}

static Result copy(Stream *stream, Pointer to, int to_host, Pointer from, int from_host, size_t bytes) {
    if (!stream || !has(to, bytes, to_host) || !has(from, bytes, from_host)) return INVALID_VALUE;
    Op *op = put(stream, make(COPY));
    op->to = (void *)to, op->from = (void *)from, op->bytes = bytes;
    op->way = from_host ? IN : to_host ? OUT : INSIDE;
    return OK;
}
Result cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t bytes, Stream *stream) {
    BEGIN
    result = copy(stream, to, 0, (Pointer)from, 1, bytes);
    END
}
typedef struct Side { size_t x, y; int kind; Pointer host, device; void *array; size_t pitch; } Side;
typedef struct Part { Side from, to; size_t width, rows; } Part;
Result cuMemcpy2DAsync_v2(const Part *part, Stream *stream) {
    BEGIN
    if (part->from.kind != 1 || part->to.kind != 2) REFUSE(INVALID_VALUE);   /* host, device */
    for (size_t i = 0; i < part->rows && !result; i++)
        result = copy(stream, part->to.device + i * part->to.pitch, 0,
                      part->from.host + i * part->from.pitch, 1, part->width);
    END
}
Result cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t bytes, Stream *stream) {
    BEGIN
    result = copy(stream, (Pointer)to, 1, from, 0, bytes);
    END
}
Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, Stream *stream) {
    BEGIN
    result = copy(stream, to, 0, from, 0, bytes);
    END
}
Result cuMemsetD32Async(Pointer to, unsigned word, size_t count, Stream *stream) {
    BEGIN
    if (!stream || to % 4 || !has(to, 4 * count, 0)) REFUSE(INVALID_VALUE);
    Op *op = put(stream, make(FILL));
    op->to = (void *)to, op->word = word, op->bytes = 4 * count;
    END
}
/* Of ordinary memory: the source is staged, and the rest is done by the stream 0, beside all others. */
Result cuMemcpyHtoD_v2(Pointer to, const void *from, size_t bytes) {
    BEGIN
    NOT_WHILE_CAPTURING
    if (!has(to, bytes, 0)) REFUSE(INVALID_VALUE);
    Op *op = put(default_stream(), make(COPY));
    op->arguments = malloc(bytes);
    memcpy(op->arguments, from, bytes);
    op->to = (void *)to, op->from = op->arguments, op->bytes = bytes;
    END
}
Result cuMemcpyDtoH_v2(void *to, Pointer from, size_t bytes) {
    BEGIN
    NOT_WHILE_CAPTURING
    if (!has(from, bytes, 0)) REFUSE(INVALID_VALUE);
    memcpy(to, (void *)from, bytes);
    END
}

/* ---- streams and events ---- */

Result cuStreamCreate(Stream **stream, unsigned flags) {
    BEGIN
    *stream = calloc(1, sizeof **stream);
    handles++;
    (*stream)->next = streams;
    streams = *stream;
    END
}
Result cuStreamSynchronize(Stream *stream) {
    BEGIN
    NOT_WHILE_CAPTURING
    if (!stream) stream = default_stream();
    if (stream->capture) REFUSE(UNSUPPORTED);
    result = need(stream, NULL, 0);
    if (lost) result = lost;
    END
}
Result cuStreamQuery(Stream *stream) {
    BEGIN
    if (stream->waiting.head) result = NOT_READY;
    END
}
Result cuStreamDestroy_v2(Stream *stream) {
    pthread_mutex_lock(&lock);
    need(stream, NULL, 0);
    for (Stream **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) { *at = stream->next; break; }
    for (Op *op = stream->waiting.head; op;) {   /* of a lost device */
        Op *next = op->next;
        free(op->arguments);
        free(op);
        op = next;
    }
    free(stream);
    handles--;
    pthread_mutex_unlock(&lock);
    return OK;
}
Result cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    BEGIN
    if (stream->capture) REFUSE(UNSUPPORTED);
    if (event->recorded > event->done) {
        Op *op = put(stream, make(WAIT));
        op->event = event, op->round = event->recorded;
    }
    END
}
Result cuEventCreate(Event **event, unsigned flags) {
    BEGIN
    *event = calloc(1, sizeof **event);
    (*event)->timed = flags == 0;
    handles++;
    END
}
Result cuEventDestroy_v2(Event *event) {
    BEGIN
    if (event->recorded > event->done) REFUSE(INVALID_HANDLE);
    free(event);
    handles--;
    END
}
Result cuEventRecord(Event *event, Stream *stream) {
    BEGIN
    if (stream->capture) REFUSE(UNSUPPORTED);
    Op *op = put(stream, make(RECORD));
    op->event = event, op->round = ++event->recorded;
    END
}
Result cuEventQuery(Event *event) {
    BEGIN
    if (event->done < event->recorded) result = NOT_READY;
    END
}
Result cuEventSynchronize(Event *event) {
    BEGIN
    NOT_WHILE_CAPTURING
    result = need(NULL, event, event->recorded);
    if (lost) result = lost;
    END
}

Result cuEventElapsedTime_v2(float *milliseconds, Event *first, Event *last) {
    BEGIN
    if (!first->timed || !last->timed || !first->recorded || !last->recorded) REFUSE(INVALID_HANDLE);
    if (first->done < first->recorded || last->done < last->recorded) REFUSE(NOT_READY);
    *milliseconds = (float)(last->at - first->at);
    END
}

/* ---- code ---- */

Result cuModuleLoadData(void **module, const void *image) {
    BEGIN
    NOT_WHILE_CAPTURING
    if (!memcmp(image, "broken", 6)) REFUSE(200);   /* CUDA_ERROR_INVALID_IMAGE */
    *module = malloc(1);
    handles++;
    END
}
Result cuModuleUnload(void *module) {
    pthread_mutex_lock(&lock);
    free(module);
    handles--;
    pthread_mutex_unlock(&lock);
    return OK;
}
Result cuModuleGetFunction(Function **function, void *module, const char *name) {
    BEGIN
    *function = calloc(1, sizeof **function);
    snprintf((*function)->name, sizeof (*function)->name, "%s", name);
    (*function)->shared = SHARED;
    END
}
Result cuFuncSetAttribute(Function *function, int attribute, int value) {
    BEGIN
    if (attribute != MAX_DYNAMIC_SHARED || value < 0 || value > MOST_SHARED) REFUSE(INVALID_VALUE);
    function->shared = (unsigned)value;
    END
}

static Result launch(Function *function, const unsigned *grid, const unsigned *block, Stream *stream,
                     void **extra) {
    size_t threads = (size_t)block[0] * block[1] * block[2], bytes = 0;
    const void *arguments = NULL;
    if (!stream || !threads || threads > 1024 || !grid[0] || !grid[1] || !grid[2] ||
        grid[1] > 65535 || grid[2] > 65535)
        return INVALID_VALUE;
    for (; extra && *extra; extra += 2) {          /* 0 ends it, 1: the bytes, 2: how many */
        if (*extra == (void *)1) arguments = extra[1];
        if (*extra == (void *)2) bytes = *(size_t *)extra[1];
    }
    if (!arguments || !bytes) return INVALID_VALUE;
    Op *op = put(stream, make(LAUNCH));
    memcpy(op->name, function->name, sizeof op->name);
    memcpy(op->grid, grid, sizeof op->grid);
    memcpy(op->block, block, sizeof op->block);
    op->arguments = malloc(bytes);
    op->bytes = bytes;
    memcpy(op->arguments, arguments, bytes);
    return OK;
}
Result cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz, unsigned shared, Stream *stream, void **parameters, void **extra) {
    BEGIN
    if (shared > function->shared) REFUSE(INVALID_VALUE);
    result = launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, extra);
    END
}

/* ---- graphs ---- */

Result cuStreamBeginCapture_v2(Stream *stream, int mode) {
    BEGIN
    if (stream->capture) REFUSE(UNSUPPORTED);
    stream->capture = calloc(1, sizeof *stream->capture);
    capturing++;
    END
}
Result cuStreamEndCapture(Stream *stream, Queue **graph) {
    BEGIN
    if (!stream->capture) REFUSE(UNSUPPORTED);
    *graph = spoiled ? NULL : stream->capture;
    stream->capture = NULL;
    capturing--;
    if (spoiled) { spoiled = 0; REFUSE(INVALIDATED); }
    END
}
Result cuGraphInstantiateWithFlags(Queue **executable, Queue *graph, unsigned long long flags) {
    BEGIN
    *executable = graph;
    END
}
Result cuGraphLaunch(Queue *executable, Stream *stream) {
    BEGIN
    for (Op *op = executable->head; op; op = op->next) {
        Op *again = make(op->kind);
        *again = *op;
        if (op->arguments) {
            again->arguments = malloc(op->bytes);
            memcpy(again->arguments, op->arguments, op->bytes);
        }
        put(stream, again);
    }
    END
}
Result cuGraphDestroy(Queue *graph) { return OK; }
Result cuGraphExecDestroy(Queue *executable) { return OK; }

/* ---- names ---- */

static const char *name_of(Result result) {
    switch (result) {
    case OK: return "CUDA_SUCCESS";
    case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
    case NOT_READY: return "CUDA_ERROR_NOT_READY";
    case 700: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case LAUNCH_FAILED: return "CUDA_ERROR_LAUNCH_FAILED";
    default: return "CUDA_ERROR_OF_THE_FAKE";
    }
}
Result cuGetErrorName(Result result, const char **name) { *name = name_of(result); return OK; }
Result cuGetErrorString(Result result, const char **text) { *text = name_of(result); return OK; }
Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    static void *self;
    Dl_info info;
    if (!self && dladdr((void *)cuInit, &info)) self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    for (const char **end = (const char *[]){"_v3", "_v2", "", NULL}; *end; end++) {
        char full[256];
        snprintf(full, sizeof full, "%s%s", name, *end);
        if ((*function = dlsym(self, full))) {
            if (status) *status = 0;
            return OK;
        }
    }
    if (!strcmp(name, "cuGraphInstantiate")) {
        *function = (void *)cuGraphInstantiateWithFlags;
        if (status) *status = 0;
        return OK;
    }
    if (status) *status = 1;
    *function = NULL;
    return NOT_FOUND;
}
Result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
Result cuGetExportTable(const void **table, const void *id) { *table = NULL; return NOT_FOUND; }

/* ---- for tests ---- */

void fake_hooks(LaunchHook launches_by, HostHook host_by) { launch_hook = launches_by, host_hook = host_by; }

/* The order from now on. */
void fake_draw(uint64_t seed, unsigned eager) {
    pthread_mutex_lock(&lock);
    chance = seed * 0x9E3779B97F4A7C15u | 1;
    for (int i = 0; i < 8; i++) draw(2);
    eager_percent = eager;
    pthread_mutex_unlock(&lock);
}
/* A machine as it is when a process starts: no memory, no streams. Those of a lost one are dropped. */
void fake_reset(void) {
    pthread_mutex_lock(&lock);
    while (spans) {
        Span *next = spans->next;
        if (!spans->host) free((void *)spans->start);
        free(spans);
        spans = next;
    }
    streams = zero = NULL;
    holders = capturing = spoiled = 0;
    context++;
    used_bytes = 0;
    devices = 1, version = 13000, init_result = OK, lost = OK;
    fail_after = op_fault_after = -1;
    total_bytes = (size_t)1 << 30;
    copies = launches = handles = 0;
    memset(moved, 0, sizeof moved);
    pthread_mutex_unlock(&lock);
}
void fake_machine(int result, int count, int driver_version, size_t bytes) {
    init_result = result, devices = count, version = driver_version, total_bytes = bytes;
}
/* The call of that name fails, after `after` others of it. */
void fake_fail(const char *name, int after, int with) {
    pthread_mutex_lock(&lock);
    snprintf(fail_name, sizeof fail_name, "%s", name);
    fail_after = after, fail_result = with;
    pthread_mutex_unlock(&lock);
}
/* The context is lost when `after` more operations of streams have run. */
void fake_fault(int after, int with) {
    pthread_mutex_lock(&lock);
    op_fault_after = after, op_fault_result = with;
    pthread_mutex_unlock(&lock);
}
size_t fake_used_bytes(void) { return used_bytes; }
size_t fake_pinned_bytes(void) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (Span *s = spans; s; s = s->next) bytes += s->host ? s->bytes : 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}
unsigned long fake_copies(void) { return copies; }
size_t fake_in_bytes(void) { return moved[IN]; }
size_t fake_out_bytes(void) { return moved[OUT]; }
/* Streams, events and modules that were not given back. */
unsigned long fake_handles(void) { return handles; }
unsigned long fake_launches(void) { return launches; }
/* A host function in a stream. */
int fake_host(Stream *stream, uint64_t handle) {
    pthread_mutex_lock(&lock);
    put(stream, make(HOST))->handle = handle;
    pthread_mutex_unlock(&lock);
    return OK;
}
