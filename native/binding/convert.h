// Converts JavaScript values to C++ and back. lib/ has validated all values; the checks here (types
// and lengths) only prevent undefined behaviour. Main thread only.
#pragma once

#include <napi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/learner.h"

namespace nlac::binding {

// Reads one object's properties; `where` names it in messages ("requests[3]"). Throws ERR_VALUE.
class Fields {
 public:
  Fields(Napi::Value value, std::string where);

  double number(const char* key) const;
  int64_t integer(const char* key) const;
  bool boolean(const char* key) const;
  std::string string(const char* key) const;
  uint64_t seed(const char* key) const;
  std::vector<int64_t> ids(const char* key) const;
  std::vector<float> floats(const char* key) const;
  std::vector<std::string> strings(const char* key) const;

 private:
  Napi::Value get(const char* key) const;
  std::string name(const char* key) const;
  Napi::Object object_;
  std::string where_;
};

double to_number(Napi::Value value, const std::string& where);
int64_t to_integer(Napi::Value value, const std::string& where);  // a safe integer
bool to_boolean(Napi::Value value, const std::string& where);
std::string to_string(Napi::Value value, const std::string& where);
std::string to_path(Napi::Value value, const std::string& where);  // a string without a null character
uint64_t to_seed(Napi::Value value, const std::string& where);     // a bigint of 64 unsigned bits
Napi::Array to_array(Napi::Value value, const std::string& where);
Napi::Int32Array to_int32_array(Napi::Value value, const std::string& where);
Napi::Float32Array to_float32_array(Napi::Value value, const std::string& where);
std::vector<int64_t> to_ids(Napi::Value value, const std::string& where);  // an Int32Array
WeightSet to_weight_set(Napi::Value value);
Support to_support(Napi::Value value);
AdamWOptions to_adamw_options(const Fields& fields);
Divergence to_divergence(Napi::Value value);
PreferenceLoss to_preference_loss(const Fields& fields);
// "cpu", "cuda" or "cuda:N"; throws ERR_DEVICE if it does not exist.
at::Device to_device(Napi::Value value, const std::string& where);
// "float32", "float64", "bfloat16", "int64" or "int32"; throws ERR_VALUE.
at::ScalarType to_dtype(Napi::Value value, const std::string& where);
std::string dtype_name(at::ScalarType dtype);

// Converts each element of an array by `read(value, "where[i]")`.
template <typename Read>
auto to_vector(Napi::Value value, const std::string& where, Read&& read) {
  const Napi::Array array = to_array(value, where);
  std::vector<decltype(read(value, where))> items;
  items.reserve(array.Length());
  for (uint32_t i = 0; i < array.Length(); ++i)
    items.push_back(read(array.Get(i), where + "[" + std::to_string(i) + "]"));
  return items;
}

// Returns a JavaScript array of `convert(item)` of each item.
template <typename Items, typename Convert>
Napi::Array from_vector(Napi::Env env, const Items& items, Convert&& convert) {
  Napi::Array array = Napi::Array::New(env, items.size());
  for (size_t i = 0; i < items.size(); ++i) array.Set(static_cast<uint32_t>(i), convert(items[i]));
  return array;
}

Napi::Float32Array from_floats(Napi::Env env, const float* data, size_t count);
Napi::Float32Array from_floats(Napi::Env env, const std::vector<float>& values);
Napi::Int32Array from_ints(Napi::Env env, const std::vector<int32_t>& values);
Napi::Int32Array from_ids(Napi::Env env, const std::vector<int64_t>& ids);
Napi::Object from_step(Napi::Env env, const StepResult& result);

}  // namespace nlac::binding
