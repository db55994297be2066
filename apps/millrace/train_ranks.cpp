// SPDX-License-Identifier: Apache-2.0
#include "train_ranks.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <millrace/runtime/distributed/mpi.h>
#include <millrace/runtime/distributed/tcp.h>

namespace millrace::app {
namespace {

/// A port that nobody listens on. The system gives those from 32768 on to whoever connects, so one below is still free when rank 0 listens.
std::string free_port() {
  using tcp = boost::asio::ip::tcp;
  boost::asio::io_context io;
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    const auto port = static_cast<std::uint16_t>(10000 + random() % 20000);
    tcp::acceptor acceptor(io, tcp::v4());
    boost::system::error_code error;
    acceptor.bind(tcp::endpoint(boost::asio::ip::address_v4::loopback(), port), error);
    if (!error) return std::to_string(port);
  }
  return std::to_string(tcp::acceptor(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)).local_endpoint().port());
}

/// mpirun, once it has been started, and the number of signals that asked for its end.
volatile std::sig_atomic_t mpirun_process = 0, asked_to_stop = 0;

/// mpirun kills its ranks a second behind a SIGINT or SIGTERM, and drops what they write then. A SIGUSR1 it hands on to them.
void hand_on(int) {
  const int error = errno;
  asked_to_stop = asked_to_stop + 1;
  ::kill(static_cast<pid_t>(mpirun_process), asked_to_stop == 1 ? SIGUSR1 : SIGTERM);
  errno = error;
}

/// The child of a fork: a process group of its own, which the signals of a terminal do not reach, without a terminal to read from. Ends with its parent. Gives the
/// reason where mpirun does not start.
int become_mpirun(pid_t parent, char* const* words) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) return ECANCELED;
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::execvp("mpirun", words);
  return errno;
}

int wait_for(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0)
    if (errno != EINTR) throw IoError(fmt::format("--ranks: cannot wait for mpirun: {}", std::strerror(errno)));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// The exit code of mpirun.
int run_mpirun(char* const* words) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError(fmt::format("--ranks: cannot make a pipe: {}", std::strerror(errno)));
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    const int error = become_mpirun(parent, words);
    ::_exit(::write(ends[1], &error, sizeof error) == sizeof error ? 127 : 126);
  }
  const int failed_fork = errno;
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    throw IoError(fmt::format("--ranks: cannot start mpirun: {}", std::strerror(failed_fork)));
  }
  mpirun_process = static_cast<std::sig_atomic_t>(child);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
    if (std::signal(number, hand_on) == SIG_IGN && number == SIGHUP) std::signal(number, SIG_IGN);  // nohup
  int error = 0;
  ssize_t got = 0;
  do got = ::read(ends[0], &error, sizeof error);
  while (got < 0 && errno == EINTR);
  ::close(ends[0]);
  const int code = wait_for(child);
  if (got == sizeof error)
    throw IoError(fmt::format("--ranks: cannot start mpirun: {}; install the Debian package openmpi-bin", std::strerror(error)));
  return code;
}

}  // namespace

bool started_by_mpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr && std::getenv("RANK") == nullptr; }

bool draws_in_terminal() {
  if (::isatty(STDOUT_FILENO) != 1) return false;
  const char* const said = std::getenv("MILLRACE_TERMINAL");
  return !started_by_mpirun() || (said != nullptr && std::string_view(said) == "1");
}

std::unique_ptr<RankWorld> join_ranks() {
  return RankWorld::join(rank_environment(), [](Rendezvous& meeting) {
    return started_by_mpirun() ? make_mpi_communicator() : make_tcp_communicator(meeting);
  });
}

bool said_by_another(int rank, const std::atomic<bool>& asked) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3 * std::min(rank, 4));
  if (asked) return false;  // somebody else asked, before the error
  while (!asked && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return rank > 0 && asked;
}

int start_ranks(int ranks, char** argv) {
  if (mpi_status() == "not in this build")
    throw UnsupportedError(
        "--ranks: this build has no MPI: build with the Debian packages libopenmpi-dev and openmpi-bin, or start the ranks "
        "yourself with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
  ::setenv("MASTER_PORT", free_port().c_str(), 0);
  ::setenv("MILLRACE_TERMINAL", ::isatty(STDOUT_FILENO) == 1 ? "1" : "0", 1);
  if (::geteuid() == 0) {
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  std::vector<std::string> words{"mpirun", "-x", "MASTER_PORT", "-x", "MILLRACE_TERMINAL", "-n", std::to_string(ranks), "/proc/self/exe"};
  std::vector<char> self(4096);
  const ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (length > 0) words.back() = std::string(self.data(), static_cast<std::size_t>(length));
  for (char** word = argv + 1; *word != nullptr; ++word) {
    const std::string_view text(*word);
    if (text == "--ranks" && word[1] != nullptr)
      ++word;
    else if (!text.starts_with("--ranks="))
      words.emplace_back(text);
  }
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return run_mpirun(pointers.data());
}

}  // namespace millrace::app
