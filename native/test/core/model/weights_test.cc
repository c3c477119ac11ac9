#include "core/model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/io/gguf.h"
#include "core/io/safetensors.h"
#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

namespace {

const std::string models[] = {"llama", "llama-biased", "qwen2", "qwen3"};

LoadedModel load(const std::string& name, at::ScalarType dtype = at::kFloat) {
  return load_model(fixture("io/" + name), dtype, at::kCPU);
}

// Compares bits; a comparison of floats would treat NaN and -0 differently.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

void check_same(const LoadedModel& a, const LoadedModel& b) {
  const auto left = a.weights.named_views(a.config), right = b.weights.named_views(b.config);
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    CAPTURE(left[i].first);
    CHECK(left[i].first == right[i].first);
    CHECK(same_bits(left[i].second, right[i].second));
  }
}

// Writes a GGUF fixture to `path`, with one tensor changed by change(data, bytes).
template <typename Change>
void write_changed(const std::string& name, const std::string& tensor, const std::string& path,
                   const Change& change) {
  Bytes bytes = read_bytes(fixture("io/" + name));
  const GgufFile file = open_gguf(fixture("io/" + name));
  const auto entry = std::find_if(file.tensors.begin(), file.tensors.end(),
                                  [&](const TensorEntry& one) { return one.name == tensor; });
  REQUIRE(entry != file.tensors.end());
  change(bytes.data() + (entry->data - file.file->data()), entry->bytes);
  write_text(path, std::string(bytes.begin(), bytes.end()));
}

// Copies a model's directory, for the test to break.
void copy_model(const std::string& name, const Scratch& scratch) {
  std::filesystem::copy(fixture("io/" + name), scratch.path());
}

}  // namespace

TEST_CASE("a Hugging Face model loads to the values in its files") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const LoadedModel model = load(name);
    std::map<std::string, at::Tensor> views;
    for (const auto& [key, view] : model.weights.named_views(model.config)) views[key] = view;
    size_t seen = 0;
    for (const SafetensorsFile& file : open_huggingface_weights(fixture("io/" + name))) {
      for (const TensorEntry& entry : file.tensors) {
        CAPTURE(entry.name);
        REQUIRE(views.count(entry.name) == 1);
        at::Tensor stored = at::empty(at::IntArrayRef(entry.shape), at::kFloat);
        dequantize(entry, 0, entry.elements(), stored.data_ptr<float>());
        CHECK(same_bits(views[entry.name], stored));
        ++seen;
      }
    }
    CHECK(seen == views.size());
  }
}

TEST_CASE("a GGUF loads to the same values as the Hugging Face model") {
  for (const std::string& name : models) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(name);
      const LoadedModel a = load(name, dtype), b = load(name + ".gguf", dtype);
      check_same(a, b);
      CHECK(a.config.family == b.config.family);
      CHECK(a.config.head_dim == b.config.head_dim);
      CHECK(a.config.qkv_bias == b.config.qkv_bias);
      CHECK(a.config.output_bias == b.config.output_bias);
      CHECK(a.config.mlp_bias == b.config.mlp_bias);
      CHECK(a.config.tied_embeddings == b.config.tied_embeddings);
      CHECK(a.config.rope.scaling == b.config.rope.scaling);
      CHECK(a.config.rms_norm_eps == b.config.rms_norm_eps);
      CHECK(a.config.rope.theta == b.config.rope.theta);
      CHECK(a.config.rope.factor == b.config.rope.factor);
      CHECK(a.config.rope.low_freq_factor == b.config.rope.low_freq_factor);
      CHECK(a.config.rope.high_freq_factor == b.config.rope.high_freq_factor);
      CHECK(a.config.rope.original_max_positions == b.config.rope.original_max_positions);
      CHECK(a.config.eos_token_ids == b.config.eos_token_ids);
    }
  }
}

