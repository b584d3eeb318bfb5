// A stand-in driver: a libcuda.so.1 for machines without a GPU, with the entry points that the project reaches through
// cudarc, and one device of compute capability 9.0, on which the kernels' own text runs, compiled for the host. With it
// the path to NVIDIA's driver runs in tests: opening, loading what NVRTC compiled, streams, events, pinned memory and
// graphs. It shows nothing of what a GPU does within a kernel and, but for one mode, of its time.
//
// scripts/stand-in-driver.sh builds it, for any program that loads libcuda.
//
// What is asked of a stream waits until somebody waits for it, so that a missing wait shows: copies read pinned memory
// when they run, not when they are asked for. Copies to ordinary memory are over when the call returns; those from it
// take the bytes at the call. Where CUDA leaves a choice this takes the one that punishes. Graphs are updated only
// where the kinds of operations and the kernels are the same, which is less than CUDA allows.
//
// EVERGRAPH_STANDIN_MODE        late; eager: operations run when they are asked for; or paced: no kernel runs and nothing
//                               is copied to the device, each takes the time below beside the host, and all that comes
//                               back is 1.0, which shows what of a step the host takes beside a GPU of that speed
// EVERGRAPH_STANDIN_BESIDE      paced, 1: streams of the least priority do what they are asked, as fast as the
//                               host does it, so that samples are samples
// EVERGRAPH_STANDIN_KERNEL_NS   paced: of one kernel, 12,000
// EVERGRAPH_STANDIN_COPY_NS     paced: of one copy, 4,000, and
// EVERGRAPH_STANDIN_BYTES_PER_US  its bytes in a microsecond, 40,000
// EVERGRAPH_STANDIN_VERSION     the driver's version, 13000
// EVERGRAPH_STANDIN_MEMORY      bytes of the device, 4 GiB
// EVERGRAPH_STANDIN_POOLS       0: no allocations in the order of a stream
// EVERGRAPH_STANDIN_FAIL_AFTER  the number of calls after which every call that needs a context fails
// EVERGRAPH_STANDIN_FAIL_BLOCKING  the number of waits for events that block, of which the last fails, as all calls then
// EVERGRAPH_STANDIN_KEEPS       1: memory is not freed in the order of a stream; the call is refused
// EVERGRAPH_STANDIN_WAITS       0: the host waits for nothing, as if every wait had been forgotten
// EVERGRAPH_STANDIN_ORDERS      0: streams wait for no event, likewise
#include "driver.hpp"

#include <sys/prctl.h>

using namespace standin;

#define API extern "C" __attribute__((visibility("default")))

static std::mutex lock;
static const Settings settings;
static bool initialized = false;
static Context* context = nullptr;
static unsigned retained = 0;
static u64 calls = 0;
// Handles of contexts are numbers, so that none is that of one before it.
static size_t number = 0;
static thread_local void* current = nullptr;

static void* handle_of_context() { return context ? (void*)(16 * number) : nullptr; }

namespace {

// A call that needs a context: holds the lock, and `refusal` states why it cannot be.
struct Call {
    std::unique_lock<std::mutex> guard{lock};
    Result refusal = SUCCESS;

    Call() {
        if (!initialized) refusal = NOT_INITIALIZED;
        else if (!current || current != handle_of_context()) refusal = INVALID_CONTEXT;
        else if (++calls >= settings.fail_after) refusal = context->lose(LAUNCH_FAILED);
        else refusal = context->lost;
    }

    // Has the host wait, while other threads go on; in the other modes what is waited for has been done.
    Result until(Clock::time_point over, Result result) {
        guard.unlock();
        if (!settings.paced) return result;
        // A sleep may end a microsecond late, not fifty.
        static thread_local int punctual = prctl(PR_SET_TIMERSLACK, 1000);
        (void)punctual;
        std::this_thread::sleep_until(over);
        return result;
    }
};

// The stream of a handle, which has to be one of this context.
std::shared_ptr<Stream> stream_of(void* handle) {
    for (auto& stream : context->streams) if (stream.get() == handle && stream->alive) return stream;
    return nullptr;
}

// Refuses what cannot be done to a stream that is captured, and ends the capture.
Result breaks(Stream& stream, Result with = CAPTURE_UNSUPPORTED) {
    if (!stream.capture) return SUCCESS;
    stream.capture->invalid = true;
    return with;
}

} // namespace

#define ENTER               \
    Call call;              \
    if (call.refusal) return call.refusal
#define STREAM(HANDLE)                     \
    ENTER;                                 \
    auto stream = stream_of(HANDLE);       \
    if (!stream) return INVALID_HANDLE
