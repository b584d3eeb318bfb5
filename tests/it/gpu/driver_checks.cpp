// What the stand-in driver does that others rely on, asked by C calls: what a program sees that forgets to wait, uses
// memory too early or too late, or does to a captured stream what cannot be captured. Run with driver.cpp's default
// mode.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

typedef unsigned long long u64;
typedef void* Handle;

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(Handle*, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(Handle);
int cuCtxSynchronize();
int cuStreamCreate(Handle*, unsigned);
int cuStreamDestroy_v2(Handle);
int cuStreamSynchronize(Handle);
int cuStreamWaitEvent(Handle, Handle, unsigned);
int cuEventCreate(Handle*, unsigned);
int cuEventRecord(Handle, Handle);
int cuEventQuery(Handle);
int cuEventSynchronize(Handle);
int cuMemAllocAsync(u64*, size_t, Handle);
int cuMemFreeAsync(u64, Handle);
int cuMemAlloc_v2(u64*, size_t);
int cuMemGetInfo_v2(size_t*, size_t*);
int cuMemHostRegister_v2(void*, size_t, unsigned);
int cuMemHostUnregister(void*);
int cuMemcpyHtoDAsync_v2(u64, const void*, size_t, Handle);
int cuMemcpyDtoHAsync_v2(void*, u64, size_t, Handle);
int cuMemcpyDtoDAsync_v2(u64, u64, size_t, Handle);
int cuMemsetD8Async(u64, unsigned char, size_t, Handle);
int cuModuleLoadData(Handle*, const void*);
int cuModuleGetFunction(Handle*, Handle, const char*);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                   void**);
int cuStreamBeginCapture_v2(Handle, int);
int cuStreamEndCapture(Handle, Handle*);
int cuGraphInstantiateWithFlags(Handle*, Handle, u64);
int cuGraphExecUpdate_v2(Handle, Handle, void*);
int cuGraphLaunch(Handle, Handle);
int cuGraphDestroy(Handle);
}

enum {
    SUCCESS = 0, INVALID_VALUE = 1, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
    NOT_READY = 600, ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905, UPDATE_FAILURE = 910,
};

static void is(int found, int expected, const char* what, int line) {
    if (found == expected) return;
    std::fprintf(stderr, "line %d: %s is %d, not %d\n", line, what, found, expected);
    std::exit(1);
}
#define IS(FOUND, EXPECTED) is((int)(FOUND), (int)(EXPECTED), #FOUND, __LINE__)
#define OK(CALL) IS(CALL, SUCCESS)

static const unsigned NON_BLOCKING = 1, MAPPED = 2;

// A context with two streams, and pinned memory, for one check.
struct Fixture {
    Handle context, one, two;
    alignas(4096) unsigned char pinned[8192];

    Fixture() {
        OK(cuInit(0));
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        IS(cuCtxSynchronize(), INVALID_CONTEXT);
        OK(cuCtxSetCurrent(context));
        OK(cuStreamCreate(&one, NON_BLOCKING));
        OK(cuStreamCreate(&two, NON_BLOCKING));
        OK(cuMemHostRegister_v2(pinned, sizeof pinned, MAPPED));
        std::memset(pinned, 0, sizeof pinned);
    }
    ~Fixture() { OK(cuDevicePrimaryCtxRelease_v2(0)); }

    u64 room(size_t bytes) {
        u64 at;
        OK(cuMemAllocAsync(&at, bytes, one));
        OK(cuStreamSynchronize(one));
        return at;
    }

    int byte(u64 at) {
        unsigned char byte;
        OK(cuMemcpyDtoHAsync_v2(&byte, at, 1, one));
        return byte;
    }
};

