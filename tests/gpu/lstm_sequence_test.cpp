// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/lstm_sequence.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include <kernels/device_under_test.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gemm.h>
#include <millrace/kernels/where.h>

namespace millrace::testing {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};

/// The dtypes whose arithmetic is the device's own.
std::vector<DType> dtypes_of(const DeviceUnderTest& on) {
  return on.tf32 ? std::vector<DType>{DType::f32} : std::vector<DType>(std::begin(dtypes), std::end(dtypes));
}

/// An LSTM over ragged sequences, longest first, on the host.
struct Case {
  LstmDesc desc;
  Tensor w, r, bias, peepholes, x, h, c;
  std::optional<Tensor> live;  // by row: whether it steps
  std::vector<std::int64_t> offsets;

  std::int64_t sequences() const { return offsets.size() < 2 ? 0 : offsets[1]; }
  std::int64_t steps() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t begin(std::int64_t step) const { return offsets[static_cast<std::size_t>(step)]; }
};

std::vector<std::int64_t> offsets_of(std::vector<std::int64_t> lengths) {
  std::sort(lengths.rbegin(), lengths.rend());
  std::vector<std::int64_t> made{0};
  for (std::int64_t t = 0; !lengths.empty() && t < lengths[0]; ++t)
    made.push_back(made.back() + std::count_if(lengths.begin(), lengths.end(), [t](std::int64_t length) { return length > t; }));
  return made;
}

Case make_case(Random& random, DType dtype, std::int64_t hidden, const std::vector<std::int64_t>& lengths) {
  Case made;
  made.desc.input = random.between(1, 9);
  made.desc.hidden = hidden;
  made.desc.dtype = dtype;
  made.offsets = offsets_of(lengths);
  made.w = random_tensor(random, dtype, DDim{made.desc.input, 4 * hidden});
  made.r = random_tensor(random, dtype, DDim{hidden, 4 * hidden}, 2 / std::sqrt(static_cast<double>(hidden)));
  made.bias = random_tensor(random, dtype, DDim{4 * hidden});
  made.peepholes = random_tensor(random, dtype, DDim{3 * hidden});
  made.x = random_tensor(random, dtype, DDim{made.offsets.back(), made.desc.input});
  made.h = random_tensor(random, dtype, DDim{made.sequences(), hidden});
  made.c = random_tensor(random, dtype, DDim{made.sequences(), hidden});
  return made;
}

Tensor numbers(std::size_t count, std::int64_t value) {
  return Tensor::from(std::vector<std::int64_t>(count, value), DDim{static_cast<std::int64_t>(count)});
}

Tensor random_mask(Random& random, std::int64_t rows) {
  Tensor made(DType::boolean, DDim{rows, 1});
  for (std::int64_t i = 0; i < rows; ++i) made.mutable_data<bool>()[i] = random.coin();
  made.storage()->mark_written();
  return made;
}

std::vector<std::int64_t> lengths_of(Random& random, std::int64_t sequences, std::int64_t longest) {
  std::vector<std::int64_t> made;
  for (std::int64_t i = 0; i < sequences; ++i) made.push_back(random.between(0, static_cast<int>(longest)));
  return made;
}

struct Found {
  Tensor y, h, c;
};

bool same(const Found& a, const Found& b) { return same_bits(a.y, b.y) && same_bits(a.h, b.h) && same_bits(a.c, b.c); }

