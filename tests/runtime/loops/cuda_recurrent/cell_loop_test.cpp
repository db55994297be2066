// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_recurrent/cell_loop.h>

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/recurrent.h>
#include <millrace/runtime/lowering/lower_for_runs.h>
#include <millrace/runtime/training/extract.h>
#include <support/user_cells.h>
#include <support/with_gradients.h>

namespace millrace::testing {
namespace {

using build::Var;
using layers::CellStep;
using Vars = std::vector<Var>;

Program over_rows(Random& random, const UserCell& cell, std::int64_t input, std::int64_t hidden) {
  Program program;
  const build::Guard guard(program);
  const UserCell::Built built = cell.build(random, input, hidden);
  const layers::Unrolled made =
      layers::unroll(built.cell, {build::input("x", VarType(DType::f32, {DDim::unknown, input}, 1))}, built.states);
  build::output("y", made.output);
  for (std::size_t i = 0; i < made.last.size(); ++i) build::output("last" + std::to_string(i), made.last[i]);
  return program;
}

CellLoop loop_of(const Program& program, bool tf32 = false) {
  for (const Op& op : program.block(0).ops)
    if (op.type == "while") return CellLoop(program, 0, op, tf32);
  throw Error("no loop");
}

/// The number that stands before or behind `word` in the compiler's log.
int number_before(const std::string& log, const std::string& word) {
  const std::size_t at = log.find(word);
  if (at == std::string::npos) return -1;
  std::size_t begin = at;
  while (begin > 0 && (std::isdigit(static_cast<unsigned char>(log[begin - 1])) != 0 || log[begin - 1] == ' ')) --begin;
  int number = -1;
  std::istringstream(log.substr(begin, at - begin)) >> number;
  return number;
}

/// Empty where the machine has the compiler of device code.
std::string without_compiler() {
  try {
    static_cast<void>(cell_compiler(std::string("sm_90a")));
    return {};
  } catch (const UnsupportedError& error) {
    return error.what();
  }
}

/// Machine instructions of a kernel, by what they are for; by nvdisasm, where there is one: $MILLRACE_NVDISASM, or in PATH.
struct Instructions {
  int all = 0;
  int products = 0;       ///< multiply-adds, and those of tensor cores
  int functions = 0;      ///< reciprocals, roots, exponents
  int fences = 0;         ///< that order memory within the device
  int system_fences = 0;  ///< that wait for the host's memory
};

/// The most that NVRTC 13.0 may make of each cell: as many functions and fences as today, and some per cent more of all instructions. A change
/// that makes a step longer shows here.
const std::map<std::string, Instructions>& most_instructions() {
  static const std::map<std::string, Instructions> all{{"gru, reset after", {3500, 545, 16, 9, 2}},
                                                       {"gru, reset before", {3940, 140, 17, 11, 2}},
                                                       {"peephole lstm", {3870, 885, 20, 9, 2}},
                                                       {"layer norm lstm", {6200, 905, 33, 13, 2}},
                                                       {"projected lstm", {4650, 420, 31, 11, 2}},
                                                       {"minimal gated unit", {3820, 113, 15, 11, 2}},
                                                       {"gru of bf16 products", {2640, 140, 15, 9, 2}},
                                                       {"minimal gated unit of bf16 products", {3820, 113, 15, 11, 2}},
                                                       {"slstm", {4110, 900, 18, 9, 2}}};
  return all;
}

std::string disassembler() {
  const char* const chosen = std::getenv("MILLRACE_NVDISASM");
  const std::string name = chosen == nullptr ? "nvdisasm" : chosen;
  return std::system(("command -v '" + name + "' >/dev/null 2>&1").c_str()) == 0 ? name : std::string();
}

Instructions instructions_of(const std::string& disassembler, const std::string& image) {
  const std::filesystem::path base = std::filesystem::temp_directory_path() / ("millrace_cell_" + std::to_string(::getpid()));
  const std::string code = base.string() + ".cubin", text = base.string() + ".sass";
  std::ofstream(code, std::ios::binary) << image;
  REQUIRE(std::system(("'" + disassembler + "' -c '" + code + "' > '" + text + "'").c_str()) == 0);
  Instructions made;
  std::ifstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.find("*/");
    if (line.find("/*") == std::string::npos || end == std::string::npos || line.find(';') == std::string::npos) continue;
    std::istringstream words(line.substr(end + 2));
    std::string name;
    words >> name;
    if (name.starts_with("@")) words >> name;  // a condition
    ++made.all;
    made.products += name.starts_with("FFMA") || name.starts_with("HMMA") ? 1 : 0;
    made.functions += name.starts_with("MUFU") ? 1 : 0;
    made.fences += name.starts_with("MEMBAR") && name.find(".SYS") == std::string::npos ? 1 : 0;
    made.system_fences += name.starts_with("MEMBAR") && name.find(".SYS") != std::string::npos ? 1 : 0;
  }
  std::filesystem::remove(code);
  std::filesystem::remove(text);
  return made;
}

}  // namespace

TEST_CASE("a cell's kernel has a stage for each exchange between its units, and the products that the cell has") {
  Random random(1);
  for (const UserCell& cell : user_cells()) {
    INFO(cell.name);
    const Program program = over_rows(random, cell, 5, 24);
    const CellLoop loop = loop_of(program);
    CHECK(loop.plan().stages == cell.stages);
    CHECK(loop.plan().products.size() == static_cast<std::size_t>(cell.products));
    CHECK(loop.plan().units == 24);
    CHECK(loop.to_string().find("as a generated kernel") != std::string::npos);
  }
}

