// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/gemm.h>

#include <cmath>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cast.h>
#include <millrace/kernels/matmul.h>
#include <millrace/tensor/cuda/copy.h>

namespace millrace::testing {
namespace {

/// The contract in plain code: one chain for each block of 512 k, the blocks added in order.
template <class T>
T ordered_dot(const T* a, const T* b, std::int64_t b_stride, std::int64_t k, bool fused) {
  T total = 0;
  for (std::int64_t begin = 0; begin < k; begin += 512) {
    T sum = 0;
    for (std::int64_t at = begin; at < std::min(k, begin + 512); ++at) {
      volatile const T product = a[at] * b[at * b_stride];
      sum = fused ? std::fma(a[at], b[at * b_stride], sum) : sum + product;
    }
    total = begin == 0 ? sum : total + sum;
  }
  return total;
}

template <class T>
Tensor ordered_product(const Tensor& a, const Tensor& b, bool fused) {
  Tensor made(a.dtype(), DDim{a.dim(0), b.dim(1)});
  T* to = made.mutable_data<T>();
  for (std::int64_t i = 0; i < a.dim(0); ++i)
    for (std::int64_t j = 0; j < b.dim(1); ++j) *to++ = ordered_dot(a.data<T>() + i * a.dim(1), b.data<T>() + j, b.dim(1), a.dim(1), fused);
  return made;
}

Tensor run_packed(const Tensor& x, const Tensor& w, const Tensor* bias, StreamRef stream) {
  GemmDesc desc;
  desc.k = w.dim(0);
  desc.n = w.dim(1);
  desc.dtype = desc.out = w.dtype();
  const GemmPlan plan = make_gemm_plan(desc, stream.place());
  const PackedMatrix packed = pack(plan, w, stream);
  Tensor out(w.dtype(), DDim{x.dim(0), w.dim(1)}, stream.memory());
  bias == nullptr ? run(plan, packed, x, out, stream) : run(plan, packed, x, *bias, out, stream);
  return out;
}

}  // namespace

TEST_CASE("a product of any shape, transposed or not, agrees with the reference on every device and dtype") {
  each_product_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(12)) {
      INFO("seed ", seed);
      Random random(seed);
      const std::int64_t m = random.between(0, 20), k = random.between(0, 40), n = random.between(0, 80);
      const double alpha = random.coin() ? 1 : 0.5, beta = random.coin() ? 0 : random.coin() ? 1 : -2;
      const bool iteration_a = random.coin(), iteration_b = random.coin();
      for (const DType dtype : floats) {
        const Tensor a = random_tensor(random, dtype, iteration_a ? DDim{k, m} : DDim{m, k});
        const Tensor b = random_tensor(random, dtype, iteration_b ? DDim{n, k} : DDim{k, n});
        const Tensor c = random_tensor(random, dtype, DDim{m, n});
        const std::vector<int> swap{1, 0};
        auto expected =
            reference::matmul(reference::values(iteration_a ? a.permute(swap) : a), reference::values(iteration_b ? b.permute(swap) : b));
        const auto before = reference::values(c);
        for (std::size_t i = 0; i < expected.at.size(); ++i) expected.at[i] = alpha * expected.at[i] + beta * before.at[i];
        const Tensor left = on.up(a), right = on.up(b);
        Tensor out = on.up(c);
        gemm(alpha, iteration_a ? left.permute(swap) : left, iteration_b ? right.permute(swap) : right, beta, out, on.stream());
        CHECK(error_of(on.down(out), expected) <= 50 * on.rounding(dtype));
      }
    }
  });
}

TEST_CASE("each output is one chain of multiply-adds over ascending k, restarted every 512, on every instruction set") {
  CpuDevice device;
  Random random(7);
  each_instruction_set([&](const std::string& name) {
    for (const std::int64_t k : {0, 1, 2, 511, 512, 513, 1030})
      for (const std::int64_t m : {1, 3, 7, 13})
        for (const std::int64_t n : {1, 17, 66, 150}) {
          INFO("m ", m, ", k ", k, ", n ", n);
          const Tensor a = random_tensor(random, DType::f32, DDim{m, k}), b = random_tensor(random, DType::f32, DDim{k, n});
          const Tensor expected = ordered_product<float>(a, b, cpu::fuses(name));
          CHECK(same_bits(matmul(a, b, device.stream(0)), expected));
          CHECK(same_bits(run_packed(a, b, nullptr, device.stream(0)), expected));
        }
    const Tensor a = random_tensor(random, DType::f64, DDim{5, 700}), b = random_tensor(random, DType::f64, DDim{700, 37});
    CHECK(same_bits(matmul(a, b, device.stream(0)), ordered_product<double>(a, b, cpu::fuses(name))));
  });
}