/// By the cell, step by step, on the device: what the interpreted backend does.
Found by_steps(DeviceUnderTest& on, const Case& of) {
  const LstmPlan plan = make_lstm_cell(of.desc, on.stream().place());
  const Tensor bias = on.up(of.bias), peepholes = on.up(of.peepholes), x = on.up(of.x);
  const PackedLstm packed =
      pack(plan, on.up(of.w), on.up(of.r), of.desc.bias ? &bias : nullptr, of.desc.peepholes ? &peepholes : nullptr, on.stream());
  Found made{Tensor(of.desc.dtype, DDim{of.offsets.back(), of.desc.hidden}), Tensor(of.h.dtype(), of.h.dims()),
             Tensor(of.c.dtype(), of.c.dims())};
  Tensor h = on.up(of.h), c = on.up(of.c);
  const std::size_t row = static_cast<std::size_t>(of.desc.hidden) * size_of(of.desc.dtype);
  const auto keep = [&](const Tensor& from, std::int64_t first, std::int64_t last, Tensor& to, std::int64_t at) {
    const Tensor here = on.down(from);
    std::memcpy(static_cast<std::byte*>(to.raw_mutable()) + static_cast<std::size_t>(at) * row,
                static_cast<const std::byte*>(here.raw()) + static_cast<std::size_t>(first) * row,
                static_cast<std::size_t>(last - first) * row);
  };
  for (Tensor* tensor : {&made.y, &made.h, &made.c}) tensor->storage()->mark_written();
  for (std::int64_t t = 0; t < of.steps(); ++t) {
    const std::int64_t n = of.begin(t + 1) - of.begin(t);
    keep(h, n, h.dim(0), made.h, n);
    keep(c, n, c.dim(0), made.c, n);
    Tensor h_next = on.room(of.desc.dtype, DDim{n, of.desc.hidden}), c_next = on.room(of.desc.dtype, DDim{n, of.desc.hidden});
    run(plan, packed, x.rows(of.begin(t), of.begin(t + 1)), h.rows(0, n), c.rows(0, n), h_next, c_next, on.stream());
    const auto held = [&](const Tensor& next, const Tensor& before) {
      return of.live ? where(on.up(of.live->rows(of.begin(t), of.begin(t + 1))), next, before.rows(0, n), on.stream()) : next;
    };
    h = held(h_next, h);
    c = held(c_next, c);
    keep(h, 0, n, made.y, of.begin(t));
  }
  keep(h, 0, h.dim(0), made.h, 0);
  keep(c, 0, c.dim(0), made.c, 0);
  return made;
}

/// The sequence kernel's operands on the device; x·W in f32.
struct OnDevice {
  LstmSequencePlan plan;
  PackedLstmSequence packed;
  LstmSequenceRows rows;
};

OnDevice bring(DeviceUnderTest& on, const Case& of) {
  const Tensor bias = on.up(of.bias), peepholes = on.up(of.peepholes);
  OnDevice made{make_lstm_sequence(of.desc, on.stream().place(), on.tf32), {}, {}};
  made.packed = pack(made.plan, on.up(of.r), of.desc.bias ? &bias : nullptr, of.desc.peepholes ? &peepholes : nullptr, on.stream());
  made.rows.projection = on.room(DType::f32, DDim{of.offsets.back(), 4 * of.desc.hidden});
  const GemmPlan product = make_gemm_plan({of.desc.input, 4 * of.desc.hidden, of.desc.dtype, DType::f32}, on.stream().place());
  run(product, pack(product, on.up(of.w), on.stream()), on.up(of.x), made.rows.projection, on.stream());
  made.rows.y = on.room(of.desc.dtype, DDim{of.offsets.back(), of.desc.hidden});
  if (of.live) made.rows.live = on.up(*of.live);
  made.rows.offsets = of.offsets;
  made.rows.h = made.rows.h_out = on.up(of.h);
  made.rows.c = made.rows.c_out = on.up(of.c);
  return made;
}

Found run_on(DeviceUnderTest& on, const Case& of, const LstmSchedule* schedule = nullptr, std::int64_t steps_a_launch = 0) {
  OnDevice there = bring(on, of);
  there.rows.steps_a_launch = steps_a_launch;
  there.rows.watermark = on.stream().watermark(static_cast<std::uint64_t>(of.steps()));
  run(there.plan, there.packed, there.rows, on.stream(), schedule);
  const Point all(there.rows.watermark, static_cast<std::uint64_t>(of.steps()));
  all.wait();
  return {on.down(there.rows.y), on.down(there.rows.h_out), on.down(there.rows.c_out)};
}

