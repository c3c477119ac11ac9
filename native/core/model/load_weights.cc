// Reads models from Hugging Face directories and GGUF files.
#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/io/checksum.h"
#include "core/io/gguf.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/model/fill_parameter.h"
#include "core/model/gguf_layout.h"
#include "core/model/weight_names.h"
#include "core/model/weights.h"

namespace nlac {
namespace {

constexpr const char* format_error = "ERR_MODEL_FORMAT";

// The tensors of a file or of all shards, by name. Those left at the end are unexpected.
class Source {
 public:
  explicit Source(std::string path) : path_(std::move(path)) {}

  void add(const TensorEntry& entry) {
    NLAC_REQUIRE(entries_.emplace(entry.name, &entry).second, format_error, path_, ": tensor ",
                 printable(entry.name), " appears twice");
  }
  const TensorEntry* find(const std::string& name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : found->second;
  }
  void drop(const std::string& name) { entries_.erase(name); }
  // Returns the number of dropped tensors.
  template <typename Test>
  size_t drop_if(Test test) {
    return std::erase_if(entries_, [&](const auto& item) { return test(std::string_view(item.first)); });
  }

  void require(const TensorEntry& entry, bool supported) const {
    NLAC_REQUIRE(supported, format_error, path_, ": tensor ", printable(entry.name), " has the shape ",
                 at::IntArrayRef(entry.shape), ", which is not a stack of experts");
  }
  // Returns where the parameter of that name and shape is, and removes it from the unexpected tensors.
  StoredPlace place(const std::string& name, at::IntArrayRef shape, const Stored& form) {
    if (form.of_stack) {
      std::vector<int64_t> rows_first = shape.vec();
      if (shape.size() == 3) std::swap(rows_first[1], rows_first[2]);
      if (form.up.empty()) return {&take(name, rows_first)};
      rows_first[1] /= 2;
      return {&take(name, rows_first), nullptr, &take(form.up, rows_first)};
    }
    const std::string blocks = name + "_blocks", scales = name + "_scales";
    if (find(name) != nullptr || find(blocks) == nullptr || shape.size() != 3) return {&take(name, shape)};
    const int64_t count = shape[1] / mx_values;  // files have the columns last
    const StoredPlace packed{&take(blocks, {shape[0], shape[2], count, mx_bytes}),
                             &take(scales, {shape[0], shape[2], count})};
    for (const TensorEntry* entry : {packed.entry, packed.scales})
      NLAC_REQUIRE(entry->type == StoredType::u8 && shape[1] % mx_values == 0, format_error, path_,
                   ": tensor ", printable(entry->name), " is not MXFP4 of ", shape[1], " columns");
    return packed;
  }
  // Returns the tensor of that name and shape, and removes it from the unexpected ones.
  const TensorEntry& take(const std::string& name, at::IntArrayRef shape) {
    const TensorEntry* entry = find(name);
    NLAC_REQUIRE(entry != nullptr, format_error, path_, ": tensor ", printable(name), " is missing");
    NLAC_REQUIRE(shape == at::IntArrayRef(entry->shape), format_error, path_, ": tensor ", printable(name),
                 " has shape ", at::IntArrayRef(entry->shape), " where the configuration needs ", shape);
    drop(name);
    return *entry;
  }

  void require_empty() const {
    NLAC_REQUIRE(entries_.empty(), format_error, path_, ": tensor ", printable(entries_.begin()->first),
                 " is not part of the model that the configuration describes (", entries_.size(), " such)");
  }

