// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/storage.h>

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <map>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/program/text.h>

#include "support/bytes.h"
#include "support/drive.h"
#include "support/random_program.h"
#include "support/straight_line.h"

using namespace millrace;
namespace fs = std::filesystem;

namespace {

using testing::Random;

/// A ragged recurrent loop with weights of random bits in a sane range.
Program recurrent(std::uint64_t seed, std::int64_t hidden = 3) {
  namespace b = build;
  Random random(seed);
  const auto weight = [&](const DDim& dims) {
    std::vector<float> values(static_cast<std::size_t>(dims.elements()));
    for (float& value : values) value = random.real();
    return Tensor::from(values, dims);
  };
  Program program;
  const b::Guard guard(program);
  const b::Var x = b::input("x", VarType(DType::f32, {DDim::unknown, 2}, 1));
  const b::Var boot = b::input("boot", VarType(DType::f32, {DDim::unknown, hidden}));
  const b::Var u = b::parameter("U", weight({hidden, hidden}));
  const b::Var w = b::parameter("W", weight({2, hidden}));
  const auto [steps, order] = b::unpack(x, 0, true);
  const b::Var n = steps.size();
  const b::TensorArray states(n, order, "states");
  b::Var step = b::constant(0);
  {
    b::WhileLoop loop = b::while_loop({step});
    const auto frame = loop.frame();
    loop.break_if(b::equal(step, n));
    const b::Var item = steps.read(step);
    states.write(step, b::sigmoid(b::matmul(b::shrink(states.read(step - 1, boot), item), u) + b::matmul(item, w)));
    step.update(step + 1);
  }
  b::output("y", b::pack(states, 0, order));
  return program;
}

Tensor answer(const Program& program) {
  const LoDTensor x(Tensor::from<float>({1, 2, 3, 4, 5, 6, 7, 8}).reshape({4, 2}), LoD::from_lengths({{1, 0, 3}}));
  const std::int64_t hidden = program.parameter(program.find_var("U"))->dim(0);
  std::vector<float> boot(static_cast<std::size_t>(3 * hidden), 0.25f);
  const RunResult result = testing::run_fifo(run(program, {{"x", x}, {"boot", Tensor::from(boot, {3, hidden})}}));
  return result["y"].tensor();
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path().filename().string()] = read_file(entry.path());
  return files;
}

template <class E>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

bool says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (message.find(part) == std::string::npos) return false;
  return !message.empty();
}

}  // namespace

TEST_CASE("a saved program is the same when it is loaded, and gives the same bits") {
  const testing::ScratchFolder folder;
  for (const std::uint64_t seed : testing::seeds(5)) {
    INFO("seed ", seed);
    const Program program = recurrent(seed);
    save_program(program, folder / "m.mr");
    const Program back = load_program(folder / "m.mr");
    CHECK(testing::difference(program, back) == "");
    CHECK(testing::same_bits(answer(program), answer(back)));
  }
}

TEST_CASE("any program survives its files, with weights of any dtype and any bits") {
  const testing::ScratchFolder folder;
  for (const std::uint64_t seed : testing::seeds(25)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = testing::random_program(random);
    save_program(program, folder / "m.mr");
    CHECK(testing::difference(program, load_program(folder / "m.mr", testing::ops_and_any())) == "");
    CHECK(contents(folder.path()).size() == 2);
  }
}

TEST_CASE("files without their weights, or with weights of another shape, are errors that name files, var, expected and found") {
  const testing::ScratchFolder folder;
  const auto load = [&] { return message_of<ParseError>([&] { load_program(folder / "m.mr"); }); };
  save_program(recurrent(1), folder / "m.mr");
  fs::remove(folder / "m.safetensors");
  CHECK(says(load(), {"line ", "weight 'U'", "expected values of f32[3, 3], found none", "m.mr", "without", "m.safetensors"}));

  save_program(recurrent(1, 4), folder / "other.mr");
  fs::rename(folder / "other.safetensors", folder / "m.safetensors");
  CHECK(says(load(), {"line ", "weight 'U'", "expected f32[3, 3], found f32[4, 4]", "m.mr", "weights of", "m.safetensors"}));

  write_safetensors(folder / "m.safetensors", {{{"W", Tensor::from<double>({1, 2, 3, 4, 5, 6}).reshape({2, 3})}}, {}});
  CHECK(says(load(), {"weight 'U'", "found none", "m.safetensors"}));
}

