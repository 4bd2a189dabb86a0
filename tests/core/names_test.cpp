#include <gtest/gtest.h>

#include "kda/kda.h"

namespace kda {
namespace {

TEST(Names, Backends_RoundTrip) {
  for (Backend backend : {Backend::kAuto, Backend::kRef, Backend::kCpu, Backend::kCuda}) {
    EXPECT_EQ(backend_from_name(name_of(backend)), backend);
  }
  try {
    backend_from_name("gpu");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "backend: expected auto, ref, cpu or cuda, given 'gpu'");
  }
}

TEST(Names, Errors_HaveWords) {
  EXPECT_STREQ(name_of(ErrorCode::kInvalidArgument), "invalid argument");
  EXPECT_STREQ(name_of(ErrorCode::kUnsupported), "unsupported");
  EXPECT_STREQ(name_of(ErrorCode::kNonFinite), "non-finite value");
}

TEST(Names, DTypes_HaveNamesAndSizes) {
  EXPECT_STREQ(name_of(DType::kBF16), "bf16");
  EXPECT_EQ(size_of(DType::kBF16), 2U);
  EXPECT_EQ(size_of(DType::kF64), 8U);
  EXPECT_EQ(size_of(DType::kI32), 4U);
  EXPECT_TRUE(is_floating(DType::kF16));
  EXPECT_FALSE(is_floating(DType::kI64));
  EXPECT_TRUE(is_index(DType::kI64));
}

TEST(Names, Version_IsTheHeaders) {
  const std::string expected = std::to_string(KDA_VERSION_MAJOR) + "." +
                               std::to_string(KDA_VERSION_MINOR) + "." +
                               std::to_string(KDA_VERSION_PATCH);
  EXPECT_EQ(version(), expected);
}

TEST(Parallel, SetNumThreads_IsSeenAndRestored) {
  const int before = num_threads();
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(0);
  EXPECT_EQ(num_threads(), before);
}

}  // namespace
}  // namespace kda
