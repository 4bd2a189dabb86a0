/// Words of the verbs that Python tools parse, for tab completion.
#pragma once

#include <vector>

#include "cli/completion.h"

namespace kda::cli {

/// Verbs with their options, parents before children; a verb that the program lists itself gets its
/// options from here. What the tools accept is the truth: a test compares their parsers with this.
std::vector<CompletionVerb> python_verbs();

}  // namespace kda::cli
