// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/attention.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/packing.h>
#include <millrace/kernels/cpu/softmax_kernels.h>
#include <millrace/tensor/checked.h>

namespace millrace::cpu {
namespace {

/// Scores of so many bytes stay in the second cache, beside the keys and values of a head.
constexpr std::int64_t score_bytes = 128 << 10;
constexpr std::int64_t tile_rows = 6;
/// The most rows of a block: whole tiles.
constexpr std::int64_t most_rows = max_rows / tile_rows * tile_rows;
/// Multiply-adds that are worth a thread.
constexpr std::int64_t thread_work = 1 << 16;

/// The greatest magnitude among rows of elements that lie side by side, infinity where one is NaN. As integers, since a maximum of floats that keeps NaN has no vectors.
template <class T>
T greatest_magnitude(const T* x, std::int64_t row, std::int64_t rows, std::int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
  const Bits magnitude = std::numeric_limits<Bits>::max();
  Bits most = 0;
  for (std::int64_t r = 0; r < rows; ++r, x += row)
    for (std::int64_t i = 0; i < count; ++i) most = std::max(most, static_cast<Bits>(std::bit_cast<Bits>(x[i]) & magnitude));
  const T found = std::bit_cast<T>(most);
  return std::isnan(found) ? std::numeric_limits<T>::infinity() : found;
}

/// A unit is a head of k with the queries of all heads of q that share it, which are its rows: head by head.
template <class T>
class Heads {
 public:
  Heads(const Attention& call, const Tensor& out)
      : call_(call),
        out_(out),
        kernels_(gemm_kernels()),
        queries_(call.q.dim(2)),
        keys_(call.k.dim(2)),
        depth_(call.q.dim(3)),
        width_(call.v.dim(3)),
        heads_(call.k.dim(1)),
        sharing_(call.q.dim(1) / call.k.dim(1)),
        rows_(checked_mul(sharing_, queries_)),
        k_layout_(layout_for<T>(kernels_, depth_, keys_)),
        v_layout_(layout_for<T>(kernels_, keys_, width_)),
        score_row_(rounded(keys_)) {
    const std::int64_t fitting = score_bytes / (score_row_ * static_cast<std::int64_t>(sizeof(T))) / tile_rows * tile_rows;
    const std::int64_t most = std::clamp(fitting, tile_rows, most_rows);
    const std::int64_t even = (rows_ + most - 1) / most;
    block_ = std::min(rows_, ((rows_ + even - 1) / even + tile_rows - 1) / tile_rows * tile_rows);  // nearly alike
    blocks_ = (rows_ + block_ - 1) / block_;
    copies_q_ = call.scale != 1 || (depth_ > 1 && call.q.strides()[3] != 1);
    const DDim& v = call.v.strides();
    const bool in_place = (width_ == 1 || v[3] == 1) && (keys_ == 1 || v[2] != 0) && width_ % v_layout_.lanes == 0;
    // Rows of v that lie apart share few places of the first cache, which many rows of scores would find there.
    packs_v_ = !in_place || (blocks_ > 1 && v[2] != width_);
    if (call.offset) offset_ = *static_cast<const std::int64_t*>(call.offset->raw());
  }

  std::int64_t units() const { return checked_mul(checked_mul(call_.q.dim(0), heads_), blocks_); }
  std::int64_t work() const { return block_ * keys_ * (depth_ + width_); }

  std::int64_t room() const {
    return checked_add(checked_add(q_room(), k_room()),
                       checked_add(packs_v_ ? v_layout_.elements() : 0, checked_mul(stepped() ? 2 * block_ : block_, score_row_)));
  }

