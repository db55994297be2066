// SPDX-License-Identifier: Apache-2.0
// The main of every suite. A test that leaves a coroutine frame behind fails its suite, by name. A test that says
// MESSAGE("skipped: …"), because something it needs is not installed, makes the exit status 77 if nothing failed: ctest
// counts the file as skipped then, never as passed. So is a suite for a CUDA device where there is none; with
// MILLRACE_REQUIRE_CUDA=1 in the environment it fails instead.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>

#include <millrace/runtime/task/frame_pool.h>
#include <millrace/tensor/cuda_device.h>
#include <support/test_place.h>

namespace {

std::size_t tests_with_frames_left = 0;
std::size_t tests_skipped = 0;

class FrameListener final : public doctest::IReporter {
 public:
  explicit FrameListener(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& test) override { name_ = test.m_name; }
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    const std::size_t frames = millrace::live_frames();
    if (frames == frames_before_) return;
    frames_before_ = frames;
    ++tests_with_frames_left;
    std::cerr << "coroutine frames left alive: " << frames << " after the test '" << name_ << "'\n";
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData& message) override {
    if (std::strncmp(message.m_string.c_str(), "skipped: ", 9) == 0) ++tests_skipped;
  }
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  const char* name_ = "";
  std::size_t frames_before_ = 0;
};

REGISTER_LISTENER("frames", 1, FrameListener);

}  // namespace

// libstdc++'s own count of references to an exception is not instrumented: the thread that lets go of one last seems to race with those
// that looked at it before. Read by ThreadSanitizer alone.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the name is ThreadSanitizer's
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:std::__exception_ptr::exception_ptr::_M_release\n"; }

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (std::string_view(millrace::testing::test_place()).starts_with("cuda") && millrace::cuda_devices().empty()) {
    const char* required = std::getenv("MILLRACE_REQUIRE_CUDA");
    const bool fails = required != nullptr && std::string_view(required) == "1";
    std::cerr << (fails ? "failed" : "skipped") << ": no CUDA device here (" << millrace::cuda_status() << ")\n";
    return fails ? 1 : 77;
  }
  if (*millrace::testing::tests_left_out() != 0) {
    std::cerr << "left out, no kernels yet: " << millrace::testing::tests_left_out() << '\n';
    context.addFilter("source-file-exclude", millrace::testing::tests_left_out());
  }
  const int result = context.run();
  if (context.shouldExit() || result != 0) return result;
  if (tests_with_frames_left > 0) return 1;
  return tests_skipped == 0 ? 0 : 77;
}
