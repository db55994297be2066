// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/tensor.h>

#include <limits>
#include <numeric>

#include <doctest/doctest.h>

#include "support/random.h"

using namespace millrace;

namespace {

Tensor counted(const DDim& dims) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(dims.elements()));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from(values, dims);
}

std::vector<std::int32_t> values(const Tensor& tensor) { return tensor.to_vector<std::int32_t>(); }

/// Memory that the host must not look at.
class FarMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override { return host_memory()->allocate(bytes); }
  void deallocate(void* pointer, std::size_t bytes) noexcept override { host_memory()->deallocate(pointer, bytes); }
  Place place() const override { return CudaPlace{1}; }
  bool host_accessible() const noexcept override { return false; }
};

}  // namespace

TEST_CASE("a tensor knows its type, its extents and its place") {
  const Tensor tensor = counted({2, 3});
  CHECK(tensor.dtype() == DType::i32);
  CHECK(tensor.rank() == 2);
  CHECK(tensor.dim(-1) == 3);
  CHECK(tensor.elements() == 6);
  CHECK(tensor.bytes() == 24);
  CHECK(tensor.strides() == DDim{3, 1});
  CHECK(tensor.is_contiguous());
  CHECK(tensor.to_string() == "i32[2, 3] on cpu");
  CHECK(Tensor().elements() == 0);
}

TEST_CASE("values and extents must agree") {
  CHECK_THROWS_WITH_AS(Tensor::from(std::vector<float>{1, 2, 3}, DDim{2, 2}), "tensor: expected 4 values for [2, 2], found 3", ShapeError);
  CHECK(Tensor::from({1.0, 2.0}).dims() == DDim{2});
  CHECK(Tensor::scalar(3).dims() == DDim{});
  CHECK(Tensor::from(std::vector<bool>{true, false}, DDim{2}).to_vector<bool>() == std::vector<bool>{true, false});
}

TEST_CASE("hostile extents are refused before memory is asked for") {
  const std::int64_t half = std::int64_t{1} << 62;
  CHECK_THROWS_AS(Tensor(DType::f64, DDim{half}), OverflowError);
  CHECK_THROWS_AS(Tensor(DType::u8, DDim{half, 4, 0}), OverflowError);
  CHECK_THROWS_AS(Tensor(DType::f32, DDim{-1}), ShapeError);
}

TEST_CASE("elements are read and written by coordinates") {
  Tensor tensor = counted({2, 3});
  tensor[make_ddim({0, 1})] = 10.0;
  CHECK(tensor[make_ddim({0, 1})] == 10.0);
  CHECK(values(tensor) == std::vector<std::int32_t>{0, 10, 2, 3, 4, 5});
  const Tensor& read = tensor;
  CHECK(read[DDim{1, 2}] == 5.0);
  CHECK_THROWS_WITH_AS(static_cast<void>(read[DDim{2, 0}]), "element: index [2, 0] is outside [2, 3]", IndexError);
  CHECK_THROWS_AS(static_cast<void>(read[DDim{0, -1}]), IndexError);
  CHECK_THROWS_AS(static_cast<void>(read[DDim{0}]), IndexError);
}

TEST_CASE("a scalar is read with no coordinates or with one zero") {
  const Tensor tensor = Tensor::scalar(2.5f);
  CHECK(tensor[DDim{}] == 2.5);
  CHECK(tensor[DDim{0}] == 2.5);
  CHECK(tensor.item() == 2.5);
  CHECK(Tensor::from({7}).item_int() == 7);
  CHECK_THROWS_AS(tensor.item_int(), DTypeError);
  CHECK_THROWS_AS(counted({2}).item(), ShapeError);
}

TEST_CASE("reading what nothing wrote is an error") {
  const Tensor fresh(DType::f32, DDim{2});
  CHECK_THROWS_WITH_AS(fresh.data<float>(), "tensor: f32[2] on cpu is read, but nothing was ever written to its storage",
                       UninitializedError);
  CHECK_THROWS_AS(static_cast<void>(fresh[DDim{0}]), UninitializedError);
  CHECK_THROWS_AS(fresh.to_vector<float>(), UninitializedError);
  CHECK_NOTHROW(Tensor(DType::f32, DDim{0}).to_vector<float>());
  Tensor moved = Tensor::scalar(1.0F);
  const Tensor taken = std::move(moved);
  CHECK_THROWS_WITH_AS(moved.check_written(), doctest::Contains("moved from"), UninitializedError);  // NOLINT(bugprone-use-after-move)
  CHECK_THROWS_AS(Tensor(DType::f32, DDim{2}, DDim{1}, 0, nullptr), ArgumentError);
}

