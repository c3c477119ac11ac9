// Converts C++ exceptions to JavaScript errors. No C++ exception crosses Node-API: a job's
// exception becomes a Failure on its thread, a synchronous call runs under `guarded`.
#pragma once

#include <napi.h>

#include <string>
#include <utility>

namespace nlac::binding {

// The reason of a rejected promise: a code of lib/base/errors.ts and a message.
struct Failure {
  std::string code, message;
};

// Describes the exception being handled. Call inside a catch block only.
//   nlac::Error                  its own code
//   out of memory, host or device ERR_OUT_OF_MEMORY
//   c10::Error of a device       ERR_DEVICE, the first line of the message
//   std::filesystem_error        ERR_IO
//   anything else                ERR_INTERNAL
Failure describe_current_exception();

// Returns a JavaScript Error with `code`.
Napi::Error to_js(Napi::Env env, const Failure& failure);

// Runs `body` and converts its exceptions to Napi::Error, which node-addon-api throws in
// JavaScript.
template <typename Body>
auto guarded(Napi::Env env, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Napi::Error&) {
    throw;
  } catch (...) {
    throw to_js(env, describe_current_exception());
  }
}

}  // namespace nlac::binding
