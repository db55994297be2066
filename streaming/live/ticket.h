// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace millrace {

/// 128 random bits as 32 hexadecimal digits, which nobody guesses: the client that shows them is the one that got them. IoError when the system has none.
std::string make_ticket();

}  // namespace millrace