#define EVENT(HANDLE)                                                        \
    auto* event = (Event*)(HANDLE);                                          \
    if (!context->events.count(event)) return INVALID_HANDLE

// --- the driver and its device ---

API int cuInit(unsigned flags) {
    std::lock_guard<std::mutex> guard(lock);
    if (flags != 0) return INVALID_VALUE;
    initialized = true;
    return SUCCESS;
}

API int cuDriverGetVersion(int* version) {
    *version = settings.version;
    return SUCCESS;
}

API int cuGetErrorName(int code, const char** name) {
    for (auto& known : NAMES) {
        if (known.code != code) continue;
        *name = known.name;
        return SUCCESS;
    }
    *name = nullptr;
    return INVALID_VALUE;
}

API int cuGetErrorString(int code, const char** words) { return cuGetErrorName(code, words); }

// NVRTC asks for it, for a cache of its own, does without where it is refused, and crashes where it is missing.
API int cuGetExportTable(const void** table, const void*) {
    *table = nullptr;
    return NOT_FOUND;
}

API int cuDeviceGetCount(int* count) {
    *count = 1;
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

API int cuDeviceGet(int* device, int ordinal) {
    *device = 0;
    return !initialized ? NOT_INITIALIZED : ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}

API int cuDeviceGetName(char* name, int bytes, int device) {
    if (device != 0) return INVALID_DEVICE;
    std::snprintf(name, (size_t)bytes, "stand-in");
    return SUCCESS;
}

API int cuDeviceGetPCIBusId(char* name, int bytes, int device) {
    if (device != 0) return INVALID_DEVICE;
    std::snprintf(name, (size_t)bytes, "0000:0A:00.0");
    return SUCCESS;
}

API int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    *bytes = settings.memory;
    return device == 0 ? SUCCESS : INVALID_DEVICE;
}

API int cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (device != 0) return INVALID_DEVICE;
    switch (attribute) {
    case 16: *value = 2; break;                     // multiprocessors
    case 19: *value = 1; break;                     // maps memory of the host
    case 75: *value = 9; break;                     // compute capability, major and
    case 76: *value = 0; break;                     // minor
    case 100: *value = 0; break;                    // uses the host's page tables
    case 115: *value = settings.pools; break;       // allocates in the order of a stream
    default: report("attribute %d was asked for", attribute); return INVALID_VALUE;
    }
    return SUCCESS;
}

API int cuDeviceGetDefaultMemPool(void** pool, int device) {
    if (device != 0) return INVALID_DEVICE;
    if (!settings.pools) return NOT_SUPPORTED;
    *pool = (void*)&settings;
    return SUCCESS;
}

API int cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
    const int threshold = 4;
    return pool == (void*)&settings && attribute == threshold && value ? SUCCESS : INVALID_VALUE;
}

// --- contexts ---

API int cuDevicePrimaryCtxRetain(void** handle, int device) {
    std::lock_guard<std::mutex> guard(lock);
    if (!initialized) return NOT_INITIALIZED;
    if (device != 0) return INVALID_DEVICE;
    if (retained++ == 0) {
        context = new Context(settings), number++;
    }
    *handle = handle_of_context();
    return SUCCESS;
}

API int cuDevicePrimaryCtxRelease_v2(int device) {
    std::lock_guard<std::mutex> guard(lock);
    if (device != 0) return INVALID_DEVICE;
    if (retained == 0) return INVALID_CONTEXT;
    if (--retained == 0) {
        delete context;
        context = nullptr;
    }
    return SUCCESS;
}

API int cuCtxSetCurrent(void* handle) {
    std::lock_guard<std::mutex> guard(lock);
    if (handle && handle != handle_of_context()) return INVALID_CONTEXT;
    current = handle;
    return SUCCESS;
}

API int cuCtxGetCurrent(void** handle) {
    *handle = current;
    return SUCCESS;
}

API int cuCtxSynchronize() {
    ENTER;
    if (context->break_captures()) return CAPTURE_UNSUPPORTED;
    return settings.waits ? call.until(context->over(), context->run_all()) : SUCCESS;
}

API int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ENTER;
    *least = 0, *greatest = -5;
    return SUCCESS;
}

// --- streams and events ---

API int cuStreamCreate(void** handle, unsigned flags) {
    ENTER;
    const unsigned non_blocking = 1;
    if (flags != non_blocking) return INVALID_VALUE;
    context->streams.push_back(std::make_shared<Stream>());
    *handle = context->streams.back().get();
    return SUCCESS;
}

