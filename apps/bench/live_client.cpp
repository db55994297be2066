// SPDX-License-Identifier: Apache-2.0
#include <bench/live_client.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/control.h>
#include <millrace/streaming/transport/connection.h>
#include <millrace/tensor/error.h>

namespace millrace::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double rate = 16000, window = 512;
constexpr double grace = 0.5;           // seconds in which the last replies may come
constexpr std::size_t connecting = 64;  // at once

Clock::duration duration_of(double seconds) { return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)); }

struct Member {
  std::unique_ptr<MessageStream> stream;
  double phase = 0;         ///< seconds
  std::int64_t chunks = 0;  ///< due so far
  std::int64_t owed = 0;    ///< due, and not yet on their way
  bool writing = false;
};

/// All on one io_context, which one thread runs: the members never move.
class Run {
 public:
  explicit Run(const Crowd& crowd)
      : crowd_(crowd), url_(parse_stream_url(crowd.url)), timer_(context_), period_(static_cast<double>(crowd.windows) * window / rate) {
    std::mt19937_64 random(11);
    std::uniform_real_distribution<double> phase(0, period_);
    for (std::int64_t i = 0; i < crowd.sessions; ++i) {
      members_.push_back(std::make_unique<Member>());
      members_.back()->phase = phase(random);
    }
    std::sort(members_.begin(), members_.end(), [](const auto& a, const auto& b) { return a->phase < b->phase; });
    std::normal_distribution<float> noise(0, 2000);
    for (std::string& chunk : chunks_) {
      std::vector<std::int16_t> samples(static_cast<std::size_t>(crowd.windows) * static_cast<std::size_t>(window));
      for (std::int16_t& sample : samples) sample = static_cast<std::int16_t>(std::clamp(noise(random), -32768.0f, 32767.0f));
      chunk.assign(reinterpret_cast<const char*>(samples.data()), samples.size() * sizeof(std::int16_t));
    }
  }

  CrowdSaw run() {
    for (std::size_t i = 0; i < std::min(connecting, members_.size()); ++i) connect_next();
    context_.run();
    if (!error_.empty()) throw IoError("live client: " + error_);
    return saw();
  }

 private:
  void fail(const std::string& what) {
    if (!over_ && error_.empty()) error_ = what;
    context_.stop();
  }

  void connect_next() {
    if (next_ == members_.size()) return;
    Member& member = *members_[next_++];
    async_connect_stream(context_.get_executor(), url_, Limits(), [this, &member](error_code error, std::unique_ptr<MessageStream> stream) {
      if (error) return fail("cannot connect: " + error.message());
      member.stream = std::move(stream);
      StartMessage start;
      start.reply = ReplyFormat::binary;
      member.stream->async_write(text_message(to_json(start)), [this, &member](error_code failed) {
        if (failed) return fail("cannot start: " + failed.message());
        read(member);
      });
    });
  }

  void read(Member& member) {
    member.stream->async_read([this, &member](error_code error, const Message& message) {
      if (error) return fail("a session ended: " + error.message());
      if (message.kind == MessageKind::binary)
        replied(member, message);
      else if (++started_ <= members_.size() && message.payload.find("\"started\"") != std::string::npos)
        begin_when_all_started();
      else
        return fail("the server said " + message.payload);
      read(member);
    });
  }

  void begin_when_all_started() {
    connect_next();
    if (started_ < members_.size()) return;
    fmt::print("started\n");
    std::fflush(stdout);
    begin_ = Clock::now() + std::chrono::milliseconds(50);
    pump();
  }

  double due_of(const Member& member, std::int64_t chunk) const { return member.phase + static_cast<double>(chunk) * period_; }
  double end() const { return crowd_.warm_up + crowd_.seconds; }

  /// Sends what is due; sleeps until more is. Members are in the order of their phases, so their chunks are due by turns.
  void pump() {
    const double now = std::chrono::duration<double>(Clock::now() - begin_).count();
    for (; true; due_ = (due_ + 1) % members_.size()) {
      Member& member = *members_[due_];
      const double due = due_of(member, member.chunks);
      if (due >= end()) return wait(end() + grace, true);
      if (due > now) return wait(due, false);
      ++member.chunks;
      ++member.owed;
      if (due >= crowd_.warm_up) expected_ += crowd_.windows;
      write(member);
    }
  }

  void wait(double until, bool last) {
    timer_.expires_at(begin_ + duration_of(until));
    timer_.async_wait([this, last](error_code error) {
      if (error) return;
      if (!last) return pump();
      over_ = true;
      context_.stop();
    });
  }

  void write(Member& member) {
    if (member.writing || member.owed == 0) return;
    member.writing = true;
    --member.owed;
    chunk_ = (chunk_ + 1) % std::size(chunks_);
    member.stream->async_write(binary_message(chunks_[chunk_]), [this, &member](error_code error) {
      if (error) return fail("cannot send: " + error.message());
      member.writing = false;
      write(member);
    });
  }

  void replied(Member& member, const Message& message) {
    const double now = std::chrono::duration<double>(Clock::now() - begin_).count();
    std::uint64_t seq = 0;
    std::uint32_t steps = 0;
    if (message.payload.size() < sizeof seq + sizeof steps) return fail("a reply of " + std::to_string(message.payload.size()) + " bytes");
    std::memcpy(&seq, message.payload.data(), sizeof seq);
    std::memcpy(&steps, message.payload.data() + sizeof seq, sizeof steps);
    replies_ += steps;
    for (std::uint64_t step = seq; step < seq + steps; ++step) {
      const double due = due_of(member, static_cast<std::int64_t>(step) / crowd_.windows);
      if (due >= crowd_.warm_up) lags_.push_back(1000 * (now - due));
    }
  }

  CrowdSaw saw() {
    CrowdSaw seen;
    seen.expected = expected_;
    seen.replies = replies_;
    seen.received = static_cast<std::int64_t>(lags_.size());
    lags_.resize(static_cast<std::size_t>(std::max(expected_, seen.received)), HUGE_VAL);
    std::sort(lags_.begin(), lags_.end());
    const auto at = [this](double share) {
      return lags_.empty() ? HUGE_VAL : lags_[static_cast<std::size_t>(share * static_cast<double>(lags_.size() - 1))];
    };
    seen.p50_ms = at(0.5);
    seen.p99_ms = at(0.99);
    return seen;
  }

  Crowd crowd_;
  StreamUrl url_;
  asio::io_context context_{1};
  asio::steady_timer timer_;
  double period_;
  std::vector<std::unique_ptr<Member>> members_;
  std::string chunks_[16];
  std::size_t chunk_ = 0;
  std::size_t next_ = 0;  // to connect
  std::size_t started_ = 0;
  std::size_t due_ = 0;  // the member whose chunk is due next
  Clock::time_point begin_;
  std::int64_t expected_ = 0;
  std::int64_t replies_ = 0;
  std::vector<double> lags_;
  bool over_ = false;
  std::string error_;
};

}  // namespace

CrowdSaw run_crowd(const Crowd& crowd) { return Run(crowd).run(); }

int live_client_command(const Crowd& crowd) {
  const CrowdSaw saw = run_crowd(crowd);
  fmt::print("saw {:.3f} {:.3f} {} {} {}\n", saw.p50_ms, saw.p99_ms, saw.expected, saw.received, saw.replies);
  return 0;
}

}  // namespace millrace::bench
