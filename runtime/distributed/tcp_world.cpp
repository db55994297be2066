// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/internal/tcp_world.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/post.hpp>

#include <millrace/runtime/distributed/internal/when_all.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/tensor/start_thread.h>
#include <millrace/tensor/work_failure.h>

namespace millrace::detail {
namespace {

using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::size_t most_name = 4096;

/// The memory of another tensor, which has a point of its own.
class SameMemory final : public MemoryResource {
 public:
  explicit SameMemory(Tensor of) : of_(std::move(of)) {}
  void* allocate(std::size_t) override { return of_.raw_mutable(); }
  void deallocate(void*, std::size_t) noexcept override {}
  Place place() const override { return of_.place(); }
  bool host_accessible() const noexcept override { return of_.host_accessible(); }

 private:
  const Tensor of_;
};

}  // namespace

// ---- Meeting ----

TcpWorld::TcpWorld(Rendezvous& ranks, TcpOptions options) : rank_(ranks.rank()), size_(ranks.world_size()), options_(std::move(options)) {
  connect(ranks);
  listen();
  work_.emplace(io_.get_executor());
  io_.restart();
  thread_ = start_thread(fmt::format("rank {}: the thread of its connections", rank_), [this] { io_.run(); });
}

/// Before the first message, so a rank that leaves meanwhile has failed.
void TcpWorld::open_ways() {
  if (!options_.device) return;
  const auto why = [this] {
    const std::lock_guard lock(mutex_);
    return reason_ ? *reason_ : departed_.value_or("");
  };
  try {
    device_ = options_.device(why);
  } catch (const RankError&) {
    finish();
    throw;
  } catch (...) {
    const std::string known = why();
    finish();
    if (!known.empty()) throw RankError(known);
    throw;
  }
}

TcpWorld::~TcpWorld() {
  for (const auto& [rank, link] : links_) link->close();
  for (const TcpLinkPtr& link : strangers_) link->close();
  leaving_.reset();
  io_.restart();
  io_.poll();  // operations that were cancelled let go of what they kept
}

// ---- From any thread ----

std::string TcpWorld::title() const { return fmt::format("communicator '{}' of {} rank{}", options_.name, size_, size_ == 1 ? "" : "s"); }

std::string TcpWorld::title(const std::string& channel) const {
  return fmt::format("by rank {} on communicator '{}{}' of {} rank{}", rank_, options_.name, channel, size_, size_ == 1 ? "" : "s");
}

void TcpWorld::enter(const std::string& channel) {
  if (channel.size() > most_name)
    throw ArgumentError(fmt::format("{}: expected a name of at most {} bytes, found {}", title(), most_name, channel.size()));
  const std::lock_guard lock(mutex_);
  if (!channels_.insert(channel).second)
    throw ArgumentError(fmt::format("duplicate '{}' of {}: rank {} already asked for it", channel, title(), rank_));
}

void TcpWorld::leave(const std::string& channel) noexcept {
  asio::post(io_, [this, channel] {
    for (const auto& [peer, link] : links_) {
      const auto sent = sent_.find({channel, peer});
      link->write({TcpKind::left, sent == sent_.end() ? 0 : sent->second, 0, channel});
    }
  });
}

Point TcpWorld::start(TcpMessagePtr message, const std::vector<Point>& behind) {
  const Point done(message->done, 1);
  asio::post(io_, [this, message] { add(message); });
  when_all(behind, [world = shared_from_this(), message](std::exception_ptr error) {
    asio::post(world->io_, [self = world.get(), message, error] { self->begin(message, error); });
  });
  return done;
}

void TcpWorld::abort(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (reason_) return;
    reason_ = reason;
  }
  asio::post(io_, [this, reason] { fail(TcpFailure::aborted, reason); });
}

bool TcpWorld::aborted() const noexcept {
  const std::lock_guard lock(mutex_);
  return reason_.has_value();
}

void TcpWorld::check_not_aborted() const {
  const std::lock_guard lock(mutex_);
  if (reason_) throw AbortedError(fmt::format("{} was aborted: {}", title(), *reason_));
}

