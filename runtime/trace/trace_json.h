// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/trace/tracer.h>

namespace millrace {

/// Chrome's and Perfetto's JSON, event by event in the order in which the events end. Spans of one track that overlap go to threads of their
/// own, so that those of one thread lie beside or within each other, as viewers want it. Memory does not grow with the number of
/// events. Not thread-safe.
class TraceJson {
 public:
  /// Appends the head of the JSON to `out`.
  static void begin(std::string& out) { out += "{\"traceEvents\":["; }
  /// Appends an event. `tracks` are the names of tracks from 1 on.
  void add(const Tracer::Event& event, const std::vector<std::string>& tracks, std::string& out);
  /// Appends the tail of the JSON.
  static void end(std::string& out) { out += "\n],\"displayTimeUnit\":\"ns\"}\n"; }

 private:
  struct Span {
    std::int64_t begin;
    std::int64_t end;
  };
  /// A thread of the picture: its outermost spans, in order. Old ones are one.
  struct Lane {
    std::vector<Span> outermost;
  };
  using LaneKey = std::pair<std::uint64_t, std::size_t>;  // a track, and which of its threads

  std::size_t place(const Tracer::Event& event);
  static bool take(Lane& lane, Span span);
  std::size_t thread(const LaneKey& lane, const std::vector<std::string>& tracks, std::string& out);

  std::map<std::uint64_t, std::vector<Lane>> lanes_;
  std::map<LaneKey, std::size_t> threads_;
  const char* comma_ = "\n";
};

}  // namespace millrace
