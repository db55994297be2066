// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/trace/tracer.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include <millrace/runtime/files/file.h>

namespace millrace {
namespace {

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';
    else
      out += c;
  }
  return out + "\"";
}

/// Spreads each track over threads of the picture, so that the spans of one thread lie beside or within each other, as viewers want it:
/// iterations of a loop that overlap get rows of their own.
class Lanes {
 public:
  using Lane = std::pair<std::uint64_t, std::size_t>;  // a track, and which of its rows

  explicit Lanes(const std::vector<Tracer::Event>& events) : lane_of_(events.size()) {
    std::vector<std::size_t> order(events.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {  // what is around comes first, and it ended later
      return std::tuple(events[a].begin_ns, -events[a].end_ns, b) < std::tuple(events[b].begin_ns, -events[b].end_ns, a);
    });
    for (const std::size_t event : order) lane_of_[event] = {events[event].track, place(events[event])};
    for (const Lane& lane : lane_of_) threads_.emplace(lane, 0);
    std::size_t number = 0;
    for (auto& [lane, thread] : threads_) thread = ++number;
  }
  std::size_t thread(std::size_t event) const { return threads_.at(lane_of_[event]); }
  const std::map<Lane, std::size_t>& threads() const noexcept { return threads_; }

 private:
  std::size_t place(const Tracer::Event& event) {
    if (event.instant) return 0;
    std::vector<std::vector<std::int64_t>>& open = open_[event.track];  // ends of the spans around, row by row
    for (std::size_t row = 0;; ++row) {
      if (row == open.size()) open.emplace_back();
      std::vector<std::int64_t>& around = open[row];
      while (!around.empty() && around.back() <= event.begin_ns) around.pop_back();
      if (!around.empty() && around.back() < event.end_ns) continue;
      around.push_back(event.end_ns);
      return row;
    }
  }

  std::vector<Lane> lane_of_;
  std::map<Lane, std::size_t> threads_;
  std::map<std::uint64_t, std::vector<std::vector<std::int64_t>>> open_;
};

}  // namespace

std::uint64_t Tracer::add_track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find(tracks_.begin(), tracks_.end(), name);
  if (at != tracks_.end()) return static_cast<std::uint64_t>(at - tracks_.begin()) + 1;
  tracks_.push_back(name);
  return tracks_.size();
}

void Tracer::span(std::string category, std::string name, std::uint64_t track, std::int64_t step, std::int64_t begin_ns) {
  if (!records()) return;
  const std::int64_t end = now();
  const std::lock_guard lock(mutex_);
  events_.push_back({std::move(category), std::move(name), track, step, begin_ns, end, false});
}

void Tracer::instant(std::string category, std::string name, std::uint64_t track, std::int64_t step) {
  if (ranges() != nullptr) ranges()->mark(category.c_str(), name, step);
  if (!records()) return;
  const std::int64_t at = now();
  const std::lock_guard lock(mutex_);
  events_.push_back({std::move(category), std::move(name), track, step, at, at, true});
}

std::vector<Tracer::Event> Tracer::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::vector<Tracer::Event> Tracer::events(const std::string& category) const {
  std::vector<Event> found;
  for (Event& event : events())
    if (event.category == category) found.push_back(std::move(event));
  return found;
}

std::string Tracer::to_json() const {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    names = tracks_;
  }
  const std::vector<Event> all = events();
  Lanes lanes(all);
  std::string out = "{\"traceEvents\":[";
  const char* comma = "\n";
  for (const auto& [lane, thread] : lanes.threads()) {
    const auto [track, number] = lane;
    std::string name = track == 0 || track > names.size() ? fmt::format("track {}", track) : names[track - 1];
    if (number > 0) name += fmt::format(", {}", number + 1);
    out += fmt::format("{}{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}", comma, thread,
                       json_string(name));
    comma = ",\n";
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Event& event = all[i];
    out += fmt::format("{}{{\"ph\":\"{}\",\"pid\":1,\"tid\":{},\"cat\":{},\"name\":{},\"ts\":{:.3f}", comma, event.instant ? "i" : "X",
                       lanes.thread(i), json_string(event.category), json_string(event.name), static_cast<double>(event.begin_ns) / 1000.0);
    if (event.instant)
      out += ",\"s\":\"t\"";
    else
      out += fmt::format(",\"dur\":{:.3f}", static_cast<double>(event.end_ns - event.begin_ns) / 1000.0);
    if (event.step >= 0) out += fmt::format(",\"args\":{{\"step\":{}}}", event.step);
    out += "}";
    comma = ",\n";
  }
  return out + "\n],\"displayTimeUnit\":\"ns\"}\n";
}

void Tracer::save(const std::filesystem::path& path) const { write_file(path, to_json()); }

}  // namespace millrace
