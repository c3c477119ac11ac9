// Checkpoints and exports.
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/learner/internal.h"
#include "core/learner/sharding.h"
#include "core/model/classifier.h"

namespace nlac {

using namespace learner;
namespace fs = std::filesystem;

namespace {

constexpr int kCheckpointFormat = 1;
constexpr const char* kBaseDirectory = "base";  // in a checkpoint that contains its base

// Returns the file's tensors by name. They must be exactly `tensors`, with their shapes, in float32
// or, with `half`, bfloat16.
std::map<std::string, const TensorEntry*> entries_of(const SafetensorsFile& file, const fs::path& path,
                                                     const NamedTensors& tensors, bool half) {
  std::map<std::string, const TensorEntry*> entries;
  for (const TensorEntry& entry : file.tensors) entries[entry.name] = &entry;
  for (const auto& [name, tensor] : tensors) {
    const auto found = entries.find(name);
    NLAC_REQUIRE(found != entries.end(), "ERR_CHECKPOINT", path.string(), ": tensor ", name, " is missing");
    const TensorEntry& entry = *found->second;
    NLAC_REQUIRE((entry.type == StoredType::f32 || (half && entry.type == StoredType::bf16)) &&
                     at::IntArrayRef(entry.shape) == tensor.sizes(),
                 "ERR_CHECKPOINT", path.string(), ": ", name, " is ", stored_type_name(entry.type), ' ',
                 at::IntArrayRef(entry.shape), ", expected f32 ", tensor.sizes());
  }
  NLAC_REQUIRE(entries.size() == tensors.size(), "ERR_CHECKPOINT", path.string(), ": expected ",
               tensors.size(), " tensors, found ", entries.size());
  return entries;
}

// Reads `tensors` from the file, which must hold exactly these.
void read_tensors(const fs::path& path, const NamedTensors& tensors, bool half = false) {
  const SafetensorsFile file = open_safetensors(path.string());
  const auto entries = entries_of(file, path, tensors, half);
  for (const auto& [name, tensor] : tensors) {
    const TensorEntry& entry = *entries.at(name);
    at::Tensor host = at::empty(tensor.sizes(), entry.type == StoredType::f32 ? at::kFloat : at::kBFloat16);
    std::memcpy(host.mutable_data_ptr(), entry.data, entry.bytes);  // the file's bytes may be unaligned
    tensor.copy_(host);
  }
}

// The moments, named by their index in Weights::list().
NamedTensors named_moments(const AdamWMoments& moments) {
  NamedTensors named;
  for (size_t i = 0; i < moments.m.size(); ++i) {
    named.emplace_back("m." + std::to_string(i), moments.m[i]);
    named.emplace_back("v." + std::to_string(i), moments.v[i]);
  }
  return named;
}

std::string read_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  NLAC_REQUIRE(stream.good(), "ERR_CHECKPOINT", path.string(), " cannot be read");
  return {std::istreambuf_iterator<char>(stream), {}};
}

// A count in a checkpoint's description.
int64_t count_at(const nlohmann::json& json, const char* key, const fs::path& path) {
  constexpr int64_t most = int64_t{1} << 53;
  const auto count = json.at(key).get<int64_t>();
  NLAC_REQUIRE(count >= 0 && count <= most, "ERR_CHECKPOINT", path.string(), ": ", key, " is ", count,
               ", not from 0 to ", most);
  return count;
}

bool any_nonzero(const Weights& weights) {
  for (const at::Tensor& tensor : weights.list()) {
    if (tensor.ne(0).any().item<bool>()) return true;
  }
  return false;
}

// The adapter in a checkpoint's description.
nlohmann::json adapter_to_json(const AdapterOptions& adapter, const std::string& base_checksum) {
  return {{"rank", adapter.rank},
          {"alpha", adapter.alpha},
          {"targets", adapter.targets},
          {"base", base_checksum}};
}
AdapterOptions adapter_from_json(const nlohmann::json& json) {
  AdapterOptions adapter;
  adapter.rank = json.at("rank").get<int64_t>();
  adapter.alpha = json.at("alpha").get<double>();
  adapter.targets = json.at("targets").get<std::vector<std::string>>();
  return adapter;
}

// Checks resume()'s option against the checkpoint.
void require_adapter(const std::optional<AdapterOptions>& given, const std::optional<AdapterOptions>& saved) {
  if (!given) return;
  NLAC_REQUIRE(saved, "ERR_CONFIG", "the checkpoint has no adapter: load its model to train a new one");
  NLAC_REQUIRE(given->rank == saved->rank && given->alpha == saved->alpha && given->targets == saved->targets,
               "ERR_CONFIG", "the checkpoint's adapter has rank ", saved->rank, ", alpha ", saved->alpha,
               " and ", saved->targets.size(),
               " targets, which differs from the option: omit the option to resume with it");
}

}  // namespace