void TcpWorld::finish() noexcept {
  asio::post(io_, [this] { leave_all(); });
  thread_.join();
  for (const TcpMessagePtr& message : take_all())
    end(message, std::make_exception_ptr(RankError(message->what + ": this rank has left before it was done")));
  device_ = DeviceWays();
}

// ---- Messages, on the thread ----

void TcpWorld::add(const TcpMessagePtr& message) {
  const Way way{message->channel, message->peer};
  if (failure_) return end(message, failure_);
  if (message->sends) ++sent_[way];
  if (message->sends && (gone_.contains(message->peer) || promised_.contains(way)))
    return end(message, std::make_exception_ptr(RankError(fmt::format("{}: rank {} has left", message->what, message->peer))));
  (message->sends ? sends_ : recvs_)[way].push_back(message);
}

void TcpWorld::begin(const TcpMessagePtr& message, std::exception_ptr error) {
  if (message->over) return;
  message->ready = true;
  message->lost = std::move(error);
  start_clock(message);
  const Way way{message->channel, message->peer};
  message->sends ? serve(way) : ask(way);
}

void TcpWorld::start_clock(const TcpMessagePtr& message) {
  message->timer.emplace(io_, options_.deadline);
  message->timer->async_wait([this, kept = std::weak_ptr<TcpMessage>(message)](error_code error) {
    const TcpMessagePtr late = kept.lock();
    if (error || late == nullptr || late->over) return;
    fail(TcpFailure::deadline,
         fmt::format("{}: not done within {} ms: rank {} did not come", late->what, options_.deadline.count(), late->peer));
  });
}

/// The receiver asks in the order of its calls.
void TcpWorld::ask(const Way& way) {
  std::deque<TcpMessagePtr>& waiting = recvs_[way];
  while (!failure_ && !waiting.empty() && waiting.front()->ready) {
    const TcpMessagePtr message = waiting.front();
    waiting.pop_front();
    if (message->lost != nullptr) {  // then the order of the messages is unknown
      return fail(TcpFailure::rank, fmt::format("{}: the work of rank {} failed: {}", message->what, rank_, text_of_error(message->lost)));
    }
    message->index = asked_for_[way]++;
    const auto promised = promised_.find(way);
    if (gone_.contains(way.second) || (promised != promised_.end() && message->index >= promised->second)) {
      end(message, std::make_exception_ptr(RankError(fmt::format("{}: rank {} has left", message->what, way.second))));
      continue;
    }
    const std::uint64_t number = next_request_++;
    requests_[number] = message;
    links_.at(way.second)->write({TcpKind::want, number, 0, way.first + '\0' + message->asked});
  }
}

void TcpWorld::serve(const Way& way) {
  std::deque<TcpMessagePtr>& waiting = sends_[way];
  std::deque<Want>& wanted = wants_[way];
  while (!failure_ && !waiting.empty() && !wanted.empty() && waiting.front()->ready) {
    const TcpMessagePtr message = std::move(waiting.front());
    const Want want = std::move(wanted.front());
    waiting.pop_front();
    wanted.pop_front();
    give(message, want);
  }
}

void TcpWorld::give(const TcpMessagePtr& message, const Want& want) {
  TcpLink& link = *links_.at(message->peer);
  flying_.insert(message);
  if (message->asked != want.asked)
    return fail(TcpFailure::mismatch, fmt::format("{}: expected the same of all, found: rank {} asked for {}, rank {} asked for {}",
                                                  title(), rank_, message->asked, message->peer, want.asked));
  if (message->lost != nullptr) {
    link.write({TcpKind::lost, want.number, 0, text_of_error(message->lost)});
    return end(message, message->lost);
  }
  if (message->device) {
    link.write({TcpKind::go, want.number, 0, ""});
    return over_device(message);
  }
  link.write({TcpKind::data, want.number, message->tensor.bytes(), ""}, &message->tensor, [this, message](bool gone) {
    end(message, gone ? nullptr : std::make_exception_ptr(RankError(fmt::format("{}: rank {} is gone", message->what, message->peer))));
  });
}

