// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/internal/local_world.h>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <millrace/runtime/task/errors.h>

namespace millrace::detail {

LocalWorld::LocalWorld(int size, LocalOptions options) : size_(size), options_(std::move(options)) { channel(""); }

/// Operations that no rank can complete any more end, and with them their timers.
LocalWorld::~LocalWorld() {
  Ended ended;
  take_all(ended, std::make_exception_ptr(RankError(title("") + ": all ranks have left")));
  end(ended);
}

// ---- Who is there ----

LocalWorld::Channel& LocalWorld::channel(const std::string& name) {
  Channel& found = channels_[name];
  if (found.ranks.empty()) {
    found.ranks.resize(static_cast<std::size_t>(size_), Here::not_yet);
    found.next.resize(static_cast<std::size_t>(size_));
  }
  return found;
}

std::string LocalWorld::title(const std::string& channel) const {
  return fmt::format("on communicator '{}{}' of {} rank{}", options_.name, channel, size_, size_ == 1 ? "" : "s");
}

/// Nothing will come of the rank any more. A rank that left the world before it asked for a duplicate will not ask for it.
bool LocalWorld::gone(const Channel& channel, int rank) const {
  const auto at = static_cast<std::size_t>(rank);
  return channel.ranks[at] == Here::left || (channel.ranks[at] == Here::not_yet && channels_.at("").ranks[at] == Here::left);
}

void LocalWorld::enter(const std::string& name, int rank) {
  const std::lock_guard lock(mutex_);
  Here& here = channel(name).ranks[static_cast<std::size_t>(rank)];
  if (here != Here::not_yet) throw ArgumentError(fmt::format("duplicate '{}' {}: rank {} already asked for it", name, title(""), rank));
  here = Here::here;
}

void LocalWorld::leave(const std::string& name, int rank) noexcept {
  Ended ended;
  {
    const std::lock_guard lock(mutex_);
    channel(name).ranks[static_cast<std::size_t>(rank)] = Here::left;
    for (auto& [other, one] : channels_)
      if (gone(one, rank)) drop_hopeless(one, ended);
  }
  end(ended);
}

std::exception_ptr LocalWorld::left(const LocalOperation& operation) const {
  return std::make_exception_ptr(RankError(fmt::format("{}: a rank has left: {}", operation.describe(), operation.attendance())));
}

/// Takes out what waits for a rank that is gone, and what a rank that is gone would receive. A message that was sent stays: its receiver may
/// still come.
void LocalWorld::drop_hopeless(Channel& channel, Ended& ended) {
  const auto hopeless = [&](const OperationPtr& operation) {
    return std::any_of(operation->ranks().begin(), operation->ranks().end(),
                       [&](int rank) { return !operation->has(rank) && gone(channel, rank); });
  };
  std::erase_if(channel.collectives, [&](const auto& numbered) {
    if (!hopeless(numbered.second)) return false;
    ended.emplace_back(numbered.second, left(*numbered.second));
    return true;
  });
  for (auto* routes : {&channel.sends, &channel.recvs}) {
    for (auto& [route, waiting] : *routes) {
      const bool nobody_takes = gone(channel, route.second);
      std::erase_if(waiting, [&](const OperationPtr& operation) {
        if (!nobody_takes && !hopeless(operation)) return false;
        ended.emplace_back(operation, left(*operation));
        return true;
      });
    }
  }
}

// ---- Operations ----

LocalWorld::OperationPtr LocalWorld::make(const std::string& channel, std::vector<int> ranks) {
  auto made = std::make_shared<LocalOperation>(title(channel), std::move(ranks), options_);
  const std::weak_ptr<LocalWorld> world = weak_from_this();
  made->over = [world](const OperationPtr& operation) {
    const std::shared_ptr<LocalWorld> alive = world.lock();
    if (alive == nullptr) return;
    const std::lock_guard lock(alive->mutex_);
    alive->running_.erase(operation);
  };
  made->late = [world](const OperationPtr& operation) {
    if (const std::shared_ptr<LocalWorld> alive = world.lock()) alive->expire(operation);
  };
  running_.insert(made);
  made->start_clock();
  return made;
}

Point LocalWorld::started(std::unique_lock<std::mutex> lock, const OperationPtr& operation, bool complete, bool hopeless) {
  const std::exception_ptr error = hopeless ? left(*operation) : nullptr;
  lock.unlock();
  if (complete) operation->launch();
  if (hopeless) operation->end(error);
  return operation->point();
}

Point LocalWorld::collective(const std::string& name, int rank, LocalPart part) {
  std::unique_lock lock(mutex_);
  check_locked();
  Channel& at = channel(name);
  const std::uint64_t number = at.next[static_cast<std::size_t>(rank)]++;
  OperationPtr& known = at.collectives[number];
  if (known == nullptr) {
    std::vector<int> ranks(static_cast<std::size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    known = make(name, std::move(ranks));
  }
  const OperationPtr operation = known;
  const bool complete = operation->add(rank, std::move(part));
  bool hopeless = false;
  for (const int other : operation->ranks()) hopeless = hopeless || (!operation->has(other) && gone(at, other));
  if (complete || hopeless) at.collectives.erase(number);
  return started(std::move(lock), operation, complete, hopeless);
}

Point LocalWorld::message(const std::string& name, Route route, bool sends, LocalPart part) {
  std::unique_lock lock(mutex_);
  check_locked();
  Channel& at = channel(name);
  const auto [from, to] = route;
  std::deque<OperationPtr>& others = (sends ? at.recvs : at.sends)[route];
  if (!others.empty()) {
    const OperationPtr operation = std::move(others.front());
    others.pop_front();
    operation->add(sends ? from : to, std::move(part));
    return started(std::move(lock), operation, true, false);
  }
  const OperationPtr operation = make(name, {from, to});
  operation->add(sends ? from : to, std::move(part));
  const bool hopeless = gone(at, sends ? to : from);
  if (!hopeless) (sends ? at.sends : at.recvs)[route].push_back(operation);
  return started(std::move(lock), operation, false, hopeless);
}

Point LocalWorld::send(const std::string& name, int from, int to, LocalPart part) {
  return message(name, {from, to}, true, std::move(part));
}
Point LocalWorld::recv(const std::string& name, int from, int to, LocalPart part) {
  return message(name, {from, to}, false, std::move(part));
}

// ---- The end ----

void LocalWorld::end(const Ended& ended) noexcept {
  for (const auto& [operation, error] : ended) operation->end(error);
}

void LocalWorld::take_all(Ended& ended, const std::exception_ptr& error) {
  for (const OperationPtr& operation : running_) ended.emplace_back(operation, error);
  for (auto& [name, channel] : channels_) {
    channel.collectives.clear();
    channel.sends.clear();
    channel.recvs.clear();
  }
}

void LocalWorld::check_locked() const {
  if (aborted_) throw AbortedError(fmt::format("communicator '{}' of {} ranks was aborted: {}", options_.name, size_, *aborted_));
}

void LocalWorld::check_not_aborted() const {
  const std::lock_guard lock(mutex_);
  check_locked();
}

bool LocalWorld::aborted() const noexcept {
  const std::lock_guard lock(mutex_);
  return aborted_.has_value();
}

void LocalWorld::abort(const std::string& reason) noexcept {
  Ended ended;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = reason;
    take_all(ended, std::make_exception_ptr(
                        AbortedError(fmt::format("communicator '{}' of {} ranks was aborted: {}", options_.name, size_, reason))));
  }
  end(ended);
}

/// The deadline of one operation: no rank can know any more what the others will do.
void LocalWorld::expire(const OperationPtr& operation) noexcept {
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    if (!running_.contains(operation)) return;
    what = fmt::format("{}: not done within {} ns: {}", operation->describe(), options_.deadline->count(), operation->attendance());
  }
  operation->end(std::make_exception_ptr(DeadlineError(what)));
  abort(what);
}

}  // namespace millrace::detail
