// NativeTensor and its operations (lib/ops/index.ts): the core's losses, AdamW and moving average
// without a model. They are synchronous, for tests, benchmarks and users' own training loops.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "binding/functions.h"
#include "core/error.h"
#include "core/loss/linear_loss.h"
#include "core/loss/preference.h"
#include "core/optim/optim.h"

namespace nlac::binding {
namespace {

class TensorHandle : public Napi::ObjectWrap<TensorHandle> {
 public:
  static constexpr napi_type_tag tag = {0x5f0e3c1f7b6a4d21, 0x9d2c84b7e1a05f36};
  static std::span<const Member<TensorHandle>> members();

  explicit TensorHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<TensorHandle>(info) {
    const auto* made = given_to_handle<at::Tensor>(info, "tensorFrom or an operation");
    tag_handle<TensorHandle>(info);
    tensor_ = *made;
    account(info.Env(), static_cast<int64_t>(tensor_.nbytes()));
  }

  void Finalize(Napi::Env env) override { account(env, -accounted_); }

  static Napi::Value make(Napi::Env env, at::Tensor tensor) {
    return make_handle(AddonData::of(env).tensor, &tensor);
  }

  static at::Tensor unwrap(Napi::Value value, const std::string& where) {
    NLAC_REQUIRE(is_handle<TensorHandle>(value), "ERR_VALUE", where, " must be a tensor");
    const at::Tensor& tensor = Unwrap(value.As<Napi::Object>())->tensor_;
    NLAC_REQUIRE(tensor.defined(), "ERR_DISPOSED", where, " was disposed");
    return tensor;
  }

  Napi::Value call(const Napi::CallbackInfo& info) { return call_member(*this, info); }

 private:
  const at::Tensor& tensor() const {
    NLAC_REQUIRE(tensor_.defined(), "ERR_DISPOSED", "the tensor was disposed");
    return tensor_;
  }

  void account(Napi::Env env, int64_t bytes) {
    accounted_ += bytes;
    Napi::MemoryManagement::AdjustExternalMemory(env, bytes);
  }

  Napi::Value to_array() const {
    const at::NoGradGuard no_grad;
    at::Tensor values = tensor().to(at::kCPU);
    if (values.scalar_type() == at::kBFloat16) values = values.to(at::kFloat);
    values = values.contiguous();
    const auto copy = [&](auto array) -> Napi::Value {
      if (values.nbytes() > 0) std::memcpy(array.Data(), values.const_data_ptr(), values.nbytes());
      return array;
    };
    const auto count = static_cast<size_t>(values.numel());
    switch (values.scalar_type()) {
      case at::kFloat: return copy(Napi::Float32Array::New(Env(), count));
      case at::kDouble: return copy(Napi::Float64Array::New(Env(), count));
      case at::kLong: return copy(Napi::BigInt64Array::New(Env(), count));
      case at::kInt: return copy(Napi::Int32Array::New(Env(), count));
      default: fail("ERR_INTERNAL", "a tensor of ", dtype_name(values.scalar_type()), " has no array type");
    }
  }

