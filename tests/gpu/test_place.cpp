// SPDX-License-Identifier: Apache-2.0
#include <support/test_place.h>

#include <cstdlib>

namespace millrace::testing {

const char* test_place() {
  const char* chosen = std::getenv("MILLRACE_TEST_PLACE");
  return chosen != nullptr ? chosen : "cuda:0";
}

const char* tests_left_out() { return "*kernels/row_plan_test.cpp,*kernels/adding_a_kernel_test.cpp"; }

}  // namespace millrace::testing
