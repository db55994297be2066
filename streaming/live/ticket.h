// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace millrace {

/// 128 random bits as 32 hexadecimal digits, which nobody guesses: who has them is who they were given to. IoError when the system has none.
std::string make_ticket();

}  // namespace millrace
