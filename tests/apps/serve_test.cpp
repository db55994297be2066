// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <apps/serving.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/protocol/frame.h>
#include <streaming/live/live_model.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = Serving::features, hidden = Serving::hidden;

}  // namespace

TEST_CASE("files streamed to a server give the bits of millrace run, over TCP and WebSocket, and SIGTERM ends it with 0") {
  Serving serving({"--place", "cpu,cpu"});
  for (int i = 0; i < 3; ++i) {
    const Tensor x = random_tensor(serving.random, {5 + 20 * i, features});
    const std::string name = "x" + std::to_string(i);
    write_npy(serving.folder / (name + ".npy"), x);
    write_npy(serving.folder / "boot.npy", make_darray(DDim{1, hidden}, 0.0f));
    const Ended whole = millrace_command({"run", serving.model(), "--output-dir", serving.path("run-" + name), "--input",
                                          "x=" + serving.path(name + ".npy"), "--lod", "x=[[" + std::to_string(5 + 20 * i) + "]]",
                                          "--input", "boot=" + serving.path("boot.npy")});
    CHECK(whole.err == "");
    REQUIRE(whole.code == 0);
  }
  for (const std::string& url : {"tcp://127.0.0.1:" + serving.port, "ws://127.0.0.1:" + serving.port + "/stream"}) {
    const Ended streamed = millrace_command(
        {"stream", url, serving.path("x0.npy"), serving.path("x1.npy"), serving.path("x2.npy"), "--output-dir", serving.path("streamed")});
    CHECK(streamed.err == "");
    REQUIRE(streamed.code == 0);
    CHECK(streamed.out.find("sessions=3 ended=3 steps=75") != std::string::npos);
    for (const char* name : {"x0", "x1", "x2"})
      CHECK(read_file(serving.folder / "streamed" / name / "y.npy") == read_file(serving.folder / ("run-" + std::string(name)) / "y.npy"));
    std::filesystem::remove_all(serving.folder / "streamed");
  }
  serving.server->signal(SIGTERM);
  CHECK(serving.server->wait() == 0);
  // A line for each session at its end; each command asks the server first what it takes.
  const std::string log = serving.server->err();
  CHECK(std::count(log.begin(), log.end(), '\n') == 8);
  CHECK(log.find(": ended, 45 steps, ") != std::string::npos);
  const std::string stats = read_file(serving.folder / "stats.json");
  CHECK(stats.find("\"rows\": 150") != std::string::npos);
  const std::string place = "{\"model\": \"default\", \"place\": \"cpu\", ";
  const auto first = stats.find("\"places\": [" + place), second = stats.find(place, first + 30);
  CHECK(first != std::string::npos);
  CHECK(second != std::string::npos);
  CHECK(stats.find("\"lost\": true") == std::string::npos);
}

TEST_CASE("what run takes whole is streamed by the same flags, a session a sequence, and gives the same files") {
  Serving serving;
  write_npy(serving.folder / "x.npy", random_tensor(serving.random, {9, features}));
  write_npy(serving.folder / "boot.npy", random_tensor(serving.random, {3, hidden}));
  std::vector<std::string> rows{"--input",    "x=" + serving.path("x.npy"), "--input", "boot=" + serving.path("boot.npy"), "--lod",
                                "x=[[4,0,5]]"};
  const auto command = [&](std::vector<std::string> words, const std::string& folder) {
    words.insert(words.end(), rows.begin(), rows.end());
    words.insert(words.end(), {"--output-dir", serving.path(folder)});
    return millrace_command(words);
  };
  const std::string url = "tcp://127.0.0.1:" + serving.port;
  REQUIRE(command({"run", serving.model()}, "run").code == 0);
  const Ended streamed = command({"stream", url, "--flush"}, "streamed");
  CHECK(streamed.err == "");
  CHECK(streamed.out.find("sessions=3 ended=3 steps=9") != std::string::npos);
  for (const char* file : {"y.npy", "y.lod.json"})
    CHECK(read_file(serving.folder / "streamed" / file) == read_file(serving.folder / "run" / file));
  const Ended one = millrace_command({"stream", url, "--one-session", "--input", "x=" + serving.path("x.npy"), "--lod", "x=[[4,0,5]]"});
  CHECK(one.out.find("sessions=1 ended=1 steps=9") != std::string::npos);
  check_refused({"stream", url}, 2, {"FILE", "--input"});
  check_refused({"stream", url, serving.path("x.npy"), "--flush"}, 2, {"--input"});
  check_refused({"stream", url, serving.path("x.npy"), "--input", "x=" + serving.path("x.npy")}, 2, {"FILE", "--input"});
  check_refused({"stream", url, "--input", "x=a.wav"}, 2, {"a.wav"});
  check_refused({"stream", url, "--input", "x=" + serving.path("x.npy"), "--lod", "x=[[4,6]]"}, 1, {"x.npy", "--lod"});
  check_refused({"stream", url, "--input", "q=" + serving.path("x.npy")}, 1, {"'x'"});
}

