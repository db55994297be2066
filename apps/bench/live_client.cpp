// SPDX-License-Identifier: Apache-2.0
#include <bench/live_client.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string_view>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <bench/library/measure.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/connection.h>
#include <millrace/tensor/error.h>

namespace millrace::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double grace = 0.5;           // seconds in which the last replies may come
constexpr std::size_t connecting = 64;  // at once

Clock::duration duration_of(double seconds) { return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)); }

/// The steps that a reply answers.
struct Answered {
  std::uint64_t seq = 0;
  std::uint32_t steps = 1;
};

/// None: it is no result. Values are not looked at, so that clients cost less than the server.
std::optional<Answered> answered_by(const Message& reply) {
  Answered made;
  if (reply.kind == MessageKind::binary) {
    if (reply.payload.size() < sizeof made.seq + sizeof made.steps) return std::nullopt;
    std::memcpy(&made.seq, reply.payload.data(), sizeof made.seq);
    std::memcpy(&made.steps, reply.payload.data() + sizeof made.seq, sizeof made.steps);
    return made;
  }
  constexpr std::string_view head = "{\"type\":\"result\",\"seq\":";
  if (!reply.payload.starts_with(head)) return std::nullopt;
  const char* const end = reply.payload.data() + reply.payload.size();
  if (std::from_chars(reply.payload.data() + head.size(), end, made.seq).ec != std::errc()) return std::nullopt;
  return made;
}

template <class T>
std::string noise_of(std::int64_t elements, std::mt19937_64& random) {
  constexpr bool sound = std::is_same_v<T, std::int16_t>;
  std::normal_distribution<float> noise(0, sound ? 2000 : 1);
  std::vector<T> made(static_cast<std::size_t>(elements));
  for (T& element : made) element = static_cast<T>(sound ? std::clamp(noise(random), -32768.0f, 32767.0f) : noise(random));
  return {reinterpret_cast<const char*>(made.data()), made.size() * sizeof(T)};
}

struct Member {
  std::unique_ptr<MessageStream> stream;
  double phase = 0;            ///< seconds
  std::int64_t messages = 0;   ///< due so far
  std::int64_t owed = 0;       ///< due, and not yet on their way
  std::uint64_t answered = 0;  ///< steps
  bool writing = false;
  bool started = false;
  bool failed = false;
};

/// All on one io_context, which one thread runs: the members never move.
class Run {
 public:
  explicit Run(const Crowd& crowd)
      : crowd_(crowd), url_(parse_stream_url(crowd.url)), timer_(context_), period_(static_cast<double>(crowd.steps) * crowd.step_seconds) {
    std::mt19937_64 random(11);
    std::uniform_real_distribution<double> phase(0, period_);
    for (std::int64_t i = 0; i < crowd.sessions; ++i) {
      members_.push_back(std::make_unique<Member>());
      members_.back()->phase = phase(random);
    }
    std::sort(members_.begin(), members_.end(), [](const auto& a, const auto& b) { return a->phase < b->phase; });
    const std::int64_t elements = crowd.steps * crowd.step_elements;
    for (std::string& payload : payloads_)
      payload = crowd.noise == Noise::s16 ? noise_of<std::int16_t>(elements, random) : noise_of<float>(elements, random);
  }

  CrowdSaw run() {
    for (std::size_t i = 0; i < std::min(connecting, members_.size()); ++i) connect_next();
    context_.run();
    return saw();
  }

 private:
  /// Counted once for each member, which sends no more; the others go on.
  void fail(Member& member, const std::string& what) {
    if (over_ || std::exchange(member.failed, true)) return;
    count_error(what);
    if (member.stream) member.stream->abort();
    if (!member.started) one_began();
  }

  void count_error(const std::string& what) {
    if (seen_.errors++ == 0) seen_.why = what;
  }

  void connect_next() {
    if (next_ == members_.size()) return;
    Member& member = *members_[next_++];
    async_connect_stream(context_.get_executor(), url_, Limits(), [this, &member](error_code error, std::unique_ptr<MessageStream> stream) {
      if (error) return fail(member, "cannot connect: " + error.message());
      member.stream = std::move(stream);
      StartMessage start;
      start.reply = crowd_.reply;
      member.stream->async_write(text_message(to_json(start)), [this, &member](error_code failed) {
        if (failed) return fail(member, "cannot start: " + failed.message());
        read(member);
      });
    });
  }

  void read(Member& member) {
    member.stream->async_read([this, &member](error_code error, const Message& message) {
      if (error) return fail(member, "a session ended: " + error.message());
      if (!member.started) {
        if (message.payload.find("\"started\"") == std::string::npos) return fail(member, "the server said " + message.payload);
        member.started = true;
        one_began();
      } else if (const std::optional<Answered> answered = answered_by(message)) {
        replied(member, *answered);
      } else {
        return fail(member, message.kind == MessageKind::text ? "the server said " + message.payload : "a reply of a few bytes");
      }
      read(member);
    });
  }

  void one_began() {
    connect_next();
    if (++began_ < members_.size()) return;
    fmt::print("started\n");
    std::fflush(stdout);
    begin_ = Clock::now() + std::chrono::milliseconds(50);
    used_before_ = processor_seconds();
    pump();
  }

  double due_of(const Member& member, std::int64_t message) const { return member.phase + static_cast<double>(message) * period_; }
  double end() const { return crowd_.warm_up + crowd_.seconds; }

