// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/tls.h>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>

using namespace millrace;

TEST_CASE("without OpenSSL, asking for TLS is refused by the name of what is missing") {
  CHECK_THROWS_WITH_AS(TlsServer("certificate.pem", "key.pem"), doctest::Contains("MILLRACE_OPENSSL"), UnsupportedError);
  CHECK_THROWS_WITH_AS(TlsClient{}, doctest::Contains("MILLRACE_OPENSSL"), UnsupportedError);
  CHECK_THROWS_WITH_AS(TlsClient::trusting_anyone(), doctest::Contains("MILLRACE_OPENSSL"), UnsupportedError);
}
