// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include <sys/resource.h>
#include <sys/stat.h>

#include <doctest/doctest.h>

#include <apps/process.h>
#include <millrace/runtime/autodiff/append_backward.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/layers/narrow.h>
#include <millrace/runtime/program/storage.h>
#include <runtime/distributed/rank_threads.h>
#include <streaming/live/live_model.h>
#include <support/lstm_stack.h>
#include <support/same_bits.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

/// The listing and its inputs as files.
struct Files {
  Files() : random(1), program(live_listing(random, features, hidden)) {
    save_program(program, folder / "listing.mr");
    const LoDTensor x(random_tensor(random, {6, features}), LoD::from_lengths({{3, 1, 2, 0}}));
    const Tensor boot = random_tensor(random, {4, hidden});
    write_npy(folder / "x.npy", x.tensor());
    write_npy(folder / "boot.npy", boot);
    SeededExecutor executor(1);
    wanted = sync_wait(executor, run(program, {{"x", x}, {"boot", boot}}))["y"];
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  /// `millrace run` on these files, but for what `more` says.
  std::vector<std::string> run_with(std::vector<std::string> more) const {
    std::vector<std::string> all{"run", path("listing.mr"), "--output-dir", path("out")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string x() const { return "x=" + path("x.npy"); }
  std::string boot() const { return "boot=" + path("boot.npy"); }

  ScratchFolder folder;
  Random random;
  Program program;
  LoDTensor wanted;
};

}  // namespace

TEST_CASE("run --stats tells what a program with gradients keeps for its backward loops") {
  const Files files;
  Program program = files.program;
  VarId loss = no_var;
  {
    const build::Guard guard(program);
    loss = build::sum(build::drop_lod(build::Var::of(program.outputs().at(0).var))).id();
  }
  for (const Gradient& each : append_backward(program, loss)) program.add_output("d_" + program.var(each.var).name, each.gradient);
  save_program(program, files.folder / "listing.mr");
  const std::vector<std::string> words =
      files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]", "--stats"});
  const Ended ended = millrace_command(words);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.out.find(" under keep kept ") != std::string::npos);
  CHECK(ended.out.find("loops fused: 2") != std::string::npos);
  CHECK(same_bits(read_npy(files.folder / "out" / "y.npy"), files.wanted.tensor()));
}

TEST_CASE("help and version are no errors") {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--help"}, {"run", "--help"}, {"inspect", "--help"}, {"serve", "--help"}, {"stream", "--help"}}) {
    const Ended ended = millrace_command(words);
    CHECK(ended.code == 0);
    CHECK(ended.out.find("Usage") != std::string::npos);
    CHECK(ended.err == "");
  }
  CHECK(millrace_command({"--version"}).out.starts_with("millrace "));
  CHECK(millrace_command({"serve", "--help"}).out.find("0 takes a free one (required)") != std::string::npos);
}

TEST_CASE("bad usage is one line and exit code 2") {
  const Files files;
  check_refused({}, 2, {"subcommand"});
  check_refused({"frobnicate"}, 2, {});
  for (const char* flag : {"--place", "--threads", "--streams", "--backend"}) {
    check_refused({"stream", "tcp://127.0.0.1:1", "a.npy", flag, "1"}, 2, {flag, "millrace serve"});
    check_refused({"export", "a.mr", "--output", "a.onnx", flag, "1"}, 2, {flag, "millrace run"});
  }
  check_refused({"run"}, 2, {"MODEL"});
  check_refused({"run", files.path("listing.mr")}, 2, {"--output-dir"});
  check_refused(files.run_with({"--colour"}), 2, {"--colour"});
  check_refused({"run", "--colour", files.path("listing.mr")}, 2, {"--colour"});
  check_refused(files.run_with({"--threads", "0"}), 2, {"--threads"});
  check_refused(files.run_with({"--threads", "many"}), 2, {"--threads"});
  check_refused(files.run_with({"--input", "x.npy"}), 2, {"--input", "'x.npy'"});
  check_refused(files.run_with({"--input", files.x(), "--input", files.x()}), 2, {"twice"});
  check_refused(files.run_with({"--input", "x=" + files.path("x.npz")}), 2, {"x.npz:TENSOR"});
  check_refused(files.run_with({"--input", files.x(), "--lod", "x=[[3,1"}), 2, {"--lod"});
  check_refused(files.run_with({"--input", files.x(), "--lod", "z=[[6]]"}), 2, {"'z'"});
  check_refused(files.run_with({"--state", "h"}), 2, {"--state"});
  check_refused(files.run_with({"--state", "h:a", "--state", "h:b"}), 2, {"--state", "input 'h' is given twice"});
  check_refused(files.run_with({"--state", "g:a", "--state", "h:a"}), 2, {"--state", "output 'a' is given twice"});
  check_refused(files.run_with({"--row", "x=1,1,1,1,1,1,1,1,1,1"}), 2, {"--row x", "10"});
  check_refused(files.run_with({"--weights", "int4"}), 2, {"--weights", "int4"});
  check_refused(files.run_with({"--tf32"}), 2, {"--tf32", "cpu"});
  check_refused({"serve", files.path("listing.mr")}, 2, {"--port"});
  check_refused({"serve", files.path("listing.mr"), "--port", "99999"}, 2, {"--port"});
  check_refused({"stream", "http://localhost", files.path("x.npy")}, 2, {"tcp://"});
}