  void run(std::int64_t first, std::int64_t last, T* room) const {
    Part part;
    part.q = room;
    part.k = part.q + q_room();
    part.v = part.k + k_room();
    part.scores = part.v + (packs_v_ ? v_layout_.elements() : 0);
    part.stepped = part.scores + block_ * score_row_;
    for (std::int64_t unit = first; unit < last; ++unit) {
      const std::int64_t head = unit / blocks_;
      if (head != part.head) take(head, part);
      part.first = unit % blocks_ * block_;
      part.rows = std::min(block_, rows_ - part.first);
      multiply(part);
    }
  }

 private:
  struct Part {
    T *q = nullptr, *k = nullptr, *v = nullptr, *scores = nullptr, *stepped = nullptr;
    std::int64_t head = -1, batch = 0, of_k = 0;  ///< the head of all, its batch, and its number there
    T key_bound = 0;                              ///< of its keys; infinite where keys may not be left out
    std::int64_t first = 0, rows = 0;             ///< of the block
  };

  static std::int64_t rounded(std::int64_t elements) {
    constexpr auto line = static_cast<std::int64_t>(64 / sizeof(T));
    return ((elements + line - 1) / line | 1) *
           line;  // an odd number of lines: rows whose distance is a power of two share few places of a cache
  }
  bool packs_ahead() const { return blocks_ > 1; }
  std::int64_t q_room() const { return copies_q_ ? checked_mul(block_, rounded(depth_)) : 0; }
  /// Panels that are packed together where each is read once: few rows multiply eight vectors of columns at a time.
  std::int64_t together() const { return std::max<std::int64_t>(1, (rows_ <= 2 ? 8 : 4) / k_layout_.panel); }
  std::int64_t k_room() const { return rounded(packs_ahead() ? k_layout_.elements() : checked_mul(together(), k_layout_.panel_stride())); }

  static const T* at(const Tensor& x, std::int64_t batch, std::int64_t head, std::int64_t row) {
    const DDim& strides = x.strides();
    return static_cast<const T*>(x.raw()) + batch * strides[0] + head * strides[1] + row * strides[2];
  }
  /// The head of q and the query of a row.
  std::int64_t head_of(const Part& part, std::int64_t row) const { return part.of_k * sharing_ + row / queries_; }
  std::int64_t query_of(std::int64_t row) const { return row % queries_; }

  void take(std::int64_t head, Part& part) const {
    part.head = head;
    part.batch = head / heads_;
    part.of_k = head % heads_;
    const DDim &k = call_.k.strides(), &v = call_.v.strides();
    if (packs_ahead()) pack_panels(k_layout_, at(call_.k, part.batch, part.of_k, 0), k[3], k[2], 0, k_layout_.panels(), part.k);
    if (packs_v_) pack_panels(v_layout_, at(call_.v, part.batch, part.of_k, 0), v[2], v[3], 0, v_layout_.panels(), part.v);
    part.key_bound = std::numeric_limits<T>::infinity();
    if (offset_ && packs_ahead()) part.key_bound = bound(part);
  }

  /// The greatest magnitude of a key, infinity where a key or value is not finite: a weight of zero times such a value is NaN.
  T bound(const Part& part) const {
    const T* const v = packs_v_ ? part.v : at(call_.v, part.batch, part.of_k, 0);
    const T most =
        packs_v_ ? greatest_magnitude(v, 0, 1, v_layout_.elements()) : greatest_magnitude(v, call_.v.strides()[2], keys_, width_);
    return std::isfinite(most) ? greatest_magnitude(part.k, 0, 1, k_layout_.elements()) : std::numeric_limits<T>::infinity();
  }

  /// The number of keys that a query sees.
  std::int64_t seen(std::int64_t row) const {
    if (!offset_) return keys_;
    const std::int64_t query = query_of(row);
    if (*offset_ >= keys_) return keys_;
    return std::clamp<std::int64_t>(*offset_ < -query ? 0 : query + *offset_ + 1, 0, keys_);
  }

