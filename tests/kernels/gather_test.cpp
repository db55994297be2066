// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/gather.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/pad.h>
#include <millrace/kernels/slice.h>
#include <millrace/tensor/copy.h>

namespace millrace::testing {
namespace {

using List = std::vector<std::int64_t>;

Tensor table() { return Tensor::from(List{0, 1, 2, 3, 4, 5}, DDim{3, 2}); }

}  // namespace

TEST_CASE("gather takes along any axis, negative places count from the end, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = on.up(table());
    const Tensor rows = on.down(gather(x, on.up(Tensor::from(List{2, 0, -1, 1}, DDim{2, 2})), 0, on.stream()));
    CHECK(rows.dims() == DDim{2, 2, 2});
    CHECK(rows.to_vector<std::int64_t>() == List{4, 5, 0, 1, 4, 5, 2, 3});
    const Tensor columns = on.down(gather(x, on.up(Tensor::from<std::int32_t>({1, 1, 0})), -1, on.stream()));
    CHECK(columns.dims() == DDim{3, 3});
    CHECK(columns.to_vector<std::int64_t>() == List{1, 1, 0, 3, 3, 2, 5, 5, 4});
    CHECK(on.down(gather(x, on.up(Tensor::scalar(std::int64_t{1})), 0, on.stream())).to_vector<std::int64_t>() == List{2, 3});
    CHECK(on.down(embedding(x, on.up(Tensor::from<std::int64_t>({2})), on.stream())).dims() == DDim{1, 2});
    CHECK(on.down(gather(x, Tensor(DType::i64, DDim{0}, x.storage()->shared_resource()), 1, on.stream())).dims() == DDim{3, 0});
    CHECK(on.down(gather_elements(x, on.up(Tensor::from(List{1, 0, -1, -2}, DDim{2, 2})), 1, on.stream())).to_vector<std::int64_t>() ==
          List{1, 0, 3, 2});
  });
}

TEST_CASE("gather repeats each element of an axis however often, whatever its size, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = Tensor::from(
        [] {
          List all(90);
          std::iota(all.begin(), all.end(), 0);
          return all;
        }(),
        DDim{2, 45});
    for (const DType dtype : {DType::i64, DType::i32, DType::f16, DType::u8})
      for (const std::int64_t times : {2, 3, 4, 7})
        for (const std::int64_t count : {1, 5, 17, 40, 45}) {
          List places;
          for (std::int64_t i = 0; i < count * times; ++i) places.push_back((count == 45 ? 0 : 3) + i / times);
          const Tensor narrow = cast(on.up(x), dtype, on.stream());
          const Tensor found =
              on.down(cast(gather(narrow, on.up(Tensor::from(places, DDim{std::ssize(places)})), 1, on.stream()), DType::i64, on.stream()));
          List wanted;
          for (std::int64_t row = 0; row < 2; ++row)
            for (const std::int64_t place : places) wanted.push_back(45 * row + place);
          CHECK(found.to_vector<std::int64_t>() == wanted);
        }
  });
}

TEST_CASE("gather, pad and their like see the elements of a tensor that is turned around along any axis") {
  each_backend([](DeviceUnderTest& on) {
    for (const int turned : {0, 1, 2}) {
      CAPTURE(turned);
      List values(24);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) + 1;
      const Tensor x = slice_view(on.up(Tensor::from(values, DDim{2, 4, 3})), {-1}, {INT64_MIN}, {turned}, {-1});
      const Tensor dense = contiguous(x, on.stream());
      for (int axis = 0; axis < 3; ++axis) {
        const Tensor places = on.up(Tensor::from(List{1, 0}, DDim{2}));
        CHECK(same_bits(on.down(gather(x, places, axis, on.stream())), on.down(gather(dense, places, axis, on.stream()))));
      }
      for (const PadMode mode : {PadMode::constant, PadMode::edge})
        CHECK(same_bits(on.down(pad(x, {1, 0, 1}, {0, 1, 2}, mode, 7, on.stream())),
                        on.down(pad(dense, {1, 0, 1}, {0, 1, 2}, mode, 7, on.stream()))));
      CHECK(same_bits(on.down(tile(x, {2, 1, 2}, on.stream())), on.down(tile(dense, {2, 1, 2}, on.stream()))));
    }
  });
}

