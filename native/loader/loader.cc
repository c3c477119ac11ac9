// An addon without torch that loads libtorch before the main addon. `load(paths)` opens each shared
// library by its absolute path with global symbols. The main addon then finds them by their
// sonames, so it needs no rpath and works for every location of libtorch. Plain Node-API, no C++
// exceptions.
#include <dlfcn.h>
#include <node_api.h>

#include <exception>
#include <string>
#include <vector>

#include "core/instruction_set.h"

namespace {

// Throws a JavaScript Error with a code of lib/base/errors.ts. Returns nullptr.
napi_value throw_coded(napi_env env, const char* code, const std::string& message) {
  napi_throw_error(env, code, message.c_str());
  return nullptr;
}

bool read_string(napi_env env, napi_value value, std::string& out) {
  size_t length = 0;
  if (napi_get_value_string_utf8(env, value, nullptr, 0, &length) != napi_ok) return false;
  std::vector<char> buffer(length + 1);
  if (napi_get_value_string_utf8(env, value, buffer.data(), buffer.size(), &length) != napi_ok) return false;
  out.assign(buffer.data(), length);
  return true;
}

// load(paths: string[]): void. The libraries stay open for the life of the process, limited to
// NLAC_INSTRUCTION_SET.
napi_value load(napi_env env, napi_callback_info info) {
  try {
    nlac::limit_libraries();
  } catch (const std::exception& error) {
    return throw_coded(env, "ERR_CONFIG", error.what());
  }
  size_t argc = 1;
  napi_value list = nullptr;
  bool is_array = false;
  if (napi_get_cb_info(env, info, &argc, &list, nullptr, nullptr) != napi_ok || argc < 1 ||
      napi_is_array(env, list, &is_array) != napi_ok || !is_array)
    return throw_coded(env, "ERR_VALUE", "load: expected an array of absolute paths");
  uint32_t count = 0;
  napi_get_array_length(env, list, &count);
  for (uint32_t i = 0; i < count; ++i) {
    napi_value item = nullptr;
    std::string path;
    if (napi_get_element(env, list, i, &item) != napi_ok || !read_string(env, item, path) || path.empty() ||
        path[0] != '/' || path.find('\0') != std::string::npos)
      return throw_coded(env, "ERR_VALUE", "load: expected an array of absolute paths");
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      const char* reason = dlerror();
      return throw_coded(env, "ERR_LIBTORCH_NOT_FOUND",
                         "cannot load " + path + ": " + (reason ? reason : "unknown error"));
    }
  }
  napi_value undefined = nullptr;
  napi_get_undefined(env, &undefined);
  return undefined;
}

}  // namespace

NAPI_MODULE_INIT() {
  napi_value function = nullptr;
  if (napi_create_function(env, "load", NAPI_AUTO_LENGTH, load, nullptr, &function) != napi_ok ||
      napi_set_named_property(env, exports, "load", function) != napi_ok)
    return nullptr;
  return exports;
}
