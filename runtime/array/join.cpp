// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/join.h>

#include <string>

#include <millrace/tensor/copy.h>
#include <millrace/tensor/error.h>

namespace millrace::detail {
namespace {

bool one_storage(const std::vector<Tensor>& parts) {
  const auto* next = static_cast<const std::byte*>(parts.front().raw());
  for (const Tensor& part : parts) {
    if (part.elements() == 0) continue;
    if (!part.shares_storage_with(parts.front()) || !part.is_contiguous() || part.raw() != next) return false;
    next += part.bytes();
  }
  return true;
}

bool fills(const std::vector<Tensor>& parts, const std::shared_ptr<Slab>& slab) {
  if (slab == nullptr || slab->slots() != static_cast<std::int64_t>(parts.size())) return false;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!slab->holds(static_cast<std::int64_t>(i), parts[i])) return false;
  return true;
}

/// All slots of a slab, behind whatever produces them.
Tensor whole_slab(const std::vector<Tensor>& parts, const Slab& slab, const DDim& dims, StreamRef stream) {
  for (const Tensor& part : parts) stream.wait(part.ready());
  const Tensor whole = slab.whole(dims);
  whole.storage()->set_ready(stream.position());
  whole.storage()->mark_written();
  return whole.read_only();
}

}  // namespace

Tensor join(const std::vector<Tensor>& parts, DType dtype, const DDim& dims, const std::shared_ptr<Slab>& slab, StreamRef stream) {
  if (fills(parts, slab)) return whole_slab(parts, *slab, dims, stream);
  if (!parts.empty() && parts.front().elements() > 0 && one_storage(parts)) {
    const Tensor& first = parts.front();
    const auto offset = static_cast<const std::byte*>(first.raw()) - first.storage()->data();
    return Tensor(dtype, dims, dims.row_major(), offset / static_cast<std::int64_t>(size_of(dtype)), first.storage()).read_only();
  }
  Tensor out(dtype, dims, stream.memory());
  const Tensor flat = out.reshape(DDim{out.elements()});
  std::int64_t at = 0;
  for (const Tensor& part : parts) {
    if (part.dtype() != dtype)
      throw DTypeError("array: slots to be joined have different dtypes: " + std::string(name_of(dtype)) + " and " +
                       std::string(name_of(part.dtype())));
    if (part.elements() == 0) continue;
    copy(part, flat.rows(at, at + part.elements()).reshape(part.dims()), stream);
    at += part.elements();
  }
  return out;
}

Tensor stack_values(const std::vector<SlotValue>& values, const std::shared_ptr<Slab>& slab, const Tensor& empty, StreamRef stream) {
  std::vector<Tensor> parts;
  for (const SlotValue& value : values) parts.push_back(value.tensor());
  const Tensor& like = parts.empty() ? empty : parts.front();
  return join(parts, like.dtype(), like.dims().inserted(0, static_cast<std::int64_t>(parts.size())), slab, stream);
}

LoDTensor concat_values(const std::vector<SlotValue>& values, const std::shared_ptr<Slab>& slab, const Tensor& empty, int levels,
                        StreamRef stream) {
  std::vector<Tensor> parts;
  std::vector<LoD::Level> lengths(static_cast<std::size_t>(values.empty() ? levels : values.front().lod().depth()));
  std::int64_t rows = 0;
  for (const SlotValue& value : values) {
    if (value.lod().depth() != static_cast<int>(lengths.size()))
      throw LoDError("array: concat needs slots with as many levels: found " + values.front().to_string() + " and " + value.to_string());
    parts.push_back(value.tensor());
    rows += value.rows();
    for (std::size_t level = 0; level < lengths.size(); ++level) {
      const LoD::Level more = value.lod().lengths(static_cast<int>(level));
      lengths[level].insert(lengths[level].end(), more.begin(), more.end());
    }
  }
  const Tensor& like = parts.empty() ? empty : parts.front();
  DDim dims = like.rank() == 0 ? DDim{rows} : like.dims();
  dims[0] = rows;
  const Tensor joined = join(parts, like.dtype(), dims, slab, stream);
  return lengths.empty() ? LoDTensor(joined) : LoDTensor(joined, LoD::from_lengths(lengths));
}

}  // namespace millrace::detail
