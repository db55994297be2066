// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "bind.h"

NB_MODULE(_core, module) {
  // An object that a global variable holds at the exit is no leak; the tests set the variable to hear of it.
  nanobind::set_leak_warnings(std::getenv("MILLRACE_LEAK_WARNINGS") != nullptr);
  nanobind::set_implicit_cast_warnings(false);  // an error of a conversion is raised by the call that it belongs to
  module.doc() = "The C++ side of millrace. Import `millrace`, which re-exports it.";
  millrace::python::bind_errors(module);
  millrace::python::bind_values(module);
  millrace::python::bind_program(module);
  millrace::python::bind_ops(module);
  millrace::python::bind_indexing(module);
  millrace::python::bind_loops(module);
  millrace::python::bind_sequences(module);
  millrace::python::bind_layers(module);
  millrace::python::bind_running(module);
  millrace::python::bind_files(module);
  millrace::python::bind_live(module);
  millrace::python::bind_serving(module);
  millrace::python::bind_training(module);
}