TEST_CASE("a tensor that was moved from is refused wherever its elements are asked for, and prints itself") {
  Tensor moved = counted({2});
  const Tensor taken = std::move(moved);
  const auto refused = [&](auto&& use) { CHECK_THROWS_WITH_AS(use(moved), doctest::Contains("moved from"), UninitializedError); };
  refused([](Tensor& tensor) { return tensor.to_vector<std::int32_t>(); });
  refused([](Tensor& tensor) { return tensor.data<std::int32_t>(); });
  refused([](Tensor& tensor) { return tensor.mutable_data<std::int32_t>(); });
  refused([](Tensor& tensor) { return tensor.span<std::int32_t>(); });
  refused([](Tensor& tensor) { return double(tensor[DDim{0}]); });
  refused([](Tensor& tensor) { tensor[DDim{0}] = 1.0; });
  refused([](Tensor& tensor) { return tensor.copy_to(CpuPlace{}); });
  refused([](Tensor& tensor) { return tensor.rows(0, 0); });
  refused([](Tensor& tensor) { tensor.resize(DDim{1}); });
  refused([](Tensor& tensor) { return tensor.place(); });
  refused([](Tensor& tensor) { return tensor.host_accessible(); });
  refused([](Tensor& tensor) { return tensor.is_read_only(); });
  refused([](Tensor& tensor) { return tensor.ready(); });
  CHECK(moved.to_string() == "i32[2], moved from");
  moved = counted({3});
  CHECK(moved.to_string() == "i32[3] on cpu");
}

TEST_CASE("elements of another type are refused with both names") {
  CHECK_THROWS_WITH_AS(counted({2}).data<float>(), "tensor: expected elements of f32, found i32", DTypeError);
}

TEST_CASE("memory that the host cannot reach is refused and copy_to is named") {
  Tensor far(DType::f32, DDim{2}, std::make_shared<FarMemory>());
  CHECK(far.to_string() == "f32[2] on cuda:1");
  CHECK_THROWS_WITH_AS(far.data<float>(), doctest::Contains("copy_to"), PlaceError);
  CHECK_THROWS_WITH_AS(far.mutable_data<float>(), doctest::Contains("copy_to"), PlaceError);
  CHECK_THROWS_WITH_AS(far[DDim{0}] = 1.0, doctest::Contains("copy_to"), PlaceError);
  CHECK_THROWS_WITH_AS(make_darray(DDim{2}, 0.0f, CudaPlace{1}), doctest::Contains("expected cpu, found cuda:1"), PlaceError);
}

TEST_CASE("what its stream has not produced is not ready, and what failed throws its error") {
  const auto timeline = std::make_shared<Timeline>();
  const Tensor tensor = counted({2});
  tensor.storage()->set_ready(Point(timeline, 1));
  CHECK_THROWS_AS(tensor.data<std::int32_t>(), NotReadyError);
  timeline->fail(std::make_exception_ptr(IoError("lost")));
  CHECK_THROWS_WITH_AS(tensor.data<std::int32_t>(), "lost", IoError);
}

TEST_CASE("frozen and read-only storage is never written") {
  Tensor tensor = counted({2});
  Tensor view = tensor.read_only();
  CHECK_THROWS_AS(view.mutable_data<std::int32_t>(), ReadOnlyError);
  CHECK_NOTHROW(tensor.mutable_data<std::int32_t>());
  tensor.storage()->freeze();
  CHECK_THROWS_AS(tensor.mutable_data<std::int32_t>(), ReadOnlyError);
  CHECK_THROWS_AS(tensor[DDim{0}] = 1.0, ReadOnlyError);
}

TEST_CASE("case 28: rows 1 to 3 of (5,3,4) start at element 12") {
  const Tensor tensor = counted({5, 3, 4});
  const Tensor rows = tensor.rows(1, 3);
  CHECK(rows.dims() == DDim{2, 3, 4});
  CHECK(rows.data<std::int32_t>() - tensor.data<std::int32_t>() == 12);
  CHECK(rows.is_contiguous());
  CHECK(rows.shares_storage_with(tensor));
}

TEST_CASE("case 28: shrinking and growing back keeps the pointer") {
  Tensor tensor = counted({4, 5});
  const void* pointer = tensor.raw();
  tensor.resize(DDim{2, 5});
  CHECK(tensor.raw() == pointer);
  tensor.resize(DDim{4, 5});
  CHECK(tensor.raw() == pointer);
  CHECK(tensor.dims() == DDim{4, 5});
  tensor.resize(DDim{100, 5});
  CHECK(tensor.raw() != pointer);
  CHECK_THROWS_AS(tensor.data<std::int32_t>(), UninitializedError);
}

