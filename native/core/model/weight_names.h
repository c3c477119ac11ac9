// Names of the heads' tensors in model files.
#pragma once

#include <string_view>

namespace nlac {

inline constexpr const char* value_name = "value_head.weight";
inline constexpr const char* value_bias_name = "value_head.bias";
inline constexpr std::string_view q_prefix = "q_heads.";

}  // namespace nlac
