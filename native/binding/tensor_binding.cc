// NativeTensor and the operations on it (lib/ops.ts): the core's losses, AdamW and moving average without a
// model, synchronous, for tests, benchmarks and other people's training loops.

#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "core/error.h"
#include "core/loss/linear_loss.h"
#include "core/optim/optim.h"

namespace nlac::binding {
namespace {

class TensorHandle : public Napi::ObjectWrap<TensorHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "NativeTensor",
        {InstanceAccessor<&TensorHandle::shape>("shape"), InstanceAccessor<&TensorHandle::dtype>("dtype"),
         InstanceAccessor<&TensorHandle::device>("device"),
         InstanceMethod<&TensorHandle::to_array>("toArray"),
         InstanceMethod<&TensorHandle::dispose>("dispose")});
  }

  explicit TensorHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<TensorHandle>(info) {
    if (info.Length() != 1 || !info[0].IsExternal())
      throw Napi::TypeError::New(info.Env(), "A NativeTensor is made by tensorFrom or an operation.");
    tensor_ = *info[0].As<Napi::External<at::Tensor>>().Data();
    account(info.Env(), static_cast<int64_t>(tensor_.nbytes()));
  }

  void Finalize(Napi::Env env) override { account(env, -accounted_); }

  static Napi::Value make(Napi::Env env, at::Tensor tensor) {
    return AddonData::of(env).tensor.New({Napi::External<at::Tensor>::New(env, &tensor)});
  }

  static at::Tensor unwrap(Napi::Value value, const std::string& where) {
    NLAC_REQUIRE(
        value.IsObject() && value.As<Napi::Object>().InstanceOf(AddonData::of(value.Env()).tensor.Value()),
        "ERR_VALUE", where, " must be a tensor");
    const at::Tensor& tensor = Unwrap(value.As<Napi::Object>())->tensor_;
    NLAC_REQUIRE(tensor.defined(), "ERR_DISPOSED", where, " was disposed");
    return tensor;
  }

 private:
  const at::Tensor& tensor() const {
    NLAC_REQUIRE(tensor_.defined(), "ERR_DISPOSED", "the tensor was disposed");
    return tensor_;
  }

  void account(Napi::Env env, int64_t bytes) {
    accounted_ += bytes;
    Napi::MemoryManagement::AdjustExternalMemory(env, bytes);
  }

  Napi::Value shape(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value {
      return from_vector(info.Env(), tensor().sizes(), [&](int64_t size) {
        return Napi::Number::New(info.Env(), static_cast<double>(size));
      });
    });
  }

  Napi::Value dtype(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value {
      return Napi::String::New(info.Env(), dtype_name(tensor().scalar_type()));
    });
  }

  Napi::Value device(const Napi::CallbackInfo& info) {
    return guarded(info.Env(),
                   [&]() -> Napi::Value { return Napi::String::New(info.Env(), tensor().device().str()); });
  }

  Napi::Value to_array(const Napi::CallbackInfo& info) {
    return guarded(info.Env(), [&]() -> Napi::Value {
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
        case at::kFloat: return copy(Napi::Float32Array::New(info.Env(), count));
        case at::kDouble: return copy(Napi::Float64Array::New(info.Env(), count));
        case at::kLong: return copy(Napi::BigInt64Array::New(info.Env(), count));
        case at::kInt: return copy(Napi::Int32Array::New(info.Env(), count));
        default: fail("ERR_INTERNAL", "a tensor of ", dtype_name(values.scalar_type()), " has no array type");
      }
    });
  }

  void dispose(const Napi::CallbackInfo& info) {
    tensor_.reset();
    account(info.Env(), -accounted_);
  }

  at::Tensor tensor_;  // undefined once disposed
  int64_t accounted_ = 0;
};

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