TEST_CASE("equal cells have equal sources, whatever their weights") {
  for (const UserCell& cell : user_cells()) {
    Random one(1), other(2);
    CHECK(loop_of(over_rows(one, cell, 5, 24)).plan().source == loop_of(over_rows(other, cell, 5, 24)).plan().source);
  }
}

TEST_CASE("NVRTC compiles GRUs, a layer-norm LSTM and other cells for sm_90a into registers alone, in f32, tf32 and bf16") {
  if (const std::string why = without_compiler(); !why.empty()) {
    MESSAGE("skipped: " << why);
    return;
  }
  const std::string tool = disassembler();
  if (tool.empty()) MESSAGE("skipped: machine instructions are not counted without nvdisasm (MILLRACE_NVDISASM)");
  const bool is_known_compiler = cell_compiler(std::string("sm_90a")).starts_with("NVRTC 13.0 ");
  Random random(1);
  for (const UserCell& cell : user_cells()) {
    // Seconds each: those of most variety.
    if (cell.name == "lstm of ops" || cell.name == "softmax over groups" || cell.name == "gate of a whole row") continue;
    const bool tf32 = cell.products == 2;
    INFO(cell.name, std::string(cell.narrow ? ", bf16" : tf32 ? ", tf32" : ", f32"));
    const Program program = over_rows(random, cell, 64, 512);
    const CellCode code = compile_cell(loop_of(program, tf32).plan(), std::string("sm_90a"));
    CHECK(code.image.size() > 1000);
    CHECK(number_before(code.log, " bytes spill stores") == 0);
    CHECK(number_before(code.log, " bytes spill loads") == 0);
    const int registers = number_before(code.log, " registers");
    MESSAGE(cell.name << ": " << registers << " registers, " << code.image.size() << " bytes");
    if (!tool.empty()) {
      const Instructions found = instructions_of(tool, code.image);
      MESSAGE(cell.name << ": " << found.all << " instructions, " << found.products << " of products, " << found.functions
                        << " of functions, " << found.fences << " fences, " << found.system_fences << " of the system");
      // The publishing warp's alone: one as steps are closed, one at the end.
      CHECK(found.system_fences == 2);
      if (is_known_compiler) {
        const auto limit = most_instructions().find(cell.name);
        REQUIRE(limit != most_instructions().end());
        CHECK(found.all <= limit->second.all);
        CHECK(found.products <= limit->second.products);
        CHECK(found.functions <= limit->second.functions);
        CHECK(found.fences <= limit->second.fences);
      }
    }
    CHECK(registers > 16);
    CHECK(registers <= 255);
  }
}

TEST_CASE("NVRTC compiles for sm_90a the loops of cells that keep their values, and those of their gradients, into registers alone") {
  if (const std::string why = without_compiler(); !why.empty()) {
    MESSAGE("skipped: " << why);
    return;
  }
  Random random(1);
  for (const UserCell& cell : user_cells()) {
    if (cell.name != "lstm of ops" && cell.name != "gru, reset after" && cell.name != "slstm") continue;  // seconds each
    Program program = training::with_fed_weights(over_rows(random, cell, 64, 128));
    BackwardOptions options;
    for (const Program::Port& port : program.inputs()) options.with_respect_to.push_back(port.var);
    const VarId y = program.outputs()[0].var;
    VarType rows = program.var(y).type;
    rows.lod_depth = 0;
    options.seed = program.add_input("dy", rows);
    with_gradients(program, y, options);
    lower_for_runs(program, CudaPlace{});
    int loops = 0;
    for (const Op& op : program.block(0).ops) {
      if (op.type != "while") continue;
      INFO(cell.name, ", loop ", loops);
      const CellCode code = compile_cell(CellLoop(program, 0, op, false).plan(), std::string("sm_90a"));
      CHECK(number_before(code.log, " bytes spill stores") == 0);
      CHECK(number_before(code.log, " bytes spill loads") == 0);
      const int registers = number_before(code.log, " registers");
      MESSAGE(cell.name << ", loop " << loops << ": " << registers << " registers, " << code.image.size() << " bytes");
      CHECK(registers > 16);
      CHECK(registers <= 255);
      ++loops;
    }
    CHECK(loops == 2);
  }
}

TEST_CASE("a loop that no kernel can be generated for says why") {
  const auto reason = [](const std::function<CellStep(const Var&, const Vars&)>& cell, const std::vector<layers::CellState>& states,
                         DType dtype = DType::f32) {
    Program program;
    {
      const build::Guard guard(program);
      build::output("y", layers::unroll(cell, {build::input("x", VarType(dtype, {DDim::unknown, 24}, 1))}, states).output);
    }
    try {
      return loop_of(program).to_string();
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
  };
  CHECK(reason([](const Var& x, const Vars& s) { return CellStep{x, {tanh(s[0] + x)}}; }, {{24}}, DType::f64).find("f64") !=
        std::string::npos);
  CHECK(reason(
            [](const Var& x, const Vars& s) {
              const Var h = tanh(s[0] + x);
              return CellStep{build::pow(h, abs(x)), {h}};
            },
            {{24}})
            .find("has the function pow") != std::string::npos);
  CHECK(reason(
            [](const Var& x, const Vars& s) {
              const Var all = build::concat({s[0], s[1]}, -1);
              const Var next = tanh(all);
              return CellStep{x, {build::slice(next, -1, 0, 24), build::slice(next, -1, 24, 37)}};
            },
            {{24}, {13}})
            .find("units") != std::string::npos);
}

}  // namespace millrace::testing
