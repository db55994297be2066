// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/sequence_ops.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {
namespace {

std::int64_t wide(int level) { return level; }

}  // namespace

Var sequence_pool(const Var& x, const std::string& kind, double empty, int level) {
  return call1("sequence_pool", {x}, {{"kind", kind}, {"empty", empty}, {"level", wide(level)}});
}
Var sequence_softmax(const Var& x, int level) { return call1("sequence_softmax", {x}, {{"level", wide(level)}}); }
Var sequence_reverse(const Var& x, int level) { return call1("sequence_reverse", {x}, {{"level", wide(level)}}); }
Var sequence_slice(const Var& x, const Var& offset, const Var& length, int level) {
  return call1("sequence_slice", {x, offset, length}, {{"level", wide(level)}});
}
Var sequence_concat(const std::vector<Var>& xs, int level) { return call1("sequence_concat", xs, {{"level", wide(level)}}); }
Var sequence_expand(const Var& x, const Var& y, int ref_level) {
  return call1("sequence_expand", {x, y}, {{"ref_level", wide(ref_level)}});
}
Var sequence_expand_as(const Var& x, const Var& y, int level) { return call1("sequence_expand_as", {x, y}, {{"level", wide(level)}}); }
Var sequence_reshape(const Var& x, std::int64_t new_dim) { return call1("sequence_reshape", {x}, {{"new_dim", new_dim}}); }
Var sequence_enumerate(const Var& ids, std::int64_t win_size, std::int64_t pad_value) {
  return call1("sequence_enumerate", {ids}, {{"win_size", win_size}, {"pad_value", pad_value}});
}
Var sequence_erase(const Var& ids, const std::vector<std::int64_t>& tokens) { return call1("sequence_erase", {ids}, {{"tokens", tokens}}); }
Var sequence_mask(const Var& lengths, std::int64_t maxlen, DType to) {
  return call1("sequence_mask", {lengths}, {{"maxlen", maxlen}, {"to", to}});
}
Var sequence_mask(const Var& lengths, const Var& maxlen, DType to) { return call1("sequence_mask", {lengths, maxlen}, {{"to", to}}); }
Var sequence_conv(const Var& x, const Var& filter, std::int64_t context_start, std::int64_t context_length, const Var& padding) {
  return call1("sequence_conv", {x, filter, padding}, {{"context_start", context_start}, {"context_length", context_length}});
}
Var row_conv(const Var& x, const Var& filter) { return call1("row_conv", {x, filter}); }
PaddedSequences sequence_pad(const Var& x, const Var& pad_value, std::int64_t padded_length) {
  const std::vector<Var> made = call("sequence_pad", {x, pad_value}, {{"padded_length", padded_length}}, {"padded", "length"});
  return {made[0], made[1]};
}
Var sequence_unpad(const Var& x, const Var& length) { return call1("sequence_unpad", {x, length}); }
Var sequence_scatter(const Var& x, const Var& ids, const Var& updates) { return call1("sequence_scatter", {x, ids, updates}); }
TopRows sequence_top_k(const Var& x, std::int64_t k) {
  const std::vector<Var> made = call("sequence_top_k", {x}, {{"k", k}}, {"values", "index"});
  return {made[0], made[1]};
}
Var sequence_top_k_average(const Var& x, const Var& rows, const Var& columns, const std::vector<std::int64_t>& ks, std::int64_t channels) {
  return call1("sequence_topk_avg_pooling", {x, rows, columns}, {{"topks", ks}, {"channel_num", channels}});
}
MaskHalves split_by_mask(const Var& x, const Var& mask, int level) {
  const std::vector<Var> made = call("split_by_mask", {x, mask}, {{"level", wide(level)}}, {"set", "unset"});
  return {made[0], made[1]};
}
Var merge_by_mask(const Var& set, const Var& unset, const Var& mask, int level) {
  return call1("merge_by_mask", {set, unset, mask}, {{"level", wide(level)}});
}
Var lod_reset_like(const Var& x, const Var& like) { return call1("lod_reset", {x, Var(), like}); }
Var lod_reset(const Var& x, const Var& lengths) { return call1("lod_reset", {x, lengths}); }
Var lod_reset(const Var& x, const std::vector<std::int64_t>& lengths) { return call1("lod_reset", {x}, {{"lengths", lengths}}); }
Var lod_append(const Var& x, const Var& lengths) { return call1("lod_append", {x, lengths}); }
Var lod_append(const Var& x, const std::vector<std::int64_t>& lengths) { return call1("lod_append", {x}, {{"lengths", lengths}}); }

}  // namespace millrace::build