TEST_CASE("products of many rows and columns have the bits of the definition on every place, whatever the tiles, strides and batch") {
  struct Size {
    std::int64_t m, k, n;
  };
  CpuDevice host;
  const bool fused = cpu::fuses(cpu::instruction_sets().front());
  each_backend([&](DeviceUnderTest& on) {
    Random random(11);
    for (const DType dtype : {DType::f32, DType::f64})
      for (const Size size : {Size{32, 33, 40}, Size{65, 515, 64}, Size{131, 17, 140}, Size{130, 1030, 33}, Size{200, 0, 60}}) {
        INFO(on.name, ", ", name_of(dtype), ", m ", size.m, ", k ", size.k, ", n ", size.n);
        const Tensor a = random_tensor(random, dtype, DDim{size.m, size.k}), b = random_tensor(random, dtype, DDim{size.k, size.n});
        const Tensor expected = dtype == DType::f32 ? ordered_product<float>(a, b, fused) : ordered_product<double>(a, b, fused);
        const Tensor turned_a = contiguous(a.permute({1, 0}), host.stream(0)), turned_b = contiguous(b.permute({1, 0}), host.stream(0));
        CHECK(same_bits(on.down(matmul(on.up(a), on.up(b), on.stream())), expected));
        CHECK(same_bits(on.down(matmul(on.up(turned_a).permute({1, 0}), on.up(turned_b).permute({1, 0}), on.stream())), expected));
        CHECK(same_bits(on.down(run_packed(on.up(a), on.up(b), nullptr, on.stream())), expected));
      }
    const Tensor a = random_tensor(random, DType::f32, DDim{3, 70, 20}), b = random_tensor(random, DType::f32, DDim{20, 90});
    const Tensor all = on.down(matmul(on.up(a), on.up(b), on.stream()));
    for (std::int64_t i = 0; i < 3; ++i)
      CHECK(same_bits(contiguous(all.rows(i, i + 1), host.stream(0)).reshape(DDim{70, 90}),
                      ordered_product<float>(contiguous(a.rows(i, i + 1), host.stream(0)).reshape(DDim{70, 20}), b, fused)));
  });
}

TEST_CASE("a matrix that is read where it lies, packed or packed from its columns gives the same bits, on every instruction set") {
  CpuDevice one(1), two(2);
  Random random(12);
  each_instruction_set([&](const std::string& name) {
    for (const std::int64_t m : {24, 25, 128, 129, 256, 257})
      for (const std::int64_t n : {128, 133}) {
        const std::int64_t k = m == 25 || m == 129 ? 1030 : 35;
        INFO(name, ", m ", m, ", n ", n, ", k ", k);
        const Tensor a = random_tensor(random, DType::f32, DDim{m, k}), b = random_tensor(random, DType::f32, DDim{k, n});
        const Tensor turned_a = contiguous(a.permute({1, 0}), one.stream(0)).permute({1, 0});
        const Tensor turned_b = contiguous(b.permute({1, 0}), one.stream(0)).permute({1, 0});
        const Tensor expected = ordered_product<float>(a, b, cpu::fuses(name));
        CHECK(same_bits(matmul(turned_a, b, one.stream(0)), expected));
        CHECK(same_bits(matmul(turned_a, b, two.stream(0)), expected));
        CHECK(same_bits(matmul(a, turned_b, one.stream(0)), expected));
        CHECK(same_bits(run_packed(a, turned_b, nullptr, one.stream(0)), expected));
      }
    for (const std::int64_t m : {31, 32, 95, 96}) {  // rows of b a page apart
      const std::int64_t k = m < 64 ? 300 : 200;
      INFO(name, ", m ", m, ", k ", k);
      const Tensor a = random_tensor(random, DType::f32, DDim{m, k}), wide = random_tensor(random, DType::f32, DDim{k, 1024});
      const Tensor b = wide.slice(1, 0, 133);
      const Tensor expected = ordered_product<float>(a, contiguous(b, one.stream(0)), cpu::fuses(name));
      CHECK(same_bits(matmul(a, b, one.stream(0)), expected));
      CHECK(same_bits(matmul(a, b, two.stream(0)), expected));
    }
    const Tensor a = random_tensor(random, DType::f64, DDim{130, 35}), b = random_tensor(random, DType::f64, DDim{67, 35}).permute({1, 0});
    const Tensor expected = ordered_product<double>(a, contiguous(b, one.stream(0)), cpu::fuses(name));
    CHECK(same_bits(matmul(a, b, one.stream(0)), expected));
    CHECK(same_bits(run_packed(a, b, nullptr, one.stream(0)), expected));
  });
}

