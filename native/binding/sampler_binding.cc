// NativeSampler of lib/native/addon.ts: the priority tree, called synchronously (microseconds a call). set
// and sample read and write the caller's typed arrays in place, and allocate nothing.

#include <memory>
#include <string>
#include <utility>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "core/error.h"
#include "core/replay/cuda_sum_tree.h"
#include "core/replay/sum_tree.h"

namespace nlac::binding {
namespace {

// A typed array's memory, for the length of a call.
template <typename T>
struct Span {
  T* data;
  size_t length;
};

// One question to Node-API answers all there is to ask; Napi::TypedArray would ask it several times.
template <typename T>
Span<T> to_span(Napi::Value value, napi_typedarray_type expected, const char* name, const char* class_name) {
  napi_typedarray_type type;
  size_t length = 0;
  void* data = nullptr;
  const napi_status status =
      napi_get_typedarray_info(value.Env(), value, &type, &length, &data, nullptr, nullptr);
  NLAC_REQUIRE(status == napi_ok && type == expected, "ERR_VALUE", name, " must be ", class_name);
  return {static_cast<T*>(data), length};
}

Span<int32_t> to_indices(Napi::Value value) {
  return to_span<int32_t>(value, napi_int32_array, "indices", "an Int32Array");
}

Span<float> to_floats(Napi::Value value, const char* name) {
  return to_span<float>(value, napi_float32_array, name, "a Float32Array");
}

class SamplerHandle : public Napi::ObjectWrap<SamplerHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "NativeSampler",
        {InstanceMethod<&SamplerHandle::set>("set"), InstanceMethod<&SamplerHandle::get>("get"),
         InstanceMethod<&SamplerHandle::total>("total"), InstanceMethod<&SamplerHandle::min>("min"),
         InstanceMethod<&SamplerHandle::max>("max"), InstanceMethod<&SamplerHandle::draws>("draws"),
         InstanceMethod<&SamplerHandle::sample>("sample"), InstanceMethod<&SamplerHandle::save>("save"),
         InstanceMethod<&SamplerHandle::dispose>("dispose"),
         InstanceAccessor<&SamplerHandle::capacity>("capacity"),
         InstanceAccessor<&SamplerHandle::alpha>("alpha"), InstanceAccessor<&SamplerHandle::beta>("beta")});
  }

  explicit SamplerHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<SamplerHandle>(info) {
    if (info.Length() != 1 || !info[0].IsExternal())
      throw Napi::TypeError::New(info.Env(), "A NativeSampler is made by createSampler or loadSampler.");
    tree_ = std::move(*info[0].As<Napi::External<std::unique_ptr<PriorityTree>>>().Data());
    account(info.Env(), tree_->host_bytes());
  }

  void Finalize(Napi::Env env) override { account(env, -accounted_); }

  static Napi::Value make(Napi::Env env, std::unique_ptr<PriorityTree> tree) {
    return AddonData::of(env).sampler.New({Napi::External<std::unique_ptr<PriorityTree>>::New(env, &tree)});
  }

 private:
  PriorityTree& tree() {
    NLAC_REQUIRE(tree_, "ERR_DISPOSED", "the sampler was disposed");
    return *tree_;
  }

  void account(Napi::Env env, int64_t bytes) {
    accounted_ += bytes;
    Napi::MemoryManagement::AdjustExternalMemory(env, bytes);
  }

  void set(const Napi::CallbackInfo& info) {
    guarded(info.Env(), [&] {
      const auto indices = to_indices(info[0]);
      const auto priorities = to_floats(info[1], "priorities");
      NLAC_REQUIRE(indices.length == priorities.length, "ERR_SHAPE", "there are ", indices.length,
                   " indices and ", priorities.length, " priorities");
      tree().set(indices.data, priorities.data, static_cast<int64_t>(indices.length));
    });
  }

  Napi::Value get(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value {
      const auto indices = to_indices(info[0]);
      auto priorities = Napi::Float32Array::New(info.Env(), indices.length);
      tree().get(indices.data, priorities.Data(), static_cast<int64_t>(indices.length));
      return priorities;
    });
  }

  Napi::Value total(const Napi::CallbackInfo& info) {
    return guarded(info.Env(),
                   [&]() -> Napi::Value { return Napi::Number::New(info.Env(), tree().total()); });
  }

  Napi::Value min(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value { return Napi::Number::New(info.Env(), tree().min()); });
  }

  Napi::Value max(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value { return Napi::Number::New(info.Env(), tree().max()); });
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
      const auto indices = to_indices(info[2]);
      const auto probabilities = to_floats(info[3], "probabilities");
      const auto weights = to_floats(info[4], "weights");
      NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative, it is ", count);
      const auto wanted = static_cast<size_t>(count);
      NLAC_REQUIRE(indices.length == wanted && probabilities.length == wanted && weights.length == wanted,
                   "ERR_SHAPE", "the output arrays must hold ", count, " elements each");
      tree().sample(count, stratified, indices.data, probabilities.data, weights.data);
    });
  }

  void save(const Napi::CallbackInfo& info) {
    guarded(info.Env(), [&] { tree().save(to_string(info[0], "path")); });
  }

  void dispose(const Napi::CallbackInfo& info) {
    tree_.reset();
    account(info.Env(), -accounted_);
  }

  std::unique_ptr<PriorityTree> tree_;
  int64_t accounted_ = 0;
};

// A tree of `from`, options or a file's state, on the device that `value` names.
template <typename From>
std::unique_ptr<PriorityTree> make_tree(Napi::Value value, From from) {
  const at::Device device = to_device(value, "device");
  if (device.is_cpu()) return std::make_unique<SumTree>(std::move(from));
#ifdef NLAC_CUDA
  return std::make_unique<CudaSumTree>(std::move(from), device.index());
#else
  fail("ERR_DEVICE", "This addon was built without CUDA. Run `npx nlac setup --cuda`.");
#endif
}

Napi::Value create_sampler(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const TreeOptions options{to_integer(info[0], "capacity"), to_number(info[1], "alpha"),
                              to_number(info[2], "beta"), to_seed(info[3], "seed")};
    return SamplerHandle::make(info.Env(), make_tree(info[4], options));
  });
}

Napi::Value load_sampler(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    return SamplerHandle::make(info.Env(), make_tree(info[1], load_tree(to_string(info[0], "path"))));
  });
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
