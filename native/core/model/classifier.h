// Writes a model with a value head as a sequence classifier of transformers.
#pragma once

#include <string>

#include "core/model/weights.h"

namespace nlac {

// Writes config.json and model.safetensors (`dtype`) of a classifier with one label into
// `directory`. Its score.weight is the value head's weight. The head's bias is omitted, because the
// classifier has none, and so is the vocabulary matrix. transformers takes the score at a text's
// last token that is not `pad_token_id` (-1: none).
void export_classifier(const std::string& directory, ModelConfig config, const Weights& weights,
                       at::ScalarType dtype, int64_t pad_token_id);

}  // namespace nlac
