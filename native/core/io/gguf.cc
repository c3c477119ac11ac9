#include "core/io/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/io/stored_types.h"

namespace nlac {
namespace {

constexpr uint64_t longest_name = 64;       // of a tensor, bytes; the format's own limit
constexpr uint64_t longest_key = 65535;     // of a metadata key, bytes; the format's own limit
constexpr uint64_t most_pairs = 65536;      // of metadata
constexpr uint64_t most_items = 4'000'000;  // of all metadata arrays; the largest vocabularies need 1.5
constexpr uint64_t most_tensors = 300'000;
constexpr uint64_t default_alignment = 32;
constexpr uint64_t largest_alignment = uint64_t{1} << 20;

enum ValueType : uint32_t {
  u8_value,
  i8_value,
  u16_value,
  i16_value,
  u32_value,
  i32_value,
  f32_value,
  bool_value,
  string_value,
  array_value,
  u64_value,
  i64_value,
  f64_value,
};

// Names of the tensor types by their number, for the message about types that are not read.
constexpr const char* tensor_type_names[] = {
    "F32",   "F16",    "Q4_0", "Q4_1", "Q4_2", "Q4_3",    "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",   "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16"};

// Reads forward through the file. Checks the bounds before every read and every allocation.
class Cursor {
 public:
  Cursor(const uint8_t* data, uint64_t size, const std::string& path)
      : data_(data), size_(size), path_(path) {}

  uint64_t position() const { return at_; }
  uint64_t left() const { return size_ - at_; }

