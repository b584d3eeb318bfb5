// A stand-in for NVIDIA's management library: one GPU, that of the stand-in driver, which takes 100 W.

#include <chrono>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))

static const int SUCCESS = 0, NOT_FOUND = 6;

API int nvmlInit_v2() { return SUCCESS; }

API int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
    static char only;
    *device = &only;
    return strcasecmp(bus, "0000:0a:00.0") == 0 ? SUCCESS : NOT_FOUND;
}

API int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    *millijoules = 100ull * (unsigned long long)std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
    return SUCCESS;
}
