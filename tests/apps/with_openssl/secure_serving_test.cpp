// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <apps/serving.h>
#include <millrace/runtime/files/npy.h>
#include <support/with_openssl/certificates.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

const std::string token = "the-token-of-this-test";

/// Certificates, tokens, and a file to send.
struct Files {
  Files() {
    write_npy(folder / "x.npy", make_darray(DDim{4, Serving::features}, 0.0f));
    std::ofstream(folder / "tokens") << token << "\n";
    std::ofstream(folder / "wrong") << token << "-not\n";
  }
  std::string path(const char* name) const { return (folder / name).string(); }
  Ended stream(const std::string& url, std::vector<std::string> more) const {
    std::vector<std::string> words{"stream", url, path("x.npy")};
    words.insert(words.end(), more.begin(), more.end());
    return millrace_command(words);
  }
  ScratchFolder folder;
  Authority authority{folder / "ca"};
};

}  // namespace

TEST_CASE("millrace stream reaches a server with TLS and tokens by tcps and wss, and says why otherwise") {
  Files files;
  const auto made = files.authority.make();
  const Serving serving({"--tls-cert", made.certificate, "--tls-key", made.key, "--token-file", files.path("tokens")});
  for (const std::string& scheme : {std::string("tcp"), std::string("ws")}) {
    CAPTURE(scheme);
    const std::string at = "://127.0.0.1:" + serving.port + (scheme == "ws" ? "/stream" : "");
    const auto said = [&](const std::string& url, std::vector<std::string> more) {
      const Ended ended = files.stream(url, std::move(more));
      CHECK(ended.code == (ended.err.empty() ? 0 : 1));
      return ended.err;
    };
    CHECK(said(scheme + "s" + at, {"--ca", files.authority.file(), "--token-file", files.path("tokens")}) == "");
    CHECK(said(scheme + "s" + at, {"--insecure", "--token-file", files.path("tokens")}) == "");
    const std::string untrusted = said(scheme + "s" + at, {"--token-file", files.path("tokens")});
    CHECK(untrusted.find("unable to get local issuer certificate") != untrusted.npos);
    for (const std::string& refused : {said(scheme + "s" + at, {"--ca", files.authority.file()}),
                                       said(scheme + "s" + at, {"--ca", files.authority.file(), "--token-file", files.path("wrong")})}) {
      CAPTURE(refused);
      CHECK(refused.find("token") != refused.npos);
      CHECK(refused.find(token) == refused.npos);
    }
    CHECK(said(scheme + at, {"--token-file", files.path("tokens")}) != "");  // no TLS: nobody answers
  }
}

TEST_CASE("SIGHUP reads certificate and tokens again, and a file that is wrong by then changes nothing") {
  Files files;
  const auto expired = files.authority.make({}, -7000, -60), good = files.authority.make();
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(expired.certificate, files.folder / "now.pem");
  std::filesystem::copy_file(expired.key, files.folder / "now.key");
  std::filesystem::copy_file(files.folder / "tokens", files.folder / "known");
  Serving serving({"--tls-cert", files.path("now.pem"), "--tls-key", files.path("now.key"), "--token-file", files.path("known")});
  const std::string url = "tcps://127.0.0.1:" + serving.port;
  const std::vector<std::string> trusting{"--ca", files.authority.file(), "--token-file", files.path("tokens")};
  const auto hang_up = [&](const std::string& expected) {
    serving.server->signal(SIGHUP);
    for (int tries = 0; tries < 500 && serving.server->err().find(expected) == std::string::npos; ++tries) ::usleep(10000);
    CHECK(serving.server->err().find(expected) != std::string::npos);
  };
  CHECK(files.stream(url, trusting).err.find("certificate has expired") != std::string::npos);
  std::filesystem::copy_file(good.certificate, files.folder / "now.pem", overwrite);
  hang_up("nothing was read again: tls: ");
  std::filesystem::copy_file(good.key, files.folder / "now.key", overwrite);
  std::ofstream(files.folder / "known") << "short\n";
  hang_up("nothing was read again: tokens: ");
  CHECK(files.stream(url, trusting).err.find("certificate has expired") != std::string::npos);  // the good one waits for its tokens
  std::filesystem::copy_file(files.folder / "tokens", files.folder / "known", overwrite);
  hang_up("certificate and tokens were read again");
  CHECK(files.stream(url, trusting).err == "");
}

TEST_CASE("an address that others can reach takes TLS and tokens, or a word that says otherwise") {
  Files files;
  const auto made = files.authority.make();
  const Serving serving;
  const std::vector<std::string> start{"serve", serving.model(), "--port", "0", "--address", "0.0.0.0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), start.begin(), start.end());
    return more;
  };
  check_refused(with({"--token-file", files.path("tokens")}), 2, {"--tls-cert", "--insecure"});
  check_refused(with({"--tls-cert", made.certificate, "--tls-key", made.key}), 2, {"--token-file"});
  check_refused(with({"--tls-cert", made.certificate}), 2, {"--tls-key"});
  for (const std::vector<std::string>& enough :
       {std::vector<std::string>{"--tls-cert", made.certificate, "--tls-key", made.key, "--token-file", files.path("tokens")},
        std::vector<std::string>{"--insecure"}}) {
    Process server(with(enough));
    CHECK(server.first_line().find(" on 0.0.0.0:") != std::string::npos);
    server.signal(SIGTERM);
    CHECK(server.wait() == 0);
  }
}
