// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The one place that says which Asio this is: Boost's, by the name that both have. No other header spells it.
namespace boost::asio {
class io_context;
}
namespace millrace {
namespace asio = boost::asio;
}
