// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <doctest/doctest.h>

#include <millrace/runtime/training/ts_file.h>

using namespace millrace;
using namespace millrace::training;

namespace {

const std::string head = "# a comment\n@problemName small\n@timeStamps false\n@classLabel true b a\n@data\n";

void refused(const std::string& text, const std::string& why) {
  INFO(text);
  CHECK_THROWS_WITH_AS(parse_ts(text, "f.ts"), doctest::Contains(why.c_str()), Error);
}

}  // namespace

TEST_CASE("dimensions become features, lines sequences, and classes numbers in the order of the header") {
  const Dataset data = parse_ts(head + "1,2,3:-4,5e-1,6:a\n\n7:8:b\r\n", "f.ts");
  CHECK(data.x.tensor().dims() == DDim{4, 2});
  CHECK(data.x.tensor().to_vector<float>() == std::vector<float>{1, -4, 2, 0.5f, 3, 6, 7, 8});
  CHECK(data.x.lod().to_string() == "[[3,1]]");
  CHECK(data.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0});
  CHECK(data.classes == std::vector<std::string>{"b", "a"});
  data.validate();
}

TEST_CASE("with @targetLabel the target of a sequence is a number") {
  const Dataset data = parse_ts("@timestamps false\n@targetlabel true\n@data\n1,2:3,4:0.25\n5:6:-1e2\n", "f.ts");
  CHECK(data.x.lod().to_string() == "[[2,1]]");
  CHECK(data.targets.dims() == DDim{2, 1});
  CHECK(data.targets.to_vector<float>() == std::vector<float>{0.25f, -100});
  CHECK(data.classes.empty());
  data.validate();
  refused("@targetLabel true\n@data\n1,2:three\n", "f.ts:3: expected a number, found 'three'");
  refused("@targetLabel true\n@data\n12\n", "f.ts:3: expected DIMENSION:…:NUMBER, found no ':'");
  refused("@targetLabel true\n@data\n1:?\n", "a missing one");
  refused("@targetLabel false\n@data\n", "or @targetLabel true, before @data, found none");
  refused("@classLabel true a\n@targetLabel true\n@data\n",
          "f.ts:3: expected either @classLabel true or @targetLabel true before @data, found both");
}

TEST_CASE("an empty dimension is a sequence without rows, and no line is no sequence") {
  CHECK(parse_ts(head + "1:2:a\n::a\n", "f.ts").x.lod().to_string() == "[[1,0]]");
  CHECK(parse_ts(head, "f.ts").sequences() == 0);
}

TEST_CASE("a mark of UTF-8, numbers with a plus and numbers below the least one of f32 are read") {
  const Dataset data = parse_ts("\xef\xbb\xbf" + head + "+1,-1e-50,1e-40:a\n", "f.ts");
  CHECK(data.x.tensor().to_vector<float>() == std::vector<float>{1, 0, 1e-40f});
}

TEST_CASE("a header that says how many dimensions and rows there are is compared with each sequence") {
  const auto head_of = [](const std::string& said) { return "@classLabel true a\n" + said + "@data\n"; };
  refused(head_of("@dimensions 3\n") + "1,2:1,2:a\n", "f.ts:4: expected 3 dimensions, as the header or the lines before say, found 2");
  refused(head_of("@equalLength true\n@seriesLength 2\n") + "1,2:a\n1:a\n",
          "f.ts:6: expected sequences of 2 rows, as the header or the lines before say, found 1");
  refused(head_of("@seriesLength 3\n") + "1,2:a\n", "f.ts:4: expected sequences of 3 rows");
  refused(head_of("@equalLength true\n") + "1,2:a\n1,2:a\n1:a\n", "f.ts:6: expected sequences of 2 rows");
  refused(head_of("@dimensions x\n"), "f.ts:2: expected a number from 1 on behind @dimensions, found 'x'");
  refused(head_of("@seriesLength\n"), "f.ts:2: expected a number from 0 on behind @seriesLength, found ''");
  CHECK(parse_ts(head_of("@Dimensions 2\n@equalLength true\n@seriesLength 2\n") + "1,2:3,4:a\n", "f.ts").rows() == 2);
  CHECK(parse_ts(head_of("@equalLength false\n@seriesLength 0\n") + "1,2:a\n1:a\n", "f.ts").rows() == 3);
}

TEST_CASE("what is no such file is refused with its line") {
  refused("", "f.ts:1: expected @data");
  refused(head + "1,x:2,3:a\n", "f.ts:6: expected a number, found 'x'");
  refused(head + "1,2:3:a\n", "f.ts:6: expected dimensions of equal length, found 2 and 1");
  refused(head + "1:2:a\n1:a\n", "f.ts:7: expected 2 dimensions");
  refused(head + "1:2:c\n", "found 'c'");
  refused(head + "1,?:2,3:a\n", "a missing one");
  refused(head + "1,1e39:2,3:a\n", "f.ts:6: expected a number that f32 holds, found '1e39'");
  refused(head + "1,+-1:2,3:a\n", "f.ts:6: expected a number, found '+-1'");
  refused("@problemName p\n@classLabel true a b a\n@data\n",
          "f.ts:2: expected classes of different names behind @classLabel, found 'a' twice");
  refused("@timeStamps true\n", "time stamps");
  refused("@classLabel false\n@data\n", "@classLabel true");
  refused("1,2:a\n", "f.ts:1: expected a line of @ or #");
  refused(head + "12\n", "found no ':'");
}
