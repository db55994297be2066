// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <millrace/tensor/kernel_context.h>
#include <millrace/tensor/memory.h>
#include <millrace/tensor/place.h>
#include <millrace/tensor/point.h>
#include <millrace/tensor/watermark.h>

namespace millrace {

/// Says for whom work is enqueued: "op matmul of block 1, iteration 3". Asked only where a stream keeps the work for later.
class WorkOrigin {
 public:
  virtual std::string describe() const = 0;

 protected:
  WorkOrigin() = default;
  ~WorkOrigin() = default;
};

/// An ordered queue of work on one place. Thread-safe. Work completes in the order of enqueueing.
class Stream {
 public:
  /// One piece of queued work.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void run(KernelContext& context) = 0;
    std::string origin;  ///< for whom it is, when that is known; an error of it says so
  };

  virtual ~Stream() = default;
  virtual Place place() const = 0;
  /// Where tensors of this stream's place come from.
  virtual const std::shared_ptr<MemoryResource>& memory() const noexcept = 0;

  /// True: the caller is on the stream now, runs its work itself in `context()` and then calls `leave`. False: the work must be pushed.
  virtual bool enter() noexcept = 0;
  virtual KernelContext& context() noexcept = 0;
  /// Ends what `enter` began; a non-null error fails the stream: later work does not run, and its points carry the error.
  virtual void leave(std::exception_ptr error) noexcept = 0;
  /// Appends work that runs later.
  virtual void push(std::unique_ptr<Work> work) = 0;
  /// Work enqueued after this runs only when `point` is reached. Free for points of this stream and for points already reached.
  virtual void wait(const Point& point) = 0;
  /// The point at which everything enqueued so far is done.
  virtual Point position() = 0;
  /// Work that is enqueued next uses memory that is not this stream's own: the resource that hands memory out again must know. Streams whose work
  /// owns its tensors until it has run need nothing of the kind.
  virtual void uses(const std::shared_ptr<Allocation>&) {}
  /// A watermark that kernels enqueued next may raise, to `steps` in all, while they go on. Null where no kernel says how far it is.
  virtual std::shared_ptr<Watermark> watermark(std::uint64_t steps) {
    static_cast<void>(steps);
    return nullptr;
  }
};

/// A non-owning reference to a stream. Passed by value, always as the last argument.
class StreamRef {
 public:
  StreamRef(Stream& stream) noexcept : stream_(&stream) {}
  /// The same stream, for work of `origin`, which must live as long as this and its copies are used.
  StreamRef(StreamRef stream, const WorkOrigin& origin) noexcept : stream_(stream.stream_), origin_(&origin) {}

  Place place() const { return stream_->place(); }
  const std::shared_ptr<MemoryResource>& memory() const noexcept { return stream_->memory(); }
  void wait(const Point& point) const {
    if (!point.reached()) stream_->wait(point);
  }
  Point position() const { return stream_->position(); }
  void uses(const std::shared_ptr<Allocation>& storage) const {
    if (&storage->resource() != stream_->memory().get()) stream_->uses(storage);
  }

  std::shared_ptr<Watermark> watermark(std::uint64_t steps) const { return stream_->watermark(steps); }

  /// Runs `f(context)` in stream order: at once in the caller where the stream allows it, else later from a moved copy of `f`. On a stream
  /// that runs later, `f` must own what it uses. An exception of `f` fails the stream; when `f` ran at once it is rethrown to the caller
  /// too.
  template <class F>
  void enqueue(F&& f) const {
    if (!stream_->enter()) return defer(std::make_unique<Owned<std::decay_t<F>>>(std::forward<F>(f)));
    run_entered([&] { f(stream_->context()); });
  }
  /// The same with `f(context, operands...)`. The operands are copied where the work runs later, and only there.
  template <class F, class... Operands>
  void enqueue(std::tuple<const Operands&...> operands, F f) const {
    const auto run = [f](KernelContext& context, const auto& held) {
      std::apply([&](const Operands&... each) { f(context, each...); }, held);
    };
    if (stream_->enter()) return run_entered([&] { run(stream_->context(), operands); });
    const auto later = [run, held = std::tuple<Operands...>(operands)](KernelContext& context) { run(context, held); };
    defer(std::make_unique<Owned<std::remove_const_t<decltype(later)>>>(later));
  }

  friend bool operator==(StreamRef a, StreamRef b) noexcept { return a.stream_ == b.stream_; }

 private:
  template <class F>
  struct Owned final : Stream::Work {
    explicit Owned(F f) : function(std::move(f)) {}
    void run(KernelContext& context) override { function(context); }
    F function;
  };

  void defer(std::unique_ptr<Stream::Work> work) const;

  /// Runs `f` on the stream that the caller has entered, and leaves it.
  template <class F>
  void run_entered(F f) const {
    try {
      f();
    } catch (...) {
      stream_->leave(std::current_exception());
      throw;
    }
    stream_->leave(nullptr);
  }

  Stream* stream_;
  const WorkOrigin* origin_ = nullptr;
};

}  // namespace millrace