TEST_CASE("views cut, select, iteration and reshape without copying") {
  const Tensor tensor = counted({2, 3});
  CHECK(values(tensor.slice(1, 1, 3)) == std::vector<std::int32_t>{1, 2, 4, 5});
  CHECK_FALSE(tensor.slice(1, 1, 3).is_contiguous());
  CHECK(values(tensor.select(1, 2)) == std::vector<std::int32_t>{2, 5});
  CHECK(values(tensor.permute({1, 0})) == std::vector<std::int32_t>{0, 3, 1, 4, 2, 5});
  CHECK(tensor.reshape(DDim{3, 2}).dims() == DDim{3, 2});
  CHECK(tensor.reshape(DDim{-1}).dims() == DDim{6});
  CHECK(tensor.slice(0, 1, 1).elements() == 0);
  for (const Tensor& view : {tensor.slice(1, 1, 3), tensor.select(1, 2), tensor.permute({1, 0}), tensor.reshape(DDim{6})})
    CHECK(view.shares_storage_with(tensor));
}

TEST_CASE("views that do not fit are refused with both sides") {
  const Tensor tensor = counted({2, 3});
  CHECK_THROWS_WITH_AS(tensor.slice(1, 2, 4), "slice: [2, 4) of axis 1 of [2, 3]", IndexError);
  CHECK_THROWS_AS(tensor.slice(2, 0, 1), IndexError);
  CHECK_THROWS_AS(tensor.select(0, 2), IndexError);
  CHECK_THROWS_AS(tensor.permute({0, 0}), ShapeError);
  CHECK_THROWS_AS(tensor.permute({0}), ShapeError);
  CHECK_THROWS_WITH_AS(tensor.reshape(DDim{4}), "reshape: [2, 3] has 6 elements and cannot become [4]", ShapeError);
  CHECK_THROWS_AS(tensor.reshape(DDim{-1, -1}), ShapeError);
  CHECK_THROWS_AS(tensor.reshape(DDim{-1, 4}), ShapeError);
  CHECK_THROWS_AS(tensor.reshape(DDim{-1, 0}), ShapeError);
  CHECK_THROWS_AS(tensor.permute({1, 0}).reshape(DDim{6}), ShapeError);
}

TEST_CASE("a view of storage must lie inside it, on either side") {
  const Tensor tensor = counted({6});
  using View = Tensor;
  CHECK(values(View(DType::i32, DDim{3}, DDim{-2}, 5, tensor.storage())) == std::vector<std::int32_t>{5, 3, 1});
  CHECK_THROWS_AS(View(DType::i32, DDim{3}, DDim{-2}, 3, tensor.storage()), IndexError);
  CHECK_THROWS_AS(View(DType::i32, DDim{2, 2}, DDim{-1, 1}, 0, tensor.storage()), IndexError);
  CHECK_THROWS_AS(View(DType::i32, DDim{4}, DDim{2}, 0, tensor.storage()), IndexError);
  CHECK_THROWS_AS(View(DType::i32, DDim{1}, DDim{1}, 6, tensor.storage()), IndexError);
  CHECK_THROWS_AS(View(DType::i32, DDim{2}, DDim{1, 1}, 0, tensor.storage()), ShapeError);
  CHECK_THROWS_AS(View(DType::i32, DDim{3}, DDim{std::numeric_limits<std::int64_t>::max()}, 0, tensor.storage()), OverflowError);
}

TEST_CASE("copy_to gives row-major elements of one's own") {
  const Tensor tensor = counted({2, 3});
  const Tensor turned = tensor.permute({1, 0}).copy_to(CpuPlace{});
  CHECK(turned.is_contiguous());
  CHECK_FALSE(turned.shares_storage_with(tensor));
  CHECK(values(turned) == std::vector<std::int32_t>{0, 3, 1, 4, 2, 5});
  CHECK_THROWS_AS(Tensor(DType::f32, DDim{1}).copy_to(CpuPlace{}), UninitializedError);
}

TEST_CASE("any chain of views reads the elements that its coordinates name") {
  for (const std::uint64_t seed : testing::seeds(100)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    const DDim dims{random.between(1, 4), random.between(1, 4), random.between(1, 4)};
    const Tensor tensor = counted(dims);
    const std::int64_t begin = random.between(0, dims[1] - 1);
    const Tensor view = tensor.permute({2, 1, 0}).slice(1, begin, dims[1]);
    std::vector<std::int32_t> expected;
    for (std::int64_t k = 0; k < dims[2]; ++k)
      for (std::int64_t j = begin; j < dims[1]; ++j)
        for (std::int64_t i = 0; i < dims[0]; ++i) expected.push_back(static_cast<std::int32_t>((i * dims[1] + j) * dims[2] + k));
    CHECK(values(view) == expected);
  }
}

TEST_CASE("A slice of a tensor that has no elements can be reshaped, wherever it begins") {
  const Tensor none(DType::f32, DDim{0, 16});
  CHECK(none.slice(1, 4, 8).reshape(DDim{4, 0}).dims() == DDim{4, 0});
  CHECK(none.permute({1, 0}).rows(12, 16).reshape(DDim{0}).elements() == 0);
}
