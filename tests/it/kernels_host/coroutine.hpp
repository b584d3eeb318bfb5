// A coroutine: a function on a stack of its own, entered and left again and again.
//
// The library's `swapcontext` asks the kernel for the signal mask at each turn, and AddressSanitizer clears the whole
// stack's shadow beside it. Here no signal mask changes, and a function that returns leaves a clean shadow; so on x86-64
// a turn saves the registers that a call keeps, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Who goes on next is found more often than anything else is done, on nothing that a kernel could damage: without
// checks.
#define SCHEDULER __attribute__((no_sanitize("address", "undefined"), optimize("O2"))) inline

#if defined(__x86_64__)

// Saves the registers of who calls on its stack, whose pointer goes to `from`, and goes on where `to` was left.
extern "C" void gpu_switch_stack(void** from, void* to);
asm(R"(
    .text
    .type gpu_switch_stack, @function
gpu_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size gpu_switch_stack, . - gpu_switch_stack
)");

namespace gpu {

class Coroutine {
    std::vector<char> stack = std::vector<char>(1 << 16);
    void* inside = nullptr;
    void* outside = nullptr;

public:
    // Makes the next `enter` begin `function`, which never returns: it leaves for the last time.
    SCHEDULER void begin(void (*function)()) {
        // A function begins 8 bytes below a multiple of 16, where a call has put the address to return to.
        auto end = ((uintptr_t)stack.data() + stack.size()) / 16 * 16;
        auto words = (void**)(end - 16);
        words[0] = (void*)function;
        inside = words - 6;
    }
    SCHEDULER void enter() { gpu_switch_stack(&outside, inside); }
    SCHEDULER void leave() { gpu_switch_stack(&inside, outside); }
};

} // namespace gpu

#else

#include <ucontext.h>

namespace gpu {

class Coroutine {
    std::vector<char> stack = std::vector<char>(1 << 16);
    ucontext_t inside, outside;

public:
    void begin(void (*function)()) {
        getcontext(&inside);
        inside.uc_stack.ss_sp = stack.data();
        inside.uc_stack.ss_size = stack.size();
        inside.uc_link = nullptr;
        makecontext(&inside, function, 0);
    }
    void enter() { swapcontext(&outside, &inside); }
    void leave() { swapcontext(&inside, &outside); }
};

} // namespace gpu

#endif
