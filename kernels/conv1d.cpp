// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/conv1d.h>

#include <string>

#include <millrace/kernels/cpu/conv1d.h>
#include <millrace/kernels/cpu/widen.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/kernels/internal/widen.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

void check_at_least(const char* field, std::int64_t value, std::int64_t least) {
  if (value < least)
    throw ArgumentError("conv1d: expected " + std::string(field) + " of at least " + std::to_string(least) + ", found " +
                        std::to_string(value));
}

void check_desc(const Conv1dDesc& desc) {
  check_at_least("in_channels", desc.in_channels, 0);
  check_at_least("out_channels", desc.out_channels, 0);
  check_at_least("kernel", desc.kernel, 1);
  check_at_least("stride", desc.stride, 1);
  check_at_least("dilation", desc.dilation, 1);
  check_at_least("groups", desc.groups, 1);
  check_at_least("pad_before", desc.pad_before, 0);
  check_at_least("pad_after", desc.pad_after, 0);
  if (desc.in_channels % desc.groups != 0 || desc.out_channels % desc.groups != 0)
    throw ArgumentError("conv1d: expected channels that " + std::to_string(desc.groups) + " groups divide, found " +
                        std::to_string(desc.in_channels) + " and " + std::to_string(desc.out_channels));
  if (!is_floating(desc.dtype)) throw DTypeError("conv1d: expected f64, f32, f16 or bf16, found " + std::string(name_of(desc.dtype)));
}

}  // namespace

std::int64_t Conv1dDesc::out_length(std::int64_t length) const {
  const std::int64_t padded = checked_add(length, checked_add(pad_before, pad_after));
  const std::int64_t span = checked_add(checked_mul(dilation, kernel - 1), std::int64_t{1});
  return padded < span ? 0 : (padded - span) / stride + 1;
}

Conv1dPlan make_conv1d(const Conv1dDesc& desc, const Place& place) {
  check_desc(desc);
  GemmDesc group;
  group.k = checked_mul(desc.in_channels / desc.groups, desc.kernel);
  group.n = desc.out_channels / desc.groups;
  group.dtype = desc.dtype;
  group.out = desc.dtype;
  Conv1dPlan plan;
  plan.desc_ = desc;
  plan.gemm_ = make_gemm_plan(group, place);
  return plan;
}

PackedMatrix pack(const Conv1dPlan& plan, const Tensor& weights, StreamRef stream) {
  const Conv1dDesc& desc = plan.desc();
  const DDim expected{desc.out_channels, desc.in_channels / desc.groups, desc.kernel};
  internal::check_device_places("conv1d pack", stream, {&weights});
  internal::check_dtype("conv1d pack", "the weights", weights, desc.dtype);
  internal::check_dims("conv1d pack", "the weights", weights, expected);
  if (internal::on_cuda(plan.gemm().place()))
    return {internal::row_major("conv1d pack", weights, stream).reshape(DDim{expected.elements()})};
  const cpu::PackedLayout layout = cpu::conv1d_layout(plan);
  Tensor packed(internal::wide_dtype(desc.dtype), DDim{checked_mul(layout.elements(), desc.groups)}, stream.memory());
  // The kernels pack straight from [out, k]: a row-major copy in the wide dtype.
  const Tensor wide(packed.dtype(), expected, stream.memory());
  launch(
      TensorRefs<1>{&weights}, TensorRefs<1>{&packed},
      [=](ThreadTeam& team) {
        cpu::cast(weights, wide, team);
        const auto pack_group = [&](auto zero, std::int64_t group) {
          using T = decltype(zero);
          const T* from = static_cast<const T*>(wide.raw()) + group * layout.columns * layout.k;
          cpu::pack_all(layout, from, 1, layout.k, static_cast<T*>(packed.raw_mutable()) + group * layout.elements(), team);
        };
        for (std::int64_t group = 0; group < desc.groups; ++group)
          packed.dtype() == DType::f64 ? pack_group(double{}, group) : pack_group(float{}, group);
      },
      stream);
  return {packed};
}

