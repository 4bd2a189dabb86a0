# Language level, output folders, warnings, sanitizers: what every target of this project shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(KDA_CCACHE ccache)
  if(KDA_CCACHE)
    foreach(language CXX CUDA)
      if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER "${KDA_CCACHE}")
      endif()
    endforeach()
  endif()
endif()

if(NOT PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  message(WARNING "kda: no build type, so the compiler does not optimise and the operators are about "
    "40 times slower. Configure with -DCMAKE_BUILD_TYPE=Release.")
endif()

# nvcc: $CUDACXX, PATH, the usual place, or what scripts/setup_cuda.sh fetched.
if(KDA_CUDA AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(KDA_NVCC nvcc
    HINTS /usr/local/cuda/bin "${CMAKE_CURRENT_LIST_DIR}/../.deps/cuda/nvidia/cu13/bin")
  if(NOT KDA_NVCC)
    message(FATAL_ERROR "kda: KDA_CUDA=ON needs nvcc, and there is none on PATH, in /usr/local/cuda "
      "or in .deps/cuda. Run scripts/setup_cuda.sh (fetches 105 MB), set CUDACXX, or configure with "
      "-DKDA_CUDA=OFF.")
  endif()
  set(CMAKE_CUDA_COMPILER "${KDA_NVCC}" CACHE FILEPATH "CUDA compiler")
endif()

# Options of this project's own targets; imported and interface dependencies keep theirs. GCC 12
# sees overlapping copies inside std::string's own operator+ (its bug 105651).
add_library(kda_options INTERFACE)
target_compile_options(kda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow>
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KDA_WERROR}>>:-Werror>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(kda_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()

# kda_unity(target size [SKIP files...]): compile the files of a target in groups of `size`. Most of
# the time of a unit here is its headers (torch, JSON, CLI11), which a group reads once.
option(KDA_UNITY "Compile files in groups (a cold build in a third of the time)" ON)
function(kda_unity target size)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SKIP")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${KDA_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
  if(arg_SKIP)
    set_source_files_properties(${arg_SKIP} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

if(KDA_SANITIZE)
  add_compile_options(-fsanitize=${KDA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KDA_SANITIZE})
endif()
if(KDA_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()

find_package(OpenMP REQUIRED COMPONENTS CXX)
