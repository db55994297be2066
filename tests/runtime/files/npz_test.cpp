// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/files/npz.h>

#include <filesystem>

#include <unistd.h>

#include <doctest/doctest.h>

#include <millrace/runtime/files/npy.h>
#include <millrace/tensor/error.h>

#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

NpzTensors sample() {
  return {{"weights/0", Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({2, 3})},
          {"ids", Tensor::from<std::int64_t>({7, -8})},
          {"é", Tensor::scalar(true)},
          {"empty", Tensor::from<float>({}, DDim{0, 4})}};
}

std::string refusal(const std::string& bytes) {
  try {
    parse_npz(bytes, "file");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string changed(std::string bytes, std::size_t at, char value) {
  bytes.at(at) = value;
  return bytes;
}

/// Where the central directory begins.
std::size_t directory_of(const std::string& bytes) { return bytes.find("PK\x01\x02"); }

}  // namespace

TEST_CASE("tensors are written and read under their names, and the same ones give the same bytes") {
  const std::string bytes = format_npz(sample());
  CHECK(bytes == format_npz(sample()));
  const NpzTensors read = parse_npz(bytes, "file");
  REQUIRE(read.size() == 4);
  CHECK(read.at("weights/0").to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(read.at("weights/0").dims() == DDim{2, 3});
  CHECK(read.at("ids").to_vector<std::int64_t>() == std::vector<std::int64_t>{7, -8});
  CHECK(read.at("é").item() == 1.0);
  CHECK(read.at("empty").dims() == DDim{0, 4});
  CHECK(parse_npz(format_npz({}), "file").empty());
}

TEST_CASE("a file appears and is read, and one that is none is refused by its first bytes") {
  const auto path = std::filesystem::temp_directory_path() / ("npz_test_" + std::to_string(getpid()) + ".npz");
  write_npz(path, sample());
  CHECK(read_npz(path).size() == 4);
  CHECK_THROWS_AS(read_npz(path, 20), ParseError);
  write_npy(path, Tensor::from<float>({1, 2, 3}));
  CHECK_THROWS_WITH_AS(read_npz(path), doctest::Contains("expected an npz file"), ParseError);
  std::filesystem::remove(path);
  CHECK_THROWS_AS(read_npz(path), IoError);
  CHECK_THROWS_AS(format_npz({{"", Tensor::scalar(1.0f)}}), ArgumentError);
  CHECK_THROWS_AS(format_npz({{"\xff", Tensor::scalar(1.0f)}}), ArgumentError);
}

TEST_CASE("damage, lies about sizes and places, and forms that are not read are named") {
  const std::string good = format_npz({{"a", Tensor::from<float>({1, 2})}, {"b", Tensor::from<float>({3})}});
  const std::size_t directory = directory_of(good);
  const std::size_t second = good.find("PK\x01\x02", directory + 4);
  CHECK(refusal(good).empty());
  CHECK(refusal(changed(good, 100, 'x')).find("CRC-32") != std::string::npos);
  CHECK(refusal(good.substr(0, good.size() - 1)).find("cut off") != std::string::npos);
  CHECK(refusal("PK").find("other bytes") != std::string::npos);
  CHECK(refusal(good + "more").find("end record") != std::string::npos);
  CHECK(refusal(changed(good, directory + 8, 1)).find("encrypted") != std::string::npos);
  CHECK(refusal(changed(good, directory + 10, 12)).find("method 12") != std::string::npos);
  CHECK(refusal(changed(good, directory + 24, 7)).find("of a size") != std::string::npos);
  CHECK(refusal(changed(good, directory + 47, 'x')).find("NAME.npy") != std::string::npos);
  CHECK(refusal(changed(good, directory + 46, 'c')).find("same name") != std::string::npos);
  // The second member is said to lie where the first one does.
  CHECK(refusal(changed(changed(good, second + 42, 0), second + 43, 0)).find("member 'b.npy'") != std::string::npos);
  CHECK(refusal(changed(good, good.size() - 6, 9)).find("central directory") != std::string::npos);
  CHECK(refusal(changed(good, good.size() - 12, 3)).find("volumes") != std::string::npos);
  std::string same = good;
  for (std::size_t at = same.find("b.npy"); at != same.npos; at = same.find("b.npy")) same[at] = 'a';
  CHECK(refusal(same).find("each name once") != std::string::npos);
  std::string huge = good;
  for (const std::size_t at : {20, 24})
    for (std::size_t byte = 0; byte < 4; ++byte) huge[directory + at + byte] = '\xff';
  CHECK(refusal(huge).find("zip64") != std::string::npos);
}

TEST_CASE("any byte changed, and any end cut off, gives tensors or an error, and the memory stays small") {
  const std::string good = format_npz(sample());
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Random random(seed);
    for (int iteration = 0; iteration < 500; ++iteration) {
      std::string bytes = good;
      for (int change = 0; change < 3; ++change)
        bytes[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(bytes.size()) - 1))] = static_cast<char>(random.next());
      if (random.coin()) bytes.resize(static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(bytes.size()))));
      try {
        parse_npz(bytes, "file", 1 << 20);
      } catch (const Error&) {
      }
    }
  }
}
