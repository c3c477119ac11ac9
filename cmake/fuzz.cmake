# Instruments everything for libFuzzer, the third-party code too. A finding of a sanitizer ends the process.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "NLAC_FUZZ needs clang: set CMAKE_CXX_COMPILER")
endif()
add_compile_options(
  -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
add_link_options(-fsanitize=address,undefined)
