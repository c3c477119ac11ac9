#include "core/io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/json.h"
#include "core/io/stored_types.h"

namespace nlac {
namespace {

using Json = nlohmann::json;

constexpr uint64_t longest_header = 100'000'000;  // bytes; the format's own limit
constexpr size_t most_values = 2'000'000;         // of a header's JSON: about 300,000 tensors
constexpr size_t most_member_values = 65536;      // of a tensor, or of the metadata
constexpr size_t highest_rank = 8;

struct SafetensorsType {
  const char* name;
  StoredType type;
};
constexpr SafetensorsType types[] = {
    {"F64", StoredType::f64}, {"F32", StoredType::f32}, {"F16", StoredType::f16}, {"BF16", StoredType::bf16},
    {"I64", StoredType::i64}, {"I32", StoredType::i32}, {"U8", StoredType::u8},
};

// A member of a tensor's header entry, with the tensor and the key in every message.
class TensorHeader {
 public:
  TensorHeader(const std::string& path, const std::string& name, const Json& json)
      : path_(path), name_(name), json_(json) {
    NLAC_REQUIRE(json.is_object(), "ERR_MODEL_FORMAT", where(), " is not described by an object");
    for (const auto& [key, value] : json.items()) {
      NLAC_REQUIRE(key == "dtype" || key == "shape" || key == "data_offsets", "ERR_MODEL_FORMAT", where(),
                   " has the unknown key ", printable(key));
    }
  }

  StoredType type() const {
    const Json& value = member("dtype");
    NLAC_REQUIRE(value.is_string(), "ERR_MODEL_FORMAT", where(), ": dtype is not a string");
    const std::string& name = value.get_ref<const std::string&>();
    for (const SafetensorsType& known : types) {
      if (name == known.name) return known.type;
    }
    fail("ERR_MODEL_FORMAT", where(), " has dtype ", printable(name),
         ", which is not supported (F64, F32, F16, BF16, I64, I32 and U8 are)");
  }

  std::vector<uint64_t> numbers(const char* key, size_t most) const {
    const Json& value = member(key);
    NLAC_REQUIRE(value.is_array(), "ERR_MODEL_FORMAT", where(), ": ", key, " is not a list");
    NLAC_REQUIRE(value.size() <= most, "ERR_MODEL_FORMAT", where(), ": ", key, " has ", value.size(),
                 " entries, more than ", most);
    std::vector<uint64_t> numbers;
    for (const Json& item : value) {
      NLAC_REQUIRE(item.is_number_unsigned(), "ERR_MODEL_FORMAT", where(), ": ", key,
                   " contains something other than integers of 0 or more");
      numbers.push_back(item.get<uint64_t>());
    }
    return numbers;
  }

  std::string where() const { return path_ + ": tensor " + printable(name_); }

 private:
  const Json& member(const char* key) const {
    const auto found = json_.find(key);
    NLAC_REQUIRE(found != json_.end(), "ERR_MODEL_FORMAT", where(), " has no ", key);
    return *found;
  }

