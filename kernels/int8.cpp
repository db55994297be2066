// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/int8.h>

#include <string>

#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/cpu/spans.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr std::int64_t most_k = 131071;

cpu::Int8Layout layout_of(const Int8Plan& plan) { return {plan.desc().k, plan.desc().n, plan.kernels().lanes, plan.kernels().group}; }

DDim with_last(const DDim& dims, std::int64_t extent) {
  DDim made = dims;
  made[-1] = extent;
  return made;
}

void quantize(const Tensor& rows, const Tensor& quantized, const Tensor& row_scales, ThreadTeam& team) {
  const cpu::Int8Kernels& kernels = cpu::int8_kernels();
  const std::int64_t k = rows.dim(-1);
  const auto* from = static_cast<const float*>(rows.raw());
  auto* values = static_cast<std::int8_t*>(quantized.raw_mutable());
  auto* scales = static_cast<float*>(row_scales.raw_mutable());
  team.parallel(row_scales.elements(), std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, k)),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t row = begin; row < end; ++row) kernels.quantize(from + row * k, k, values + row * k, scales + row);
                });
}

constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor&> quantize_kernels{
    "quantize_rows", {{"cuda", cuda::quantize_rows}}, quantize};

}  // namespace

QuantizedRows quantize_rows(const Tensor& x, StreamRef stream) {
  internal::check_device_places("quantize_rows", stream, {&x});
  internal::check_dtype("quantize_rows", "x", x, DType::f32);
  if (x.rank() < 1) throw ShapeError("quantize_rows: expected rows, found " + x.to_string());
  const Tensor rows = x.is_contiguous() ? x : internal::row_major("quantize_rows", x, stream);
  QuantizedRows made{Tensor(DType::i8, x.dims(), stream.memory()), Tensor(DType::f32, with_last(x.dims(), 1), stream.memory())};
  launch(
      TensorRefs<1>{&rows}, TensorRefs<2>{&made.values, &made.scales},
      [rows, made](KernelContext& context) { quantize_kernels.run(rows, made.values, made.scales, context); }, stream);
  return made;
}

Int8Plan make_int8_plan(const Int8Desc& desc, const Place& place) {
  internal::check_device_plan_place("int8 plan", place);
  if (desc.k < 0 || desc.n < 0 || desc.k > most_k)
    throw ArgumentError("int8 plan: expected n of at least 0 and k of 0 to " + std::to_string(most_k) +
                        ", found k = " + std::to_string(desc.k) + " and n = " + std::to_string(desc.n));
  Int8Plan plan;
  plan.desc_ = desc;
  plan.place_ = place;
  plan.kernels_ = &cpu::int8_kernels();
  return plan;
}

namespace {

/// One column, with what belongs to it.
void pack_column(const cpu::Int8Layout& layout, const Tensor& weights, const Tensor& scales, std::int64_t column, const PackedInt8& to) {
  const auto* from = static_cast<const std::int8_t*>(weights.raw()) + column * weights.strides()[1];
  auto* data = static_cast<std::int8_t*>(to.data.raw_mutable()) + column / layout.width() * layout.panel_stride() +
               column % layout.width() * layout.group;
  std::int32_t sum = 0;
  for (std::int64_t k = 0; k < layout.groups() * layout.group; ++k) {
    const std::int8_t value = column < layout.columns && k < layout.k ? from[k * weights.strides()[0]] : std::int8_t{0};
    data[k / layout.group * layout.width() * layout.group + k % layout.group] = value;
    sum += value;
  }
  static_cast<std::int32_t*>(to.offsets.raw_mutable())[column] = 128 * sum;
  static_cast<float*>(to.scales.raw_mutable())[column] =
      column < layout.columns ? static_cast<const float*>(scales.raw())[column * scales.strides()[0]] : 0.0f;
}

}  // namespace

PackedInt8 pack(const Int8Plan& plan, const Tensor& weights, const Tensor& scales, StreamRef stream) {
  internal::check_device_places("int8 pack", stream, {&weights, &scales});
  internal::check_dtype("int8 pack", "the weights", weights, DType::i8);
  internal::check_dims("int8 pack", "the weights", weights, DDim{plan.desc().k, plan.desc().n});
  internal::check_dtype("int8 pack", "the scales", scales, DType::f32);
  internal::check_dims("int8 pack", "the scales", scales, DDim{plan.desc().n});
  if (internal::on_cuda(plan.place()))
    return {internal::row_major("int8 pack", weights, stream), zeros(DDim{0}, DType::i32, stream),
            internal::row_major("int8 pack", scales, stream)};
  const cpu::Int8Layout layout = layout_of(plan);
  PackedInt8 packed{Tensor(DType::i8, DDim{layout.panels() * layout.panel_stride()}, stream.memory()),
                    Tensor(DType::i32, DDim{layout.padded_columns()}, stream.memory()),
                    Tensor(DType::f32, DDim{layout.padded_columns()}, stream.memory())};
  launch(
      TensorRefs<2>{&weights, &scales}, TensorRefs<3>{&packed.data, &packed.offsets, &packed.scales},
      [=](ThreadTeam& team) {
        team.parallel(layout.padded_columns(), std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, layout.k)),
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t column = begin; column < end; ++column) pack_column(layout, weights, scales, column, packed);
                      });
      },
      stream);
  return packed;
}