TEST_CASE("a GGUF of a newer family loads to the same configuration and values") {
  for (const std::string name : {"gemma3", "olmo3", "smollm3", "qwen3_moe", "ministral3", "qwen3_5",
                                 "qwen3_5_moe", "gpt_oss", "gemma4", "gemma4_moe"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(name);
      const LoadedModel a = load(name, dtype), b = load(name + ".gguf", dtype);
      check_same(a, b);
      CHECK(a.config.to_json("float32") == b.config.to_json("float32"));
      CHECK(a.config == b.config);
    }
  }
}

TEST_CASE("rotary factors of Gemma 4 that are no proportion are refused") {
  const Scratch scratch;
  const float two = 2;
  write_changed(
      "gemma4_moe.gguf", "rope_freqs.weight", scratch / "model.gguf",
      [&](uint8_t* data, size_t bytes) { std::memcpy(data + bytes - sizeof two, &two, sizeof two); });
  CHECK_REFUSED(load_model(scratch / "model.gguf", at::kFloat, at::kCPU), "ERR_MODEL_FORMAT",
                "rope_freqs.weight");
}

TEST_CASE("a GGUF whose decays of a gated delta net are not negative is refused") {
  const Scratch scratch;
  write_changed("qwen3_5.gguf", "blk.0.ssm_a", scratch / "model.gguf",
                [](uint8_t* data, size_t) { data[3] &= 0x7F; });  // the sign of the first value
  CHECK_REFUSED(load_model(scratch / "model.gguf", at::kFloat, at::kCPU), "ERR_MODEL_FORMAT", "blk.0.ssm_a");
}

TEST_CASE("a stack of more experts than the configuration has is refused") {
  const Scratch scratch;
  const Bytes config = read_bytes(fixture("io/qwen3_moe/config.json"));
  write_text(scratch / "config.json", std::string(config.begin(), config.end()));
  write_tensors(scratch / "model.safetensors",
                {{"model.layers.0.mlp.experts.down_proj", at::zeros({int64_t{1} << 40, 0, 32})}});
  CHECK_REFUSED(load_model(scratch.path(), at::kFloat, at::kCPU), "ERR_MODEL_FORMAT",
                "not a stack of experts");
}

TEST_CASE("bfloat16 is float32 rounded to nearest even") {
  for (const std::string name : {"llama", "llama.gguf", "qwen2"}) {
    const LoadedModel wide = load(name), narrow = load(name, at::kBFloat16);
    const auto a = wide.weights.list(), b = narrow.weights.list();
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(same_bits(a[i].to(at::kBFloat16), b[i]));
  }
}

TEST_CASE("a tied head is the embedding, in every copy") {
  const LoadedModel tied = load("qwen2"), untied = load("llama");
  const size_t layers = 2;
  // embedding, per layer: two norms, qkv, its bias, output, gate_up, down; norm
  CHECK(tied.weights.list().size() == 1 + layers * 7 + 1);
  CHECK(untied.weights.list().size() == 1 + layers * 6 + 2);
  for (const Weights& weights :
       {tied.weights, tied.weights.like(at::kFloat, at::kCPU), tied.weights.zeros_like(at::kFloat),
        tied.weights.copy_as(at::kFloat, at::kCPU)}) {
    CHECK(weights.head.is_same(weights.embedding));
  }
  CHECK_FALSE(untied.weights.head.is_same(untied.weights.embedding));
  CHECK_FALSE(untied.weights.copy_as(at::kFloat, at::kCPU).head.is_same(untied.weights.embedding));
}

TEST_CASE("like, zeros_like and copy_as keep shapes and order and share no memory") {
  for (const std::string& name : models) {
    const Weights weights = load(name).weights;
    const auto from = weights.list();
    const auto empty = weights.like(at::kDouble, at::kCPU).list(),
               zero = weights.zeros_like(at::kFloat).list(),
               copy = weights.copy_as(at::kFloat, at::kCPU).list(),
               half = weights.copy_as(at::kBFloat16, at::kCPU).list();
    for (const auto& list : {empty, zero, copy, half}) REQUIRE(list.size() == from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      CHECK(empty[i].sizes() == from[i].sizes());
      CHECK((empty[i].scalar_type() == at::kDouble));
      CHECK(zero[i].sizes() == from[i].sizes());
      CHECK(zero[i].count_nonzero().item<int64_t>() == 0);
      CHECK(same_bits(copy[i], from[i]));
      CHECK(copy[i].data_ptr() != from[i].data_ptr());
      CHECK(same_bits(half[i], from[i].to(at::kBFloat16)));
    }
  }
}

