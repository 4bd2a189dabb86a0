# Imported targets sentencepiece::sentencepiece and sentencepiece::train (static, hidden symbols).
set(KDA_SENTENCEPIECE_DIR "${CMAKE_CURRENT_LIST_DIR}/../.deps/sentencepiece" CACHE PATH
  "Folder that scripts/build_sentencepiece.sh installed SentencePiece into")
if(NOT EXISTS "${KDA_SENTENCEPIECE_DIR}/stamp")
  message(FATAL_ERROR "kda: no SentencePiece in ${KDA_SENTENCEPIECE_DIR}. Run "
    "`scripts/build_sentencepiece.sh` (about a minute), or configure with -DKDA_TEXT=OFF.")
endif()
find_package(Threads REQUIRED)
foreach(library sentencepiece sentencepiece_train)
  string(REPLACE "sentencepiece_train" "train" target ${library})
  add_library(sentencepiece::${target} STATIC IMPORTED GLOBAL)
  set_target_properties(sentencepiece::${target} PROPERTIES
    IMPORTED_LOCATION "${KDA_SENTENCEPIECE_DIR}/lib/lib${library}.a")
endforeach()
set_target_properties(sentencepiece::sentencepiece PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
  "${KDA_SENTENCEPIECE_DIR}/include;${KDA_SENTENCEPIECE_DIR}/include/sentencepiece"
  INTERFACE_LINK_LIBRARIES Threads::Threads)
set_target_properties(sentencepiece::train PROPERTIES
  INTERFACE_LINK_LIBRARIES sentencepiece::sentencepiece)
