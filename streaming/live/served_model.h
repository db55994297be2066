// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/program/program.h>
#include <millrace/streaming/config/stream_config.h>
#include <millrace/streaming/protocol/control.h>
#include <millrace/streaming/protocol/row_assembler.h>

namespace millrace {

struct Learning;

/// A program as a server offers it: its recurrence, and what the TOML beside it says of audio, states and labels. Immutable, shared.
class ServedModel {
 public:
  /// `states` ("h" → "hn") come before those of the config. `constants`: inputs that never change. `rows`: extents of one row of a live
  /// input, where the program leaves them open and the config has no audio for it. `defaults`: of RecurrenceOptions. UnsupportedError, ArgumentError name what does not fit.
  ServedModel(const Program& program, StreamConfig config, std::vector<std::pair<std::string, std::string>> states = {},
              std::map<std::string, Tensor> constants = {}, std::map<std::string, DDim> rows = {},
              std::map<std::string, Tensor> defaults = {});

  const std::shared_ptr<const Recurrence>& recurrence() const noexcept { return recurrence_; }
  const StreamConfig& config() const noexcept { return config_; }
  const std::vector<PortSpec>& inputs() const noexcept { return inputs_; }
  const std::vector<PortSpec>& outputs() const noexcept { return outputs_; }
  /// The numbers of all outputs: those of a step, then those of each level, from the inside.
  const std::vector<std::size_t>& all_outputs() const noexcept { return all_outputs_; }
  /// The learning of its sessions; null: they do not.
  const std::shared_ptr<const Learning>& learning() const noexcept { return learning_; }
  /// Bytes that a saved state may hold of the audio beside rows.
  std::size_t saved_audio_bytes() const noexcept;
  /// The audio settings and labels as one text; equal settings give equal texts. Empty without any.
  std::string identity() const;
  /// The kind of the rows of `inputs()[input]`.
  const std::shared_ptr<const RowAssembler::Kind>& rows_of(std::size_t input) const { return rows_.at(input); }

 private:
  StreamConfig config_;
  std::shared_ptr<const Recurrence> recurrence_;
  std::shared_ptr<const Learning> learning_;
  std::vector<PortSpec> inputs_;
  std::vector<PortSpec> outputs_;
  std::vector<std::size_t> all_outputs_;
  std::vector<std::shared_ptr<const RowAssembler::Kind>> rows_;
};

}  // namespace millrace
