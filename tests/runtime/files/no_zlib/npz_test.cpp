// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/internal/inflate.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("A build without the part zlib says so, and names the member and the part") {
  CHECK_THROWS_WITH_AS(internal::inflate("", 0, "x.npz: member 'a.npy'"),
                       doctest::Contains("x.npz: member 'a.npy': inflating it needs the part zlib"), UnsupportedError);
}
