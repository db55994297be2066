// SPDX-License-Identifier: Apache-2.0
#include <bench/gemm_peer.h>

#include <memory>

#include <oneapi/dnnl/dnnl.hpp>

#include <bench/with_dnnl/threads.h>

namespace millrace::bench {
namespace {

using dnnl::memory;

/// A matmul primitive with its memories; it runs on the calling thread.
struct Product {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul primitive;
  memory x, w, out;

  Product(std::int64_t m, std::int64_t k, std::int64_t n, float* from, float* weights, float* to) {
    const auto f32 = memory::data_type::f32;
    const memory::desc x_desc({m, k}, f32, memory::format_tag::ab);
    const memory::desc w_desc({k, n}, f32, memory::format_tag::ab);
    const memory::desc any_desc({k, n}, f32, memory::format_tag::any);
    const memory::desc out_desc({m, n}, f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x_desc, any_desc, out_desc), engine);
    primitive = dnnl::matmul(desc);
    x = memory(x_desc, engine, from);
    out = memory(out_desc, engine, to);
    w = memory(desc.weights_desc(), engine);
    memory plain(w_desc, engine, weights);
    dnnl::reorder(plain, w).execute(stream, plain, w);
    stream.wait();
  }
  void run() {
    primitive.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, out}});
    stream.wait();
  }
};

}  // namespace

GemmPeer make_gemm_peer(std::int64_t m, std::int64_t k, std::int64_t n, float* x, float* w, float* out) {
  set_dnnl_threads(1);
  const auto product = std::make_shared<Product>(m, k, n, x, w, out);
  return {[product] {
            set_dnnl_threads(1);
            product->run();
          },
          ""};
}

}  // namespace millrace::bench
