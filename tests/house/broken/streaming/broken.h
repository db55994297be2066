// SPDX-License-Identifier: Apache-2.0
// Breaks the rules, for the tests that the rules can fail; silero is the word.
#include <nlohmann/json.hpp>
#include "../docs/nothing.h"
#include <millrace/streaming/live/server.h>
