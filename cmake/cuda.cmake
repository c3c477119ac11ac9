# The CUDA kernels: every source of nlac_cuda_sources becomes one object of the static library nlac_cuda.
#
# nvcc runs as a custom command and not through CMake's CUDA language, whose detection requires a full toolkit: the
# NVIDIA wheels have only the compiler (nvidia/cu13/bin/nvcc, beside torch). The kernels include no torch, so each
# compiles in seconds.
#
#   NLAC_NVCC                the compiler; default: the wheel's, then $CUDA_HOME/bin, then PATH
#   NLAC_CUDA_ARCHITECTURES  machine code for these, e.g. "90a"; those unknown to nvcc are skipped. PTX for
#                            the newest plain one is added, so that later chips can run it.

set(NLAC_CUDA_ARCHITECTURES "80;90a;100" CACHE STRING "CUDA architectures")

get_filename_component(nlac_site "${NLAC_TORCH_DIR}" DIRECTORY)
set(nlac_wheels "${nlac_site}/nvidia/cu13")
find_program(NLAC_NVCC nvcc PATHS "${nlac_wheels}/bin" "$ENV{CUDA_HOME}/bin" NO_DEFAULT_PATH)
find_program(NLAC_NVCC nvcc PATHS /usr/local/cuda/bin)
if(NOT NLAC_NVCC)
  message(FATAL_ERROR "No nvcc beside torch, in CUDA_HOME or on PATH. Run `npx nlac setup --cuda`.")
endif()
# The runtime's headers include those in crt/, which come with nvcc, so all headers are taken from there.
get_filename_component(nlac_toolkit "${NLAC_NVCC}" REALPATH)
get_filename_component(nlac_toolkit "${nlac_toolkit}" DIRECTORY)
get_filename_component(nlac_toolkit "${nlac_toolkit}" DIRECTORY)
find_path(NLAC_CUDA_INCLUDE crt/host_defines.h NO_DEFAULT_PATH PATHS "${nlac_toolkit}/include"
  "${nlac_toolkit}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include" "$ENV{CUDA_HOME}/include" /usr/local/cuda/include)
find_file(NLAC_CUDART NAMES libcudart.so.13 NO_DEFAULT_PATH
  PATHS "${nlac_wheels}/lib" "${nlac_toolkit}/lib64" "${nlac_toolkit}/lib" "$ENV{CUDA_HOME}/lib64")
if(NOT NLAC_CUDART OR NOT EXISTS "${NLAC_CUDA_INCLUDE}/cuda_runtime.h")
  message(FATAL_ERROR "No CUDA 13 runtime: headers beside ${NLAC_NVCC}: ${NLAC_CUDA_INCLUDE}, library beside torch: "
    "${NLAC_CUDART}. Run `npx nlac setup --cuda`.")
endif()

# Ranks on GPUs communicate by NCCL, whose functions are in libtorch_cuda. Without its headers only one GPU can train.
find_path(NLAC_NCCL_INCLUDE nccl.h NO_DEFAULT_PATH PATHS "${nlac_site}/nvidia/nccl/include" "$ENV{NCCL_HOME}/include"
  "${NLAC_CUDA_INCLUDE}" /usr/include)
if(NOT NLAC_NCCL_INCLUDE)
  message(STATUS "no nccl.h beside torch; left out")
  set(NLAC_NCCL_INCLUDE "")
endif()

execute_process(COMMAND "${NLAC_NVCC}" --list-gpu-arch OUTPUT_VARIABLE nlac_known_archs RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NLAC_NVCC} does not run.")
endif()
string(REGEX MATCHALL "[0-9]+" nlac_known_archs "${nlac_known_archs}")
set(nlac_gencode "")
set(nlac_ptx "")
foreach(arch IN LISTS NLAC_CUDA_ARCHITECTURES)
  string(REGEX MATCH "^[0-9]+" plain "${arch}")
  if(NOT plain IN_LIST nlac_known_archs)
    message(STATUS "nvcc does not know sm_${arch}; left out")
    continue()
  endif()
  list(APPEND nlac_gencode "-gencode=arch=compute_${arch},code=sm_${arch}")
  # Code for an "a" variant runs on its own chip only; later chips can translate the plain variant.
  set(nlac_ptx "-gencode=arch=compute_${plain},code=compute_${plain}")
endforeach()
list(APPEND nlac_gencode ${nlac_ptx})

set(nlac_cuda_objects "")
foreach(source IN LISTS nlac_cuda_sources)
  set(source "${CMAKE_SOURCE_DIR}/${source}")
  get_filename_component(name "${source}" NAME)
  set(object "${CMAKE_BINARY_DIR}/cuda/${name}.o")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_BINARY_DIR}/cuda"
    COMMAND "${NLAC_NVCC}" -c "${source}" -o "${object}" -MD -MF "${object}.d" -MT "${object}"
      -ccbin "${CMAKE_CXX_COMPILER}" -std=c++20 -O3 -DNLAC_CUDA=1 -DNDEBUG
      --expt-relaxed-constexpr -lineinfo -Xfatbin=-compress-all
      "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall" "-I${CMAKE_SOURCE_DIR}/native" ${nlac_gencode}
    DEPENDS "${source}" DEPFILE "${object}.d" VERBATIM
    COMMENT "nvcc ${name}")
  list(APPEND nlac_cuda_objects "${object}")
endforeach()
add_custom_target(nlac_cuda_objects DEPENDS ${nlac_cuda_objects})

# Targets that link nlac_cuda get the runtime's headers and the macro NLAC_CUDA.
add_library(nlac_cudart SHARED IMPORTED)
set_target_properties(nlac_cudart PROPERTIES IMPORTED_LOCATION "${NLAC_CUDART}")
if(nlac_cuda_objects)
  set_source_files_properties(${nlac_cuda_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  add_library(nlac_cuda STATIC ${nlac_cuda_objects})
  set_target_properties(nlac_cuda PROPERTIES LINKER_LANGUAGE CXX)
  add_dependencies(nlac_cuda nlac_cuda_objects)
  set(nlac_cuda_scope PUBLIC)
else()
  add_library(nlac_cuda INTERFACE)
  set(nlac_cuda_scope INTERFACE)
endif()
target_include_directories(nlac_cuda SYSTEM INTERFACE "${NLAC_CUDA_INCLUDE}")
target_compile_definitions(nlac_cuda INTERFACE NLAC_CUDA=1)
target_link_libraries(nlac_cuda ${nlac_cuda_scope} nlac_cudart)

# Linking against libtorch_cuda does not need its dependencies (cuBLAS, cuDNN, NCCL …). For programs only: the linker
# requires them there, and with the flag it would require Node's symbols of addons.
nlac_import(c10_cuda)
nlac_import(torch_cuda)
add_library(nlac_torch_cuda INTERFACE)
add_library(nlac::torch_cuda ALIAS nlac_torch_cuda)
target_link_libraries(nlac_torch_cuda INTERFACE nlac_cuda torch_cuda c10_cuda)
# torch_cuda registers its kernels when it is loaded. A program must load it although it calls none of its functions;
# the loader addon does so for Node.
set(nlac_for_programs "$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>")
target_link_options(nlac_torch_cuda INTERFACE
  "$<${nlac_for_programs}:-Wl,--unresolved-symbols=ignore-in-shared-libs>"
  "$<${nlac_for_programs}:-Wl,--no-as-needed,${NLAC_TORCH_DIR}/lib/libtorch_cuda.so,--as-needed>")