  /// Sends what is due; sleeps until more is. Members are in the order of their phases, so their messages are due by turns.
  void pump() {
    const double now = std::chrono::duration<double>(Clock::now() - begin_).count();
    for (; true; due_ = (due_ + 1) % members_.size()) {
      Member& member = *members_[due_];
      const double due = due_of(member, member.messages);
      if (due >= end()) return wait(end() + grace, true);
      if (due > now) return wait(due, false);
      ++member.messages;
      ++member.owed;
      if (due >= crowd_.warm_up) seen_.expected += crowd_.steps;
      write(member);
    }
  }

  void wait(double until, bool last) {
    timer_.expires_at(begin_ + duration_of(until));
    timer_.async_wait([this, until, last](error_code error) {
      if (error) return;
      if (!last) return pump();
      over_ = true;
      seen_.busy = (processor_seconds() - used_before_) / until;
      context_.stop();
    });
  }

  void write(Member& member) {
    if (member.writing || member.failed || member.owed == 0) return;
    member.writing = true;
    --member.owed;
    payload_ = (payload_ + 1) % std::size(payloads_);
    member.stream->async_write(binary_message(payloads_[payload_]), [this, &member](error_code error) {
      if (error) return fail(member, "cannot send: " + error.message());
      member.writing = false;
      write(member);
    });
  }

  void replied(Member& member, const Answered& reply) {
    const double now = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (reply.seq != member.answered)
      count_error(fmt::format("expected the reply to step {}, found that to {}", member.answered, reply.seq));
    member.answered = reply.seq + reply.steps;
    seen_.replies += reply.steps;
    for (std::uint64_t step = reply.seq; step < reply.seq + reply.steps; ++step) {
      const double due = due_of(member, static_cast<std::int64_t>(step) / crowd_.steps);
      if (due >= crowd_.warm_up) lags_.push_back(1000 * (now - due));
    }
  }

  CrowdSaw saw() {
    seen_.received = static_cast<std::int64_t>(lags_.size());
    lags_.resize(static_cast<std::size_t>(std::max(seen_.expected, seen_.received)), HUGE_VAL);
    std::sort(lags_.begin(), lags_.end());
    const auto at = [this](double share) {
      return lags_.empty() ? HUGE_VAL : lags_[static_cast<std::size_t>(share * static_cast<double>(lags_.size() - 1))];
    };
    seen_.p50_ms = at(0.5);
    seen_.p99_ms = at(0.99);
    seen_.p999_ms = at(0.999);
    return seen_;
  }

  Crowd crowd_;
  StreamUrl url_;
  asio::io_context context_{1};
  asio::steady_timer timer_;
  double period_;
  std::vector<std::unique_ptr<Member>> members_;
  std::string payloads_[16];
  std::size_t payload_ = 0;
  std::size_t next_ = 0;   // to connect
  std::size_t began_ = 0;  // started, or failed before
  std::size_t due_ = 0;    // the member whose message is due next
  Clock::time_point begin_;
  CrowdSaw seen_;
  std::vector<double> lags_;
  double used_before_ = 0;  // seconds of the processor, before it begins
  bool over_ = false;
};

}  // namespace

CrowdSaw run_crowd(const Crowd& crowd) { return Run(crowd).run(); }

std::vector<std::string> words_of(const Crowd& crowd) {
  return {crowd.url,
          std::to_string(crowd.sessions),
          crowd.noise == Noise::s16 ? "s16" : "f32",
          std::to_string(crowd.step_elements),
          std::to_string(crowd.steps),
          fmt::format("{}", crowd.step_seconds),
          std::string(name_of(crowd.reply)),
          fmt::format("{}", crowd.warm_up),
          fmt::format("{}", crowd.seconds)};
}

Crowd crowd_of(const std::vector<std::string>& words) {
  Crowd crowd;
  crowd.url = words.at(0);
  crowd.sessions = std::stoll(words.at(1));
  crowd.noise = words.at(2) == "s16" ? Noise::s16 : Noise::f32;
  crowd.step_elements = std::stoll(words.at(3));
  crowd.steps = std::stoll(words.at(4));
  crowd.step_seconds = std::stod(words.at(5));
  crowd.reply = words.at(6) == "json" ? ReplyFormat::json : ReplyFormat::binary;
  crowd.warm_up = std::stod(words.at(7));
  crowd.seconds = std::stod(words.at(8));
  return crowd;
}

std::string line_of(const CrowdSaw& saw) {
  return fmt::format("saw {:.3f} {:.3f} {:.3f} {} {} {} {:.3f} {} {}", saw.p50_ms, saw.p99_ms, saw.p999_ms, saw.expected, saw.received,
                     saw.replies, saw.busy, saw.errors, saw.why);
}

CrowdSaw saw_of(const std::string& line) {
  CrowdSaw saw;
  long long expected = 0, received = 0, replies = 0, errors = 0;
  int read = 0;
  if (std::sscanf(line.c_str(), "saw %lf %lf %lf %lld %lld %lld %lf %lld %n", &saw.p50_ms, &saw.p99_ms, &saw.p999_ms, &expected, &received,
                  &replies, &saw.busy, &errors, &read) != 8)
    throw IoError("the clients ended early");
  saw.expected = expected;
  saw.received = received;
  saw.replies = replies;
  saw.errors = errors;
  saw.why = line.substr(static_cast<std::size_t>(read));
  return saw;
}

int live_client_command(const std::vector<std::string>& words) {
  fmt::print("{}\n", line_of(run_crowd(crowd_of(words))));
  return 0;
}

}  // namespace millrace::bench