TEST_CASE("a run of the listing writes its rows and its LoD, with the bits of the library, on any number of threads") {
  const Files files;
  for (const char* threads : {"1", "2"}) {
    const Ended ended = millrace_command(files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]",
                                                         "--threads", threads, "--stats", "--trace", files.path("trace.json")}));
    CHECK(ended.err == "");
    REQUIRE(ended.code == 0);
    CHECK(ended.out.find("3 iterations") != std::string::npos);
    CHECK(same_bits(read_npy(files.folder / "out/y.npy"), files.wanted.tensor()));
    CHECK(read_file(files.folder / "out/y.lod.json") == "[[3,1,2,0]]\n");
    CHECK(read_file(files.folder / "trace.json").find("iteration") != std::string::npos);
    std::filesystem::remove_all(files.folder / "out");
  }
}

TEST_CASE("every backend writes the same bits, and one that a loop or the place cannot have is an error that says why") {
  const Files files;
  const std::vector<std::string> base =
      files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]", "--backend"});
  const auto with = [&](const char* backend) {
    std::vector<std::string> words = base;
    words.insert(words.end(), {backend, "--stats"});
    return words;
  };
  for (const char* backend : {"auto", "interpreted", "fused"}) {
    const Ended ended = millrace_command(with(backend));
    REQUIRE(ended.code == 0);
    CHECK((ended.out.find("loops fused: 1") != std::string::npos) == (backend[0] != 'i'));
    CHECK((ended.out.find("step scopes at once") == std::string::npos) == (backend[0] != 'i'));
    CHECK(same_bits(read_npy(files.folder / "out/y.npy"), files.wanted.tensor()));
    std::filesystem::remove_all(files.folder / "out");
  }
  check_refused(with("captured"), 1, {"backend captured", "no graphs of kernels on cpu"});
  check_refused(with("reverse"), 2, {"--backend", "reverse"});
  check_refused({"serve", files.path("listing.mr"), "--port", "0", "--backend", "captured"}, 1, {"backend captured", "single steps"});
  check_refused({"inspect", files.path("listing.mr"), "--backend", "captured"}, 1, {"backend captured", "block 1", "cpu"});
  const Ended shown = millrace_command({"inspect", files.path("listing.mr"), "--passes", "--place", "cuda:0", "--backend", "captured"});
  CHECK(shown.code == 0);
  CHECK(shown.out.find("backend: captured\n") != std::string::npos);
}

