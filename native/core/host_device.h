// Marks a function that both the C++ compiler and nvcc compile, so that a kernel and its CPU
// counterpart share one definition.
#pragma once

#ifdef __CUDACC__
#define NLAC_HOST_DEVICE __host__ __device__
#else
#define NLAC_HOST_DEVICE
#endif