// One file of a checkpoint, or several without weight sets.
struct Learner::File {
  std::vector<Saved> sets;
  std::function<void(const std::vector<Weights>& sets)> write;  // on the rank that writes
};

void Learner::save(const std::string& directory) { begin_save(directory)(); }

std::function<void()> Learner::begin_save(const std::string& directory) {
  return guarded([&]() -> std::function<void()> {
    const fs::path root(directory);
    agree_on_target();
    std::vector<File> files;  // to be written, in this order
    const auto add = [&](std::vector<Saved> sets, auto write) {
      files.push_back({std::move(sets), std::move(write)});
    };
    const auto add_weights = [&](const char* file, Saved set, at::ScalarType dtype = at::kFloat) {
      add({std::move(set)}, [this, path = root / file, dtype](const auto& sets) {
        write_tensors(path, sets[0].named_views(config_), dtype);
      });
    };
    add({}, [this, root](const auto&) {
      const std::string text = config_.to_json("float32");
      // load() would read the whole model and ignore the adapter.
      NLAC_REQUIRE(!base_ || !(fs::exists(root / "model.safetensors") ||
                               fs::exists(root / "model.safetensors.index.json")),
                   "ERR_VALUE", root.string(), " holds a whole model: save the adapter elsewhere");
      // Removed first and written last, so that an interrupted save is not taken for a checkpoint.
      fs::remove(root / "learner.json");
      write_file_atomically((root / "config.json").string(), text.data(), text.size());
      if (base_ && base_checksum_.empty())
        nlac::export_huggingface(root / kBaseDirectory, config_, *base_, options_.dtype);
    });
    add_weights(base_ ? adapter_file : "model.safetensors", saved_masters());
    const auto manifest =
        std::make_shared<nlohmann::json>(nlohmann::json{{"format", kCheckpointFormat},
                                                        {"heads", heads_name(master_.heads())},
                                                        {"target", target_.has_value()},
                                                        {"reference", reference_.has_value()},
                                                        {"targetUpdates", target_updates_},
                                                        {"moved", moved_},
                                                        {"gradients", false},
                                                        {"optimizers", nlohmann::json::array()}});
    if (base_) (*manifest)["adapter"] = adapter_to_json(*options_.adapter, base_checksum_);
    if (target_) add_weights("target.safetensors", saved_target_masters());
    if (reference_) add_weights("reference.safetensors", saved_reference(), options_.dtype);
    if (std::optional<Saved> pending = pending_gradients()) {
      add({std::move(*pending)}, [this, path = root / "gradients.safetensors", manifest](const auto& sets) {
        if (!any_nonzero(sets[0])) return;
        write_tensors(path, sets[0].named_views(config_));
        (*manifest)["gradients"] = true;
      });
    }
    for (const auto& [name, moments] : moments_) {
      if (moments.steps == 0) continue;
      auto& optimizers = (*manifest)["optimizers"];
      const std::string file = "optimizer-" + std::to_string(optimizers.size()) + ".safetensors";
      std::vector<Saved> sets;
      if (shards_) sets = {saved_pieces(moments.m), saved_pieces(moments.v)};
      add(std::move(sets), [path = root / file, own = moments](const auto& whole) {
        const bool divided = !whole.empty();
        write_tensors(path, named_moments(divided ? AdamWMoments{whole[0].list(), whole[1].list()} : own));
      });
      optimizers.push_back({{"name", name}, {"file", file}, {"steps", moments.steps}});
    }
    add({}, [path = root / "learner.json", manifest](const auto&) {
      const std::string text = manifest->dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
      write_file_atomically(path.string(), text.data(), text.size());
    });
    return [this, files = std::move(files)] { guarded([&] { write_files(files); }); };
  });
}