TEST_CASE("a port in use, an address outside and a program that cannot be fed live are one line and exit code 1") {
  Serving serving;
  check_refused({"serve", serving.model(), "--port", serving.port}, 1, {serving.port});
  check_refused({"serve", serving.model(), "--port", "0", "--address", "0.0.0.0"}, 2,
                {"0.0.0.0", "--tls-cert", "--token-file", "--insecure"});
  check_refused({"serve", serving.path("absent.mr"), "--port", "0"}, 1, {"absent.mr"});
  check_refused({"serve", serving.model(), "--port", "0", "--idle-timeout", "nan"}, 2, {"--idle-timeout", "'nan'"});
  check_refused({"serve", serving.model(), "--port", "99999"}, 2, {"--port: Value 99999 not in range 0 to 65535"});
  check_refused({"stream", "tcp://127.0.0.1:1", "x.npy", "--speed", "nan"}, 2, {"--speed"});
  check_refused({"serve", serving.model(), "--port", "0", "--state", "x:nothing"}, 1, {"nothing"});
}

TEST_CASE("a file that does not fit and a server that is not there are one line and exit code 1") {
  Serving serving;
  write_npy(serving.folder / "wide.npy", make_darray(DDim{2, 9}, 0.0f));
  write_npy(serving.folder / "whole.npy", Tensor::from<std::int64_t>({1, 2, 3}).reshape({1, 3}));
  const std::string url = "tcp://127.0.0.1:" + serving.port;
  check_refused({"stream", url, serving.path("wide.npy")}, 1, {"wide.npy", "[3]", "[2, 9]"});
  check_refused({"stream", url, serving.path("whole.npy")}, 1, {"whole.npy", "f32", "i64"});
  check_refused({"stream", url, serving.path("absent.npy")}, 1, {"absent.npy"});
  check_refused({"stream", url, serving.path("sound.wav")}, 1, {"sound.wav"});
  serving.server->signal(SIGINT);
  CHECK(serving.server->wait() == 0);
  check_refused({"stream", url, serving.path("wide.npy")}, 1, {serving.port});
}

TEST_CASE("a client that has said nothing yet does not keep the server from ending") {
  for (const char* said : {"", "GET /str"}) {
    INFO(said);
    Serving serving;
    asio::io_context context;
    asio::ip::tcp::socket silent(context);
    silent.connect({asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(std::stoi(serving.port))});
    asio::write(silent, asio::buffer(std::string(said)));
    ::usleep(100000);
    const auto before = std::chrono::steady_clock::now();
    serving.server->signal(SIGTERM);
    CHECK(serving.server->wait() == 0);
    CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(3));
  }
}

TEST_CASE("a flag for a limit is a limit, and a second signal ends the server within a second") {
  Serving serving({"--max-sessions", "1", "--idle-timeout", "30"});
  serving.server->signal(SIGHUP);  // a terminal that closes takes no sessions along
  write_npy(serving.folder / "x.npy", make_darray(DDim{4, features}, 0.0f));
  const Ended crowded = millrace_command({"stream", "tcp://127.0.0.1:" + serving.port, serving.path("x.npy"), serving.path("x.npy")});
  CHECK(crowded.code == 1);
  CHECK(crowded.err.find("overload") != std::string::npos);
  // A client that was told to go and stays keeps the server draining.
  asio::io_context context;
  asio::ip::tcp::socket silent(context);
  silent.connect({asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(std::stoi(serving.port))});
  asio::write(silent, asio::buffer(encode_frame(text_message(to_json(StartMessage())))));
  ::usleep(100000);
  serving.server->signal(SIGTERM);
  ::usleep(100000);
  const auto before = std::chrono::steady_clock::now();
  serving.server->signal(SIGTERM);
  CHECK(serving.server->wait() == 1);
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(1));
}
