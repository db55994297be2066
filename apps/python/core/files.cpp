// SPDX-License-Identifier: Apache-2.0
// Model files and files of tensors.
#include <algorithm>
#include <filesystem>
#include <set>

#include <nanobind/stl/set.h>

#include <fmt/format.h>

#include <millrace/runtime/files/npy.h>
#include <millrace/runtime/files/npz.h>
#include <millrace/runtime/files/safetensors.h>
#include <millrace/runtime/layers/narrow.h>
#include <millrace/runtime/models/export/onnx.h>
#include <millrace/runtime/models/import/fluid.h>
#include <millrace/runtime/models/import/model.h>
#include <millrace/runtime/models/import/onnx.h>
#include <millrace/runtime/program/storage.h>

#include "build.h"
#include "errors.h"

namespace millrace::python {
namespace {

namespace fs = std::filesystem;

SharedProgram shared(Program program) { return {std::make_shared<Program>(std::move(program))}; }

nb::dict safetensors(const fs::path& path) {
  nb::dict made;
  for (const auto& [name, tensor] : read_safetensors(path).tensors) made[nb::str(name.c_str(), name.size())] = tensor;
  return made;
}

/// A folder that Fluid's `save_vars` wrote: a file for each variable, named like it; `__model__` holds the program, which is not read.
nb::dict fluid_folder(const fs::path& path) {
  nb::dict made;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file() && entry.path().filename() != "__model__") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const std::string name = fs::relative(file, path).generic_string();
    made[nb::str(name.c_str(), name.size())] = object_from(read_fluid_tensor(file));
  }
  return made;
}

nb::object load_there(const fs::path& path, const std::map<std::string, Tensor>& constants, const std::set<std::string>& inputs) {
  const std::string ending = path.extension().string();
  if (fs::is_directory(path)) return fluid_folder(path);
  if (ending == ".safetensors") return safetensors(path);
  if (ending == ".npy") return nb::cast(read_npy(path));
  if (ending == ".npz") return nb::cast(read_npz(path));
  if (constants.empty() && inputs.empty()) return nb::cast(shared(load_model(path)));
  OnnxOptions options;
  options.constants = constants;
  options.inputs = inputs;
  return nb::cast(shared(import_onnx(path, options)));
}

nb::object load(const fs::path& path, const std::map<std::string, Tensor>& constants, const std::set<std::string>& inputs) {
  if ((!constants.empty() || !inputs.empty()) && path.extension() != ".onnx")
    throw ArgumentError(fmt::format("load: {} go with an ONNX model, found {}", constants.empty() ? "inputs" : "constants", path.string()));
  expect_there(path);
  return naming_file(path, [&] { return load_there(path, constants, inputs); });
}

void save(const fs::path& path, const std::map<std::string, Tensor>& tensors) {
  const std::string ending = path.extension().string();
  if (ending == ".npz") return write_npz(path, tensors);
  if (ending != ".safetensors")
    throw ArgumentError(fmt::format("save: expected a name that ends in .safetensors or .npz, found {}", path.string()));
  SafeTensors contents;
  for (const auto& [name, tensor] : tensors) contents.tensors.emplace_back(name, tensor);
  write_safetensors(path, contents);
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def("load", &load, "path"_a, "constants"_a = std::map<std::string, Tensor>{}, "inputs"_a = std::set<std::string>{},
        nb::sig("def load(path: str | os.PathLike[str], constants: collections.abc.Mapping[str, TensorLike] = {}, inputs: "
                "collections.abc.Set[str] = set()) -> typing.Any"),
        "A file by its ending: NAME.onnx and NAME.mr give a Program; .safetensors and .npz a dict of Tensors; .npy a Tensor; a folder of "
        "PaddlePaddle\n"
        "Fluid's parameters (one file for each variable) a dict of them. `constants`: inputs of an ONNX graph that are the same in every "
        "run.\n"
        "`inputs`: those that have a value in the model and stay inputs, such as the states of a graph that is one step; "
        "others with a value are weights.");
  m.def(
      "load_program",
      [](const fs::path& path) {
        expect_there(path);
        return naming_file(path, [&] { return shared(load_model(path)); });
      },
      "path"_a, "A model file, NAME.onnx or NAME.mr, as a Program.");
  m.def(
      "parse_onnx",
      [](nb::bytes bytes, const std::string& name) { return shared(parse_onnx(std::string_view(bytes.c_str(), bytes.size()), name)); },
      "bytes"_a, "name"_a = "model", "An ONNX model from bytes; `name` stands for the file in errors.");
  m.def(
      "load_fluid",
      [](const fs::path& path) {
        expect_there(path);
        nb::list made;
        for (const LoDTensor& tensor : naming_file(path, [&] { return read_fluid_tensors(path); })) made.append(object_from(tensor));
        return made;
      },
      "path"_a, nb::sig("def load_fluid(path: str | os.PathLike[str]) -> list[typing.Any]"),
      "A file of PaddlePaddle Fluid's `save_combine`: its tensors in their order; it holds no names.");
  m.def(
      "save", [](const fs::path& path, const std::map<std::string, Tensor>& tensors) { naming_file(path, [&] { save(path, tensors); }); },
      "path"_a, "tensors"_a, "Named tensors as NAME.safetensors or NAME.npz; the file appears whole or not at all.");
  m.def(
      "save", [](const fs::path& path, const SharedProgram& program) { naming_file(path, [&] { save_program(*program.program, path); }); },
      "path"_a, "program"_a, "A program as NAME.mr, with its weights in NAME.safetensors: `Program.save`.");
  m.def(
      "export_onnx",
      [](const SharedProgram& program, const fs::path& path, bool batch) {
        return naming_file(path, [&] { return batch ? write_onnx_batch(path, *program.program) : write_onnx(path, *program.program); });
      },
      "program"_a, "path"_a, "batch"_a = false,
      "Writes the program as an ONNX model: over one sequence, or with `batch` over a ragged batch (its rows, and NAME.lengths).");
  m.def(
      "narrow_weights",
      [](SharedProgram& program, nb::handle dtype) { return layers::narrow_weights(*program.program, dtype_from(dtype)); }, "program"_a,
      "dtype"_a, nb::sig("def narrow_weights(program: Program, dtype: DTypeLike) -> int"),
      "Weights of products as bf16 or i8 from here on; says how many products have them.");
}

}  // namespace millrace::python
