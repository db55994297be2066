// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/gemm.h>

#include <cmath>
#include <optional>
#include <string>

#include <millrace/kernels/cpu/gemm.h>
#include <millrace/kernels/cpu/widen.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

std::string shapes(const Tensor& a, const Tensor& b, const Tensor& c) {
  return a.to_string() + " times " + b.to_string() + " into " + c.to_string();
}

/// The result's dtype of a product of `dtype`; narrow floats may give f32 too.
bool gives(DType dtype, DType out) {
  if (dtype == DType::i8 || dtype == DType::u8) return out == DType::i32;
  return dtype != DType::boolean && (out == dtype || out == internal::wide_dtype(dtype));
}

void check_gemm(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c) {
  if (a.rank() != 2 || b.rank() != 2 || c.rank() != 2 || a.dim(1) != b.dim(0) || c.dim(0) != a.dim(0) || c.dim(1) != b.dim(1))
    throw ShapeError("gemm: expected [M, K] times [K, N] into [M, N], found " + shapes(a, b, c));
  if (!internal::multiplies(a.dtype(), b.dtype()) || !gives(a.dtype(), c.dtype()))
    throw DTypeError("gemm: expected one numeric dtype (f32 results of f16 and bf16, i32 of i8 and u8, bf16 under f32), found " +
                     shapes(a, b, c));
  if (!is_floating(a.dtype()) && (alpha != std::trunc(alpha) || beta != std::trunc(beta)))
    throw ArgumentError("gemm: expected integral factors for integers, found " + std::to_string(alpha) + " and " + std::to_string(beta));
}

}  // namespace

void gemm(double alpha, const Tensor& a, const Tensor& b, double beta, Tensor& c, StreamRef stream) {
  internal::check_device_places("gemm", stream, {&a, &b, &c});
  check_gemm(alpha, a, b, beta, c);
  const TensorRefs<3> reads{&a, &b, beta == 0 || c.elements() == 0 ? nullptr : &c};
  if (internal::on_cuda(stream.place())) {
    const Tensor right = a.dtype() == b.dtype() ? b : internal::row_major_as("gemm", b, a.dtype(), stream);
    const auto multiply = [=](KernelContext& context) { cuda::gemm(alpha, a, right, beta, c, context); };
    return launch(reads, TensorRefs<1>{&c}, multiply, stream);
  }
  const auto scratch_for = [&](const Tensor& left, const Tensor& right) {
    const std::int64_t bytes = cpu::gemm_scratch_bytes(left, right);
    return bytes == 0 ? c : Tensor(DType::u8, DDim{bytes}, stream.memory());
  };
  if (b.dtype() == internal::wide_dtype(b.dtype())) {
    const auto multiply = [=, scratch = scratch_for(a, b)](ThreadTeam& team) { cpu::gemm(alpha, a, b, beta, c, scratch, team); };
    return launch(reads, TensorRefs<1>{&c}, multiply, stream);
  }
  const Tensor left = internal::wide_room(a, stream.memory());
  const Tensor right = internal::wide_room(b, stream.memory());
  const Tensor result = internal::wide_room(c, stream.memory());
  const auto multiply = [=, scratch = scratch_for(left, right)](ThreadTeam& team) {
    cpu::widen(a, left, team);
    cpu::widen(b, right, team);
    if (beta != 0) cpu::widen(c, result, team);
    cpu::gemm(alpha, left, right, beta, result, scratch, team);
    cpu::narrow(result, c, team);
  };
  launch(reads, TensorRefs<1>{&c}, multiply, stream);
}

GemmPlan make_gemm_plan(const GemmDesc& desc, const Place& place) {
  internal::check_device_plan_place("gemm plan", place);
  if (desc.k < 0 || desc.n < 0)
    throw ArgumentError("gemm plan: expected extents of at least 0, found k = " + std::to_string(desc.k) +
                        " and n = " + std::to_string(desc.n));
  if (!is_floating(desc.dtype) || !gives(desc.dtype, desc.out) || !internal::multiplies(desc.dtype, desc.weights_dtype()))
    throw DTypeError("gemm plan: expected floats with a result of the same dtype or f32, and weights of it or, under f32, of bf16, found " +
                     std::string(name_of(desc.dtype)) + " times " + std::string(name_of(desc.weights_dtype())) + " to " +
                     std::string(name_of(desc.out)));
  GemmPlan plan;
  plan.desc_ = desc;
  plan.place_ = place;
  plan.kernels_ = &cpu::gemm_kernels();
  return plan;
}