  at::Tensor tensor_;  // undefined once disposed
  int64_t accounted_ = 0;
};

std::span<const Member<TensorHandle>> TensorHandle::members() {
  using Self = TensorHandle;
  static constexpr Member<Self> rows[] = {
      property("shape",
               [](Self& self) {
                 return from_vector(self.Env(), self.tensor().sizes(), [&](int64_t size) {
                   return Napi::Number::New(self.Env(), static_cast<double>(size));
                 });
               }),
      property(
          "dtype",
          [](Self& self) { return Napi::String::New(self.Env(), dtype_name(self.tensor().scalar_type())); }),
      property("device",
               [](Self& self) { return Napi::String::New(self.Env(), self.tensor().device().str()); }),
      method("toArray", [](Self& self) { return self.to_array(); }),
      method("dispose",
             [](Self& self) {
               self.tensor_.reset();
               self.account(self.Env(), -self.accounted_);
             }),
  };
  return rows;
}

at::ScalarType element_type(Napi::Value data) {
  NLAC_REQUIRE(data.IsTypedArray(), "ERR_VALUE", "data must be a typed array");
  switch (data.As<Napi::TypedArray>().TypedArrayType()) {
    case napi_float32_array: return at::kFloat;
    case napi_float64_array: return at::kDouble;
    case napi_bigint64_array: return at::kLong;
    case napi_int32_array: return at::kInt;
    default: fail("ERR_VALUE", "data must be a Float32Array, Float64Array, BigInt64Array or Int32Array");
  }
}

Napi::Value tensor_from(Napi::Env env, Napi::Value data, Napi::Value sizes, Napi::Value type,
                        Napi::Value place) {
  const at::NoGradGuard no_grad;
  const at::ScalarType stored = element_type(data);
  const auto shape = to_vector(sizes, "shape", to_integer);
  const at::ScalarType dtype = to_dtype(type, "dtype");
  const at::Device device = to_device(place, "device");

  // Only now: a getter of `sizes` may have detached or resized the array's memory.
  const auto array = data.As<Napi::TypedArray>();
  const auto length = static_cast<int64_t>(array.ElementLength());
  int64_t count = 1, strides = 1;  // torch multiplies strides also past a size of 0
  for (const int64_t size : shape) {
    NLAC_REQUIRE(size >= 0 && !__builtin_mul_overflow(strides, std::max<int64_t>(size, 1), &strides),
                 "ERR_SHAPE", "shape holds a negative size or is too large");
    count *= size;
  }
  NLAC_REQUIRE(count == length, "ERR_SHAPE", "the shape has ", count, " elements and data has ", length);
  // Copied, because the bytes belong to JavaScript. They may lie in a SharedArrayBuffer.
  void* bytes = nullptr;
  NLAC_REQUIRE(napi_get_typedarray_info(env, data, nullptr, nullptr, &bytes, nullptr, nullptr) == napi_ok,
               "ERR_VALUE", "data cannot be read");
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(stored));
  if (length > 0) std::memcpy(tensor.mutable_data_ptr(), bytes, array.ByteLength());
  return TensorHandle::make(env, tensor.to(device, dtype));
}

// The tensors and options of a loss by their names in lib/native/addon.ts.
class LossFields {
 public:
  explicit LossFields(Napi::Value value) : fields_(value, "inputs"), object_(value.As<Napi::Object>()) {}

  at::Tensor tensor(const char* key) const { return TensorHandle::unwrap(object_.Get(key), key); }
  at::Tensor optional_tensor(const char* key) const {
    return object_.Get(key).IsUndefined() ? at::Tensor() : tensor(key);
  }
  Napi::Value value(const char* key) const { return object_.Get(key); }
  double number(const char* key) const { return fields_.number(key); }
  bool boolean(const char* key) const { return fields_.boolean(key); }

  LossOptions options() const {
    return {number("temperature"), boolean("withGradient"), fields_.integer("workspaceBytes")};
  }
  TokenOptions token() const {
    return {number("zLoss"), number("entropyCoefficient"), boolean("withEntropies")};
  }

 private:
  Fields fields_;
  Napi::Object object_;
};

// The gradient of the head: the caller's tensor, to which it is added, or a new one, in float64 if
// any input is float64.
class MatrixGradient {
 public:
  MatrixGradient(const LossFields& inputs, bool wanted, const at::Tensor& head,
                 std::initializer_list<at::Tensor> others) {
    if (!wanted) return;
    tensor = inputs.optional_tensor("gradHead");
    if (tensor.defined()) return;
    const auto wide = [](const at::Tensor& t) { return t.scalar_type() == at::kDouble; };
    const bool any = wide(head) || std::any_of(others.begin(), others.end(), wide);
    tensor = made = at::zeros(head.sizes(), head.options().dtype(any ? at::kDouble : at::kFloat));
  }

