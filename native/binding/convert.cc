#include "binding/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace nlac::binding {

Fields::Fields(Napi::Value value, std::string where) : where_(std::move(where)) {
  NLAC_REQUIRE(value.IsObject(), "ERR_VALUE", where_, " must be an object");
  object_ = value.As<Napi::Object>();
}

Napi::Value Fields::get(const char* key) const { return object_.Get(key); }
std::string Fields::name(const char* key) const { return where_ + "." + key; }
double Fields::number(const char* key) const { return to_number(get(key), name(key)); }
int64_t Fields::integer(const char* key) const { return to_integer(get(key), name(key)); }
bool Fields::boolean(const char* key) const { return to_boolean(get(key), name(key)); }
std::string Fields::string(const char* key) const { return to_string(get(key), name(key)); }
uint64_t Fields::seed(const char* key) const { return to_seed(get(key), name(key)); }
std::vector<int64_t> Fields::ids(const char* key) const { return to_ids(get(key), name(key)); }
std::vector<float> Fields::floats(const char* key) const {
  const Napi::Float32Array array = to_float32_array(get(key), name(key));
  return {array.Data(), array.Data() + array.ElementLength()};
}
std::vector<std::string> Fields::strings(const char* key) const {
  return to_vector(get(key), name(key), to_string);
}

double to_number(Napi::Value value, const std::string& where) {
  NLAC_REQUIRE(value.IsNumber(), "ERR_VALUE", where, " must be a number");
  return value.As<Napi::Number>().DoubleValue();
}

int64_t to_integer(Napi::Value value, const std::string& where) {
  const double number = to_number(value, where);
  NLAC_REQUIRE(std::nearbyint(number) == number && std::abs(number) <= 0x1.0p53, "ERR_VALUE", where,
               " must be an integer, not ", number);
  return static_cast<int64_t>(number);
}

bool to_boolean(Napi::Value value, const std::string& where) {
  NLAC_REQUIRE(value.IsBoolean(), "ERR_VALUE", where, " must be true or false");
  return value.As<Napi::Boolean>().Value();
}

std::string to_string(Napi::Value value, const std::string& where) {
  NLAC_REQUIRE(value.IsString(), "ERR_VALUE", where, " must be a string");
  return value.As<Napi::String>().Utf8Value();
}

std::string to_path(Napi::Value value, const std::string& where) {
  std::string path = to_string(value, where);
  // The system would take the part before it for the path.
  NLAC_REQUIRE(path.find('\0') == std::string::npos, "ERR_VALUE", where, " must not hold a null character");
  return path;
}

uint64_t to_seed(Napi::Value value, const std::string& where) {
  NLAC_REQUIRE(value.IsBigInt(), "ERR_VALUE", where, " must be a bigint");
  bool lossless = false;
  const uint64_t seed = value.As<Napi::BigInt>().Uint64Value(&lossless);
  NLAC_REQUIRE(lossless, "ERR_VALUE", where, " must be between 0 and 2^64 - 1");
  return seed;
}

Napi::Array to_array(Napi::Value value, const std::string& where) {
  NLAC_REQUIRE(value.IsArray(), "ERR_VALUE", where, " must be an array");
  return value.As<Napi::Array>();
}

namespace {

bool is_typed_array(Napi::Value value, napi_typedarray_type type) {
  return value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == type;
}

}  // namespace

Napi::Int32Array to_int32_array(Napi::Value value, const std::string& where) {
  NLAC_REQUIRE(is_typed_array(value, napi_int32_array), "ERR_VALUE", where, " must be an Int32Array");
  return value.As<Napi::Int32Array>();
}

Napi::Float32Array to_float32_array(Napi::Value value, const std::string& where) {
  NLAC_REQUIRE(is_typed_array(value, napi_float32_array), "ERR_VALUE", where, " must be a Float32Array");
  return value.As<Napi::Float32Array>();
}

std::vector<int64_t> to_ids(Napi::Value value, const std::string& where) {
  const Napi::Int32Array array = to_int32_array(value, where);
  return {array.Data(), array.Data() + array.ElementLength()};
}

WeightSet to_weight_set(Napi::Value value) {
  const std::string which = to_string(value, "weights");
  if (which == "online") return WeightSet::online;
  if (which == "target") return WeightSet::target;
  NLAC_REQUIRE(which == "reference", "ERR_VALUE",
               "weights must be \"online\", \"target\" or \"reference\", not \"", which, "\"");
  return WeightSet::reference;
}

