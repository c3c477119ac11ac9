#include <doctest/doctest.h>

#include "core/cuda_error.h"
#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

TEST_CASE("cuda: a failed call's code says whether memory ran out") {
  const auto code = [](cudaError_t status) { return code_of([&] { check_cuda(status, "a kernel"); }); };
  CHECK(code(cudaSuccess) == "none");
  CHECK(code(cudaErrorMemoryAllocation) == "ERR_OUT_OF_MEMORY");
  CHECK(code(cudaErrorInvalidConfiguration) == "ERR_DEVICE");
  CHECK_REFUSED(check_cuda(cudaErrorMemoryAllocation, "a kernel"), "ERR_OUT_OF_MEMORY",
                "a kernel: out of memory");
}
