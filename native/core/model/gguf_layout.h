// How llama.cpp's converter lays a model's parameters out in a GGUF file: their names, the order of
// their rows and columns, and their values. Needs no torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/config.h"

namespace nlac {

// How a file's tensor differs from the parameter.
struct Stored {
  // The file's row (of a matrix) or value (of a vector), and its column, for each of the
  // parameter's; empty: they lie in order.
  std::vector<int64_t> rows, columns;
  float shift = 0;                    // is added to the parameter
  bool negative_exponential = false;  // the file has -exp(parameter)
  // Of gpt-oss's experts, whose matrices a Hugging Face file has transposed: a GGUF file has the rows of
  // gate, and those of up in a tensor of the name `up` (empty: it is no matrix of both).
  bool of_stack = false;
  std::string up = {};

  // Whether more than the order of the rows differs.
  bool changes_values() const { return shift != 0 || negative_exponential || !columns.empty(); }
};

// GGUF's name of a Hugging Face parameter. A matrix of an expert has the name of its stack, with
// the expert's number before the ending: "blk.0.ffn_up_exps.3.weight".
std::string gguf_name(const std::string& name, const ModelConfig& config);

Stored gguf_form(const std::string& name, const ModelConfig& config);

}  // namespace nlac
