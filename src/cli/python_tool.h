/// Parts of the program that are written in Python.
#pragma once

#include <string>
#include <vector>

namespace kda::cli {

/// Replaces this process by `python -m module arguments...`. The interpreter is $KDA_PYTHON, else
/// the one this build was configured with, else python3; the package is looked for beside the
/// program and in the source tree. Throws kIo saying what is missing; does not return otherwise.
[[noreturn]] void exec_python_module(const std::string& module,
                                     const std::vector<std::string>& arguments);

}  // namespace kda::cli
