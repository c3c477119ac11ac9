// Used by the fuzzers, and by the mutation test that runs without libFuzzer. Each exercise_… reads
// an input; if it was accepted, it checks the reader's guarantees and uses the result. A refusal is
// an nlac::Error; any other exception, a broken guarantee (abort) or a sanitizer's finding is a
// bug.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/generate/grammar.h"
#include "core/generate/id_mask.h"
#include "core/io/checksum.h"
#include "core/io/gguf.h"
#include "core/io/safetensors.h"
#include "core/io/stored_types.h"
#include "core/model/config.h"
#include "core/replay/sum_tree.h"

namespace nlac::fuzz {

inline void promise(bool kept, const char* what) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// Whether `use` finished; false when it refused its input with an error of ours.
template <typename Use>
bool accepted(Use use) {
  try {
    use();
    return true;
  } catch (const Error& error) {
    promise(std::string_view(error.code()).starts_with("ERR_"), "an error has a code");
    const std::string_view text = error.what();
    promise(!text.empty() && text.size() < 4096, "an error has a message of sane length");
    return false;
  }
}

// Tensors lie inside the file and beside each other, and hold what their shapes say.
inline void check_tensors(const uint8_t* data, size_t size, const std::vector<TensorEntry>& tensors) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& tensor : tensors) {
    promise(tensor.data >= data && tensor.data <= data + size, "a tensor starts inside the file");
    promise(tensor.bytes <= static_cast<size_t>(data + size - tensor.data), "a tensor ends inside the file");
    promise(tensor.elements() >= 0, "a tensor's size is not negative");
    promise(static_cast<uint64_t>(tensor.elements()) <= 2 * tensor.bytes,
            "a value takes half a byte or more");
    if (tensor.bytes > 0) order.push_back(&tensor);

    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    accepted([&] { dequantize(tensor, 0, tensor.elements(), values.data()); });
    if (tensor.elements() > 32) {
      accepted([&] { dequantize(tensor, 32, tensor.elements() - 33, values.data()); });
    }
    promise(!accepted([&] { dequantize(tensor, 0, tensor.elements() + 1, values.data()); }),
            "reading past a tensor is refused");
  }
  std::sort(order.begin(), order.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->data < b->data; });
  for (size_t i = 1; i < order.size(); ++i) {
    promise(order[i - 1]->data + order[i - 1]->bytes <= order[i]->data, "tensors do not overlap");
  }
}

// An accepted configuration is one that can be written and read again.
inline void check_config(const ModelConfig& config) {
  promise(config.heads > 0 && config.kv_heads > 0 && config.heads % config.kv_heads == 0, "heads divide");
  promise(config.head_dim > 0 && config.head_dim % 2 == 0, "the head dimension is even");
  promise(config.hidden_size > 0 && config.layers > 0 && config.vocab_size > 0, "sizes are positive");
  const std::string json = config.to_json("float32");
  promise(accepted([&] {
            promise(ModelConfig::from_json(json).to_json("float32") == json, "a configuration survives JSON");
          }),
          "a written configuration is read");
}

inline void exercise_safetensors(const uint8_t* data, size_t size) {
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  if (accepted([&] { parse_safetensors(data, size, "fuzz", tensors, metadata); })) {
    check_tensors(data, size, tensors);
  }
}

inline void exercise_gguf(const uint8_t* data, size_t size) {
  std::vector<TensorEntry> tensors;
  GgufMetadata metadata;
  if (!accepted([&] { parse_gguf(data, size, "fuzz", metadata, tensors); })) return;
  check_tensors(data, size, tensors);
  for (const bool has_output : {false, true}) {
    ModelConfig config;
    // Some are complete, and can be written, only with what the tensors show.
    if (accepted([&] {
          config = ModelConfig::from_gguf(metadata, has_output);
          config.to_json("float32");
        }))
      check_config(config);
  }
}

inline void exercise_config(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  ModelConfig config;
  if (accepted([&] { config = ModelConfig::from_json(text); })) check_config(config);
}

// model.safetensors.index.json.
inline void exercise_index(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::map<std::string, std::set<std::string>> shards;
  if (!accepted([&] { shards = parse_weight_index(text, "fuzz"); })) return;
  promise(!shards.empty(), "an index names a shard");
  for (const auto& [shard, tensors] : shards) {
    promise(shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos &&
                shard.ends_with(".safetensors"),
            "a shard is a file of the directory");
    promise(!tensors.empty(), "a shard has tensors");
  }
}

// Values of every stored type: the first byte chooses the type, the others are the tensor's.
inline void exercise_values(const uint8_t* data, size_t size) {
  if (size == 0) return;
  constexpr int types = static_cast<int>(StoredType::mxfp4) + 1;
  const auto type = static_cast<StoredType>(data[0] % types);
  const BlockSize block = block_size(type);
  const int64_t blocks = static_cast<int64_t>(size - 1) / block.bytes, count = blocks * block.values;
  // A copy, so that the sanitizer knows its end.
  const std::vector<uint8_t> bytes(data + 1, data + 1 + blocks * block.bytes);
  const TensorEntry tensor{"fuzz", type, {count}, bytes.data(), bytes.size()};
  std::vector<float> whole(static_cast<size_t>(count)), part(whole.size());
  if (!accepted([&] { dequantize(tensor, 0, count, whole.data()); })) return;
  for (int64_t first = 0; first < count; first += block.values) {
    const int64_t length = std::min(count - first, 1 + first % 300);
    dequantize(tensor, first, length, part.data());
    promise(std::memcmp(part.data(), whole.data() + first, static_cast<size_t>(length) * sizeof(float)) == 0,
            "a part has the values of the whole");
  }
}