TEST_CASE("a row of b that stands for all rows is multiplied as its dense copy, whatever the rows of a") {
  CpuDevice device;
  Random random(14);
  each_instruction_set([&](const std::string& name) {
    for (const std::int64_t m : {1, 3, 24, 130})
      for (const std::int64_t n : {5, 40, 133}) {
        INFO(name, ", m ", m, ", n ", n);
        const Tensor a = random_tensor(random, DType::f32, DDim{m, 9}), row = random_tensor(random, DType::f32, DDim{1, n});
        const Tensor stretched = broadcast_view(row, DDim{9, n});
        CHECK(same_bits(matmul(a, stretched, device.stream(0)),
                        ordered_product<float>(a, contiguous(stretched, device.stream(0)), cpu::fuses(name))));
      }
  });
}

TEST_CASE("a row has the same bits alone, in any batch of 1 to 64, packed or not, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(11);
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor x = random_tensor(random, dtype, DDim{64, 600}), w = random_tensor(random, dtype, DDim{600, 203});
    const Tensor bias = random_tensor(random, dtype, DDim{203});
    const Tensor whole = run_packed(x, w, &bias, one.stream(0));
    CHECK(same_bits(run_packed(x, w, &bias, two.stream(0)), whole));
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 31, 63}) {
      INFO("rows ", rows);
      const std::int64_t first = 64 - rows;
      const Tensor part = x.rows(first, 64);
      CHECK(same_bits(run_packed(part, w, &bias, two.stream(0)), whole.rows(first, 64)));
      CHECK(same_bits(matmul(part, w, two.stream(0)), matmul(x, w, one.stream(0)).rows(first, 64)));
    }
  }
}

TEST_CASE("the bias is a separate addition after the product") {
  CpuDevice device;
  Random random(3);
  const Tensor x = random_tensor(random, DType::f32, DDim{5, 40}), w = random_tensor(random, DType::f32, DDim{40, 21});
  const Tensor bias = random_tensor(random, DType::f32, DDim{21});
  const Tensor product = matmul(x, w, device.stream(0));
  Tensor expected(DType::f32, product.dims());
  for (std::int64_t i = 0; i < product.elements(); ++i)
    expected.mutable_data<float>()[i] = product.data<float>()[i] + bias.data<float>()[i % 21];
  CHECK(same_bits(run_packed(x, w, &bias, device.stream(0)), expected));
}

TEST_CASE("narrow floats are multiplied and summed in f32 and narrowed once") {
  CpuDevice device;
  Random random(5);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor a = random_tensor(random, dtype, DDim{9, 100}), b = random_tensor(random, dtype, DDim{100, 30});
    const StreamRef stream = device.stream(0);
    const Tensor wide = matmul(cast(a, DType::f32, stream), cast(b, DType::f32, stream), stream);
    Tensor out(DType::f32, DDim{9, 30});
    matmul(a, b, out, stream);
    CHECK(same_bits(out, wide));
    CHECK(same_bits(matmul(a, b, stream), cast(wide, dtype, stream)));
  }
}