TEST_CASE("gather behind the first axis takes runs of places, single places and blocks, alone and by many threads") {
  CpuDevice device(3);
  Random random(8);
  for (const std::int64_t behind : {1, 3}) {
    for (const bool turned : {false, true}) {
      INFO("behind ", behind, ", turned ", turned);
      const std::int64_t outer = 5, extent = 700;
      Tensor x = random_tensor(random, DType::f32, turned ? DDim{extent, outer, behind} : DDim{outer, extent, behind});
      if (turned) x = x.permute({1, 0, 2});
      List places;
      for (int frame = 0; frame < 40; ++frame)
        for (std::int64_t i = 0; i < 256; ++i) places.push_back(frame * 11 + i);
      for (const std::int64_t place : {699, 0, -1, 3, 3, 2, 1, 5, 6, -700}) places.push_back(place);
      List pairs;  // short runs, as a Resize by 2 has them
      for (std::int64_t i = 0; i < 900; ++i) pairs.push_back((i + 1) / 2);
      for (const List& named : {places, pairs, List{4}, List{-1, 0}, List{}}) {
        const auto width = static_cast<std::int64_t>(named.size());
        const Tensor found = gather(x, width == 1 ? Tensor::scalar(named[0]) : Tensor::from(named, DDim{width}), 1, device.stream(0));
        CHECK(found.dims() == (width == 1 ? DDim{outer, behind} : DDim{outer, width, behind}));
        const std::vector<float> values = found.to_vector<float>(), given = contiguous(x, device.stream(0)).to_vector<float>();
        std::vector<float> expected;
        for (std::int64_t row = 0; row < outer; ++row)
          for (const std::int64_t place : named)
            for (std::int64_t i = 0; i < behind; ++i)
              expected.push_back(given[static_cast<std::size_t>((row * extent + (place + extent) % extent) * behind + i)]);
        CHECK(values == expected);
      }
    }
  }
}

TEST_CASE("gather of planes is a gather along both axes, of any size of elements, alone and by many threads") {
  CpuDevice one(1), many(3);
  Random random(3);
  const auto repeated = [](std::int64_t extent, std::int64_t times) {
    List places;
    for (std::int64_t i = 0; i < extent * times; ++i) places.push_back(i / times);
    return places;
  };
  for (const DType dtype : {DType::f32, DType::u8, DType::f64, DType::bf16})
    for (const auto& [h, w] : {std::pair{1, 1}, std::pair{4, 5}, std::pair{9, 33}, std::pair{3, 90}, std::pair{200, 40}}) {
      const Tensor x = cast(random_tensor(random, DType::f32, DDim{2, 3, h, w}, 100), dtype, one.stream(0));
      List some, run{0};
      for (int i = 0; i < 7; ++i) some.push_back(random.between(-w, w - 1));
      if (w > 3) run = {1, 2, 3};
      for (const List& columns : {repeated(w, 2), repeated(w, 3), some, run, List{0, 0}, List{}})
        for (const List& rows : {repeated(h, 2), List{h - 1, 0, -1, -1}, List{}}) {
          const Tensor down = Tensor::from(rows, DDim{std::ssize(rows)}), along = Tensor::from(columns, DDim{std::ssize(columns)});
          const Tensor wanted = gather(gather(x, along, 3, one.stream(0)), down, 2, one.stream(0));
          CHECK(same_bits(gather_planes(x, down, along, one.stream(0)), wanted));
          CHECK(same_bits(gather_planes(x, down, along, many.stream(0)), wanted));
        }
      const Tensor turned = x.permute({0, 1, 3, 2}), two = Tensor::from<std::int64_t>({0, 0}), last = Tensor::from<std::int64_t>({-1});
      CHECK(same_bits(gather_planes(turned, last, two, one.stream(0)),
                      gather(gather(turned, two, 3, one.stream(0)), last, 2, one.stream(0))));
    }
  const Tensor x = Tensor::from(List{1, 2, 3, 4}, DDim{2, 2}), far = Tensor::from<std::int64_t>({2}),
               near = Tensor::from<std::int64_t>({1});
  CHECK_THROWS_AS(gather_planes(x, far, near, one.stream(0)).to_vector<std::int64_t>(), IndexError);
  CHECK_THROWS_AS(gather_planes(x, near, Tensor::scalar(std::int64_t{0}), one.stream(0)), ShapeError);
}

