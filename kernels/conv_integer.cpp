// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/conv_integer.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include <millrace/kernels/cpu/conv_byte_units.h>
#include <millrace/kernels/cpu/conv_integer.h>
#include <millrace/kernels/cpu/int8_kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {

bool conv_integer_is_fast() { return &cpu::int8_kernels() != &cpu::plain_int8_kernels(); }

PackedConvInteger pack_conv_integer(const ConvDesc& desc, const Tensor& weights, std::span<const std::int32_t> zeros,
                                    std::span<const std::int32_t> added, std::optional<std::int64_t> places) {
  internal::check_dtype("conv_integer", "the weights", weights, DType::i8);
  internal::check_contiguous("conv_integer", "the weights", weights);
  const int axes = static_cast<int>(desc.axes.size());
  if (axes < 1 || axes > 2 || weights.rank() != axes + 2 || desc.groups < 1 || weights.dim(0) % desc.groups != 0)
    throw ShapeError("conv_integer: expected weights [M, C/groups, K1 (, K2)] of " + std::to_string(desc.groups) + " groups, found " +
                     weights.to_string());
  for (const ConvDesc::Axis& axis : desc.axes)
    if (axis.stride < 1 || axis.dilation < 1 || axis.before < 0 || axis.after < 0)
      throw ArgumentError("conv_integer: expected strides and dilations of 1 or more and pads of 0 or more");
  const std::int64_t units = weights.dim(0);
  for (const auto& numbers : {zeros, added})
    if (!numbers.empty() && std::ssize(numbers) != units)
      throw ShapeError("conv_integer: expected numbers of " + std::to_string(units) + " units, found " + std::to_string(numbers.size()));
  const cpu::ConvIntegerForm form = cpu::conv_integer_form(desc, weights.dims());
  const bool by_units = cpu::takes_byte_units(form, !zeros.empty(), places);
  PackedConvInteger packed{desc,
                           weights.dims(),
                           Tensor(DType::i8, DDim{by_units ? 0 : form.groups * form.group_stride()}),
                           std::vector<std::int32_t>(static_cast<std::size_t>(units), 0),
                           {zeros.begin(), zeros.end()},
                           {added.begin(), added.end()},
                           by_units ? std::optional(cpu::pack_byte_units(desc, weights)) : std::nullopt,
                           !by_units && form.gathers() && cpu::int8_kernels().gathering.gather != nullptr};
  if (by_units) return packed;
  auto* const data = packed.data.mutable_data<std::int8_t>();
  std::fill_n(data, packed.data.elements(), std::int8_t{0});
  const std::int8_t* from = weights.data<std::int8_t>();
  for (std::int64_t unit = 0; unit < units; ++unit) {
    std::int8_t* const group = data + unit / form.units * form.group_stride();
    std::int8_t* const ones = group + form.unit_rows() * form.unit_stride();
    std::int32_t& sum = packed.sums[static_cast<std::size_t>(unit)];
    for (std::int64_t c = 0; c < form.channels; ++c)
      for (std::int64_t ky = 0; ky < form.taps[0]; ++ky)
        for (std::int64_t kx = 0; kx < form.taps[1]; ++kx, ++from) {
          const std::int64_t at =
              form.by_taps ? (ky * form.fours + kx / 4) * 4 + kx % 4 : ((c / 4 * form.taps[0] + ky) * form.taps[1] + kx) * 4 + c % 4;
          group[form.place_of(unit % form.units, at, packed.in_tiles)] = *from;
          ones[at] = 1;
          sum += *from - (zeros.empty() ? 0 : zeros[static_cast<std::size_t>(unit)]);
        }
  }
  return packed;
}

Tensor conv_integer(const PackedConvInteger& weights, const Tensor& x, const Tensor& zero, const ConvIntegerSteps& steps,
                    StreamRef stream) {
  internal::check_device_places("conv_integer", stream, {&x, &zero});
  internal::check_host("conv_integer", stream, x);
  if (x.dtype() != DType::u8) internal::check_dtype("conv_integer", "x", x, DType::i8);
  internal::check_dtype("conv_integer", "the zero of x", zero, x.dtype());
  if (zero.elements() != 1) throw ShapeError("conv_integer: expected one zero, found " + zero.to_string());
  const ConvDesc& desc = weights.desc;
  const int rank = weights.dims.rank();
  if (x.rank() != rank || x.dim(1) != weights.dims[1] * desc.groups)
    throw ShapeError("conv_integer: expected x of " + std::to_string(rank) + " axes with " + std::to_string(weights.dims[1] * desc.groups) +
                     " channels, found " + x.to_string());
  const auto taken = static_cast<std::size_t>(std::count_if(steps.steps.begin(), steps.steps.end(), has_operand));
  if (taken != steps.operands.size() || taken > most_operands)
    throw ArgumentError("conv_integer: expected " + std::to_string(taken) + " operands, found " + std::to_string(steps.operands.size()));
  const bool plain = steps.to == DType::i32;
  if ((plain && !steps.steps.empty()) || (!plain && steps.to != DType::f32 && steps.to != DType::u8 && steps.to != DType::i8))
    throw DTypeError("conv_integer: expected a result of f32, u8 or i8, or sums of i32, found " + std::string(name_of(steps.to)));
  DDim dims{x.dim(0), weights.dims[0]};
  for (int axis = 2; axis < rank; ++axis)
    dims = dims.inserted(axis, ConvDesc::out_extent(desc.axes[static_cast<std::size_t>(axis - 2)], x.dim(axis), weights.dims[axis]));
  ConvIntegerSteps held{steps.steps, {}, steps.to};
  for (const Tensor& operand : steps.operands) {
    internal::check_device_places("conv_integer", stream, {&operand});
    internal::check_dtype("conv_integer", "an operand", operand, DType::f32);
    if (operand.elements() != 1 && operand.elements() != weights.dims[0])
      throw ShapeError("conv_integer: expected an operand of 1 or " + std::to_string(weights.dims[0]) + " elements, found " +
                       operand.to_string());
    held.operands.push_back(operand.is_contiguous() ? operand : internal::row_major("conv_integer", operand, stream));
  }
  Tensor out(steps.to, dims, stream.memory());
  if (dims.elements() == 0) return out;
  const Tensor from = x.is_contiguous() ? x : internal::row_major("conv_integer", x, stream);
  TensorRefs<most_operands + 2> read{};
  read[0] = &from;
  read[1] = &zero;
  for (std::size_t i = 0; i < held.operands.size(); ++i) read[i + 2] = &held.operands[i];
  launch(
      read, TensorRefs<1>{&out}, std::tie(weights, from, zero, std::as_const(held), std::as_const(out)),
      [](KernelContext& context, const PackedConvInteger& packed, const Tensor& bytes, const Tensor& of_bytes, const ConvIntegerSteps& ends,
         const Tensor& result) {
        const std::int32_t stands = of_bytes.dtype() == DType::i8 ? static_cast<const std::int8_t*>(of_bytes.raw())[0]
                                                                  : static_cast<const std::uint8_t*>(of_bytes.raw())[0];
        packed.units ? cpu::conv_byte_units(packed, bytes, stands, ends, result, context)
                     : cpu::conv_integer(packed, bytes, stands, ends, result, context);
      },
      stream);
  return out;
}

}  // namespace millrace