TEST_CASE("a layer's parameters are its tensors, in the same order") {
  for (const std::string& name : models) {
    CAPTURE(name);
    LoadedModel model = load(name);
    for (int64_t l = 0; l < model.config.layers; ++l) {
      LayerWeights& layer = model.weights.layers[static_cast<size_t>(l)];
      std::vector<at::Tensor*> held, described;
      for (at::Tensor* tensor : layer.tensors())
        if (tensor->defined()) held.push_back(tensor);
      for (const Parameter& parameter : layer_parameters(model.config, l, layer)) {
        CHECK(parameter.tensor->defined() == !parameter.shape.empty());
        if (!parameter.tensor->defined()) continue;
        CHECK(parameter.tensor->sizes() == at::IntArrayRef(parameter.shape));
        described.push_back(parameter.tensor);
      }
      CHECK(held == described);
    }
  }
}

TEST_CASE("named views are the fused tensors' own memory and cover each element once") {
  for (const std::string& name : models) {
    CAPTURE(name);
    LoadedModel model = load(name);
    for (const at::Tensor& tensor : model.weights.list()) tensor.zero_();
    std::set<std::string> names;
    for (const auto& [key, view] : model.weights.named_views(model.config)) {
      CHECK(names.insert(key).second);
      view.add_(1);
    }
    for (const at::Tensor& tensor : model.weights.list()) CHECK(tensor.eq(1).all().item<bool>());
  }
}

TEST_CASE("an exported model loads back bit for bit") {
  for (const std::string& name : models) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(name);
      Scratch scratch;
      const LoadedModel model = load(name);
      export_huggingface(scratch / "out", model.config, model.weights, dtype);
      const LoadedModel back = load_model(scratch / "out", dtype, at::kCPU);
      const LoadedModel want = load(name, dtype);
      check_same(back, want);
      CHECK(back.config.to_json("float32") == want.config.to_json("float32"));
      for (const TensorEntry& entry : open_safetensors(scratch / "out/model.safetensors").tensors) {
        CHECK(entry.type == (dtype == at::kFloat ? StoredType::f32 : StoredType::bf16));
      }
    }
  }
  Scratch scratch;
  const LoadedModel model = load("qwen2");
  CHECK_REFUSED(export_huggingface(scratch.path(), model.config, model.weights, at::kHalf), "ERR_VALUE",
                "Half");
  write_text(scratch / "file", "");
  CHECK_REFUSED(export_huggingface(scratch / "file/out", model.config, model.weights, at::kFloat), "ERR_IO",
                "file");
}

TEST_CASE("the text part of a model of text and images is loaded, and the rest is counted") {
  const LoadedModel plain = load_model(fixture("models/gemma3"), at::kFloat, at::kCPU);
  CHECK(plain.skipped == 0);
  const SafetensorsFile file = open_safetensors(fixture("models/gemma3/model.safetensors"));
  const Bytes text = read_bytes(fixture("models/gemma3/config.json"));
  const std::string config = R"({"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3",)"
                             R"("vision_config":{},"text_config":)" +
                             std::string(text.begin(), text.end()) + "}";
  const uint8_t bytes[16] = {};
  // As the hub has them, and as transformers 5 saves them.
  for (const auto& [text_prefix, vision_prefix] :
       {std::pair{"language_model.model.", ""}, {"model.language_model.", "model."}}) {
    Scratch scratch;
    std::vector<TensorEntry> tensors = file.tensors;
    for (TensorEntry& tensor : tensors) tensor.name = text_prefix + tensor.name.substr(6);
    for (const char* name : {"vision_tower.patches.weight", "multi_modal_projector.weight"})
      tensors.push_back({std::string(vision_prefix) + name, StoredType::f32, {4}, bytes, 16});
    write_safetensors(scratch / "model.safetensors", tensors, {});
    write_text(scratch / "config.json", config);
    const LoadedModel nested = load_model(scratch.path(), at::kFloat, at::kCPU);
    CHECK(nested.skipped == 2);
    check_same(nested, plain);
    CHECK(nested.config == plain.config);
    export_huggingface(scratch / "out", nested.config, nested.weights, at::kFloat);
    check_same(load_model(scratch / "out", at::kFloat, at::kCPU), plain);
  }
}

