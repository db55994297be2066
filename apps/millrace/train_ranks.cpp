// SPDX-License-Identifier: Apache-2.0
#include "train_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <millrace/runtime/distributed/mpi.h>
#include <millrace/runtime/distributed/tcp.h>

namespace millrace::app {
namespace {

/// A port that nobody listens on. The system gives those from 32768 on to whoever connects, so one below is still free when rank 0 listens.
std::string free_port() {
  using tcp = boost::asio::ip::tcp;
  boost::asio::io_context io;
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    const auto port = static_cast<std::uint16_t>(10000 + random() % 20000);
    tcp::acceptor acceptor(io, tcp::v4());
    boost::system::error_code error;
    acceptor.bind(tcp::endpoint(boost::asio::ip::address_v4::loopback(), port), error);
    if (!error) return std::to_string(port);
  }
  return std::to_string(tcp::acceptor(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)).local_endpoint().port());
}

}  // namespace

bool started_by_mpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr && std::getenv("RANK") == nullptr; }

bool draws_in_terminal() {
  if (::isatty(STDOUT_FILENO) != 1) return false;
  const char* const said = std::getenv("MILLRACE_TERMINAL");
  return !started_by_mpirun() || (said != nullptr && std::string_view(said) == "1");
}

std::unique_ptr<RankWorld> join_ranks() {
  return RankWorld::join(rank_environment(), [](Rendezvous& meeting) {
    return started_by_mpirun() ? make_mpi_communicator() : make_tcp_communicator(meeting);
  });
}

bool said_by_another(int rank, const std::atomic<bool>& asked) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3 * std::min(rank, 4));
  if (asked) return false;  // somebody else asked, before the error
  while (!asked && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return rank > 0 && asked;
}

void become_ranks(int ranks, char** argv) {
  if (mpi_status() == "not in this build")
    throw UnsupportedError(
        "--ranks: this build has no MPI: build with the Debian packages libopenmpi-dev and openmpi-bin, or start the ranks "
        "yourself with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
  ::setenv("MASTER_PORT", free_port().c_str(), 0);
  ::setenv("MILLRACE_TERMINAL", ::isatty(STDOUT_FILENO) == 1 ? "1" : "0", 1);
  if (::geteuid() == 0) {
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  std::vector<std::string> words{"mpirun", "-x", "MASTER_PORT", "-x", "MILLRACE_TERMINAL", "-n", std::to_string(ranks), "/proc/self/exe"};
  std::vector<char> self(4096);
  const ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (length > 0) words.back() = std::string(self.data(), static_cast<std::size_t>(length));
  for (char** word = argv + 1; *word != nullptr; ++word) {
    const std::string_view text(*word);
    if (text == "--ranks" && word[1] != nullptr)
      ++word;
    else if (!text.starts_with("--ranks="))
      words.emplace_back(text);
  }
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp("mpirun", pointers.data());
  throw IoError(fmt::format("--ranks: cannot start mpirun: {}; install the Debian package openmpi-bin", std::strerror(errno)));
}

}  // namespace millrace::app
