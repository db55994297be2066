// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/http_page.h>

#include <fstream>
#include <memory>
#include <string>

#include <doctest/doctest.h>

#include <millrace/streaming/transport/wire_error.h>
#include <streaming/transport/loopback.h>
#include <support/bytes.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

const std::string token = "a-token.of_some~length";

AcceptOptions with_page() {
  AcceptOptions accept;
  accept.pages = std::make_shared<const HttpPages>([](const HttpQuestion& question) -> std::optional<HttpPage> {
    if (question.path != "/") return std::nullopt;
    HttpPage page;
    page.body = question.has_token ? "the page" : "the page of a stranger";
    page.headers.emplace_back("X-Of-The-Page", "yes");
    return page;
  });
  return accept;
}

/// The answer of the server to a request.
std::string answer_to(const AcceptOptions& accept, const std::string& head) {
  Loopback loop(accept);
  auto socket = loop.raw();
  asio::write(socket, asio::buffer(head + "\r\n\r\n"));
  return loop.read_to_end(socket);
}

std::string upgrade(const std::string& more) {
  return "GET /stream HTTP/1.1\r\nHost: 127.0.0.1:80\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==" +
         (more.empty() ? "" : "\r\n" + more);
}

bool upgraded(const std::string& answer) { return answer.starts_with("HTTP/1.1 101 "); }

}  // namespace

TEST_CASE("a GET of a page gets it with its headers, whatever its query, and no other route or method does") {
  const AcceptOptions accept = with_page();
  for (const char* target : {"/", "/?a=/b"}) {
    const std::string answer = answer_to(accept, "GET " + std::string(target) + " HTTP/1.1\r\nHost: elsewhere.example");
    CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(answer.find("X-Of-The-Page: yes\r\n") != answer.npos);
    CHECK(answer.ends_with("\r\n\r\nthe page"));
  }
  CHECK(answer_to(accept, "GET /other HTTP/1.1\r\nHost: a").starts_with("HTTP/1.1 404 "));
  CHECK(answer_to(accept, "POST / HTTP/1.1\r\nHost: a").starts_with("HTTP/1.1 405 "));
  CHECK(answer_to(accept, "POST / HTTP/1.1\r\nHost: a").find("\r\nAllow: GET, HEAD\r\n") != std::string::npos);
  CHECK(answer_to(AcceptOptions(), "GET / HTTP/1.1\r\nHost: a").starts_with("HTTP/1.1 404 "));
}

TEST_CASE("the answer to a HEAD is that to a GET without its body") {
  const AcceptOptions accept = with_page();
  const std::string found = answer_to(accept, "HEAD / HTTP/1.1\r\nHost: a");
  CHECK(found.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(found.find("Content-Length: 8\r\n") != std::string::npos);
  CHECK(found.ends_with("\r\n\r\n"));
  const std::string absent = answer_to(accept, "HEAD /other HTTP/1.1\r\nHost: a");
  CHECK(absent.starts_with("HTTP/1.1 404 "));
  CHECK(absent.ends_with("\r\n\r\n"));
}

TEST_CASE("a page knows whether a token was shown") {
  const ScratchFolder folder;
  std::ofstream(folder / "tokens") << token << "\n";
  AcceptOptions accept = with_page();
  accept.tokens = std::make_shared<TokenSet>((folder / "tokens").string());
  CHECK(answer_to(accept, "GET / HTTP/1.1\r\nHost: a").ends_with("the page of a stranger"));
  CHECK(answer_to(accept, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + token).ends_with("the page"));
}

TEST_CASE("a page may connect from its own address and from localhost, and a name takes an allowed origin") {
  AcceptOptions accept = with_page();
  CHECK(upgraded(answer_to(accept, upgrade("Origin: http://127.0.0.1:80"))));
  for (const char* origin : {"https://127.0.0.1:80", "http://127.0.0.1:81", "http://127.0.0.1", "http://localhost:80", "null", ""})
    CHECK(answer_to(accept, upgrade("Origin: " + std::string(origin))).starts_with("HTTP/1.1 403 "));
  const auto of_host = [&](const std::string& host) {
    std::string head = upgrade("Origin: http://" + host);
    head.replace(head.find("127.0.0.1:80"), std::string("127.0.0.1:80").size(), host);
    return answer_to(accept, head);
  };
  CHECK(upgraded(of_host("localhost:80")));
  CHECK(upgraded(of_host("[::1]:80")));
  CHECK(of_host("rebound.example:80").starts_with("HTTP/1.1 403 "));
  CHECK(of_host("127.0.0.1.example:80").starts_with("HTTP/1.1 403 "));
  accept.origins = {"http://rebound.example:80"};
  CHECK(upgraded(of_host("rebound.example:80")));
  accept.pages = nullptr;  // without a page no origin is its own
  CHECK(answer_to(accept, upgrade("Origin: http://127.0.0.1:80")).starts_with("HTTP/1.1 403 "));
}

TEST_CASE("a token is taken from the header and from the sub-protocols, of which millrace.v1 alone is answered") {
  const ScratchFolder folder;
  std::ofstream(folder / "tokens") << token << "\n";
  AcceptOptions accept;
  accept.tokens = std::make_shared<TokenSet>((folder / "tokens").string());
  CHECK(upgraded(answer_to(accept, upgrade("Authorization: Bearer " + token))));
  CHECK(upgraded(answer_to(accept, upgrade("authorization: bearer " + token))));
  const std::string offered = answer_to(accept, upgrade("Sec-WebSocket-Protocol: millrace.v1, bearer." + token));
  CHECK(upgraded(offered));
  CHECK(offered.find("Sec-WebSocket-Protocol: millrace.v1\r\n") != offered.npos);
  CHECK(offered.find(token) == offered.npos);
  const std::string bare = answer_to(accept, upgrade("Sec-WebSocket-Protocol: bearer." + token));
  CHECK(upgraded(bare));
  CHECK(bare.find("Sec-WebSocket-Protocol") == bare.npos);
  for (const std::string& shown :
       {std::string(), "Authorization: " + token, "Authorization: Basic " + token, "Authorization: Bearer  " + token,
        std::string("Authorization: Bearer"), std::string("Sec-WebSocket-Protocol: millrace.v1, bearer."),
        "Sec-WebSocket-Protocol: bearer" + token, "Cookie: bearer." + token}) {
    CAPTURE(shown);
    const std::string answer = answer_to(accept, upgrade(shown));
    CHECK(answer.starts_with("HTTP/1.1 401 "));
    CHECK(answer.find("WWW-Authenticate: Bearer\r\n") != answer.npos);
  }
}