Support to_support(Napi::Value value) {
  const Fields fields(value, "support");
  const std::string kind = fields.string("kind");
  if (kind == "full") return {SupportKind::full, 0};
  if (kind == "sampled") return {SupportKind::sampled, 0};
  NLAC_REQUIRE(kind == "top_k", "ERR_VALUE", "support.kind must be full, top_k or sampled, not \"", kind,
               "\"");
  return {SupportKind::top_k, fields.integer("k")};
}

Divergence to_divergence(Napi::Value value) {
  const Fields fields(value, "divergence");
  const std::string kind = fields.string("kind");
  if (kind == "forward_kl") return {DivergenceKind::forward_kl, 0};
  if (kind == "cross_entropy") return {DivergenceKind::cross_entropy, 0};
  if (kind == "reverse_kl") return {DivergenceKind::reverse_kl, 0};
  NLAC_REQUIRE(kind == "jensen_shannon", "ERR_VALUE",
               "divergence.kind must be forward_kl, cross_entropy, reverse_kl or jensen_shannon, not \"",
               kind, "\"");
  return {DivergenceKind::jensen_shannon, fields.number("beta")};
}

PreferenceLoss to_preference_loss(const Fields& fields) {
  const std::string kind = fields.string("loss");
  const bool hinge = kind == "hinge", ipo = kind == "ipo";
  NLAC_REQUIRE(hinge || ipo || kind == "sigmoid", "ERR_VALUE", "loss must be sigmoid, hinge or ipo, not \"",
               kind, "\"");
  return {hinge ? PreferenceLossKind::hinge
          : ipo ? PreferenceLossKind::ipo
                : PreferenceLossKind::sigmoid,
          fields.number("beta"), fields.number("labelSmoothing")};
}

AdamWOptions to_adamw_options(const Fields& fields) {
  AdamWOptions options;
  options.learning_rate = fields.number("learningRate");
  options.beta1 = fields.number("beta1");
  options.beta2 = fields.number("beta2");
  options.epsilon = fields.number("epsilon");
  options.weight_decay = fields.number("weightDecay");
  options.max_grad_norm = fields.number("maxGradNorm");
  return options;
}

at::Device to_device(Napi::Value value, const std::string& where) {
  const std::string name = to_string(value, where);
  if (name == "cpu") return at::kCPU;
  NLAC_REQUIRE(name == "cuda" ||
                   (name.starts_with("cuda:") && name.size() > 5 && name.size() <= 7 &&
                    std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; })),
               "ERR_DEVICE", where, " must be \"cpu\", \"cuda\" or \"cuda:N\", not \"", name, "\"");
  const int index = name == "cuda" ? 0 : std::stoi(name.substr(5));
  const int count =
      at::globalContext().hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
  NLAC_REQUIRE(count > 0, "ERR_DEVICE", where, " is \"", name,
               "\", but no CUDA device can be used here; `npx nlac doctor` says why");
  NLAC_REQUIRE(index < count, "ERR_DEVICE", where, " is \"", name, "\", but there are only ", count,
               " CUDA devices");
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

namespace {

constexpr std::pair<const char*, at::ScalarType> dtypes[] = {
    {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16},
    {"int64", at::kLong},    {"int32", at::kInt},
};

}  // namespace

at::ScalarType to_dtype(Napi::Value value, const std::string& where) {
  const std::string wanted = to_string(value, where);
  for (const auto& [name, dtype] : dtypes)
    if (wanted == name) return dtype;
  fail("ERR_VALUE", where, " must be float32, float64, bfloat16, int64 or int32, not \"", wanted, "\"");
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : dtypes)
    if (dtype == known) return name;
  return at::toString(dtype);
}

Napi::Float32Array from_floats(Napi::Env env, const float* data, size_t count) {
  Napi::Float32Array array = Napi::Float32Array::New(env, count);
  if (count > 0) std::memcpy(array.Data(), data, count * sizeof(float));
  return array;
}

Napi::Float32Array from_floats(Napi::Env env, const std::vector<float>& values) {
  return from_floats(env, values.data(), values.size());
}

Napi::Int32Array from_ints(Napi::Env env, const std::vector<int32_t>& values) {
  Napi::Int32Array array = Napi::Int32Array::New(env, values.size());
  std::copy(values.begin(), values.end(), array.Data());
  return array;
}

Napi::Int32Array from_ids(Napi::Env env, const std::vector<int64_t>& ids) {
  Napi::Int32Array array = Napi::Int32Array::New(env, ids.size());
  std::copy(ids.begin(), ids.end(), array.Data());
  return array;
}

Napi::Object from_step(Napi::Env env, const StepResult& result) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("gradNorm", Napi::Number::New(env, result.grad_norm));
  object.Set("skipped", Napi::Boolean::New(env, result.skipped));
  return object;
}

}  // namespace nlac::binding