/// Schedules of every kind that fit, with numbers that no estimate would choose.
std::vector<LstmSchedule> any_schedules(Random& random, const LstmDesc& desc, std::int64_t rows, const LstmLimits& limits) {
  std::vector<LstmSchedule> made;
  for (int attempt = 0; attempt < 400 && made.size() < 5; ++attempt) {
    LstmSchedule one;
    one.group = static_cast<LstmSchedule::Group>(random.between(0, 2));
    one.warps = 1 << random.between(0, 2);
    one.ways = 1 << random.between(0, 2);
    one.wide = random.coin() ? 4 : 1;
    one.staged = one.wide * static_cast<int>(random.between(1, 3));
    one.resident = random.between(0, 8);
    one.groups = static_cast<int>(random.between(1, 4));
    one.step_ns = 1000.0 * static_cast<double>(random.between(0, 5));
    if (one.group == LstmSchedule::Group::grid) one.blocks = static_cast<int>(random.between(1, 4));
    if (one.group == LstmSchedule::Group::cluster) one.blocks = 2 << random.between(0, 1);
    if (random.coin()) {
      one.held = static_cast<int>(random.between(1, 2));
      one.ways = one.wide = 1;
      one.warps = 8;
    }
    try {
      check_schedule(one, desc, limits, rows);
      made.push_back(one);
    } catch (const ArgumentError&) {
    }
  }
  return made;
}

}  // namespace

TEST_CASE("a sequence of LSTM steps in one kernel has the bits of its steps by the cell, however blocks and launches share it") {
  each_product_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(sanitized ? 1 : 4)) {
      Random random(seed);
      for (const DType dtype : dtypes_of(on)) {
        const std::int64_t hidden = random.between(1, dtype == DType::f32 && !on.tf32 ? 40 : 150);
        Case of = make_case(random, dtype, hidden, lengths_of(random, random.between(1, 40), 5));
        of.desc.bias = random.coin();
        of.desc.peepholes = random.coin();
        if (random.coin()) of.live = random_mask(random, of.offsets.back());
        INFO("seed ", seed, ", ", name_of(dtype), ", H ", hidden, ", ", of.sequences(), " sequences of up to ", of.steps(), ", masked ",
             of.live.has_value());
        const Found expected = by_steps(on, of);
        CHECK(same(run_on(on, of), expected));
        CHECK(same(run_on(on, of, nullptr, random.between(1, 3)), expected));
        const LstmLimits limits = make_lstm_sequence(of.desc, on.stream().place(), on.tf32).limits();
        for (const LstmSchedule& schedule : any_schedules(random, of.desc, of.sequences(), limits)) {
          INFO(schedule.to_string());
          CHECK(same(run_on(on, of, &schedule), expected));
        }
      }
    }
  });
}

TEST_CASE("wide layers, whose weights do not all stay on chip and whose sums have several chains, have the bits of their steps too") {
  each_product_backend([](DeviceUnderTest& on) {
    Random random(5);
    for (const auto& [dtype, hidden] : {std::pair{DType::f32, on.tf32 ? 290 : 530}, {DType::f16, 300}, {DType::bf16, 270}}) {
      if (on.tf32 && dtype != DType::f32) continue;
      INFO(name_of(dtype), ", H ", hidden);
      const Case of = make_case(random, dtype, hidden, {2, 1});
      CHECK(same(run_on(on, of), by_steps(on, of)));
    }
  });
}

TEST_CASE("weights that stay in registers give the bits of the steps by the cell, whatever the blocks hand on to each other") {
  each_backend([](DeviceUnderTest& on) {
    using Group = LstmSchedule::Group;
    int tried = 0;
    for (const std::uint64_t seed : seeds(sanitized ? 1 : 3)) {
      Random random(seed);
      for (const DType dtype : {DType::f16, DType::bf16})
        for (const std::int64_t hidden : {std::int64_t{16}, random.between(17, 127), std::int64_t{128}, random.between(129, 260)}) {
          if (sanitized && (hidden > 128) != (dtype == DType::bf16)) continue;
          Case of = make_case(random, dtype, hidden, lengths_of(random, random.between(1, 40), 9));
          of.desc.bias = random.coin();
          if (random.coin()) of.live = random_mask(random, of.offsets.back());
          const Found expected = by_steps(on, of);
          const LstmLimits limits = make_lstm_sequence(of.desc, on.stream().place()).limits();
          std::vector<std::tuple<Group, int, int>> shapes{{Group::block, 1, limits.multiprocessors}};
          for (const auto& [blocks, most] : limits.clusters) shapes.emplace_back(Group::cluster, blocks, most);
          for (const int blocks : {1, 2, 3}) shapes.emplace_back(Group::grid, blocks, limits.multiprocessors / blocks);
          for (const auto& [group, blocks, most] : shapes)
            for (const int held : {1, 2}) {
              LstmSchedule one;
              one.group = group;
              one.blocks = blocks;
              one.groups = static_cast<int>(random.between(1, std::min(most, 3)));
              one.held = held;
              one.staged = static_cast<int>(random.between(1, 3));
              one.step_ns = 1000.0 * static_cast<double>(random.between(0, 5));
              try {
                check_schedule(one, of.desc, limits, of.sequences());
              } catch (const ArgumentError&) {
                continue;
              }
              ++tried;
              INFO("seed ", seed, ", ", name_of(dtype), ", H ", hidden, ", ", of.sequences(), " sequences, masked ", of.live.has_value(),
                   ", ", one.to_string());
              CHECK(same(run_on(on, of, &one, random.between(0, 3)), expected));
            }
        }
    }
    CHECK(tried > (sanitized ? 5 : 20));
  });
}

