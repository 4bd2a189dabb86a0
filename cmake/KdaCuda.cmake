# CUDA for the whole tree: the backend and the layer kernels of the model both need the language.
set(KDA_CUDA_ARCHS "80-real;90a-real" CACHE STRING "GPU architectures to build for")
set(CMAKE_CUDA_ARCHITECTURES "${KDA_CUDA_ARCHS}")
enable_language(CUDA)
# CUDA 13 has no nvToolsExt, but CMake 3.25 sets a property of its target without looking.
if(NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()
find_package(CUDAToolkit REQUIRED)
# CMake 3.25 knows no C++20 flag for nvcc; newer versions define these themselves.
foreach(kind STANDARD EXTENSION)
  if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
  endif()
endforeach()