namespace {

void check_run(const Conv1dPlan& plan, const PackedMatrix& weights, const Tensor& x, const Tensor* bias, const Tensor& out) {
  const Conv1dDesc& desc = plan.desc();
  internal::check_dtype("conv1d", "x", x, desc.dtype);
  internal::check_dtype("conv1d", "out", out, desc.dtype);
  if (x.rank() != 3 || x.dim(1) != desc.in_channels)
    throw ShapeError("conv1d: expected x of [N, " + std::to_string(desc.in_channels) + ", L], found " + x.to_string());
  internal::check_dims("conv1d", "out", out, DDim{x.dim(0), desc.out_channels, desc.out_length(x.dim(2))});
  internal::check_contiguous("conv1d", "out", out);
  const std::int64_t each =
      internal::on_cuda(plan.gemm().place()) ? plan.gemm().desc().k * plan.gemm().desc().n : cpu::conv1d_layout(plan).elements();
  internal::check_dims("conv1d", "the packed weights", weights.data, DDim{each * desc.groups});
  if (bias == nullptr) return;
  internal::check_dtype("conv1d", "bias", *bias, desc.dtype);
  internal::check_dims("conv1d", "bias", *bias, DDim{desc.out_channels});
}

}  // namespace

void run(const Conv1dPlan& plan, const PackedMatrix& weights, const Tensor& x, const Tensor* bias, Tensor& out, StreamRef stream) {
  internal::check_device_places("conv1d", stream, {&weights.data, &x, bias, &out});
  check_run(plan, weights, x, bias, out);
  if (bias != nullptr && !bias->is_contiguous()) {
    const Tensor dense = internal::row_major("conv1d", *bias, stream);
    return run(plan, weights, x, &dense, out, stream);
  }
  const bool has_bias = bias != nullptr;
  if (internal::on_cuda(stream.place()))
    return launch(
        TensorRefs<3>{weights.data.elements() > 0 ? &weights.data : nullptr, &x, bias}, TensorRefs<1>{&out},
        [desc = plan.desc(), x, out, has_bias, addend = has_bias ? *bias : x, packed = weights.data](KernelContext& context) {
          cuda::conv1d(desc, x, packed, has_bias ? &addend : nullptr, out, context);
        },
        stream);
  const Tensor& narrow_addend = has_bias ? *bias : x;  // any tensor where there is none
  const Tensor addend = has_bias ? internal::wide_room(*bias, stream.memory()) : x;
  const Tensor wide = internal::wide_room(x, stream.memory());
  const Tensor result = internal::wide_room(out, stream.memory());
  launch(
      TensorRefs<3>{&weights.data, &x, bias}, TensorRefs<1>{&out},
      [=, narrow_addend = narrow_addend, packed = weights.data](KernelContext& context) {
        ThreadTeam& team = context;
        cpu::widen(x, wide, team);
        if (has_bias) cpu::widen(narrow_addend, addend, team);
        cpu::conv1d(plan, wide, packed, has_bias ? &addend : nullptr, {}, result, context);
        cpu::narrow(result, out, team);
      },
      stream);
}

Tensor conv1d(const Conv1dDesc& desc, const Tensor& x, const Tensor& weights, const Tensor* bias, StreamRef stream) {
  const Conv1dPlan plan = make_conv1d(desc, stream.place());
  if (x.rank() != 3) throw ShapeError("conv1d: expected x of [N, " + std::to_string(desc.in_channels) + ", L], found " + x.to_string());
  Tensor out(desc.dtype, DDim{x.dim(0), desc.out_channels, desc.out_length(x.dim(2))}, stream.memory());
  run(plan, pack(plan, weights, stream), x, bias, out, stream);
  return out;
}

}  // namespace millrace
