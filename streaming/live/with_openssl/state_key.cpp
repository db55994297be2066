// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/state_key.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <millrace/runtime/files/file.h>
#include <millrace/tensor/error.h>

namespace millrace {

StateKey::StateKey(std::string secret) : secret_(std::move(secret)) {
  if (secret_.size() < least_bytes || secret_.size() > most_bytes)
    throw ArgumentError("state key: expected a secret of " + std::to_string(least_bytes) + " to " + std::to_string(most_bytes) +
                        " bytes, found " + std::to_string(secret_.size()));
}

StateKey StateKey::random() {
  std::string secret(least_bytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()), static_cast<int>(secret.size())) != 1)
    throw IoError("state key: no random bytes are to be had");
  return StateKey(std::move(secret));
}

StateKey StateKey::read(const std::filesystem::path& path) {
  std::string secret = read_file(path, most_bytes);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  return StateKey(std::move(secret));
}

StateKey::Mac StateKey::sign(std::string_view bytes) const {
  Mac mac{};
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()), reinterpret_cast<const unsigned char*>(bytes.data()),
           bytes.size(), reinterpret_cast<unsigned char*>(mac.data()), &size);
  if (made == nullptr || size != mac.size()) throw OutOfMemoryError("state key: OpenSSL made no HMAC");
  return mac;
}

bool StateKey::verify(std::string_view bytes, std::string_view mac) const {
  const Mac right = sign(bytes);
  return mac.size() == right.size() && CRYPTO_memcmp(right.data(), mac.data(), right.size()) == 0;
}

}  // namespace millrace
