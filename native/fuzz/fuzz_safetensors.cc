#include "fuzz/exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nlac::fuzz::exercise_safetensors(data, size);
  return 0;
}
