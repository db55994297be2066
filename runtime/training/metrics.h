// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <millrace/tensor/tensor.h>

namespace millrace::training {

/// A mean loss and, of classes, the share that was right.
struct Score {
  double loss = 0;
  std::optional<double> accuracy;
};

/// The number of rows of `scores` [N, K], f32 or f64, that are greatest at their target, i64 [N]; of equal ones the first counts. ShapeError.
std::int64_t count_right(const Tensor& scores, const Tensor& targets);

/// The figures of one epoch.
struct EpochMetrics {
  std::int64_t epoch = 0;  ///< from 1 on
  std::int64_t step = 0;   ///< updates so far
  Score train;             ///< before each update, over the epoch
  std::optional<Score> validation;
  double learning_rate = 0;  ///< of its last step
  double gradient_norm = 0;  ///< the mean of its steps
};

/// Levenshtein's distances of the best hypotheses to their references, over the tokens of the references.
struct TokenErrors {
  double greedy = 0;
  double beam = 0;
};

/// The end of a job.
struct FinalMetrics {
  std::int64_t epoch = 0, step = 0;
  std::int64_t best_epoch = 0;  ///< whose weights were kept
  std::optional<Score> validation, test;
  std::optional<TokenErrors> test_tokens = {};  ///< of a decoder
};

/// One line of JSON without its end, the same for the same numbers. Numbers print so that they read back to the same bits. A number
/// that is not finite is null.
std::string json_line(const EpochMetrics& metrics);
std::string json_line(const FinalMetrics& metrics);
/// "final: test_accuracy=0.9541 test_loss=0.17"; of the validation where there is no test.
std::string final_line(const FinalMetrics& metrics);

/// The epochs as a tensor f64 [epochs, 9], and back, bit for bit. ShapeError.
Tensor to_tensor(const std::vector<EpochMetrics>& epochs);
std::vector<EpochMetrics> metrics_of(const Tensor& tensor);

/// Loss and accuracy by epoch as a drawing: SVG, one panel each. Numbers that are not finite are left out, here and below.
std::string curves_as_svg(const std::string& title, const std::vector<EpochMetrics>& epochs);
/// The same curve of losses (or of accuracies, where there are some) for a terminal, `height` lines of at most `width` columns, each with its end of line.
std::string curve_as_text(const std::vector<EpochMetrics>& epochs, int width = 72, int height = 10);

}  // namespace millrace::training