API int cuStreamCreateWithPriority(void** handle, unsigned flags, int priority) {
    if (priority < -5 || priority > 0) return INVALID_VALUE;
    if (int refused = cuStreamCreate(handle, flags)) return refused;
    std::lock_guard<std::mutex> guard(lock);
    ((Stream*)*handle)->beside = priority == 0;
    return SUCCESS;
}

API int cuStreamDestroy_v2(void* handle) {
    STREAM(handle);
    // What was asked of it happens all the same.
    stream->alive = false, stream->capture = nullptr;
    return SUCCESS;
}

API int cuStreamSynchronize(void* handle) {
    STREAM(handle);
    if (Result refused = breaks(*stream)) return refused;
    return settings.waits ? call.until(stream->over, context->run(*stream)) : SUCCESS;
}

API int cuStreamWaitEvent(void* handle, void* of, unsigned) {
    STREAM(handle);
    EVENT(of);
    if (Result refused = breaks(*stream, CAPTURE_ISOLATION)) return refused;
    if (!event->mark || !settings.orders) return SUCCESS;
    Operation wait{Kind::Wait};
    wait.mark = event->mark;
    return context->ask(*stream, std::move(wait));
}

API int cuEventCreate(void** handle, unsigned flags) {
    ENTER;
    const unsigned blocking = 1, without_time = 2;
    auto* event = new Event{(flags & without_time) == 0, (flags & blocking) != 0, nullptr};
    context->events.insert(event);
    *handle = event;
    return SUCCESS;
}

API int cuEventDestroy_v2(void* handle) {
    ENTER;
    EVENT(handle);
    context->events.erase(event);
    delete event;
    return SUCCESS;
}

API int cuEventRecord(void* handle, void* of) {
    STREAM(of);
    EVENT(handle);
    if (Result refused = breaks(*stream)) return refused;
    Operation record{Kind::Record};
    record.mark = event->mark = std::make_shared<Mark>(Mark{stream, false, {}});
    return context->ask(*stream, std::move(record));
}

API int cuEventQuery(void* handle) {
    ENTER;
    EVENT(handle);
    bool done = !event->mark || (event->mark->done && (!settings.paced || Clock::now() >= event->mark->at));
    return done ? SUCCESS : NOT_READY;
}

API int cuEventSynchronize(void* handle) {
    ENTER;
    EVENT(handle);
    static u64 blocked = 0;
    if (event->blocking && ++blocked >= settings.fail_blocking) return context->lose(LAUNCH_FAILED);
    if (!event->mark || !settings.waits) return SUCCESS;
    auto mark = event->mark;
    Result ran = context->run(*mark->stream, mark.get());
    return call.until(mark->at, ran);
}

API int cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    ENTER;
    auto *start = (Event*)from, *end = (Event*)to;
    for (auto* event : {start, end}) {
        if (!context->events.count(event) || !event->timed || !event->mark) return INVALID_HANDLE;
        if (!event->mark->done) return NOT_READY;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(end->mark->at - start->mark->at).count();
    return SUCCESS;
}

API int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

// --- memory ---

static Result reserve(u64* address, size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > settings.memory - context->used) return OUT_OF_MEMORY;
    *address = context->reserve(bytes);
    return *address == 0 ? OUT_OF_MEMORY : SUCCESS;
}

// Takes an allocation away from those that may be asked for.
static Result leave(u64 address) {
    auto found = context->allocations.find(address);
    if (found == context->allocations.end() || found->second.freeing) {
        report("%#llx is freed, and is no allocation, or was freed before", address);
        return INVALID_VALUE;
    }
    found->second.freeing = true;
    context->used -= found->second.bytes;
    return SUCCESS;
}

API int cuMemAllocAsync(u64* address, size_t bytes, void* handle) {
    STREAM(handle);
    if (Result refused = breaks(*stream)) return refused;
    if (!settings.pools) return NOT_SUPPORTED;
    if (Result refused = reserve(address, bytes)) return refused;
    return context->ask(*stream, {Kind::Allocate, *address});
}

API int cuMemFreeAsync(u64 address, void* handle) {
    STREAM(handle);
    if (Result refused = breaks(*stream)) return refused;
    if (settings.keeps) return INVALID_VALUE;
    if (Result refused = leave(address)) return refused;
    return context->ask(*stream, {Kind::Free, address});
}

API int cuMemAlloc_v2(u64* address, size_t bytes) {
    ENTER;
    if (Result refused = reserve(address, bytes)) return refused;
    return context->begin(*address) ? SUCCESS : OUT_OF_MEMORY;
}

API int cuMemFree_v2(u64 address) {
    ENTER;
    if (Result refused = leave(address)) return refused;
    context->run_all();
    return context->run({Kind::Free, address});
}

