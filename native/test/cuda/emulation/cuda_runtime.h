// The runtime's C++ half: all of it that is emulated is in device.h, which a kernel's source has
// already.
#pragma once

#include <cuda_runtime_api.h>
