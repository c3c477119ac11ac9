// Functions and classes of the addon as tables. A row is a name and a lambda: its first parameter
// is the environment, or the handle that a method was called on, and the others are the JavaScript
// arguments. Their number is what `signatures()` reports and scripts/check-binding.mjs compares
// with lib/native/addon.ts. Main thread only.
#pragma once

#include <napi.h>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "binding/addon_data.h"
#include "binding/errors.h"

namespace nlac::binding {

template <typename Body>
struct Parameters : Parameters<decltype(&Body::operator())> {};
template <typename Body, typename Result, typename First, typename... Arguments>
struct Parameters<Result (Body::*)(First, Arguments...) const> {
  static_assert((std::is_same_v<Arguments, Napi::Value> && ...), "arguments are Napi::Value");
  using Self = std::remove_reference_t<First>;
  static constexpr int count = sizeof...(Arguments);
};

// Calls `Body` with `first` and the arguments of `info`. What it throws becomes a JavaScript
// exception.
template <typename Body, typename First>
Napi::Value invoke(First&& first, const Napi::CallbackInfo& info) {
  return guarded(info.Env(), [&]() -> Napi::Value {
    return [&]<size_t... i>(std::index_sequence<i...>) -> Napi::Value {
      if constexpr (std::is_void_v<decltype(Body{}(first, info[i]...))>) {
        Body{}(first, info[i]...);
        return info.Env().Undefined();
      } else {
        return Body{}(first, info[i]...);
      }
    }(std::make_index_sequence<Parameters<Body>::count>());
  });
}

struct Function {
  const char* name;
  int arity;
  Napi::Value (*call)(const Napi::CallbackInfo& info);
};

template <typename Body>
constexpr Function function(const char* name, Body) {
  return {name, Parameters<Body>::count,
          [](const Napi::CallbackInfo& info) { return invoke<Body>(info.Env(), info); }};
}

// Adds the functions to the addon's exports and to its signatures.
inline void export_functions(Napi::Env env, Napi::Object exports, std::span<const Function> functions) {
  for (const Function& row : functions) {
    exports.Set(row.name, Napi::Function::New(env, row.call, row.name));
    AddonData::of(env).signatures["Addon"].emplace_back(row.name, row.arity);
  }
}

template <typename Handle>
struct Member {
  const char* name;
  int arity;  // kProperty: it is read, not called
  Napi::Value (*call)(Handle& handle, const Napi::CallbackInfo& info);
};

template <typename Body, typename Handle = typename Parameters<Body>::Self>
constexpr Member<Handle> method(const char* name, Body) {
  return {name, Parameters<Body>::count,
          [](Handle& handle, const Napi::CallbackInfo& info) { return invoke<Body>(handle, info); }};
}

template <typename Body, typename Handle = typename Parameters<Body>::Self>
constexpr Member<Handle> property(const char* name, Body body) {
  static_assert(Parameters<Body>::count == 0);
  return {name, kProperty, method(name, body).call};
}

// Handles are recognized by `Handle::tag`: instanceof is wrong about an object whose prototype was
// set by hand, and would take the memory of one class for another's.
template <typename Handle>
void tag_handle(const Napi::CallbackInfo& info) {
  info.This().As<Napi::Object>().TypeTag(&Handle::tag);
}
template <typename Handle>
bool is_handle(Napi::Value value) {
  return value.IsObject() && value.As<Napi::Object>().CheckTypeTag(&Handle::tag);
}

// Makes a handle of class `made_by` from `given`, which its constructor gets by given_to_handle().
template <typename Given>
Napi::Object make_handle(const Napi::FunctionReference& made_by, Given* given) {
  const Napi::Env env = made_by.Env();
  AddonData::of(env).given = given;
  return made_by.New({Napi::External<Given>::New(env, given)});
}
// JavaScript can call the constructor too, and has externals of other types, e.g. those of sockets.
template <typename Given>
Given* given_to_handle(const Napi::CallbackInfo& info, const char* makers) {
  const void* const expected = std::exchange(AddonData::of(info.Env()).given, nullptr);
  Given* const given =
      info.Length() == 1 && info[0].IsExternal() ? info[0].As<Napi::External<Given>>().Data() : nullptr;
  if (given == nullptr || given != expected)
    throw Napi::TypeError::New(info.Env(), std::string("A handle of this class is made by ") + makers + ".");
  return given;
}

// Reads a property of a handle. Node checks what `this` is for methods, but not for properties.
template <typename Handle>
napi_value read_property(napi_env env, napi_callback_info given) {
  try {
    const Napi::CallbackInfo info(env, given);
    const Napi::Value self = info.This();
    if (!is_handle<Handle>(self)) throw to_js(env, {"ERR_VALUE", "this object is no handle of its class"});
    return Handle::Unwrap(self.As<Napi::Object>())->call(info);
  } catch (const Napi::Error& error) {
    error.ThrowAsJavaScriptException();
    return nullptr;
  }
}

// Makes the class of `Handle`, an ObjectWrap whose `call(info)` is call_member(*this, info).
// `members` must outlive the class.
template <typename Handle>
Napi::Function define_class(Napi::Env env, const char* name, std::span<const Member<Handle>> members) {
  std::vector<Napi::ClassPropertyDescriptor<Handle>> properties;
  for (const Member<Handle>& row : members) {
    void* const data = const_cast<Member<Handle>*>(&row);
    if (row.arity == kProperty) {
      napi_property_descriptor property{};
      property.utf8name = row.name;
      property.getter = read_property<Handle>;
      property.attributes = napi_default;
      property.data = data;
      properties.emplace_back(property);
    } else {
      properties.push_back(Handle::template InstanceMethod<&Handle::call>(row.name, napi_default, data));
    }
    AddonData::of(env).signatures[name].emplace_back(row.name, row.arity);
  }
  return Handle::DefineClass(env, name, properties);
}

template <typename Handle>
Napi::Value call_member(Handle& handle, const Napi::CallbackInfo& info) {
  return static_cast<const Member<Handle>*>(info.Data())->call(handle, info);
}

}  // namespace nlac::binding
