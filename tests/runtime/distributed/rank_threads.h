// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <millrace/runtime/distributed/errors.h>
#include <millrace/runtime/distributed/rank_environment.h>
#include <millrace/runtime/task/errors.h>

/// Ranks that would be processes, as threads.
namespace millrace::testing {

inline std::uint16_t free_port() {
  using tcp = boost::asio::ip::tcp;
  boost::asio::io_context io;
  return tcp::acceptor(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)).local_endpoint().port();
}

inline RankEnvironment member(int rank, int size, std::uint16_t port) {
  RankEnvironment made;
  made.rank = rank;
  made.world_size = size;
  made.port = port;
  return made;
}

/// The end of each rank's thread: "done", or its error.
inline std::vector<std::string> on_threads(const std::vector<int>& ranks, const std::function<void(int)>& work) {
  std::vector<std::string> said(ranks.size(), "done");
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        work(ranks[i]);
      } catch (const DeadlineError& error) {
        said[i] = "DeadlineError: " + std::string(error.what());
      } catch (const RankError& error) {
        said[i] = "RankError: " + std::string(error.what());
      } catch (const MismatchError& error) {
        said[i] = "MismatchError: " + std::string(error.what());
      } catch (const AbortedError& error) {
        said[i] = "AbortedError: " + std::string(error.what());
      } catch (const Error& error) {
        said[i] = "Error: " + std::string(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

}  // namespace millrace::testing
