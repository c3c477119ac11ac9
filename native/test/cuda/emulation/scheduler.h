// The scheduler's interface (emulation.cc) for the runtime (runtime.cc).
#pragma once

#include <functional>

#include "device.h"

namespace emulated {

// The byte that uninitialized memory consists of.
constexpr int poison = 0xFF;

// Runs a kernel's threads to their end. Throws Fault.
void run_threads(const Configuration& configuration, const std::function<void()>& body);

}  // namespace emulated
