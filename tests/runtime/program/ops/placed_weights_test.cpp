// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/tensor/device.h>

#include "support/program_runs.h"
#include "support/random_conv1d.h"
#include "support/random_tensor.h"
#include "support/same_bits.h"

using namespace millrace;
using namespace millrace::testing;
using build::Var;

TEST_CASE("weights that are packed when a program is compiled lie where the op runs") {
  Random random(1);
  const auto tensor = [&](const DDim& dims) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < dims.elements(); ++i) values.push_back(random.real());
    return Tensor::from(values, dims);
  };
  Program program;
  {
    const build::Guard guard(program);
    const Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 3}));
    const Var h = build::input("h", VarType(DType::f32, {DDim::unknown, 4}));
    const auto weight = [&](const char* name, const DDim& dims) { return build::parameter(name, tensor(dims)); };
    const Var product = build::matmul(x, weight("w", {3, 4}));
    const Var sum = build::call1("gemm", {x, weight("g", {3, 4}), weight("b", {4})});
    const build::LstmState next = build::lstm_cell(x, {h, product}, weight("in", {3, 16}), weight("re", {4, 16}), weight("bias", {16}));
    build::output("y", product + sum + next.h * next.c);
    build::output("conv", build::conv1d(build::reshape(x, {1, 3, -1}), weight("taps", {2, 3, 2}), weight("tb", {2})));
  }
  everywhere(program, {{"x", tensor({5, 3})}, {"h", tensor({5, 4})}}, 30);
}

namespace {

/// conv1d of a program that knows the weights, beside the kernel that packs them for the call.
void expect_bits_of_kernel(Random& random, const Conv1dDesc& desc, std::int64_t sequences, std::int64_t length) {
  const Tensor weights = random_tensor(random, {desc.out_channels, desc.in_channels / desc.groups, desc.kernel}, 1, desc.dtype);
  const Tensor bias = random_tensor(random, {desc.out_channels}, 1, desc.dtype);
  const Tensor x = random_tensor(random, {sequences, desc.in_channels, length}, 1, desc.dtype);
  Program program;
  {
    const build::Guard guard(program);
    const Var given = build::input("x", VarType(desc.dtype, {DDim::unknown, desc.in_channels, DDim::unknown}));
    build::output("y", build::call1("conv1d", {given, build::parameter("w", weights), build::parameter("b", bias)},
                                    {{"stride", desc.stride},
                                     {"dilation", desc.dilation},
                                     {"group", desc.groups},
                                     {"pads", std::vector<std::int64_t>{desc.pad_before, desc.pad_after}}}));
  }
  CpuDevice device;
  const Tensor wanted = conv1d(desc, x, weights, &bias, device.stream(0));
  CHECK(same_bits(on_cpu(program, {{"x", x}})["y"].tensor(), wanted));
}

}  // namespace

TEST_CASE("a convolution with known weights has the bits of the kernel, however long the sequence and whatever its groups") {
  for (const std::uint64_t seed : seeds(60)) {
    INFO("seed ", seed);
    Random random(seed);
    const DType dtype = random.coin() ? DType::f32 : DType::f64;
    const Conv1dDesc desc = random_conv1d(random, dtype);
    expect_bits_of_kernel(random, desc, random.between(1, 2), random.between(16, 200));
  }
}

TEST_CASE("weights that fill a cache have the bits of the kernel, however few places meet them") {
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    Conv1dDesc desc;
    desc.dtype = random.coin() ? DType::f32 : DType::f64;
    desc.groups = random.between(1, 2);
    desc.out_channels = desc.groups * random.between(60, 130);
    desc.kernel = random.between(1, 4);
    desc.in_channels = desc.groups * ((1 << 17) / desc.kernel / (desc.out_channels / desc.groups) + random.between(1, 9));
    desc.stride = random.between(1, 2);
    desc.dilation = random.between(1, 3);
    desc.pad_before = random.between(0, 3);
    desc.pad_after = random.between(0, 3);
    expect_bits_of_kernel(random, desc, random.between(1, 3), random.between(10, 40));
  }
}
