// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/tensor_list.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <type_traits>

namespace millrace {
namespace {

std::size_t checked_position(std::int64_t position, std::int64_t size, std::int64_t last) {
  if (size == 0 && last < 0)
    throw IndexError("list: expected a list with elements, found position " + std::to_string(position) + " of an empty one");
  if (position < -size || position > last)
    throw IndexError("list: expected a position from " + std::to_string(-size) + " to " + std::to_string(last) + ", found " +
                     std::to_string(position));
  return static_cast<std::size_t>(position < 0 ? position + size : position);
}

}  // namespace

void TensorList::check_count(std::int64_t count) {
  if (count > most_elements)
    throw ArgumentError("list: expected at most " + std::to_string(most_elements) + " elements, found " + std::to_string(count));
}

/// The elements of lists, in one of three forms. Flat: room for elements that are only ever added; lists see the first few of them, and the thread that
/// claims the next place fills it before any other knows of a list that has it. Chunks: of a list in which an element was replaced, which shares the
/// others. Without one: a list that lacks an element of another, for `erase` and an `insert` at its place. The latter two become flat when
/// somebody reads all elements.
class TensorList::Buffer {
 public:
  using Chunk = std::vector<Tensor>;
  using Chunks = std::vector<std::shared_ptr<const Chunk>>;