  void multiply(Part& part) const {
    const T* q[most_rows];
    T* scores[most_rows];
    T query_bound = 0;
    std::int64_t most = 1;
    for (std::int64_t i = 0; i < part.rows; ++i) {
      const std::int64_t row = part.first + i;
      scores[i] = part.scores + i * score_row_;
      q[i] = at(call_.q, part.batch, head_of(part, row), query_of(row));
      if (copies_q_) q[i] = scaled(q[i], part.q + i * rounded(depth_));
      most = std::max(most, seen(row));
      if (std::isfinite(part.key_bound)) query_bound = std::max(query_bound, greatest_magnitude(q[i], 0, 1, depth_));
    }
    // Scores that are all finite get a weight of exactly zero from −∞.
    const bool skips = std::isfinite(part.key_bound) && call_.steps.empty() && !call_.mask &&
                       std::isfinite(part.key_bound * query_bound * static_cast<T>(2 * depth_ + 2));
    if (!skips) most = keys_;
    multiply_keys(part, q, scores, most);
    if (stepped()) step(part);
    for (std::int64_t i = 0; i < part.rows; ++i)
      weigh(part, part.first + i, stepped() ? part.stepped + i * score_row_ : scores[i], scores[i], skips, most);
    multiply_values(part, scores, most);
  }

  const T* scaled(const T* from, T* to) const {
    const std::int64_t step = call_.q.strides()[3];
    if (call_.scale == 1) {
      for (std::int64_t i = 0; i < depth_; ++i) to[i] = from[i * step];
      return to;
    }
    const auto scale = static_cast<T>(call_.scale);
    for (std::int64_t i = 0; i < depth_; ++i) to[i] = from[i * step] * scale;
    return to;
  }

  /// The scores of the first `most` keys, and of those behind them that the last panel has.
  void multiply_keys(const Part& part, const T* const* q, T* const* scores, std::int64_t most) const {
    MatrixCall<T> call;
    call.a = q;
    call.rows = part.rows;
    call.k = depth_;
    call.b = part.k;
    const std::int64_t width = k_layout_.width(), columns = std::min(keys_, (most + width - 1) / width * width);
    if (packs_ahead()) {
      call.out = scores;
      call.panel_stride = k_layout_.panel_stride();
      call.columns = columns;
      call.last_panel = (columns + width - 1) / width;
      return kernels_.run(call);
    }
    const DDim& strides = call_.k.strides();
    const T* const k = at(call_.k, part.batch, part.of_k, 0);
    T* out[most_rows];
    call.out = out;
    const std::int64_t step = together() * width;
    for (std::int64_t column = 0; column < columns; column += step) {
      const PackedLayout some = layout_for<T>(kernels_, depth_, std::min(step, columns - column));
      pack_panels(some, k + column * strides[2], strides[3], strides[2], 0, some.panels(), part.k);
      for (std::int64_t i = 0; i < part.rows; ++i) out[i] = scores[i] + column;
      call.panel_stride = some.panel_stride();
      call.columns = some.columns;
      call.last_panel = some.panels();
      kernels_.run(call);
    }
  }

  bool stepped() const { return !call_.steps.empty(); }

  /// The steps on the scores of a block, for the queries of one head at a time.
  void step(const Part& part) const {
    ArithmeticCall<T> call;
    call.steps = call_.steps.data();
    call.step_count = std::ssize(call_.steps);
    call.input_count = std::ssize(call_.operands) + 1;
    call.out_row = score_row_;
    call.count = keys_;
    for (std::int64_t i = 0; i < part.rows; i += call.rows) {
      const std::int64_t row = part.first + i, head = head_of(part, row), query = query_of(row);
      call.inputs[0] = {part.scores + i * score_row_, score_row_, false};
      for (std::size_t k = 0; k < call_.operands.size(); ++k) {
        const DDim& strides = call_.operands[k].strides();
        call.inputs[k + 1] = {at(call_.operands[k], part.batch, head, query), strides[2], keys_ > 1 && strides[3] == 0};
      }
      call.out = part.stepped + i * score_row_;
      call.rows = std::min(part.rows - i, queries_ - query);
      arithmetic_rows(call);
    }
  }

