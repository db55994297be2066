// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/streaming/live/state_key.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

MILLRACE_ERROR(SavedStateError, ParseError);  ///< a saved state that is refused, or a session that cannot be saved

/// Where a live sequence stands between two of its steps: all that it takes to go on with the same bits elsewhere.
struct SavedState {
  std::uint64_t steps = 0;              ///< answered since the start or the last reset
  std::uint64_t steps_before = 0;       ///< and before that
  int open = 0;                         ///< inner levels that are open
  std::vector<std::uint64_t> closed{};  ///< inner sequences that closed, by level; none: a program without them
  std::vector<Tensor> given{};          ///< what a reset goes back to: one per `given` of the recurrence, empty: zeros; or none
  std::vector<Tensor> states{};         ///< one per state of the recurrence
  std::vector<std::string> pending{};   ///< what each source holds (RowSource::save): parts of rows, and rows that wait for another input's
  std::vector<std::string> segmenters{};  ///< where each stands (Segmenter::save); none: no segments are wanted
};

/// States of one model as bytes that their holder can keep but not make or change. The bytes are not secret: they hold values that were made of their owner's rows.
///
///     "MRS" and a version (4 bytes) | fingerprint of the model (64 hexadecimal digits) | counts, values and pending bytes | HMAC-SHA256 (32 bytes)
///
/// Immutable; thread-safe.
class StateSeal {
 public:
  /// `also`: further settings that have to be equal where a sequence goes on, beside the recurrence. `segmenters`: the most segmenters of a state. `of_audio`: bytes
  /// that its audio may hold beside rows.
  StateSeal(std::shared_ptr<const Recurrence> recurrence, StateKey key, std::string also = {}, std::size_t segmenters = 0,
            std::size_t of_audio = 0);

  /// SavedStateError when that would be more than `most_bytes`: too many rows of one input wait for another's.
  std::string seal(const SavedState& state) const;
  /// SavedStateError: more bytes than `most_bytes`, bytes that were cut or changed or sealed by another key, another version, another model. Nothing is
  /// allocated before the bytes are known to be this key's.
  SavedState unseal(std::string_view bytes) const;
  /// The longest there is: what the recurrence carries, and of each input one row, or 64 KiB where there are several.
  std::size_t most_bytes() const noexcept { return most_bytes_; }
  /// The fingerprint of the model: SHA-256 over its programs, their weights and `also`. Computed when it is first asked for.
  const std::string& fingerprint() const;

 private:
  std::string encode(const SavedState& state) const;
  SavedState decode(std::string_view body) const;

  std::shared_ptr<const Recurrence> recurrence_;
  StateKey key_;
  std::string also_;
  std::size_t segmenters_;
  std::size_t sources_ = 0;
  std::size_t most_bytes_ = 0;
  mutable std::once_flag hashed_;
  mutable std::string fingerprint_;
};

}  // namespace millrace