TEST_CASE("a run on several ranks writes the bits of one, and says what could not be shared out") {
  const Files files;
  const std::vector<std::string> base =
      files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]", "--ranks"});
  for (const char* ranks : {"1", "2", "4"}) {
    std::vector<std::string> words = base;
    words.insert(words.end(), {ranks, "--stats"});
    const Ended ended = millrace_command(words);
    REQUIRE(ended.code == 0);
    CHECK(ended.err == (ranks[0] == '1'   ? ""
                        : ranks[0] == '2' ? "millrace: no loop is left for rank 1\n"
                                          : "millrace: no loop is left for ranks 1, 2, 3\n"));
    CHECK(ended.out.find("3 iterations") != std::string::npos);
    CHECK(same_bits(read_npy(files.folder / "out/y.npy"), files.wanted.tensor()));
    CHECK(read_file(files.folder / "out/y.lod.json") == "[[3,1,2,0]]\n");
    std::filesystem::remove_all(files.folder / "out");
  }
  const Ended shown = millrace_command({"inspect", files.path("listing.mr"), "--ranks", "2"});
  CHECK(shown.code == 0);
  for (const char* words : {"'listing' on 2 ranks", "rank 0: while 1", "no loop is left for rank 1", "millrace 1 \"listing, rank 1\""})
    CHECK(shown.out.find(words) != std::string::npos);
  check_refused(files.run_with({"--ranks", "0"}), 2, {"--ranks"});
  // One of several processes is not alone, unless it says so.
  ::setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  ::setenv("MASTER_PORT", "1", 1);
  check_refused(files.run_with({"--input", files.x(), "--deadline", "0.2"}), 1,
                {"rank 1 did not reach rank 0 at 127.0.0.1:1 within 200 ms"});
  std::vector<std::string> alone = base;
  alone.push_back("1");
  CHECK(millrace_command(alone).code == 0);
  ::setenv("OMPI_COMM_WORLD_SIZE", "two", 1);
  check_refused(files.run_with({"--input", files.x()}), 1, {"OMPI_COMM_WORLD_SIZE", "'two'"});
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
  ::unsetenv("MASTER_PORT");
}

TEST_CASE("ranks in several processes write the bits of one, once, and all end when one of them dies or never comes") {
  const ScratchFolder folder;
  const auto path = [&](const std::string& name) { return (folder / name).string(); };
  const LstmStack stack(11, 4, 8, {7000});
  save_program(stack.program, folder / "stack.mr");
  write_npy(folder / "x.npy", stack.feeds.at("x").tensor().tensor());
  std::uint16_t port = 0;
  const auto start = [&](int rank, int size, const std::string& out, const std::string& deadline) {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    auto made = std::make_unique<Process>(std::vector<std::string>{"run", path("stack.mr"), "--input", "x=" + path("x.npy"), "--lod",
                                                                   "x=[[7000]]", "--output-dir", path(out), "--deadline", deadline});
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_PORT"}) ::unsetenv(name);
    return made;
  };
  const auto bytes = [&](const std::string& out) {
    std::string all;
    for (const char* name : {"y.npy", "y.lod.json", "h0.npy", "h3.npy"}) all += read_file(folder / (out + "/" + name));
    return all;
  };
  const Ended alone =
      millrace_command({"run", path("stack.mr"), "--input", "x=" + path("x.npy"), "--lod", "x=[[7000]]", "--output-dir", path("alone")});
  REQUIRE(alone.code == 0);
  for (const int size : {2, 4}) {
    port = free_port();
    const std::string out = "out" + std::to_string(size);
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(start(rank, size, rank == 0 ? out : "none", "60"));
    for (const auto& rank : ranks) {
      CHECK(rank->wait() == 0);
      CHECK(rank->err() == "");
    }
    CHECK(bytes(out) == bytes("alone"));
    CHECK(!std::filesystem::exists(folder / "none"));
  }
  port = free_port();
  const auto waits = start(0, 3, "missing", "0.5"), waits_too = start(2, 3, "missing", "0.5");
  for (const auto* rank : {&waits, &waits_too}) {
    CHECK((*rank)->wait() == 1);
    CHECK((*rank)->err().find("rank 1 did not come within 500 ms") != std::string::npos);
  }
  // Rank 1 stops where nobody can see it, and dies.
  port = free_port();
  const auto first = start(0, 3, "dead", "3"), second = start(1, 3, "dead", "3"), third = start(2, 3, "dead", "3");
  second->signal(SIGSTOP);
  ::usleep(300000);
  second->signal(SIGKILL);
  for (const auto* rank : {&first, &third}) {
    CHECK((*rank)->wait() == 1);
    CHECK((*rank)->err().find("rank 1") != std::string::npos);
  }
  CHECK(!std::filesystem::exists(folder / "dead/y.npy"));
}

