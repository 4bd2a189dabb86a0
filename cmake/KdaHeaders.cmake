# Public headers and usage requirements of the library kda.
file(GLOB_RECURSE kda_public_headers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/include/kda/*.h")
target_sources(kda PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${kda_public_headers})
target_include_directories(kda PRIVATE src)
target_link_libraries(kda PRIVATE OpenMP::OpenMP_CXX $<BUILD_INTERFACE:kda_options>)
target_compile_features(kda PUBLIC cxx_std_20)
set_target_properties(kda PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
