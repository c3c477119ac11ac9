# Differences between Linux and macOS: the names of libtorch's libraries, and options of compilers and linkers.

# The compiler's option for OpenMP, without linking a runtime. Apple's driver does not accept it, its second stage does;
# torch's wheel for macOS has omp.h among its headers.
if(APPLE)
  set(nlac_openmp_options "SHELL:-Xclang -fopenmp")
else()
  set(nlac_openmp_options -fopenmp)
endif()

# The file of libtorch's library `name` in `directory`.
function(nlac_library_file directory name out)
  set(${out} "${directory}/lib/lib${name}${CMAKE_SHARED_LIBRARY_SUFFIX}" PARENT_SCOPE)
endfunction()

# Options for targets that link libtorch. The wheel's libraries find others by run paths; GNU's linker needs the path.
function(nlac_link_torch target)
  if(NOT APPLE)
    get_filename_component(site "${NLAC_TORCH_DIR}" DIRECTORY)
    target_link_options(${target} INTERFACE
      "LINKER:-rpath-link,${NLAC_TORCH_DIR}/lib:${site}/nvidia/cu13/lib" "LINKER:--as-needed")
  endif()
endfunction()

# The OpenMP runtime for programs: torch's if it has one. On macOS it comes with libtorch_cpu, which names it by a run
# path of its own, and the program finds the functions at run time.
function(nlac_link_openmp target)
  file(GLOB runtime "${NLAC_TORCH_DIR}/lib/libgomp*.so*")
  if(APPLE)
    target_link_options(${target} INTERFACE "LINKER:-undefined,dynamic_lookup")
  elseif(runtime)
    list(GET runtime 0 runtime)
    target_link_libraries(${target} INTERFACE "${runtime}")
  else()
    target_link_libraries(${target} INTERFACE gomp)
  endif()
endfunction()

# Options of an addon: it finds Node's functions, and those of the OpenMP runtime, when it is loaded.
function(nlac_link_addon target)
  if(APPLE)
    target_link_options(${target} PRIVATE "LINKER:-undefined,dynamic_lookup")
  endif()
endfunction()

# Options of an addon with the core.
function(nlac_link_core_addon target)
  if(APPLE)
    # binding/addon.cc keeps it loaded. Only Node's registration functions are exported.
    target_link_options(${target} PRIVATE
      "LINKER:-exported_symbol,_napi_register_module_v1" "LINKER:-exported_symbol,_node_api_module_get_api_version_v1")
  else()
    # Hides the static libraries' symbols: only Node's registration functions are exported.
    target_link_options(${target} PRIVATE "LINKER:--exclude-libs,ALL")
    # Node unloads an addon when the last Worker that loaded it ends; the exit handler of binding/worker.cc must stay.
    target_link_options(${target} PRIVATE "LINKER:-z,nodelete")
  endif()
endfunction()