TEST_CASE("a run with weights in fewer bits has the bits of the library's narrowed program") {
  const Files files;
  for (const auto& [name, dtype] : {std::pair("f32", DType::f32), std::pair("bf16", DType::bf16), std::pair("int8", DType::i8)}) {
    INFO(name);
    Program program = files.program;
    if (dtype != DType::f32) CHECK(layers::narrow_weights(program, dtype) > 0);
    SeededExecutor executor(1);
    const Feeds feeds{{"x", LoDTensor(read_npy(files.folder / "x.npy"), LoD::from_lengths({{3, 1, 2, 0}}))},
                      {"boot", read_npy(files.folder / "boot.npy")}};
    const LoDTensor wanted = sync_wait(executor, run(program, feeds))["y"];
    CHECK(same_bits(wanted.tensor(), files.wanted.tensor()) == (dtype == DType::f32));
    const Ended ended =
        millrace_command(files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]", "--weights", name}));
    CHECK(ended.err == "");
    REQUIRE(ended.code == 0);
    CHECK(same_bits(read_npy(files.folder / "out/y.npy"), wanted.tensor()));
    std::filesystem::remove_all(files.folder / "out");
  }
}

TEST_CASE("what does not fit is one line and exit code 1, and nothing is written") {
  const Files files;
  const auto refused = [&](const std::vector<std::string>& more, const std::vector<std::string>& words) {
    check_refused(files.run_with(more), 1, words);
    CHECK_FALSE(std::filesystem::exists(files.folder / "out/y.npy"));
  };
  const std::string lod = "x=[[3,1,2,0]]";
  refused({"--input", files.x(), "--lod", lod}, {"'boot'"});
  refused({"--input", files.x(), "--input", files.boot()}, {"'x'"});
  refused({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1]]"}, {"x.npy", "4", "6"});
  refused({"--input", files.x(), "--input", files.boot(), "--input", "z=" + files.path("x.npy"), "--lod", lod}, {"'z'"});
  refused({"--input", "x=" + files.path("boot.npy"), "--input", files.boot(), "--lod", "x=[[2,1,1,0]]"}, {"'x'", "4"});
  refused({"--input", "x=" + files.path("absent.npy")}, {"absent.npy"});
  refused({"--input", files.x(), "--input", files.boot(), "--lod", lod, "--place", "cuda:99"}, {"cpu", "cuda:99"});
  refused({"--input", "x=" + files.path("sound.wav")}, {"sound.wav", "[audio]"});
  write_npy(files.folder / "f64.npy", Tensor::from<double>({1, 2, 3}).reshape({1, 3}));
  refused({"--input", "x=" + files.path("f64.npy"), "--input", files.boot(), "--lod", "x=[[1]]"}, {"f32", "f64"});
  const std::string whole = read_file(files.folder / "x.npy");
  write_file(files.folder / "cut.npy", whole.substr(0, whole.size() - 5));
  refused({"--input", "x=" + files.path("cut.npy")}, {"cut.npy"});
  write_file(files.folder / "cut.npy", whole.substr(0, 20));
  refused({"--input", "x=" + files.path("cut.npy")}, {"cut.npy"});
  refused({"--config", files.path("absent.toml")}, {"absent.toml"});
  refused({"--row", "nothing=4"}, {"--row nothing", "listing.mr"});
  refused({"--row", "x=1,4"}, {"--row x: expected one row of f32[?, 3] lod=1, found [1, 4]"});
  const std::string text = read_file(files.folder / "listing.mr");
  write_file(files.folder / "listing.mr", text.substr(0, text.size() / 2));
  refused({"--input", files.x()}, {"listing.mr"});
}

TEST_CASE("an error while the program is compiled or run names the model and the files that were fed") {
  const Files files;
  check_refused(files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[6]]"}), 1,
                {"listing.mr", "x.npy", "boot.npy"});
  check_refused(files.run_with({"--input", "x=" + files.path("boot.npy"), "--input", files.boot(), "--lod", "x=[[2,1,1,0]]"}), 1,
                {"listing.mr", "x=" + files.path("boot.npy")});
  check_refused({"inspect", files.path("listing.mr"), "--streaming", "--state", "a:b"}, 1, {"listing.mr"});
  check_refused({"inspect", files.path("listing.mr"), "--state", "a:b"}, 1, {"listing.mr", "state a:b", "no 'a'"});
}

