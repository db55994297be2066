// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <bench/library/lstm_problem.h>
#include <bench/library/measure.h>

namespace millrace::bench {

/// A peer that lives in a Python process of its own (peers.py), which sleeps while it is not asked.
struct PythonPeer {
  std::string name;  ///< with its version, or only what was asked for
  Timer timer;       ///< empty when it cannot be had; throws IoError when the process ends
  /// The elements of a call's results.
  std::function<Tensor()> result;
  std::string note;  ///< why it cannot be had
};

/// Starts `python`; `set_up` is a name of peers.py with its arguments.
PythonPeer make_python_peer(const std::string& python, const std::string& name, const std::vector<std::string>& set_up);

/// The same with tensors in a folder, each a file of its raw elements: "NAME FOLDER ARGUMENT…".
using RawFiles = std::map<std::string, Tensor>;
PythonPeer make_python_peer(const std::string& python, const std::string& name, const std::vector<std::string>& set_up,
                            const RawFiles& files);

/// `set_up` with the numbers of `problem`, and of `more`, in a folder: "NAME FOLDER H threads".
PythonPeer make_python_peer(const std::string& python, const std::string& name, const std::string& set_up, const LstmProblem& problem,
                            int threads, const RawFiles& more = {});

}  // namespace millrace::bench
