# Writes build_info.cpp from its template; called at build time with -P.
execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD
  OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  # A tree without history, for example a container's: its maker may know.
  set(COMMIT "$ENV{KDA_COMMIT}")
  if(NOT COMMIT)
    set(COMMIT "unknown")
  endif()
else()
  execute_process(COMMAND git -C "${SOURCE}" status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND COMMIT "+changes")
  endif()
endif()
# Without the paths of this machine's folders in it.
string(REGEX REPLACE "-f[a-z]+-prefix-map=[^ ]*" "" CXX_FLAGS "${CXX_FLAGS}")
string(STRIP "${CXX_FLAGS}" CXX_FLAGS)
if(NOT CUDA)
  set(CUDA "off")
else()
  string(REGEX REPLACE "-real|-virtual" "" CUDA_ARCHS "${CUDA_ARCHS}")
  string(REPLACE ";" ", " CUDA_ARCHS "${CUDA_ARCHS}")
  set(CUDA "on (compute capabilities ${CUDA_ARCHS})")
endif()
if(NOT SANITIZE)
  set(SANITIZE "none")
endif()
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)  # leaves the file alone when nothing changed