TEST_CASE("a kernel that takes the time of its phases gives the same bits, and cycles of every phase") {
  each_backend([](DeviceUnderTest& on) {
    Random random(9);
    const Case of = make_case(random, DType::f16, 70, {9, 9, 8, 8, 8, 8, 7, 7, 7, 7, 7, 3, 2});
    const Found expected = run_on(on, of);
    const LstmLimits limits = make_lstm_sequence(of.desc, on.stream().place()).limits();
    std::vector<LstmSchedule> schedules = any_schedules(random, of.desc, of.sequences(), limits);
    schedules.push_back(schedule_lstm(of.desc, of.sequences(), limits));
    for (const LstmSchedule& schedule : schedules) {
      INFO(schedule.to_string());
      OnDevice there = bring(on, of);
      there.rows.phases = on.up(numbers(lstm_phases.size(), -1));
      run(there.plan, there.packed, there.rows, on.stream(), &schedule);
      CHECK(same({on.down(there.rows.y), on.down(there.rows.h_out), on.down(there.rows.c_out)}, expected));
      for (const std::int64_t cycles : on.down(*there.rows.phases).to_vector<std::int64_t>()) CHECK(cycles >= 0);
    }
  });
}

TEST_CASE("the time of phases is refused for cells that have no kernel for it") {
  each_backend([](DeviceUnderTest& on) {
    Random random(9);
    const auto refused = [&](Case of, const Tensor& phases) {
      OnDevice there = bring(on, of);
      there.rows.phases = on.up(phases);
      run(there.plan, there.packed, there.rows, on.stream());
    };
    const Tensor six = numbers(lstm_phases.size(), 0);
    CHECK_THROWS_WITH_AS(refused(make_case(random, DType::bf16, 8, {2}), six), doctest::Contains("found bf16"), UnsupportedError);
    Case clipped = make_case(random, DType::f16, 8, {2});
    clipped.desc.clip = 1;
    CHECK_THROWS_AS(refused(clipped, six), UnsupportedError);
    CHECK_THROWS_AS(refused(make_case(random, DType::f16, 8, {2}), numbers(2, 0)), ShapeError);
  });
}

TEST_CASE("a sequence of LSTM steps agrees with the reference in f64, with the cell state in f32 and in the cell's own dtype") {
  each_product_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(3)) {
      Random random(seed);
      for (const DType dtype : dtypes_of(on)) {
        const Case of = make_case(random, dtype, random.between(1, 50), {6, 6, 5, 2, 1, 0});
        const auto w = reference::values(of.w), r = reference::values(of.r), bias = reference::values(of.bias);
        reference::LstmState state{reference::values(of.h), reference::values(of.c)};
        reference::Values y{DDim{of.offsets.back(), of.desc.hidden}, {}}, c = y, last_c = state.c;
        for (std::int64_t t = 0; t < of.steps(); ++t) {
          const std::int64_t n = of.begin(t + 1) - of.begin(t);
          for (reference::Values* part : {&state.h, &state.c}) {
            part->dims = DDim{n, of.desc.hidden};
            part->at.resize(static_cast<std::size_t>(n * of.desc.hidden));
          }
          state = reference::lstm_cell(of.desc, reference::values(of.x.rows(of.begin(t), of.begin(t + 1))), state, w, r, &bias, nullptr);
          y.at.insert(y.at.end(), state.h.at.begin(), state.h.at.end());
          c.at.insert(c.at.end(), state.c.at.begin(), state.c.at.end());
          std::copy(state.c.at.begin(), state.c.at.end(), last_c.at.begin());
        }
        for (const DType cell : {dtype, DType::f32}) {
          INFO("seed ", seed, ", ", name_of(dtype), ", c in ", name_of(cell));
          OnDevice there = bring(on, of);
          there.rows.c = there.rows.c_out = on.up(cast(of.c, cell, CpuDevice().stream(0)));
          there.rows.c_steps = on.room(cell, y.dims);
          run(there.plan, there.packed, there.rows, on.stream());
          CHECK(error_of(on.down(there.rows.y), y) <= 100 * on.rounding(dtype));
          CHECK(error_of(on.down(*there.rows.c_steps), c) <= 100 * on.rounding(dtype));
          CHECK(error_of(on.down(there.rows.c_out), last_c) <= 100 * on.rounding(dtype));
        }
      }
    }
  });
}

