#include "core/check.h"

#include <gtest/gtest.h>

#include "kda/tensor_view.h"

namespace kda::core {
namespace {

TEST(Check, ShapeText) {
  float x = 0;
  EXPECT_EQ(shape_text(view_of(&x, {2, 3, 0})), "[2,3,0]");
  EXPECT_EQ(shape_text(ConstTensorView{}), "[]");
}

TEST(Check, Text_IsTheWholeSentence) {
  float x = 0;
  try {
    check_shape("k", view_of(&x, {2, 128, 4, 60}), {{"B", 2}, {"T", 128}, {"H", 4}, {"K", 64}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "k: expected [B=2,T=128,H=4,K=64], given [2,128,4,60]");
  }
}

TEST(Check, Writable_AcceptsPermutedAndPaddedViews) {
  float x = 0;
  TensorView view = view_of(&x, {2, 3, 4});
  view.stride = {40, 1, 5};  // padded, dimensions in another order
  EXPECT_NO_THROW(check_writable("o", view));
  view.stride = {40, 1, 2};  // 3 elements at 0,1,2 and a step of 2
  EXPECT_THROW(check_writable("o", view), Error);
  view.stride = {0, 1, 3};
  view.shape = {1, 3, 4};  // the stride of an extent of 1 plays no part
  EXPECT_NO_THROW(check_writable("o", view));
  view.shape = {2, 0, 4};  // nothing to write
  view.stride = {0, 0, 0};
  EXPECT_NO_THROW(check_writable("o", view));
}

TEST(Check, Contiguous_IgnoresExtentsOfOne) {
  float x = 0;
  TensorView view = view_of(&x, {1, 3, 1, 4});
  EXPECT_TRUE(view.is_contiguous());
  view.stride[0] = 99;
  view.stride[2] = 99;
  EXPECT_TRUE(view.is_contiguous());
  view.stride[1] = 5;
  EXPECT_FALSE(view.is_contiguous());
  EXPECT_THROW(check_contiguous("a_log", view), Error);
}

TEST(TensorView, Transposed_SwapsShapeAndStride) {
  float x = 0;
  const TensorView view = view_of(&x, {2, 3, 4, 5}).transposed(2, 3);
  EXPECT_EQ(view.shape[2], 5);
  EXPECT_EQ(view.shape[3], 4);
  EXPECT_EQ(view.stride[2], 1);
  EXPECT_EQ(view.stride[3], 5);
  EXPECT_EQ(view.numel(), 120);
  EXPECT_FALSE(view.is_contiguous());
}

TEST(TensorView, Absent_HasRankZero) {
  EXPECT_FALSE(TensorView{}.defined());
  EXPECT_EQ(TensorView{}.numel(), 0);
}

TEST(Check, IndexAt_ReadsBothWidthsWithStrides) {
  const std::int32_t narrow[] = {1, 2, 3, 4};
  const std::int64_t wide[] = {1, 2, std::int64_t{1} << 40, 4};
  ConstTensorView view = view_of(narrow, {2});
  view.stride[0] = 2;
  EXPECT_EQ(index_at(view, 1), 3);
  view = view_of(wide, {2});
  view.stride[0] = 2;
  EXPECT_EQ(index_at(view, 1), std::int64_t{1} << 40);
}

}  // namespace
}  // namespace kda::core
