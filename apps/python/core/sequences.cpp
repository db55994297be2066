// SPDX-License-Identifier: Apache-2.0
// Operations on sequences, and decoding.
#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/sequence_ops.h>

#include "build.h"

namespace millrace::python {
namespace {

void bind_pooling(nb::module_& m) {
  m.def(
      "sequence_pool",
      [](const Var& x, const std::string& kind, double empty, int level) {
        return build::sequence_pool(x, kind == "mean" ? "average" : kind, empty, level);
      },
      "x"_a, "kind"_a, "empty"_a = 0.0, "level"_a = -1,
      "One row for each sequence: mean (or average), sum, sqrt, max, first or last of its rows; `empty` for one without rows. x [rows, "
      "...] "
      "with levels.");
  m.def(
      "sequence_first_step", [](const Var& x, double empty, int level) { return build::sequence_first_step(x, empty, level); }, "x"_a,
      "empty"_a = 0.0, "level"_a = -1, "The first row of each sequence.");
  m.def(
      "sequence_last_step", [](const Var& x, double empty, int level) { return build::sequence_last_step(x, empty, level); }, "x"_a,
      "empty"_a = 0.0, "level"_a = -1, "The last row of each sequence.");
  m.def("sequence_softmax", &build::sequence_softmax, "x"_a, "level"_a = -1, "Along the rows of each sequence, each column on its own.");
  m.def("sequence_expand", &build::sequence_expand, "x"_a, "y"_a, "ref_level"_a = -1,
        "Outermost sequence i of x (without levels: row i) as many times as sequence i of `ref_level` of y has items.");
  m.def("sequence_expand_as", &build::sequence_expand_as, "x"_a, "y"_a, "level"_a = -1,
        "Row i of x for each row of sequence i of y: the counterpart of a pooling.");
  m.def(
      "sequence_top_k",
      [](const Var& x, std::int64_t k) {
        const build::TopRows made = build::sequence_top_k(x, k);
        return std::pair(made.values, made.index);
      },
      "x"_a, "k"_a, "The min(k, n) greatest of the n rows of each sequence, each column on its own: (values, row numbers i64).");
}

void bind_rearranging(nb::module_& m) {
  m.def("sequence_reverse", &build::sequence_reverse, "x"_a, "level"_a = -1, "The items of each sequence, last one first.");
  m.def("sequence_slice", &build::sequence_slice, "x"_a, "offset"_a, "length"_a, "level"_a = -1,
        "Items [offset[i], offset[i] + length[i]) of sequence i.");
  m.def(
      "sequence_concat", [](nb::handle xs, int level) { return build::sequence_concat(vars_from(xs), level); }, "xs"_a, "level"_a = -1,
      nb::sig("def sequence_concat(xs: collections.abc.Sequence[VarLike], level: int = -1) -> Var"),
      "Sequence i holds the items of sequence i of each input.");
  m.def("sequence_reshape", &build::sequence_reshape, "x"_a, "new_dim"_a,
        "Rows of `new_dim` elements: the elements of a sequence stay together.");
  m.def("sequence_enumerate", &build::sequence_enumerate, "ids"_a, "win_size"_a, "pad_value"_a = 0,
        "ids [T] gives [T, win_size]: each one and those after it.");
  m.def("sequence_erase", &build::sequence_erase, "ids"_a, "tokens"_a, "The ids that are none of `tokens`.");
  m.def(
      "sequence_mask",
      [](const Var& lengths, std::int64_t maxlen, nb::handle to) { return build::sequence_mask(lengths, maxlen, dtype_from(to)); },
      "lengths"_a, "maxlen"_a = -1, "to"_a = "i64",
      nb::sig("def sequence_mask(lengths: VarLike, maxlen: int = -1, to: DTypeLike = 'i64') -> Var"));
  m.def(
      "sequence_mask",
      [](const Var& lengths, const Var& maxlen, nb::handle to) { return build::sequence_mask(lengths, maxlen, dtype_from(to)); },
      "lengths"_a, "maxlen"_a, "to"_a = "i64", nb::sig("def sequence_mask(lengths: VarLike, maxlen: Var, to: DTypeLike = 'i64') -> Var"),
      "lengths [N] gives [N, maxlen]: 1 in front of a length, 0 behind; -1: the greatest length.");
  m.def("sequence_conv", &build::sequence_conv, "x"_a, "filter"_a, "context_start"_a, "context_length"_a, "padding"_a = Var(),
        "x [T, C], filter [context_length * C, M]: the rows around each row, times the filter. context_start = 1 - context_length is "
        "causal.");
  m.def("row_conv", &build::row_conv, "x"_a, "filter"_a,
        "x [T, C], filter [K, C]: each column of the next K rows, its own included, weighted and summed.");
  m.def(
      "sequence_pad",
      [](const Var& x, nb::handle pad_value, std::int64_t padded_length) {
        const Var padding = pad_value.is_none() ? Var() : beside(x.type().dtype, pad_value);
        const build::PaddedSequences made = build::sequence_pad(x, padding, padded_length);
        return std::pair(made.rows, made.length);
      },
      "x"_a, "pad_value"_a = nb::none(), "padded_length"_a = -1,
      nb::sig("def sequence_pad(x: VarLike, pad_value: VarLike | None = None, padded_length: int = -1) -> tuple[Var, Var]"),
      "The innermost sequences side by side: ([N, L, ...], lengths i64 [N]).");
  m.def("sequence_unpad", &build::sequence_unpad, "x"_a, "length"_a, "[N, L, ...] and lengths [N] as rows with sequences.");
  m.def("sequence_scatter", &build::sequence_scatter, "x"_a, "ids"_a, "updates"_a,
        "x [N, C] with updates[j] added at [i, ids[j]] for each j in sequence i.");
  m.def("sequence_trim", &build::sequence_trim, "x"_a, "lengths"_a, "The first lengths[n] rows of each sequence.");
  m.def(
      "lod_reset", [](const Var& x, const std::vector<std::int64_t>& lengths) { return build::lod_reset(x, lengths); }, "x"_a, "lengths"_a,
      nb::sig("def lod_reset(x: VarLike, lengths: collections.abc.Sequence[int]) -> Var"));
  m.def(
      "lod_reset", [](const Var& x, const Var& lengths) { return build::lod_reset(x, lengths); }, "x"_a, "lengths"_a,
      "Sequences of these lengths over the same rows.");
  m.def("lod_reset_like", &build::lod_reset_like, "x"_a, "like"_a, "The sequences of `like` over the same rows.");
  m.def(
      "lod_append", [](const Var& x, const Var& lengths) { return build::lod_append(x, lengths); }, "x"_a, "lengths"_a,
      "One more level inside: rows become sequences of these lengths.");
  m.def(
      "split_by_mask",
      [](const Var& x, const Var& mask, int level) {
        const build::MaskHalves made = build::split_by_mask(x, mask, level);
        return std::pair(made.set, made.unset);
      },
      "x"_a, "mask"_a, "level"_a = 0, "The sequences of `level` whose flag in `mask`, bool [N], is set, and the others.");
  m.def("merge_by_mask", &build::merge_by_mask, "set"_a, "unset"_a, "mask"_a, "level"_a = 0, "The counterpart of split_by_mask.");
}

void bind_decoding(nb::module_& m) {
  m.def(
      "crf_decoding",
      [](const Var& emission, const Var& transition, const Var& label) {
        const build::CrfDecoded made = build::crf_decoding(emission, transition, label);
        return std::pair(made.path, made.score);
      },
      "emission"_a, "transition"_a, "label"_a = Var(),
      "The best tags of each sequence: (path i64 [rows, 1], score). emission [rows, K], transition [K + 2, K].");
  m.def("linear_chain_crf", &build::linear_chain_crf, "emission"_a, "transition"_a, "label"_a, "log p(label | emission) of each sequence.");
  m.def(
      "ctc_greedy_decode",
      [](const Var& x, std::int64_t blank, bool merge_repeated) {
        const build::CtcDecoded made = build::ctc_greedy_decode(x, blank, merge_repeated);
        return std::pair(made.labels, made.score);
      },
      "x"_a, "blank"_a, "merge_repeated"_a = true, "The labels of frames x [rows, K]: (labels i64 [?, 1], score).");
  m.def(
      "ctc_beam_search_decode",
      [](const Var& x, std::int64_t blank, std::int64_t width, std::int64_t top) {
        const build::CtcDecoded made = build::ctc_beam_search_decode(x, blank, width, top);
        return std::pair(made.labels, made.score);
      },
      "x"_a, "blank"_a, "width"_a, "top"_a = 0, "The same by a beam; `top` 0: all classes.");
  m.def("ctc_loss", &build::ctc_loss, "x"_a, "labels"_a, "blank"_a, "zero_infinity"_a = false,
        "-log p(labels | x) of each sequence, over all alignments.");
  m.def("edit_distance", &build::edit_distance, "hypotheses"_a, "references"_a, "normalised"_a = false,
        "ignored"_a = std::vector<std::int64_t>{}, "How many changes make each reference of its hypothesis.");
}

}  // namespace

void bind_sequences(nb::module_& m) {
  bind_pooling(m);
  bind_rearranging(m);
  bind_decoding(m);
}

}  // namespace millrace::python
