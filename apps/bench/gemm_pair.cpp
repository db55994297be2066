// SPDX-License-Identifier: Apache-2.0
#include <bench/gemm_pair.h>

#include <memory>

#include <bench/gemm_peer.h>
#include <bench/library/lstm_problem.h>
#include <millrace/kernels/gemm.h>
#include <millrace/tensor/device.h>

namespace millrace::bench {
namespace {

struct Product {
  CpuDevice device{1};
  Tensor x, w, out, peer_out;
  GemmPlan plan;
  PackedMatrix packed;

  Product(std::int64_t m, std::int64_t k, std::int64_t n)
      : x(random_tensor(DDim{m, k}, 1)),
        w(random_tensor(DDim{k, n}, 2)),
        out(DType::f32, DDim{m, n}),
        peer_out(DType::f32, DDim{m, n}),
        plan(make_gemm_plan(desc_of(k, n))),
        packed(pack(plan, w, device.stream(0))) {}
  static GemmDesc desc_of(std::int64_t k, std::int64_t n) {
    GemmDesc desc;
    desc.k = k;
    desc.n = n;
    return desc;
  }
  void run() { millrace::run(plan, packed, x, out, device.stream(0)); }
};

}  // namespace

GemmPair::GemmPair(std::int64_t m, std::int64_t k, std::int64_t n) {
  const auto product = std::make_shared<Product>(m, k, n);
  ours_ = timer_of([product] { product->run(); });
  const GemmPeer peer =
      make_gemm_peer(m, k, n, product->x.mutable_data<float>(), product->w.mutable_data<float>(), product->peer_out.mutable_data<float>());
  note_ = peer.note;
  if (peer.run) peer_ = timer_of([product, call = peer.run] { call(); });
}

}  // namespace millrace::bench
