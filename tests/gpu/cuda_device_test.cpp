// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/cuda_device.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <thread>

#include <gpu/spin.h>
#include <millrace/kernels/binary.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/kernels/library_products.h>
#include <millrace/kernels/matmul.h>
#include <millrace/runtime/array/tensor_array.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/tensor/caching_resource.h>
#include <millrace/tensor/copy.h>
#include <support/random_tensor.h>

namespace millrace::testing {
namespace {

std::shared_ptr<Device> device_of(std::size_t streams = 4, std::size_t budget = CachingResource::unlimited) {
  CudaOptions options;
  options.streams = streams;
  options.budget = budget;
  return make_cuda_device(options);
}

Tensor up(const Tensor& host, StreamRef stream) {
  Tensor made(host.dtype(), host.dims(), stream.memory());
  copy(host, made, stream);
  return made;
}

std::vector<float> numbers(const Tensor& tensor) { return tensor.copy_to(CpuPlace{}).to_vector<float>(); }

Tensor counted(std::int64_t rows, std::int64_t columns) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return Tensor::from(values, DDim{rows, columns});
}

}  // namespace

TEST_CASE("what is copied to a device and back is the same, whatever the strides") {
  const auto device = device_of();
  const StreamRef stream = device->stream(0);
  const Tensor host = counted(6, 10);
  const Tensor there = up(host, stream);
  CHECK(numbers(there) == host.to_vector<float>());
  const Tensor turned = host.permute({1, 0}).slice(0, 2, 9);
  CHECK(numbers(up(turned, stream)) == turned.to_vector<float>());
  CHECK(numbers(there.permute({1, 0}).slice(0, 2, 9)) == turned.to_vector<float>());
  CHECK(numbers(clone(there.slice(1, 3, 7), stream)) == host.slice(1, 3, 7).to_vector<float>());
  Tensor back(DType::f32, DDim{10, 6});
  copy(there, back.permute({1, 0}), stream);
  back.ready().wait();
  CHECK(back.permute({1, 0}).to_vector<float>() == host.to_vector<float>());
}

TEST_CASE("pinned memory goes both ways without the caller's waiting, and stays until the device is done with it") {
  const auto device = device_of();
  const StreamRef stream = device->stream(0);
  const auto pinned = pinned_memory();
  Tensor result(DType::f32, DDim{1 << 16}, pinned);
  {
    Tensor from(DType::f32, DDim{1 << 16}, pinned);
    for (std::int64_t i = 0; i < from.elements(); ++i) from.mutable_data<float>()[i] = static_cast<float>(i);
    copy(up(from, stream), result, stream);
  }
  result.ready().wait();
  bool same = true;
  for (std::int64_t i = 0; i < result.elements(); ++i) same = same && result.data<float>()[i] == static_cast<float>(i);
  CHECK(same);
}

TEST_CASE("an element of a device is not read in place, and the error names copy_to") {
  const auto device = device_of();
  const Tensor there = ones(DDim{2}, DType::f32, device->stream(0));
  CHECK_THROWS_WITH_AS(there.data<float>(), doctest::Contains("copy_to"), PlaceError);
}

TEST_CASE("streams order what one makes and another uses, however work is spread over them") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    const auto device = device_of(3);
    const auto stream = [&] { return device->stream(static_cast<std::size_t>(random.between(0, 2))); };
    std::vector<Tensor> values{ones(DDim{1000}, DType::f32, stream())};
    std::vector<float> expected{1};
    for (int i = 0; i < 100; ++i) {
      const auto a = static_cast<std::size_t>(random.between(0, static_cast<int>(values.size()) - 1));
      const auto b = static_cast<std::size_t>(random.between(0, static_cast<int>(values.size()) - 1));
      const Tensor next = binary(Binary::maximum, values[a], values[b], stream());
      values.push_back(binary(Binary::add, next, values[0], stream()));
      expected.push_back(std::max(expected[a], expected[b]) + expected[0]);
      if (values.size() > 8) {  // given back while streams still work on it
        const auto gone = static_cast<std::ptrdiff_t>(random.between(1, 7));
        values.erase(values.begin() + gone);
        expected.erase(expected.begin() + gone);
      }
    }
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(numbers(values[i]) == std::vector<float>(1000, expected[i]));
  }
}

