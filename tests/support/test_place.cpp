// SPDX-License-Identifier: Apache-2.0
#include <support/test_place.h>

namespace millrace::testing {

// In an object of its own, so that a program that defines these two itself does not get this one out of the library.
const char* test_place() { return ""; }
const char* tests_left_out() { return ""; }

}  // namespace millrace::testing