TEST_CASE("files that are no files, and sizes that a header only claims, are refused before memory follows") {
  const Files files;
  const std::string pipe = files.path("pipe");
  for (const char* ending : {".onnx", ".mr", ".npy"}) {
    REQUIRE(::mkfifo((pipe + ending).c_str(), 0600) == 0);
    std::ofstream(files.path("big") + ending).put('\0');
    std::filesystem::resize_file(files.path("big") + ending, std::uintmax_t{1} << 40);
  }
  for (const std::string& name : {pipe, files.path("big")}) {
    for (const char* ending : {".onnx", ".mr"}) check_refused({"inspect", name + ending}, 1, {name + ending});
    check_refused(files.run_with({"--input", "x=" + name + ".npy"}), 1, {name + ".npy"});
  }
  write_file(files.folder / "claims.npy", std::string("\x93NUMPY\x01\x00\x40\x00", 10) +
                                              "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }      \n" + "12345678");
  std::filesystem::resize_file(files.folder / "claims.npy", std::uintmax_t{1} << 40);
  check_refused(files.run_with({"--input", "x=" + files.path("claims.npy")}), 1, {"claims.npy", "16 bytes", "f32[4]"});
}

TEST_CASE("what could not be printed or written is an error, and a control character does not end its line") {
  const Files files;
  const Ended full = millrace_command({"inspect", files.path("listing.mr")}, "/dev/full");
  CHECK(full.code == 1);
  CHECK(full.err.find("No space left") != std::string::npos);
  CHECK(millrace_command({"--version"}, "/dev/full").code == 1);
  write_file(files.folder / "odd.mr", std::string("millrace 1 \"a\0b\"\n\tinput", 23));
  check_refused({"inspect", files.path("odd.mr")}, 1, {"odd.mr"});
  const std::vector<std::string> good = files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]"});
  for (const std::string& trace : {std::string("/dev/full"), files.path("none/trace.json"), files.folder.path().string()}) {
    std::vector<std::string> traced = good;
    traced.insert(traced.end(), {"--trace", trace});
    check_refused(traced, 1, {trace});
    CHECK_FALSE(std::filesystem::exists(files.folder / "out/y.npy"));
  }
  CHECK(std::filesystem::is_character_file("/dev/full"));
  check_refused({"run", files.path("listing.mr"), "--output-dir", ""}, 2, {"--output-dir"});
}

TEST_CASE("a file that may not grow any further is an error and leaves nothing") {
  const Files files;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{150, before.rlim_max};  // the test's own files are done; y.npy has 224 bytes
  const std::vector<std::string> words = files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]"});
  ::setrlimit(RLIMIT_FSIZE, &small);
  const Ended ended = millrace_command(words);
  ::setrlimit(RLIMIT_FSIZE, &before);
  CHECK(ended.code == 1);
  CHECK(std::filesystem::is_empty(files.folder / "out"));
}