TEST_CASE("weights of bf16 under f32 give the bits of the same weights widened, packed or not, on every instruction set") {
  CpuDevice one(1), two(2);
  Random random(13);
  each_instruction_set([&](const std::string&) {
    for (const std::int64_t k : {0, 1, 2, 3, 511, 512, 513, 1031})
      for (const std::int64_t n : {1, 17, 66, 150}) {
        INFO("k ", k, ", n ", n);
        const Tensor x = random_tensor(random, DType::f32, DDim{13, k}), w = random_tensor(random, DType::bf16, DDim{k, n});
        const Tensor bias = random_tensor(random, DType::f32, DDim{n});
        const Tensor wide = cast(w, DType::f32, one.stream(0));
        const Tensor expected = run_packed(x, wide, &bias, one.stream(0));
        const GemmPlan plan = make_gemm_plan({k, n, DType::f32, DType::f32, DType::bf16});
        const PackedMatrix packed = pack(plan, w, one.stream(0));
        CHECK(packed.data.dtype() == DType::bf16);
        for (const std::int64_t m : {1, 2, 3, 4, 7, 13}) {
          Tensor out(DType::f32, DDim{m, n});
          run(plan, packed, x.rows(13 - m, 13), bias, out, two.stream(0));
          CHECK(same_bits(out, expected.rows(13 - m, 13)));
        }
        CHECK(same_bits(matmul(x, w, two.stream(0)), matmul(x, wide, one.stream(0))));
      }
  });
  const Tensor batch = random_tensor(random, DType::f32, DDim{2, 3, 4}), w = random_tensor(random, DType::bf16, DDim{2, 4, 5});
  CHECK(same_bits(matmul(batch, w, one.stream(0)), matmul(batch, cast(w, DType::f32, one.stream(0)), one.stream(0))));
  CHECK_THROWS_AS(matmul(random_tensor(random, DType::f64, DDim{3, 4}), random_tensor(random, DType::bf16, DDim{4, 5}), one.stream(0)),
                  DTypeError);
  CHECK_THROWS_AS(make_gemm_plan({4, 5, DType::f64, DType::f64, DType::bf16}), DTypeError);
}

TEST_CASE("integers wrap") {
  CpuDevice device;
  const Tensor a = Tensor::from<std::int32_t>({2000000000, 2000000000}, DDim{1, 2});
  const Tensor b = Tensor::from<std::int32_t>({2, 3}, DDim{2, 1});
  CHECK(matmul(a, b, device.stream(0)).data<std::int32_t>()[0] == static_cast<std::int32_t>(10000000000u));
  const Tensor small = Tensor::from<std::uint8_t>({255, 255}, DDim{1, 2});
  const Tensor product = matmul(small, small.permute({1, 0}), device.stream(0));
  CHECK(product.dtype() == DType::i32);
  CHECK(product.item_int() == 2 * 255 * 255);
}

TEST_CASE("operands that do not fit are errors that name all shapes and dtypes") {
  CpuDevice device;
  const Tensor a(DType::f32, DDim{2, 3}), b(DType::f32, DDim{4, 5});
  Tensor c(DType::f32, DDim{2, 5}), d(DType::f64, DDim{2, 5});
  CHECK_THROWS_WITH_AS(gemm(1, a, b, 0, c, device.stream(0)),
                       "gemm: expected [M, K] times [K, N] into [M, N], found f32[2, 3] on cpu times f32[4, 5] on cpu "
                       "into f32[2, 5] on cpu",
                       ShapeError);
  CHECK_THROWS_AS(gemm(1, a, Tensor(DType::f32, DDim{3, 5}), 0, d, device.stream(0)), DTypeError);
  GemmDesc desc;
  desc.k = 3;
  desc.n = 5;
  if (cuda::built())
    CHECK(make_gemm_plan(desc, CudaPlace{1}).place() == Place(CudaPlace{1}));
  else
    CHECK_THROWS_WITH_AS(make_gemm_plan(desc, CudaPlace{1}), doctest::Contains("found cuda:1: there are no CUDA kernels here"), PlaceError);
  const GemmPlan plan = make_gemm_plan(desc);
  CHECK_THROWS_AS(pack(plan, b, device.stream(0)), ShapeError);
  desc.dtype = DType::i32;
  CHECK_THROWS_AS(make_gemm_plan(desc), DTypeError);
}

TEST_CASE("operands that nothing was written to are refused, an output may be") {
  CpuDevice device;
  const Tensor a(DType::f32, DDim{2, 3});
  CHECK_THROWS_AS(matmul(a, a.permute({1, 0}), device.stream(0)), UninitializedError);
}

}  // namespace millrace::testing
