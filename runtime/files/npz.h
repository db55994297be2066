// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include <millrace/tensor/tensor.h>

namespace millrace {

/// Named tensors of NumPy's .npz files: zip archives of .npy files (npy.h). Sources: numpy/lib/npyio.py, and PKWARE's APPNOTE.TXT 6.3.
using NpzTensors = std::map<std::string, Tensor>;

/// The most bytes that a file may hold once it is inflated. 1 KiB of deflated bytes can say 1 MiB.
inline constexpr std::uint64_t largest_npz = std::uint64_t{16} << 30;

/// Reads stored and deflated members (np.savez, np.savez_compressed). Each is NAME.npy and is known by NAME; nothing is ever
/// written to where a name points. Strict: one central directory that ends the file, members that lie in the file without overlapping,
/// sizes that deflate can reach, right CRC-32. Anything else is a ParseError that names the member; members that are encrypted, compressed
/// in another way or in the zip64 form (from 4 GiB on) are an UnsupportedError, and so are deflated ones in a build without the part zlib.
/// A declared size is compared with the bytes that are there, and with `most` for all members together, before anything is allocated.
NpzTensors read_npz(const std::filesystem::path& path, std::uint64_t most = largest_npz);
/// Reads the bytes of such a file; `where` opens each error.
NpzTensors parse_npz(std::string_view bytes, const std::string& where, std::uint64_t most = largest_npz);

/// Writes stored members in the order of their names, without a time: the same tensors give the same bytes. The file appears whole or not at
/// all. ArgumentError for a name that is empty or no UTF-8, UnsupportedError from 4 GiB on, DTypeError as write_npy.
void write_npz(const std::filesystem::path& path, const NpzTensors& tensors);
/// Gives the bytes of such a file.
std::string format_npz(const NpzTensors& tensors);

}  // namespace millrace
