// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

/// Shared by the sources of the extension module `millrace._core`: one function for each part of the module, called in this order by
/// module.cpp. Docstrings are those that Python shows.
namespace millrace::python {

namespace nb = nanobind;
using namespace nb::literals;

void bind_errors(nb::module_& module);
/// The exception that `error` is raised as.
nb::object exception_of(const std::exception_ptr& error);
void bind_values(nb::module_& module);
void bind_program(nb::module_& module);
void bind_ops(nb::module_& module);
void bind_indexing(nb::module_& module);
void bind_loops(nb::module_& module);
void bind_sequences(nb::module_& module);
void bind_layers(nb::module_& module);
void bind_running(nb::module_& module);
void bind_files(nb::module_& module);
void bind_live(nb::module_& module);
void bind_serving(nb::module_& module);
void bind_training(nb::module_& module);

}  // namespace millrace::python
