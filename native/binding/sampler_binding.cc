// NativeSampler of lib/native/addon.ts: the priority tree, called synchronously (microseconds per
// call). set and sample access the caller's typed arrays in place and allocate nothing.

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "binding/functions.h"
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

// One Node-API call returns all fields; Napi::TypedArray would make several.
template <typename T>
Span<T> to_span(Napi::Value value, napi_typedarray_type expected, const char* name, const char* class_name) {
  napi_typedarray_type type;
  size_t length = 0;
  void* data = nullptr;
  napi_value buffer = nullptr;
  const napi_status status =
      napi_get_typedarray_info(value.Env(), value, &type, &length, &data, &buffer, nullptr);
  NLAC_REQUIRE(status == napi_ok && type == expected, "ERR_VALUE", name, " must be ", class_name);
  // Another thread could change an index in shared memory between its check and its use.
  bool own = false;
  NLAC_REQUIRE(napi_is_arraybuffer(value.Env(), buffer, &own) == napi_ok && own, "ERR_VALUE", name,
               " must not be in shared memory");
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
  static constexpr napi_type_tag tag = {0x2a7d914e60c3b85f, 0xb4f1073ac98e5d62};
  static std::span<const Member<SamplerHandle>> members();

  explicit SamplerHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<SamplerHandle>(info) {
    auto* made = given_to_handle<std::unique_ptr<PriorityTree>>(info, "createSampler or loadSampler");
    tag_handle<SamplerHandle>(info);
    tree_ = std::move(*made);
    account(info.Env(), tree_->host_bytes());
  }

  void Finalize(Napi::Env env) override { account(env, -accounted_); }

  static Napi::Value make(Napi::Env env, std::unique_ptr<PriorityTree> tree) {
    return make_handle(AddonData::of(env).sampler, &tree);
  }

  Napi::Value call(const Napi::CallbackInfo& info) { return call_member(*this, info); }

 private:
  PriorityTree& tree() {
    NLAC_REQUIRE(tree_, "ERR_DISPOSED", "the sampler was disposed");
    return *tree_;
  }

  void account(Napi::Env env, int64_t bytes) {
    accounted_ += bytes;
    Napi::MemoryManagement::AdjustExternalMemory(env, bytes);
  }

  std::unique_ptr<PriorityTree> tree_;
  int64_t accounted_ = 0;
};

std::span<const Member<SamplerHandle>> SamplerHandle::members() {
  using Self = SamplerHandle;
  using Value = Napi::Value;
  static constexpr auto number = [](Self& self, auto value) {
    return Napi::Number::New(self.Env(), static_cast<double>(value));
  };
  static constexpr Member<Self> rows[] = {
      property("capacity", [](Self& self) { return number(self, self.tree().capacity()); }),
      property("alpha", [](Self& self) { return number(self, self.tree().alpha()); }),
      property("beta", [](Self& self) { return number(self, self.tree().beta()); }),
      method("total", [](Self& self) { return number(self, self.tree().total()); }),
      method("min", [](Self& self) { return number(self, self.tree().min()); }),
      method("max", [](Self& self) { return number(self, self.tree().max()); }),
      method("draws", [](Self& self) { return number(self, self.tree().draws()); }),
      method("set",
             [](Self& self, Value at, Value given) {
               const auto indices = to_indices(at);
               const auto priorities = to_floats(given, "priorities");
               NLAC_REQUIRE(indices.length == priorities.length, "ERR_SHAPE", "there are ", indices.length,
                            " indices and ", priorities.length, " priorities");
               self.tree().set(indices.data, priorities.data, static_cast<int64_t>(indices.length));
             }),
      method("get",
             [](Self& self, Value at) {
               const auto indices = to_indices(at);
               auto priorities = Napi::Float32Array::New(self.Env(), indices.length);
               self.tree().get(indices.data, priorities.Data(), static_cast<int64_t>(indices.length));
               return priorities;
             }),
      method("sample",
             [](Self& self, Value wanted, Value in_strata, Value into_indices, Value into_probabilities,
                Value into_weights) {
               const int64_t count = to_integer(wanted, "count");
               const bool stratified = to_boolean(in_strata, "stratified");
               const auto indices = to_indices(into_indices);
               const auto probabilities = to_floats(into_probabilities, "probabilities");
               const auto weights = to_floats(into_weights, "weights");
               NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative, it is ", count);
               const auto length = static_cast<size_t>(count);
               NLAC_REQUIRE(
                   indices.length == length && probabilities.length == length && weights.length == length,
                   "ERR_SHAPE", "the output arrays must hold ", count, " elements each");
               self.tree().sample(count, stratified, indices.data, probabilities.data, weights.data);
             }),
      method("save", [](Self& self, Value path) { self.tree().save(to_path(path, "path")); }),
      method("dispose",
             [](Self& self) {
               self.tree_.reset();
               self.account(self.Env(), -self.accounted_);
             }),
  };
  return rows;
}

// Returns a tree of `from` (options or a file's state) on the device `value`.
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

constexpr Function functions[] = {
    function("createSampler",
             [](Napi::Env env, Napi::Value capacity, Napi::Value alpha, Napi::Value beta, Napi::Value seed,
                Napi::Value device) {
               const TreeOptions options{to_integer(capacity, "capacity"), to_number(alpha, "alpha"),
                                         to_number(beta, "beta"), to_seed(seed, "seed")};
               return SamplerHandle::make(env, make_tree(device, options));
             }),
    function("loadSampler",
             [](Napi::Env env, Napi::Value path, Napi::Value device) {
               return SamplerHandle::make(env, make_tree(device, load_tree(to_path(path, "path"))));
             }),
};

}  // namespace

void define_sampler(Napi::Env env) {
  AddonData::of(env).sampler = Napi::Persistent(define_class(env, "NativeSampler", SamplerHandle::members()));
}

void export_sampler(Napi::Env env, Napi::Object exports) { export_functions(env, exports, functions); }

}  // namespace nlac::binding
