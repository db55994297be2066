// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/place.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("case 28: places print as name and index") {
  CHECK(Place(CpuPlace{}).to_string() == "cpu");
  CHECK(Place(CudaPlace{1}).to_string() == "cuda:1");
  CHECK(Place(BackendPlace{"sim", 0}).to_string() == "sim:0");
  CHECK(Place().is_cpu());
}

TEST_CASE("places parse what they print") {
  for (const Place& place : {Place(CpuPlace{}), Place(CudaPlace{0}), Place(CUDAPlace{7}), Place(BackendPlace{"sim", 3})})
    CHECK(Place::parse(place.to_string()) == place);
  CHECK(Place::parse("cuda") == Place(CudaPlace{0}));
  CHECK(Place::parse("sim") == Place(BackendPlace{"sim", 0}));
}

TEST_CASE("text that names no place is an error that quotes it") {
  for (const char* text : {"", ":", ":1", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "sim: 1"}) {
    INFO("text ", text);
    CHECK_THROWS_WITH_AS(Place::parse(text), doctest::Contains(("'" + std::string(text) + "'").c_str()), ParseError);
  }
}

TEST_CASE("places compare") {
  CHECK(Place(CpuPlace{}) == Place(CpuPlace{}));
  CHECK(Place(CudaPlace{0}) != Place(CudaPlace{1}));
  CHECK(Place(CudaPlace{0}) < Place(CudaPlace{1}));
  CHECK(Place(CpuPlace{}) < Place(CudaPlace{0}));
  CHECK(Place(BackendPlace{"a", 0}) != Place(BackendPlace{"b", 0}));
}