namespace {

template <class F>
void visit_wide(DType dtype, F&& f) {
  if (internal::wide_dtype(dtype) == DType::f64) return f(double{});
  return f(float{});
}

bool in_pairs(const GemmPlan& plan) { return plan.desc().weights_dtype() == DType::bf16; }

cpu::PackedLayout layout_of(const GemmPlan& plan) {
  const std::int64_t k = plan.desc().k, n = plan.desc().n, group = in_pairs(plan) ? 2 : 1;
  return plan.desc().dtype == DType::f64 ? cpu::layout_for<double>(plan.kernels(), k, n, group)
                                         : cpu::layout_for<float>(plan.kernels(), k, n, group);
}

PackedMatrix pack_pairs(const cpu::PackedLayout& layout, const Tensor& weights, StreamRef stream) {
  Tensor packed(DType::bf16, DDim{layout.elements()}, stream.memory());
  launch(
      TensorRefs<1>{&weights}, TensorRefs<1>{&packed},
      [=](ThreadTeam& team) {
        cpu::pack_all(layout, static_cast<const std::uint16_t*>(weights.raw()), weights.strides()[0], weights.strides()[1],
                      static_cast<std::uint16_t*>(packed.raw_mutable()), team);
      },
      stream);
  return {packed};
}

/// On a device the weights stay row-major, in the dtype of the rows.
std::int64_t packed_elements(const GemmPlan& plan) {
  return internal::on_cuda(plan.place()) ? plan.desc().k * plan.desc().n : layout_of(plan).elements();
}

DType packed_dtype(const GemmPlan& plan) {
  if (internal::on_cuda(plan.place())) return plan.desc().dtype;
  return in_pairs(plan) ? DType::bf16 : internal::wide_dtype(plan.desc().weights_dtype());
}

}  // namespace

PackedMatrix pack(const GemmPlan& plan, const Tensor& weights, StreamRef stream) {
  const GemmDesc& desc = plan.desc();
  internal::check_device_places("gemm pack", stream, {&weights});
  internal::check_dtype("gemm pack", "the weights", weights, desc.weights_dtype());
  internal::check_dims("gemm pack", "the weights", weights, DDim{desc.k, desc.n});
  if (internal::on_cuda(plan.place()))
    return {internal::row_major_as("gemm pack", weights, desc.dtype, stream).reshape(DDim{desc.k * desc.n})};
  const cpu::PackedLayout layout = layout_of(plan);
  if (in_pairs(plan)) return pack_pairs(layout, weights, stream);
  Tensor packed(internal::wide_dtype(desc.dtype), DDim{layout.elements()}, stream.memory());
  const Tensor wide = internal::wide_room(weights, stream.memory());
  launch(
      TensorRefs<1>{&weights}, TensorRefs<1>{&packed},
      [=](ThreadTeam& team) {
        cpu::widen(weights, wide, team);
        visit_wide(desc.dtype, [&](auto zero) {
          using T = decltype(zero);
          cpu::pack_all(layout, static_cast<const T*>(wide.raw()), wide.strides()[0], wide.strides()[1],
                        static_cast<T*>(packed.raw_mutable()), team);
        });
      },
      stream);
  return {packed};
}

