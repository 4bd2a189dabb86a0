# Installation and the CMake package: find_package(kda) then link kda::kda, and kda::cuda where the
# CUDA backend was built.
include(CMakePackageConfigHelpers)
install(TARGETS kda EXPORT kda-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET kda_cuda)
  set_target_properties(kda_cuda PROPERTIES EXPORT_NAME cuda)
  install(TARGETS kda_cuda EXPORT kda-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(EXPORT kda-targets NAMESPACE kda:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kda)
configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/kda-config.cmake.in" "${CMAKE_CURRENT_BINARY_DIR}/kda-config.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kda)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/kda-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/kda-config.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/kda-config-version.cmake"
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kda)