  template <typename T>
  T number(const char* what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, data_ + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  bool boolean(const char* what) {
    const auto byte = number<uint8_t>(what);
    NLAC_REQUIRE(byte <= 1, "ERR_MODEL_FORMAT", path_, ": ", what, " is a bool of value ", int{byte});
    return byte == 1;
  }

  std::string string(const char* what) {
    const auto length = number<uint64_t>(what);
    need(length, what);
    std::string text(reinterpret_cast<const char*>(data_ + at_), length);
    at_ += length;
    return text;
  }

  // The length of a list of at most `most` items that take at least `item` bytes each.
  uint64_t count(uint64_t item, uint64_t most, const char* what) {
    const auto n = number<uint64_t>(what);
    NLAC_REQUIRE(n <= left() / item, "ERR_MODEL_FORMAT", path_, ": ", what, " claims ", n,
                 " items, more than the file can hold");
    NLAC_REQUIRE(n <= most, "ERR_MODEL_FORMAT", path_, ": ", what, " claims ", n, " items, more than ", most);
    return n;
  }

  // The same of a metadata array. Arrays share one limit, because values need more memory than the
  // file's bytes.
  uint64_t items(uint64_t item) {
    const uint64_t n = count(item, items_left_, "a metadata array");
    items_left_ -= n;
    return n;
  }

 private:
  void need(uint64_t bytes, const char* what) const {
    NLAC_REQUIRE(bytes <= left(), "ERR_MODEL_FORMAT", path_, ": ends inside ", what, " (byte ", at_, ")");
  }

  const uint8_t* data_;
  uint64_t size_;
  const std::string& path_;
  uint64_t at_ = 0;
  uint64_t items_left_ = most_items;
};

template <typename Wide, typename Stored>
std::vector<Wide> read_array(Cursor& cursor) {
  const uint64_t n = cursor.items(sizeof(Stored));
  std::vector<Wide> values;
  values.reserve(n);
  for (uint64_t i = 0; i < n; ++i)
    values.push_back(static_cast<Wide>(cursor.number<Stored>("a metadata array")));
  return values;
}

GgufValue read_array_value(Cursor& cursor, const std::string& where) {
  const auto type = cursor.number<uint32_t>("a metadata array");
  switch (type) {
    case u8_value: return read_array<uint64_t, uint8_t>(cursor);
    case i8_value: return read_array<int64_t, int8_t>(cursor);
    case u16_value: return read_array<uint64_t, uint16_t>(cursor);
    case i16_value: return read_array<int64_t, int16_t>(cursor);
    case u32_value: return read_array<uint64_t, uint32_t>(cursor);
    case i32_value: return read_array<int64_t, int32_t>(cursor);
    case f32_value: return read_array<double, float>(cursor);
    case u64_value: return read_array<uint64_t, uint64_t>(cursor);
    case i64_value: return read_array<int64_t, int64_t>(cursor);
    case f64_value: return read_array<double, double>(cursor);
    case bool_value: {
      const uint64_t n = cursor.items(1);
      std::vector<bool> values;
      values.reserve(n);
      for (uint64_t i = 0; i < n; ++i) values.push_back(cursor.boolean("a metadata array"));
      return values;
    }
    case string_value: {
      const uint64_t n = cursor.items(8);
      std::vector<std::string> values;
      values.reserve(n);
      for (uint64_t i = 0; i < n; ++i) values.push_back(cursor.string("a metadata array"));
      return values;
    }
    case array_value: fail("ERR_MODEL_FORMAT", where, " is an array of arrays, which is not supported");
  }
  fail("ERR_MODEL_FORMAT", where, " is an array of the unknown type ", type);
}

GgufValue read_value(Cursor& cursor, const std::string& where) {
  const auto type = cursor.number<uint32_t>("a metadata type");
  constexpr const char* what = "a metadata value";
  switch (type) {
    case u8_value: return uint64_t{cursor.number<uint8_t>(what)};
    case i8_value: return int64_t{cursor.number<int8_t>(what)};
    case u16_value: return uint64_t{cursor.number<uint16_t>(what)};
    case i16_value: return int64_t{cursor.number<int16_t>(what)};
    case u32_value: return uint64_t{cursor.number<uint32_t>(what)};
    case i32_value: return int64_t{cursor.number<int32_t>(what)};
    case f32_value: return double{cursor.number<float>(what)};
    case u64_value: return cursor.number<uint64_t>(what);
    case i64_value: return cursor.number<int64_t>(what);
    case f64_value: return cursor.number<double>(what);
    case bool_value: return cursor.boolean(what);
    case string_value: return cursor.string(what);
    case array_value: return read_array_value(cursor, where);
  }
  fail("ERR_MODEL_FORMAT", where, " has the unknown type ", type);
}

StoredType tensor_type(uint32_t number, const std::string& where) {
  switch (number) {
    case 0: return StoredType::f32;
    case 1: return StoredType::f16;
    case 2: return StoredType::q4_0;
    case 3: return StoredType::q4_1;
    case 6: return StoredType::q5_0;
    case 7: return StoredType::q5_1;
    case 8: return StoredType::q8_0;
    case 12: return StoredType::q4_k;
    case 13: return StoredType::q5_k;
    case 14: return StoredType::q6_k;
    case 30: return StoredType::bf16;
    case 39: return StoredType::mxfp4;
  }
  const bool known = number < std::size(tensor_type_names);
  fail("ERR_MODEL_FORMAT", where, " has type ", known ? tensor_type_names[number] : "number ",
       known ? "" : std::to_string(number),
       ", which is not supported (F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0 and MXFP4 "
       "are)");
}

struct PlacedTensor {
  TensorEntry entry;
  uint64_t offset;  // from the start of the data section
};

PlacedTensor read_tensor(Cursor& cursor, const std::string& path, uint64_t alignment) {
  constexpr const char* what = "a tensor's description";
  PlacedTensor tensor;
  TensorEntry& entry = tensor.entry;
  entry.name = cursor.string(what);
  const std::string where = path + ": tensor " + printable(entry.name);
  NLAC_REQUIRE(!entry.name.empty() && entry.name.size() <= longest_name, "ERR_MODEL_FORMAT", where,
               ": a name has 1 to ", longest_name, " bytes");

  const auto rank = cursor.number<uint32_t>(what);
  NLAC_REQUIRE(rank >= 1 && rank <= 4, "ERR_MODEL_FORMAT", where, " has ", rank, " dimensions, not 1 to 4");
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto dimension = cursor.number<uint64_t>(what);
    NLAC_REQUIRE(dimension >= 1, "ERR_MODEL_FORMAT", where, " has a dimension of 0");
    NLAC_REQUIRE(!__builtin_mul_overflow(elements, dimension, &elements) && elements <= INT64_MAX / 8,
                 "ERR_MODEL_FORMAT", where, ": the size of its shape overflows");
    entry.shape.push_back(static_cast<int64_t>(dimension));
  }
  const int64_t row = entry.shape.front();
  std::reverse(entry.shape.begin(), entry.shape.end());

  entry.type = tensor_type(cursor.number<uint32_t>(what), where);
  const BlockSize block = block_size(entry.type);
  NLAC_REQUIRE(row % block.values == 0, "ERR_MODEL_FORMAT", where, ": rows of ", row,
               " do not divide into blocks of ", block.values, " (", stored_type_name(entry.type), ")");
  entry.bytes = elements / static_cast<uint64_t>(block.values) * static_cast<uint64_t>(block.bytes);
  entry.data = nullptr;  // set when the data section's start is known

