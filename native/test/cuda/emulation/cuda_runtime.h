// The runtime's C++ half. The emulated part is in device.h, which a kernel's source has included.
#pragma once

#include <cuda_runtime_api.h>