// The file of a priority tree. Its checksum is corrected, because it is against damage only.
inline void exercise_sampler(const uint8_t* data, size_t size) {
  accepted([&] { parse_tree(data, size, "fuzz"); });
  if (size < sizeof(uint64_t)) return;
  std::vector<uint8_t> file(data, data + size);
  Checksum checksum;
  checksum.add(file.data(), size - sizeof(uint64_t));
  const uint64_t sum = checksum.value();
  std::memcpy(file.data() + size - sizeof(sum), &sum, sizeof(sum));
  accepted([&] {
    TreeState state = parse_tree(file.data(), file.size(), "fuzz");
    const int64_t capacity = state.options.capacity;
    if (capacity > 1 << 16) return;  // slow to use, but not to read
    for (int64_t i = 0; i < state.priorities.size(); ++i)
      promise(std::isfinite(state.priorities[i]) && state.priorities[i] >= 0 &&
                  (i < capacity || state.priorities[i] == 0),
              "priorities are finite, 0 or more, and 0 past the last leaf");
    SumTree tree(std::move(state));
    const double total = tree.total();
    promise(std::isfinite(total) && total >= 0, "the total is finite");
    if (total == 0) return;
    int32_t drawn[8];
    float probabilities[8], weights[8], priority = 0;
    for (const bool stratified : {false, true}) {
      tree.sample(8, stratified, drawn, probabilities, weights);
      for (int i = 0; i < 8; ++i) {
        promise(drawn[i] >= 0 && drawn[i] < capacity, "a leaf of the tree is drawn");
        tree.get(&drawn[i], &priority, 1);
        promise(priority > 0, "no leaf of priority 0 is drawn");
        promise(probabilities[i] >= 0 && probabilities[i] <= 1 && weights[i] >= 0 && weights[i] <= 1,
                "probabilities and weights lie between 0 and 1");
      }
    }
  });
}

// Follows a compiled grammar for some tokens; `choices` decides which.
inline void follow(std::shared_ptr<const Grammar> grammar, const std::vector<std::string>& tokens,
                   int64_t stop, std::span<const uint8_t> choices) {
  const auto vocab = static_cast<int64_t>(tokens.size());
  GrammarMatcher matcher(std::move(grammar), {stop});
  const std::vector<int64_t> forbidden = choices.size() % 2 == 0 ? std::vector<int64_t>{} : std::vector{stop};
  for (size_t step = 0; step < 24; ++step) {
    const std::span<const uint32_t> mask = matcher.allowed(forbidden);
    if (mask.empty()) return;
    promise(static_cast<int64_t>(mask.size()) == mask_words(vocab), "the mask has the vocabulary's length");
    std::vector<int64_t> next;
    for (int64_t id = 0; id < 32 * mask_words(vocab); ++id)
      if (in_mask(mask.data(), id)) next.push_back(id);
    promise(next.back() < vocab, "ids of the mask are ids of the vocabulary");
    for (const int64_t id : next)
      promise(id == stop || !tokens[static_cast<size_t>(id)].empty(), "an allowed id has bytes");
    if (forbidden.empty())
      promise(in_mask(mask.data(), stop) == matcher.complete(), "a text ends where the grammar does");
    const size_t choice = choices.empty() ? step : choices[step % choices.size()] + step;
    const int64_t id = next[choice % next.size()];
    promise(matcher.accept(id), "an allowed id is accepted");
    if (id == stop) return;
  }
}

// A grammar in a small vocabulary. The first byte chooses between a whole grammar as the binding
// takes it, and the text of a regular expression, an EBNF, a schema or a literal.
inline void exercise_grammar(const uint8_t* data, size_t size) {
  static const std::vector<std::string> tokens = {"",   "a",  "b",    "ab", "0",  "1",    "-",    ".",
                                                  "\"", "\\", "{",    "}",  "[",  "]",    ":",    ": ",
                                                  ",",  ", ", "true", " ",  "\n", "\xc3", "\xa9", "x"};
  static GrammarCompiler compiler(tokens);
  if (size == 0) return;
  static constexpr const char* kinds[] = {nullptr, "regex", "ebnf", "jsonSchema", "literal"};
  const char* const kind = kinds[data[0] % std::size(kinds)];
  std::string grammar(reinterpret_cast<const char*>(data + 1), size - 1);
  // Texts from JavaScript are UTF-8.
  if (kind != nullptr)
    grammar = nlohmann::json{{kind, grammar}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  accepted([&] { follow(compiler.compile(grammar).get(), tokens, 0, {data, size}); });
}

// Bytes of tokens: each of the input's lines is a token, after an empty one. Some may be equal, or
// not UTF-8.
inline void exercise_vocabulary(const uint8_t* data, size_t size) {
  std::vector<std::string> tokens(1);
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      tokens.emplace_back();
    } else {
      tokens.back() += static_cast<char>(data[i]);
    }
  }
  tokens.insert(tokens.begin(), "");
  static constexpr const char* grammars[] = {"{\"json\": true}", "{\"regex\": \"[^a]*(b|cd)\"}",
                                             "{\"literal\": \"a\u00e9\"}"};
  const std::string grammar = grammars[size % std::size(grammars)];
  GrammarCompiler compiler(tokens);
  accepted([&] { follow(compiler.compile(grammar).get(), tokens, 0, {data, size}); });
}

}  // namespace nlac::fuzz