TEST_CASE("work behind a point that the host reaches later starts then, on the device") {
  const auto device = device_of();
  const StreamRef stream = device->stream(0);
  const auto timeline = std::make_shared<Timeline>();
  stream.wait(Point(timeline, 1));
  const Tensor made = full(DDim{3}, 7, DType::f32, stream);
  const Tensor next = binary(Binary::add, made, made, device->stream(1));
  CHECK_FALSE(made.ready().reached());
  timeline->advance(1);
  CHECK(numbers(made) == std::vector<float>(3, 7));
  CHECK(numbers(next) == std::vector<float>(3, 14));
}

TEST_CASE("a stream behind a point that fails carries its error, and the others go on") {
  const auto device = device_of();
  const auto timeline = std::make_shared<Timeline>();
  device->stream(0).wait(Point(timeline, 1));
  const Tensor lost = ones(DDim{3}, DType::f32, device->stream(0));
  timeline->fail(std::make_exception_ptr(IoError("the line is dead")));
  CHECK_THROWS_WITH_AS(lost.ready().wait(), "the line is dead", IoError);
  CHECK(numbers(ones(DDim{3}, DType::f32, device->stream(1))) == std::vector<float>(3, 1));
}

namespace {

task<float> sum_of_steps(TensorArray steps, StreamRef stream) {
  Tensor state = zeros(DDim{4}, DType::f32, stream);
  const std::int64_t count = 50;
  for (std::int64_t t = 0; t < count; ++t) {
    SlotValue step = co_await steps.read(t);
    state = binary(Binary::add, state, step.tensor(), stream);
  }
  co_await ready(state.ready());
  co_return state.copy_to(CpuPlace{}).data<float>()[0];
}

task<void> write_steps(TensorArray steps, StreamRef stream) {
  for (std::int64_t t = 0; t < 50; ++t) {
    Tensor step = full(DDim{4}, static_cast<double>(t), DType::f32, stream);
    co_await steps.write(t, step);
  }
}

task<float> both(TensorArray steps, StreamRef writer, StreamRef reader) {
  co_await write_steps(steps, writer);
  const float sum = co_await sum_of_steps(steps, reader);
  co_return sum;
}

task<void> await_point(Point point) { co_await ready(point); }

}  // namespace

TEST_CASE("slots of a TensorArray are written on one stream and read on another without the host's waiting") {
  const auto device = device_of();
  ThreadExecutor executor(2);
  CHECK(sync_wait(executor, both(TensorArray(50), device->stream(0), device->stream(1))) == 49.0f * 50 / 2);
}

namespace {

constexpr std::int64_t overlapped_steps = 8;
constexpr std::int64_t step_nanoseconds = 2'000'000;

/// The writes are not awaited: an awaited write waits for the device.
void produce(const TensorArray& steps, StreamRef stream) {
  for (std::int64_t t = 0; t < overlapped_steps; ++t) steps.write(t, spin(step_nanoseconds, nullptr, stream));
}

task<std::vector<Tensor>> consume(TensorArray steps, StreamRef stream) {
  std::vector<Tensor> made;
  for (std::int64_t t = 0; t < overlapped_steps; ++t) {
    SlotValue step = co_await steps.read(t);
    made.push_back(spin(step_nanoseconds, &step.tensor(), stream));
  }
  co_return made;
}

/// All of the producer's steps are enqueued before the consumer asks for the first.
task<std::vector<Tensor>> produce_then_consume(TensorArray steps, StreamRef writer, StreamRef reader) {
  produce(steps, writer);
  std::vector<Tensor> made = co_await consume(steps, reader);
  Point last = made.back().ready();
  co_await ready(last);
  co_return made;
}

task<std::vector<Tensor>> stamps_of(TensorArray steps) {
  std::vector<Tensor> made;
  for (std::int64_t t = 0; t < overlapped_steps; ++t) {
    SlotValue step = co_await steps.read(t);
    made.push_back(step.tensor().copy_to(CpuPlace{}));
  }
  co_return made;
}

}  // namespace