Napi::Value tensor_from(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const at::NoGradGuard no_grad;
    const at::ScalarType stored = element_type(info[0]);
    const auto array = info[0].As<Napi::TypedArray>();
    const auto shape = to_vector(info[1], "shape", to_integer);
    const at::ScalarType dtype = to_dtype(info[2], "dtype");
    const at::Device device = to_device(info[3], "device");

    const auto length = static_cast<int64_t>(array.ElementLength());
    int64_t count = 1, strides = 1;  // torch multiplies strides past a size of 0
    for (const int64_t size : shape) {
      NLAC_REQUIRE(size >= 0 && !__builtin_mul_overflow(strides, std::max<int64_t>(size, 1), &strides),
                   "ERR_SHAPE", "shape holds a negative size or is too large");
      count *= size;
    }
    NLAC_REQUIRE(count == length, "ERR_SHAPE", "the shape has ", count, " elements and data has ", length);
    // Copied at once: the bytes stay JavaScript's.
    const uint8_t* bytes =
        length > 0 ? static_cast<const uint8_t*>(array.ArrayBuffer().Data()) + array.ByteOffset() : nullptr;
    at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(stored));
    if (length > 0) std::memcpy(tensor.mutable_data_ptr(), bytes, array.ByteLength());
    return TensorHandle::make(info.Env(), tensor.to(device, dtype));
  });
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

// The gradient of `weight`: what the caller gave to add into, or a new one, which is float64 where any of the
// inputs is, as the losses then compute in it.
class MatrixGradient {
 public:
  MatrixGradient(const LossFields& inputs, bool wanted, const at::Tensor& weight,
                 std::initializer_list<at::Tensor> others) {
    if (!wanted) return;
    tensor = inputs.optional_tensor("gradHead");
    if (tensor.defined()) return;
    const auto wide = [](const at::Tensor& t) { return t.scalar_type() == at::kDouble; };
    const bool any = wide(weight) || std::any_of(others.begin(), others.end(), wide);
    tensor = made = at::zeros(weight.sizes(), weight.options().dtype(any ? at::kDouble : at::kFloat));
  }

  at::Tensor tensor;  // undefined: no gradient is wanted
  at::Tensor made;    // undefined if the caller has it
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

Napi::Value js_linear_token_kl(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const at::NoGradGuard no_grad;
    const LossFields inputs(info[0]);
    const at::Tensor student_hidden = inputs.tensor("studentHidden"),
                     student_head = inputs.tensor("studentHead"),
                     teacher_hidden = inputs.tensor("teacherHidden"),
                     teacher_head = inputs.tensor("teacherHead");
    const LossOptions options = inputs.options();
    const MatrixGradient gradient(inputs, options.with_gradient, student_head,
                                  {student_hidden, teacher_hidden, teacher_head});
    const LossResult result = linear_token_kl(student_hidden, student_head, teacher_hidden, teacher_head,
                                              inputs.tensor("rowWeights"), inputs.optional_tensor("targets"),
                                              to_divergence(inputs.value("divergence")),
                                              to_support(inputs.value("support")), options, gradient.tensor);
    return from_loss(info.Env(), result, gradient);
  });
}

Napi::Value js_linear_token_nll(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const at::NoGradGuard no_grad;
    const LossFields inputs(info[0]);
    const at::Tensor hidden = inputs.tensor("hidden"), weight = inputs.tensor("head");
    const LossOptions options = inputs.options();
    const MatrixGradient gradient(inputs, options.with_gradient, weight, {hidden});
    const LossResult result =
        linear_token_nll(hidden, weight, inputs.tensor("targets"), inputs.tensor("rowWeights"),
                         inputs.token(), options, gradient.tensor);
    return from_loss(info.Env(), result, gradient);
  });
}

Napi::Value js_linear_token_log_probs(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const at::NoGradGuard no_grad;
    const LossFields inputs(info[0]);
    const at::Tensor hidden = inputs.tensor("hidden"), weight = inputs.tensor("head"),
                     grad_log_probs = inputs.optional_tensor("gradLogProbs");
    const MatrixGradient gradient(inputs, grad_log_probs.defined(), weight, {hidden});
    const LossResult result = linear_token_log_probs(
        hidden, weight, inputs.tensor("targets"), inputs.tensor("rowWeights"), grad_log_probs,
        inputs.boolean("withEntropies"), inputs.options(), gradient.tensor);
    return from_loss(info.Env(), result, gradient);
  });
}

