// The entry point of every target: NLAC_FUZZ_TARGET is a function of exercise.h.
#include "fuzz/exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nlac::fuzz::NLAC_FUZZ_TARGET(data, size);
  return 0;
}