TEST_CASE("a consumer works on step t while the producer is at t + 1, by the device's clock") {
  const auto device = device_of();
  spin(0, nullptr, device->stream(0)).ready().wait();  // the kernel is loaded
  ThreadExecutor executor(1);
  const TensorArray steps(overlapped_steps);
  const std::vector<Tensor> consumed = sync_wait(executor, produce_then_consume(steps, device->stream(0), device->stream(1)));
  const std::vector<Tensor> produced = sync_wait(executor, stamps_of(steps));
  int overlaps = 0;
  for (std::size_t t = 0; t + 1 < consumed.size(); ++t) {
    const std::vector<std::int64_t> reader = consumed[t].copy_to(CpuPlace{}).to_vector<std::int64_t>();
    const std::vector<std::int64_t> own = produced[t].to_vector<std::int64_t>();
    const std::vector<std::int64_t> next = produced[t + 1].to_vector<std::int64_t>();
    CHECK(reader[0] >= own[1] - 100'000);  // the clock ticks coarsely
    overlaps += reader[0] < next[1] && next[0] < reader[1] ? 1 : 0;
  }
  // Threads that stand for streams share the cores with whatever else runs here.
  if (cuda_devices().front().name != "emulated") CHECK(overlaps >= overlapped_steps - 3);
}

TEST_CASE("an index outside, which only the device can see, reaches whoever awaits the result") {
  const auto device = device_of();
  const StreamRef stream = device->stream(0);
  const Tensor table = up(counted(5, 3), stream);
  const Tensor good = gather(table, up(Tensor::from<std::int64_t>({4, -1}), stream), 0, stream);
  CHECK(numbers(good) == std::vector<float>{12, 13, 14, 12, 13, 14});
  const Tensor bad = gather(table, up(Tensor::from<std::int64_t>({1, 7}), stream), 0, stream);
  ThreadExecutor executor(1);
  CHECK_THROWS_WITH_AS(sync_wait(executor, await_point(bad.ready())), doctest::Contains("found 7"), IndexError);
}

TEST_CASE("an integer divided by zero on the device is an error of the point") {
  const auto device = device_of();
  const StreamRef stream = device->stream(0);
  const Tensor zero = up(Tensor::from<std::int32_t>({1, 0}), stream);
  CHECK_THROWS_AS(binary(Binary::div, zero, zero, stream).ready().wait(), ArgumentError);
}

TEST_CASE("memory comes back in stream order and stays within its budget, and what does not fit names sizes") {
  constexpr std::size_t mebibyte = std::size_t{1} << 20;
  const auto device = device_of(2, 8 * mebibyte);
  const StreamRef stream = device->stream(0);
  Tensor sum = zeros(DDim{1 << 18}, DType::f32, stream);
  constexpr int times = sanitized ? 10 : 100;
  for (int i = 0; i < times; ++i) sum = binary(Binary::add, sum, ones(DDim{1 << 18}, DType::f32, stream), stream);
  CHECK(numbers(sum)[12345] == times);
  CHECK_THROWS_WITH_AS(Tensor(DType::f32, DDim{1 << 22}, stream.memory()), doctest::Contains("a budget of 8388608"), OutOfMemoryError);
  // Other sizes make the cache give up what it kept.
  const Tensor large(DType::u8, DDim{5 << 20}, device->stream(1).memory());
  CHECK(large.place() == Place(CudaPlace{0}));
  CHECK(numbers(sum)[0] == times);
}

TEST_CASE("what a kernel that was only started reads is not given to another stream") {
  const auto device = device_of(2);
  const Tensor x = up(counted(6, 2), device->stream(0));
  x.ready().wait();
  spin(20'000'000, nullptr, device->stream(0));
  // Its indices lie in memory that goes back as soon as the kernel is started.
  const Tensor taken = gather_rows(x, {5, 4, 3, 2, 1, 0}, device->stream(0));
  std::vector<Tensor> others;
  for (int i = 0; i < 8; ++i) others.push_back(zeros(DDim{12}, DType::f32, device->stream(1)));
  CHECK(numbers(taken) == std::vector<float>{10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1});
}

TEST_CASE("memory that work gives back while it is being started is not given to another stream, whose device has nothing to do yet") {
  const auto device = device_of(2);
  const StreamRef first = device->stream(0), second = device->stream(1);
  ones(DDim{1000}, DType::f32, first).ready().wait();
  first.enqueue([&](KernelContext&) {
    const void* given_back = nullptr;
    {
      const Tensor scratch(DType::f32, DDim{5000}, first.memory());
      given_back = scratch.raw();
    }
    CHECK(Tensor(DType::f32, DDim{5000}, second.memory()).raw() != given_back);
  });
  first.position().wait();
}

TEST_CASE("memory that a stream is past serves another one, also where it still works behind what was given back later") {
  const auto device = device_of(2);
  const StreamRef first = device->stream(0), second = device->stream(1);
  std::vector<Tensor> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(ones(DDim{5000}, DType::f32, first));
  first.position().wait();
  const void* const early = blocks.front().raw();
  blocks.erase(blocks.begin());
  const Tensor spinning = spin(1'000'000'000, nullptr, first);  // longer than all that follows, on any machine
  blocks.clear();
  CHECK(Tensor(DType::f32, DDim{5000}, second.memory()).raw() == early);
  CHECK(!spinning.ready().reached());
}

TEST_CASE("tensors may outlive their device") {
  Tensor kept;
  {
    const auto device = device_of();
    kept = ones(DDim{5}, DType::f32, device->stream(0));
  }
  CHECK(kept.ready().reached());
  CHECK(numbers(kept) == std::vector<float>(5, 1));
}

TEST_CASE("a device with nothing in flight uses no processor time") {
  const auto device = device_of();
  ones(DDim{5}, DType::f32, device->stream(0)).ready().wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 0.05);
}

TEST_CASE("a product has the same bits whatever shares its batch and in whichever tile it is computed") {
  const auto device = device_of();
  const StreamRef stream = device->stream(0);
  Random random(3);
  constexpr std::int64_t m = 540;  // large enough for large tiles, when all of it is one product
  constexpr std::int64_t n = 520;
  constexpr std::int64_t k = 600;
  std::vector<float> values(static_cast<std::size_t>(m * k));
  for (float& value : values) value = static_cast<float>(random.real()) - 0.5f;
  const Tensor a = Tensor::from(values, DDim{m, k});
  const Tensor b = Tensor::from(std::vector<float>(values.begin(), values.begin() + n * k), DDim{n, k}).permute({1, 0});
  const Tensor whole = matmul(up(a, stream), up(b, stream), stream);
  const std::vector<float> all = numbers(whole);
  for (std::int64_t row : {0, 1, 33, 539}) {
    const std::vector<float> alone = numbers(matmul(up(a.rows(row, row + 1), stream), up(b, stream), stream));
    CHECK(alone == std::vector<float>(all.begin() + row * n, all.begin() + (row + 1) * n));
  }
  // And the same as the CPU's, whose order it is.
  CHECK(numbers(matmul(a, b, CpuDevice().stream(0))) == all);
}

TEST_CASE("products have the bits of our kernels, whatever cuBLASLt a device has") {
  CudaOptions without;
  without.library_products = false;
  const std::shared_ptr<Device> devices[] = {device_of(), make_cuda_device(without)};
  CpuDevice host;
  Random random(11);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t rows : {300, 1, 40}) {  // the first is large enough for a probe
      CAPTURE(name_of(dtype));
      CAPTURE(rows);
      const Tensor x = cast(random_tensor(random, {rows, 64}), dtype, host.stream(0));
      const Tensor w = cast(random_tensor(random, {64, 64}), dtype, host.stream(0));
      std::vector<float> found[2];
      for (std::size_t i = 0; i < 2; ++i) {
        const StreamRef stream = devices[i]->stream(0);
        found[i] = numbers(cast(matmul(up(x, stream), up(w, stream), stream), DType::f32, stream));
      }
      CHECK(found[0] == found[1]);
    }
  for (const std::string& line : library_products(*devices[0])) MESSAGE(line);
}

