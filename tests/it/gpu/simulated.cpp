// A GPU with memory and kernels, simulated by the CPU: does what simulated.rs asks for on its standard input, one
// thing after the other, and responds on its standard output. Addresses are this process's own, so that a launcher's
// arguments go to the kernels byte by byte as they are.
//
// A response begins with 0 where it worked; else with 1, and words follow. Where a kernel does what it must not, this
// process ends with a message.
#include "kernels.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static void take(void* to, size_t bytes) {
    if (bytes > 0 && std::fread(to, 1, bytes, stdin) != bytes) std::exit(0);
}

static u64 number() {
    u64 value;
    take(&value, sizeof value);
    return value;
}

static std::string text() {
    std::string value(number(), '\0');
    take(value.data(), value.size());
    return value;
}

static void works() { std::fputc(0, stdout); }

static void refuse(const std::string& words) {
    std::fputc(1, stdout);
    u64 length = words.size();
    std::fwrite(&length, sizeof length, 1, stdout);
    std::fwrite(words.data(), 1, length, stdout);
}

static void respond(u64 value) {
    works();
    std::fwrite(&value, sizeof value, 1, stdout);
}

static void allocate() {
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, number()) == 0) respond((u64)memory);
    else refuse("no memory");
}

static void map() {
    u64 bytes = number();
    std::string path = text();
    int file = open(path.c_str(), O_RDWR);
    void* memory = file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (memory != MAP_FAILED) respond((u64)memory);
    else refuse(path + " cannot be mapped");
}

static void launch() {
    std::string name = text();
    u64 blocks = number(), threads = number();
    Arguments given(number());
    for (auto& argument : given) argument = text();
    for (auto& kernel : kernels) {
        if (name != kernel.name) continue;
        if (kernel.run(given, (unsigned)blocks, (unsigned)threads)) return works();
        return refuse(name + " takes other arguments");
    }
    refuse("there is no kernel " + name);
}

int main() {
    for (int what; (what = std::fgetc(stdin)) != EOF; std::fflush(stdout)) {
        if (what == 'a') allocate();
        else if (what == 'm') map();
        else if (what == 'l') launch();
        else if (what == 'd') {
            free((void*)number());
            works();
        } else if (what == 's') {
            u64 at = number(), byte = number(), bytes = number();
            std::memset((void*)at, (int)byte, bytes);
            works();
        } else if (what == 'w') {
            u64 at = number(), bytes = number();
            take((void*)at, bytes);
            works();
        } else if (what == 'r') {
            u64 at = number(), bytes = number();
            works();
            std::fwrite((const void*)at, 1, bytes, stdout);
        } else if (what == 'c') {
            u64 from = number(), to = number(), bytes = number();
            std::memcpy((void*)to, (const void*)from, bytes);
            works();
        } else {
            refuse("nothing is known by this letter");
        }
    }
}
