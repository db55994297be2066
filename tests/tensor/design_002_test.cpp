// SPDX-License-Identifier: Apache-2.0
// The listings of "Tensor: An Unified Data Type in PaddlePaddle" (PaddlePaddle design document of 2017, 002 in docs/origins.md), each
// quoted above its running form.
#include <variant>

#include <doctest/doctest.h>

#include <millrace/tensor/array_view.h>
#include <millrace/tensor/visit.h>

using namespace millrace;

namespace {

struct MyVisitor {
  int operator()(const Array<int, 1>& array) const { return array[Dim<1>(0)]; }
  template <class T, int D>
  int operator()(const Array<T, D>& array) const {
    return static_cast<int>(array.elements());
  }
};

}  // namespace

TEST_CASE("design 002: Dim<4>({10, 2, 5, 1})") {
  // > 3. Dim: size of each dimension. [i.e. Dim<4>({10, 2, 5, 1})]
  CHECK(Dim<4>({10, 2, 5, 1}) == make_dim(10, 2, 5, 1));
}

TEST_CASE("design 002: a visitor over many types") {
  // > class my_visitor : public boost::static_visitor<int>
  // >     int operator()(int i) const
  // >         return i;
  // >     int operator()(const std::string & str) const
  // >         return str.length();
  // > boost::variant< int, std::string > u("hello world");
  // > std::cout << u; // output: hello world
  // > int result = boost::apply_visitor( my_visitor(), u );
  // > std::cout << result; // output: 11 (i.e., length of "hello world")
  DArrayVar number = Tensor::from({11});
  DArrayVar letters = make_darray(make_ddim({11}), std::uint8_t{'x'});
  CHECK(visit(MyVisitor(), number) == 11);
  CHECK(visit(MyVisitor(), letters) == 11);
}

TEST_CASE("design 002: Place is CUDAPlace or CpuPlace") {
  // > typedef boost::variant<CUDAPlace, CpuPlace> Place;
  const Place cuda = CUDAPlace{1};
  const Place cpu = CpuPlace{};
  CHECK(std::get<CUDAPlace>(cuda).index == 1);
  CHECK(std::holds_alternative<CpuPlace>(cpu));
}

TEST_CASE("design 002: an Array has a size, a stride and a pointer") {
  // > template<typename T, int D>
  // > class Array : public Buffer {
  // >     Dim<D> size_;
  // >     Dim<D> stride_;
  // >     T* ptr_;
  const Array<double, 3> array(Dim<3>(2, 3, 4));
  CHECK(array.size() == Dim<3>(2, 3, 4));
  CHECK(array.stride() == Dim<3>(12, 4, 1));
  CHECK(array.ptr() != nullptr);
}

TEST_CASE("design 002: make_darray(make_ddim({2,3}), 0.0f)") {
  // > DArray arr = make_darray(make_ddim({2,3}), 0.0f);
  DArray arr = make_darray(make_ddim({2, 3}), 0.0f);
  CHECK(arr.dims() == DDim{2, 3});
  CHECK(arr.to_vector<float>() == std::vector<float>(6, 0.0f));

  // > For example, if we want to access the value in the 1st row and 2nd column of arr and set it to 1.0
  // > arr[make_ddim({0, 1})] = 1.0;
  arr[make_ddim({0, 1})] = 1.0;
  CHECK(arr.to_vector<float>() == std::vector<float>{0, 1, 0, 0, 0, 0});
}

TEST_CASE("design 002: Dim and DDim") {
  // > Dim<2> d1 = make_dim(3, 3);
  // > DDim d2 = make_ddim({1, 2, 3});
  // > typedef boost::variant<Dim<1>, Dim<2>, Dim<3>, Dim<4>, Dim<5>,
  // >                        Dim<6>, Dim<7>, Dim<8>, Dim<9>> DDimVar;
  const Dim<2> d1 = make_dim(3, 3);
  const DDim d2 = make_ddim({1, 2, 3});
  CHECK(product(d1) == 9);
  CHECK(d2.rank() == 3);
  const DDimVar any = d1;
  CHECK(any == make_ddim({3, 3}));
}

TEST_CASE("design 002: Array and DArray") {
  // > Array<float, 2> a1(Dim<2>(2, 2));
  // > DArray a2 = make_darray(make_ddim({3, 4}), 0.0, CpuPlace());
  const Array<float, 2> a1(Dim<2>(2, 2));
  const DArray a2 = make_darray(make_ddim({3, 4}), 0.0, CpuPlace());
  CHECK(a1.elements() == 4);
  CHECK(a2.dtype() == DType::f64);
  CHECK(a2.elements() == 12);
}

TEST_CASE("design 002: make_view and make_iterator") {
  // > template<typename T, int D>
  // > ArrayView<T, D> make_view(const Array<T, D>& in) {
  // >     return in;
  // > template<typename T, int D>
  // > ViewIterator<ArrayView<T, D>> make_iterator(const Array<T, D>& in, Dim<D> idx) {
  // >     return make_iterator(make_view(in), idx);
  DArray arr = make_darray(make_ddim({2, 3}), 0.0f);
  const Array<float, 2> in(arr);
  const ArrayView<float, 2> view = make_view(in);
  float next = 0.0f;
  for (float& element : view) element = next++;
  ViewIterator<ArrayView<float, 2>> at = make_iterator(in, Dim<2>(1, 0));
  CHECK(*at == 3.0f);
  CHECK(*++at == 4.0f);
  CHECK(*--at == 3.0f);
  CHECK(at == make_iterator(view, Dim<2>(1, 0)));
  CHECK(arr[make_ddim({1, 2})] == 5.0);
}
