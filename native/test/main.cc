// The entry point shared by every C++ test program.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "core/instruction_set.h"

int main(int argc, char** argv) {
  nlac::limit_libraries();
  return doctest::Context(argc, argv).run();
}
