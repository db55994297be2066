// SPDX-License-Identifier: Apache-2.0
// NVRTC, from wherever it is installed. Opened when it is first asked for, so that a program without it starts; the few declarations are ours.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include <millrace/kernels/cuda/cell_sequence.h>
#include <millrace/kernels/cuda/cell_source.h>
#include <millrace/tensor/error.h>

namespace millrace::cuda {
namespace {

struct ProgramOfNvrtc;
using Program = ProgramOfNvrtc*;

struct Nvrtc {
  int (*version)(int*, int*) = nullptr;
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int, const char* const*) = nullptr;
  int (*code_size)(Program, std::size_t*) = nullptr;
  int (*code)(Program, char*) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  const char* (*text)(int) = nullptr;
};

/// Folders of Python's packages that hold the library: of the environment that is active, of the user, and of the system.
std::vector<std::string> folders() {
  namespace fs = std::filesystem;
  std::vector<std::string> made{"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"};
  std::vector<fs::path> roots;
  const auto add = [&](const fs::path& lib) {
    std::error_code none;
    for (const auto& python : fs::directory_iterator(lib, none))
      for (const char* const packages : {"site-packages", "dist-packages"}) roots.push_back(python.path() / packages / "nvidia");
  };
  if (const char* environment = std::getenv("VIRTUAL_ENV")) add(fs::path(environment) / "lib");
  if (const char* home = std::getenv("HOME")) add(fs::path(home) / ".local/lib");
  add("/usr/local/lib");
  add("/usr/lib");
  for (const fs::path& root : roots) {
    std::error_code none;
    for (const auto& package : fs::directory_iterator(root, none)) made.push_back((package.path() / "lib").string() + "/");
  }
  return made;
}

void* open() {
  if (const char* chosen = std::getenv("MILLRACE_NVRTC")) return ::dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
  for (const std::string& folder : folders())
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"})
      if (void* found = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return found;
  return nullptr;
}

bool find(Nvrtc& all) {
  void* const library = open();
  if (library == nullptr) return false;
  const auto one = [library](const char* symbol, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    return function != nullptr;
  };
  return one("nvrtcVersion", all.version) && one("nvrtcCreateProgram", all.create) && one("nvrtcDestroyProgram", all.destroy) &&
         one("nvrtcCompileProgram", all.compile) && one("nvrtcGetCUBINSize", all.code_size) && one("nvrtcGetCUBIN", all.code) &&
         one("nvrtcGetProgramLogSize", all.log_size) && one("nvrtcGetProgramLog", all.log) && one("nvrtcGetErrorString", all.text);
}

const Nvrtc& nvrtc() {
  static Nvrtc all;
  static const bool found = find(all);
  if (!found)
    throw UnsupportedError(
        "the compiler of device code is not here: libnvrtc.so.13 (or 12) of the CUDA Toolkit, or of Python's nvidia-cuda-nvrtc, or the "
        "file "
        "that MILLRACE_NVRTC names");
  return all;
}

/// Products and sums stay apart; every function without a mark is one of the device.
std::vector<std::string> options(const std::string& architecture) {
  return {"--gpu-architecture=" + architecture, "--std=c++20", "--fmad=false", "--device-as-default-execution-space", "--ptxas-options=-v"};
}

void check(const Nvrtc& library, int code, const char* call) {
  if (code != 0) throw Error(fmt::format("{}: {}", call, library.text(code)));
}

/// A program of NVRTC, which goes with it.
class Compiled {
 public:
  Compiled(const Nvrtc& library, const std::string& source) : library_(library) {
    std::vector<const char*> texts, names;
    for (const DeviceHeader& header : device_headers()) {
      texts.push_back(header.text);
      names.push_back(header.name);
    }
    check(library, library.create(&program_, source.c_str(), "cell.cu", static_cast<int>(texts.size()), texts.data(), names.data()),
          "nvrtcCreateProgram");
  }
  ~Compiled() { static_cast<void>(library_.destroy(&program_)); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  CellCode run(const std::vector<std::string>& flags) {
    std::vector<const char*> all;
    for (const std::string& flag : flags) all.push_back(flag.c_str());
    const int code = library_.compile(program_, static_cast<int>(all.size()), all.data());
    CellCode made;
    std::size_t size = 0;
    check(library_, library_.log_size(program_, &size), "nvrtcGetProgramLogSize");
    made.log.resize(size);
    if (size > 0) check(library_, library_.log(program_, made.log.data()), "nvrtcGetProgramLog");
    while (!made.log.empty() && made.log.back() == '\0') made.log.pop_back();
    if (code != 0) throw Error(fmt::format("nvrtcCompileProgram: {}: {}", library_.text(code), made.log));
    check(library_, library_.code_size(program_, &size), "nvrtcGetCUBINSize");
    made.image.resize(size);
    check(library_, library_.code(program_, made.image.data()), "nvrtcGetCUBIN");
    return made;
  }

 private:
  const Nvrtc& library_;
  Program program_ = nullptr;
};

}  // namespace

std::string compiler_of(const std::string& architecture) {
  int major = 0, minor = 0;
  check(nvrtc(), nvrtc().version(&major, &minor), "nvrtcVersion");
  std::string text = fmt::format("NVRTC {}.{}", major, minor);
  for (const std::string& option : options(architecture)) text += " " + option;
  for (const DeviceHeader& header : device_headers()) text += fmt::format("\n// {}\n{}", header.name, header.text);
  return text;
}

CellCode compile(const CellPlan& plan, const std::string& architecture) {
  return Compiled(nvrtc(), plan.source).run(options(architecture));
}

}  // namespace millrace::cuda