API int cuMemGetInfo_v2(size_t* free, size_t* total) {
    ENTER;
    *total = settings.memory, *free = settings.memory - context->used;
    return SUCCESS;
}

API int cuMemHostRegister_v2(void* at, size_t bytes, unsigned flags) {
    ENTER;
    const unsigned device_map = 2;
    if (!at || bytes == 0) return INVALID_VALUE;
    // A driver may allow it in a relaxed capture.
    for (auto& stream : context->streams) {
        if (stream->capture && stream->capture->thread == std::this_thread::get_id()) return breaks(*stream);
    }
    if (context->host(at, bytes) != Host::Ordinary) return HOST_MEMORY_ALREADY_REGISTERED;
    context->registered[(u64)at] = {bytes, (flags & device_map) != 0};
    // Pinned memory is there from the beginning.
    if (settings.paced) madvise(at, bytes, MADV_POPULATE_WRITE);
    return SUCCESS;
}

API int cuMemHostUnregister(void* at) {
    ENTER;
    auto found = context->registered.find((u64)at);
    if (found == context->registered.end()) return HOST_MEMORY_NOT_REGISTERED;
    if (context->pending(found->first, found->second.bytes)) {
        report("memory of the host is unregistered, and operations that wait use it");
        return context->lose(ILLEGAL_ADDRESS);
    }
    context->registered.erase(found);
    return SUCCESS;
}

API int cuMemHostGetDevicePointer_v2(u64* address, void* at, unsigned) {
    ENTER;
    auto found = context->registered.find((u64)at);
    if (found == context->registered.end() || !found->second.mapped) return INVALID_VALUE;
    *address = (u64)at;
    return SUCCESS;
}

API int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void* handle) {
    STREAM(handle);
    Host host = context->host(from, bytes);
    if (!context->has(to, bytes, false) || host == Host::Partly) return INVALID_VALUE;
    Operation upload{Kind::Upload, to, (u64)from, bytes};
    if (host == Host::Ordinary) {
        if (Result refused = breaks(*stream)) return refused;
        upload.staged = std::make_shared<std::string>((const char*)from, bytes);
    }
    return context->ask(*stream, std::move(upload));
}

API int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void* handle) {
    STREAM(handle);
    Host host = context->host(to, bytes);
    if (!context->has(from, bytes, false) || host == Host::Partly) return INVALID_VALUE;
    if (host == Host::Ordinary) if (Result refused = breaks(*stream)) return refused;
    Result asked = context->ask(*stream, {Kind::Download, (u64)to, from, bytes});
    if (asked || host == Host::Pinned) return asked;
    return call.until(stream->over, context->run(*stream));
}

API int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void* handle) {
    STREAM(handle);
    if (!context->has(to, bytes, false) || !context->has(from, bytes, false)) return INVALID_VALUE;
    return context->ask(*stream, {Kind::Copy, to, from, bytes});
}

API int cuMemsetD8Async(u64 to, unsigned char byte, size_t bytes, void* handle) {
    STREAM(handle);
    if (!context->has(to, bytes, false)) return INVALID_VALUE;
    return context->ask(*stream, {Kind::FillBytes, to, 0, bytes, byte});
}

API int cuMemsetD32Async(u64 to, unsigned word, size_t words, void* handle) {
    STREAM(handle);
    if (to % 4 != 0 || words > ~0ull / 4 || !context->has(to, words * 4, false)) return INVALID_VALUE;
    return context->ask(*stream, {Kind::FillWords, to, 0, words * 4, word});
}

// --- kernels ---

API int cuModuleLoadData(void** handle, const void* image) {
    ENTER;
    // Machine code is an ELF file, whose length is where its section headers end.
    const auto* bytes = (const unsigned char*)image;
    if (std::memcmp(bytes, "\177ELF\2\1", 6) != 0) return INVALID_IMAGE;
    u64 sections, segments;
    u16 counts[4];
    std::memcpy(&segments, bytes + 32, 8), std::memcpy(&sections, bytes + 40, 8), std::memcpy(counts, bytes + 54, 8);
    u64 end = std::max(segments + (u64)counts[0] * counts[1], sections + (u64)counts[2] * counts[3]);
    auto* module = new Module{std::string((const char*)image, end)};
    context->modules.insert(module);
    *handle = module;
    return SUCCESS;
}

API int cuModuleUnload(void* handle) {
    ENTER;
    auto* module = (Module*)handle;
    if (context->modules.erase(module) == 0) return INVALID_HANDLE;
    for (auto& kernel : kernels) context->functions.erase({module, &kernel});
    delete module;
    return SUCCESS;
}

