// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The one place that says which Asio this is: Boost's, by the name that both have.
namespace boost::asio {}
namespace millrace {
namespace asio = boost::asio;
}