TEST_CASE("states are taken from and put into any slots, and sequences may stand in any order within a step, with the same bits") {
  each_backend([](DeviceUnderTest& on) {
    Random random(8);
    for (const DType dtype : dtypes) {
      const Case of = make_case(random, dtype, 21, {4, 4, 4, 3, 3, 1, 1, 1, 1, 1, 1});
      const Found expected = run_on(on, of);
      OnDevice there = bring(on, of);
      const std::int64_t n = of.sequences(), slots = n + 5;
      std::vector<std::int64_t> order(static_cast<std::size_t>(slots));
      std::iota(order.begin(), order.end(), 0);
      for (std::size_t i = order.size(); i-- > 1;)
        std::swap(order[i], order[static_cast<std::size_t>(random.between(0, static_cast<int>(i)))]);
      const Tensor h = random_tensor(random, dtype, DDim{slots, 21}), c = random_tensor(random, dtype, DDim{slots, 21});
      const std::size_t row = 21 * size_of(dtype);
      const auto line = [&](const Tensor& tensor, std::int64_t at) {
        return static_cast<std::byte*>(tensor.raw_mutable()) + static_cast<std::size_t>(at) * row;
      };
      for (std::int64_t i = 0; i < n; ++i) {
        std::memcpy(line(h, order[static_cast<std::size_t>(i)]), line(of.h, i), row);
        std::memcpy(line(c, order[static_cast<std::size_t>(i)]), line(of.c, i), row);
      }
      there.rows.h = on.up(h);
      there.rows.c = on.up(c);
      there.rows.h_out = on.up(h);
      there.rows.c_out = on.up(c);
      there.rows.slots.assign(order.begin(), order.begin() + n);
      there.rows.steps_a_launch = 2;
      // The rows of each step from the last to the first.
      const Tensor projection = on.down(there.rows.projection), turned(DType::f32, projection.dims());
      turned.storage()->mark_written();
      for (std::int64_t t = 0; t < of.steps(); ++t)
        for (std::int64_t i = of.begin(t); i < of.begin(t + 1); ++i) {
          const std::int64_t place = of.begin(t + 1) - 1 - i;
          there.rows.places.push_back(place);
          std::memcpy(static_cast<float*>(turned.raw_mutable()) + (of.begin(t) + place) * 84,
                      static_cast<const float*>(projection.raw()) + i * 84, 84 * sizeof(float));
        }
      there.rows.projection = on.up(turned);
      run(there.plan, there.packed, there.rows, on.stream());
      const Tensor y = on.down(there.rows.y), h_out = on.down(there.rows.h_out), c_out = on.down(there.rows.c_out);
      bool equal = true;
      for (std::int64_t t = 0; t < of.steps(); ++t)
        for (std::int64_t i = of.begin(t); i < of.begin(t + 1); ++i)
          equal =
              equal && std::memcmp(line(y, of.begin(t) + there.rows.places[static_cast<std::size_t>(i)]), line(expected.y, i), row) == 0;
      for (std::int64_t slot = 0; slot < slots; ++slot) {
        const auto at = std::find(order.begin(), order.begin() + n, slot) - order.begin();
        equal = equal && std::memcmp(line(h_out, slot), at < n ? line(expected.h, at) : line(h, slot), row) == 0;
        equal = equal && std::memcmp(line(c_out, slot), at < n ? line(expected.c, at) : line(c, slot), row) == 0;
      }
      CHECK(equal);
    }
  });
}

