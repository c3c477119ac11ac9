# The target nlac_cuda_check: the CUDA addon, linked from a CPU build's objects. Only the sources that mention NLAC_CUDA
# or NLAC_NCCL are compiled again; the linker then takes no object of the same source from the libraries. For CI, which
# has no GPU.
include(cmake/cuda.cmake)

set(nlac_both_sources "")
foreach(name IN ITEMS plain cpu loss optim model generate ranks learner binding)
  list(APPEND nlac_both_sources ${nlac_${name}_sources})
endforeach()
set(nlac_cuda_host_sources "")
set(nlac_cuda_host_names "")
foreach(source IN LISTS nlac_both_sources)
  file(STRINGS "${source}" lines REGEX "^#.*NLAC_(CUDA|NCCL)" LIMIT_COUNT 1)
  if(lines)
    list(APPEND nlac_cuda_host_sources "${source}")
    get_filename_component(name "${source}" NAME)
    list(APPEND nlac_cuda_host_names "${name}")
  endif()
endforeach()
list(JOIN nlac_cuda_host_names "|" nlac_cuda_host_names)

add_library(nlac_cuda_host OBJECT ${nlac_cuda_host_sources})
target_link_libraries(nlac_cuda_host PUBLIC nlac_cuda nlac_torch_cuda nlac_node nlac_learner)
target_precompile_headers(nlac_cuda_host REUSE_FROM nlac_pch)
target_include_directories(nlac_cuda_host SYSTEM PRIVATE "${CMAKE_SOURCE_DIR}/native/core/ranks/include")
if(NLAC_NCCL_INCLUDE)
  target_include_directories(nlac_cuda_host SYSTEM PRIVATE "${NLAC_NCCL_INCLUDE}")
  target_compile_definitions(nlac_cuda_host PRIVATE NLAC_NCCL=1)
endif()

nlac_core_addon(nlac_cuda_check nlac_cuda_check
  $<TARGET_OBJECTS:nlac_cuda_host>
  "$<FILTER:$<TARGET_OBJECTS:nlac_binding>,EXCLUDE,/(${nlac_cuda_host_names})\\.o$>")
target_link_libraries(nlac_cuda_check PRIVATE nlac_torch_cuda)
set_target_properties(nlac_cuda_check PROPERTIES EXCLUDE_FROM_ALL ON)