  /// The scores of a row, `from`, become weights.
  void weigh(const Part& part, std::int64_t row, T* from, T* weights, bool skips, std::int64_t most) const {
    constexpr T nothing = -std::numeric_limits<T>::infinity();
    const std::int64_t sees = seen(row), head = head_of(part, row), query = query_of(row);
    if (!skips) {
      for (std::int64_t t = sees; t < keys_; ++t) from[t] += nothing;
      if (call_.mask) replace(*call_.mask, part.batch, head, query, from);
      softmax_row(from, weights, keys_);
    } else if (sees == 0) {
      std::fill_n(weights, most, nothing);
      softmax_row(weights, weights, most);
    } else {
      softmax_row(from, weights, sees);
      std::fill(weights + sees, weights + most, T{0});
    }
    if (call_.hidden) replace(*call_.hidden, part.batch, head, query, weights);
  }

  void replace(const ScoreMask& mask, std::int64_t batch, std::int64_t head, std::int64_t query, T* row) const {
    const DDim& strides = mask.condition.strides();
    const bool* const condition =
        static_cast<const bool*>(mask.condition.raw()) + batch * strides[0] + head * strides[1] + query * strides[2];
    const auto value = static_cast<T>(mask.value);
    if (keys_ == 1 || strides[3] == 0) {
      if (*condition != mask.keeps) std::fill_n(row, keys_, value);
      return;
    }
    for (std::int64_t t = 0; t < keys_; ++t) row[t] = condition[t] != mask.keeps ? value : row[t];
  }

  void multiply_values(const Part& part, T* const* weights, std::int64_t most) const {
    T* out[most_rows];
    for (std::int64_t i = 0; i < part.rows; ++i) {
      const std::int64_t row = part.first + i;
      out[i] = const_cast<T*>(at(out_, part.batch, head_of(part, row), query_of(row)));
    }
    MatrixCall<T> call;
    call.a = weights;
    call.out = out;
    call.rows = part.rows;
    call.k = most;
    call.columns = width_;
    call.last_panel = v_layout_.panels();
    call.b = packs_v_ ? part.v : at(call_.v, part.batch, part.of_k, 0);
    call.b_stride = packs_v_ ? 0 : keys_ == 1 ? width_ : call_.v.strides()[2];
    call.panel_stride = packs_v_ ? v_layout_.panel_stride() : v_layout_.width();
    kernels_.run(call);
  }

  const Attention& call_;
  const Tensor& out_;
  const GemmKernels& kernels_;
  std::int64_t queries_, keys_, depth_, width_, heads_, sharing_, rows_;
  PackedLayout k_layout_, v_layout_;
  std::int64_t score_row_, block_ = 1, blocks_ = 1;
  bool copies_q_ = false, packs_v_ = false;
  std::optional<std::int64_t> offset_;
};

template <class T>
void run_type(const Attention& call, const Tensor& out, const KernelContext& context) {
  const Heads<T> heads(call, out);
  ThreadTeam& team = context.team();
  const std::int64_t units = heads.units();
  const std::int64_t worth = units * heads.work() / thread_work;
  const std::int64_t parts = std::clamp<std::int64_t>(std::min(units, worth), 1, team.size());
  const Tensor room(out.dtype(), DDim{checked_mul(parts, heads.room())}, context.workspace());
  T* const all = static_cast<T*>(room.raw_mutable());
  team.parallel(parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part)
      heads.run(units * part / parts, units * (part + 1) / parts, all + part * heads.room());
  });
}

}  // namespace

void attention(const Attention& call, const Tensor& out, const KernelContext& context) {
  out.dtype() == DType::f64 ? run_type<double>(call, out, context) : run_type<float>(call, out, context);
}

}  // namespace millrace::cpu