TEST_CASE("an output and an element of a list that share a name are refused by the name") {
  const ScratchFolder folder;
  write_file(folder / "lists.mr",
             "millrace 1 \"lists\"\ninput \"x\" = x: f32[2]\nblock { idx: 0 parent_idx: -1\n  s: list<f32[2]> = list_of(Xs=[x, x])\n"
             "  y: f32[2] = neg(X=x)\n}\noutput \"s\" = s\noutput \"s.0\" = y\n");
  write_npy(folder / "x.npy", Tensor::from<float>({1, 2}));
  check_refused(
      {"run", (folder / "lists.mr").string(), "--input", "x=" + (folder / "x.npy").string(), "--output-dir", (folder / "out").string()}, 2,
      {"'s.0' as an output and as an element"});
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("an export whose start and step would be one file is refused, however the file is named") {
  const Files files;
  for (const std::string start : {"step.onnx", "./step.onnx"}) {
    check_refused({"export", files.path("listing.mr"), "--output", files.path("step.onnx"), "--one-step", "--start", files.path(start)}, 2,
                  {"--start", "step.onnx"});
    CHECK_FALSE(std::filesystem::exists(files.folder / "step.onnx"));
  }
}

TEST_CASE("first values of a program without states are refused, and nothing is written") {
  const Files files;
  write_file(files.path("stateless.mr"),
             "millrace 1 \"stateless\"\ninput \"x\" = x: f32[?, 2] lod=1\nblock { idx: 0 parent_idx: -1\n  y: f32[?, 2] lod=1 = "
             "neg(X=x)\n}\noutput \"y\" = y\n");
  check_refused(
      {"export", files.path("stateless.mr"), "--output", files.path("step.onnx"), "--one-step", "--start", files.path("start.onnx")}, 2,
      {"--start", "a program with states"});
  for (const char* name : {"step.onnx", "start.onnx"}) CHECK_FALSE(std::filesystem::exists(files.folder / name));
}

TEST_CASE("outputs appear all or none") {
  const Files files;
  std::filesystem::create_directories(files.folder / "out/y.lod.json");
  check_refused(files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]"}), 1, {"y.lod.json"});
  CHECK_FALSE(std::filesystem::exists(files.folder / "out/y.npy"));
  std::size_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(files.folder / "out")) left += entry.exists() ? 1 : 0;
  CHECK(left == 1);
}

TEST_CASE("an output whose name makes no file name is an error that names it, and nothing is written") {
  const ScratchFolder folder;
  const std::string longest(300, 'y'), model = (folder / "m.mr").string();
  Program program;
  {
    const build::Guard guard(program);
    build::output(longest, build::tanh(build::input("x", VarType(DType::f32, {2}))));
  }
  save_program(program, model);
  write_npy(folder / "x.npy", Tensor::from<float>({1, 2}));
  check_refused({"run", model, "--input", "x=" + (folder / "x.npy").string(), "--output-dir", (folder / "out").string()}, 1,
                {"output '" + longest + "'", "at most 247 characters", "304"});
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("inputs of other lengths beside --state are told that the graph is taken as one step") {
  const ScratchFolder folder;
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {1, 2})), c = build::input("c", VarType(DType::f32, {1, 2}));
    build::output("y", x + c);
    build::output("hn", build::input("h", VarType(DType::f32, {1, 2})) + x);
  }
  save_program(program, folder / "m.mr");
  write_npy(folder / "x.npy", Tensor::from<float>({1, 2, 3, 4}).reshape({2, 2}));
  write_npy(folder / "c.npy", Tensor::from<float>({1, 2}).reshape({1, 2}));
  check_refused({"run", (folder / "m.mr").string(), "--state", "h:hn", "--input", "x=" + (folder / "x.npy").string(), "--input",
                 "c=" + (folder / "c.npy").string(), "--output-dir", (folder / "out").string()},
                1, {"input 'c'", "'x'", "a graph over whole sequences takes no --state"});
}

