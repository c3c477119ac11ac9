// What the runtime (runtime.cc) needs of the scheduler (emulation.cc).
#pragma once

#include <functional>

#include "device.h"

namespace emulated {

// The byte that memory holds before it is written.
constexpr int poison = 0xFF;

// Runs a kernel's threads to their end. Throws Fault.
void run_threads(const Configuration& configuration, const std::function<void()>& body);

}  // namespace emulated