TEST_CASE("steps that have fewer rows on the device than there is room for leave zeros in the rest") {
  each_backend([](DeviceUnderTest& on) {
    Random random(11);
    for (const DType dtype : dtypes) {
      const Case of = make_case(random, dtype, 19, {2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1});
      OnDevice there = bring(on, of);
      run(there.plan, there.packed, there.rows, on.stream());
      const Tensor whole = on.down(there.rows.y);
      OnDevice less = bring(on, of);
      less.rows.c_steps = on.room(dtype, less.rows.y.dims());
      less.rows.offsets_there = on.up(Tensor::from(std::vector<std::int64_t>{0, 11, 13}, DDim{3}));
      run(less.plan, less.packed, less.rows, on.stream());
      const Tensor y = on.down(less.rows.y), c = on.down(*less.rows.c_steps), none = zeros(DDim{2, 19}, dtype, CpuDevice().stream(0));
      CHECK(same_bits(y.rows(0, 13), whole.rows(0, 13)));
      CHECK(same_bits(y.rows(13, 15), none));
      CHECK(same_bits(c.rows(13, 15), none));
    }
  });
}

TEST_CASE("no steps, no sequences and rows that do not fit are told apart") {
  each_backend([](DeviceUnderTest& on) {
    Random random(9);
    const Case of = make_case(random, DType::f16, 10, {3, 2});
    CHECK(same_bits(run_on(on, make_case(random, DType::f16, 10, {})).h, Tensor(DType::f16, DDim{0, 10})));
    OnDevice there = bring(on, of);
    const auto with = [&](auto change) {
      OnDevice other = there;
      change(other.rows);
      run(other.plan, other.packed, other.rows, on.stream());
    };
    with([](LstmSequenceRows& rows) { rows.offsets = {0}; });
    CHECK(same_bits(on.down(there.rows.h_out), of.h));
    CHECK_THROWS_WITH_AS(with([](LstmSequenceRows& rows) { rows.offsets = {0, 1, 3}; }),
                         doctest::Contains("no more rows than the one before"), ArgumentError);
    CHECK_THROWS_WITH_AS(with([](LstmSequenceRows& rows) { rows.slots = {0, 2}; }), doctest::Contains("below 2, found 2"), IndexError);
    CHECK_THROWS_WITH_AS(with([](LstmSequenceRows& rows) { rows.slots = {1, 1}; }), doctest::Contains("found 1 again"), ArgumentError);
    CHECK_THROWS_WITH_AS(with([](LstmSequenceRows& rows) { rows.places = {0, 1, 0, 2, 0}; }), doctest::Contains("below 2"), IndexError);
    CHECK_THROWS_AS(with([&](LstmSequenceRows& rows) { rows.h_out = on.up(of.x); }), ShapeError);
    LstmDesc f64 = of.desc;
    f64.dtype = DType::f64;
    CHECK_THROWS_AS(make_lstm_sequence(f64, on.stream().place()), DTypeError);
    CHECK_THROWS_WITH_AS(make_lstm_sequence(of.desc, CpuPlace{}), doctest::Contains("expected a CUDA device"), PlaceError);
    const Case wide = make_case(random, DType::f32, 10, {3, 2});
    const Tensor r = on.up(wide.r), bias = on.up(wide.bias);
    CHECK_THROWS_WITH_AS(pack(make_lstm_sequence(wide.desc, on.stream().place(), true), r, &bias, nullptr, on.stream()),
                         doctest::Contains("expected a device with tf32"), ArgumentError);
  });
}