/// Both ends know of it: what carries tensors of the device does not wait for long.
void TcpWorld::over_device(const TcpMessagePtr& message) {
  flying_.insert(message);
  try {
    Communicator& carrier = *(message->sends ? device_.to : device_.from).at(message->peer);
    Tensor tensor = message->tensor;
    if (!message->sends) {  // whose point is that of this message
      const auto storage = std::make_shared<Allocation>(std::make_shared<SameMemory>(message->tensor), message->tensor.bytes());
      tensor = Tensor(tensor.dtype(), tensor.dims(), tensor.dims().row_major(), 0, storage);
    }
    const Point done =
        message->sends ? carrier.send(tensor, message->peer, *message->device) : carrier.recv(tensor, message->peer, *message->device);
    when_all({done}, [world = shared_from_this(), message](std::exception_ptr error) {
      asio::post(world->io_, [self = world.get(), message, error] {
        if (error != nullptr) self->fail_with(error);
        self->end(message, error);
      });
    });
  } catch (...) {
    fail_with(std::current_exception());
  }
}

void TcpWorld::end(const TcpMessagePtr& message, std::exception_ptr error) noexcept {
  if (std::exchange(message->over, true)) return;
  message->timer.reset();
  flying_.erase(message);
  if (error != nullptr)
    message->done->fail(std::move(error));
  else
    message->done->advance(1);
  leave_if_done();
}

// ---- What others say ----

void TcpWorld::handle(int peer, const TcpFrame& frame) {
  switch (frame.kind) {
    case TcpKind::want: return want(peer, frame);
    case TcpKind::left: return left({frame.text, peer}, frame.a);
    case TcpKind::bye: return gone(peer);
    case TcpKind::ended:
      return fail(static_cast<TcpFailure>(std::min(frame.a, static_cast<std::uint64_t>(TcpFailure::communication))), frame.text);
    default: break;
  }
  const TcpMessagePtr message = frame.kind == TcpKind::hello ? nullptr : take_request(peer, frame.a);
  if (message == nullptr) return lost(peer, "it sent what nobody asked for");
  if (frame.kind == TcpKind::data) return end(message, nullptr);
  if (frame.kind == TcpKind::go && message->device) return over_device(message);
  end(message, std::make_exception_ptr(RankError(fmt::format("{}: the work of rank {} failed: {}", message->what, peer, frame.text))));
}

void TcpWorld::want(int peer, const TcpFrame& frame) {
  const std::size_t zero = frame.text.find('\0');
  if (zero == std::string::npos) return lost(peer, "it asked for what is no message");
  const Way way{frame.text.substr(0, zero), peer};
  wants_[way].push_back({frame.a, frame.text.substr(zero + 1)});
  serve(way);
}

std::shared_ptr<void> TcpWorld::room(int peer, std::uint64_t number, std::uint64_t bytes, void** to) {
  const auto found = requests_.find(number);
  if (found == requests_.end() || found->second->peer != peer || found->second->device || found->second->tensor.bytes() != bytes)
    return nullptr;
  *to = found->second->tensor.raw_mutable();
  return found->second;
}

TcpMessagePtr TcpWorld::take_request(int peer, std::uint64_t number) {
  const auto found = requests_.find(number);
  if (found == requests_.end() || found->second->peer != peer) return nullptr;
  TcpMessagePtr message = std::move(found->second);
  requests_.erase(found);
  return message;
}

/// Nothing more comes on this way than what is promised, and nothing is taken.
void TcpWorld::left(const Way& way, std::uint64_t promised) {
  promised_[way] = promised;
  std::vector<TcpMessagePtr> hopeless;
  for (const TcpMessagePtr& message : sends_[way]) hopeless.push_back(message);
  sends_[way].clear();
  for (const auto& [number, message] : requests_)
    if (message->peer == way.second && message->channel == way.first && message->index >= promised) hopeless.push_back(message);
  for (const TcpMessagePtr& message : hopeless)
    end(message, std::make_exception_ptr(RankError(fmt::format("{}: rank {} has left", message->what, way.second))));
}

