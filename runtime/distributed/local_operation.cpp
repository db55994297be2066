// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <millrace/kernels/binary.h>
#include <millrace/runtime/distributed/internal/local_operation.h>
#include <millrace/runtime/distributed/internal/when_all.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cpu_stream.h>
#include <millrace/tensor/cuda/copy.h>
#include <millrace/tensor/work_failure.h>

namespace millrace::detail {
namespace {

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return text;
}

/// Bytes as they are: the operation has waited for both sides. On a device that is a copy which is still to come about.
Point put(const Tensor& from, const Tensor& to, const std::optional<StreamRef>& device) {
  if (from.bytes() == 0) return {};
  if (!device) {
    std::memcpy(to.raw_mutable(), from.raw(), from.bytes());
    return {};
  }
  for (const Tensor* tensor : {&from, &to}) device->uses(tensor->storage());
  device->enqueue([from, to](KernelContext& context) { cuda::copy(from, to, context); });
  return device->position();
}

}  // namespace

std::string Asked::to_string() const {
  std::string what = std::string(name_of(dtype)) + dims.to_string();
  switch (call) {
    case Call::all_reduce: return fmt::format("all_reduce ({}) of {}", millrace::to_string(reduce), what);
    case Call::broadcast: return fmt::format("broadcast from {} of {}", root, what);
    case Call::all_gather: return "all_gather of " + what;
    case Call::message: return "message of " + what;
  }
  return what;
}

/// The stream is the operation's own: a failure stays with it.
Tensor reduced(Reduce reduce, const std::vector<Tensor>& values) {
  const Binary kind = reduce == Reduce::sum ? Binary::add : reduce == Reduce::min ? Binary::minimum : Binary::maximum;
  CpuStream stream(std::make_shared<ThreadTeam>(1));
  Tensor sum = clone(values[0], stream);
  for (std::size_t i = 1; i < values.size(); ++i)
    binary(kind, sum, values[i].place().is_cpu() ? values[i] : clone(values[i], stream), sum, stream);
  return sum;
}

LocalOperation::LocalOperation(std::string title, std::vector<int> ranks, LocalOptions options)
    : title_(std::move(title)),
      ranks_(std::move(ranks)),
      options_(std::move(options)),
      begin_ns_(options_.tracer != nullptr ? options_.tracer->now() : 0),
      parts_(ranks_.size()),
      missing_(ranks_.size()) {}

void LocalOperation::start_clock() {
  if (!options_.deadline) return;
  kept_by_clock_ = shared_from_this();
  options_.executor->add_timer(*this, options_.executor->after(*options_.deadline));
}

void LocalOperation::fire() noexcept {
  const std::shared_ptr<LocalOperation> self = std::move(kept_by_clock_);
  if (!ended_.load()) late(self);
}

bool LocalOperation::add(int rank, LocalPart part) {
  const auto at = static_cast<std::size_t>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  parts_[at].emplace(std::move(part));
  return --missing_ == 0;
}

bool LocalOperation::has(int rank) const {
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (ranks_[i] == rank) return parts_[i].has_value();
  return false;
}

std::string LocalOperation::describe() const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i]) continue;
    const Asked& asked = parts_[i]->asked;
    if (asked.call != Call::message) return asked.to_string() + " " + title_;
    return fmt::format("{} from rank {} to rank {} {}", asked.to_string(), ranks_[0], ranks_[1], title_);
  }
  return title_;
}

std::string LocalOperation::attendance() const {
  std::vector<int> came, missing;
  for (std::size_t i = 0; i < ranks_.size(); ++i) (parts_[i] ? came : missing).push_back(ranks_[i]);
  if (missing.empty()) return list_of(came) + " came, and the work was not done";
  return list_of(came) + " came, " + list_of(missing) + " did not";
}

std::exception_ptr LocalOperation::mismatch() const {
  bool same = true;
  std::string all;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    same = same && parts_[i]->asked == parts_[0]->asked;
    all += fmt::format("{}rank {} asked for {}", i == 0 ? "" : ", ", ranks_[i], parts_[i]->asked.to_string());
  }
  if (same) return nullptr;
  return std::make_exception_ptr(MismatchError(fmt::format("{}: expected the same of all, found: {}", title_, all)));
}

