// SPDX-License-Identifier: Apache-2.0
// Goals that nothing is measured for yet: listed, so that nobody takes a table without them for the whole.
#include <string>

#include <bench_gpu/gpu_families.h>

namespace millrace::bench {
namespace {

void list(Context& context, const char* id, const char* shape, const char* peer, double goal) {
  Row row;
  row.id = id;
  row.shape = shape;
  row.peer_name = peer;
  row.goal = goal;
  row.note = "not measured: no kernel yet";
  context.emit(std::move(row));
}

}  // namespace

void list_wavefront(Context& context) {
  list(context, "G4", "4 layers, H <= 512 B <= 64, H 768 B <= 16", "PyTorch", 15);
  list(context, "G4", "4 layers, H 768 B64, H 1024 B16", "PyTorch", 10);
  list(context, "G4", "4 layers, H 1024 B64", "PyTorch", 5);
  list(context, "G4", "4 layers, H <= 512", "1.5 x one layer", 1);
}

void list_wide(Context& context) {
  list(context, "G5", "H 1536 and 2048, B1", "cuDNN", 2.5);
  list(context, "G5", "H 1536 and 2048, B16", "cuDNN", 2);
  list(context, "G5", "H 1536 and 2048, B64", "cuDNN", 1.3);
}

void list_training(Context& context) {
  list(context, "G6", "forward and backward, B <= 16, H <= 512", "cuDNN", 1.8);
  list(context, "G6", "forward and backward, B <= 16, H 768", "cuDNN", 1.5);
  list(context, "G6", "forward and backward, B <= 16, H 1024", "cuDNN", 1.2);
  list(context, "G6", "forward and backward, B64, H <= 512", "cuDNN", 4);
  list(context, "G6", "forward and backward, B64, H 768", "cuDNN", 2.5);
  list(context, "G6", "forward and backward, B64, H 1024", "cuDNN", 1.8);
  list(context, "G6", "forward and backward, B256, H <= 512", "cuDNN", 3);
  list(context, "G6", "forward and backward, B256, H >= 768", "cuDNN", 1.2);
  list(context, "G6", "bytes saved for backward", "0.6 x cuDNN's reserve", 1);
}

void list_refill(Context& context) {
  list(context, "G7", "512 ragged sequences, 64 slots", "1.1 x the dense steps that they need", 1);
  list(context, "G7", "512 ragged sequences, 64 slots, H <= 512", "cuDNN, best of padded, sorted, packed", 5);
  list(context, "G7", "512 ragged sequences, 64 slots, H 1024", "cuDNN, best of padded, sorted, packed", 2.5);
}

}  // namespace millrace::bench