Napi::Value js_linear_token_surrogate(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&] {
    const at::NoGradGuard no_grad;
    const LossFields inputs(info[0]);
    const at::Tensor hidden = inputs.tensor("hidden"), weight = inputs.tensor("head");
    const LossOptions options = inputs.options();
    const MatrixGradient gradient(inputs, options.with_gradient, weight, {hidden});
    const SurrogateInputs rows{inputs.tensor("targets"), inputs.tensor("oldLogProbs"),
                               inputs.tensor("advantages"), inputs.optional_tensor("referenceLogProbs")};
    const LossResult result = linear_token_surrogate(
        hidden, weight, rows, inputs.tensor("rowWeights"),
        {inputs.number("clipLow"), inputs.number("clipHigh"), inputs.number("klCoefficient")}, inputs.token(),
        options, gradient.tensor);
    return from_loss(info.Env(), result, gradient);
  });
}

void js_ema(const Napi::CallbackInfo& info) {
  guarded(info.Env(), [&] {
    const at::NoGradGuard no_grad;
    ema_update(to_vector(info[0], "target", TensorHandle::unwrap),
               to_vector(info[1], "online", TensorHandle::unwrap),
               to_vector(info[2], "shadow", TensorHandle::unwrap), to_number(info[3], "tau"),
               to_seed(info[4], "seed"), to_seed(info[5], "step"));
  });
}

Napi::Value js_adamw(const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    const at::NoGradGuard no_grad;
    const Fields fields(info[0], "inputs");
    const auto tensors = [&](const char* key) {
      return to_vector(info[0].As<Napi::Object>().Get(key), key, TensorHandle::unwrap);
    };
    const auto masters = tensors("masters");
    AdamWMoments moments{tensors("m"), tensors("v"), fields.integer("step") - 1};
    NLAC_REQUIRE(moments.steps >= 0, "ERR_VALUE", "step must be at least 1");
    NLAC_REQUIRE(moments.m.size() == masters.size(), "ERR_SHAPE", moments.m.size(), " first moments for ",
                 masters.size(), " masters");
    const TargetUpdate update{tensors("target"), tensors("shadow"), fields.number("tau")};
    return from_step(info.Env(),
                     adamw_step(masters, tensors("parameters"), tensors("gradients"), moments,
                                to_adamw_options(fields), update.target.empty() ? nullptr : &update));
  });
}

}  // namespace

Napi::Value make_tensor(Napi::Env env, at::Tensor tensor) {
  return TensorHandle::make(env, std::move(tensor));
}

at::Tensor unwrap_tensor(Napi::Value value, const std::string& where) {
  return TensorHandle::unwrap(value, where);
}

void define_tensor(Napi::Env env) { AddonData::of(env).tensor = Napi::Persistent(TensorHandle::define(env)); }

void export_tensor(Napi::Env env, Napi::Object exports) {
  exports.Set("tensorFrom", Napi::Function::New<tensor_from>(env, "tensorFrom"));
  exports.Set("linearTokenKl", Napi::Function::New<js_linear_token_kl>(env, "linearTokenKl"));
  exports.Set("linearTokenNll", Napi::Function::New<js_linear_token_nll>(env, "linearTokenNll"));
  exports.Set("linearTokenLogProbs",
              Napi::Function::New<js_linear_token_log_probs>(env, "linearTokenLogProbs"));
  exports.Set("linearTokenSurrogate",
              Napi::Function::New<js_linear_token_surrogate>(env, "linearTokenSurrogate"));
  exports.Set("ema", Napi::Function::New<js_ema>(env, "ema"));
  exports.Set("adamw", Napi::Function::New<js_adamw>(env, "adamw"));
}

}  // namespace nlac::binding
