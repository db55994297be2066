// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::testing {

/// The place that the conformance suites run on alone, or "" for all that need no hardware. Each program of tests has one; that of test_gpu
/// is in tests/gpu.
const char* test_place();
/// Files of tests (doctest's patterns, with commas) about ops that the place has no kernels of.
const char* tests_left_out();

}  // namespace millrace::testing