  at::Tensor tensor;  // undefined: no gradient
  at::Tensor made;    // undefined if the caller's tensor is used
};

Napi::Value from_loss(Napi::Env env, const LossResult& result, const MatrixGradient& gradient) {
  Napi::Object object = Napi::Object::New(env);
  const auto set = [&](const char* key, const at::Tensor& tensor) {
    if (tensor.defined()) object.Set(key, TensorHandle::make(env, tensor));
  };
  set("losses", result.losses);
  set("gradHidden", result.grad_hidden);
  set("gradHead", gradient.made);
  set("logProbs", result.log_probs);
  set("entropies", result.entropies);
  set("ratios", result.ratios);
  set("clipped", result.clipped);
  return object;
}

Napi::Value call_linear_token_kl(Napi::Env env, Napi::Value given) {
  const at::NoGradGuard no_grad;
  const LossFields inputs(given);
  const at::Tensor student_hidden = inputs.tensor("studentHidden"),
                   student_head = inputs.tensor("studentHead"),
                   teacher_hidden = inputs.tensor("teacherHidden"),
                   teacher_head = inputs.tensor("teacherHead");
  const LossOptions options = inputs.options();
  const MatrixGradient gradient(inputs, options.with_gradient, student_head,
                                {student_hidden, teacher_hidden, teacher_head});
  const LossResult result =
      linear_token_kl(student_hidden, student_head, teacher_hidden, teacher_head, inputs.tensor("rowWeights"),
                      inputs.optional_tensor("targets"), to_divergence(inputs.value("divergence")),
                      to_support(inputs.value("support")), options, gradient.tensor);
  return from_loss(env, result, gradient);
}

Napi::Value call_linear_token_nll(Napi::Env env, Napi::Value given) {
  const at::NoGradGuard no_grad;
  const LossFields inputs(given);
  const at::Tensor hidden = inputs.tensor("hidden"), head = inputs.tensor("head");
  const LossOptions options = inputs.options();
  const MatrixGradient gradient(inputs, options.with_gradient, head, {hidden});
  const LossResult result =
      linear_token_nll(hidden, head, inputs.tensor("targets"), inputs.tensor("rowWeights"), inputs.token(),
                       options, gradient.tensor);
  return from_loss(env, result, gradient);
}

Napi::Value call_linear_token_log_probs(Napi::Env env, Napi::Value given) {
  const at::NoGradGuard no_grad;
  const LossFields inputs(given);
  const at::Tensor hidden = inputs.tensor("hidden"), head = inputs.tensor("head"),
                   grad_log_probs = inputs.optional_tensor("gradLogProbs");
  const MatrixGradient gradient(inputs, grad_log_probs.defined(), head, {hidden});
  const LossResult result = linear_token_log_probs(
      hidden, head, inputs.tensor("targets"), inputs.tensor("rowWeights"), grad_log_probs,
      inputs.boolean("withEntropies"), inputs.options(), gradient.tensor);
  return from_loss(env, result, gradient);
}

Napi::Value call_linear_token_surrogate(Napi::Env env, Napi::Value given) {
  const at::NoGradGuard no_grad;
  const LossFields inputs(given);
  const at::Tensor hidden = inputs.tensor("hidden"), head = inputs.tensor("head");
  const LossOptions options = inputs.options();
  const MatrixGradient gradient(inputs, options.with_gradient, head, {hidden});
  const SurrogateInputs rows{inputs.tensor("targets"), inputs.tensor("oldLogProbs"),
                             inputs.tensor("advantages"), inputs.optional_tensor("referenceLogProbs")};
  const LossResult result = linear_token_surrogate(
      hidden, head, rows, inputs.tensor("rowWeights"),
      {inputs.number("clipLow"), inputs.number("clipHigh"), inputs.number("klCoefficient")}, inputs.token(),
      options, gradient.tensor);
  return from_loss(env, result, gradient);
}

Napi::Value call_linear_token_preference(Napi::Env env, Napi::Value given) {
  const at::NoGradGuard no_grad;
  const LossFields inputs(given);
  const at::Tensor hidden = inputs.tensor("hidden"), head = inputs.tensor("head");
  const LossOptions options = inputs.options();
  const auto reals = [&](const char* key) {
    const at::Tensor values = inputs.tensor(key).to(at::kCPU, at::kDouble).contiguous();
    return std::vector<double>(values.const_data_ptr<double>(),
                               values.const_data_ptr<double>() + values.numel());
  };
  const MatrixGradient gradient(inputs, options.with_gradient, head, {hidden});
  const PreferenceResult result =
      linear_token_preference(hidden, head,
                              {inputs.tensor("targets"), to_ids(inputs.value("offsets"), "offsets"),
                               reals("referenceLogProbs"), reals("pairWeights")},
                              to_preference_loss(Fields(given, "inputs")), options, gradient.tensor);
  const bool wide = hidden.scalar_type() == at::kDouble || head.scalar_type() == at::kDouble;
  const auto real = [&](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).to(hidden.device(), wide ? at::kDouble : at::kFloat);
  };
  LossResult found;
  found.losses = real(result.losses);
  found.log_probs = real(result.log_probs);
  found.grad_hidden = result.grad_hidden;
  return from_loss(env, found, gradient);
}