TEST_CASE("a graph that is one step runs over all rows, from what is given, and its states end under the names of their outputs") {
  const ScratchFolder folder;
  save_program(live_lookup(), folder / "lookup.mr");
  write_npy(folder / "index.npy", Tensor::from<std::int64_t>({0, 1, 2, 2, 0}));
  write_npy(folder / "sum.npy", Tensor::from<float>({100, 200}).reshape({1, 2}));
  const std::string out = (folder / "out").string();
  const std::vector<std::string> base{"run",     (folder / "lookup.mr").string(),           "--state", "sum:next_sum", "--output-dir", out,
                                      "--input", "index=" + (folder / "index.npy").string()};
  REQUIRE(millrace_command(base).code == 0);
  CHECK(read_npy(folder / "out/y.npy").reshape({10}).to_vector<float>() == std::vector<float>{1, 2, 4, 6, 9, 12, 14, 18, 15, 20});
  CHECK(read_npy(folder / "out/next_sum.npy").dims() == DDim{1, 2});
  CHECK(read_npy(folder / "out/next_sum.npy").reshape({2}).to_vector<float>() == std::vector<float>{15, 20});
  CHECK_FALSE(std::filesystem::exists(folder / "out/y.lod.json"));

  std::vector<std::string> given = base;
  given.insert(given.end(), {"--input", "sum=" + (folder / "sum.npy").string()});
  CHECK(millrace_command(given).code == 0);
  std::vector<std::string> ragged = base;
  ragged.insert(ragged.end(), {"--lod", "index=[[2,0,3]]"});
  REQUIRE(millrace_command(ragged).code == 0);
  CHECK(read_npy(folder / "out/y.npy").reshape({10}).to_vector<float>() == std::vector<float>{1, 2, 4, 6, 5, 6, 10, 12, 11, 14});
  CHECK(read_npy(folder / "out/next_sum.npy").reshape({6}).to_vector<float>() == std::vector<float>{4, 6, 0, 0, 11, 14});
  CHECK(read_file(folder / "out/y.lod.json") == "[[2,0,3]]\n");
  const std::string y = read_file(folder / "out/y.npy"), sums = read_file(folder / "out/next_sum.npy");
  for (const char* ranks : {"2", "5"}) {
    std::vector<std::string> spread = ragged;
    spread.insert(spread.end(), {"--ranks", ranks, "--stats"});
    const Ended ended = millrace_command(spread);
    INFO("stderr: ", ended.err);
    REQUIRE(ended.code == 0);
    CHECK(ended.out.find("rank 1: 1 sequences") != std::string::npos);
    CHECK(read_file(folder / "out/y.npy") == y);
    CHECK(read_file(folder / "out/next_sum.npy") == sums);
  }

  write_npy(folder / "index.npy", Tensor::from<std::int64_t>({0, 77}));
  check_refused(base, 1, {"77"});
  std::vector<std::string> on_two = base;
  on_two.insert(on_two.end(), {"--ranks", "2", "--lod", "index=[[1,1]]"});
  check_refused(on_two, 1, {"77"});
  check_refused({"run", (folder / "lookup.mr").string(), "--state", "sum:next_sum", "--output-dir", out}, 1, {"'index'"});
  check_refused({"run", (folder / "lookup.mr").string(), "--state", "sum:nothing", "--output-dir", out}, 1, {"sum:nothing"});
}

TEST_CASE("a graph that is one step, all of whose outputs are states, gives these row by row") {
  const ScratchFolder folder;
  Program program;
  {
    const build::Guard guard(program);
    const build::Var sum = build::input("x", VarType(DType::f32, {1, 2})) + build::input("h", VarType(DType::f32, {1, 2}));
    build::output("hn", sum);
  }
  save_program(program, folder / "sum.mr");
  write_npy(folder / "x.npy", Tensor::from<float>({1, 2, 3, 4, 5, 6}, DDim{3, 2}));
  REQUIRE(millrace_command({"run", (folder / "sum.mr").string(), "--state", "h:hn", "--output-dir", (folder / "out").string(), "--input",
                            "x=" + (folder / "x.npy").string()})
              .code == 0);
  CHECK(read_npy(folder / "out/hn.npy").dims() == DDim{3, 2});
  CHECK(read_npy(folder / "out/hn.npy").to_vector<float>() == std::vector<float>{1, 2, 4, 6, 9, 12});
}

TEST_CASE("inspect prints inputs, outputs, the program and what becomes state") {
  const Files files;
  const Ended plain = millrace_command({"inspect", files.path("listing.mr")});
  CHECK(plain.code == 0);
  for (const char* words : {"input x: f32[?, 3] lod=1", "output y: f32[?, 4] lod=1", "while", "millrace 1 \"listing\""})
    CHECK(plain.out.find(words) != std::string::npos);
  CHECK(plain.out.find("streaming") == std::string::npos);
  const Ended streaming = millrace_command({"inspect", files.path("listing.mr"), "--streaming"});
  CHECK(streaming.code == 0);
  for (const char* words : {"live input 'x': rows of f32[3]", "'boot'", "state '", "output 'y': rows of f32[4]"})
    CHECK(streaming.out.find(words) != std::string::npos);
  check_refused({"inspect", files.path("absent.onnx")}, 1, {"absent.onnx"});
  write_file(
      files.folder / "odd.mr",
      "millrace 1 \"odd\"\ninput \"a\\nb\" = x: f32[2]\nblock { idx: 0 parent_idx: -1\n  y: f32[2] = neg(X=x)\n}\noutput \"y\" = y\n");
  CHECK(millrace_command({"inspect", files.path("odd.mr")}).out.starts_with("input a?b: f32[2]\n"));
}