void Learner::write_files(const std::vector<File>& files) const {
  // If one rank fails, all stop at the same file.
  const auto together = [&](const std::function<void()>& body) {
    options_.ranks ? options_.ranks->host().together(body) : body();
  };
  try {
    for (const File& file : files) {
      std::vector<Weights> sets;
      for (const Saved& saved : file.sets)
        if (const std::optional<Weights> set = whole(saved)) sets.push_back(*set);
      together([&] {
        if (writes()) file.write(sets);
      });
    }
  } catch (const OtherRankFailed&) {
    if (writes()) throw;  // else the checkpoint would count as written
  }
}

std::unique_ptr<Learner> Learner::resume(const std::string& directory, const LearnerOptions& given,
                                         const std::string& base) {
  check_options(given);
  const fs::path root(directory);
  const fs::path manifest_path = root / "learner.json";
  return guarded([&]() -> std::unique_ptr<Learner> {
    try {
      const nlohmann::json manifest = parse_json(read_text(manifest_path), manifest_path.string());
      const int format = manifest.at("format").get<int>();
      NLAC_REQUIRE(format == kCheckpointFormat, "ERR_CHECKPOINT", manifest_path.string(), ": format ", format,
                   " is not supported by this version");
      const std::string saved_heads = manifest.value("heads", "none");
      const std::optional<Heads> heads = heads_named(saved_heads);
      NLAC_REQUIRE(heads, "ERR_CHECKPOINT", manifest_path.string(), ": heads ", printable(saved_heads),
                   " are not supported by this version");
      LearnerOptions options = given;
      options.heads = *heads;
      options.adapter.reset();
      std::string model = directory, checksum;
      if (manifest.contains("adapter")) {
        options.adapter = adapter_from_json(manifest["adapter"]);
        checksum = manifest["adapter"].at("base").get<std::string>();
        model = checksum.empty() ? (root / kBaseDirectory).string() : base;
      }
      require_adapter(given.adapter, options.adapter);
      NLAC_REQUIRE(!model.empty(), "ERR_CHECKPOINT", directory,
                   " holds an adapter: the path of its model is needed");
      NLAC_REQUIRE(checksum.empty() || checksum == checksum_of(model), "ERR_CHECKPOINT", model,
                   " is not the model that the adapter in ", directory, " belongs to");
      std::unique_ptr<Learner> learner(new Learner(
          load_model(model, loaded_type(options), loading_device(options), options.heads), options));
      if (options.adapter) {
        const std::string config = ModelConfig::from_json(read_text(root / "config.json")).to_json("float32");
        NLAC_REQUIRE(config == learner->config_.to_json("float32"), "ERR_CHECKPOINT", model,
                     " has another configuration than the model that the adapter in ", directory,
                     " belongs to");
        learner->base_checksum_ = checksum;
        Weights master = learner->shards_ ? learner->master_.like(at::kFloat, at::kCPU) : learner->master_;
        read_tensors(root / adapter_file, master.named_views(learner->config_));
        if (learner->shards_) {
          learner->set_masters(master);
        } else {
          learner->online_ = learner->computing(learner->master_);
        }
      } else {
        // load_model initialises heads that the file lacks. Resuming must not.
        const fs::path path = root / "model.safetensors";
        entries_of(open_safetensors(path.string()), path, learner->master_.named_views(learner->config_),
                   /*half=*/false);
      }
      learner->target_updates_ = count_at(manifest, "targetUpdates", manifest_path);
      learner->moved_ = manifest.value("moved", false);
      if (manifest.at("target").get<bool>()) {
        Weights target =
            learner->master_.like(at::kFloat, learner->shards_ ? at::Device(at::kCPU) : options.device);
        read_tensors(root / "target.safetensors", target.named_views(learner->config_));
        if (learner->shards_) {
          learner->make_target();
          learner->set_target_masters(target);
        } else {
          learner->target_ = learner->computing(target);
          learner->target_master_ = std::move(target);
        }
      }
      if (manifest.value("reference", false)) {
        const bool divided = learner->shards_ && options.sharding >= 3;
        Weights reference =
            learner->master_.like(options.dtype, divided ? at::Device(at::kCPU) : options.device);
        read_tensors(root / "reference.safetensors", reference.named_views(learner->config_),
                     /*half=*/true);
        if (divided) {
          learner->set_sharded_reference(reference);
        } else {
          learner->reference_ = learner->on_base(std::move(reference));
        }
      }
      if (manifest.at("gradients").get<bool>()) {
        const Weights gradients = learner->master_.like(at::kFloat, at::kCPU);
        read_tensors(root / "gradients.safetensors", gradients.named_views(learner->config_));
        learner->set_pending_gradients(gradients);
      }
      for (const nlohmann::json& saved : manifest.at("optimizers")) {
        const fs::path file = saved.at("file").get<std::string>();
        NLAC_REQUIRE(file == file.filename() && file.has_stem(), "ERR_CHECKPOINT", manifest_path.string(),
                     ": the file name ", printable(file.string()), " is not a plain file name");
        AdamWMoments& moments = learner->moments_[saved.at("name").get<std::string>()];
        const at::Device device = learner->shards_ ? at::Device(at::kCPU) : options.device;
        AdamWMoments whole;
        whole.steps = count_at(saved, "steps", manifest_path);
        whole.m = learner->master_.like(at::kFloat, device).list();
        whole.v = learner->master_.like(at::kFloat, device).list();
        read_tensors(root / file, named_moments(whole));
        learner->set_moments(moments, whole);
      }
      return learner;
    } catch (const nlohmann::json::exception& error) {
      fail("ERR_CHECKPOINT", manifest_path.string(),
           " is not a valid checkpoint description: ", error.what());
    } catch (const Error& error) {
      const std::string code = error.code();
      if (code != "ERR_MODEL_FORMAT" && code != "ERR_MODEL_NOT_FOUND" && code != "ERR_IO" &&
          code != "ERR_VALUE")
        throw;
      fail("ERR_CHECKPOINT", "the checkpoint ", directory, " cannot be used: ", error.what());
    }
  });
}