 private:
  std::string path_;
  std::map<std::string, const TensorEntry*> entries_;
};

// Splits the stack `entry` [count, parts · rows, width] into one entry for each matrix, named by
// name_of(expert, part). Their shapes are checked where they are taken.
template <typename NameOf>
void split_stack(const TensorEntry& entry, const Source& source, int64_t count, int64_t parts, NameOf name_of,
                 std::list<TensorEntry>& split) {
  source.require(entry, entry.shape.size() == 3 && entry.shape[0] == count && entry.shape[1] % parts == 0);
  const int64_t matrices = count * parts;
  const size_t bytes = entry.bytes / static_cast<size_t>(matrices);
  for (int64_t i = 0; i < matrices; ++i)
    split.push_back({name_of(i / parts, i % parts),
                     entry.type,
                     {entry.shape[1] / parts, entry.shape[2]},
                     entry.data + static_cast<size_t>(i) * bytes,
                     bytes});
}

// Splits stacks of experts' matrices, experts.gate_up_proj [experts, 2 n, hidden] and .down_proj
// [experts, hidden, n], which transformers 5 can write. The entries live in `split`.
void split_experts(const std::vector<SafetensorsFile>& files, const Source& source, int64_t count,
                   std::list<TensorEntry>& split) {
  for (const SafetensorsFile& file : files)
    for (const TensorEntry& entry : file.tensors) {
      const bool gate_up = entry.name.ends_with(".experts.gate_up_proj");
      if (!gate_up && !entry.name.ends_with(".experts.down_proj")) continue;
      const std::string prefix = entry.name.substr(0, entry.name.rfind('.') + 1);
      split_stack(
          entry, source, count, gate_up ? 2 : 1,
          [&](int64_t expert, int64_t part) {
            const char* const matrix = !gate_up ? ".down_proj" : part == 0 ? ".gate_proj" : ".up_proj";
            return prefix + std::to_string(expert) + matrix + ".weight";
          },
          split);
    }
}

// Reads the model that `config` describes. `file_name` maps a Hugging Face name to the file's,
// `stored` says how the file's tensor differs from the parameter.
template <typename FileName, typename StoredAs>
Weights read_weights(const ModelConfig& config, Source& source, at::ScalarType dtype, at::Device device,
                     Heads heads, FileName file_name, StoredAs stored) {
  NLAC_REQUIRE(dtype == at::kFloat || dtype == at::kBFloat16, "ERR_VALUE",
               "weights load as float32 or bfloat16, not ", c10::toString(dtype));
  // All tensors are looked up before memory is allocated, so that a configuration cannot request
  // more than the file holds. The meta device has shapes only.
  std::vector<StoredPlace> places;
  for (const auto& [name, shape_only] :
       allocate_weights(config, dtype, at::kMeta, heads).named_views(config)) {
    places.push_back(source.place(file_name(name), shape_only.sizes(), stored(name)));
  }
  source.require_empty();

  const Weights weights = allocate_weights(config, dtype, device, heads);
  size_t next = 0;
  for (const auto& [name, view] : weights.named_views(config)) {
    const StoredPlace& place = places[next++];
    const TensorEntry& entry = *place.entry;
    if (place.scales != nullptr) {
      const at::Tensor stack = view.transpose(1, 2);
      const at::Tensor staged =
          stack.is_cpu() ? stack : at::empty(stack.sizes(), stack.options().device(at::kCPU));
      fill_mxfp4(entry, *place.scales, staged);
      if (!stack.is_cpu()) stack.copy_(staged);
      continue;
    }
    const Stored form = stored(name);
    if (form.of_stack) {
      fill_stack(place, view);
      continue;
    }
    if (view.is_cpu() && view.is_contiguous() && !form.changes_values()) {
      fill(entry, form.rows, view);
      continue;
    }
    // Changes are undone before rounding: 1 + weight has fewer bits for the weight.
    const auto options = view.options().device(at::kCPU);
    at::Tensor staged = at::empty(view.sizes(), form.changes_values() ? options.dtype(at::kFloat) : options);
    fill(entry, form.rows, staged);
    if (form.shift != 0) staged.sub_(form.shift);
    if (form.negative_exponential) {
      NLAC_REQUIRE(staged.lt(0).all().item<bool>(), format_error, "tensor ", printable(entry.name),
                   " has values that are not negative");
      staged = staged.to(at::kDouble).neg_().log_();
    }
    if (!form.columns.empty()) staged = staged.index_select(1, at::tensor(form.columns, at::kLong));
    view.copy_(staged);
  }
  return weights;
}

std::string read_text(const std::string& path) {
  const auto file = MappedFile::open(path);
  NLAC_REQUIRE(file->size() <= size_t{10} << 20, format_error, path, ": too large for a configuration");
  return {reinterpret_cast<const char*>(file->data()), file->size()};
}

// --- Hugging Face --------------------------------------------------------------------------------

// Instruction-tuned models end a turn with tokens that only generation_config.json lists.
void add_generation_eos(const std::string& path, ModelConfig& config) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  const nlohmann::json json = parse_json(read_text(path), path);
  NLAC_REQUIRE(json.is_object(), format_error, path, ": not a JSON object");
  const auto eos = json.find("eos_token_id");
  if (eos == json.end() || eos->is_null()) return;
  const auto list = eos->is_array() ? *eos : nlohmann::json::array({*eos});
  for (const auto& id : list) {
    NLAC_REQUIRE(id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(config.vocab_size),
                 format_error, path, ": eos_token_id is ", printable(eos->dump()),
                 ", not ids of the vocabulary");
    const auto value = id.get<int64_t>();
    auto& ids = config.eos_token_ids;
    if (std::find(ids.begin(), ids.end(), value) == ids.end()) ids.push_back(value);
  }
}

// Where a model of text and images has its text model.
enum class Nesting { none, outer, inner };  // NAME, language_model.NAME, model.language_model.REST
Nesting nesting_of(const Source& source) {
  if (source.find("language_model.model.embed_tokens.weight") != nullptr) return Nesting::outer;
  if (source.find("model.language_model.embed_tokens.weight") != nullptr) return Nesting::inner;
  return Nesting::none;
}
std::string nested_name(Nesting nesting, const std::string& name) {
  if (nesting == Nesting::outer) return "language_model." + name;
  if (nesting == Nesting::inner && name.starts_with("model."))
    return "model.language_model." + name.substr(6);
  return name;
}
// Whether a file's tensor is of another part of the model, like its vision tower or the layers that
// predict further tokens.
bool of_another_part(Nesting nesting, std::string_view name) {
  if (name.starts_with("mtp.")) return true;
  if (nesting == Nesting::outer) return !name.starts_with("language_model.");
  return nesting == Nesting::inner && name.starts_with("model.") &&
         !name.starts_with("model.language_model.");
}

LoadedModel load_huggingface(const std::string& directory, at::ScalarType dtype, at::Device device,
                             Heads heads) {
  const std::filesystem::path root(directory);
  LoadedModel model;
  model.config = ModelConfig::from_json(read_text((root / "config.json").string()));
  add_generation_eos((root / "generation_config.json").string(), model.config);

  const std::vector<SafetensorsFile> files = open_huggingface_weights(directory);
  Source source(directory);
  for (const SafetensorsFile& file : files) {
    for (const TensorEntry& tensor : file.tensors) source.add(tensor);
  }
  std::list<TensorEntry> experts;
  if (model.config.experts.count > 0 && !model.config.experts.clamped())
    split_experts(files, source, model.config.experts.count, experts);
  for (const TensorEntry& tensor : experts) source.add(tensor);
  if (!experts.empty())
    source.drop_if([](std::string_view name) {
      return name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj");
    });
  source.drop_if([](std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); });
  const Nesting nesting = nesting_of(source);
  model.skipped = static_cast<int64_t>(
      source.drop_if([&](std::string_view name) { return of_another_part(nesting, name); }));
  if (model.config.tied_embeddings) source.drop(nested_name(nesting, "lm_head.weight"));
  // Published files have projections that a layer with borrowed keys does not use.
  for (int64_t l = 0; l < model.config.layers; ++l) {
    if (model.config.kind(l).keys != Keys::borrowed) continue;
    for (const char* name : {"k_proj.weight", "v_proj.weight", "k_norm.weight", "k_proj.bias", "v_proj.bias"})
      source.drop(nested_name(nesting, "model.layers." + std::to_string(l) + ".self_attn." + name));
  }
  if (heads != Heads::value) {
    source.drop(value_name);
    source.drop(value_bias_name);
  }
  if (heads != Heads::q) source.drop_if([](std::string_view name) { return name.starts_with(q_prefix); });
  if (source.find(heads == Heads::q ? std::string(q_prefix) + "0.advantage" : value_name) == nullptr) {
    heads = Heads::none;
  }

