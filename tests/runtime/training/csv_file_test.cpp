// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include <millrace/runtime/training/csv_file.h>
#include <millrace/runtime/training/model_spec.h>

using namespace millrace;
using namespace millrace::training;

namespace {

const std::string head = "sequence,a,b,label\n";

void refused(const std::string& text, const std::string& why, const CsvForm& form = {}, const Dataset* like = nullptr) {
  INFO(text);
  CHECK_THROWS_WITH_AS(parse_csv(text, "f.csv", form, like), doctest::Contains(why.c_str()), Error);
}

std::vector<float> floats(const Tensor& tensor) { return tensor.to_vector<float>(); }
std::vector<std::int64_t> numbers(const Tensor& tensor) { return tensor.to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("rows of a sequence stand one behind the other, and the columns that are left are features") {
  const Dataset data = parse_csv("\xef\xbb\xbf" + head + "s1,1,-2.5,0\r\ns1, +3 ,4e1,0\n\n\"s,2\",5,6,2\n", "f.csv", {});
  CHECK(data.x.tensor().dims() == DDim{3, 2});
  CHECK(floats(data.x.tensor()) == std::vector<float>{1, -2.5f, 3, 40, 5, 6});
  CHECK(data.x.lod().to_string() == "[[2,1]]");
  CHECK(numbers(data.targets) == std::vector<std::int64_t>{0, 2});
  CHECK(data.classes.empty());
  data.validate();
  const DataShape shape = shape_of(data);
  CHECK(shape.features == 2);
  CHECK(shape.outputs == 3);
  CHECK(parse_csv(head, "f.csv", {}).sequences() == 0);
}

TEST_CASE("numbers below the least one of f32 are zeros or denormals") {
  const Dataset data = parse_csv(head + "1,1e-46,-1e-400,0\n1,1e-40,0.0000000000000000000000000000000000000000000000001,0\n", "f.csv", {});
  CHECK(floats(data.x.tensor()) == std::vector<float>{0, 0, 1e-40f, 0});
  CHECK(std::signbit(floats(data.x.tensor())[1]));
}

TEST_CASE("names of classes are numbered in the order of their bytes, and a further file has those of the training data") {
  const Dataset data = parse_csv(head + "1,0,0,up\n2,0,0,down\n3,0,0,\"a \"\"b\"\"\"\n", "f.csv", {});
  CHECK(data.classes == std::vector<std::string>{"a \"b\"", "down", "up"});
  CHECK(numbers(data.targets) == std::vector<std::int64_t>{2, 1, 0});
  const Dataset test = parse_csv(head + "1,0,0,up\n", "g.csv", {}, &data);
  CHECK(numbers(test.targets) == std::vector<std::int64_t>{2});
  CHECK(test.classes == data.classes);
  refused(head + "1,0,0,up\n2,0,0,left\n", "f.csv:3: expected a class of the training data, found 'left'", {}, &data);
  const Dataset whole = parse_csv(head + "1,0,0,1\n", "f.csv", {});
  refused(head + "1,0,0,up\n", "f.csv:2: expected a class from 0 to ", {}, &whole);
  CHECK(parse_csv(head + "1,0,0,-1\n2,0,0,1\n", "f.csv", {}).classes == std::vector<std::string>{"-1", "1"});
  refused(head + "1,0,0,1\n2,0,0,0.5\n", "f.csv:3: expected a class, a name or a whole number from 0 on, found '0.5' (loss = \"mse\"");
  refused(head + "1,0,0,99999999\n", "f.csv:2: expected a class from 0 to ");
}

TEST_CASE("features of a further file are those of the training data by their names, wherever they stand") {
  const Dataset data = parse_csv(head + "1,1,2,0\n", "f.csv", {});
  CHECK(data.columns == std::vector<std::string>{"a", "b"});
  const Dataset test = parse_csv("b,label,sequence,a\n4,0,1,3\n", "g.csv", {}, &data);
  CHECK(floats(test.x.tensor()) == std::vector<float>{3, 4});
  CHECK(test.columns == data.columns);
  CHECK(test.select(std::vector<std::int64_t>{0}).columns == data.columns);
  refused("sequence,a,c,label\n1,1,2,0\n",
          "f.csv:1: expected a column 'b' (a feature of the training data), found 'sequence', 'a', 'c', 'label'", {}, &data);
  refused("sequence,a,label\n1,1,0\n", "f.csv:1: expected a column 'b' (a feature of the training data)", {}, &data);
  refused("sequence,a,b,c,label\n1,1,2,3,0\n", "f.csv:1: expected the columns of the training data, found 'c' beside them", {}, &data);
}

TEST_CASE("targets of rows, of numbers, and features that are named") {
  CsvForm form;
  form.per_row = form.numbers = true;
  form.targets = {"b", "label"};
  form.features = {"a"};
  form.sequence = "sequence";
  const Dataset data = parse_csv(head + "1,7,0.5,1\n1,8,-1,2\n2,9,3,4\n", "f.csv", form);
  CHECK(data.x.tensor().dims() == DDim{3, 1});
  CHECK(data.targets.dims() == DDim{3, 2});
  CHECK(floats(data.targets) == std::vector<float>{0.5f, 1, -1, 2, 3, 4});
  data.validate();
}

TEST_CASE("a word is a number behind 0, which stands for words that the training data does not have") {
  CsvForm form;
  form.words = form.per_row = true;
  form.features = {"word"};
  form.targets = {"tag"};
  form.separator = '\t';
  const Dataset data = parse_csv("sequence\tword\ttag\n1\tthe\tD\n1\tmill\tN\n2\tthe\tD\n", "f.tsv", form);
  CHECK(data.words == std::vector<std::string>{"", "mill", "the"});
  CHECK(numbers(data.x.tensor()) == std::vector<std::int64_t>{2, 1, 2});
  CHECK(numbers(data.targets) == std::vector<std::int64_t>{0, 1, 0});
  CHECK(shape_of(data).features == 3);
  const Dataset test = parse_csv("sequence\tword\ttag\n1\tmill\tN\n1\trace\tN\n", "g.tsv", form, &data);
  CHECK(numbers(test.x.tensor()) == std::vector<std::int64_t>{1, 0});
  CHECK(data.select(std::vector<std::int64_t>{1}).words == data.words);
}

TEST_CASE("a series is cut into sequences of equal length, but for the last one") {
  CsvForm form;
  form.series = form.numbers = form.per_row = true;
  form.targets = {"y"};
  form.length = 2;
  const Dataset data = parse_csv("x,y\n1,2\n2,3\n3,4\n", "f.csv", form);
  CHECK(data.x.lod().to_string() == "[[2,1]]");
  CHECK(floats(data.targets) == std::vector<float>{2, 3, 4});
}

TEST_CASE("bytes that are no UTF-8 stand escaped in an error, and controls as question marks") {
  refused(std::string("\xff\xfes\0e\0q\0\n\0", 10), "f.csv:1: expected a column 'sequence' (sequence_column), found '\\xff\\xfes?e?q?'");
  refused(head + "1,2,\x80\xc3\xa9\xe6\x99\x82\xf0\x9f\x98\x80\xc2\x9b\xc3,0\n", "found '\\x80\xc3\xa9\xe6\x99\x82\xf0\x9f\x98\x80?\\xc3'");
  refused(head + "1,2," + std::string(119, 'x') + "\xc3\xa9,0\n", "found '" + std::string(119, 'x') + "…'");
}

TEST_CASE("what is no such file is refused with its line and column") {
  refused("", "f.csv:1: expected a line with the names of the columns");
  refused("a,b,label\n", "f.csv:1: expected a column 'sequence' (sequence_column), found 'a', 'b', 'label'");
  refused("sequence,a\n", "f.csv:1: expected a column 'label' (target_columns)");
  refused("sequence,a,a,label\n", "found 'a' twice");
  refused("sequence,label\n", "at least one column of features");
  refused(head + "1,2,3\n", "f.csv:2: expected 4 fields as in the first line, found 3");
  refused(head + "1,2,3,0,\n", "expected 4 fields as in the first line, found 5");
  refused(head + "1,2,x,0\n", "f.csv:2: column 'b': expected a finite number, found 'x'");
  for (const char* number : {"nan", "inf", "1 2", "0x1", "+", "--1", "+-1"})
    refused(head + "1,2," + number + ",0\n", "column 'b': expected a finite number");
  for (const char* number : {"1e99", "-3.5e38", "1e400"})
    refused(head + "1,2," + number + ",0\n", "f.csv:2: column 'b': expected a finite number that f32 holds, found '");
  refused(head + "1,2,,0\n", "f.csv:2: column 'b': expected a value, found none");
  refused(head + " ,\t, ,\n", "f.csv:2: column 'sequence': expected a value, found none");
  refused(head + "1,2,3,0\n2,2,3,0\n1,2,3,0\n",
          "f.csv:4: expected the rows of a sequence one behind the other, found more of sequence '1'");
  refused(head + "1,2,3,0\n1,2,3,1\n", "f.csv:3: expected the target '0' of the sequence's rows before, found '1'");
  refused(head + "1,\"2,3,0\n", "f.csv:2: expected a closing '\"'");
  refused(head + "1,\"2\"3,3,0\n", "f.csv:2: expected a separator behind a closing '\"', found '3,3,0'");
  CsvForm form;
  form.words = true;
  refused(head, "expected one column of words for the embedding, found 2: 'a', 'b'", form);
  form = {};
  form.targets = {"a", "label"};
  refused(head, "expected one column of classes, found 2", form);
  form.length = 0;
  refused(head, "at least 1 row", form);
  form = {};
  form.features = {"a", "label"};
  refused(head, "f.csv: feature_columns: expected columns that are no targets, found 'label', a column of target_columns", form);
  form.features = {"a", "b", "a"};
  refused(head, "f.csv: feature_columns: expected different columns, found 'a' twice", form);
  form.targets = {"b", "b"};
  refused(head, "f.csv: target_columns: expected different columns, found 'b' twice", form);
}
