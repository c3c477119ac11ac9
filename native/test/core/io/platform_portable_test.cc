// platform_test.cc with the forms for other systems than Linux.
#define NLAC_PORTABLE 1
#include "test/core/io/platform_test.cc"
