// The addon of lib/native/addon.ts. All Node-API code of nlac is in this folder; whoever loads it has made
// libtorch's symbols available first (native/loader).

#include <napi.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "core/error.h"
#include "core/instruction_set.h"
#include "core/io/gguf.h"

namespace nlac::binding {
namespace {

Napi::Value torch_version(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), TORCH_VERSION);
}

Napi::Value cuda_available(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return Napi::Boolean::New(info.Env(), torch::cuda::is_available());
  });
}

Napi::Value instruction_set(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), name_of(best_instruction_set()));
}

void js_set_threads(const Napi::CallbackInfo& info) {
  guarded(info.Env(), [&] {
    const int64_t count = to_integer(info[0], "count");
    NLAC_REQUIRE(count >= 1 && count <= 4096, "ERR_VALUE", "count must be between 1 and 4096, it is ", count);
    set_threads(static_cast<int>(count));
  });
}

template <typename T>
Napi::Value from_scalar(Napi::Env env, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return Napi::String::New(env, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return Napi::Boolean::New(env, value);
  } else if constexpr (std::is_same_v<T, double>) {
    return Napi::Number::New(env, value);
  } else {
    // Beyond 2^53 a number would silently be another one.
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

Napi::Value gguf_metadata(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const GgufFile file = open_gguf(to_string(info[0], "path"));
    Napi::Object object = Napi::Object::New(info.Env());
    for (const auto& [key, value] : file.metadata) object.Set(key, from_metadata(info.Env(), value));
    return object;
  });
}

void on_process_exit(const Napi::CallbackInfo&) { Worker::guard_exit(); }

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  // The allocator reads the environment at its first allocation: here, while lib/native/load.ts has set it.
  at::empty({1});
  env.SetInstanceData(new AddonData);
  define_learner(env);
  define_sampler(env);
  define_tensor(env);
  exports.Set("torchVersion", Napi::Function::New<torch_version>(env, "torchVersion"));
  exports.Set("cudaAvailable", Napi::Function::New<cuda_available>(env, "cudaAvailable"));
  exports.Set("instructionSet", Napi::Function::New<instruction_set>(env, "instructionSet"));
  exports.Set("setThreads", Napi::Function::New<js_set_threads>(env, "setThreads"));
  exports.Set("ggufMetadata", Napi::Function::New<gguf_metadata>(env, "ggufMetadata"));
  export_learner(env, exports);
  export_sampler(env, exports);
  export_tensor(env, exports);
  const auto process = env.Global().Get("process").As<Napi::Object>();
  process.Get("once").As<Napi::Function>().Call(
      process, {Napi::String::New(env, "exit"), Napi::Function::New<on_process_exit>(env)});
  return exports;
}

}  // namespace
}  // namespace nlac::binding

using nlac::binding::initialise;
NODE_API_MODULE(nlac, initialise)