TEST_CASE(
    "a sum of weighted gathers has the bits of gather, mul and add, along any axis, for places near and far, on every instruction set") {
  Random random(9);
  each_instruction_set([&](const std::string& name) {
    CpuDevice one(1), many(3);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const std::int64_t extent : {1, 2, 10, 16, 17, 40, 200})
        for (const std::int64_t count : {0, 1, 5, 20, 33, 80})
          for (const int axis : {0, 1, 2}) {
            DDim dims{random.between(1, 3), random.between(1, 40), random.between(1, 40)};
            dims[axis] = extent;
            const Tensor x = random_tensor(random, dtype, dims);
            const bool far = random.between(0, 2) == 0;
            std::vector<GatherTerm> terms;
            std::optional<Tensor> wanted;
            for (std::int64_t t = random.between(1, 4); t > 0; --t) {
              List places;
              const bool same = random.between(0, 5) == 0;
              for (std::int64_t j = 0; j < (same ? 1 : count); ++j)
                places.push_back(far ? random.between(-extent, extent - 1)
                                     : std::clamp<std::int64_t>(j * extent / std::max<std::int64_t>(1, count) + t - 2, 0, extent - 1));
              DDim along{1, 1, 1};
              along[axis] = count == 0 || random.between(0, 5) > 0 ? count : 1;
              const Tensor weights = random_tensor(random, dtype, along), all = Tensor::from(places, DDim{std::ssize(places)});
              terms.push_back({all, weights});
              const Tensor term = mul(gather(x, all, axis, one.stream(0)), weights, one.stream(0));
              wanted = wanted ? add(*wanted, term, one.stream(0)) : term;
            }
            INFO(name, ", x ", x.to_string(), ", axis ", axis, ", places ", count, ", terms ", terms.size());
            const Tensor found = gather_sum(x, terms, axis, one.stream(0));
            CHECK(same_bits(found, *wanted));
            CHECK(same_bits(gather_sum(x, terms, axis - 3, many.stream(0)), *wanted));
          }
  });
}

TEST_CASE("a sum of weighted gathers names what does not fit") {
  CpuDevice device;
  const Tensor x = Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2}), near = Tensor::from<std::int64_t>({1, 0}),
               far = Tensor::from<std::int64_t>({0, 2}), weights = Tensor::from<float>({1, 2});
  const auto run = [&](const Tensor& from, const std::vector<GatherTerm>& terms, int axis = 1) {
    return gather_sum(from, terms, axis, device.stream(0)).to_vector<float>();
  };
  CHECK(run(x, {{near, weights}}) == std::vector<float>{2, 2, 4, 6});
  CHECK_THROWS_AS(run(x, {{far, weights}}), IndexError);
  CHECK_THROWS_AS(run(x, {}), ArgumentError);
  CHECK_THROWS_AS(run(x, {{near, weights}}, 2), IndexError);
  CHECK_THROWS_AS(run(x, {{near, Tensor::from<float>({1, 2, 3})}}), ShapeError);
  CHECK_THROWS_AS(run(x, {{near, Tensor::from<double>({1, 2})}}), DTypeError);
  CHECK_THROWS_AS(run(x, {{weights, weights}}), DTypeError);
  CHECK_THROWS_AS(run(near.reshape({1, 2}), {{near, weights}}), DTypeError);
}

TEST_CASE("a place outside is an error that names it, the axis and the extents") {
  CpuDevice device;
  CHECK_THROWS_WITH_AS(gather(table(), Tensor::from<std::int64_t>({3}), 0, device.stream(0)),
                       "gather: expected an index within axis 0 of [3, 2], found 3", IndexError);
  CHECK_THROWS_AS(gather(table(), Tensor::from<std::int64_t>({-3}), 1, device.stream(0)), IndexError);
  CHECK_THROWS_AS(gather(table(), Tensor::from<float>({1}), 1, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(gather_elements(table(), Tensor::from<std::int64_t>({0}), 0, device.stream(0)), ShapeError);
}

TEST_CASE("rows are gathered by plan, zeros for -1, from a vector or a tensor, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = on.up(table());
    const List expected{4, 5, 0, 0, 0, 1};
    CHECK(on.down(gather_rows(x, List{2, -1, 0}, on.stream())).to_vector<std::int64_t>() == expected);
    CHECK(on.down(gather_rows(x, on.up(Tensor::from<std::int32_t>({2, -1, 0})), on.stream())).to_vector<std::int64_t>() == expected);
  });
}

