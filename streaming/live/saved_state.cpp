// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/saved_state.h>

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <millrace/runtime/files/sha256.h>
#include <millrace/runtime/program/text.h>
#include <millrace/streaming/protocol/byte_reader.h>
#include <millrace/streaming/protocol/little_endian.h>
#include <millrace/tensor/checked.h>

namespace millrace {
namespace {

constexpr std::string_view magic = "MRS";
constexpr char version = 1;
constexpr std::size_t fingerprint_bytes = 64, head_bytes = 4 + fingerprint_bytes;
constexpr std::size_t waiting_bytes = std::size_t{64} << 10;  // of an input of several
constexpr std::size_t segmenter_bytes = 64, source_bytes = 128, count_bytes = 64;

void append_piece(std::string& to, std::string_view bytes) {
  append_little_endian(to, checked_cast<std::uint32_t>(bytes.size()));
  to += bytes;
}

std::string_view raw_bytes(const Tensor& tensor) { return {static_cast<const char*>(tensor.raw()), tensor.bytes()}; }

std::string take_piece(ByteReader& reader) { return reader.text(reader.number<std::uint32_t>()); }

Tensor take_tensor(ByteReader& reader, DType dtype, const DDim& dims) {
  Tensor made(dtype, dims);
  const auto size = reader.number<std::uint32_t>();
  if (size != made.bytes()) throw ParseError(fmt::format("saved state: expected a value of {} bytes, found {}", made.bytes(), size));
  const std::span<const std::byte> bytes = reader.take(size);
  made.storage()->mark_written();
  if (size > 0) std::memcpy(made.raw_mutable(), bytes.data(), size);
  return made;
}

/// All that decides about the bits of a program.
std::string text_of(const Program& program) {
  std::string text = print(program);
  for (const auto& [var, value] : program.parameters())
    text += fmt::format("{} {} {}\n", program.var(var).name, value.dims().to_string(), sha256(raw_bytes(value)));
  return text;
}

std::size_t bytes_of(DType dtype, const DDim& dims) { return checked_mul(checked_cast<std::size_t>(dims.elements()), size_of(dtype)); }

}  // namespace

StateSeal::StateSeal(std::shared_ptr<const Recurrence> recurrence, StateKey key, std::string also, std::size_t segmenters,
                     std::size_t of_audio)
    : recurrence_(std::move(recurrence)), key_(std::move(key)), also_(std::move(also)), segmenters_(segmenters) {
  sources_ = recurrence_->inputs.size();
  for (const Recurrence::Boundary& boundary : recurrence_->boundaries) sources_ += boundary.inputs.size();
  const std::size_t waiting = sources_ > 1 ? waiting_bytes : 0;
  std::size_t most = head_bytes + count_bytes + StateKey::mac_bytes + segmenters_ * segmenter_bytes + of_audio +
                     static_cast<std::size_t>(recurrence_->levels) * sizeof(std::uint64_t);
  const auto add = [&most](std::size_t bytes) { most = checked_add(most, checked_add(bytes, sizeof(std::uint32_t))); };
  for (const Recurrence::State& state : recurrence_->states) add(bytes_of(state.dtype, state.dims));
  for (const Recurrence::Given& given : recurrence_->given) add(bytes_of(given.dtype, given.dims));
  for (const Recurrence::Input& input : recurrence_->inputs) add(bytes_of(input.dtype, input.row) + waiting + source_bytes);
  for (const Recurrence::Boundary& boundary : recurrence_->boundaries)
    for (const Recurrence::Input& input : boundary.inputs) add(bytes_of(input.dtype, input.row) + waiting + source_bytes);
  most_bytes_ = most;
}

const std::string& StateSeal::fingerprint() const {
  std::call_once(hashed_, [this] {
    std::string text = fmt::format("levels {}\n{}", recurrence_->levels, also_);
    for (const Recurrence::State& state : recurrence_->states)
      text += fmt::format("{} {} {}\n", state.name, name_of(state.dtype), state.dims.to_string());
    text += text_of(recurrence_->step) + text_of(recurrence_->start);
    for (const Recurrence::Given& given : recurrence_->given)
      if (given.otherwise.elements() > 0) text += fmt::format("{} {}\n", given.name, sha256(raw_bytes(given.otherwise)));
    for (const Recurrence::Boundary& boundary : recurrence_->boundaries) text += text_of(boundary.program);
    fingerprint_ = sha256(text);
  });
  return fingerprint_;
}

std::string StateSeal::encode(const SavedState& state) const {
  std::string bytes(magic);
  bytes += version;
  bytes += fingerprint();
  append_little_endian(bytes, state.steps);
  append_little_endian(bytes, state.steps_before);
  append_little_endian(bytes, static_cast<std::uint32_t>(state.open));
  append_little_endian(bytes, static_cast<std::uint32_t>(state.closed.size()));
  for (const std::uint64_t closed : state.closed) append_little_endian(bytes, closed);
  append_little_endian(bytes, static_cast<std::uint32_t>(state.given.size()));
  for (const Tensor& given : state.given) append_piece(bytes, given.elements() > 0 ? raw_bytes(given) : std::string_view());
  for (const Tensor& value : state.states) append_piece(bytes, raw_bytes(value));
  for (const std::string& pending : state.pending) append_piece(bytes, pending);
  append_little_endian(bytes, static_cast<std::uint32_t>(state.segmenters.size()));
  for (const std::string& segmenter : state.segmenters) append_piece(bytes, segmenter);
  return bytes;
}

std::string StateSeal::seal(const SavedState& state) const {
  std::string bytes = encode(state);
  const StateKey::Mac mac = key_.sign(bytes);
  bytes.append(mac.data(), mac.size());
  if (bytes.size() > most_bytes_)
    throw SavedStateError(fmt::format("saved state: expected at most {} bytes, found {}: too many rows of one input wait for another's",
                                      most_bytes_, bytes.size()));
  return bytes;
}

SavedState StateSeal::unseal(std::string_view bytes) const {
  if (bytes.size() > most_bytes_)
    throw SavedStateError(fmt::format("saved state: expected at most {} bytes, found {}", most_bytes_, bytes.size()));
  const std::size_t body = bytes.size() - std::min(bytes.size(), StateKey::mac_bytes);
  if (body < head_bytes || !key_.verify(bytes.substr(0, body), bytes.substr(body)))
    throw SavedStateError(
        "saved state: expected bytes that this server's key has sealed, found some that were cut, changed or sealed by another");
  if (!bytes.starts_with(magic) || bytes[magic.size()] != version)
    throw SavedStateError(fmt::format("saved state: expected version {}, found another", static_cast<int>(version)));
  if (bytes.substr(4, fingerprint_bytes) != fingerprint())
    throw SavedStateError("saved state: expected one of the model that is served, found one of another model");
  try {
    return decode(bytes.substr(0, body));
  } catch (const Error& error) {
    throw SavedStateError(error.what());
  }
}

SavedState StateSeal::decode(std::string_view body) const {
  ByteReader reader("saved state", body.substr(head_bytes));
  SavedState state;
  state.steps = reader.number<std::uint64_t>();
  state.steps_before = reader.number<std::uint64_t>();
  state.open = checked_cast<int>(reader.number<std::uint32_t>());
  const auto check = [](bool right, const char* what) {
    if (!right) throw ParseError(fmt::format("saved state: expected {} of the model's, found another number", what));
  };
  check(state.open < recurrence_->levels, "levels");
  const auto closed = reader.number<std::uint32_t>();
  check(std::cmp_less_equal(closed, recurrence_->levels), "levels");
  for (std::uint32_t i = 0; i < closed; ++i) state.closed.push_back(reader.number<std::uint64_t>());
  const auto given = reader.number<std::uint32_t>();
  check(given == 0 || given == recurrence_->given.size(), "given values");
  for (std::uint32_t i = 0; i < given; ++i) {
    const Recurrence::Given& value = recurrence_->given[i];
    ByteReader ahead = reader;
    const bool zeros = ahead.number<std::uint32_t>() == 0;
    if (zeros) reader = ahead;
    state.given.push_back(zeros ? Tensor() : take_tensor(reader, value.dtype, value.dims));
  }
  for (const Recurrence::State& value : recurrence_->states) state.states.push_back(take_tensor(reader, value.dtype, value.dims));
  for (std::size_t i = 0; i < sources_; ++i) state.pending.push_back(take_piece(reader));
  const auto segmenters = reader.number<std::uint32_t>();
  check(segmenters <= segmenters_, "labels");
  for (std::uint32_t i = 0; i < segmenters; ++i) state.segmenters.push_back(take_piece(reader));
  reader.end();
  return state;
}

}  // namespace millrace