TEST_CASE("a schedule keeps the weights on chip while they fit, and says what it does and what else it would cost") {
  LstmLimits h200;
  h200.multiprocessors = 132;
  h200.shared_bytes = 232448;
  h200.cooperative = true;
  h200.clusters = {{2, 66}, {4, 32}, {8, 16}, {16, 7}};
  LstmDesc desc;
  for (const std::int64_t hidden : {1, 37, 128, 256, 512, 768, 1024, 1536, 2048})
    for (const DType dtype : dtypes)
      for (const std::int64_t rows : {1, 16, 64, 256, 5000}) {
        desc.hidden = hidden;
        desc.dtype = dtype;
        const LstmSchedule made = schedule_lstm(desc, rows, h200);
        INFO(made.reason);
        CHECK_NOTHROW(check_schedule(made, desc, h200, rows));
        CHECK(made.blocks * made.groups <= 132);
        const std::int64_t chunks = (hidden + (dtype == DType::f32 ? 7 : 15)) / (dtype == DType::f32 ? 8 : 16);
        // A slab of more rows may be worth an eighth of the weights.
        if (hidden <= 1024 && dtype != DType::f32) CHECK(8 * made.resident >= 7 * chunks);
        CHECK(made.reason.find("ns a step") != std::string::npos);
      }
  desc.dtype = DType::f32;
  LstmLimits tf32 = h200;
  tf32.tf32 = true;
  for (const std::int64_t hidden : {37, 256, 1024, 2048})
    for (const std::int64_t rows : {1, 64, 5000}) {
      desc.hidden = hidden;
      const LstmSchedule made = schedule_lstm(desc, rows, tf32);
      INFO(made.reason);
      CHECK_NOTHROW(check_schedule(made, desc, tf32, rows));
      // Of few units the functions alone count, and of few rows how long one instruction takes.
      if (hidden > 37 && rows > 1) CHECK(made.step_ns < schedule_lstm(desc, rows, h200).step_ns);
      CHECK(made.reason.find("rows of tf32") != std::string::npos);
      if (made.wide > 1)
        CHECK_THROWS_WITH_AS(check_schedule(made, desc, h200, rows), doctest::Contains("narrow dtype or tf32"), ArgumentError);
    }
  desc.hidden = 4096;  // 32 rows of h are too many here
  desc.dtype = DType::f16;
  CHECK(schedule_lstm(desc, 5000, h200).wide == 1);
  desc.hidden = 32;  // with more, two blocks share the products behind a barrier that the stores of y hide
  CHECK(schedule_lstm(desc, 1, h200).group == LstmSchedule::Group::block);
  desc.hidden = 256;
  CHECK(schedule_lstm(desc, 64, h200).group == LstmSchedule::Group::cluster);
  // Reserved multiprocessors stay free.
  for (const std::int64_t hidden : {128, 512, 1024, 2048})
    for (const std::int64_t rows : {16, 256, 5000}) {
      desc.hidden = hidden;
      const LstmSchedule lean = schedule_lstm(desc, rows, h200.without(16));
      CHECK(lean.blocks * lean.groups <= 116);
      CHECK_NOTHROW(check_schedule(lean, desc, h200, rows));
    }
  CHECK(schedule_lstm(desc, 5000, h200.without(1000)).blocks == 1);
  // A staged slab has few products. The estimate counts the warps that have none.
  desc.hidden = 1024;
  const LstmSchedule slabs = schedule_lstm(desc, 256, h200);
  INFO(slabs.reason);
  const std::int64_t units = (128 + slabs.blocks - 1) / slabs.blocks;
  CHECK(units * ((slabs.staged + slabs.wide - 1) / slabs.wide) * slabs.ways >= slabs.warps / 2);
  // Sequences that run at the same time share the device, where that takes less time than one behind the other.
  for (const std::int64_t hidden : {128, 512, 1024, 2048})
    for (const std::int64_t rows : {1, 16, 64, 256})
      for (const int beside : {1, 2, 4, 24}) {
        desc.hidden = hidden;
        const LstmSchedule alone = schedule_lstm(desc, rows, h200), shared = schedule_lstm(desc, rows, h200, beside);
        INFO(beside, " of ", shared.reason);
        CHECK_NOTHROW(check_schedule(shared, desc, h200, rows));
        CHECK(shared.step_ns >= alone.step_ns);
        CHECK(shared.step_ns <= beside * alone.step_ns);
        if (beside == 1) CHECK(shared.reason == alone.reason);
        if (shared.reason != alone.reason) CHECK(shared.blocks * shared.groups <= 132 / 2);
        // Few rows leave room for others anyway.
        if (hidden == 128 && rows == 1) CHECK(shared.reason == alone.reason);
      }
  // Weights in registers, where the device and the cell have a kernel for it and shared memory takes what registers lack.
  LstmLimits registers = h200;
  registers.registers = true;
  for (const auto& [hidden, rows, group] : {std::tuple{128, 1, LstmSchedule::Group::cluster},
                                            {256, 64, LstmSchedule::Group::cluster},
                                            {512, 16, LstmSchedule::Group::cluster},
                                            {512, 64, LstmSchedule::Group::cluster},
                                            {1024, 16, LstmSchedule::Group::grid},
                                            {1024, 64, LstmSchedule::Group::grid}}) {
    desc.hidden = hidden;
    const LstmSchedule made = schedule_lstm(desc, rows, registers);
    INFO(made.reason);
    CHECK(made.held > 0);
    CHECK(made.group == group);
    CHECK(made.step_ns < schedule_lstm(desc, rows, h200).step_ns);
    CHECK_NOTHROW(check_schedule(made, desc, registers, rows));
    CHECK_THROWS_AS(check_schedule(made, desc, h200, rows), ArgumentError);
  }
  LstmDesc clipped = desc;
  clipped.clip = 1;
  CHECK(schedule_lstm(clipped, 16, registers).held == 0);
  desc.dtype = DType::f32;
  CHECK(schedule_lstm(desc, 16, registers).held == 0);
  desc.dtype = DType::f16;
  LstmSchedule wrong;
  wrong.ways = 3;
  CHECK_THROWS_WITH_AS(check_schedule(wrong, desc, h200, 8), doctest::Contains("ways that divide them"), ArgumentError);
}

