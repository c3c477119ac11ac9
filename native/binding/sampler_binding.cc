// NativeSampler of lib/native/addon.ts: the sum tree, called synchronously (microseconds a call).

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "core/error.h"
#include "core/replay/sum_tree.h"

namespace nlac::binding {
namespace {

class SamplerHandle : public Napi::ObjectWrap<SamplerHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "NativeSampler",
        {InstanceMethod<&SamplerHandle::set>("set"), InstanceMethod<&SamplerHandle::get>("get"),
         InstanceMethod<&SamplerHandle::total>("total"), InstanceMethod<&SamplerHandle::draws>("draws"),
         InstanceMethod<&SamplerHandle::sample>("sample"), InstanceMethod<&SamplerHandle::save>("save"),
         InstanceMethod<&SamplerHandle::dispose>("dispose"),
         InstanceAccessor<&SamplerHandle::capacity>("capacity"),
         InstanceAccessor<&SamplerHandle::alpha>("alpha"), InstanceAccessor<&SamplerHandle::beta>("beta")});
  }

  explicit SamplerHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<SamplerHandle>(info) {
    if (info.Length() != 1 || !info[0].IsExternal())
      throw Napi::TypeError::New(info.Env(), "A NativeSampler is made by createSampler or loadSampler.");
    tree_ = std::make_unique<SumTree>(std::move(*info[0].As<Napi::External<SumTree>>().Data()));
    account(info.Env(), bytes_a_leaf * tree_->capacity());
  }

  void Finalize(Napi::Env env) override { account(env, -accounted_); }

  static Napi::Value make(Napi::Env env, SumTree tree) {
    return AddonData::of(env).sampler.New({Napi::External<SumTree>::New(env, &tree)});
  }

 private:
  // A float32 priority and about two float64 nodes.
  static constexpr int64_t bytes_a_leaf = 20;

  SumTree& tree() {
    NLAC_REQUIRE(tree_, "ERR_DISPOSED", "the sampler was disposed");
    return *tree_;
  }

  void account(Napi::Env env, int64_t bytes) {
    accounted_ += bytes;
    Napi::MemoryManagement::AdjustExternalMemory(env, bytes);
  }

  void set(const Napi::CallbackInfo& info) {
    guarded(info.Env(), [&] {
      const auto indices = to_ids(info[0], "indices");
      const auto priorities = to_float32_array(info[1], "priorities");
      NLAC_REQUIRE(indices.size() == priorities.ElementLength(), "ERR_SHAPE", "there are ", indices.size(),
                   " indices and ", priorities.ElementLength(), " priorities");
      tree().set(indices.data(), priorities.Data(), static_cast<int64_t>(indices.size()));
    });
  }

  Napi::Value get(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value {
      const auto indices = to_ids(info[0], "indices");
      auto priorities = Napi::Float32Array::New(info.Env(), indices.size());
      tree().get(indices.data(), priorities.Data(), static_cast<int64_t>(indices.size()));
      return priorities;
    });
  }

  Napi::Value total(const Napi::CallbackInfo& info) {
    return guarded(info.Env(),
                   [&]() -> Napi::Value { return Napi::Number::New(info.Env(), tree().total()); });
  }

  Napi::Value draws(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value {
      return Napi::Number::New(info.Env(), static_cast<double>(tree().draws()));
    });
  }

  Napi::Value capacity(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value {
      return Napi::Number::New(info.Env(), static_cast<double>(tree().capacity()));
    });
  }

  Napi::Value alpha(const Napi::CallbackInfo& info) {
    return guarded(info.Env(),
                   [&]() -> Napi::Value { return Napi::Number::New(info.Env(), tree().alpha()); });
  }

  Napi::Value beta(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value { return Napi::Number::New(info.Env(), tree().beta()); });
  }

  void sample(const Napi::CallbackInfo& info) {
    guarded(info.Env(), [&] {
      const int64_t count = to_integer(info[0], "count");
      const bool stratified = to_boolean(info[1], "stratified");
      auto indices = to_int32_array(info[2], "indices");
      auto probabilities = to_float32_array(info[3], "probabilities");
      auto weights = to_float32_array(info[4], "weights");
      NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative, it is ", count);
      const auto wanted = static_cast<size_t>(count);
      NLAC_REQUIRE(indices.ElementLength() == wanted && probabilities.ElementLength() == wanted &&
                       weights.ElementLength() == wanted,
                   "ERR_SHAPE", "the output arrays must hold ", count, " elements each");
      std::vector<int64_t> wide(wanted);
      tree().sample(count, stratified, wide.data(), probabilities.Data(), weights.Data());
      std::copy(wide.begin(), wide.end(), indices.Data());
    });
  }

  void save(const Napi::CallbackInfo& info) {
    guarded(info.Env(), [&] { tree().save(to_string(info[0], "path")); });
  }

  void dispose(const Napi::CallbackInfo& info) {
    tree_.reset();
    account(info.Env(), -accounted_);
  }

  std::unique_ptr<SumTree> tree_;
  int64_t accounted_ = 0;
};

Napi::Value create_sampler(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    return SamplerHandle::make(info.Env(),
                               SumTree(to_integer(info[0], "capacity"), to_number(info[1], "alpha"),
                                       to_number(info[2], "beta"), to_seed(info[3], "seed")));
  });
}

Napi::Value load_sampler(const Napi::CallbackInfo& info) {
  return guarded(info.Env(),
                 [&] { return SamplerHandle::make(info.Env(), SumTree::load(to_string(info[0], "path"))); });
}

}  // namespace

void define_sampler(Napi::Env env) {
  AddonData::of(env).sampler = Napi::Persistent(SamplerHandle::define(env));
}

void export_sampler(Napi::Env env, Napi::Object exports) {
  exports.Set("createSampler", Napi::Function::New<create_sampler>(env, "createSampler"));
  exports.Set("loadSampler", Napi::Function::New<load_sampler>(env, "loadSampler"));
}

}  // namespace nlac::binding