TEST_CASE("rows that are gathered in runs are those of one row at a time, between others and at both ends") {
  CpuDevice device(2);
  Random random(3);
  const Tensor x = random_tensor(random, DType::f32, DDim{9, 700});
  const List plan{6, 7, 8, -1, 3, 4, 5, 0, 1, 2, 2, 8, 0, -1, -1, 1};
  const Tensor all = gather_rows(x, plan, device.stream(0));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    CHECK(same_bits(all.rows(at, at + 1), gather_rows(x, List{plan[i]}, device.stream(0))));
  }
}

TEST_CASE("rows are scattered by plan, -1 skips, other rows stay, the later of two wins, on every device") {
  each_backend([](DeviceUnderTest& on) {
    Tensor out = on.up(Tensor::from(List{9, 9, 9, 9, 9, 9, 9, 9}, DDim{4, 2}));
    scatter_rows(on.up(table()), List{3, -1, 0}, out, on.stream());
    CHECK(on.down(out).to_vector<std::int64_t>() == List{4, 5, 9, 9, 9, 9, 0, 1});
    scatter_rows(on.up(table()), on.up(Tensor::from<std::int64_t>({1, 1, -1})), out, on.stream());
    CHECK(on.down(out).to_vector<std::int64_t>() == List{4, 5, 2, 3, 9, 9, 0, 1});
  });
}

TEST_CASE("a scatter undoes a gather by the same plan, whatever the strides and the row shape") {
  CpuDevice device(2);
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t rows = random.between(0, 12);
    List plan;
    for (std::int64_t i = 0; i < rows; ++i) plan.insert(plan.begin() + random.between(0, i), i);
    Tensor x = random_tensor(random, DType::f32, DDim{rows, 3, 4});
    if (random.coin()) x = random_tensor(random, DType::f32, DDim{3, 4, rows}).permute({2, 0, 1});
    Tensor back(DType::f32, x.dims());
    scatter_rows(gather_rows(x, plan, device.stream(0)), plan, back, device.stream(0));
    CHECK(same_bits(back, x));
  }
}

TEST_CASE("plans that point outside or do not fit the rows are errors") {
  CpuDevice device;
  CHECK_THROWS_WITH_AS(gather_rows(table(), List{3}, device.stream(0)), "gather_rows: expected -1 or a row of [3, 2], found 3", IndexError);
  CHECK_THROWS_AS(gather_rows(table(), Tensor::from<std::int64_t>({-2}), device.stream(0)), IndexError);
  Tensor out(DType::i64, DDim{4, 3});
  CHECK_THROWS_AS(scatter_rows(table(), List{0, 1, 2}, out, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(gather_rows(table(), List{0, 1}, out, device.stream(0)), ShapeError);
}

TEST_CASE("rows of no source are what is given instead, a row or one element, on every device") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor x = on.up(table());
    const Tensor row = on.up(Tensor::from<std::int64_t>({8, 9}));
    CHECK(on.down(gather_rows_or(x, List{2, -1, 0}, row, on.stream())).to_vector<std::int64_t>() == List{4, 5, 8, 9, 0, 1});
    const Tensor one = on.up(Tensor::scalar(std::int64_t{7}));
    CHECK(on.down(gather_rows_or(x, List{-1, 1}, one, on.stream())).to_vector<std::int64_t>() == List{7, 7, 2, 3});
    CHECK_THROWS_AS(gather_rows_or(x, List{0}, on.up(Tensor::from<std::int64_t>({1, 2, 3})), on.stream()), ShapeError);
    CHECK_THROWS_AS(gather_rows_or(x, List{0}, on.up(Tensor::from<float>({1})), on.stream()), DTypeError);
    CHECK_THROWS_AS(gather_rows_or(x, List{3}, one, on.stream()), IndexError);
  });
}

}  // namespace millrace::testing
