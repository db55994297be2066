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

TEST_CASE("a request names one host: HTTP/1.1 always, HTTP/1.0 at most") {
  const AcceptOptions accept = with_page();
  for (const char* head : {"GET / HTTP/1.1", "GET / HTTP/1.1\r\nHost: a\r\nHost: a", "GET / HTTP/1.1\r\nHost: a b",
                           "GET / HTTP/1.1\r\nHost: a/b", "GET / HTTP/1.0\r\nHost: a\r\nHost: b", "GET http://a\"b/ HTTP/1.1\r\nHost: a"}) {
    CAPTURE(head);
    CHECK(answer_to(accept, head).starts_with("HTTP/1.1 400 "));
  }
  for (const char* head : {"GET / HTTP/1.0", "GET / HTTP/1.0\r\nHost: a", "GET / HTTP/1.1\r\nHost: [::1]:80", "GET / HTTP/1.1\r\nHost:"}) {
    CAPTURE(head);
    CHECK(answer_to(accept, head).starts_with("HTTP/1.1 200 "));
  }
}

TEST_CASE("the absolute form of a target is its path at its host, of which Host says nothing") {
  const AcceptOptions accept = with_page();
  for (const char* target : {"http://127.0.0.1/", "HTTP://a:80", "https://a/?b=/c", "http://a?b"}) {
    CAPTURE(target);
    CHECK(answer_to(accept, "GET " + std::string(target) + " HTTP/1.1\r\nHost: a").ends_with("the page"));
  }
  CHECK(answer_to(accept, "GET http://a/other HTTP/1.1\r\nHost: a").starts_with("HTTP/1.1 404 "));
  std::string head = upgrade("");
  head.replace(head.find("/stream"), 7, "ws://127.0.0.1/stream");
  CHECK(upgraded(answer_to(accept, head)));
  head = upgrade("Origin: http://127.0.0.1:80");
  head.replace(head.find("/stream"), 7, "ws://rebound.example/stream");
  CHECK(answer_to(accept, head).starts_with("HTTP/1.1 403 "));
}

TEST_CASE("sub-protocols on several lines are one list") {
  const ScratchFolder folder;
  std::ofstream(folder / "tokens") << token << "\n";
  AcceptOptions accept;
  accept.tokens = std::make_shared<TokenSet>((folder / "tokens").string());
  const std::string answer =
      answer_to(accept, upgrade("Sec-WebSocket-Protocol: other, millrace.v1\r\nSec-WebSocket-Protocol: bearer." + token));
  CHECK(upgraded(answer));
  CHECK(answer.find("Sec-WebSocket-Protocol: millrace.v1\r\n") != answer.npos);
}

TEST_CASE("a WebSocket handshake without its key or of another version is broken, and says what is missing") {
  const auto broken = [](const std::string& from, const std::string& to) {
    std::string head = upgrade("");
    head.replace(head.find(from), from.size(), to);
    Loopback loop;
    auto socket = loop.raw();
    asio::write(socket, asio::buffer(head + "\r\n\r\n"));
    const std::string answer = loop.read_to_end(socket);
    loop.run_until([&] { return loop.server_error.has_value(); });
    CHECK(wire_error(*loop.server_error) == ErrorCode::bad_message);
    return answer;
  };
  const std::string key = "dGhlIHNhbXBsZSBub25jZQ==";
  for (const std::string& other : {std::string(), std::string("x"), std::string(24, 'A'), std::string(200, 'A'), key.substr(4)}) {
    CAPTURE(other);
    CHECK(broken(key, other).starts_with("HTTP/1.1 400 "));
  }
  for (const char* other : {"Sec-WebSocket-Version: 12", "X: 13"}) {
    const std::string answer = broken("Sec-WebSocket-Version: 13", other);
    CHECK(answer.starts_with("HTTP/1.1 426 "));
    CHECK(answer.find("Connection: upgrade, close\r\n") != answer.npos);
    CHECK(answer.find("Upgrade: websocket\r\n") != answer.npos);
    CHECK(answer.find("Sec-WebSocket-Version: 13\r\n") != answer.npos);
  }
}

TEST_CASE("each answer says when it was made, and that the connection closes where it does") {
  const AcceptOptions accept = with_page();
  for (const std::string& head : {std::string("GET / HTTP/1.1\r\nHost: a"), std::string("GET /other HTTP/1.1\r\nHost: a"), upgrade("")}) {
    CAPTURE(head);
    const std::string answer = answer_to(accept, head);
    const std::size_t date = answer.find("\r\nDate: ");
    REQUIRE(date != answer.npos);
    CHECK(answer.substr(date + 8 + 25, 6) == " GMT\r\n");
    CHECK((upgraded(answer) || answer.find("Connection: close\r\n") != answer.npos));
  }
}
