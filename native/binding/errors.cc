#include "binding/errors.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <initializer_list>
#include <new>
#include <string_view>

#include "core/error.h"

namespace nlac::binding {
namespace {

bool mentions(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const auto word : words)
    if (text.find(word) != std::string_view::npos) return true;
  return false;
}

// torch has no exception classes for most failures, so they are recognised by their messages.
const char* code_of(const std::string& message) {
  if (mentions(message, {"can't allocate memory", "not enough memory", "out of memory"}))
    return "ERR_OUT_OF_MEMORY";
  if (mentions(message, {"CUDA error", "CUDA driver", "compiled with CUDA", "same device", "NVIDIA driver",
                         "invalid device", "device ordinal", "CUDA-capable"}))
    return "ERR_DEVICE";
  return "ERR_INTERNAL";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Failure describe_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const c10::OutOfMemoryError& error) {
    return {"ERR_OUT_OF_MEMORY", first_line(error.what_without_backtrace())};
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    return {code_of(message), first_line(message)};
  } catch (const std::filesystem::filesystem_error& error) {
    return {"ERR_IO", error.what()};
  } catch (const std::bad_alloc&) {
    return {"ERR_OUT_OF_MEMORY", "The machine has not enough memory for this."};
  } catch (const std::exception& error) {
    return {"ERR_INTERNAL", error.what()};
  } catch (...) {
    return {"ERR_INTERNAL", "An exception of an unknown type was thrown."};
  }
}

Napi::Error to_js(Napi::Env env, const Failure& failure) {
  Napi::Error error = Napi::Error::New(env, failure.message);
  error.Set("code", Napi::String::New(env, failure.code));
  return error;
}

}  // namespace nlac::binding
