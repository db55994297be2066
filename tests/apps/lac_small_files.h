// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <support/bytes.h>
#include <support/fluid_bytes.h>

namespace millrace::testing {

/// A folder laid out as LAC-small's, with few units and seeded weights.
class SmallLac {
 public:
  static constexpr std::int64_t words = 40, embedding = 6, hidden = 5;
  const std::vector<std::string> tags{"n-B", "n-I", "v-B", "v-I", "O"};

  explicit SmallLac(Random& random) {
    std::filesystem::create_directory(folder_ / "model_baseline");
    std::string dictionary;
    for (std::int64_t id = 0; id < words - 1; ++id) dictionary += std::to_string(id) + "\t" + character(id) + "\n";
    write("word.dic", dictionary + std::to_string(words - 1) + "\tOOV\n");
    std::string names;
    for (std::size_t i = 0; i < tags.size(); ++i) names += std::to_string(i) + "\t" + tags[i] + "\n";
    write("tag.dic", names);
    const auto classes = static_cast<std::int64_t>(tags.size());
    parameter("word_emb", {words, embedding}, random);
    for (int k = 0; k < 4; ++k) {
      const std::string number = std::to_string(k);
      parameter("fc_" + number + ".w_0", {k < 2 ? embedding : 2 * hidden, 3 * hidden}, random);
      parameter("fc_" + number + ".b_0", {3 * hidden}, random);
      parameter("gru_" + number + ".w_0", {hidden, 3 * hidden}, random);
      parameter("gru_" + number + ".b_0", {1, 3 * hidden}, random);
    }
    parameter("fc_4.w_0", {2 * hidden, classes}, random);
    parameter("fc_4.b_0", {classes}, random);
    parameter("crfw", {classes + 2, classes}, random);
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  /// The character of an id: 一, 丁, …
  static std::string character(std::int64_t id) {
    const auto point = static_cast<std::uint32_t>(0x4e00 + id);
    return {static_cast<char>(0xe0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3f)), static_cast<char>(0x80 | (point & 0x3f))};
  }
  void write(const std::string& name, const std::string& bytes) const { std::ofstream(folder_ / name, std::ios::binary) << bytes; }
  void parameter(const std::string& name, const std::vector<std::int64_t>& extents, Random& random) const {
    std::string elements;
    std::int64_t count = 1;
    for (const std::int64_t extent : extents) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) elements += bytes_of(2 * random.real());
    constexpr std::uint64_t fp32 = 5;
    write("model_baseline/" + name, fluid_bytes(fp32, extents, elements));
  }

 private:
  ScratchFolder folder_;
};

}  // namespace millrace::testing
