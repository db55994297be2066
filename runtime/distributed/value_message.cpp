// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/internal/value_message.h>

#include <vector>

#include <fmt/format.h>

#include <millrace/runtime/distributed/internal/slot_run.h>
#include <millrace/runtime/distributed/internal/words.h>
#include <millrace/runtime/distributed/remote_array.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>

namespace millrace::detail {
namespace {

/// A message is a header (what follows; how many words describe it; tensors; words that describe these; bytes of their elements), and then what
/// it says, as far as there is any.
enum class Kind : std::int64_t { nothing, tensor, list, order, array };
constexpr std::int64_t header_words = 5;
/// Slots in a message, at most: none waits for others to come along.
constexpr std::int64_t slots_in_run = 256;
/// The most levels of an order that a message may have.
constexpr std::int64_t most_levels = 64;
constexpr std::int64_t most_items = std::int64_t{1} << 30;

void add_order(WordWriter& words, const std::optional<SequenceOrder>& order) {
  words.add(order ? 1 : 0);
  if (!order) return;
  words.add(order->lod());
  words.add(order->depth_below());
  words.add(order->sorted() ? 1 : 0);
  words.add(order->reversed() ? 1 : 0);
}

std::optional<SequenceOrder> read_order(Words& words) {
  if (!words.flag()) return std::nullopt;
  LoD lod = words.lod();
  const int level = lod.depth() - 1;
  // An order knows that there are levels below its own, and nothing of them.
  for (std::int64_t below = words.next(0, most_levels); below > 0; --below) {
    const auto offsets = lod.offsets(lod.depth() - 1);
    if (offsets.back() > most_items)
      throw CommunicationError(fmt::format("an order of another rank: expected at most {} items, found {}", most_items, offsets.back()));
    LoD::Level single(static_cast<std::size_t>(offsets.back()) + 1);
    for (std::size_t i = 0; i < single.size(); ++i) single[i] = static_cast<std::int64_t>(i);
    std::vector<LoD::Level> levels;
    for (int k = 0; k < lod.depth(); ++k) levels.emplace_back(lod.offsets(k).begin(), lod.offsets(k).end());
    levels.push_back(std::move(single));
    lod = LoD::from_offsets(std::move(levels));
  }
  const bool sorted = words.flag();
  const bool reversed = words.flag();
  return SequenceOrder(lod, level, sorted, reversed);
}

struct Message {
  Kind kind = Kind::nothing;
  WordWriter words;
  std::vector<SlotValue> tensors;
};

void describe_array(Message& made, const TensorArray& array) {
  if (!array.is_fixed())
    throw UnsupportedError(fmt::format("{}: expected an array of a fixed size to go to another rank", array.to_string()));
  made.kind = Kind::array;
  made.words.add(array.name());
  made.words.add(array.size());
  add_order(made.words, array.order());
}

/// The form of the slots of an array without slots, where it is known.
task<std::optional<Tensor>> no_slots(TensorArray array, StreamRef stream) {
  try {
    Tensor stacked = co_await array.stack(stream);
    co_return std::optional<Tensor>(std::move(stacked));
  } catch (const CancelledError&) {
    throw;
  } catch (const Error&) {  // nothing is known
  }
  co_return std::optional<Tensor>();
}

void describe_tensor(Message& made, const SlotValue& value) {
  made.kind = Kind::tensor;
  add_order(made.words, value.has_order() ? std::optional(value.order()) : std::nullopt);
  made.words.add(value.iteration());
  made.tensors.push_back(value);
}

Message message_of(const Value& value) {
  Message made;
  if (value.is_tensor()) {
    describe_tensor(made, value.tensor());
  } else if (value.is_list()) {
    made.kind = Kind::list;
    for (const Tensor& element : value.list().elements()) made.tensors.emplace_back(LoDTensor(element));
  } else if (value.is_array()) {
    describe_array(made, value.array());
  } else if (!value.empty()) {
    made.kind = Kind::order;
    add_order(made.words, value.order());
  }
  return made;
}

Tensor header_of(Kind kind, std::int64_t words, std::int64_t tensors, std::int64_t described, std::int64_t bytes) {
  return Tensor::from<std::int64_t>({static_cast<std::int64_t>(kind), words, tensors, described, bytes});
}

task<Tensor> receive(ValueLink link, DType dtype, std::int64_t count, bool on_host) {
  const StreamRef stream = on_host ? link.host : link.stream;
  if (count == 0) {
    Tensor none(dtype, DDim{0}, stream.memory());
    none.storage()->mark_written();
    co_return none;
  }
  Tensor made(dtype, DDim{count}, stream.memory());
  const Point come = link.communicator->recv(made, link.from, stream);
  co_await ready(come);
  co_return made;
}

OnRank slots_of(const ValueLink& link, Scope& rest) {
  return OnRank(rest, *link.communicator, link.from, link.to, link.stream, 1, slots_in_run);
}

Value read_array(const ValueLink& link, Words& words, Scope& rest) {
  const std::string name = words.text();
  const std::int64_t size = words.count();
  const std::optional<SequenceOrder> order = read_order(words);
  TensorArray array = (order ? TensorArray(size, *order) : TensorArray(size)).named(name);
  if (size == 0 && words.flag()) {
    const DType dtype = words.dtype();
    array = array.of(dtype, words.dims());
  }
  return array.on(slots_of(link, rest));
}

}  // namespace

task<void> send_value(ValueLink link, Value value, Scope* rest) {
  Message message = message_of(value);
  if (message.kind == Kind::array && value.array().size() == 0) {
    const std::optional<Tensor> none = co_await no_slots(value.array(), link.host);
    message.words.add(none ? 1 : 0);
    if (none) message.words.add(static_cast<std::int64_t>(none->dtype()));
    if (none) message.words.add(none->dims().erased(0));
  }
  for (const SlotValue& tensor : message.tensors) {
    const Point there = tensor.ready();
    co_await ready(there);
  }
  const Tensor words = message.words.take();
  SlotRun packed;
  if (!message.tensors.empty()) packed = pack_run(message.tensors, link.stream);
  const auto count = static_cast<std::int64_t>(message.tensors.size());
  const std::int64_t described = count > 0 ? packed.words.dim(0) : 0;
  const std::int64_t bytes = count > 0 ? packed.bytes.dim(0) : 0;
  std::vector<Point> sent;
  sent.push_back(link.communicator->send(header_of(message.kind, words.dim(0), count, described, bytes), link.to, link.host));
  if (words.dim(0) > 0) sent.push_back(link.communicator->send(words, link.to, link.host));
  if (described > 0) sent.push_back(link.communicator->send(packed.words, link.to, link.host));
  if (bytes > 0) sent.push_back(link.communicator->send(packed.bytes, link.to, link.stream));
  if (message.kind == Kind::array) static_cast<void>(value.array().on(slots_of(link, *rest)));
  for (const Point& point : sent) co_await ready(point);
}

task<Value> receive_value(ValueLink link, Scope* rest) {
  const Tensor header = co_await receive(link, DType::i64, header_words, true);
  Words said(header);
  const auto kind = static_cast<Kind>(said.next(0, static_cast<std::int64_t>(Kind::array)));
  const std::int64_t word_count = said.count();
  const std::int64_t tensors = said.count();
  const std::int64_t described = said.count();
  const std::int64_t bytes = said.count();
  const Tensor described_by = co_await receive(link, DType::i64, word_count, true);
  SlotRun run;
  run.words = co_await receive(link, DType::i64, described, true);
  run.bytes = co_await receive(link, DType::u8, bytes, false);
  Words words(described_by);
  if (kind == Kind::nothing) co_return Value();
  if (kind == Kind::array) co_return read_array(link, words, *rest);
  std::optional<SequenceOrder> order;
  if (kind != Kind::list) order = read_order(words);
  if (kind == Kind::order) {
    if (!order) throw CommunicationError("a value of another rank: expected an order, found none");
    co_return Value(*order);
  }
  std::vector<LoDTensor> values = unpack_run(run, tensors);
  if (kind == Kind::list) {
    std::vector<Tensor> elements;
    for (const LoDTensor& each : values) elements.push_back(each.tensor());
    co_return Value(TensorList(std::move(elements)));
  }
  if (values.size() != 1) throw CommunicationError(fmt::format("a value of another rank: expected one tensor, found {}", values.size()));
  co_return Value(SlotValue(std::move(values[0]), order, words.next(-1, std::numeric_limits<std::int64_t>::max())));
}

}  // namespace millrace::detail
