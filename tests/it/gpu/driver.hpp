// What the stand-in driver (driver.cpp) is made of: memory, streams whose operations wait, events, captures and graphs.
//
// Memory of the GPU is cut from one large reservation of addresses, none of which is used twice. An allocation ends at
// the end of a page, with a page before and behind it that nobody may touch, holds `POISON` when it begins, and is
// taken away from the address space when it is freed in the order of its stream. So a kernel that goes beyond its
// buffers, or uses one too early or too late, faults, and the context reports CUDA_ERROR_ILLEGAL_ADDRESS from then on.
#pragma once

#include "kernels.hpp"

#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sys/mman.h>
#include <thread>

namespace standin {

enum Result : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
    GRAPH_UPDATE_FAILURE = 910,
};

static const struct { Result code; const char* name; } NAMES[] = {
    {SUCCESS, "CUDA_SUCCESS"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {NOT_READY, "CUDA_ERROR_NOT_READY"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
    {GRAPH_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"},
};

__attribute__((format(printf, 1, 2))) inline void report(const char* format, ...) {
    va_list rest;
    va_start(rest, format);
    std::fputs("stand-in driver: ", stderr);
    std::vfprintf(stderr, format, rest);
    std::fputc('\n', stderr);
    va_end(rest);
}

inline u64 setting(const char* name, u64 otherwise) {
    const char* value = std::getenv(name);
    return value && *value ? std::strtoull(value, nullptr, 10) : otherwise;
}

inline bool in_mode(const char* mode) {
    const char* value = std::getenv("EVERGRAPH_STANDIN_MODE");
    return value && !std::strcmp(value, mode);
}

struct Settings {
    bool eager = in_mode("eager"), paced = in_mode("paced");
    u64 kernel_ns = setting("EVERGRAPH_STANDIN_KERNEL_NS", 12000), copy_ns = setting("EVERGRAPH_STANDIN_COPY_NS", 4000);
    u64 bytes_per_us = setting("EVERGRAPH_STANDIN_BYTES_PER_US", 40000);
    int version = (int)setting("EVERGRAPH_STANDIN_VERSION", 13000);
    u64 memory = setting("EVERGRAPH_STANDIN_MEMORY", 4ull << 30);
    bool pools = setting("EVERGRAPH_STANDIN_POOLS", 1) != 0;
    u64 fail_after = setting("EVERGRAPH_STANDIN_FAIL_AFTER", ~0ull);
    u64 fail_blocking = setting("EVERGRAPH_STANDIN_FAIL_BLOCKING", ~0ull);
    bool beside = setting("EVERGRAPH_STANDIN_BESIDE", 0) != 0, keeps = setting("EVERGRAPH_STANDIN_KEEPS", 0) != 0;
    bool waits = setting("EVERGRAPH_STANDIN_WAITS", 1) != 0, orders = setting("EVERGRAPH_STANDIN_ORDERS", 1) != 0;
};

typedef std::chrono::steady_clock Clock;

// --- streams ---

struct Stream;

// A place in a stream, made by recording an event.
struct Mark {
    std::shared_ptr<Stream> stream;
    bool done = false;
    // When it was reached; in the paced mode, when it will be.
    Clock::time_point at;
};

struct Event {
    bool timed, blocking;
    std::shared_ptr<Mark> mark;
};

struct Operation;
typedef std::vector<Operation> Operations;

enum class Kind { Launch, Upload, Download, Copy, FillBytes, FillWords, Allocate, Free, Record, Wait, Graph };

struct Operation {
    Kind kind;
    u64 to = 0, from = 0;
    size_t bytes = 0;
    u32 value = 0;
    const Kernel* kernel = nullptr;
    unsigned blocks = 0, threads = 0;
    Arguments arguments = {};
    // Bytes of an upload from ordinary memory, which the driver stages when it is called.
    std::shared_ptr<std::string> staged = nullptr;
    std::shared_ptr<Mark> mark = nullptr;
    std::shared_ptr<const Operations> graph = nullptr;
};

struct Capture {
    Operations operations;
    bool invalid = false;
    std::thread::id thread = std::this_thread::get_id();
};

struct Stream {
    std::deque<Operation> queue;
    std::unique_ptr<Capture> capture;
    bool alive = true;
    // Whether it was made with the least priority, for work beside that of others.
    bool beside = false;
    // In the paced mode, when all that was asked of it is over.
    Clock::time_point over = {};
};

struct Executable { std::shared_ptr<const Operations> operations; };
struct Module { std::string image; };
struct Function { const Kernel* kernel; Module* module; };

// --- memory ---

static const size_t PAGE = 4096, UNIT = 256, POISONED_MAX = 64 << 20;
static const u64 ADDRESSES = 1ull << 42;
static const unsigned char POISON = 0xA5;

enum class State { Asked, Live, Freed };

struct Allocation {
    // As it was asked for, and the whole pages that it is in.
    size_t bytes;
    u64 pages;
    size_t page_bytes;
    State state;
    bool freeing;
};

struct Registered { size_t bytes; bool mapped; };
enum class Host { Ordinary, Pinned, Partly };

// One context, from the first retain of the device to the last release.
struct Context {
    std::map<u64, Allocation> allocations;
    std::map<u64, Registered> registered;
    std::vector<std::shared_ptr<Stream>> streams;
    std::set<Event*> events;
    std::set<Operations*> graphs;
    std::set<Executable*> executables;
    std::set<Module*> modules;
    std::map<std::pair<Module*, const Kernel*>, Function> functions;
    size_t used = 0;
    // The fault after which every call fails.
    Result lost = SUCCESS;
    u64 reserved = 0, next = 0;
    const Settings& settings;

    explicit Context(const Settings& settings) : settings(settings) {}

    Result lose(Result fault) {
        if (lost == SUCCESS) lost = fault;
        return lost;
    }

    // The allocation or registration in which all of these bytes lie. `now`: they are to be used at this moment.
    bool has(u64 at, size_t bytes, bool now) const {
        auto found = allocations.upper_bound(at);
        if (found != allocations.begin()) {
            auto& [begin, allocation] = *--found;
            if (at - begin < allocation.bytes) {
                bool usable = now ? allocation.state == State::Live : !allocation.freeing;
                return usable && bytes <= allocation.bytes - (at - begin);
            }
        }
        auto pinned = registered.upper_bound(at);
        if (pinned == registered.begin()) return false;
        auto& [begin, registration] = *--pinned;
        return registration.mapped && at - begin < registration.bytes && bytes <= registration.bytes - (at - begin);
    }

    Host host(const void* at, size_t bytes) const {
        u64 begin = (u64)at, end = begin + bytes;
        for (auto& [first, registration] : registered) {
            u64 last = first + registration.bytes;
            if (begin >= first && end <= last) return Host::Pinned;
            if (begin < last && end > first) return Host::Partly;
        }
        return Host::Ordinary;
    }

    // Addresses for an allocation, which begins when `begin` is called in the order of its stream.
    u64 reserve(size_t bytes) {
        if (reserved == 0) {
            void* all = mmap(nullptr, ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (all == MAP_FAILED) return 0;
            reserved = (u64)all, next = reserved + PAGE;
        }
        size_t units = (bytes + UNIT - 1) / UNIT * UNIT, page_bytes = (units + PAGE - 1) / PAGE * PAGE;
        if (page_bytes + PAGE > reserved + ADDRESSES - next) return 0;
        u64 at = next + page_bytes - units;
        allocations[at] = {bytes, next, page_bytes, State::Asked, false};
        next += page_bytes + PAGE, used += bytes;
        return at;
    }

    bool begin(u64 at) {
        Allocation& allocation = allocations.at(at);
        if (mprotect((void*)allocation.pages, allocation.page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
        u64 pages_end = allocation.pages + allocation.page_bytes;
        std::memset((void*)allocation.pages, POISON, std::min(allocation.page_bytes, POISONED_MAX));
        std::memset((void*)(at + allocation.bytes), POISON, pages_end - at - allocation.bytes);
        // What no kernel writes is a number all the same.
        if (settings.paced) std::fill_n((float*)at, std::min(allocation.bytes, POISONED_MAX) / 4, 1.0f);
        allocation.state = State::Live;
        return true;
    }

    // Whether nobody wrote just before or behind it.
    bool end(u64 at) {
        Allocation& allocation = allocations.at(at);
        bool whole = true;
        for (u64 i = allocation.pages; i < at; i++) whole &= *(unsigned char*)i == POISON;
        u64 pages_end = allocation.pages + allocation.page_bytes;
        for (u64 i = at + allocation.bytes; i < pages_end; i++) whole &= *(unsigned char*)i == POISON;
        mprotect((void*)allocation.pages, allocation.page_bytes, PROT_NONE);
        madvise((void*)allocation.pages, allocation.page_bytes, MADV_DONTNEED);
        allocation.state = State::Freed;
        return whole;
    }

    ~Context() {
        if (reserved != 0) munmap((void*)reserved, ADDRESSES);
    }

    // --- what operations do ---

    bool launch(const Operation& operation);

    Result run(const Operation& operation) {
        const auto [to, from, bytes] = std::make_tuple(operation.to, operation.from, operation.bytes);
        bool fine = true;
        switch (operation.kind) {
        case Kind::Launch: fine = launch(operation); break;
        case Kind::Upload:
            fine = has(to, bytes, true);
            if (fine) std::memcpy((void*)to, operation.staged ? operation.staged->data() : (const void*)from, bytes);
            break;
        case Kind::Download:
            fine = has(from, bytes, true);
            if (fine) std::memcpy((void*)to, (const void*)from, bytes);
            break;
        case Kind::Copy:
            fine = has(to, bytes, true) && has(from, bytes, true);
            if (fine) std::memmove((void*)to, (const void*)from, bytes);
            break;
        case Kind::FillBytes:
            fine = has(to, bytes, true);
            if (fine) std::memset((void*)to, (int)operation.value, bytes);
            break;
        case Kind::FillWords:
            fine = has(to, bytes, true);
            if (fine) std::fill_n((u32*)to, bytes / 4, operation.value);
            break;
        case Kind::Allocate: fine = begin(to); break;
        case Kind::Free:
            fine = allocations.at(to).state == State::Live;
            if (!fine) break;
            fine = end(to);
            if (!fine) report("something was written beside an allocation of %zu bytes", allocations.at(to).bytes);
            break;
        case Kind::Record:
            operation.mark->done = true, operation.mark->at = Clock::now();
            break;
        case Kind::Wait: run(*operation.mark->stream, operation.mark.get()); break;
        case Kind::Graph:
            for (auto& node : *operation.graph) if (run(node) != SUCCESS) break;
            break;
        }
        if (fine) return lost;
        report("an operation of kind %d uses memory that it may not use: to %#llx, from %#llx, %zu bytes",
            (int)operation.kind, to, from, bytes);
        return lose(ILLEGAL_ADDRESS);
    }

    // Runs what was asked of a stream, up to `until` if that is given.
    Result run(Stream& stream, const Mark* until = nullptr) {
        while (lost == SUCCESS && !stream.queue.empty() && !(until && until->done)) {
            Operation operation = std::move(stream.queue.front());
            stream.queue.pop_front();
            run(operation);
        }
        return lost;
    }

    Result run_all() {
        for (size_t i = 0; i < streams.size(); i++) run(*streams[i]);
        for (size_t i = streams.size(); i-- > 0;) if (!streams[i]->alive) streams.erase(streams.begin() + (long)i);
        return lost;
    }

    // Whether an operation that waits, of any stream, may use these bytes of the host.
    bool pending(u64 at, size_t bytes) const {
        auto within = [&](u64 address) { return address - at < bytes; };
        std::function<bool(const Operation&)> uses = [&](const Operation& operation) {
            if (operation.graph) for (auto& node : *operation.graph) if (uses(node)) return true;
            for (auto& argument : operation.arguments) {
                for (size_t i = 0; i + 8 <= argument.size(); i += 8) {
                    u64 word;
                    std::memcpy(&word, argument.data() + i, 8);
                    if (within(word)) return true;
                }
            }
            return within(operation.to) || (!operation.staged && within(operation.from));
        };
        for (auto& stream : streams) for (auto& operation : stream->queue) if (uses(operation)) return true;
        return false;
    }

    // Invalidates every capture that is under way; whether there was any.
    bool break_captures() {
        bool any = false;
        for (auto& stream : streams) if (stream->capture) any = stream->capture->invalid = true;
        return any;
    }

    // Adds an operation to a stream, or to what is captured of it.
    Result ask(Stream& stream, Operation operation) {
        if (stream.capture) {
            if (stream.capture->invalid) return CAPTURE_INVALIDATED;
            stream.capture->operations.push_back(std::move(operation));
            return SUCCESS;
        }
        if (settings.paced) return keep_pace(stream, operation);
        stream.queue.push_back(std::move(operation));
        return settings.eager ? run(stream) : SUCCESS;
    }

    // Notes when an operation is over. Of what it does, only values that the host reads and what costs the GPU nothing.
    Result keep_pace(Stream& stream, const Operation& operation) {
        stream.over = std::max(stream.over, Clock::now()) + std::chrono::nanoseconds(cost(operation));
        if (operation.kind == Kind::Wait) stream.over = std::max(stream.over, operation.mark->at);
        Result ran = settings.beside && stream.beside ? run(operation) : read_or_free(operation);
        if (operation.kind == Kind::Record) operation.mark->at = stream.over;
        return ran;
    }

    Result read_or_free(const Operation& operation) {
        if (operation.graph) for (auto& node : *operation.graph) if (read_or_free(node) != SUCCESS) break;
        bool reads = operation.kind == Kind::Download || cost(operation) == 0;
        return reads && !operation.graph ? run(operation) : lost;
    }

    // Nanoseconds of the GPU that an operation takes in the paced mode.
    u64 cost(const Operation& operation) const {
        switch (operation.kind) {
        case Kind::Launch: return settings.kernel_ns;
        case Kind::Upload: case Kind::Download: return settings.copy_ns + 1000 * operation.bytes / settings.bytes_per_us;
        case Kind::Copy: case Kind::FillBytes: case Kind::FillWords: return settings.copy_ns;
        case Kind::Allocate: case Kind::Free: case Kind::Record: case Kind::Wait: return 0;
        case Kind::Graph: break;
        }
        u64 all = 0;
        for (auto& node : *operation.graph) all += cost(node);
        return all;
    }

    // When all streams are over.
    Clock::time_point over() const {
        Clock::time_point last = {};
        for (auto& stream : streams) last = std::max(last, stream->over);
        return last;
    }
};

// --- kernels ---

static thread_local bool running = false;
static sigjmp_buf out_of_kernel;
static struct sigaction before_kernel[2];
static void* volatile fault_address;

inline void on_fault(int number, siginfo_t* info, void*) {
    if (running) {
        fault_address = info->si_addr;
        siglongjmp(out_of_kernel, 1);
    }
    // Not ours: it happens again, with the handler that was there.
    sigaction(number, &before_kernel[number == SIGBUS], nullptr);
}

// Runs a kernel. A fault ends it, as on a GPU, and leaves what it did so far.
inline bool Context::launch(const Operation& operation) {
    struct sigaction handler = {};
    handler.sa_sigaction = on_fault, handler.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &handler, &before_kernel[0]);
    sigaction(SIGBUS, &handler, &before_kernel[1]);
    running = true;
    bool fine = sigsetjmp(out_of_kernel, 1) == 0;
    if (fine) fine = operation.kernel->run(operation.arguments, operation.blocks, operation.threads);
    else report("%s, block %u, thread %u: illegal address %p", operation.kernel->name, blockIdx.x, threadIdx.x,
             fault_address);
    running = false;
    sigaction(SIGSEGV, &before_kernel[0], nullptr);
    sigaction(SIGBUS, &before_kernel[1], nullptr);
    return fine;
}

} // namespace standin
