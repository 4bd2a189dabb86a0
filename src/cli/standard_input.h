/// Standard input that cannot be read is an error, not an empty text.
#pragma once

#include <string>

namespace kda::cli {

/// Everything up to its end. Throws kIo with the system's reason (a folder, a dead disk).
std::string read_standard_input();

/// For who reads std::cin himself, after its end: throws kIo when it was no end but an error.
void check_standard_input();

}  // namespace kda::cli
