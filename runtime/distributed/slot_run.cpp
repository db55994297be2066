// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/internal/slot_run.h>

#include <millrace/runtime/distributed/internal/words.h>
#include <millrace/tensor/copy.h>

namespace millrace::detail {
namespace {

constexpr std::int64_t alignment = 64;

std::int64_t room_for(const Tensor& tensor) { return (static_cast<std::int64_t>(tensor.bytes()) + alignment - 1) / alignment * alignment; }

Tensor slot_at(std::int64_t byte, DType dtype, const DDim& dims, const Tensor& bytes) {
  return Tensor(dtype, dims, dims.row_major(), byte / static_cast<std::int64_t>(size_of(dtype)), bytes.storage());
}

}  // namespace

SlotRun pack_run(const std::vector<SlotValue>& values, StreamRef stream) {
  WordWriter words;
  std::int64_t total = 0;
  for (const SlotValue& value : values) {
    words.add(static_cast<std::int64_t>(value.dtype()));
    words.add(value.dims());
    words.add(value.lod());
    total += room_for(value.tensor());
  }
  SlotRun run;
  run.words = words.take();
  run.bytes = Tensor(DType::u8, DDim{total}, stream.memory());
  std::int64_t at = 0;
  for (const SlotValue& value : values) {
    copy(value.tensor(), slot_at(at, value.dtype(), value.dims(), run.bytes), stream);
    at += room_for(value.tensor());
  }
  return run;
}

std::vector<LoDTensor> unpack_run(const SlotRun& run, std::int64_t count) {
  Words words(run.words);
  std::vector<LoDTensor> values;
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const DType dtype = words.dtype();
    const DDim dims = words.dims();
    const LoD lod = words.lod();
    const Tensor slot = slot_at(at, dtype, dims, run.bytes);
    values.emplace_back(slot, lod);
    at += room_for(slot);
  }
  return values;
}

}  // namespace millrace::detail
