// SPDX-License-Identifier: Apache-2.0
#pragma once

/// For sources alone: which Asio `asio::` is in namespace millrace. Headers that are installed spell boost::asio, because a program on stand-alone
/// Asio has an `asio` of its own, beside which `using namespace millrace` must not bring another.
namespace boost::asio {}
namespace millrace {
namespace asio = boost::asio;
}
