# Imported targets for the libtorch inside the PyPI wheel. find_package(Torch) is not used: it needs
# a CUDA toolkit even for CPU builds and overrides architectures and global flags.
set(KDA_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python that has torch installed")
if(NOT EXISTS "${KDA_PYTHON}")
  message(FATAL_ERROR "kda: no Python at ${KDA_PYTHON}. Run `make setup`, or set -DKDA_PYTHON=..., "
    "or build the operator alone with -DKDA_TORCH=OFF.")
endif()
execute_process(
  COMMAND "${KDA_PYTHON}" -c "
import importlib.util as u, importlib.metadata as m, sys
s = u.find_spec('torch')
sys.exit('torch is not installed') if s is None else print(s.submodule_search_locations[0], m.version('torch'), sep=';')"
  OUTPUT_VARIABLE kda_torch_probe ERROR_VARIABLE kda_torch_error
  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE kda_torch_status)
if(NOT kda_torch_status EQUAL 0)
  message(FATAL_ERROR "kda: ${KDA_PYTHON} has no usable torch (${kda_torch_error}). Run `make setup`.")
endif()
list(GET kda_torch_probe 0 KDA_TORCH_DIR)
list(GET kda_torch_probe 1 KDA_TORCH_VERSION)
set(KDA_TORCH_EXPECTED "2.11.0")
if(NOT KDA_TORCH_VERSION MATCHES "^${KDA_TORCH_EXPECTED}")
  message(FATAL_ERROR "kda: torch ${KDA_TORCH_EXPECTED} expected (its C++ ABI is part of ours), "
    "found ${KDA_TORCH_VERSION} in ${KDA_TORCH_DIR}. Run `make setup`.")
endif()
message(STATUS "kda: torch ${KDA_TORCH_VERSION} in ${KDA_TORCH_DIR}")

add_library(torchwheel::headers INTERFACE IMPORTED)
set_target_properties(torchwheel::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
  "${KDA_TORCH_DIR}/include;${KDA_TORCH_DIR}/include/torch/csrc/api/include")
foreach(l c10 torch_cpu torch_cuda c10_cuda torch)
  add_library(torchwheel::${l} SHARED IMPORTED)
  set_target_properties(torchwheel::${l} PROPERTIES IMPORTED_LOCATION "${KDA_TORCH_DIR}/lib/lib${l}.so")
endforeach()
add_library(torchwheel::cpu INTERFACE IMPORTED)
set_target_properties(torchwheel::cpu PROPERTIES
  INTERFACE_LINK_LIBRARIES "torchwheel::headers;torchwheel::torch_cpu;torchwheel::c10")

# Debian's g++ links --as-needed, which drops libraries that are used only for what they register.
set(CMAKE_LINK_LIBRARY_USING_needed "LINKER:--push-state,--no-as-needed" "<LINK_ITEM>" "LINKER:--pop-state")
set(CMAKE_LINK_LIBRARY_USING_needed_SUPPORTED TRUE)
add_library(torchwheel::cuda INTERFACE IMPORTED)
set_target_properties(torchwheel::cuda PROPERTIES INTERFACE_LINK_LIBRARIES
  "torchwheel::cpu;torchwheel::c10_cuda;$<LINK_LIBRARY:needed,torchwheel::torch_cuda>")

# Everything finds its libraries beside itself, in ../lib, and torch's where the wheel has them.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../lib;${KDA_TORCH_DIR}/lib")