  model.weights = read_weights(
      model.config, source, dtype, device, heads,
      [&](const std::string& name) { return nested_name(nesting, name); },
      [](const std::string&) { return Stored{}; });
  return model;
}

// --- GGUF ----------------------------------------------------------------------------------------

// Splits ffn_gate_exps, ffn_up_exps [experts, n, hidden], ffn_down_exps [experts, hidden, n] and
// ffn_gate_up_exps [experts, 2 n, hidden]. The entries live in `split`.
void split_gguf_experts(const GgufFile& file, Source& source, int64_t count, std::list<TensorEntry>& split) {
  constexpr std::string_view ending = "_exps.weight";
  for (const TensorEntry& entry : file.tensors) {
    if (!entry.name.ends_with(ending)) continue;
    const std::string stack = entry.name.substr(0, entry.name.size() - std::string_view(".weight").size());
    const size_t fused = stack.rfind("ffn_gate_up_exps");
    split_stack(
        entry, source, count, fused == std::string::npos ? 1 : 2,
        [&](int64_t expert, int64_t part) {
          const std::string of = fused == std::string::npos
                                     ? stack
                                     : stack.substr(0, fused) + (part == 0 ? "ffn_gate_exps" : "ffn_up_exps");
          return of + "." + std::to_string(expert) + ".weight";
        },
        split);
    source.drop(entry.name);
  }
  for (const TensorEntry& entry : split) source.add(entry);
}

