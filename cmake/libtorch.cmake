# Finds the unpacked torch wheel and exposes it as imported targets.
#
#   NLAC_LIBTORCH   directory that contains torch/ (a site-packages, or nlac's own cache), or the
#                   torch/ directory itself. `nlac setup` prints it.
#
# Targets: nlac::torch      torch_cpu + c10 (a CPU build links nothing else)
#          nlac::torch_cuda torch_cuda + c10_cuda, only when NLAC_CUDA is ON
#
# torch's TorchConfig.cmake is not used: with a CUDA wheel it requires a full CUDA toolkit, even to link the CPU half.

set(NLAC_LIBTORCH "$ENV{NLAC_LIBTORCH}" CACHE PATH "directory that holds torch/ 2.11.0")
if(NOT NLAC_LIBTORCH)
  message(FATAL_ERROR "NLAC_LIBTORCH is not set. Run `npx nlac setup`, or pass -DNLAC_LIBTORCH=DIR.")
endif()
set(NLAC_TORCH_DIR "")
foreach(directory IN ITEMS "${NLAC_LIBTORCH}/torch" "${NLAC_LIBTORCH}")
  nlac_library_file("${directory}" torch_cpu file)
  if(NOT NLAC_TORCH_DIR AND EXISTS "${file}")
    set(NLAC_TORCH_DIR "${directory}")
  endif()
endforeach()
if(NOT NLAC_TORCH_DIR)
  message(FATAL_ERROR "No torch/lib/libtorch_cpu${CMAKE_SHARED_LIBRARY_SUFFIX} under NLAC_LIBTORCH=${NLAC_LIBTORCH}.")
endif()
# The version is in version.py of a wheel and in build-version of the libtorch archive.
if(EXISTS "${NLAC_TORCH_DIR}/version.py")
  file(STRINGS "${NLAC_TORCH_DIR}/version.py" nlac_torch_version REGEX "^__version__ = ")
elseif(EXISTS "${NLAC_TORCH_DIR}/build-version")
  file(STRINGS "${NLAC_TORCH_DIR}/build-version" nlac_torch_version LIMIT_COUNT 1)
endif()
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" nlac_torch_version "${nlac_torch_version}")
if(NOT nlac_torch_version VERSION_EQUAL 2.11.0)
  message(FATAL_ERROR "nlac is built against torch 2.11.0; ${NLAC_TORCH_DIR} holds ${nlac_torch_version}.")
endif()

function(nlac_import name)
  nlac_library_file("${NLAC_TORCH_DIR}" ${name} file)
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${file}" IMPORTED_NO_SONAME FALSE)
endfunction()

nlac_import(c10)
nlac_import(torch_cpu)
add_library(nlac_torch INTERFACE)
add_library(nlac::torch ALIAS nlac_torch)
target_include_directories(nlac_torch SYSTEM INTERFACE
  "${NLAC_TORCH_DIR}/include" "${NLAC_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(nlac_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_link_libraries(nlac_torch INTERFACE torch_cpu c10)
nlac_link_torch(nlac_torch)
target_compile_options(nlac_torch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${NLAC_TORCH_DIR}/include/=>")

# at::parallel_for is a template in torch's headers: without OpenMP it is a plain loop. The flag is for the compiler
# only: an addon uses the OpenMP runtime that libtorch has loaded. A second runtime's threads would compete for the
# cores.
target_compile_options(nlac_torch INTERFACE "${nlac_openmp_options}")
# A program must link a runtime.
add_library(nlac_openmp INTERFACE)
nlac_link_openmp(nlac_openmp)