TEST_CASE("weights of another save are refused though they fit, and weights that another tool wrote are taken") {
  const testing::ScratchFolder folder;
  save_program(recurrent(1), folder / "m.mr");
  save_program(recurrent(2), folder / "other.mr");
  const SafeTensors other = read_safetensors(folder / "other.safetensors");
  // As a process leaves them that ends before the text takes its place.
  fs::rename(folder / "other.safetensors", folder / "m.safetensors");
  CHECK(says(message_of<ParseError>([&] { load_program(folder / "m.mr"); }), {"weights", "saved with", "m.mr", "m.safetensors"}));

  write_safetensors(folder / "m.safetensors", {other.tensors, {}});
  const Tensor taken = answer(load_program(folder / "m.mr"));
  CHECK(testing::same_bits(taken, answer(recurrent(2))));
  CHECK_FALSE(testing::same_bits(taken, answer(recurrent(1))));

  const std::string text = read_file(folder / "m.mr");
  CHECK(testing::difference(recurrent(2), parse_program(text, {{"U", *other.find("U")}, {"W", *other.find("W")}})) == "");
}

TEST_CASE("weights cut at any byte are an error that names the file") {
  const testing::ScratchFolder folder;
  save_program(recurrent(1), folder / "m.mr");
  const std::string bytes = read_file(folder / "m.safetensors");
  for (std::size_t size = 0; size < bytes.size(); size += 7) {
    INFO("size ", size);
    write_file(folder / "m.safetensors", bytes.substr(0, size));
    CHECK(says(message_of<ParseError>([&] { load_program(folder / "m.mr"); }), {"m.safetensors", "expected", "found"}));
  }
}

TEST_CASE("a text that is refused names its file and line, and one that is not there its file") {
  const testing::ScratchFolder folder;
  save_program(recurrent(1), folder / "m.mr");
  const std::string text = read_file(folder / "m.mr");
  write_file(folder / "m.mr", text.substr(0, text.size() / 2));
  CHECK(says(message_of<ParseError>([&] { load_program(folder / "m.mr"); }), {"line ", "m.mr"}));
  CHECK(says(message_of<IoError>([&] { load_program(folder / "none.mr"); }), {"none.mr", "cannot open"}));
}

TEST_CASE("saving that fails leaves the files as they were") {
  const testing::ScratchFolder folder;
  save_program(recurrent(1), folder / "m.mr");
  const auto before = contents(folder.path());

  // A var of a name that no weights file may hold cannot come from the builder: an op that the registry lacks can.
  Program broken = recurrent(2);
  broken.append_raw(0, Op{"no_such_op", {}, {}, {}, {}});
  CHECK_THROWS_AS(save_program(broken, folder / "m.mr"), ProgramError);
  CHECK(contents(folder.path()) == before);

  fs::create_directory(folder / "n.mr");
  CHECK(says(message_of<IoError>([&] { save_program(recurrent(2), folder / "n.mr"); }), {"n.mr", "folder"}));
  CHECK(contents(folder.path()) == before);

  fs::create_directory(folder / "o.safetensors");
  CHECK(says(message_of<IoError>([&] { save_program(recurrent(2), folder / "o.mr"); }), {"o.safetensors"}));
  CHECK(contents(folder.path()) == before);

  CHECK(says(message_of<IoError>([&] { save_program(recurrent(2), folder / "none" / "m.mr"); }), {"m.mr"}));
  CHECK(contents(folder.path()) == before);
}

TEST_CASE("a program is saved as NAME.mr, so that its text and its weights are two files") {
  const testing::ScratchFolder folder;
  for (const char* name : {"m.safetensors", "m", "m.onnx"})
    CHECK(says(message_of<ArgumentError>([&] { save_program(recurrent(1), folder / name); }), {"ends in .mr", name}));
  CHECK(contents(folder.path()).empty());
}