// Restores dimensions of size 1 that files lack: of a convolution [channels, 1, kernel] and of a
// shared expert's gate [1, hidden]. The entries live in `restored`.
void restore_dimensions(const GgufFile& file, Source& source, std::list<TensorEntry>& restored) {
  for (const TensorEntry& entry : file.tensors) {
    const bool convolution = entry.name.ends_with(".ssm_conv1d.weight") && entry.shape.size() == 2;
    const bool gate = entry.name.ends_with(".ffn_gate_inp_shexp.weight") && entry.shape.size() == 1;
    if (!convolution && !gate) continue;
    TensorEntry& made = restored.emplace_back(entry);
    made.shape.insert(made.shape.end() - 1, 1);
    source.drop(entry.name);
    source.add(made);
  }
}

// Drops the blocks behind the model's layers, which predict further tokens. Returns the number of
// tensors.
int64_t drop_further_blocks(const GgufFile& file, Source& source, int64_t layers) {
  int64_t dropped = 0;
  for (const TensorEntry& entry : file.tensors) {
    constexpr std::string_view prefix = "blk.";
    if (!entry.name.starts_with(prefix)) continue;
    int64_t block = 0;
    const char* const begin = entry.name.data() + prefix.size();
    const auto read = std::from_chars(begin, entry.name.data() + entry.name.size(), block);
    if (read.ec != std::errc() || block < layers) continue;
    source.drop(entry.name);
    ++dropped;
  }
  return dropped;
}