API int cuModuleGetFunction(void** function, void* handle, const char* name) {
    ENTER;
    auto* module = (Module*)handle;
    if (!context->modules.count(module)) return INVALID_HANDLE;
    for (auto& kernel : kernels) {
        // The text is of the same files, but only what was compiled into this module is its own.
        if (std::strcmp(kernel.name, name) != 0) continue;
        if (module->image.find(std::string(name) + '\0') == std::string::npos) break;
        *function = &(context->functions[{module, &kernel}] = {&kernel, module});
        return SUCCESS;
    }
    report("there is no kernel %s in this module or in kernels.hpp", name);
    return NOT_FOUND;
}

API int cuLaunchKernel(void* handle, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                       unsigned threads_z, unsigned shared_bytes, void* of, void** arguments, void** extra) {
    STREAM(of);
    const Function* function = nullptr;
    for (auto& known : context->functions) if (&known.second == handle) function = &known.second;
    if (!function) return INVALID_HANDLE;
    bool shaped = x > 0 && x < 1u << 31 && y == 1 && z == 1 && threads > 0 && threads <= 1024;
    if (!shaped || threads_y != 1 || threads_z != 1 || shared_bytes != 0 || extra) return INVALID_VALUE;
    Operation launch{Kind::Launch};
    launch.kernel = function->kernel, launch.blocks = x, launch.threads = threads;
    for (size_t bytes : launch.kernel->parameters) launch.arguments.emplace_back((const char*)*arguments++, bytes);
    return context->ask(*stream, std::move(launch));
}

// --- captures and graphs ---

API int cuStreamBeginCapture_v2(void* handle, int) {
    STREAM(handle);
    if (stream->capture) return breaks(*stream, INVALID_VALUE);
    stream->capture = std::make_unique<Capture>();
    return SUCCESS;
}

API int cuStreamEndCapture(void* handle, void** graph) {
    STREAM(handle);
    *graph = nullptr;
    if (!stream->capture) return CAPTURE_UNMATCHED;
    auto capture = std::move(stream->capture);
    if (capture->invalid) return CAPTURE_INVALIDATED;
    auto* operations = new Operations(std::move(capture->operations));
    context->graphs.insert(operations);
    *graph = operations;
    return SUCCESS;
}

API int cuGraphDestroy(void* handle) {
    ENTER;
    auto* graph = (Operations*)handle;
    if (context->graphs.erase(graph) == 0) return INVALID_HANDLE;
    delete graph;
    return SUCCESS;
}

API int cuGraphInstantiateWithFlags(void** handle, void* of, unsigned long long flags) {
    ENTER;
    if (!context->graphs.count((Operations*)of) || flags != 0) return INVALID_VALUE;
    auto* executable = new Executable{std::make_shared<Operations>(*(Operations*)of)};
    context->executables.insert(executable);
    *handle = executable;
    return SUCCESS;
}

struct UpdateResult { int result; void *node, *from; };

API int cuGraphExecUpdate_v2(void* handle, void* of, UpdateResult* result) {
    ENTER;
    const int topology_changed = 2, type_changed = 3, function_changed = 4;
    auto* executable = (Executable*)handle;
    auto* graph = (Operations*)of;
    if (!context->executables.count(executable) || !context->graphs.count(graph)) return INVALID_VALUE;
    *result = {0, nullptr, nullptr};
    auto& before = *executable->operations;
    if (before.size() != graph->size()) result->result = topology_changed;
    for (size_t i = 0; i < graph->size() && result->result == 0; i++) {
        if (before[i].kind != (*graph)[i].kind) result->result = type_changed;
        else if (before[i].kernel != (*graph)[i].kernel) result->result = function_changed;
    }
    if (result->result != 0) return GRAPH_UPDATE_FAILURE;
    // A launch that waits keeps the operations that it was asked for with.
    executable->operations = std::make_shared<Operations>(*graph);
    return SUCCESS;
}

API int cuGraphLaunch(void* handle, void* of) {
    STREAM(of);
    auto* executable = (Executable*)handle;
    if (!context->executables.count(executable)) return INVALID_VALUE;
    if (Result refused = breaks(*stream)) return refused;
    Operation launch{Kind::Graph};
    launch.graph = executable->operations;
    return context->ask(*stream, std::move(launch));
}

API int cuGraphExecDestroy(void* handle) {
    ENTER;
    auto* executable = (Executable*)handle;
    if (context->executables.erase(executable) == 0) return INVALID_HANDLE;
    delete executable;
    return SUCCESS;
}