void TcpWorld::gone(int peer) {
  {
    const std::lock_guard lock(mutex_);
    if (!departed_) departed_ = fmt::format("{}: rank {} has left", title(), peer);
  }
  gone_.insert(peer);
  std::vector<TcpMessagePtr> hopeless;
  for (auto& [way, waiting] : sends_) {
    if (way.second != peer) continue;
    hopeless.insert(hopeless.end(), waiting.begin(), waiting.end());
    waiting.clear();
  }
  for (const auto& [number, message] : requests_)
    if (message->peer == peer && !flying_.contains(message)) hopeless.push_back(message);
  for (const TcpMessagePtr& message : hopeless)
    end(message, std::make_exception_ptr(RankError(fmt::format("{}: rank {} has left", message->what, peer))));
  links_.at(peer)->shut_down();
}

void TcpWorld::lost(int peer, const std::string& why) {
  links_.at(peer)->close();
  if (!gone_.contains(peer) && !said_bye_)
    fail(TcpFailure::rank,
         fmt::format("{}: rank {} is gone: {}", title(), peer, why.empty() ? "its process has ended, or its connection" : why));
  gone_.insert(peer);
  leave_if_done();
}

// ---- The end ----

std::vector<TcpMessagePtr> TcpWorld::take_all() {
  std::vector<TcpMessagePtr> all(flying_.begin(), flying_.end());
  for (auto* queues : {&sends_, &recvs_})
    for (auto& [way, waiting] : *queues) {
      all.insert(all.end(), waiting.begin(), waiting.end());
      waiting.clear();
    }
  for (const auto& [number, message] : requests_) all.push_back(message);  // they stay: their elements may be on the way
  return all;
}

void TcpWorld::fail(TcpFailure failure, const std::string& text) noexcept {
  if (failure_) return;
  {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = text;
  }
  switch (failure) {
    case TcpFailure::aborted: failure_ = std::make_exception_ptr(AbortedError(fmt::format("{} was aborted: {}", title(), text))); break;
    case TcpFailure::deadline: failure_ = std::make_exception_ptr(DeadlineError(text)); break;
    case TcpFailure::mismatch: failure_ = std::make_exception_ptr(MismatchError(text)); break;
    case TcpFailure::rank: failure_ = std::make_exception_ptr(RankError(text)); break;
    case TcpFailure::communication: failure_ = std::make_exception_ptr(CommunicationError(text)); break;
  }
  // A rank that was told tells the others: on each link the cause comes before the leaving.
  for (const auto& [peer, link] : links_) link->write({TcpKind::ended, static_cast<std::uint64_t>(failure), 0, text});
  for (auto* carriers : {&device_.to, &device_.from})
    for (const auto& [peer, carrier] : *carriers) carrier->abort(text);
  for (const TcpMessagePtr& message : take_all()) end(message, failure_);
}

void TcpWorld::fail_with(std::exception_ptr error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const DeadlineError& late) {
    fail(TcpFailure::deadline, late.what());
  } catch (const RankError& missing) {
    fail(TcpFailure::rank, missing.what());
  } catch (...) {
    fail(TcpFailure::communication, text_of_error(error));
  }
}

void TcpWorld::leave_all() {
  // After a failure there is nothing left but to say so, maybe to nobody.
  leaving_.emplace(io_, failure_ == nullptr ? options_.leaving : std::min(options_.leaving, std::chrono::milliseconds(500)));
  leaving_->async_wait([this](error_code error) {
    if (!error) stop();
  });
  leave_if_done();
}

/// Sent messages arrive; then this rank says that it goes, and waits until the others have heard it.
void TcpWorld::leave_if_done() {
  if (!leaving_) return;
  const auto waits = [](const auto& queue) { return !queue.second.empty(); };
  if (!said_bye_ && (!flying_.empty() || std::any_of(sends_.begin(), sends_.end(), waits))) return;
  if (!std::exchange(said_bye_, true))
    for (const auto& [peer, link] : links_) {
      link->write({TcpKind::bye, 0, 0, ""});
      link->shut_down();
    }
  const auto open = [](const auto& link) { return !link.second->closed(); };
  if (std::none_of(links_.begin(), links_.end(), open)) stop();
}

void TcpWorld::stop() noexcept {
  for (const auto& [peer, link] : links_) link->close();
  if (leaving_) leaving_->cancel();
  work_.reset();
  io_.stop();
}

}  // namespace millrace::detail
