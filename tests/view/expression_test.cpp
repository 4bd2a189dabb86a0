#include "view/expression.h"

#include "view_test_support.h"

namespace kda::view {
namespace {

using test::expect_error;
using testing::counting;
using testing::elements_of;
using testing::OwnedArray;
using Doubles = std::vector<double>;
using Shape = std::vector<std::int64_t>;

struct Case {
  const char* code;
  Shape shape;
  Doubles elements;
};

// Expected values: NumPy on np.arange(6).reshape(2, 3).
TEST(Expression, Views_MeanWhatNumPyMeans) {
  const OwnedArray a(counting(6), {2, 3});
  const Case cases[] = {
      {"tensor", {2, 3}, {0, 1, 2, 3, 4, 5}},
      {" ( tensor ) ", {2, 3}, {0, 1, 2, 3, 4, 5}},
      {"tensor.T", {3, 2}, {0, 3, 1, 4, 2, 5}},
      {"tensor.transpose()", {3, 2}, {0, 3, 1, 4, 2, 5}},
      {"tensor.transpose(1, 0)", {3, 2}, {0, 3, 1, 4, 2, 5}},
      {"np.transpose(tensor, (1, 0))", {3, 2}, {0, 3, 1, 4, 2, 5}},
      {"transpose(tensor)", {3, 2}, {0, 3, 1, 4, 2, 5}},
      {"tensor.swapaxes(0, -1)", {3, 2}, {0, 3, 1, 4, 2, 5}},
      {"swapaxes(tensor, 0, 1)[0]", {2}, {0, 3}},
      {"tensor.reshape(1,-1)", {1, 6}, {0, 1, 2, 3, 4, 5}},
      {"tensor.reshape((3, 2,))[1:]", {2, 2}, {2, 3, 4, 5}},
      {"np.reshape(tensor.T, [6])", {6}, {0, 3, 1, 4, 2, 5}},
      {"tensor[0]", {3}, {0, 1, 2}},
      {"tensor[-1, ::-1]", {3}, {5, 4, 3}},
      {"tensor[:, 1:]", {2, 2}, {1, 2, 4, 5}},
      {"tensor[..., 0]", {2}, {0, 3}},
      {"tensor[1, ...]", {3}, {3, 4, 5}},
      {"tensor[1,]", {3}, {3, 4, 5}},
      {"tensor[1, 2]", {}, {5}},
      {"tensor[5:]", {0, 3}, {}},
      {"tensor[:, 100:-100:-1]", {2, 3}, {2, 1, 0, 5, 4, 3}},
      {"tensor[:, ::2]", {2, 2}, {0, 2, 3, 5}},
      {"tensor[:, -2::-1]", {2, 2}, {1, 0, 4, 3}},
      {"tensor[:, ::1000000000000000000]", {2, 1}, {0, 3}},
  };
  for (const Case& c : cases) {
    const Viewed view = evaluate(c.code, a.array);
    EXPECT_EQ(view.array.shape, c.shape) << c.code;
    EXPECT_EQ(elements_of(view.array), c.elements) << c.code;
    EXPECT_FALSE(view.absolute) << c.code;
  }
}

TEST(Expression, Abs_IsRememberedThroughViews) {
  const OwnedArray a(counting(6), {2, 3});
  for (const char* code : {"abs(tensor)", "np.abs(tensor)[0].reshape(3)", "abs(tensor.T).T",
                           "transpose(np.absolute(tensor))"}) {
    EXPECT_TRUE(evaluate(code, a.array).absolute) << code;
  }
}

TEST(Expression, AnythingElse_IsRefusedWithThePlace) {
  const OwnedArray a(counting(6), {2, 3});
  const auto refused = [&](const std::string& code, const std::string& part) {
    expect_error(ErrorCode::kInvalidArgument, {"code: ", part}, [&] { evaluate(code, a.array); });
  };
  refused("", "character 1");
  refused("__import__('os').system('true')", "character 1");
  refused("tensors", "character 1");
  refused("tensor + 1", "character 8");
  refused("tensor.__class__", "character 8");
  refused("tensor.tolist()", "character 8");
  refused("tensor;tensor", "character 7");
  refused("(tensor", "')'");
  refused("tensor[", "an index");
  refused("tensor[0", "']'");
  refused("tensor[]", "an index");
  refused("tensor[0][0][0]", "too many indices");
  refused("tensor[..., ...]", "only one");
  refused("tensor[2]", "outside");
  refused("tensor[-3]", "outside");
  refused("tensor[::0]", "step");
  refused("tensor[99999999999999999999]", "integer");
  refused("where(tensor)", "character 1");
  expect_error(ErrorCode::kInvalidArgument, {"reshape: [2, 3] does not fit into []"},
               [&] { evaluate("tensor.reshape()", a.array); });
}

TEST(Expression, LimitsHold) {
  const OwnedArray a(counting(6), {2, 3});
  const auto refused = [&](const std::string& code, const std::string& part) {
    expect_error(ErrorCode::kInvalidArgument, {part}, [&] { evaluate(code, a.array); });
  };
  refused(std::string(1001, ' '), "1000 bytes");
  refused(std::string(40, '(') + "tensor" + std::string(40, ')'), "nested");
  std::string many = "tensor";
  for (int i = 0; i < 65; ++i)
    many += ".T";
  refused(many, "operations");
  refused("tensor.reshape(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,6)", "16");
}

}  // namespace
}  // namespace kda::view
