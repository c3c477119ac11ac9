# Links the addons so that they load on glibc 2.28 and libstdc++ of GCC 8, whatever system compiles them (g++ and
# x86-64 or ARM). scripts/prebuild.mjs checks the result. Three means:
#   - functions of the C library that have a newer version are called by their first one (native/loader/older_systems.cc);
#   - the parts of libstdc++ that are newer are linked statically, as Red Hat's compilers for older systems do;
#   - the rest of libstdc++ stays shared, because exceptions cross into libtorch.

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "NLAC_OLDER_SYSTEMS is for Linux.")
endif()
function(nlac_compiler_file name out)
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" "-print-file-name=${name}"
    OUTPUT_VARIABLE file OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${out} "${file}" PARENT_SCOPE)
endfunction()

nlac_compiler_file(libstdc++.a nlac_libstdcxx)
nlac_compiler_file(libstdc++_nonshared.a nlac_nonshared)
set(nlac_newer "${CMAKE_BINARY_DIR}/libstdcxx_newer.a")
if(IS_ABSOLUTE "${nlac_nonshared}")
  # A compiler of Red Hat's for older systems (manylinux_2_28 has one) links this archive, which has the newer parts.
elseif(IS_ABSOLUTE "${nlac_libstdcxx}")
  set(directory "${CMAKE_BINARY_DIR}/libstdcxx_newer")
  file(REMOVE_RECURSE "${directory}")
  file(MAKE_DIRECTORY "${directory}")
  execute_process(COMMAND "${CMAKE_AR}" t "${nlac_libstdcxx}" OUTPUT_VARIABLE listed)
  string(REPLACE "\n" ";" listed "${listed}")
  set(members)
  foreach(member IN ITEMS condition_variable cow-stdexcept floating_from_chars floating_to_chars functexcept futex
      lt5-sstream-inst memory_resource snprintf_lite sso_string)
    if("${member}.o" IN_LIST listed)
      list(APPEND members "${member}.o")
    endif()
  endforeach()
  execute_process(COMMAND "${CMAKE_AR}" x "${nlac_libstdcxx}" ${members}
    WORKING_DIRECTORY "${directory}" COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE "${nlac_newer}")
  execute_process(COMMAND "${CMAKE_AR}" rcs "${nlac_newer}" ${members}
    WORKING_DIRECTORY "${directory}" COMMAND_ERROR_IS_FATAL ANY)
  # At the end of every link line, where the libraries before it find what they need.
  string(APPEND CMAKE_CXX_STANDARD_LIBRARIES " \"${nlac_newer}\"")
else()
  message(FATAL_ERROR "NLAC_OLDER_SYSTEMS needs libstdc++.a (on Red Hat's systems the package libstdc++-static).")
endif()

# Makes an addon use the first glibc's versions of the functions `ARGN`.
function(nlac_older_system target)
  target_sources(${target} PRIVATE ${nlac_older_systems_sources})
  foreach(name IN LISTS ARGN)
    target_link_options(${target} PRIVATE "-Wl,--wrap=${name}")
  endforeach()
endfunction()