// Of the layers of Gemma 4: whether values come from the keys' projection, and the rows of the table of
// their inputs. Published files have projections that a layer with borrowed keys does not use.
void read_layers(Source& source, ModelConfig& config) {
  for (size_t l = 0; l < config.layer_kinds.size(); ++l) {
    LayerKind& kind = config.layer_kinds[l];
    const std::string block = "blk." + std::to_string(l) + ".";
    if (kind.keys == Keys::borrowed)
      for (const char* name : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"})
        source.drop(block + name);
    else if (config.value_norm && kind.window == 0)
      kind.values_from_keys = source.find(block + "attn_v.weight") == nullptr;
  }
  const TensorEntry* const table = source.find("per_layer_token_embd.weight");
  if (config.layer_input_size > 0 && table != nullptr)
    config.layer_input_vocab = std::max(table->shape.front(), config.vocab_size);
}

// The converter writes a proportional scheme as divisors: 1 of each frequency that rotates, and a number
// so large that the others do not.
void read_proportion(const std::vector<float>& factors, const std::string& where, RopeConfig& rope) {
  const auto rotating = std::find_if(factors.begin(), factors.end(), [](float one) { return one != 1; });
  NLAC_REQUIRE(rotating != factors.begin() &&
                   std::all_of(rotating, factors.end(), [](float one) { return one >= 1e20f; }),
               format_error, where, " holds rotary factors that are neither 1 nor infinitely large");
  rope.proportion = static_cast<double>(rotating - factors.begin()) / static_cast<double>(factors.size());
}

// The converter writes llama3's rotary scaling as one divisor per frequency, not as its four
// parameters. They are recovered as those of Llama 3 (the factor is the largest divisor) and
// checked against every divisor, so that other scalings are refused and not approximated.
void read_rope_factors(const TensorEntry& entry, const std::string& path, ModelConfig& config) {
  const int64_t half = (config.rope.dimensions > 0 ? config.rope.dimensions : config.head_dim) / 2;
  NLAC_REQUIRE(entry.shape == std::vector<int64_t>{half}, format_error, path, ": tensor ",
               printable(entry.name), " does not have one factor for each of ", half, " frequencies");
  std::vector<float> factors(static_cast<size_t>(half));
  dequantize(entry, 0, half, factors.data());
  if (config.rope.scaling == RopeScaling::proportional)
    return read_proportion(factors, path + ": tensor " + printable(entry.name), config.rope);
  NLAC_REQUIRE(config.rope.scaling == RopeScaling::none, format_error, path, ": tensor ",
               printable(entry.name), " scales rotary positions, which the metadata already scale");
  const double factor = *std::max_element(factors.begin(), factors.end());
  if (factor == 1.0 && *std::min_element(factors.begin(), factors.end()) == 1.0f) return;

  constexpr double low = 1.0, high = 4.0, original = 8192.0;
  for (int64_t i = 0; i < half; ++i) {
    const double wavelength =
        2 * M_PI * std::pow(config.rope.theta, static_cast<double>(i) / static_cast<double>(half));
    const double smooth = std::clamp((original / wavelength - low) / (high - low), 0.0, 1.0);
    const double expected = 1.0 / ((1.0 - smooth) / factor + smooth);
    // This form also refuses NaN.
    const bool same = std::abs(factors[static_cast<size_t>(i)] - expected) <= 1e-4 * expected;
    NLAC_REQUIRE(same, format_error, path, ": tensor ", printable(entry.name),
                 " holds rotary factors that are not Llama 3's; the Hugging Face model says what they are");
  }
  config.rope.scaling = RopeScaling::llama3;
  config.rope.factor = factor;
  config.rope.low_freq_factor = low;
  config.rope.high_freq_factor = high;
  config.rope.original_max_positions = static_cast<int64_t>(original);
}

// The configuration of a GGUF file. Drops from `source` what only says something about it.
ModelConfig read_gguf_config(const GgufFile& file, Source& source, const std::string& path) {
  ModelConfig config = ModelConfig::from_gguf(file.metadata, source.find("output.weight") != nullptr);
  // The metadata do not list which projections have a bias; the first layer's tensors show it.
  config.qkv_bias = config.qkv_bias || source.find("blk.0.attn_q.bias") != nullptr;
  config.output_bias = source.find("blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = source.find("blk.0.ffn_gate.bias") != nullptr;
  read_layers(source, config);
  if (const TensorEntry* factors = source.find("rope_freqs.weight"); factors != nullptr) {
    read_rope_factors(*factors, path, config);
    source.drop("rope_freqs.weight");
  }
  config.to_json("float32");  // a checkpoint could not be written otherwise
  return config;
}

Source gguf_source(const GgufFile& file, const std::string& path) {
  Source source(path);
  for (const TensorEntry& tensor : file.tensors) source.add(tensor);
  return source;
}

LoadedModel load_gguf(const std::string& path, at::ScalarType dtype, at::Device device) {
  const GgufFile file = open_gguf(path);
  Source source = gguf_source(file, path);
  LoadedModel model;
  ModelConfig& config = model.config;
  config = read_gguf_config(file, source, path);

  std::list<TensorEntry> split, restored;
  if (config.experts.count > 0 && !config.experts.clamped())
    split_gguf_experts(file, source, config.experts.count, split);
  if (config.delta.heads > 0) {
    restore_dimensions(file, source, restored);
    model.skipped = drop_further_blocks(file, source, config.layers);
  }
  model.weights = read_weights(
      config, source, dtype, device, Heads::none,
      [&](const std::string& name) { return gguf_name(name, config); },
      [&](const std::string& name) { return gguf_form(name, config); });
  return model;
}

}  // namespace

// Whether the path is a Hugging Face directory; otherwise it is a .gguf file.
static bool is_huggingface(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  NLAC_REQUIRE(std::filesystem::exists(status), "ERR_MODEL_NOT_FOUND", path,
               ": no such model directory or file");
  if (!std::filesystem::is_directory(status)) {
    NLAC_REQUIRE(path.ends_with(".gguf"), format_error, path,
                 ": a model is a Hugging Face directory (config.json and safetensors) or a .gguf file");
    return false;
  }
  const auto holds = [&](const char* file) {
    return std::filesystem::exists(std::filesystem::path(path) / file, error);
  };
  NLAC_REQUIRE(!holds(adapter_file) || holds("model.safetensors") || holds("model.safetensors.index.json"),
               format_error, path,
               " holds an adapter without its model: export the merged model, and load that");
  return true;
}

LoadedModel load_model(const std::string& path, at::ScalarType dtype, at::Device device, Heads heads) {
  LoadedModel model =
      is_huggingface(path) ? load_huggingface(path, dtype, device, heads) : load_gguf(path, dtype, device);
  model.weights.add_heads(heads);
  return model;
}

ModelConfig gguf_config(const std::string& path) {
  const GgufFile file = open_gguf(path);
  Source source = gguf_source(file, path);
  return read_gguf_config(file, source, path);
}

static void add_to(Checksum& sum, const TensorEntry& entry) {
  sum.add(entry.name.data(), entry.name.size());
  sum.add(static_cast<uint64_t>(entry.type));
  for (const int64_t size : entry.shape) sum.add(static_cast<uint64_t>(size));
  sum.add(entry.data, entry.bytes);
}

uint64_t model_checksum(const std::string& path) {
  std::vector<SafetensorsFile> shards;  // keep the entries alive
  GgufFile gguf;
  std::vector<const TensorEntry*> entries;
  if (is_huggingface(path)) {
    shards = open_huggingface_weights(path);
    for (const SafetensorsFile& shard : shards)
      for (const TensorEntry& entry : shard.tensors) entries.push_back(&entry);
  } else {
    gguf = open_gguf(path);
    for (const TensorEntry& entry : gguf.tensors) entries.push_back(&entry);
  }
  std::sort(entries.begin(), entries.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->name < b->name; });
  std::vector<uint64_t> sums(entries.size());
  at::parallel_for(0, static_cast<int64_t>(entries.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Checksum sum;
      add_to(sum, *entries[static_cast<size_t>(i)]);
      sums[static_cast<size_t>(i)] = sum.value();
    }
  });
  Checksum all;
  for (const uint64_t sum : sums) all.add(sum);
  return all.value();
}

}  // namespace nlac
