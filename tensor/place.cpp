// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/place.h>

#include <charconv>

#include <millrace/tensor/error.h>

namespace millrace {

std::string Place::to_string() const {
  if (const auto* cuda = std::get_if<CudaPlace>(this)) return "cuda:" + std::to_string(cuda->index);
  if (const auto* backend = std::get_if<BackendPlace>(this)) return backend->name + ":" + std::to_string(backend->index);
  return "cpu";
}

Place Place::parse(std::string_view text) {
  if (text == "cpu") return CpuPlace{};
  const auto colon = text.find(':');
  const std::string name(text.substr(0, colon));
  int index = 0;
  bool good = !name.empty();
  if (colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    good = good && error == std::errc{} && end == digits.data() + digits.size() && index >= 0 && name != "cpu";
  }
  if (!good) throw ParseError("place: expected cpu, cuda:INDEX or NAME:INDEX, found '" + std::string(text) + "'");
  if (name == "cuda") return CudaPlace{index};
  return BackendPlace{name, index};
}

}  // namespace millrace
