#include "core/model/parameters.h"

namespace nlac {

at::Tensor rows_of(const Parameter& parameter, const at::Tensor& whole, size_t i, int64_t begin) {
  if (parameter.rows.size() == 1 && whole.size(0) == parameter.rows[0].second)
    return parameter.transposed ? whole.transpose(1, 2) : whole;
  const at::Tensor rows = whole.dim() > 2 ? whole.flatten(0, -2) : whole;
  return rows.narrow(0, begin, parameter.rows[i].second);
}

int64_t matrices_of(const Parameter& parameter) {
  return parameter.shape.size() > 2 ? parameter.shape[0] : 1;
}

std::string projection_name(const std::string& parameter_name) {
  const size_t end = parameter_name.rfind('.');
  const size_t begin = parameter_name.rfind('.', end - 1) + 1;
  return parameter_name.substr(begin, end - begin);
}

}  // namespace nlac
