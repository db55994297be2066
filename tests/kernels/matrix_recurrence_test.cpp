// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/matrix_recurrence.h>

#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cpu/gemm_kernels.h>

namespace millrace::testing {
namespace {

struct Extents {
  std::int64_t steps, sequences, heads, keys, values, queries;
};

/// `reads` [T, N, H·Q·E], and the states behind the last step.
template <class T>
struct Plain {
  std::vector<T> reads, last;

  Plain(const Extents& e, const MatrixRecurrence& call) {
    const auto numbers = [&](const Tensor& x) { return (call.steps == 1 ? x.permute({1, 0, 2}) : x).to_vector<T>(); };
    const std::vector<T> k = numbers(call.key), v = numbers(call.value), q = numbers(call.query), past = call.past.to_vector<T>(),
                         g = call.decay ? numbers(*call.decay) : std::vector<T>{}, b = call.rate ? numbers(*call.rate) : std::vector<T>{};
    const std::int64_t rows = e.steps * e.sequences, matrix = e.keys * e.values;
    const auto part = [&](const std::vector<T>& x, std::int64_t row, std::int64_t at) {
      return x[static_cast<std::size_t>(row * (static_cast<std::int64_t>(x.size()) / rows) + at)];
    };
    reads.resize(static_cast<std::size_t>(rows * e.heads * e.queries * e.values));
    for (std::int64_t n = 0; n < e.sequences; ++n)
      for (std::int64_t h = 0; h < e.heads; ++h) {
        std::vector<T> s(static_cast<std::size_t>(matrix));
        const std::int64_t first = ((call.past.dim(0) == 1 ? 0 : n) * e.heads + h) * matrix;
        for (std::size_t i = 0; i < s.size(); ++i) s[i] = past[static_cast<std::size_t>(first) + i];
        const auto at = [&](std::int64_t i, std::int64_t j) -> T& { return s[static_cast<std::size_t>(i * e.values + j)]; };
        for (std::int64_t t = 0; t < e.steps; ++t) {
          const std::int64_t row = t * e.sequences + n;
          for (std::int64_t i = 0; call.decay && i < e.keys; ++i)
            for (std::int64_t j = 0; j < e.values; ++j)
              at(i, j) *= part(g, row, call.decay->dim(2) == e.heads && e.keys > 1 ? h : h * e.keys + i);
          for (std::int64_t j = 0; j < e.values; ++j) {
            T added = part(v, row, h * e.values + j);
            if (call.corrects) added -= fold(e.keys, [&](std::int64_t i) { return at(i, j) * part(k, row, h * e.keys + i); });
            if (call.rate) added *= part(b, row, call.rate->dim(2) == 1 ? 0 : h);
            for (std::int64_t i = 0; i < e.keys; ++i) {
              const T term = part(k, row, h * e.keys + i) * added;
              at(i, j) += term;
            }
            for (std::int64_t query = 0; query < e.queries; ++query)
              reads[static_cast<std::size_t>(((row * e.heads + h) * e.queries + query) * e.values + j)] =
                  fold(e.keys, [&](std::int64_t i) { return at(i, j) * part(q, row, (h * e.queries + query) * e.keys + i); });
          }
        }
        last.insert(last.end(), s.begin(), s.end());
      }
  }
  static T fold(std::int64_t keys, const std::function<T(std::int64_t)>& term) {
    T sum{};
    for (std::int64_t i = 0; i < keys; ++i) {
      const T product = term(i);
      sum += product;
    }
    return sum;
  }
};

template <class T>
void expect_plain(const Extents& e, const MatrixRecurrence& call, const MatrixReads& found) {
  const Plain<T> wanted(e, call);
  const Tensor reads = Tensor::from(wanted.reads, DDim{e.steps, e.sequences, e.heads * e.queries * e.values});
  CHECK(same_bits(found.out, call.steps == 1 ? reads.permute({1, 0, 2}) : reads));
  CHECK(same_bits(found.last, Tensor::from(wanted.last, found.last.dims())));
}

/// Drawn inputs, some of them views of other orders in memory.
MatrixRecurrence drawn(Random& random, const Extents& e, DType dtype) {
  MatrixRecurrence call;
  call.heads = e.heads;
  call.steps = static_cast<int>(random.between(0, 1));
  call.corrects = random.between(0, 1) == 1;
  const auto rows = [&](std::int64_t width) {
    const bool turned = random.between(0, 3) == 0;
    const bool in_front = (call.steps == 0) != turned;
    const Tensor x = random_tensor(random, dtype, DDim{in_front ? e.steps : e.sequences, in_front ? e.sequences : e.steps, width});
    return turned ? x.permute({1, 0, 2}) : x;
  };
  call.key = rows(e.heads * e.keys);
  call.value = rows(e.heads * e.values);
  call.query = rows(e.heads * e.queries * e.keys);
  const std::int64_t states = random.between(0, 3) == 0 ? 1 : e.sequences;
  call.past = random_tensor(random, dtype, DDim{states, e.heads, e.keys * e.values});
  if (random.between(0, 1) == 1) call.decay = rows(e.heads * (random.between(0, 1) == 1 ? e.keys : 1));
  if (call.corrects && random.between(0, 2) > 0) call.rate = rows(random.between(0, 1) == 1 ? e.heads : 1);
  return call;
}

}  // namespace

TEST_CASE(
    "matrices of heads go through their steps with the bits of plain loops, for any extents and any number of threads, on every "
    "instruction set") {
  Random random(11);
  each_instruction_set([&](const std::string& name) {
    CpuDevice one(1), three(3);
    for (const std::int64_t steps : {1, 2, 9})
      for (const std::int64_t values : {1, 7, 16, 33, 64})
        for (int round = 0; round < 4; ++round) {
          const Extents e{steps, random.between(1, 3), random.between(1, 5), random.between(1, 40), values, random.between(1, 3)};
          const DType dtype = round == 0 ? DType::f64 : DType::f32;
          const MatrixRecurrence call = drawn(random, e, dtype);
          INFO(name, ", steps ", e.steps, ", sequences ", e.sequences, ", heads ", e.heads, " of ", e.keys, " by ", e.values, ", queries ",
               e.queries, ", corrects ", call.corrects, ", decay ", call.decay ? call.decay->to_string() : "none");
          const MatrixReads found = matrix_recurrence(call, one.stream(0));
          dtype == DType::f64 ? expect_plain<double>(e, call, found) : expect_plain<float>(e, call, found);
          const MatrixReads threads = matrix_recurrence(call, three.stream(0));
          CHECK(same_bits(threads.out, found.out));
          CHECK(same_bits(threads.last, found.last));
        }
  });
}

TEST_CASE("matrices without a step are those of the past, and without a sequence there are none") {
  Random random(12);
  CpuDevice device;
  MatrixRecurrence call = drawn(random, {0, 2, 3, 4, 5, 1}, DType::f32);
  const MatrixReads idle = matrix_recurrence(call, device.stream(0));
  CHECK(same_bits(idle.last, call.past));
  CHECK(idle.out.elements() == 0);
  call = drawn(random, {3, 0, 2, 4, 5, 1}, DType::f32);
  CHECK(matrix_recurrence(call, device.stream(0)).last.dim(0) == 0);
}

TEST_CASE("a recurrence of matrices names what does not fit") {
  CpuDevice device;
  Random random(13);
  const auto tensor = [&](const DDim& dims, DType dtype = DType::f32) { return random_tensor(random, dtype, dims); };
  MatrixRecurrence fits;
  fits.heads = 2;
  fits.key = tensor({3, 1, 8});
  fits.value = tensor({3, 1, 6});
  fits.query = tensor({3, 1, 16});
  fits.past = tensor({1, 24});
  CHECK(matrix_recurrence(fits, device.stream(0)).out.dims() == DDim{3, 1, 12});
  const auto run = [&](const std::function<void(MatrixRecurrence&)>& change) {
    MatrixRecurrence call = fits;
    change(call);
    return matrix_recurrence(call, device.stream(0));
  };
  CHECK_THROWS_AS(run([&](auto& call) { call.heads = 0; }), ArgumentError);
  CHECK_THROWS_AS(run([&](auto& call) { call.heads = 3; }), ShapeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.steps = 2; }), ArgumentError);
  CHECK_THROWS_AS(run([&](auto& call) { call.value = tensor({2, 1, 6}); }), ShapeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.value = tensor({3, 1, 5}); }), ShapeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.query = tensor({3, 1, 12}); }), ShapeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.past = tensor({2, 24}); }), ShapeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.past = tensor({1, 25}); }), ShapeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.decay = tensor({3, 1, 3}); }), ShapeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.rate = tensor({3, 1, 1}); }), ArgumentError);
  CHECK_THROWS_AS(run([&](auto& call) {
                    call.corrects = true;
                    call.rate = tensor({3, 1, 3});
                  }),
                  ShapeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.value = tensor({3, 1, 6}, DType::f64); }), DTypeError);
  CHECK_THROWS_AS(run([&](auto& call) { call.key = tensor({3, 1, 8}, DType::f16); }), DTypeError);
}

}  // namespace millrace::testing
