// SPDX-License-Identifier: Apache-2.0
// In the place of kernels/cuda/device_compiler.cpp.
#include <emulated_cell.h>

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include <millrace/kernels/cuda/cell_sequence.h>
#include <millrace/kernels/cuda/cell_source.h>
#include <millrace/tensor/error.h>

namespace {

namespace fs = std::filesystem;

/// A folder of this process, which goes with it.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("millrace_emulated_cells_" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() {
    std::error_code none;
    fs::remove_all(path, none);
  }
};

std::string bytes_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

const fs::path& folder() {
  static const Folder made;
  return made.path;
}

/// Runs the compiler, whose messages it gives back.
std::string run_compiler(const std::string& arguments) {
  const fs::path log = folder() / "compiler.log";
  const std::string command = MILLRACE_EMULATED_COMPILER " " MILLRACE_EMULATED_FLAGS " " + arguments + " 2> '" + log.string() + "'";
  if (std::system(command.c_str()) != 0) throw millrace::Error("an emulated cell does not compile: " + bytes_of(log));
  return bytes_of(log);
}

/// The headers of all cells, precompiled: reading them takes longer than to compile a cell.
const fs::path& headers() {
  static const fs::path made = [] {
    const fs::path source = folder() / "cells.h", result = folder() / "cells.pch";
    std::ofstream(source) << "#include <millrace/kernels/cuda/recurrent/cell.cuh>\n";
    run_compiler("-x c++-header -o '" + result.string() + "' '" + source.string() + "'");
    return result;
  }();
  return made;
}

}  // namespace

emulated_cell::Kernel emulated_cell::load(const std::string& image) {
  static std::mutex mutex;
  static std::map<std::string, Kernel> loaded;
  const std::lock_guard lock(mutex);
  const auto known = loaded.find(image);
  if (known != loaded.end()) return known->second;
  const fs::path file = folder() / ("cell_" + std::to_string(loaded.size()) + ".so");
  std::ofstream(file, std::ios::binary) << image;
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw millrace::Error(std::string("an emulated cell: ") + ::dlerror());
  return loaded[image] = reinterpret_cast<Kernel>(::dlsym(library, millrace::cuda::cell_entry));
}

namespace millrace::cuda {

std::string compiler_of(const std::string& architecture) {
  if (architecture != "emulated") throw UnsupportedError("emulated cells: there is no code for " + architecture);
  std::string text = MILLRACE_EMULATED_COMPILER " " MILLRACE_EMULATED_FLAGS;
  for (const char* const header : {"emulated_lanes.h", "any_order.h"}) text += "\n" + bytes_of(fs::path(MILLRACE_EMULATED_FOLDER) / header);
  for (const DeviceHeader& header : device_headers()) text += std::string("\n// ") + header.name + "\n" + header.text;
  return text;
}

CellCode compile(const CellPlan& plan, const std::string& architecture) {
  static std::mutex mutex;
  static std::map<std::string, std::string> known;  // as a disk cache would, within this process
  static_cast<void>(compiler_of(architecture));     // refuses others
  const std::lock_guard lock(mutex);
  std::string& image = known[plan.source];
  if (!image.empty()) return {image, {}};
  const fs::path source = folder() / ("source_" + std::to_string(known.size()) + ".cpp");
  const fs::path made = fs::path(source).replace_extension(".so");
  std::ofstream(source) << plan.source;
  const std::string log =
      run_compiler("-shared -include-pch '" + headers().string() + "' -o '" + made.string() + "' '" + source.string() + "'");
  return {image = bytes_of(made), log};
}

}  // namespace millrace::cuda
