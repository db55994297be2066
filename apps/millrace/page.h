// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <millrace/streaming/live/server.h>
#include <millrace/streaming/transport/http_page.h>

namespace millrace::app {

/// The page of a server, `/`, with what it loads: its style, its script and the client of apps/clients/, all from here. `/NAME` of
/// each model is that page for it. `/now`, and `/now/NAME`, is JSON, the numbers of ticks, rows and sessions, for those who know a token (else 401). `*server` is null before there is one.
std::shared_ptr<const HttpPages> page_of(std::shared_ptr<const Server*> server);

}  // namespace millrace::app
