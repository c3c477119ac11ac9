# Makes C++ of a file of native/cuda, for compiling with native/test/cuda/emulation/device.h:
#   cmake -DSOURCE=… -DOUTPUT=… -P rewrite.cmake
# Only what no macro can express is rewritten; lines stay where they are.
file(READ "${SOURCE}" text)

# A variable in shared memory becomes a reference to what the running block has of it.
string(REGEX REPLACE
  "extern __shared__ (__align__\\([^)]*\\) |alignas\\([^)]*\\) )?([^;]*[^;A-Za-z_0-9])([A-Za-z_0-9]+)\\[\\];"
  "auto* const \\3 = static_cast<\\2*>(::emulated::dynamic_shared_memory());" text "${text}")
string(REGEX REPLACE
  "__shared__ (__align__\\([^)]*\\) |alignas\\([^)]*\\) )?([^;,]*[^];,A-Za-z_0-9])([A-Za-z_0-9]+)((\\[[^];]*\\])*);"
  "auto& \\3 = ::emulated::shared<\\2\\4>([] {});" text "${text}")
string(FIND "${text}" "__shared__" left)
if(NOT left EQUAL -1)
  message(FATAL_ERROR "${SOURCE}: a declaration of shared memory that rewrite.cmake does not know: "
    "declare one variable at a time, `__shared__ T name[n];` or `extern __shared__ T name[];`")
endif()

# The threads share such a parameter; a copy for each would be slow and large.
string(REGEX REPLACE "const __grid_constant__ ([A-Za-z_0-9:]+(<[^<>]*>)?) " "const \\1& " text "${text}")

# A launch; see `configured` in device.h.
string(REPLACE "<<<" " * ::emulated::configured(" text "${text}")
string(REPLACE ">>>(" ")(" text "${text}")

if(SOURCE MATCHES "\\.cu$")
  set(text "#include \"device.h\"\n#line 1 \"${SOURCE}\"\n${text}")
endif()
file(WRITE "${OUTPUT}" "${text}")
