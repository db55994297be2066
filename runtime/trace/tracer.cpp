// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/trace/tracer.h>

#include <algorithm>
#include <exception>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/trace/trace_json.h>
#include <millrace/tensor/error.h>

namespace millrace {

/// Bytes that go to the file as one piece.
constexpr std::size_t piece = std::size_t{1} << 16;

/// The file of a trace, which takes events as they end.
class Tracer::File {
 public:
  explicit File(const TracerOptions& options) : file_(options.file), most_(options.most_bytes) { TraceJson::begin(text_); }

  // Events end in destructors: a failure is told at the end.
  void add(const Event& event, const std::vector<std::string>& tracks) noexcept {
    try {
      if (error_ != nullptr) return;
      if (written_ + text_.size() >= most_) {
        ++left_out_;
        return;
      }
      json_.add(event, tracks, text_);
      if (text_.size() >= piece) flush();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  std::uint64_t finish() {
    if (error_ != nullptr) std::rethrow_exception(error_);
    TraceJson::end(text_);
    flush();
    file_.commit();
    return left_out_;
  }

 private:
  void flush() {
    file_.write(text_);
    written_ += text_.size();
    text_.clear();
  }

  AtomicFile file_;
  const std::uint64_t most_;
  TraceJson json_;
  std::string text_;
  std::uint64_t written_ = 0;
  std::uint64_t left_out_ = 0;
  std::exception_ptr error_;
};

Tracer::Tracer(TracerOptions options)
    : options_(std::move(options)),
      file_(options_.record && !options_.file.empty() ? std::make_unique<File>(options_) : std::unique_ptr<File>()) {}
Tracer::~Tracer() = default;

void Tracer::keep(Event event) {
  if (file_ != nullptr)
    file_->add(event, tracks_);
  else
    events_.push_back(std::move(event));
}

std::uint64_t Tracer::finish() {
  const std::lock_guard lock(mutex_);
  if (file_ == nullptr) throw ArgumentError("tracer: expected one that writes a file, found one that keeps its events in memory");
  return file_->finish();
}

std::uint64_t Tracer::add_track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find(tracks_.begin(), tracks_.end(), name);
  if (at != tracks_.end()) return static_cast<std::uint64_t>(at - tracks_.begin()) + 1;
  tracks_.push_back(name);
  return tracks_.size();
}

void Tracer::span(std::string category, std::string name, std::uint64_t track, std::int64_t step, std::int64_t begin_ns) {
  if (!records()) return;
  const std::lock_guard lock(mutex_);
  keep({std::move(category), std::move(name), track, step, begin_ns, now(), false});  // in the order of their ends
}

void Tracer::instant(std::string category, std::string name, std::uint64_t track, std::int64_t step) {
  if (ranges() != nullptr) ranges()->mark(category.c_str(), name, step);
  if (!records()) return;
  const std::lock_guard lock(mutex_);
  const std::int64_t at = now();
  keep({std::move(category), std::move(name), track, step, at, at, true});
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
  std::string out;
  TraceJson::begin(out);
  TraceJson json;
  for (const Event& event : events_) json.add(event, tracks_, out);
  TraceJson::end(out);
  return out;
}

void Tracer::save(const std::filesystem::path& path) const { write_file(path, to_json()); }

}  // namespace millrace
