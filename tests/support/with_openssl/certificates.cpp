// SPDX-License-Identifier: Apache-2.0
#include "certificates.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

namespace millrace::testing {
namespace {

template <class T, void (*Free)(T*)>
struct Freed {
  void operator()(T* pointer) const { Free(pointer); }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Freed<X509, X509_free>>;

void must(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string("certificates: ") + what);
}

Key make_key() {
  Key key(::EVP_EC_gen("P-256"));
  must(key != nullptr, "EVP_EC_gen");
  return key;
}

void add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);  // a macro
  ::X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION, X509_EXTENSION_free>> made(
      ::X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  must(made != nullptr, value.c_str());
  ::X509_add_ext(certificate, made.get(), -1);
}

Cert make_certificate(EVP_PKEY* key, X509* issuer, EVP_PKEY* signer, const char* name, std::uint64_t serial, long begin, long end,
                      const std::string& alternatives) {
  Cert made(::X509_new());
  X509* const x = made.get();
  ::X509_set_version(x, 2);
  ::ASN1_INTEGER_set_uint64(::X509_get_serialNumber(x), serial);
  ::X509_gmtime_adj(::X509_getm_notBefore(x), begin);
  ::X509_gmtime_adj(::X509_getm_notAfter(x), end);
  ::X509_set_pubkey(x, key);
  ::X509_NAME_add_entry_by_txt(::X509_get_subject_name(x), "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509* const by = issuer == nullptr ? x : issuer;
  ::X509_set_issuer_name(x, ::X509_get_subject_name(by));
  if (issuer == nullptr) add_extension(x, by, NID_basic_constraints, "critical,CA:TRUE");
  if (!alternatives.empty()) add_extension(x, by, NID_subject_alt_name, alternatives);
  must(::X509_sign(x, signer, ::EVP_sha256()) > 0, "X509_sign");
  return made;
}

template <class Write>
std::string write_pem(const std::filesystem::path& path, Write write) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  must(file != nullptr, "fopen");
  const bool good = write(file) == 1;
  std::fclose(file);
  must(good, "PEM_write");
  return path.string();
}
std::string write_certificate(const std::filesystem::path& path, X509* certificate) {
  return write_pem(path, [&](std::FILE* file) { return ::PEM_write_X509(file, certificate); });
}

}  // namespace

struct Authority::State {
  std::filesystem::path folder;
  Key key = make_key();
  Cert certificate;
  std::uint64_t last_serial = 1;
};

Authority::Authority(std::filesystem::path folder) : state_(new State) {
  std::filesystem::create_directories(folder);
  state_->folder = std::move(folder);
  state_->certificate = make_certificate(state_->key.get(), nullptr, state_->key.get(),
                                         ("authority of " + state_->folder.filename().string()).c_str(), 1, -7200, 7200, "");
  write_certificate(file(), state_->certificate.get());
}
Authority::~Authority() { delete state_; }

std::string Authority::file() const { return (state_->folder / "authority.pem").string(); }

Authority::Certificate Authority::make(const std::string& name, long begin, long end) {
  Certificate made;
  made.serial = ++state_->last_serial;
  const Key key = make_key();
  const std::string names = name.empty() ? "IP:127.0.0.1,DNS:localhost" : "DNS:" + name;
  const Cert certificate =
      make_certificate(key.get(), state_->certificate.get(), state_->key.get(), "a server", made.serial, begin, end, names);
  const std::string stem = "server-" + std::to_string(made.serial);
  made.certificate = write_certificate(state_->folder / (stem + ".pem"), certificate.get());
  made.key = write_pem(state_->folder / (stem + ".key"),
                       [&](std::FILE* file) { return ::PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
  return made;
}

}  // namespace millrace::testing
