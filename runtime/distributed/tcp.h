// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/distributed/communicator.h>
#include <millrace/runtime/distributed/rendezvous.h>

namespace millrace {

/// The rank that sends, and the rank that receives.
using RankRoute = std::pair<int, int>;

/// The carriers of tensors that the host cannot reach: a communicator for each route, over which a message goes only when both of its ends are
/// known to wait for it, one after the other. So none of them ever waits for long, or for another.
struct DeviceWays {
  std::map<int, std::unique_ptr<Communicator>> to;    ///< by receiver
  std::map<int, std::unique_ptr<Communicator>> from;  ///< by sender
  std::vector<std::unique_ptr<Communicator>> others;  ///< of which this rank is a part, and uses none
};

/// Why there is no sense in waiting for other ranks any more; "" while there is.
using Hopeless = std::function<std::string()>;

/// Over duplicates of `world`, one for each route: all ranks give the same routes. Blocks until all have them. `stream` is of the device. RankError
/// with what `hopeless` says.
DeviceWays make_device_ways(std::unique_ptr<Communicator> world, const std::set<RankRoute>& routes, StreamRef stream,
                            const Hopeless& hopeless);

struct TcpOptions {
  std::string name = "tcp";
  /// For the connections.
  std::chrono::milliseconds meeting{60'000};
  /// The time that an operation may wait for its other ranks, from the moment its own part is ready.
  std::chrono::milliseconds deadline{600'000};
  /// The time that the last communicator of this rank to be destroyed waits for what it has sent to be taken.
  std::chrono::milliseconds leaving{5'000};
  /// Makes what carries tensors that the host cannot reach, once the ranks are connected; null: they are refused (PlaceError). While it waits for
  /// other ranks it may ask `hopeless` why it should not, from any thread: "" until one of them is gone.
  std::function<DeviceWays(const Hopeless& hopeless)> device;
};

/// This rank of a world of processes that are connected by TCP, each with each. The ranks must have met in `ranks`, and make the same
/// communicators in the same order. Blocks until all are connected: not on a thread that runs tasks (BlockingError). The network must be
/// trusted: messages are neither secret nor signed.
///
/// One thread serves all connections and sleeps while nothing comes. A receiver says what it waits for, and only then do the elements come,
/// straight to where they belong: nothing is kept on the way, and no message waits behind that of another communicator. Collectives go from
/// each to each, and sums are made in the order of the ranks.
///
/// Differences from `Communicator`:
/// - A send is done when its receiver was there and its elements are on their way.
/// - Whatever goes wrong between ranks (one that asks for something else, is late, or whose process has ended) ends the world, for all.
/// - Collectives take tensors that the host can reach (PlaceError).
///
/// Errors: DeadlineError names the ranks that did not come; CommunicationError; ArgumentError for the numbers.
std::unique_ptr<Communicator> make_tcp_communicator(Rendezvous& ranks, TcpOptions options = {});

}  // namespace millrace
