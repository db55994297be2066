// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/matrix_recurrence.h>

#include <algorithm>
#include <cstdint>

#include <millrace/kernels/cpu/matrix_state_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// Bytes of two matrices that a first cache holds beside what they meet.
constexpr std::int64_t two_states = 16 << 10;

/// An input of steps: the part of each head at each step.
template <class T>
struct Steps {
  const T* first = nullptr;
  std::int64_t width = 0;  ///< elements of a row
  std::int64_t part = 0;   ///< elements of a head; 0: a row has one for all heads

  Steps() = default;
  Steps(const Tensor& x, std::int64_t rows, std::int64_t heads)
      : first(static_cast<const T*>(x.raw())), width(x.elements() / std::max<std::int64_t>(1, rows)), part(width / heads) {}
  const T* at(std::int64_t row, std::int64_t head) const { return first == nullptr ? nullptr : first + row * width + head * part; }
};

template <class T>
class Recurrence {
 public:
  Recurrence(const MatrixRecurrence& call, const Tensor& out, const Tensor& last)
      : length_(call.key.dim(call.steps)),
        sequences_(call.key.dim(1 - call.steps)),
        heads_(call.heads),
        corrects_(call.corrects),
        row_step_(call.steps == 0 ? sequences_ : 1),
        sequence_step_(call.steps == 0 ? 1 : length_),
        key_(call.key, length_ * sequences_, heads_),
        value_(call.value, length_ * sequences_, heads_),
        query_(call.query, length_ * sequences_, heads_),
        past_(static_cast<const T*>(call.past.raw())),
        past_step_(call.past.dim(0) == 1 ? 0 : heads_ * key_.part * value_.part),
        queries_(query_.part / std::max<std::int64_t>(1, key_.part)),
        out_(static_cast<T*>(out.raw_mutable())),
        last_(static_cast<T*>(last.raw_mutable())) {
    if (call.decay) decay_ = Steps<T>(*call.decay, length_ * sequences_, heads_);
    if (call.rate) rate_ = Steps<T>(*call.rate, length_ * sequences_, heads_);
  }

  void run(const KernelContext& context) const {
    const std::int64_t work = std::max<std::int64_t>(1, length_ * key_.part * value_.part), matrices = sequences_ * heads_;
    const std::int64_t together = corrects_ && 2 * key_.part * value_.part * static_cast<std::int64_t>(sizeof(T)) <= two_states ? 2 : 1;
    const std::int64_t groups = (matrices + together - 1) / together;
    context.team().parallel(groups, std::max<std::int64_t>(1, grain_light / (together * work)), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group) {
        const std::int64_t first = group * together;
        if (together == 2 && first + 1 < matrices)
          run_two(first);
        else
          run_one(first);
      }
    });
  }

 private:
  /// A matrix on its way through the steps.
  class Walk {
   public:
    Walk(const Recurrence& of, std::int64_t matrix, MatrixStep<T>& step)
        : of_(of), head_(matrix % of.heads_), row_(matrix / of.heads_ * of.sequence_step_), step_(step) {
      step.keys = of.key_.part;
      step.values = of.value_.part;
      step.decay_step = of.decay_.part == step.keys ? 1 : 0;
      const std::int64_t elements = step.keys * step.values;
      step.state = of.past_ + matrix / of.heads_ * of.past_step_ + head_ * elements;
      step.next = of.last_ + matrix * elements;  // the matrix moves there in the first step
    }
    void begin_step() {
      step_.decay = of_.decay_.at(row_, head_);
      step_.key = of_.key_.at(row_, head_);
      step_.added = of_.value_.at(row_, head_);
      step_.rate = of_.rate_.at(row_, head_);
      step_.query = of_.query_.at(row_, head_);
      step_.read = of_.out_ + (row_ * of_.heads_ + head_) * of_.queries_ * step_.values;
    }
    /// Reads for the other queries of the head, and goes on to the next step.
    void end_step() {
      step_.state = step_.next;
      for (std::int64_t query = 1; query < of_.queries_; ++query) {
        MatrixStep<T> other = step_;
        other.decay = nullptr;
        other.key = step_.query + query * step_.keys;
        other.read = step_.read + query * step_.values;
        of_.functions_.read(other);
      }
      row_ += of_.row_step_;
    }

   private:
    const Recurrence& of_;
    const std::int64_t head_;
    std::int64_t row_;
    MatrixStep<T>& step_;
  };

  /// One matrix through all steps, so that it stays in the first cache.
  void run_one(std::int64_t matrix) const {
    MatrixStep<T> step;
    Walk walk(*this, matrix, step);
    for (std::int64_t t = 0; t < length_; ++t) {
      walk.begin_step();
      (corrects_ ? functions_.correct : functions_.update)(step);
      walk.end_step();
    }
  }
  /// Corrects two small matrices side by side.
  void run_two(std::int64_t matrix) const {
    MatrixStep<T> steps[2];
    Walk first(*this, matrix, steps[0]), second(*this, matrix + 1, steps[1]);
    for (std::int64_t t = 0; t < length_; ++t) {
      first.begin_step();
      second.begin_step();
      functions_.correct_two(steps);
      first.end_step();
      second.end_step();
    }
  }

  const MatrixFunctions<T> functions_ = matrix_functions<T>();
  const std::int64_t length_, sequences_, heads_;
  const bool corrects_;
  const std::int64_t row_step_, sequence_step_;  ///< rows between steps, and between sequences
  const Steps<T> key_, value_, query_;
  Steps<T> decay_, rate_;
  const T* const past_;
  const std::int64_t past_step_, queries_;
  T* const out_;
  T* const last_;
};

}  // namespace

void matrix_recurrence(const MatrixRecurrence& call, const Tensor& out, const Tensor& last, const KernelContext& context) {
  if (call.key.dim(call.steps) == 0) {
    std::copy_n(static_cast<const std::byte*>(call.past.raw()), call.past.bytes(), static_cast<std::byte*>(last.raw_mutable()));
    return;
  }
  if (call.key.dim(1 - call.steps) == 0) return;
  if (call.key.dtype() == DType::f64)
    Recurrence<double>(call, out, last).run(context);
  else
    Recurrence<float>(call, out, last).run(context);
}

}  // namespace millrace::cpu