TEST_CASE("inspect shows the loop that hands out values of its iterations, and the backend that it keeps") {
  const Files files;
  const Ended kept = millrace_command({"inspect", files.path("listing.mr"), "--passes", "--keep", "sigmoid"});
  CHECK(kept.code == 0);
  for (const char* words : {"output kept.sigmoid: ", "kept.sigmoid", "backend: fused"}) CHECK(kept.out.find(words) != std::string::npos);
  const Ended all = millrace_command({"inspect", files.path("listing.mr"), "--passes", "--keep", "all-needed"});
  CHECK(all.code == 0);
  for (const char* words : {"kept of block 1: sigmoid; 4 elements a row", "computed again: nothing; 0 products", "backend: fused"})
    CHECK(all.out.find(words) != std::string::npos);
  check_refused({"inspect", files.path("listing.mr"), "--keep", "nobody"}, 1, {"listing.mr", "'nobody'"});
}

TEST_CASE("a memory limit ends a run that needs more, with op, iteration and size, and stands in front of serve") {
  ScratchFolder folder;
  Program program;
  {
    const build::Guard guard(program);
    build::Var step = build::constant(0);
    build::Var v = build::input("v", VarType(DType::f32, {DDim::unknown}));
    auto loop = build::while_loop({step, v});
    {
      auto frame = loop.frame();
      loop.break_if(equal(step, build::constant(std::int64_t{60})));
      v.update(build::concat({v, v}, 0));
      step.update(step + 1);
    }
    build::output("v", v);
  }
  save_program(program, folder / "doubling.mr");
  write_npy(folder / "v.npy", Tensor::from<float>({1, 2}));
  const auto with = [&](const std::string& limit) {
    return std::vector<std::string>{"run",          (folder / "doubling.mr").string(), "--input",        "v=" + (folder / "v.npy").string(),
                                    "--output-dir", (folder / "out").string(),         "--memory-limit", limit};
  };
  check_refused(with("64M"), 1, {"op concat", "iteration", "bytes", "budget of 67108864"});
  check_refused(with("65536"), 1, {"op concat", "iteration", "budget of 65536"});
  check_refused(with("none"), 2, {"--memory-limit"});
  check_refused(with("-1"), 2, {"--memory-limit"});
  CHECK(millrace_command({"serve", "--help"}).out.find("--memory-limit") != std::string::npos);
}

TEST_CASE("a trace ends at its limit and says how many events it left out, and its path is looked at first") {
  const Files files;
  std::vector<std::string> words = files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]", "--backend",
                                                   "interpreted", "--trace", files.path("trace.json")});
  REQUIRE(millrace_command(words).code == 0);
  const std::string whole = read_file(files.folder / "trace.json");
  words.insert(words.end(), {"--trace-limit", "500"});
  const Ended limited = millrace_command(words);
  CHECK(limited.code == 0);
  CHECK(limited.err.find("events had no room in 500 bytes") != std::string::npos);
  const std::string cut = read_file(files.folder / "trace.json");
  CHECK(cut.size() < whole.size());
  CHECK(cut.size() < 900);
  CHECK(cut.ends_with("],\"displayTimeUnit\":\"ns\"}\n"));
  // Before the model is even read.
  check_refused({"run", files.path("absent.mr"), "--output-dir", files.path("out"), "--trace", files.path("none/trace.json")}, 1,
                {"none/trace.json"});
}

TEST_CASE("a run tells microseconds, its set-up apart") {
  const Files files;
  const Ended ended =
      millrace_command(files.run_with({"--input", files.x(), "--input", files.boot(), "--lod", "x=[[3,1,2,0]]", "--stats"}));
  REQUIRE(ended.code == 0);
  CHECK(ended.out.find("ran in ") != std::string::npos);
  CHECK(ended.out.find(" us, set up in ") != std::string::npos);
}
