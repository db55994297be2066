// SPDX-License-Identifier: Apache-2.0
// The meeting of the ranks of a TcpWorld, which gives each pair a connection.
#include <millrace/runtime/distributed/internal/tcp_world.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/errors.h>

namespace millrace::detail {
namespace {

using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

/// Connections that have not said their rank yet, besides one of each rank.
constexpr std::size_t most_strangers = 64;
constexpr std::size_t token_bytes = 32;

/// The secret by which the ranks of this world know one another: a port scanner does not become one of them.
std::string new_token() {
  std::random_device random;
  std::string token;
  while (token.size() < token_bytes) token += fmt::format("{:08x}", random());
  return token.substr(0, token_bytes);
}

}  // namespace

void TcpWorld::connect(Rendezvous& ranks) {
  tcp::acceptor acceptor(io_);
  error_code error;
  const auto here = asio::ip::make_address(ranks.address(), error);
  if (!error) acceptor.open(tcp::endpoint(here, 0).protocol(), error);
  if (!error) acceptor.bind(tcp::endpoint(here, 0), error);
  if (!error) acceptor.listen(4096, error);
  if (error) throw CommunicationError(fmt::format("{}: rank {} cannot listen at {}: {}", title(), rank_, ranks.address(), error.message()));
  const std::vector<std::string> all = ranks.exchange(
      "tcp communicator " + options_.name,
      fmt::format("{} {} {}", rank_ == 0 ? new_token() : std::string(token_bytes, '-'), acceptor.local_endpoint().port(), ranks.address()));
  const std::string token = all[0].substr(0, token_bytes);
  accept(acceptor, token);
  for (int peer = 0; peer < rank_; ++peer) greet(peer, all[static_cast<std::size_t>(peer)], token);
  const Clock::time_point until = Clock::now() + options_.meeting;
  const auto met = [this] { return std::cmp_equal(links_.size(), size_ - 1); };
  while (!met() && io_.run_one_until(until) > 0) {
  }
  io_.restart();
  io_.poll();  // ranks whose word is there already
  acceptor.close(error);
  for (const TcpLinkPtr& link : strangers_) link->close();
  strangers_.clear();
  io_.restart();
  io_.poll();  // no handler that knows the acceptor is left behind it
  if (met()) return;
  std::vector<int> missing;
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && !links_.contains(peer)) missing.push_back(peer);
  throw DeadlineError(fmt::format("{}: rank {} has no connection with rank{} {} within {} ms", title(), rank_,
                                  missing.size() > 1 ? "s" : "", fmt::join(missing, ", "), options_.meeting.count()));
}

/// `said`: what the rank `peer` gave to all, its token, port and address.
void TcpWorld::greet(int peer, const std::string& said, const std::string& token) {
  error_code error;
  const std::size_t space = std::min(said.find(' ', token_bytes + 1), said.size());
  const auto there = asio::ip::make_address(said.substr(std::min(space + 1, said.size())), error);
  const auto port = static_cast<std::uint16_t>(std::strtoul(said.c_str() + std::min(token_bytes + 1, said.size()), nullptr, 10));
  if (error) throw MismatchError(fmt::format("{}: expected the address of rank {}, found '{}'", title(), peer, said));
  auto socket = std::make_shared<tcp::socket>(io_);
  socket->async_connect(tcp::endpoint(there, port), [this, peer, socket, token](error_code refused) {
    if (refused) return;
    const auto link = std::make_shared<TcpLink>(std::move(*socket));
    link->write({TcpKind::hello, static_cast<std::uint64_t>(rank_), 0, token});
    links_[peer] = link;
  });
}

void TcpWorld::accept(tcp::acceptor& acceptor, const std::string& token) {
  acceptor.async_accept([this, &acceptor, token](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (!error) {
      // The oldest goes: a rank speaks at once.
      if (strangers_.size() >= most_strangers + static_cast<std::size_t>(size_)) {
        const TcpLinkPtr oldest = strangers_.front();
        strangers_.erase(strangers_.begin());
        oldest->close();
      }
      const auto link = std::make_shared<TcpLink>(std::move(socket));
      strangers_.push_back(link);
      link->read_one(token_bytes, [this, link, token](const TcpFrame* said) {
        std::erase(strangers_, link);
        const bool known = said != nullptr && said->kind == TcpKind::hello && said->text == token && std::cmp_greater(said->a, rank_) &&
                           std::cmp_less(said->a, size_);
        if (!known || !links_.emplace(static_cast<int>(said->a), link).second) link->close();
      });
    }
    accept(acceptor, token);
  });
}

void TcpWorld::listen() {
  for (const auto& [rank, link] : links_) {
    const int peer = rank;
    TcpLink::Reader reader;
    reader.frame = [this, peer](const TcpFrame& frame) { handle(peer, frame); };
    reader.room = [this, peer](std::uint64_t number, std::uint64_t bytes, void** to) { return room(peer, number, bytes, to); };
    reader.end = [this, peer](const std::string& why) { lost(peer, why); };
    link->read(std::move(reader));
  }
}

}  // namespace millrace::detail