namespace {

void check_run(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& x_scales, const Tensor& out) {
  internal::check_dtype("int8 run", "x", x, DType::i8);
  internal::check_dtype("int8 run", "the scales of x", x_scales, DType::f32);
  internal::check_dtype("int8 run", "out", out, DType::f32);
  if (x.rank() < 1 || x.dim(-1) != plan.desc().k)
    throw ShapeError("int8 run: expected rows of " + std::to_string(plan.desc().k) + " elements, found " + x.to_string());
  internal::check_dims("int8 run", "the scales of x", x_scales, with_last(x.dims(), 1));
  internal::check_dims("int8 run", "out", out, with_last(x.dims(), plan.desc().n));
  for (const Tensor* each : {&x, &x_scales, &static_cast<const Tensor&>(out)}) internal::check_contiguous("int8 run", "rows", *each);
  const cpu::Int8Layout layout = layout_of(plan);
  internal::check_dims("int8 run", "the packed weights", weights.data,
                       internal::on_cuda(plan.place()) ? DDim{layout.k, layout.columns} : DDim{layout.panels() * layout.panel_stride()});
}

/// Rows [row, row + rows) of a call.
struct Int8Rows {
  const std::uint8_t* a[cpu::max_rows];
  const float* scales[cpu::max_rows];
  float* out[cpu::max_rows];
};

void multiply(const cpu::Int8Layout& layout, const cpu::Int8Kernels& kernels, const PackedInt8& weights, const Tensor& x,
              const Tensor& x_scales, const Tensor& out, ThreadTeam& team) {
  // A multiply-add of i8 takes a quarter of the time.
  cpu::each_span(team, x_scales.elements(), cpu::max_rows, layout.panels(), layout.panel_stride() / 4,
                 [&](std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t last) {
                   Int8Rows at;
                   for (std::int64_t i = 0; i < rows; ++i) {
                     at.a[i] = static_cast<const std::uint8_t*>(x.raw()) + (row + i) * layout.k;
                     at.scales[i] = static_cast<const float*>(x_scales.raw()) + row + i;
                     at.out[i] = static_cast<float*>(out.raw_mutable()) + (row + i) * layout.columns;
                   }
                   kernels.multiply({at.a, at.scales, at.out, rows, layout.k, static_cast<const std::int8_t*>(weights.data.raw()),
                                     static_cast<const std::int32_t*>(weights.offsets.raw()),
                                     static_cast<const float*>(weights.scales.raw()), layout.columns, first, last});
                 });
}

void multiply_there(const cpu::Int8Layout&, const cpu::Int8Kernels&, const PackedInt8& weights, const Tensor& x, const Tensor& x_scales,
                    const Tensor& out, KernelContext& context) {
  cuda::matmul_int8(x, x_scales, weights.data, weights.scales, out, context);
}

constexpr internal::Implementations<const cpu::Int8Layout&, const cpu::Int8Kernels&, const PackedInt8&, const Tensor&, const Tensor&,
                                    const Tensor&>
    multiply_kernels{"int8 run", {{"cuda", multiply_there}}, multiply};

}  // namespace

void run(const Int8Plan& plan, const PackedInt8& weights, const Tensor& x, const Tensor& x_scales, Tensor& out, StreamRef stream) {
  internal::check_device_places("int8 run", stream, {&weights.data, &weights.offsets, &weights.scales, &x, &x_scales, &out});
  check_run(plan, weights, x, x_scales, out);
  launch(
      TensorRefs<5>{&x, &x_scales, &weights.data, &weights.offsets, &weights.scales}, TensorRefs<1>{&out},
      [=, out = out, layout = layout_of(plan), kernels = &plan.kernels()](KernelContext& context) {
        if (out.elements() > 0) multiply_kernels.run(layout, *kernels, weights, x, x_scales, out, context);
      },
      stream);
}

}  // namespace millrace
