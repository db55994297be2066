// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/internal/slot_run.h>

#include <limits>

#include <fmt/format.h>

#include <millrace/runtime/distributed/errors.h>
#include <millrace/tensor/copy.h>

namespace millrace::detail {
namespace {

constexpr std::int64_t alignment = 64;

std::int64_t room_for(const Tensor& tensor) { return (static_cast<std::int64_t>(tensor.bytes()) + alignment - 1) / alignment * alignment; }

Tensor slot_at(std::int64_t byte, DType dtype, const DDim& dims, const Tensor& bytes) {
  return Tensor(dtype, dims, dims.row_major(), byte / static_cast<std::int64_t>(size_of(dtype)), bytes.storage());
}

/// The words, read one after the other and never past their end.
class Words {
 public:
  explicit Words(const Tensor& words) : at_(words.data<std::int64_t>()), left_(words.dim(0)) {}
  std::int64_t next(std::int64_t least, std::int64_t most) {
    if (left_ == 0 || *at_ < least || *at_ > most)
      throw CommunicationError(left_ == 0
                                   ? std::string("slots of another rank: expected another word, found none")
                                   : fmt::format("slots of another rank: expected a word from {} to {}, found {}", least, most, *at_));
    --left_;
    return *at_++;
  }
  std::int64_t left() const noexcept { return left_; }

 private:
  const std::int64_t* at_;
  std::int64_t left_;
};

LoD read_lod(Words& words) {
  std::vector<LoD::Level> levels(static_cast<std::size_t>(words.next(0, words.left())));
  for (LoD::Level& level : levels) {
    const std::int64_t count = words.next(1, words.left() - 1);
    for (std::int64_t i = 0; i < count; ++i) level.push_back(words.next(0, std::numeric_limits<std::int64_t>::max()));
  }
  return levels.empty() ? LoD() : LoD::from_offsets(std::move(levels));
}

}  // namespace

SlotRun pack_run(const std::vector<SlotValue>& values, StreamRef stream) {
  std::vector<std::int64_t> words;
  std::int64_t total = 0;
  for (const SlotValue& value : values) {
    words.push_back(static_cast<std::int64_t>(value.dtype()));
    words.push_back(value.dims().rank());
    words.insert(words.end(), value.dims().begin(), value.dims().end());
    words.push_back(value.lod().depth());
    for (int level = 0; level < value.lod().depth(); ++level) {
      const auto offsets = value.lod().offsets(level);
      words.push_back(static_cast<std::int64_t>(offsets.size()));
      words.insert(words.end(), offsets.begin(), offsets.end());
    }
    total += room_for(value.tensor());
  }
  SlotRun run;
  run.words = Tensor::from(words, DDim{static_cast<std::int64_t>(words.size())});
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
    const auto dtype = static_cast<DType>(words.next(0, static_cast<std::int64_t>(DType::boolean)));
    std::vector<std::int64_t> dims(static_cast<std::size_t>(words.next(0, max_rank)));
    for (std::int64_t& extent : dims) extent = words.next(0, std::numeric_limits<std::int64_t>::max());
    const LoD lod = read_lod(words);
    const Tensor slot = slot_at(at, dtype, make_ddim(dims), run.bytes);
    values.emplace_back(slot, lod);
    at += room_for(slot);
  }
  return values;
}

}  // namespace millrace::detail
