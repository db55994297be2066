// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/training/weights.h>

namespace millrace::training {

/// The state from which a job goes on as if it had never stopped.
struct Checkpoint {
  std::int64_t step = 0;                      ///< ≥ 0; names the checkpoint
  std::map<std::string, std::string> fields;  ///< seed, place in the data, optimizer, world size, build, …: text by name
  std::map<std::string, Tensors> tensors;     ///< file by name, without ending: "weights", "optimizer", …
  std::map<std::string, std::string> texts;   ///< whole files of text by name: "metrics.jsonl"

  /// The field. ArgumentError names one that is missing.
  const std::string& field(const std::string& name) const;
  /// The field as an integer. ParseError when it is none.
  std::int64_t integer(const std::string& name) const;
};

/// A folder of checkpoints of one job, which a crash at any instant leaves with a whole one, once there was one.
///
///     FOLDER/step-120/  manifest.json, weights.safetensors, optimizer.safetensors, …
///     FOLDER/step-140/  the newest; the two newest are kept
///
/// The manifest holds step and fields, bytes and SHA-256 of each other file, and in its last line the SHA-256 of what stands before. Not thread-safe;
/// one process at a time.
class CheckpointFolder {
 public:
  /// Nothing is made or read yet.
  explicit CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& path() const noexcept { return folder_; }

  /// Writes FOLDER/step-N.tmp/, each file and last the manifest, with fsync of each; fsync of that folder; rename to FOLDER/step-N; fsync of
  /// FOLDER. Returns when all that has reached the disk; this one and the one before it are left then, and those of later steps, behind which
  /// a job went back, are gone too. IoError names file and cause: what was
  /// there before is still there, and the next `save` begins with new files. ArgumentError for a step below 0, a file name that is no word, a text that is named like tensors, a
  /// field that is no UTF-8: nothing is written then.
  void save(const Checkpoint& checkpoint);

  /// The newest one that is whole; none: there is none. `skipped` gets a line for each newer one that is not, with the reason. IoError, with
  /// these lines, when there are some and none is whole.
  std::optional<Checkpoint> load(std::vector<std::string>* skipped = nullptr) const;
  /// One of them, verified: ParseError or IoError says what is wrong with it.
  Checkpoint load(std::int64_t step) const;
  /// The steps of those that are there, whole or not, ascending.
  std::vector<std::int64_t> steps() const;
  /// Removes all of them.
  void clear();

 private:
  std::filesystem::path at(std::int64_t step) const;
  std::filesystem::path found_at(std::int64_t step) const;
  static void check(const Checkpoint& checkpoint);
  void write_all(const std::filesystem::path& temporary, const Checkpoint& checkpoint) const;
  void remove_leftovers() const;

  std::filesystem::path folder_;
};

}  // namespace millrace::training
