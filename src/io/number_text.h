/// Numbers as people write them.
#pragma once

#include <string>

namespace kda::io {

/// The shortest text that reads back to the same number; 0.0003 rather than 3e-04, "nan", "inf".
std::string number_text(double value);

}  // namespace kda::io
