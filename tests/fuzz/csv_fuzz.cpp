// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <millrace/runtime/training/csv_file.h>
#include <millrace/tensor/error.h>

/// The first byte chooses the form.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  if (size == 0) return 0;
  training::CsvForm form;
  form.per_row = (data[0] & 1) != 0;
  form.numbers = (data[0] & 2) != 0;
  form.words = (data[0] & 4) != 0;
  form.series = (data[0] & 8) != 0;
  try {
    const training::Dataset made = training::parse_csv({reinterpret_cast<const char*>(data) + 1, size - 1}, "input", form);
    made.validate();
    static_cast<void>(training::parse_csv({reinterpret_cast<const char*>(data) + 1, size - 1}, "input", form, &made));
  } catch (const Error&) {
  }
  return 0;
}
