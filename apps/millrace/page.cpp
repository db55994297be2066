// SPDX-License-Identifier: Apache-2.0
#include "page.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace millrace::pages {

// Made of the files of page/ and clients/ by apps/CMakeLists.txt.
extern const char* const index_html;
extern const char* const page_css;
extern const char* const page_js;
extern const char* const millrace_js;

}  // namespace millrace::pages

namespace millrace::app {
namespace {

struct File {
  std::string_view path;
  const char* content_type;
  const char* text;
};

std::optional<HttpPage> file_at(std::string_view path) {
  const File files[] = {{"/", "text/html; charset=utf-8", pages::index_html},
                        {"/page.css", "text/css; charset=utf-8", pages::page_css},
                        {"/page.js", "text/javascript; charset=utf-8", pages::page_js},
                        {"/millrace.js", "text/javascript; charset=utf-8", pages::millrace_js}};
  for (const File& file : files) {
    if (file.path != path) continue;
    HttpPage page;
    page.content_type = file.content_type;
    page.body = file.text;
    // Nothing but what this server gives is loaded, run or spoken to, and no other page may frame it.
    page.headers = {{"Content-Security-Policy",
                     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
                     "form-action 'none'; frame-ancestors 'none'"},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cache-Control", "no-cache"}};
    return page;
  }
  return std::nullopt;
}

bool has_model(const Server* server, std::string_view name) {
  if (server == nullptr) return false;
  const auto models = server->models();
  return std::any_of(models.begin(), models.end(), [&](const Server::ModelStats& one) { return one.name == name; });
}

/// `model`: whose numbers are wanted; empty: those of all.
HttpPage now_page(const Server* server, std::string_view model, bool has_token) {
  HttpPage page;
  page.headers = {{"Cache-Control", "no-store"}};
  if (!has_token) {
    page.status = 401;
    page.headers.emplace_back("WWW-Authenticate", "Bearer");
    page.body = "expected a token that this server knows\n";
    return page;
  }
  std::uint64_t sessions = 0, ticks = 0, rows = 0;
  for (const Server::PlaceStats& one : server == nullptr ? std::vector<Server::PlaceStats>() : server->places()) {
    if (!model.empty() && one.model != model) continue;
    sessions += one.sessions;
    ticks += one.ticks.ticks;
    rows += one.ticks.rows;
  }
  page.content_type = "application/json";
  page.body = fmt::format("{{\"sessions\":{},\"ticks\":{},\"rows\":{}}}\n", sessions, ticks, rows);
  return page;
}

}  // namespace

std::shared_ptr<const HttpPages> page_of(std::shared_ptr<const Server*> server) {
  return std::make_shared<const HttpPages>([server = std::move(server)](const HttpQuestion& question) -> std::optional<HttpPage> {
    constexpr std::string_view now = "/now", of_model = "/now/";
    if (question.path == now) return now_page(*server, {}, question.has_token);
    if (const std::string_view path = question.path; path.starts_with(of_model) && has_model(*server, path.substr(of_model.size())))
      return now_page(*server, path.substr(of_model.size()), question.has_token);
    const bool of_a_model = question.path.starts_with('/') && has_model(*server, question.path.substr(1));
    return file_at(of_a_model ? "/" : question.path);
  });
}

}  // namespace millrace::app