TEST_CASE("products by tensor cores have the same bits whatever shares their rows, their columns and the tile") {
  each_product_backend([](DeviceUnderTest& on) {
    Random random(4);
    for (const DType dtype : on.tf32 ? std::vector{DType::f32} : std::vector{DType::f16, DType::bf16}) {
      const std::int64_t m = 70, n = 90, k = 300;
      const Tensor a = random_tensor(random, dtype, DDim{m, k}), b = random_tensor(random, dtype, DDim{k, n});
      const auto product = [&](const Tensor& left, const Tensor& right) {
        Tensor made = on.room(DType::f32, DDim{left.dim(0), right.dim(1)});
        gemm(1, left, right, 0, made, on.stream());
        return on.down(made);
      };
      const Tensor there = on.up(a), weights = on.up(b);
      const Tensor whole = product(there, weights);
      const Tensor turned = on.up(contiguous(b.permute({1, 0}), CpuDevice().stream(0)));
      CHECK(same_bits(product(there, turned.permute({1, 0})), whole));
      for (const auto& [row, column] : {std::pair{0, 0}, {9, 17}, {33, 64}, {69, 89}}) {
        CHECK(same_bits(product(there.rows(row, row + 1), weights), whole.rows(row, row + 1)));
        CHECK(same_bits(product(there, weights.slice(1, column, column + 1)), whole.slice(1, column, column + 1)));
      }
    }
  });
}

TEST_CASE(
    "products by tensor cores of many rows have the bits of those of few, whatever k lacks to a chain, with a bias and with factors") {
  each_product_backend([](DeviceUnderTest& on) {
    Random random(6);
    const std::int64_t m = 128 * std::max(1, lstm_limits(on.stream().place(), DType::f16).multiprocessors / 4) + 72, n = 200;
    const std::vector<std::pair<DType, std::int64_t>> narrow{{DType::f16, 296}, {DType::bf16, 128}, {DType::f16, 8}};
    const std::vector<std::pair<DType, std::int64_t>> wide{{DType::f32, 300}, {DType::f32, 128}, {DType::f32, 4}};
    for (const auto& [dtype, k] : on.tf32 ? wide : narrow) {
      INFO(name_of(dtype), ", K ", k);
      const Tensor a = on.up(random_tensor(random, dtype, DDim{m, k})), b = on.up(random_tensor(random, dtype, DDim{k, n}));
      const Tensor c = random_tensor(random, DType::f32, DDim{m, n});
      const auto product = [&](std::int64_t row, std::int64_t last_row, std::int64_t column, std::int64_t last_column) {
        Tensor made = on.up(contiguous(c.rows(row, last_row).slice(1, column, last_column), CpuDevice().stream(0)));
        gemm(0.5, a.rows(row, last_row), b.slice(1, column, last_column), 2, made, on.stream());
        return on.down(made);
      };
      const Tensor whole = product(0, m, 0, n);
      for (const auto& [row, column] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {57, 72}, {100, 120}, {m - 33, n - 63}})
        CHECK(same_bits(product(row, row + 33, column, column + 63),
                        contiguous(whole.rows(row, row + 33).slice(1, column, column + 63), CpuDevice().stream(0))));
    }
  });
}

}  // namespace millrace::testing
