// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
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
  /// What a call gives, as [elements].
  std::function<Tensor()> result;
  std::string note;  ///< why it cannot be had
};

/// Starts `python`; `set_up` is a name of peers.py with its arguments.
PythonPeer make_python_peer(const std::string& python, const std::string& name, const std::vector<std::string>& set_up);

/// `set_up` with the numbers of `problem` in a folder: "NAME FOLDER H threads".
PythonPeer make_python_peer(const std::string& python, const std::string& name, const std::string& set_up, const LstmProblem& problem,
                            int threads);

}  // namespace millrace::bench