static void waits_that_are_missing_show() {
    Fixture f;
    u64 at = f.room(100);
    // Written again before the copy: the copy has the new bytes.
    f.pinned[0] = 1;
    OK(cuMemcpyHtoDAsync_v2(at, f.pinned, 1, f.one));
    f.pinned[0] = 2;
    IS(f.byte(at), 2);
    // Read before the copy: nothing is there.
    OK(cuMemcpyDtoHAsync_v2(f.pinned + 50, at, 1, f.one));
    IS(f.pinned[50], 0);
    OK(cuStreamSynchronize(f.one));
    IS(f.pinned[50], 2);
    // Ordinary memory may be written again at once.
    unsigned char ordinary = 3;
    OK(cuMemcpyHtoDAsync_v2(at, &ordinary, 1, f.one));
    ordinary = 4;
    IS(f.byte(at), 3);
    // Unregistered too early.
    OK(cuMemcpyHtoDAsync_v2(at, f.pinned, 1, f.one));
    IS(cuMemHostUnregister(f.pinned), ILLEGAL_ADDRESS);
    IS(cuStreamSynchronize(f.one), ILLEGAL_ADDRESS);
}

static void streams_are_ordered_by_events_alone() {
    Fixture f;
    u64 at = f.room(100), other = f.room(100);
    Handle event;
    OK(cuEventCreate(&event, 0));
    OK(cuEventQuery(event));
    OK(cuMemsetD8Async(at, 1, 100, f.two));
    IS(f.byte(at), 0xA5);
    OK(cuEventRecord(event, f.two));
    OK(cuMemsetD8Async(at, 2, 100, f.two));
    IS(cuEventQuery(event), NOT_READY);
    OK(cuStreamWaitEvent(f.one, event, 0));
    OK(cuMemcpyDtoDAsync_v2(other, at, 100, f.one));
    IS(f.byte(other), 1);
    OK(cuEventQuery(event));
    OK(cuStreamDestroy_v2(f.two));
    IS(cuMemsetD8Async(at, 9, 1, f.two), INVALID_HANDLE);
    OK(cuCtxSynchronize());
    IS(f.byte(at), 2);
}

static void memory_has_an_end_in_space_and_time() {
    size_t before, after, total;
    {
        Fixture f;
        OK(cuMemGetInfo_v2(&before, &total));
        u64 at = f.room(100);
        IS(cuMemsetD8Async(at, 0, 101, f.one), INVALID_VALUE);
        IS(cuMemsetD8Async(at + 100, 0, 1, f.one), INVALID_VALUE);
        OK(cuMemFreeAsync(at, f.one));
        IS(cuMemFreeAsync(at, f.one), INVALID_VALUE);
        IS(cuMemsetD8Async(at, 0, 1, f.one), INVALID_VALUE);
        OK(cuMemGetInfo_v2(&after, &total));
        IS(before == after, 1);
        IS(cuMemAlloc_v2(&at, total + 1), 2);
    }
    // Asked for while it was there, done when it is not: every later call fails, until the context is another.
    Fixture f;
    u64 at = f.room(100);
    OK(cuMemsetD8Async(at, 0, 1, f.two));
    OK(cuMemFreeAsync(at, f.one));
    OK(cuStreamSynchronize(f.one));
    IS(cuStreamSynchronize(f.two), ILLEGAL_ADDRESS);
    IS(cuMemAlloc_v2(&at, 1), ILLEGAL_ADDRESS);
}

// A module that has the kernel `scale_values` by name.
static Handle scale_values() {
    std::string image(64, '\0');
    std::memcpy(&image[0], "\177ELF\2\1", 6);
    image += std::string("scale_values") + '\0';
    u64 end = image.size();
    std::memcpy(&image[40], &end, 8);
    Handle module, function;
    OK(cuModuleLoadData(&module, image.data()));
    IS(cuModuleGetFunction(&function, module, "relu"), NOT_FOUND);
    IS(cuModuleLoadData(&function, "text that is no machine code"), INVALID_IMAGE);
    OK(cuModuleGetFunction(&function, module, "scale_values"));
    return function;
}

static int scale(Handle function, Handle stream, float factor, u64 x, u64 count) {
    void* arguments[] = {&factor, &x, &count, &x};
    int asked = cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
    factor = 0, x = 0, count = 0;
    return asked;
}