  explicit Buffer(std::size_t capacity) : capacity_(capacity), elements_(std::allocator<Tensor>().allocate(capacity)) {}
  explicit Buffer(Chunks chunks) : chunks_(std::move(chunks)) {}
  /// `size`: elements of the list that `whole` is of.
  Buffer(std::shared_ptr<const Buffer> whole, std::size_t size, std::size_t missing)
      : whole_(std::move(whole)), whole_size_(size), missing_(missing) {}
  ~Buffer() {
    if (elements_ == nullptr) return;
    std::destroy_n(elements_, used_.load());
    std::allocator<Tensor>().deallocate(elements_, capacity_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// The first `size` elements, side by side.
  std::span<const Tensor> elements(std::size_t size) const {
    if (whole_ != nullptr || !chunks_.empty()) std::call_once(flattened_, [this, size] { flatten(size); });
    return {elements_, size};
  }
  const Tensor& at(std::size_t place) const {
    if (whole_ != nullptr) return whole_->at(place < missing_ ? place : place + 1);
    return chunks_.empty() ? elements_[place] : (*chunks_[place / chunk_size])[place % chunk_size];
  }
  /// For the maker of the buffer, before it is shared.
  void fill(std::span<const Tensor> more) {
    for (const Tensor& element : more) {
      std::construct_at(elements_ + used_.load(), element);
      used_.fetch_add(1);
    }
  }
  /// False when a list that ends at `size` is not the longest, or there is no room.
  bool try_add(std::size_t size, Tensor& element) noexcept {
    static_assert(std::is_nothrow_move_constructible_v<Tensor>);
    if (whole_ != nullptr || !chunks_.empty() || size == capacity_ || !used_.compare_exchange_strong(size, size + 1)) return false;
    std::construct_at(elements_ + size, std::move(element));
    return true;
  }
  bool lacks_one() const noexcept { return whole_ != nullptr; }
  /// With `element` at the place of the one that is missing there; null when none is.
  std::shared_ptr<Buffer> with(std::size_t place, Tensor& element) const {
    if (whole_ == nullptr || place != missing_) return nullptr;
    Chunks made = whole_->chunks_;
    if (made.empty())
      for (std::size_t begin = 0; begin < whole_size_; begin += chunk_size) made.push_back(whole_->chunk(begin, whole_size_));
    auto changed = std::make_shared<Chunk>(*made[place / chunk_size]);
    (*changed)[place % chunk_size] = std::move(element);
    made[place / chunk_size] = std::move(changed);
    return std::make_shared<Buffer>(std::move(made));
  }

 private:
  static constexpr std::size_t chunk_size = 64;

  std::shared_ptr<const Chunk> chunk(std::size_t begin, std::size_t size) const {
    auto made = std::make_shared<Chunk>();
    for (std::size_t i = begin; i < std::min(begin + chunk_size, size); ++i) made->push_back(at(i));
    return made;
  }
  void flatten(std::size_t size) const {
    elements_ = std::allocator<Tensor>().allocate(size);
    capacity_ = size;
    for (std::size_t i = 0; i < size; ++i, used_.fetch_add(1)) std::construct_at(elements_ + i, at(i));
  }

  mutable std::size_t capacity_ = 0;
  mutable Tensor* elements_ = nullptr;
  mutable std::atomic<std::size_t> used_{0};
  mutable std::once_flag flattened_;
  Chunks chunks_;
  std::shared_ptr<const Buffer> whole_;
  std::size_t whole_size_ = 0, missing_ = 0;
};

TensorList::TensorList(std::vector<Tensor> elements) : size_(static_cast<std::int64_t>(elements.size())) {
  check_count(size_);
  if (elements.empty()) return;
  buffer_ = std::make_shared<Buffer>(elements.size());
  buffer_->fill(elements);
}

std::span<const Tensor> TensorList::elements() const {
  return buffer_ == nullptr ? std::span<const Tensor>() : buffer_->elements(static_cast<std::size_t>(size_));
}

const Tensor& TensorList::at(std::int64_t position) const {
  const std::size_t place = checked_position(position, size_, size_ - 1);  // an empty list has no buffer
  return buffer_->at(place);
}

TensorList TensorList::append(Tensor element) const {
  const auto size = static_cast<std::size_t>(size_);
  check_count(size_ + 1);
  TensorList longer = *this;
  ++longer.size_;
  if (buffer_ != nullptr && buffer_->try_add(size, element)) return longer;
  longer.buffer_ = std::make_shared<Buffer>(std::max<std::size_t>(4, 2 * size));
  longer.buffer_->fill(elements());
  longer.buffer_->fill({&element, 1});
  return longer;
}

TensorList TensorList::insert(std::int64_t position, Tensor element) const {
  const std::size_t place = checked_position(position, size_, size_);
  const auto size = static_cast<std::size_t>(size_);
  check_count(size_ + 1);
  TensorList longer;
  longer.size_ = size_ + 1;
  if (buffer_ != nullptr) longer.buffer_ = buffer_->with(place, element);
  if (longer.buffer_ != nullptr) return longer;
  if (place == size) return append(std::move(element));
  longer.buffer_ = std::make_shared<Buffer>(size + 1);
  longer.buffer_->fill(elements().first(place));
  longer.buffer_->fill({&element, 1});
  longer.buffer_->fill(elements().subspan(place));
  return longer;
}

TensorList TensorList::erase(std::int64_t position) const {
  const std::size_t place = checked_position(position, size_, size_ - 1);
  TensorList shorter;
  shorter.size_ = size_ - 1;
  if (shorter.size_ == 0) return shorter;
  if (!buffer_->lacks_one()) {
    shorter.buffer_ = std::make_shared<Buffer>(buffer_, static_cast<std::size_t>(size_), place);
    return shorter;
  }
  shorter.buffer_ = std::make_shared<Buffer>(static_cast<std::size_t>(shorter.size_));
  shorter.buffer_->fill(elements().first(place));
  shorter.buffer_->fill(elements().subspan(place + 1));
  return shorter;
}

std::string TensorList::to_string() const {
  constexpr std::size_t shown = 4;
  std::string text = "a list of " + std::to_string(size_) + (size_ == 1 ? " tensor" : " tensors");
  for (std::size_t i = 0; i < std::min<std::size_t>(elements().size(), shown); ++i)
    text += (i == 0 ? ": " : ", ") + elements()[i].to_string();
  return elements().size() > shown ? text + ", …" : text;
}

}  // namespace millrace
