// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/strided_copy.h>

#include <numeric>
#include <vector>

#include <doctest/doctest.h>

using namespace millrace;

namespace {

template <class T>
Tensor counted(const DDim& dims) {
  std::vector<T> values(static_cast<std::size_t>(dims.elements()));
  std::iota(values.begin(), values.end(), T{0});
  return Tensor::from(values, dims);
}

/// Copies between views that begin with the same axes and end with `axes`.
template <class T>
void check(const DDim& dims, const std::vector<int>& axes) {
  const Tensor src = counted<T>(dims).permute(axes);
  const Tensor whole = make_darray(src.dims(), T{0});
  copy_strided(src, whole);
  CHECK(whole.to_vector<T>() == src.to_vector<T>());
  const Tensor back = make_darray(dims, T{0});
  copy_strided(src, back.permute(axes));
  CHECK(back.to_vector<T>() == counted<T>(dims).template to_vector<T>());
}

}  // namespace

TEST_CASE("elements of every size are copied between views of any strides") {
  for (const DDim& dims : {DDim{3, 4, 5}, DDim{1, 6, 1}, DDim{2, 0, 3}, DDim{7, 1, 2}})
    for (const std::vector<int>& axes : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}}) {
      INFO(dims.to_string());
      check<double>(dims, axes);
      check<float>(dims, axes);
      check<std::int8_t>(dims, axes);
    }
  check<std::int64_t>(DDim{}, {});
  const Tensor few = make_darray(DDim{2, 3}, float16(0.0f));
  copy_strided(make_darray(DDim{3, 2}, float16(2.0f)).permute({1, 0}), few);
  CHECK(few.to_vector<float16>() == std::vector<float16>(6, float16(2.0f)));
}
