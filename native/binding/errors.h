// From C++ exceptions to JavaScript errors. Nothing thrown in C++ crosses Node-API: a job's exception becomes
// a Failure on its own thread, a synchronous call runs under `guarded`.
#pragma once

#include <napi.h>

#include <string>
#include <utility>

namespace nlac::binding {

// What a promise is rejected with: a code of lib/base/errors.ts and a message.
struct Failure {
  std::string code, message;
};

// The exception being handled; call inside a catch block only.
//   nlac::Error                  its own code
//   out of memory, host or device ERR_OUT_OF_MEMORY
//   c10::Error of a device       ERR_DEVICE, the first line of the message
//   anything else                ERR_INTERNAL
Failure describe_current_exception();

// A JavaScript Error with `code`.
Napi::Error to_js(Napi::Env env, const Failure& failure);

// Runs `body`; what it throws leaves as Napi::Error, which node-addon-api hands to JavaScript.
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