TEST_CASE("generation_config.json adds eos ids") {
  Scratch scratch;
  copy_model("qwen2", scratch);
  write_text(scratch / "generation_config.json", R"({"eos_token_id":[9,5]})");
  CHECK(load_model(scratch.path(), at::kFloat, at::kCPU).config.eos_token_ids == std::vector<int64_t>{5, 9});
  write_text(scratch / "generation_config.json", R"({"eos_token_id":[40]})");
  CHECK_REFUSED(load_model(scratch.path(), at::kFloat, at::kCPU), "ERR_MODEL_FORMAT", "eos_token_id");
}

TEST_CASE("a directory without a model is rejected") {
  Scratch scratch;
  CHECK_REFUSED(load("absent"), "ERR_MODEL_NOT_FOUND", "absent");
  CHECK_REFUSED(load_model(scratch.path(), at::kFloat, at::kCPU), "ERR_IO", "config.json");
  write_text(scratch / "model.bin", "");
  CHECK_REFUSED(load_model(scratch / "model.bin", at::kFloat, at::kCPU), "ERR_MODEL_FORMAT", ".gguf");
  write_text(scratch / "model.gguf", "not a model");
  CHECK_REFUSED(load_model(scratch / "model.gguf", at::kFloat, at::kCPU), "ERR_MODEL_FORMAT", "not a GGUF");
  CHECK_REFUSED(load("qwen2", at::kHalf), "ERR_VALUE", "Half");
}

TEST_CASE("missing, unexpected and misshapen tensors are rejected by name, known buffers are not") {
  Scratch scratch;
  copy_model("qwen2", scratch);
  const SafetensorsFile original = open_safetensors(fixture("io/qwen2/model.safetensors"));
  const std::string path = scratch / "model.safetensors";
  const auto open = [&] { return load_model(scratch.path(), at::kFloat, at::kCPU); };
  const uint8_t bytes[64] = {};

  std::vector<TensorEntry> tensors = original.tensors;
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", StoredType::f32, {4}, bytes, 16});
  tensors.push_back({"lm_head.weight", StoredType::bf16, {1, 1}, bytes, 2});
  write_safetensors(path, tensors, {});
  CHECK(open().config.family == Family::qwen2);

  tensors = original.tensors;
  tensors.push_back({"model.layers.2.input_layernorm.weight", StoredType::f32, {4}, bytes, 16});
  write_safetensors(path, tensors, {});
  CHECK_REFUSED(open(), "ERR_MODEL_FORMAT",
                "\"model.layers.2.input_layernorm.weight\" is not part of the model");

  for (size_t i = 0; i < original.tensors.size(); ++i) {
    const std::string& name = original.tensors[i].name;
    CAPTURE(name);
    tensors = original.tensors;
    tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(i));
    write_safetensors(path, tensors, {});
    CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "tensor \"" + name + "\" is missing");

    tensors = original.tensors;
    tensors[i].shape.push_back(1);  // as many elements, another shape
    write_safetensors(path, tensors, {});
    CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "tensor \"" + name + "\" has shape");
  }

  tensors = original.tensors;
  tensors[0].type = StoredType::i32;
  tensors[0].shape.back() /= 2;
  write_safetensors(path, tensors, {});
  CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "has shape");
}

