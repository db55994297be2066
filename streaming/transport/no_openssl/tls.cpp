// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/tls.h>

#include <millrace/tensor/error.h>

namespace millrace {
namespace {

[[noreturn]] void absent() { throw UnsupportedError("tls: this build has no OpenSSL (MILLRACE_OPENSSL, Debian package libssl-dev)"); }

}  // namespace

struct TlsServer::State {};
struct TlsClient::State {};

TlsServer::TlsServer(const std::string&, const std::string&) { absent(); }
void TlsServer::reload() { absent(); }
ByteStream TlsServer::accept(boost::asio::ip::tcp::socket) const { absent(); }

TlsClient::TlsClient(const std::string&) { absent(); }
TlsClient::TlsClient(std::shared_ptr<State> state) : state_(std::move(state)) {}
TlsClient TlsClient::trusting_anyone() { absent(); }
ByteStream TlsClient::connect(boost::asio::ip::tcp::socket, const std::string&) const { absent(); }

}  // namespace millrace