void LocalOperation::launch() noexcept {
  if (std::exception_ptr error = mismatch()) return end(std::move(error));
  const std::shared_ptr<LocalOperation> self = shared_from_this();
  kept_ = self;
  std::vector<std::pair<Arrival*, Point>> awaited;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    for (const Point& point : {parts_[i]->begin, parts_[i]->gives ? parts_[i]->in.ready() : Point()}) {
      if (point.reached()) continue;
      arrivals_.push_back(std::make_unique<Arrival>());
      arrivals_.back()->operation = this;
      arrivals_.back()->part = i;
      awaited.emplace_back(arrivals_.back().get(), point);
    }
  }
  awaited_.store(awaited.size() + 1);
  for (const auto& [arrival, point] : awaited)
    if (!point.timeline()->add(*arrival, point.value())) arrived(*arrival, point.error());
  if (awaited_.fetch_sub(1) == 1) begin();
}

void LocalOperation::arrived(const Arrival& arrival, std::exception_ptr error) noexcept {
  if (error != nullptr) {
    const std::lock_guard lock(failed_mutex_);
    if (failed_ == nullptr) failed_ = blame(arrival.part, error);
  }
  if (awaited_.fetch_sub(1) == 1) begin();
}

/// All that was awaited is decided.
void LocalOperation::begin() noexcept {
  const std::shared_ptr<LocalOperation> self = std::move(kept_);
  std::exception_ptr failed;
  std::vector<Point> copies;
  {
    const std::lock_guard lock(failed_mutex_);
    failed = failed_;
  }
  if (failed == nullptr && !ended_.load()) {
    try {
      copies = run();
    } catch (Error& error) {
      error.add_context(" (" + describe() + ")");
      failed = std::current_exception();
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (copies.empty()) return end(std::move(failed));
  when_all(copies, [self](std::exception_ptr error) { self->end(std::move(error)); });
}

/// Points of work that goes on on devices: the tensors stay where they are until then.
std::vector<Point> LocalOperation::run() {
  std::vector<Point> copies;
  const auto give = [&](const Tensor& from, const Tensor& to, const std::optional<StreamRef>& device) {
    if (Point done = put(from, to, device); !done.reached()) copies.push_back(std::move(done));
  };
  const Call call = parts_[0]->asked.call;
  std::optional<Tensor> sum;
  if (call == Call::all_reduce) {
    std::vector<Tensor> values;
    for (const auto& part : parts_) values.push_back(part->in);
    sum = reduced(parts_[0]->asked.reduce, values);
  }
  for (const auto& to : parts_) {
    if (!to->out) continue;
    if (sum) give(*sum, *to->out, to->device);
    for (std::size_t i = 0; !sum && i < parts_.size(); ++i) {
      if (!parts_[i]->gives) continue;
      give(parts_[i]->in, call == Call::all_gather ? to->out->select(0, static_cast<std::int64_t>(i)) : *to->out,
           to->device ? to->device : parts_[i]->device);
    }
  }
  return copies;
}

std::exception_ptr LocalOperation::blame(std::size_t part, const std::exception_ptr& error) const {
  return std::make_exception_ptr(
      RankError(fmt::format("{}: the work of rank {} failed: {}", describe(), ranks_[part], text_of_error(error))));
}

void LocalOperation::end(std::exception_ptr error) noexcept {
  if (ended_.exchange(true)) return;
  const std::shared_ptr<LocalOperation> self = shared_from_this();
  if (options_.deadline && options_.executor->cancel_timer(*this)) kept_by_clock_.reset();
  if (options_.tracer != nullptr) {
    const std::uint64_t track = options_.tracer->add_track("communication " + title_);
    options_.tracer->span("collective", describe(), track, -1, begin_ns_);
  }
  over(self);
  if (error != nullptr)
    done_->fail(std::move(error));
  else
    done_->advance(1);
}

}  // namespace millrace::detail
