// The addon's data of a JavaScript environment (the main thread and every worker_threads Worker).
#pragma once

#include <ATen/ATen.h>
#include <napi.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "binding/worker.h"

namespace nlac {
class RankGroup;
}

namespace nlac::binding {

// The arity of a property.
inline constexpr int kProperty = -1;

struct AddonData {
  Napi::FunctionReference learner, ranks, sampler, tensor;  // the classes of handles
  const void* given = nullptr;                              // to the handle that is being made
  std::unordered_set<std::shared_ptr<Worker>> workers;      // those whose thread has not ended
  // By interface of lib/native/addon.ts: the members' names and numbers of arguments.
  std::map<std::string, std::vector<std::pair<std::string, int>>> signatures;

  static AddonData& of(Napi::Env env) { return *env.GetInstanceData<AddonData>(); }
};

// Convert between a tensor and its NativeTensor. unwrap_tensor throws ERR_VALUE, naming `where`,
// and ERR_DISPOSED.
Napi::Value make_tensor(Napi::Env env, at::Tensor tensor);
at::Tensor unwrap_tensor(Napi::Value value, const std::string& where);

// Returns the group of a NativeRanks. Throws ERR_VALUE, naming `where`, and ERR_DISPOSED.
std::shared_ptr<RankGroup> unwrap_ranks(Napi::Value value, const std::string& where);

// Define the classes and store them in AddonData.
void define_learner(Napi::Env env);
void define_ranks(Napi::Env env);
void define_sampler(Napi::Env env);
void define_tensor(Napi::Env env);

// Add functions to the addon's exports.
void export_learner(Napi::Env env, Napi::Object exports);
void export_ranks(Napi::Env env, Napi::Object exports);
void export_sampler(Napi::Env env, Napi::Object exports);
void export_tensor(Napi::Env env, Napi::Object exports);

}  // namespace nlac::binding
