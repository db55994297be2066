// SPDX-License-Identifier: Apache-2.0
#include <bench/gemm_row.h>

#include <random>

#include <bench/gemm_peer.h>
#include <millrace/kernels/gemm.h>
#include <millrace/tensor/device.h>

namespace millrace::bench {
namespace {

Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  Tensor made(DType::f32, DDim{rows, columns});
  std::normal_distribution<float> normal;
  float* to = made.mutable_data<float>();
  for (std::int64_t i = 0; i < made.elements(); ++i) to[i] = normal(random);
  return made;
}

}  // namespace

Row gemm_row(std::int64_t m, std::int64_t k, std::int64_t n) {
  Row row;
  row.id = "gemm";
  row.shape = std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) + " f32";
  row.peer_name = "oneDNN matmul, 1 thread";
  row.goal = 0.5;
  std::mt19937 random(1);
  CpuDevice device(1);
  const StreamRef stream = device.stream(0);
  Tensor x = random_matrix(m, k, random), w = random_matrix(k, n, random);
  Tensor out(DType::f32, DDim{m, n}), peer_out(DType::f32, DDim{m, n});
  GemmDesc desc;
  desc.k = k;
  desc.n = n;
  const GemmPlan plan = make_gemm_plan(desc);
  const PackedMatrix packed = pack(plan, w, stream);
  const auto ours = [&] { run(plan, packed, x, out, stream); };
  const GemmPeer peer = make_gemm_peer(m, k, n, x.mutable_data<float>(), w.mutable_data<float>(), peer_out.mutable_data<float>());
  row.note = peer.note;
  if (peer.run) {
    measure(row, ours, peer.run);
  } else {
    measure(row, ours, ours);
    row.peer.reset();
  }
  return row;
}

}  // namespace millrace::bench
