// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/gradient_sum.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/training/internal/floats.h>
#include <millrace/tensor/cpu_stream.h>

namespace millrace::training {

/// The stream of the sums: nothing else waits on it.
class GradientSum::Streams {
 public:
  CpuStream stream{std::make_shared<ThreadTeam>(1)};
};

GradientSum::GradientSum(Communicator& communicator, const std::vector<Item>& items, double share, std::size_t bucket_bytes)
    : communicator_(communicator), share_(share), streams_(std::make_unique<Streams>()) {
  if (!(share >= 0 && share <= 1)) throw ArgumentError(fmt::format("gradient sum: expected a share from 0 to 1, found {}", share));
  std::vector<std::int64_t> elements;
  std::size_t bytes = bucket_bytes;
  DType dtype = DType::f32;
  for (const Item& item : items) {
    if (bytes >= bucket_bytes || item.dtype != dtype) {
      buckets_.emplace_back();
      elements.push_back(0);
      bytes = 0;
      dtype = item.dtype;
    }
    const std::int64_t count = item.dims.elements();
    places_[item.output] = Place{buckets_.size() - 1, elements.back(), item.dims};
    buckets_.back().dtype = dtype;
    ++buckets_.back().missing;
    elements.back() += count;
    bytes += static_cast<std::size_t>(count) * size_of(dtype);
  }
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i].values = Tensor(buckets_[i].dtype, DDim{elements[i]});
}
GradientSum::~GradientSum() = default;

task<Value> GradientSum::receive(std::string input, Scope*) {
  throw ArgumentError("gradient sum: expected no input of a run, found '" + input + "'");
  co_return Value();
}

task<void> GradientSum::send(std::string output, Value gradient, Scope*) {
  const Tensor tensor = gradient.tensor().tensor();
  co_await ready(tensor.ready());
  put(output, &tensor);
}

void GradientSum::send_zeros() {
  for (const auto& [output, place] : places_) put(output, nullptr);
}

/// Null: zeros.
void GradientSum::put(const std::string& output, const Tensor* gradient) {
  const Place& place = places_.at(output);
  const std::lock_guard lock(mutex_);
  Bucket& bucket = buckets_[place.bucket];
  if (gradient != nullptr && gradient->dims() != place.dims)
    throw ShapeError(
        fmt::format("gradient sum: expected '{}' of extents {}, found {}", output, place.dims.to_string(), gradient->to_string()));
  internal::visit_floats(output, bucket.values.dtype(), [&]<class T>(std::type_identity<T>) {
    using C = internal::ComputeType<T>;
    T* const to = static_cast<T*>(bucket.values.raw_mutable()) + place.begin;
    const std::int64_t count = place.dims.elements();
    if (gradient == nullptr) {
      std::fill_n(to, count, T{});
      return;
    }
    const Tensor dense = internal::dense(*gradient);
    const T* const from = static_cast<const T*>(dense.raw());
    for (std::int64_t i = 0; i < count; ++i)
      to[i] = convert_element<T>(static_cast<C>(convert_element<C>(from[i]) * static_cast<C>(share_)));
  });
  --bucket.missing;
  start_complete_buckets();
}

void GradientSum::start_complete_buckets() {
  for (; started_ < buckets_.size() && buckets_[started_].missing == 0; ++started_) {
    Bucket& bucket = buckets_[started_];
    bucket.values.storage()->mark_written();
    bucket.done = communicator_.all_reduce(bucket.values, bucket.values, Reduce::sum, streams_->stream);
  }
}

Tensors GradientSum::sums() {
  Tensors made;
  for (Bucket& bucket : buckets_) bucket.done.wait();
  for (const auto& [output, place] : places_) {
    const Tensor& all = buckets_[place.bucket].values;
    made.emplace(output, Tensor(all.dtype(), place.dims, place.dims.row_major(), place.begin, all.storage()));
  }
  return made;
}

std::vector<std::vector<std::int64_t>> deal_to_ranks(const LoD& lod, const std::vector<std::int64_t>& batch, int ranks) {
  if (ranks < 1) throw ArgumentError(fmt::format("deal_to_ranks: expected at least 1 rank, found {}", ranks));
  std::vector<std::int64_t> lengths;
  for (const std::int64_t sequence : batch) {
    const auto [begin, end] = lod.row_range(0, sequence, sequence + 1);
    lengths.push_back(end - begin);
  }
  std::vector<std::size_t> order(batch.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return std::pair(-lengths[a], a) < std::pair(-lengths[b], b); });
  std::vector<std::int64_t> work(static_cast<std::size_t>(ranks), 0);
  std::vector<std::vector<std::size_t>> dealt(work.size());
  for (const std::size_t i : order) {
    const auto rank = static_cast<std::size_t>(std::min_element(work.begin(), work.end()) - work.begin());
    dealt[rank].push_back(i);
    work[rank] += lengths[i];
  }
  std::vector<std::vector<std::int64_t>> made(dealt.size());
  for (std::size_t rank = 0; rank < dealt.size(); ++rank) {
    std::sort(dealt[rank].begin(), dealt[rank].end());
    for (const std::size_t i : dealt[rank]) made[rank].push_back(batch[i]);
  }
  return made;
}

}  // namespace millrace::training
