// What the addon keeps for each JavaScript environment (the main thread and every worker_threads Worker).
#pragma once

#include <napi.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <unordered_set>

#include "binding/worker.h"

namespace nlac::binding {

struct AddonData {
  Napi::FunctionReference learner, sampler, tensor;     // the classes, to make and to recognise handles
  std::unordered_set<std::shared_ptr<Worker>> workers;  // those whose thread has not ended

  static AddonData& of(Napi::Env env) { return *env.GetInstanceData<AddonData>(); }
};

// A NativeTensor of a tensor, and the other way round: ERR_VALUE, naming `where`, for another value, ERR_DISPOSED.
Napi::Value make_tensor(Napi::Env env, at::Tensor tensor);
at::Tensor unwrap_tensor(Napi::Value value, const std::string& where);

// Makes the classes and stores them in AddonData.
void define_learner(Napi::Env env);
void define_sampler(Napi::Env env);
void define_tensor(Napi::Env env);

// Adds each part's functions to the addon's exports.
void export_learner(Napi::Env env, Napi::Object exports);
void export_sampler(Napi::Env env, Napi::Object exports);
void export_tensor(Napi::Env env, Napi::Object exports);

}  // namespace nlac::binding
