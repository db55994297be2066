// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/trace/trace_json.h>

#include <fmt/format.h>

namespace millrace {
namespace {

/// Outermost spans of a thread that are remembered one by one.
constexpr std::size_t most_outermost = 1024;

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

}  // namespace

void TraceJson::add(const Tracer::Event& event, const std::vector<std::string>& tracks, std::string& out) {
  const std::size_t at = thread({event.track, place(event)}, tracks, out);
  out += fmt::format("{}{{\"ph\":\"{}\",\"pid\":1,\"tid\":{},\"cat\":{},\"name\":{},\"ts\":{:.3f}", std::exchange(comma_, ",\n"),
                     event.instant ? "i" : "X", at, json_string(event.category), json_string(event.name),
                     static_cast<double>(event.begin_ns) / 1000.0);
  if (event.instant)
    out += ",\"s\":\"t\"";
  else
    out += fmt::format(",\"dur\":{:.3f}", static_cast<double>(event.end_ns - event.begin_ns) / 1000.0);
  if (event.step >= 0) out += fmt::format(",\"args\":{{\"step\":{}}}", event.step);
  out += "}";
}

std::size_t TraceJson::thread(const LaneKey& lane, const std::vector<std::string>& tracks, std::string& out) {
  const auto [found, fresh] = threads_.emplace(lane, threads_.size() + 1);
  if (!fresh) return found->second;
  const auto [track, number] = lane;
  std::string name = track == 0 || track > tracks.size() ? fmt::format("track {}", track) : tracks[track - 1];
  if (number > 0) name += fmt::format(", {}", number + 1);
  out += fmt::format("{}{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}",
                     std::exchange(comma_, ",\n"), found->second, json_string(name));
  return found->second;
}

std::size_t TraceJson::place(const Tracer::Event& event) {
  if (event.instant) return 0;
  std::vector<Lane>& lanes = lanes_[event.track];
  for (std::size_t row = 0;; ++row) {
    if (row == lanes.size()) lanes.emplace_back();
    if (take(lanes[row], {event.begin_ns, event.end_ns})) return row;
  }
}

// Everything here ended before `span` does: it may lie around spans, or behind them, but must not begin in the middle of one.
bool TraceJson::take(Lane& lane, Span span) {
  std::vector<Span>& outermost = lane.outermost;
  std::size_t kept = outermost.size();
  while (kept > 0 && outermost[kept - 1].begin >= span.begin) --kept;
  if (kept > 0 && outermost[kept - 1].end > span.begin) return false;
  outermost.resize(kept);
  outermost.push_back(span);
  if (outermost.size() <= most_outermost) return true;
  const auto old = outermost.begin() + static_cast<std::ptrdiff_t>(most_outermost / 2);
  outermost.front().end = old->end;
  outermost.erase(outermost.begin() + 1, old + 1);
  return true;
}

}  // namespace millrace
