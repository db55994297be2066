// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/visit.h>

#include <doctest/doctest.h>

using namespace millrace;

namespace {
template <class T, int D>
std::string face(const Array<T, D>&) {
  return std::string(name_of(dtype_of<T>)) + " " + std::to_string(D) + (std::is_const_v<T> ? " const" : "");
}
}  // namespace

TEST_CASE("visit hands out the array of the tensor's dtype and rank") {
  const auto face_of = [](auto array) { return face(array); };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u8, DType::boolean})
    for (int rank = 1; rank <= max_rank; ++rank) {
      Tensor tensor(dtype, DDim(std::vector<std::int64_t>(static_cast<std::size_t>(rank), 1)));
      CHECK(visit(face_of, tensor) == std::string(name_of(dtype)) + " " + std::to_string(rank));
    }
}

TEST_CASE("visit hands out const elements for a const tensor") {
  const Tensor tensor = Tensor::from({1, 2, 3});
  CHECK(visit([](auto array) { return face(array); }, tensor) == "i32 1 const");
  CHECK(visit([](auto array) { return face(array); }, Tensor::from({1, 2})) == "i32 1");
}

TEST_CASE("visit takes a scalar as one axis") {
  Tensor tensor = Tensor::scalar(2.0);
  CHECK(visit([](auto array) { return face(array); }, tensor) == "f64 1");
}

TEST_CASE("what a visitor writes is in the tensor, and what it returns comes back") {
  Tensor tensor = make_darray(make_ddim({2, 2}), 1.0f);
  const std::int64_t count = visit(
      [](auto array) {
        using T = typename decltype(array)::value_type;
        array.ptr()[3] = T(7.0f);
        return array.elements();
      },
      tensor);
  CHECK(count == 4);
  CHECK(tensor[make_ddim({1, 1})] == 7.0);
}