static void a_kernel_that_leaves_its_buffer_loses_the_context() {
    Fixture f;
    Handle function = scale_values();
    u64 at = f.room(64 * 4);
    OK(cuMemsetD8Async(at, 0, 64 * 4, f.one));
    OK(scale(function, f.one, 2, at, 64));
    OK(cuStreamSynchronize(f.one));
    OK(scale(function, f.one, 2, at, 65));
    IS(cuStreamSynchronize(f.one), ILLEGAL_ADDRESS);
    IS(cuCtxSynchronize(), ILLEGAL_ADDRESS);
}

static Handle graph_of(Fixture& f, Handle function, float factor, u64 at, bool fill) {
    Handle graph;
    OK(cuStreamBeginCapture_v2(f.one, 2));
    OK(scale(function, f.one, factor, at, 1));
    if (fill) OK(cuMemsetD8Async(at, 0, 4, f.one));
    OK(cuStreamEndCapture(f.one, &graph));
    return graph;
}

static void a_graph_happens_when_it_is_launched_as_it_was_then() {
    Fixture f;
    Handle function = scale_values(), executable;
    u64 at = f.room(4);
    float value = 1;
    struct { int result; Handle node, from; } result;
    auto scaled = [&] {
        OK(cuMemcpyDtoHAsync_v2(&value, at, 4, f.one));
        return value;
    };
    OK(cuMemcpyHtoDAsync_v2(at, &value, 4, f.one));
    Handle by_two = graph_of(f, function, 2, at, false), by_three = graph_of(f, function, 3, at, false);
    OK(cuGraphInstantiateWithFlags(&executable, by_two, 0));
    OK(cuGraphDestroy(by_two));
    IS(scaled(), 1);
    OK(cuGraphLaunch(executable, f.one));
    OK(cuGraphExecUpdate_v2(executable, by_three, &result));
    IS(scaled(), 2);
    OK(cuGraphLaunch(executable, f.one));
    IS(scaled(), 6);
    Handle longer = graph_of(f, function, 3, at, true);
    IS(cuGraphExecUpdate_v2(executable, longer, &result), UPDATE_FAILURE);
    IS(result.result, 2);
}

static void what_cannot_be_captured_ends_the_capture() {
    Fixture f;
    Handle event, graph;
    u64 at = f.room(4), more;
    unsigned char ordinary = 0;
    OK(cuEventCreate(&event, 0));
    OK(cuEventRecord(event, f.two));
    auto ends = [&](int found, int expected) {
        IS(found, expected);
        IS(cuMemsetD8Async(at, 0, 4, f.one), CAPTURE_INVALIDATED);
        IS(cuStreamEndCapture(f.one, &graph), CAPTURE_INVALIDATED);
        IS(graph != nullptr, 0);
        OK(cuMemsetD8Async(at, 0, 4, f.one));
        OK(cuStreamBeginCapture_v2(f.one, 2));
    };
    OK(cuStreamBeginCapture_v2(f.one, 2));
    ends(cuStreamSynchronize(f.one), CAPTURE_UNSUPPORTED);
    ends(cuCtxSynchronize(), CAPTURE_UNSUPPORTED);
    ends(cuEventRecord(event, f.one), CAPTURE_UNSUPPORTED);
    ends(cuStreamWaitEvent(f.one, event, 0), CAPTURE_ISOLATION);
    ends(cuMemcpyHtoDAsync_v2(at, &ordinary, 1, f.one), CAPTURE_UNSUPPORTED);
    ends(cuMemAllocAsync(&more, 1, f.one), CAPTURE_UNSUPPORTED);
    ends(cuMemHostRegister_v2(&ordinary, 1, 2), CAPTURE_UNSUPPORTED);
    // Another stream goes on meanwhile.
    OK(cuMemAllocAsync(&more, 1, f.two));
    OK(cuStreamSynchronize(f.two));
    OK(cuEventSynchronize(event));
    OK(cuStreamEndCapture(f.one, &graph));
}

int main() {
    waits_that_are_missing_show();
    streams_are_ordered_by_events_alone();
    memory_has_an_end_in_space_and_time();
    a_kernel_that_leaves_its_buffer_loses_the_context();
    a_graph_happens_when_it_is_launched_as_it_was_then();
    what_cannot_be_captured_ends_the_capture();
    std::puts("all of it");
}