TEST_CASE("a device with tf32 rounds the factors of f32 to 10 bits of mantissa, ties away from zero, and changes no other dtype") {
  const auto rounded = [](float value) {
    auto bits = std::bit_cast<std::uint32_t>(value);
    if (std::isfinite(value)) bits += 0x1000;
    return std::bit_cast<float>(bits & 0xffffe000u);
  };
  CudaOptions options;
  options.tf32 = true;
  const std::shared_ptr<Device> coarse = make_cuda_device(options), fine = device_of(), host = make_cpu_device();
  CHECK((uses_tf32(*coarse) && !uses_tf32(*fine) && !uses_tf32(*host)));
  const auto product = [](const std::shared_ptr<Device>& device, const Tensor& a, const Tensor& b) {
    const StreamRef stream = device->stream(0);
    return numbers(cast(matmul(up(a, stream), up(b, stream), stream), DType::f32, stream));
  };
  // Times 1, each is what it is rounded to.
  const std::vector<float> some{1,
                                1 + 0x1p-11f,
                                -1 - 0x1p-11f,
                                1 + 0x1.8p-11f,
                                1 + 0x1p-12f,
                                3 - 0x1p-22f,
                                0x1.ffep+60f,
                                0x1.234568p-50f,
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()};
  std::vector<float> expected;
  for (const float value : some) expected.push_back(rounded(value));
  const auto count = static_cast<std::int64_t>(some.size());
  CHECK(product(coarse, Tensor::from(some, DDim{count, 1}), Tensor::from<float>({1}, DDim{1, 1})) == expected);
  CHECK(product(coarse, Tensor::from<float>({1}, DDim{1, 1}), Tensor::from(some, DDim{1, count})) == expected);
  CHECK(std::isnan(
      product(coarse, Tensor::from<float>({std::bit_cast<float>(0x7f800001u)}, DDim{1, 1}), Tensor::from<float>({1}, DDim{1, 1}))[0]));
  Random random(12);
  const Tensor x = random_tensor(random, {300, 290}), w = random_tensor(random, {290, 64});
  const auto all_rounded = [&](const Tensor& from) {
    std::vector<float> made = from.to_vector<float>();
    std::transform(made.begin(), made.end(), made.begin(), rounded);
    return Tensor::from(made, from.dims());
  };
  const std::vector<float> found = product(coarse, x, w);
  CHECK(found == product(coarse, all_rounded(x), all_rounded(w)));
  CHECK(found != product(fine, x, w));
  CHECK(found != product(fine, all_rounded(x), all_rounded(w)));  // another order of sums
  CHECK(library_products(*coarse).empty());
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16}) {
    const Tensor a = cast(x, dtype, host->stream(0)), b = cast(w, dtype, host->stream(0));
    CHECK_MESSAGE(product(coarse, a, b) == product(fine, a, b), name_of(dtype));
  }
  CHECK_THROWS_WITH_AS(make_device(CpuPlace{}, 1, 1, true), doctest::Contains("expected a CUDA device for tf32, found cpu"),
                       UnsupportedError);
}

TEST_CASE("a device that is not there, and numbers of streams that make no sense, are errors that say so") {
  CudaOptions options;
  options.index = 99;
  CHECK_THROWS_WITH_AS(make_cuda_device(options), doctest::Contains("cuda:99"), PlaceError);
  options.index = 0;
  options.streams = 17;
  CHECK_THROWS_WITH_AS(make_cuda_device(options), doctest::Contains("17"), ArgumentError);
}

}  // namespace millrace::testing
