// The addon of lib/native/addon.ts. This folder has all Node-API code of nlac. native/loader must
// have loaded libtorch before.

#include <ATen/ATen.h>
#include <napi.h>
#include <torch/version.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "binding/functions.h"
#include "core/error.h"
#include "core/instruction_set.h"
#include "core/io/gguf.h"
#include "core/model/weights.h"
#include "core/platform.h"

namespace nlac::binding {
namespace {

template <typename T>
Napi::Value from_scalar(Napi::Env env, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return Napi::String::New(env, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return Napi::Boolean::New(env, value);
  } else if constexpr (std::is_same_v<T, double>) {
    return Napi::Number::New(env, value);
  } else {
    // A number cannot represent every integer beyond 2^53.
    const auto number = static_cast<double>(value);
    if (std::abs(number) < 0x1.0p53) return Napi::Number::New(env, number);
    return Napi::BigInt::New(env, value);
  }
}

Napi::Value from_metadata(Napi::Env env, const GgufValue& value) {
  return std::visit(
      [env]<typename T>(const T& held) -> Napi::Value {
        if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string>) {
          return from_vector(env, held,
                             [env](const typename T::value_type& item) { return from_scalar(env, item); });
        } else {
          return from_scalar(env, held);
        }
      },
      value);
}

// Returns, by interface, every member's number of arguments; null: a property.
Napi::Value signatures(Napi::Env env) {
  Napi::Object object = Napi::Object::New(env);
  for (const auto& [interface, members] : AddonData::of(env).signatures) {
    Napi::Object arities = Napi::Object::New(env);
    for (const auto& [name, arity] : members) {
      if (arity == kProperty) {
        arities.Set(name, env.Null());
      } else {
        arities.Set(name, Napi::Number::New(env, arity));
      }
    }
    object.Set(interface, arities);
  }
  return object;
}

constexpr Function functions[] = {
    function("torchVersion", [](Napi::Env env) { return Napi::String::New(env, TORCH_VERSION); }),
    function("cudaAvailable", [](Napi::Env env) { return Napi::Boolean::New(env, at::hasCUDA()); }),
    function("instructionSet",
             [](Napi::Env env) { return Napi::String::New(env, name_of(best_instruction_set())); }),
    function("setThreads",
             [](Napi::Env, Napi::Value value) {
               const int64_t count = to_integer(value, "count");
               NLAC_REQUIRE(count >= 1 && count <= 4096, "ERR_VALUE",
                            "count must be between 1 and 4096, it is ", count);
               set_threads(static_cast<int>(count));
             }),
    function("ggufMetadata",
             [](Napi::Env env, Napi::Value path) {
               const GgufFile file = open_gguf(to_path(path, "path"));
               Napi::Object object = Napi::Object::New(env);
               for (const auto& [key, value] : file.metadata) object.Set(key, from_metadata(env, value));
               return object;
             }),
    function("ggufConfig",
             [](Napi::Env env, Napi::Value path) {
               return Napi::String::New(env, gguf_config(to_path(path, "path")).to_json("float32"));
             }),
    function("signatures", [](Napi::Env env) { return signatures(env); }),
};

// process.once("exit", (status) => …)
void on_process_exit(const Napi::CallbackInfo& call) {
  Worker::guard_exit(call[0].IsNumber() ? call[0].As<Napi::Number>().Int32Value() : 0);
}

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  // The allocator reads the environment at its first allocation: here, while lib/native/load.ts has
  // set it.
  at::empty({1});
  env.SetInstanceData(new AddonData);
  define_learner(env);
  define_ranks(env);
  define_sampler(env);
  define_tensor(env);
  export_functions(env, exports, functions);
  export_learner(env, exports);
  export_ranks(env, exports);
  export_sampler(env, exports);
  export_tensor(env, exports);
  platform::keep_loaded(reinterpret_cast<const void*>(&on_process_exit));
  const auto process = env.Global().Get("process").As<Napi::Object>();
  process.Get("once").As<Napi::Function>().Call(
      process, {Napi::String::New(env, "exit"), Napi::Function::New<on_process_exit>(env)});
  return exports;
}

}  // namespace
}  // namespace nlac::binding

using nlac::binding::initialise;
NODE_API_MODULE(nlac, initialise)
