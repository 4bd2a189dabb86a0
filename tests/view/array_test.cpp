#include "view/array.h"

#include "core/float16.h"
#include "view_test_support.h"

namespace kda::view {
namespace {

using test::expect_error;
using testing::counting;
using testing::elements_of;
using testing::OwnedArray;
using Doubles = std::vector<double>;
using Shape = std::vector<std::int64_t>;

TEST(Array, Transposed_IsTheOtherOrderWithoutACopy) {
  const OwnedArray a(counting(6), {2, 3});
  const Array t = transposed(a.array, Shape{1, 0});
  EXPECT_EQ(t.shape, (Shape{3, 2}));
  EXPECT_EQ(t.data, a.array.data);
  EXPECT_EQ(elements_of(t), (Doubles{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(elements_of(transposed(a.array, Shape{-1, 0})), elements_of(t));
}

TEST(Array, Transposed_AxisTwice_IsRefused) {
  const OwnedArray a(counting(6), {2, 3});
  for (const Shape& axes : {Shape{0, 0}, Shape{0, 2}, Shape{0}, Shape{-3, 0}}) {
    expect_error(ErrorCode::kInvalidArgument, {"transpose"}, [&] { transposed(a.array, axes); });
  }
}

TEST(Array, Reshaped_OfATransposedArray_CopiesInItsOrder) {
  const OwnedArray a(counting(6), {2, 3});
  const Array r = reshaped(transposed(a.array, Shape{1, 0}), Shape{-1});
  EXPECT_EQ(r.shape, (Shape{6}));
  EXPECT_NE(r.data, a.array.data);
  EXPECT_EQ(elements_of(r), (Doubles{0, 3, 1, 4, 2, 5}));
  // In its own order nothing is copied.
  EXPECT_EQ(reshaped(a.array, Shape{3, 2}).data, a.array.data);
}

TEST(Array, Reshaped_ThatDoesNotFit_IsRefused) {
  const OwnedArray a(counting(6), {2, 3});
  for (const Shape& shape : {Shape{4}, Shape{-1, 4}, Shape{-1, -1}, Shape{-2, 3}, Shape{0, -1},
                             Shape{1LL << 40, 1LL << 40}}) {
    expect_error(ErrorCode::kInvalidArgument, {"reshape", "[2, 3]"},
                 [&] { reshaped(a.array, shape); });
  }
}

TEST(Array, Sliced_WithNegativeStep_ReadsBackwards) {
  const OwnedArray a(counting(12), {3, 4});
  const std::vector<Slice> slices{{1, 1, 1, true}, {3, 2, -2, false}};
  const Array s = sliced(a.array, slices);
  EXPECT_EQ(s.shape, (Shape{2}));
  EXPECT_EQ(elements_of(s), (Doubles{7, 5}));
}

TEST(Array, EmptyWithHugeDimensions_HasNoElements) {
  const io::StTensor tensor{io::StDtype::kF32, {1LL << 40, 0, 1LL << 40}, {}};
  EXPECT_EQ(array_of(tensor).num_elements(), 0);
  const io::StTensor larger{io::StDtype::kF32, {(1LL << 40) + 1, 0}, {}};
  expect_error(ErrorCode::kInvalidArgument, {"dimension"}, [&] { array_of(larger); });
}

TEST(Array, ReadElements_EveryDtype) {
  const auto value_of = [](io::StDtype dtype, auto number) {
    const io::StTensor tensor{dtype, {}, std::as_bytes(std::span(&number, 1))};
    return elements_of(array_of(tensor)).at(0);
  };
  EXPECT_EQ(value_of(io::StDtype::kF64, 0.1), 0.1);
  EXPECT_EQ(value_of(io::StDtype::kF32, 0.1F), static_cast<double>(0.1F));
  EXPECT_EQ(value_of(io::StDtype::kF16, core::float_to_f16(-1.5F)), -1.5);
  EXPECT_EQ(value_of(io::StDtype::kBF16, core::float_to_bf16(2.5F)), 2.5);
  EXPECT_EQ(value_of(io::StDtype::kI64, std::int64_t{-7}), -7);
  EXPECT_EQ(value_of(io::StDtype::kI32, std::int32_t{-6}), -6);
  EXPECT_EQ(value_of(io::StDtype::kI16, std::int16_t{-5}), -5);
  EXPECT_EQ(value_of(io::StDtype::kI8, std::int8_t{-4}), -4);
  EXPECT_EQ(value_of(io::StDtype::kU8, std::uint8_t{200}), 200);
  EXPECT_EQ(value_of(io::StDtype::kBool, std::uint8_t{1}), 1);
}

}  // namespace
}  // namespace kda::view