namespace {

DDim with_last(const DDim& dims, std::int64_t extent) {
  DDim made = dims;
  made[-1] = extent;
  return made;
}

void check_run(const GemmPlan& plan, const PackedMatrix& weights, const Tensor& x, const Tensor* bias, const Tensor& out) {
  const GemmDesc& desc = plan.desc();
  internal::check_dtype("gemm run", "x", x, desc.dtype);
  internal::check_dtype("gemm run", "out", out, desc.out);
  if (x.rank() < 1 || x.dim(-1) != desc.k)
    throw ShapeError("gemm run: expected rows of " + std::to_string(desc.k) + " elements, found " + x.to_string());
  internal::check_dims("gemm run", "out", out, with_last(x.dims(), desc.n));
  internal::check_contiguous("gemm run", "out", out);
  internal::check_dims("gemm run", "the packed weights", weights.data, DDim{packed_elements(plan)});
  internal::check_dtype("gemm run", "the packed weights", weights.data, packed_dtype(plan));
  if (bias == nullptr) return;
  internal::check_dtype("gemm run", "bias", *bias, desc.dtype);
  internal::check_dims("gemm run", "bias", *bias, DDim{desc.n});
  internal::check_contiguous("gemm run", "bias", *bias);
}

/// Rows of `x` that stand a constant distance apart, or −1.
std::int64_t row_stride(const Tensor& x) {
  if (x.elements() == 0) return 0;
  if (x.strides()[-1] != 1 && x.dim(-1) != 1) return -1;
  if (x.is_contiguous()) return x.dim(-1);
  return x.rank() == 2 ? x.strides()[0] : -1;
}

void run_there(const GemmDesc& desc, const Tensor& packed, const Tensor& x, const Tensor* bias, Tensor& out, StreamRef stream) {
  if (out.elements() == 0) return;
  const std::int64_t rows = out.elements() / desc.n;
  const Tensor flat = x.rank() == 2 && x.elements() > 0 ? x
                      : desc.k == 0                     ? Tensor(x.dtype(), DDim{rows, 0}, stream.memory())
                                                        : x.reshape(DDim{rows, desc.k});
  launch(
      TensorRefs<3>{desc.k == 0 ? nullptr : &x, desc.k == 0 ? nullptr : &packed, bias}, TensorRefs<1>{&out},
      [flat, weights = packed.reshape(DDim{desc.k, desc.n}), addend = bias == nullptr ? std::optional<Tensor>() : *bias,
       result = out.reshape(DDim{rows, desc.n})](KernelContext& context) {
        cuda::linear(flat, weights, addend ? &*addend : nullptr, result, context);
      },
      stream);
}

void run_packed(const GemmPlan& plan, const PackedMatrix& weights, const Tensor& x, const Tensor* bias, Tensor& out, StreamRef stream) {
  internal::check_device_places("gemm run", stream, {&weights.data, &x, bias, &out});
  check_run(plan, weights, x, bias, out);
  const Tensor straight = row_stride(x) < 0 ? internal::row_major("gemm run", x, stream) : x;
  if (internal::on_cuda(plan.place())) return run_there(plan.desc(), weights.data, straight, bias, out, stream);
  const Tensor rows = internal::wide_room(straight, stream.memory());
  const Tensor result = internal::wide_room(out, stream.memory());
  const bool has_bias = bias != nullptr;
  const Tensor& narrow_addend = has_bias ? *bias : straight;  // any tensor where there is none
  const Tensor addend = has_bias ? internal::wide_room(*bias, stream.memory()) : straight;
  launch(
      TensorRefs<3>{&straight, &weights.data, bias}, TensorRefs<1>{&out},
      [=, narrow_addend = narrow_addend, layout = layout_of(plan), pairs = in_pairs(plan), packed = weights.data,
       kernels = &plan.kernels()](ThreadTeam& team) {
        if (result.elements() == 0) return;
        cpu::widen(straight, rows, team);
        if (has_bias) cpu::widen(narrow_addend, addend, team);
        visit_wide(rows.dtype(), [&](auto zero) {
          using T = decltype(zero);
          const cpu::PackedProduct<T> product{static_cast<const T*>(rows.raw()),
                                              row_stride(rows),
                                              static_cast<T*>(result.raw_mutable()),
                                              layout.columns,
                                              result.elements() / layout.columns,
                                              pairs ? nullptr : static_cast<const T*>(packed.raw()),
                                              pairs ? static_cast<const std::uint16_t*>(packed.raw()) : nullptr,
                                              has_bias ? static_cast<const T*>(addend.raw()) : nullptr};
          cpu::packed_gemm(*kernels, layout, product, team);
        });
        cpu::narrow(result, out, team);
      },
      stream);
}

}  // namespace

void run(const GemmPlan& plan, const PackedMatrix& weights, const Tensor& x, Tensor& out, StreamRef stream) {
  run_packed(plan, weights, x, nullptr, out, stream);
}

void run(const GemmPlan& plan, const PackedMatrix& weights, const Tensor& x, const Tensor& bias, Tensor& out, StreamRef stream) {
  run_packed(plan, weights, x, &bias, out, stream);
}

}  // namespace millrace
