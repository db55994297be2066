// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/executor/run_exchange.h>
#include <millrace/runtime/training/weights.h>
#include <millrace/tensor/lod.h>

namespace millrace::training {

/// Sums gradients over ranks while the run that makes them goes on: a gradient leaves as soon as it is computed, and the backward loops of the
/// layers below go on meanwhile. Gradients are gathered in buckets, and each bucket is one `all_reduce`. The buckets of all ranks leave in the same
/// order, whatever the order in which a run computes their gradients.
///
/// The sum is Σ share · gradient over the ranks, each product rounded once, added in the order of the ranks. One object serves one run.
class GradientSum final : public RunExchange {
 public:
  /// Extents of an output that is a gradient.
  struct Item {
    std::string output;
    DType dtype = DType::f32;
    DDim dims;
  };

  /// `items`: all gradients, in the order in which backward mostly makes them; the same on all ranks. `share`: the part of the batch's terms that is
  /// this rank's, 0…1; the shares of all ranks sum to 1. A bucket ends with the item that fills `bucket_bytes`. ArgumentError for another share.
  GradientSum(Communicator& communicator, const std::vector<Item>& items, double share, std::size_t bucket_bytes = std::size_t{256} << 10);
  ~GradientSum() override;

  bool provides(const std::string&) const override { return false; }
  bool takes(const std::string& output) const override { return places_.contains(output); }
  task<Value> receive(std::string input, Scope* rest) override;
  task<void> send(std::string output, Value gradient, Scope* rest) override;

  /// Sends zeros, in the place of a run, for a rank whose share is empty.
  void send_zeros();
  /// After the run: waits for the buckets of all ranks. By output. Errors of the communicator.
  Tensors sums();

 private:
  struct Bucket {
    DType dtype = DType::f32;
    Tensor values;  ///< [elements]
    std::size_t missing = 0;
    Point done;
  };
  struct Place {
    std::size_t bucket = 0;
    std::int64_t begin = 0;
    DDim dims;
  };
  void put(const std::string& output, const Tensor* gradient);
  void start_complete_buckets();

  Communicator& communicator_;
  const double share_;
  std::map<std::string, Place> places_;
  std::mutex mutex_;
  std::vector<Bucket> buckets_;
  std::size_t started_ = 0;
  class Streams;
  std::unique_ptr<Streams> streams_;
};

/// The sequences `batch` of `lod`, by number, dealt to ranks so that their rows are nearly equal: the longest first, each to the rank with the fewest
/// rows so far, the lowest of several. Within a rank they keep the order of the batch. A function of the lengths alone. ArgumentError for fewer
/// ranks than 1; IndexError for a number that is none.
std::vector<std::vector<std::int64_t>> deal_to_ranks(const LoD& lod, const std::vector<std::int64_t>& batch, int ranks);

}  // namespace millrace::training