TEST_CASE("a configuration that asks for more than the files hold takes no memory") {
  Scratch scratch;
  copy_model("qwen2", scratch);
  const Bytes bytes = read_bytes(scratch / "config.json");
  std::string json(bytes.begin(), bytes.end());
  const std::string size = "\"vocab_size\": 40";
  REQUIRE(contains(json, size));
  json.replace(json.find(size), size.size(), "\"vocab_size\": 16777216");
  const std::string width = "\"hidden_size\": 32";
  REQUIRE(contains(json, width));
  json.replace(json.find(width), width.size(), "\"hidden_size\": 1048576");
  write_text(scratch / "config.json", json);
  CHECK_REFUSED(load_model(scratch.path(), at::kFloat, at::kCPU), "ERR_MODEL_FORMAT",
                "needs [16777216, 1048576]");
}

TEST_CASE("integer tensors are rejected as weights") {
  Scratch scratch;
  copy_model("qwen2", scratch);
  std::vector<TensorEntry> tensors = open_safetensors(fixture("io/qwen2/model.safetensors")).tensors;
  const SafetensorsFile original = open_safetensors(fixture("io/qwen2/model.safetensors"));
  tensors = original.tensors;
  std::vector<uint8_t> zeros;
  for (TensorEntry& tensor : tensors) {
    if (tensor.name != "model.norm.weight") continue;
    tensor.type = StoredType::u8;
    tensor.bytes = static_cast<size_t>(tensor.elements());
    zeros.resize(tensor.bytes);
    tensor.data = zeros.data();
  }
  write_safetensors(scratch / "model.safetensors", tensors, {});
  CHECK_REFUSED(load_model(scratch.path(), at::kFloat, at::kCPU), "ERR_MODEL_FORMAT", "holds U8");
}

TEST_CASE("rotary factors other than Llama 3's are rejected") {
  Scratch scratch;
  const std::string path = scratch / "model.gguf";
  const GgufFile original = open_gguf(fixture("io/llama.gguf"));
  size_t at = 0;
  for (const TensorEntry& tensor : original.tensors) {
    if (tensor.name == "rope_freqs.weight") at = static_cast<size_t>(tensor.data - original.file->data());
  }
  REQUIRE(at > 0);
  const auto open_with = [&](const std::vector<float>& factors) {
    Bytes bytes(original.file->data(), original.file->data() + original.file->size());
    std::memcpy(bytes.data() + at, factors.data(), factors.size() * 4);
    write_text(path, std::string(bytes.begin(), bytes.end()));
    return load_model(path, at::kFloat, at::kCPU).config;
  };
  CHECK(open_with({1, 1, 1, 1}).rope.scaling == RopeScaling::none);
  CHECK_REFUSED(open_with({1, 2, 4, 8}), "ERR_MODEL_FORMAT", "not Llama 3's");
  CHECK_REFUSED(open_with({1, 1, NAN, 32}), "ERR_MODEL_FORMAT", "not Llama 3's");
  CHECK_REFUSED(open_with({NAN, NAN, NAN, NAN}), "ERR_MODEL_FORMAT", "not Llama 3's");
  CHECK_REFUSED(open_with({0, 0, 0, 0}), "ERR_MODEL_FORMAT", "not Llama 3's");
}

TEST_CASE("a checksum depends on every value, not on how a model is split into files") {
  const uint64_t sum = model_checksum(fixture("io/llama"));
  const Scratch scratch;
  const std::string path = scratch / "model.safetensors";
  const auto shards = open_huggingface_weights(fixture("io/llama"));
  REQUIRE(shards.size() == 3);
  std::vector<TensorEntry> entries;
  for (const SafetensorsFile& shard : shards)
    entries.insert(entries.end(), shard.tensors.begin(), shard.tensors.end());
  write_safetensors(path, entries, {});
  CHECK(model_checksum(scratch.path()) == sum);

  Bytes bytes = read_bytes(path);
  bytes.back() ^= 1;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  CHECK(model_checksum(scratch.path()) != sum);
}
