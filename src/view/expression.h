/// The `code` parameter of TensorLens, without Python: a few views of `tensor`.
///
///   expression := primary { postfix }
///   primary    := "tensor" | "(" expression ")" | ["np."] function
///   function   := "abs(" expression ")" | "transpose(" expression ["," integers] ")"
///               | "reshape(" expression "," integers ")" | "swapaxes(" expression "," a "," b ")"
///   postfix    := ".T" | ".transpose(" [integers] ")" | ".reshape(" integers ")"
///               | ".swapaxes(" a "," b ")" | "[" index { "," index } "]"
///   integers   := n { "," n }, or the same in one pair of parentheses or brackets
///   index      := n | [n] ":" [n] [":" [n]] | "..."
///
/// The meaning of each is NumPy's. Nothing else is understood and nothing is ever executed.
#pragma once

#include <string_view>

#include "view/array.h"

namespace kda::view {

struct Viewed {
  Array array;
  bool absolute = false;  ///< the values are to be taken without sign
};

/// Error(kInvalidArgument) naming the character where the text cannot go on, or the view that does
/// not fit the shape; also for texts over 1000 bytes, 32 levels of nesting or 64 operations.
Viewed evaluate(std::string_view code, const Array& tensor);

}  // namespace kda::view
