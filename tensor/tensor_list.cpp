// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/tensor_list.h>

#include <algorithm>
#include <atomic>
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

/// Room for elements that are only ever added: lists see the first few of them. Whoever claims the next place fills it before anybody else
/// knows of a list that has it.
class TensorList::Buffer {
 public:
  explicit Buffer(std::size_t capacity) : capacity_(capacity), elements_(std::allocator<Tensor>().allocate(capacity)) {}
  ~Buffer() {
    std::destroy_n(elements_, used_.load());
    std::allocator<Tensor>().deallocate(elements_, capacity_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const Tensor* elements() const noexcept { return elements_; }
  /// For whoever made the buffer, before it is shared.
  void fill(std::span<const Tensor> more) {
    for (const Tensor& element : more) {
      std::construct_at(elements_ + used_.load(), element);
      used_.fetch_add(1);
    }
  }
  /// False when a list that ends at `size` is not the longest, or there is no room.
  bool try_add(std::size_t size, Tensor& element) noexcept {
    static_assert(std::is_nothrow_move_constructible_v<Tensor>);
    if (size == capacity_ || !used_.compare_exchange_strong(size, size + 1)) return false;
    std::construct_at(elements_ + size, std::move(element));
    return true;
  }

 private:
  std::size_t capacity_;
  Tensor* elements_;
  std::atomic<std::size_t> used_{0};
};

TensorList::TensorList(std::vector<Tensor> elements) : size_(static_cast<std::int64_t>(elements.size())) {
  check_count(size_);
  if (elements.empty()) return;
  buffer_ = std::make_shared<Buffer>(elements.size());
  buffer_->fill(elements);
}

std::span<const Tensor> TensorList::elements() const noexcept {
  return buffer_ == nullptr ? std::span<const Tensor>() : std::span(buffer_->elements(), static_cast<std::size_t>(size_));
}

const Tensor& TensorList::at(std::int64_t position) const { return elements()[checked_position(position, size_, size_ - 1)]; }

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
  if (place == size) return append(std::move(element));
  check_count(size_ + 1);
  TensorList longer;
  longer.size_ = size_ + 1;
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
