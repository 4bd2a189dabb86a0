/// Parts of the program that are written in Python.
#pragma once

#include <string>
#include <vector>

namespace kda::cli {

/// Replaces this process by `python -m module arguments...`. The interpreter is $KDA_PYTHON, else
/// the one this build was configured with, else python3; the package is looked for beside the
/// program and in the source tree. `verb` is how help and errors name the program ("kda data").
/// Throws kIo saying what is missing; does not return otherwise.
[[noreturn]] void exec_python_module(const std::string& module,
                                     const std::vector<std::string>& arguments,
                                     const std::string& verb);

/// Runs the same as a child and waits for it. What it prints on either stream is not shown: when
/// it fails, its last line ("error: ...") becomes the text of a kIo error, prefixed by `what`.
void run_python_module(const std::string& module, const std::vector<std::string>& arguments,
                       const std::string& what);

}  // namespace kda::cli
