// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/served_model.h>

#include <algorithm>

#include <fmt/format.h>

#include <millrace/streaming/audio/resampler.h>
#include <millrace/streaming/live/live_learner.h>

namespace millrace {

ServedModel::ServedModel(const Program& program, StreamConfig config, std::vector<std::pair<std::string, std::string>> states,
                         std::map<std::string, Tensor> constants, std::map<std::string, DDim> rows, std::map<std::string, Tensor> defaults)
    : config_(std::move(config)) {
  RecurrenceOptions options;
  options.states = std::move(states);
  if (options.states.empty()) options.states = config_.states;
  options.constants = std::move(constants);
  options.rows = std::move(rows);
  options.defaults = std::move(defaults);
  if (config_.audio) options.rows.insert_or_assign(config_.audio->input, DDim{config_.audio->row_samples()});
  recurrence_ = std::make_shared<const Recurrence>(make_recurrence(program, options));
  if (config_.learn) {
    learning_ = std::make_shared<const Learning>(make_learning(program, *config_.learn, options));
    const auto& kept = config_.learn->states;
    for (const Recurrence::Given& given : recurrence_->given)
      if (std::none_of(kept.begin(), kept.end(), [&](const auto& state) { return state.first == given.name; }))
        throw ArgumentError(fmt::format("[learn]: expected the output that follows '{}' in [learn.state], found none", given.name));
    for (const Recurrence::Input& input : recurrence_->inputs)  // of a graph that is one step: no session would ever have a whole row
      if (std::any_of(kept.begin(), kept.end(), [&](const auto& state) { return state.first == input.name; }))
        throw UnsupportedError(
            fmt::format("[learn]: expected a program over sequences, which begins with the state '{0}', found a graph that takes a row of "
                        "'{0}' in each step",
                        input.name));
  }
  for (const Recurrence::Input& input : recurrence_->inputs) {
    PortSpec port{input.name, input.dtype, input.row, {}, {}, {}};
    if (config_.audio && config_.audio->input == input.name) {
      if (input.dtype != DType::f32 || input.row != DDim{config_.audio->row_samples()})
        throw ArgumentError(fmt::format("audio input '{}': expected rows of f32[{}], found {}{}", input.name, config_.audio->row_samples(),
                                        name_of(input.dtype), input.row.to_string()));
      port.audio = AudioFormat{SampleFormat::s16, config_.audio->rate, 1};
      port.step_seconds = config_.audio->step_seconds();
    }
    inputs_.push_back(std::move(port));
  }
  for (const Recurrence::Output& output : recurrence_->outputs) outputs_.push_back({output.name, output.dtype, output.row, {}, {}, {}});
  for (const Recurrence::Boundary& boundary : recurrence_->boundaries) {
    for (const Recurrence::Input& input : boundary.inputs) inputs_.push_back({input.name, input.dtype, input.row, {}, {}, boundary.level});
    for (const Recurrence::Output& output : boundary.outputs)
      outputs_.push_back({output.name, output.dtype, output.row, {}, {}, boundary.level});
  }
  for (int level = recurrence_->levels; level > 0; --level)
    for (std::size_t output = 0; output < outputs_.size(); ++output)
      if (outputs_[output].level.value_or(recurrence_->levels) == level) all_outputs_.push_back(output);
  for (const PortSpec& port : inputs_) rows_.push_back(std::make_shared<const RowAssembler::Kind>(port.name, port.dtype, port.shape));
  if (config_.audio && recurrence_->levels > 1)
    throw UnsupportedError(fmt::format("audio input '{}': expected a program without inner sequences, found {} levels of LoD",
                                       config_.audio->input, recurrence_->levels));
  const auto port_of = [](const std::vector<PortSpec>& ports, const std::string& name) {
    return std::find_if(ports.begin(), ports.end(), [&](const PortSpec& port) { return port.name == name; });
  };
  if (config_.audio && port_of(inputs_, config_.audio->input) == inputs_.end())
    throw ArgumentError(fmt::format("audio input '{}': the program has no live input of that name", config_.audio->input));
  for (const LabelConfig& label : config_.labels) {
    const auto output = port_of(outputs_, label.output);
    if (output == outputs_.end())
      throw ArgumentError(fmt::format("label '{}': the program has no live output '{}'", label.name, label.output));
    const auto elements = static_cast<std::size_t>(output->shape.elements());
    if (label.index >= elements)
      throw ArgumentError(fmt::format("label '{}': expected an index below {}, the elements of a row of '{}', found {}", label.name,
                                      elements, label.output, label.index));
  }
}

std::size_t ServedModel::saved_audio_bytes() const noexcept { return config_.audio ? Resampler::most_saved_bytes : 0; }

std::string ServedModel::identity() const {
  std::string text;
  if (const auto& audio = config_.audio)
    text += fmt::format("audio {} {} {} {} {} {}\n", audio->input, audio->rate, audio->window, audio->hop, audio->context,
                        static_cast<int>(audio->quality));
  for (const LabelConfig& label : config_.labels)
    text += fmt::format("label {} {} {} {} {} {} {} {}\n", label.name, label.output, label.index, label.enter, label.leave, label.min_on,
                        label.min_off, label.pad);
  return text;
}

}  // namespace millrace
