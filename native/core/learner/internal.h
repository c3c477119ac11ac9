// Shared by the learner's sources. Not for others.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/learner.h"

namespace nlac {

// One text of a loss call. `teacher` is null if θ̄ is not used.
struct Learner::Text {
  const std::vector<int64_t>* student;
  const std::vector<int64_t>* teacher;
  const std::vector<int64_t>* response;
  std::vector<float> weights;  // [response tokens]
  at::Tensor teacher_hidden =
      {};                      // [response tokens, hidden]; undefined: to be computed. Requires equal weights
  bool with_previous = false;  // it must be in the micro-batch of the text before it
  // Of a text whose loss has one weight, not one per token: its part of that weight's absolute value.
  std::optional<double> loss_weight = {};

  bool used() const {
    return std::any_of(weights.begin(), weights.end(), [](float weight) { return weight != 0; });
  }
};

// The rows of a micro-batch that predict a token whose weight is not 0.
struct Learner::Rows {
  struct Place {
    size_t text, token;
  };
  std::vector<Place> places;          // [rows], text and token of each
  at::Tensor hidden, teacher_hidden;  // [rows, hidden]; the second is undefined without a teacher
  at::Tensor targets;                 // [rows] i64, the tokens
  at::Tensor row_weights;             // [rows] f32
  bool with_gradient = false;
  at::Tensor head_gradient;  // [vocab, hidden] f32, to add into; undefined without gradient

  // [rows] f32: of(text)[token] of each.
  template <typename Of>
  at::Tensor gather(Of of) const {
    std::vector<float> values;
    for (const auto& [text, token] : places) values.push_back(of(text)[token]);
    return at::tensor(values, at::kFloat).to(hidden.device());
  }
  // of(text)[token] ← values, [rows]; with `width`, that many of each token ← values, [rows,
  // width].
  template <typename Of>
  void scatter(const at::Tensor& values, Of of, int64_t width = 1) const {
    using Value = std::decay_t<decltype(of(0)[0])>;
    const at::Tensor host = values.to(at::kCPU, c10::CppTypeToScalarType<Value>::value).contiguous();
    const Value* value = host.const_data_ptr<Value>();
    for (const auto& [text, token] : places) {
      std::copy_n(value, width, of(text) + static_cast<int64_t>(token) * width);
      value += width;
    }
  }
};

namespace learner {

using Ids = std::vector<int64_t>;

// Runs `body` without autograd. Converts torch's out-of-memory exceptions to ERR_OUT_OF_MEMORY.
template <typename Body>
auto guarded(Body body) {
  at::NoGradGuard no_grad;
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    fail("ERR_OUT_OF_MEMORY", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    // The CPU allocator throws the base class.
    const std::string what = error.what_without_backtrace();
    if (what.find("can't allocate memory") == std::string::npos &&
        what.find("not enough memory") == std::string::npos)
      throw;
    fail("ERR_OUT_OF_MEMORY", what);
  } catch (const std::bad_alloc&) {
    fail("ERR_OUT_OF_MEMORY", "the host is out of memory");
  }
}

// Where a model is loaded. With sharding 3 a device may have no memory for all masters.
inline at::Device loading_device(const LearnerOptions& options) {
  return options.ranks && options.sharding >= 3 && !options.adapter ? at::Device(at::kCPU) : options.device;
}

template <typename... Where>
void check_ids(const ModelConfig& config, const Ids& ids, const Where&... where) {
  for (int64_t id : ids) {
    NLAC_REQUIRE(id >= 0 && id < config.vocab_size, "ERR_VALUE", where..., "token id ", id,
                 " is outside the vocabulary of ", config.vocab_size);
  }
}

void check_text(const ModelConfig& config, size_t index, const char* name, const Ids& context,
                const Ids& response);
// Returns one weight for each of `tokens`, given one for all or one each.
std::vector<float> spread_weights(size_t index, const std::vector<float>& weights, size_t tokens);
// Checks a list that needs a finite value for each token of nonzero weight.
void check_list(size_t index, const char* name, const std::vector<float>& list,
                const std::vector<float>& weights);
void check_temperature(double temperature);
void check_at_least_0(const char* what, double value);
void check_options(const LearnerOptions& options);

inline at::Tensor on_device(const Ids& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

// Parameters are loaded as float32 masters, a base in the learner's dtype.
inline at::ScalarType loaded_type(const LearnerOptions& options) {
  return options.adapter ? options.dtype : at::kFloat;
}
std::string checksum_of(const std::string& model);

}  // namespace learner

template <typename Body>
auto Learner::scored(const Scoring& scoring, Body body) {
  return learner::guarded([&] {
    entered_ = false;
    try {
      return body();
    } catch (...) {
      take_part(scoring);
      throw;
    }
  });
}

}  // namespace nlac