  tensor.offset = cursor.number<uint64_t>(what);
  NLAC_REQUIRE(tensor.offset % alignment == 0, "ERR_MODEL_FORMAT", where, ": offset ", tensor.offset,
               " is not a multiple of the alignment ", alignment);
  return tensor;
}

uint64_t read_alignment(const GgufMetadata& metadata, const std::string& path) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return default_alignment;
  const auto* value = std::get_if<uint64_t>(&found->second);
  NLAC_REQUIRE(value != nullptr && std::has_single_bit(*value) && *value <= largest_alignment,
               "ERR_MODEL_FORMAT", path, ": general.alignment is not a power of two up to ",
               largest_alignment);
  return *value;
}

// Converts offsets to pointers, after checking that every tensor is inside the data and does not
// overlap others.
void place(std::vector<PlacedTensor>& placed, const uint8_t* data, uint64_t begin, uint64_t size,
           const std::string& path) {
  NLAC_REQUIRE(begin <= size, "ERR_MODEL_FORMAT", path, ": ends before its tensors' data");
  const uint64_t room = size - begin;
  std::vector<PlacedTensor*> order;
  for (PlacedTensor& tensor : placed) {
    NLAC_REQUIRE(tensor.offset <= room && tensor.entry.bytes <= room - tensor.offset, "ERR_MODEL_FORMAT",
                 path, ": tensor ", printable(tensor.entry.name), " (", tensor.entry.bytes, " bytes at ",
                 tensor.offset, ") ends after the file's ", room, " bytes of data");
    tensor.entry.data = data + begin + tensor.offset;
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const PlacedTensor* a, const PlacedTensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    NLAC_REQUIRE(order[i]->offset - order[i - 1]->offset >= order[i - 1]->entry.bytes, "ERR_MODEL_FORMAT",
                 path, ": tensors ", printable(order[i - 1]->entry.name), " and ",
                 printable(order[i]->entry.name), " overlap");
  }
}

}  // namespace

void parse_gguf(const uint8_t* data, size_t size, const std::string& path, GgufMetadata& metadata,
                std::vector<TensorEntry>& tensors) {
  metadata.clear();
  tensors.clear();
  Cursor cursor(data, size, path);
  NLAC_REQUIRE(size >= 4 && std::memcmp(data, "GGUF", 4) == 0, "ERR_MODEL_FORMAT", path, ": not a GGUF file");
  cursor.number<uint32_t>("the magic");
  const auto version = cursor.number<uint32_t>("the version");
  NLAC_REQUIRE(version == 3, "ERR_MODEL_FORMAT", path, ": GGUF version ", version, " is not supported",
               version == 3u << 24 ? " (a big-endian file)" : " (3 is)");
  // Minimum bytes of a tensor's description: name, rank, one dimension, type, offset; of a pair:
  // key, type, value.
  const uint64_t tensor_count = cursor.count(8 + 4 + 8 + 4 + 8, most_tensors, "the tensor count");
  const uint64_t pair_count = cursor.count(8 + 4 + 1, most_pairs, "the metadata count");

  for (uint64_t i = 0; i < pair_count; ++i) {
    std::string key = cursor.string("a metadata key");
    const std::string where = path + ": metadata " + printable(key);
    NLAC_REQUIRE(!key.empty() && key.size() <= longest_key, "ERR_MODEL_FORMAT", where, ": a key has 1 to ",
                 longest_key, " bytes");
    GgufValue value = read_value(cursor, where);
    NLAC_REQUIRE(metadata.emplace(std::move(key), std::move(value)).second, "ERR_MODEL_FORMAT", where,
                 " appears twice");
  }

  const uint64_t alignment = read_alignment(metadata, path);
  std::vector<PlacedTensor> placed;
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    placed.push_back(read_tensor(cursor, path, alignment));
    NLAC_REQUIRE(names.insert(placed.back().entry.name).second, "ERR_MODEL_FORMAT", path, ": tensor ",
                 printable(placed.back().entry.name), " appears twice");
  }
  if (placed.empty()) return;
  place(placed, data, (cursor.position() + alignment - 1) / alignment * alignment, size, path);
  for (PlacedTensor& tensor : placed) tensors.push_back(std::move(tensor.entry));
}

GgufFile open_gguf(const std::string& path) {
  GgufFile opened;
  opened.file = MappedFile::open(path);
  parse_gguf(opened.file->data(), opened.file->size(), path, opened.metadata, opened.tensors);
  return opened;
}

}  // namespace nlac