void call_ema(Napi::Value target, Napi::Value online, Napi::Value shadow, Napi::Value target_rate,
              Napi::Value seed, Napi::Value step) {
  const at::NoGradGuard no_grad;
  ema_update(to_vector(target, "target", TensorHandle::unwrap),
             to_vector(online, "online", TensorHandle::unwrap),
             to_vector(shadow, "shadow", TensorHandle::unwrap), to_number(target_rate, "targetRate"),
             to_seed(seed, "seed"), to_seed(step, "step"));
}

Napi::Value call_adamw(Napi::Env env, Napi::Value inputs) {
  const at::NoGradGuard no_grad;
  const Fields fields(inputs, "inputs");
  const auto tensors = [&](const char* key) {
    return to_vector(inputs.As<Napi::Object>().Get(key), key, TensorHandle::unwrap);
  };
  const auto masters = tensors("masters");
  AdamWMoments moments{tensors("m"), tensors("v"), fields.integer("step") - 1};
  NLAC_REQUIRE(moments.steps >= 0, "ERR_VALUE", "step must be at least 1");
  NLAC_REQUIRE(moments.m.size() == masters.size(), "ERR_SHAPE", moments.m.size(), " first moments for ",
               masters.size(), " masters");
  const TargetUpdate update{tensors("target"), tensors("shadow"), fields.number("targetRate")};
  return from_step(env, adamw_step(masters, tensors("parameters"), tensors("gradients"), moments,
                                   to_adamw_options(fields), update.target.empty() ? nullptr : &update));
}

constexpr Function functions[] = {
    function("tensorFrom", [](Napi::Env env, Napi::Value data, Napi::Value shape, Napi::Value dtype,
                              Napi::Value device) { return tensor_from(env, data, shape, dtype, device); }),
    function("linearTokenKl",
             [](Napi::Env env, Napi::Value inputs) { return call_linear_token_kl(env, inputs); }),
    function("linearTokenNll",
             [](Napi::Env env, Napi::Value inputs) { return call_linear_token_nll(env, inputs); }),
    function("linearTokenLogProbs",
             [](Napi::Env env, Napi::Value inputs) { return call_linear_token_log_probs(env, inputs); }),
    function("linearTokenSurrogate",
             [](Napi::Env env, Napi::Value inputs) { return call_linear_token_surrogate(env, inputs); }),
    function("linearTokenPreference",
             [](Napi::Env env, Napi::Value inputs) { return call_linear_token_preference(env, inputs); }),
    function("ema", [](Napi::Env, Napi::Value target, Napi::Value online, Napi::Value shadow,
                       Napi::Value target_rate, Napi::Value seed,
                       Napi::Value step) { call_ema(target, online, shadow, target_rate, seed, step); }),
    function("adamw", [](Napi::Env env, Napi::Value inputs) { return call_adamw(env, inputs); }),
};

}  // namespace

Napi::Value make_tensor(Napi::Env env, at::Tensor tensor) {
  return TensorHandle::make(env, std::move(tensor));
}

at::Tensor unwrap_tensor(Napi::Value value, const std::string& where) {
  return TensorHandle::unwrap(value, where);
}

void define_tensor(Napi::Env env) {
  AddonData::of(env).tensor = Napi::Persistent(define_class(env, "NativeTensor", TensorHandle::members()));
}

void export_tensor(Napi::Env env, Napi::Object exports) { export_functions(env, exports, functions); }

}  // namespace nlac::binding
