// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/trace/tracer.h>

#include <fmt/format.h>

#include <millrace/runtime/import/file.h>

namespace millrace {
namespace {

std::string quoted(const std::string& text) {
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

std::uint64_t Tracer::add_track(std::string name) {
  const std::lock_guard lock(mutex_);
  tracks_.push_back(std::move(name));
  return tracks_.size();
}

void Tracer::span(std::string category, std::string name, std::uint64_t track, std::int64_t step, std::int64_t begin_ns) {
  const std::int64_t end = now();
  const std::lock_guard lock(mutex_);
  events_.push_back({std::move(category), std::move(name), track, step, begin_ns, end, false});
}

void Tracer::instant(std::string category, std::string name, std::uint64_t track, std::int64_t step) {
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
  const std::lock_guard lock(mutex_);
  std::string out = "{\"traceEvents\":[\n";
  const char* comma = "";
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    out += fmt::format("{}{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}", comma, i + 1,
                       quoted(tracks_[i]));
    comma = ",\n";
  }
  for (const Event& event : events_) {
    out += fmt::format("{}{{\"ph\":\"{}\",\"pid\":1,\"tid\":{},\"cat\":{},\"name\":{},\"ts\":{:.3f}", comma, event.instant ? "i" : "X",
                       event.track, quoted(event.category), quoted(event.name), static_cast<double>(event.begin_ns) / 1000.0);
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