void Learner::export_huggingface(const std::string& directory) {
  guarded([&] {
    const std::optional<Weights> masters = whole_masters();
    if (writes()) nlac::export_huggingface(directory, config_, merged(*masters), options_.dtype);
  });
}

void Learner::export_reward_model(const std::string& directory, int64_t pad_token_id) {
  guarded([&] {
    require_value_head();
    NLAC_REQUIRE(pad_token_id >= -1 && pad_token_id < config_.vocab_size, "ERR_VALUE", "the padding id ",
                 pad_token_id, " is outside the vocabulary of ", config_.vocab_size);
    const std::optional<Weights> masters = whole_masters();
    if (!writes()) return;
    Weights model = merged(*masters);
    model.take_heads(*masters);
    export_classifier(directory, config_, model, options_.dtype, pad_token_id);
  });
}

Weights Learner::merged(const Weights& masters) const {
  return base_ ? merge_adapters(with_adapters(*base_, masters)) : masters;
}

void Learner::export_adapter(const std::string& directory, const std::string& base) {
  guarded([&] {
    NLAC_REQUIRE(base_, "ERR_VALUE", "the learner has no adapter: it trains every parameter");
    const std::optional<Weights> masters = whole_masters();
    if (writes()) nlac::export_adapter(directory, config_, *options_.adapter, *masters, base);
  });
}

}  // namespace nlac
