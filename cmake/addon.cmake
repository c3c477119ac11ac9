# The two Node addons, built in the build directory itself:
#   nlac_loader.node  opens libtorch by absolute path (native/loader, needs no torch)
#   nlac.node         the core behind Node-API (native/binding)
# Neither has an rpath: lib/native/load.ts runs the loader first, and the dynamic linker then finds
# libtorch's sonames (on macOS: install names) among the loaded libraries.

# Node's headers come from npm packages, so no download and no Node source tree is needed.
function(nlac_npm_include package out)
  execute_process(
    COMMAND node -p "path.resolve(require('${package}').include_dir)"
    WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}"
    OUTPUT_VARIABLE directory OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT IS_DIRECTORY "${directory}")
    message(FATAL_ERROR "The npm package ${package} is not installed. Run `npm ci`.")
  endif()
  set(${out} "${directory}" PARENT_SCOPE)
endfunction()

nlac_npm_include(node-api-headers nlac_node_api_headers)
nlac_npm_include(node-addon-api nlac_node_addon_api)

add_library(nlac_node INTERFACE)
target_include_directories(nlac_node SYSTEM INTERFACE "${nlac_node_api_headers}" "${nlac_node_addon_api}")
# The last one: an exception that a terminating worker thread does not accept must not end the process.
target_compile_definitions(nlac_node INTERFACE
  NAPI_VERSION=9 NODE_ADDON_API_CPP_EXCEPTIONS NODE_ADDON_API_DISABLE_DEPRECATED
  NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS)
target_link_libraries(nlac_node INTERFACE nlac_options)

function(nlac_node_addon name output)
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE nlac_node)
  nlac_link_addon(${name})
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME ${output} PREFIX "" SUFFIX ".node"
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}"
    SKIP_BUILD_RPATH ON
    VISIBILITY_INLINES_HIDDEN ON)
endfunction()

nlac_node_addon(nlac_loader nlac_loader ${nlac_loader_sources})
target_link_libraries(nlac_loader PRIVATE ${CMAKE_DL_LIBS})
if(NLAC_OLDER_SYSTEMS)
  include(cmake/older_systems.cmake)
  nlac_older_system(nlac_loader dlopen dlerror)
  target_compile_definitions(nlac_loader PRIVATE NLAC_LOADER=1)
endif()

# Objects, which cmake/cuda_check.cmake links a second time.
add_library(nlac_binding OBJECT ${nlac_binding_sources})
target_link_libraries(nlac_binding PUBLIC nlac_node nlac_learner)
target_precompile_headers(nlac_binding REUSE_FROM nlac_pch)

# An addon of the core, from `ARGN`, objects of the binding.
function(nlac_core_addon name output)
  nlac_node_addon(${name} ${output} ${ARGN})
  target_link_libraries(${name} PRIVATE nlac_learner)
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  nlac_link_core_addon(${name})
  if(NLAC_OLDER_SYSTEMS)
    nlac_older_system(${name}
      exp exp2 log pow fstat pthread_once pthread_key_create pthread_key_delete pthread_getspecific
      pthread_setspecific pthread_rwlock_rdlock pthread_rwlock_wrlock pthread_rwlock_unlock)
  endif()
endfunction()

nlac_core_addon(nlac_addon nlac $<TARGET_OBJECTS:nlac_binding>)
