// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/work_failure.h>

#include <stdexcept>

#include <doctest/doctest.h>

namespace millrace::testing {

TEST_CASE("a failure of work keeps its type and names the op and the place") {
  CHECK_THROWS_WITH_AS(std::rethrow_exception(failure_of_work(std::make_exception_ptr(ShapeError("odd")), "op add of block 1", CpuPlace{})),
                       "odd (op add of block 1; on cpu)", ShapeError);
}

TEST_CASE("the text of an error is its own, and says of a foreign one that it is no std::exception") {
  CHECK(text_of_error(std::make_exception_ptr(ShapeError("odd"))) == "odd");
  CHECK(text_of_error(std::make_exception_ptr(std::runtime_error("plain"))) == "plain");
  CHECK(text_of_error(std::make_exception_ptr(1)) == "an error that is no std::exception");
}

TEST_CASE("a place that is lost is named with the text of the cause") {
  CHECK_THROWS_WITH_AS(std::rethrow_exception(place_lost(CpuPlace{}, std::make_exception_ptr(DeviceError("a kernel trapped")))),
                       "cpu is lost: a kernel trapped", PlaceLostError);
}

}  // namespace millrace::testing
