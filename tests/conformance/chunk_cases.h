// The calls that every backend must get right.
#pragma once

#include <vector>

#include "support/cases.h"

namespace kda::test {

std::vector<Case> chunk_cases();

}  // namespace kda::test