  const std::string& path_;
  const std::string& name_;
  const Json& json_;
};

TensorEntry parse_tensor(const std::string& path, const std::string& name, const Json& json,
                         const uint8_t* buffer, uint64_t buffer_size) {
  const TensorHeader header(path, name, json);
  TensorEntry entry;
  entry.name = name;
  entry.type = header.type();

  // Zeros are left out of the product, so that elements() cannot overflow on the way to a zero
  // either.
  uint64_t product = static_cast<uint64_t>(block_size(entry.type).bytes);
  bool empty = false;
  for (const uint64_t dimension : header.numbers("shape", highest_rank)) {
    empty = empty || dimension == 0;
    NLAC_REQUIRE(dimension <= INT64_MAX &&
                     (dimension == 0 || !__builtin_mul_overflow(product, dimension, &product)) &&
                     product <= INT64_MAX,
                 "ERR_MODEL_FORMAT", header.where(), ": the size of its shape overflows");
    entry.shape.push_back(static_cast<int64_t>(dimension));
  }
  const uint64_t bytes = empty ? 0 : product;

  const std::vector<uint64_t> offsets = header.numbers("data_offsets", 2);
  NLAC_REQUIRE(offsets.size() == 2, "ERR_MODEL_FORMAT", header.where(), ": data_offsets needs two entries");
  NLAC_REQUIRE(offsets[0] <= offsets[1] && offsets[1] <= buffer_size, "ERR_MODEL_FORMAT", header.where(),
               ": data_offsets [", offsets[0], ", ", offsets[1], "] do not lie in the file's ", buffer_size,
               " bytes of data");
  NLAC_REQUIRE(offsets[1] - offsets[0] == bytes, "ERR_MODEL_FORMAT", header.where(), ": data_offsets span ",
               offsets[1] - offsets[0], " bytes where dtype and shape need ", bytes);
  entry.data = buffer + offsets[0];
  entry.bytes = bytes;
  return entry;
}

void require_distinct_names(const std::string& path, const std::vector<TensorEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  NLAC_REQUIRE(twice == names.end(), "ERR_MODEL_FORMAT", path, ": tensor ", printable(*twice),
               " appears twice");
}

// Gaps and trailing bytes could hide another file's content; overlaps would alias two tensors.
void require_tiling(const std::string& path, std::vector<TensorEntry>& tensors, const uint8_t* buffer,
                    uint64_t buffer_size) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.data != b.data ? a.data < b.data : a.bytes != b.bytes ? a.bytes < b.bytes : a.name < b.name;
  });
  uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    const auto begin = static_cast<uint64_t>(tensor.data - buffer);
    NLAC_REQUIRE(begin == end, "ERR_MODEL_FORMAT", path, ": tensor ", printable(tensor.name),
                 " starts at byte ", begin, " of the data, ",
                 begin < end ? "inside another tensor" : "after a gap", " (expected ", end, ")");
    end = begin + tensor.bytes;
  }
  NLAC_REQUIRE(end == buffer_size, "ERR_MODEL_FORMAT", path, ": ", buffer_size - end,
               " bytes after the last tensor");
}

// A shard's name must stay inside its directory.
bool plain_file_name(const std::string& name) {
  return name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos && name.size() > 12 &&
         name.ends_with(".safetensors");
}

}  // namespace

void parse_safetensors(const uint8_t* data, size_t size, const std::string& path,
                       std::vector<TensorEntry>& tensors, std::map<std::string, std::string>& metadata) {
  tensors.clear();
  metadata.clear();
  NLAC_REQUIRE(size >= 8, "ERR_MODEL_FORMAT", path, ": ", size, " bytes are too few for a safetensors file");
  uint64_t header_size;
  std::memcpy(&header_size, data, 8);
  NLAC_REQUIRE(header_size <= longest_header && header_size <= size - 8, "ERR_MODEL_FORMAT", path,
               ": a header of ", header_size, " bytes does not fit (the file has ", size,
               ", the format allows ", longest_header, ")");
  const std::string_view text(reinterpret_cast<const char*>(data + 8), header_size);
  NLAC_REQUIRE(text.starts_with('{'), "ERR_MODEL_FORMAT", path, ": the header is not a JSON object");
  const uint8_t* buffer = data + 8 + header_size;
  const uint64_t buffer_size = size - 8 - header_size;

  // Header, tensor, shape: three levels.
  bool described = false;
  const JsonLimits limits{.depth = 3, .values = most_values, .member = most_member_values};
  parse_json_members(text, path, limits, [&](const std::string& name, const Json& value) {
    if (name != "__metadata__") {
      tensors.push_back(parse_tensor(path, name, value, buffer, buffer_size));
      return;
    }
    NLAC_REQUIRE(!described, "ERR_MODEL_FORMAT", path, ": __metadata__ appears twice");
    described = true;
    NLAC_REQUIRE(value.is_object(), "ERR_MODEL_FORMAT", path, ": __metadata__ is not an object");
    for (const auto& [key, text_value] : value.items()) {
      NLAC_REQUIRE(text_value.is_string(), "ERR_MODEL_FORMAT", path, ": __metadata__ ", printable(key),
                   " is not a string");
      metadata[key] = text_value.get<std::string>();
    }
  });
  require_distinct_names(path, tensors);
  require_tiling(path, tensors, buffer, buffer_size);
}

SafetensorsFile open_safetensors(const std::string& path) {
  SafetensorsFile opened;
  opened.file = MappedFile::open(path);
  parse_safetensors(opened.file->data(), opened.file->size(), path, opened.tensors, opened.metadata);
  return opened;
}

