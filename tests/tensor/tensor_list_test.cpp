// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/tensor_list.h>

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include <millrace/tensor/format.h>
#include <support/random.h>

using namespace millrace;

namespace {

TensorList list_of(const std::vector<std::int64_t>& values) {
  std::vector<Tensor> elements;
  for (const std::int64_t value : values) elements.push_back(Tensor::scalar(value));
  return TensorList(elements);
}

std::vector<std::int64_t> values_of(const TensorList& list) {
  std::vector<std::int64_t> values;
  for (const Tensor& element : list.elements()) values.push_back(element.item_int());
  return values;
}

using Ints = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("a list is never changed, only made into another") {
  const TensorList empty;
  const TensorList one = empty.append(Tensor::scalar<std::int64_t>(1));
  const TensorList two = one.append(Tensor::scalar<std::int64_t>(2));
  const TensorList other = one.append(Tensor::scalar<std::int64_t>(3));
  CHECK(values_of(empty).empty());
  CHECK(values_of(one) == Ints{1});
  CHECK(values_of(two) == Ints{1, 2});
  CHECK(values_of(other) == Ints{1, 3});
  CHECK(values_of(two.insert(0, Tensor::scalar<std::int64_t>(9))) == Ints{9, 1, 2});
  CHECK(values_of(two.insert(-1, Tensor::scalar<std::int64_t>(9))) == Ints{1, 9, 2});
  CHECK(values_of(two.erase(-2)) == Ints{2});
  CHECK(values_of(two) == Ints{1, 2});
}

TEST_CASE("positions count from either end and are checked") {
  const TensorList list = list_of({5, 6, 7});
  CHECK(list.at(-3).item_int() == 5);
  CHECK(list.at(2).item_int() == 7);
  CHECK_THROWS_WITH_AS(list.at(3), "list: expected a position from -3 to 2, found 3", IndexError);
  CHECK_THROWS_WITH_AS(list.at(-4), "list: expected a position from -3 to 2, found -4", IndexError);
  CHECK_THROWS_WITH_AS(list.erase(3), "list: expected a position from -3 to 2, found 3", IndexError);
  CHECK_THROWS_WITH_AS(list.insert(4, Tensor()), "list: expected a position from -3 to 3, found 4", IndexError);
  CHECK_THROWS_WITH_AS(list.at(INT64_MIN), doctest::Contains("found -9223372036854775808"), IndexError);
  CHECK_THROWS_WITH_AS(TensorList().at(0), "list: expected a list with elements, found position 0 of an empty one", IndexError);
  CHECK_THROWS_AS(TensorList().erase(-1), IndexError);
}

TEST_CASE("a list has a most") {
  TensorList list;
  const Tensor element = Tensor::scalar<float>(1);
  for (std::int64_t i = 0; i < TensorList::most_elements; ++i) list = list.append(element);
  CHECK(list.size() == TensorList::most_elements);
  CHECK_THROWS_WITH_AS(list.append(element), "list: expected at most 1048576 elements, found 1048577", ArgumentError);
  CHECK_THROWS_AS(list.insert(0, element), ArgumentError);
}

TEST_CASE("any lists made of each other hold what vectors would") {
  for (const std::uint64_t seed : testing::seeds(50)) {
    INFO("seed ", seed);
    testing::Random random(seed);
    std::vector<TensorList> lists{TensorList()};
    std::vector<Ints> wanted{Ints()};
    for (std::int64_t step = 0; step < 200; ++step) {
      const std::size_t from = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(lists.size()) - 1));
      Ints values = wanted[from];
      const auto size = static_cast<std::int64_t>(values.size());
      const std::int64_t what = random.between(0, 4);
      if (what == 0 && size > 0) {
        const std::int64_t at = random.between(0, size - 1);
        values.erase(values.begin() + at);
        lists.push_back(lists[from].erase(random.coin() ? at : at - size));
      } else if (what == 4 && size > 0) {
        const std::int64_t at = random.between(0, size - 1);
        values[static_cast<std::size_t>(at)] = step;
        lists.push_back(lists[from].erase(at).insert(at, Tensor::scalar(step)));
      } else {
        const std::int64_t at = what == 1 ? random.between(0, size) : size;
        values.insert(values.begin() + at, step);
        lists.push_back(lists[from].insert(at, Tensor::scalar(step)));
      }
      wanted.push_back(values);
    }
    for (std::size_t i = 0; i < lists.size(); ++i) CHECK(values_of(lists[i]) == wanted[i]);
  }
}

TEST_CASE("each element of a long list is replaced, and the lists before it keep theirs") {
  Ints values(200);
  std::vector<Tensor> elements;
  for (std::int64_t i = 0; i < 200; ++i) elements.push_back(Tensor::scalar(values[static_cast<std::size_t>(i)] = i));
  std::vector<TensorList> lists{TensorList(elements)};
  for (std::int64_t at = 199; at >= 0; --at) lists.push_back(lists.back().erase(at).insert(at, Tensor::scalar(-at)));
  CHECK(values_of(lists.front()) == values);
  for (std::size_t made = 1; made < lists.size(); ++made) {
    values[200 - made] = -values[200 - made];
    CHECK(lists[made].at(static_cast<std::int64_t>(200 - made)).item_int() == values[200 - made]);
    CHECK(values_of(lists[made]) == values);
  }
  const TensorList lacking = lists.back().erase(130);
  CHECK(lacking.at(129).item_int() == -129);
  CHECK(lacking.at(130).item_int() == -131);
  CHECK(lacking.size() == 199);
  CHECK(lacking.append(Tensor::scalar<std::int64_t>(7)).at(199).item_int() == 7);
}

TEST_CASE("several threads may make longer lists of one") {
  const TensorList shared = list_of({1, 2, 3}).append(Tensor::scalar<std::int64_t>(4));
  std::vector<TensorList> made(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < made.size(); ++t)
      threads.emplace_back([&, t] {
        made[t] = shared;
        for (int i = 0; i < 100; ++i) made[t] = made[t].append(Tensor::scalar(static_cast<std::int64_t>(t)));
      });
  }
  for (std::size_t t = 0; t < made.size(); ++t) {
    Ints wanted{1, 2, 3, 4};
    wanted.insert(wanted.end(), 100, static_cast<std::int64_t>(t));
    CHECK(values_of(made[t]) == wanted);
  }
}

TEST_CASE("a list prints its first elements") {
  CHECK(fmt::format("{}", list_of({1})) == "a list of 1 tensor: i64[] on cpu");
  CHECK(list_of({1, 2, 3, 4, 5}).to_string() == "a list of 5 tensors: i64[] on cpu, i64[] on cpu, i64[] on cpu, i64[] on cpu, …");
  CHECK(TensorList().to_string() == "a list of 0 tensors");
}