std::map<std::string, std::set<std::string>> parse_weight_index(std::string_view text,
                                                                const std::string& path) {
  const Json index = parse_json(text, path, {.depth = 8, .values = 500'000});
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  NLAC_REQUIRE(index.is_object() && map != index.end() && map->is_object() && !map->empty(),
               "ERR_MODEL_FORMAT", path, ": has no weight_map that names files");
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, value] : map->items()) {
    NLAC_REQUIRE(value.is_string(), "ERR_MODEL_FORMAT", path, ": tensor ", printable(name),
                 " is not mapped to a file name");
    const std::string& shard = value.get_ref<const std::string&>();
    NLAC_REQUIRE(plain_file_name(shard), "ERR_MODEL_FORMAT", path, ": tensor ", printable(name),
                 " is mapped to ", printable(shard), ", which is not the plain name of a .safetensors file");
    shards[shard].insert(name);
  }
  return shards;
}

std::vector<SafetensorsFile> open_huggingface_weights(const std::string& directory) {
  namespace fs = std::filesystem;
  const fs::path root(directory);
  std::error_code ignored;
  std::vector<SafetensorsFile> files;
  if (fs::exists(root / "model.safetensors", ignored)) {
    files.push_back(open_safetensors((root / "model.safetensors").string()));
    return files;
  }
  const std::string index_path = (root / "model.safetensors.index.json").string();
  NLAC_REQUIRE(fs::exists(index_path, ignored), "ERR_IO", directory,
               ": neither model.safetensors nor model.safetensors.index.json is there",
               fs::exists(root / "pytorch_model.bin", ignored)
                   ? " (pytorch_model.bin is a pickle, which is never read; save the model as safetensors)"
                   : "");

  const auto index_file = MappedFile::open(index_path);
  NLAC_REQUIRE(index_file->size() <= longest_header, "ERR_MODEL_FORMAT", index_path, ": larger than ",
               longest_header, " bytes");
  std::map<std::string, std::set<std::string>> expected =
      parse_weight_index({reinterpret_cast<const char*>(index_file->data()), index_file->size()}, index_path);
  std::map<std::string, std::string> seen;  // tensor → shard
  for (auto& [shard, names] : expected) {
    files.push_back(open_safetensors((root / shard).string()));
    for (const TensorEntry& tensor : files.back().tensors) {
      const auto [earlier, fresh] = seen.emplace(tensor.name, shard);
      NLAC_REQUIRE(fresh, "ERR_MODEL_FORMAT", index_path, ": tensor ", printable(tensor.name), " is in both ",
                   printable(earlier->second), " and ", printable(shard));
      names.erase(tensor.name);
    }
    NLAC_REQUIRE(names.empty(), "ERR_MODEL_FORMAT", index_path, ": tensor ", printable(*names.begin()),
                 " is not in ", printable(shard), ", where the index puts it");
  }
  return files;
}

void write_safetensors(const std::string& path, const std::vector<TensorEntry>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  // Wider types first: with the header padded to eight bytes every tensor is then aligned to its
  // type, which readers that view the file in place need.
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return block_size(a->type).bytes > block_size(b->type).bytes;
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t end = 0;
  for (const TensorEntry* tensor : order) {
    const BlockSize block = block_size(tensor->type);
    NLAC_REQUIRE(block.values == 1, "ERR_IO", path, ": tensor ", printable(tensor->name), " has type ",
                 stored_type_name(tensor->type), ", which safetensors cannot hold");
    NLAC_REQUIRE(tensor->bytes == static_cast<uint64_t>(tensor->elements() * block.bytes), "ERR_IO", path,
                 ": tensor ", printable(tensor->name), " has ", tensor->bytes, " bytes for ",
                 tensor->elements(), " values of ", stored_type_name(tensor->type));
    NLAC_REQUIRE(tensor->name != "__metadata__" && !header.contains(tensor->name), "ERR_IO", path,
                 ": the name ", printable(tensor->name), " is taken");
    header[tensor->name] = {{"dtype", stored_type_name(tensor->type)},
                            {"shape", tensor->shape},
                            {"data_offsets", {end, end + tensor->bytes}}};
    end += tensor->bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    fail("ERR_IO", path, ": a tensor's name or the metadata is not UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  NLAC_REQUIRE(text.size() <= longest_header, "ERR_IO", path, ": the header would have ", text.size(),
               " bytes");

  AtomicFile file(path);
  const uint64_t header_size = text.size();
  file.write(&header_size, 8);
  file.write(text.data(), text.size());
  for (const TensorEntry* tensor : order) file.write(tensor->data, tensor->bytes);
  file.commit();
}

}  // namespace nlac
