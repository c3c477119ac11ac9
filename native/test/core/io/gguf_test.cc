#include "core/io/gguf.h"

#include "core/model/config.h"
#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

namespace {

// Writes a GGUF piece by piece, so that each piece can be wrong.
class Builder {
 public:
  Builder(uint64_t tensors, uint64_t pairs, uint32_t version = 3) {
    raw("GGUF", 4);
    number(version);
    number(tensors);
    number(pairs);
  }
  Builder& raw(const void* data, size_t size) {
    const auto* from = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), from, from + size);
    return *this;
  }
  template <typename T>
  Builder& number(T value) {
    return raw(&value, sizeof value);
  }
  Builder& text(const std::string& value) {
    number(uint64_t{value.size()});
    return raw(value.data(), value.size());
  }
  template <typename T>
  Builder& pair(const std::string& key, uint32_t type, T value) {
    return text(key).number(type).number(value);
  }
  Builder& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                  uint64_t offset) {
    text(name).number(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) number(dim);
    return number(type).number(offset);
  }
  // Pads to the alignment and appends the tensors' data.
  Builder& data(size_t size, size_t alignment = 32) {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    bytes.resize(bytes.size() + size, 0x11);
    return *this;
  }
  Bytes bytes;
};

struct Parsed {
  GgufMetadata metadata;
  std::vector<TensorEntry> tensors;
};
Parsed parse(const Bytes& bytes) {
  Parsed parsed;
  parse_gguf(bytes.data(), bytes.size(), "weights", parsed.metadata, parsed.tensors);
  return parsed;
}
Parsed parse(const Builder& builder) { return parse(builder.bytes); }

constexpr uint32_t u8 = 0, u32 = 4, boolean = 7, string = 8, array = 9;
constexpr uint32_t F32 = 0, F16 = 1, Q8_0 = 8, Q2_K = 10, Q4_K = 12;

}  // namespace

TEST_CASE("metadata of every type that the gguf package writes") {
  const GgufFile file = open_gguf(fixture("io/seeds/gguf/qwen3"));
  const GgufMetadata& m = file.metadata;
  for (const std::string key : {"a.u8", "a.u16", "a.u64"}) CHECK(m.at(key) == GgufValue(uint64_t{1}));
  for (const std::string key : {"a.i8", "a.i16", "a.i32", "a.i64"})
    CHECK(m.at(key) == GgufValue(int64_t{-1}));
  CHECK(m.at("a.f64") == GgufValue(0.5));
  CHECK(m.at("a.bool") == GgufValue(true));
  CHECK(m.at("a.list") == GgufValue(std::vector<int64_t>{1, 2, 3}));
  CHECK(m.at("a.floats") == GgufValue(std::vector<double>{0.5, 1.5}));
  CHECK(m.at("a.bools") == GgufValue(std::vector<bool>{true, false}));
  CHECK(m.at("tokenizer.ggml.tokens") == GgufValue(std::vector<std::string>{"a", "b", "c"}));
  CHECK(m.at("general.architecture") == GgufValue(std::string("qwen3")));
}

TEST_CASE("tensors have row-major shapes and lie where the file says") {
  const Builder file = Builder(2, 0).tensor("a", {32, 2, 3}, Q8_0, 0).tensor("b", {5}, F32, 224).data(244);
  const Parsed parsed = parse(file);
  REQUIRE(parsed.tensors.size() == 2);
  CHECK(parsed.tensors[0].shape == std::vector<int64_t>{3, 2, 32});
  CHECK(parsed.tensors[0].bytes == 6 * 34);
  CHECK(parsed.tensors[0].data == file.bytes.data() + file.bytes.size() - 244);
  CHECK(parsed.tensors[1].data == file.bytes.data() + file.bytes.size() - 20);
  CHECK(parsed.tensors[1].type == StoredType::f32);
}

TEST_CASE("the alignment of the file is used, and must be a power of two") {
  const auto with = [](uint32_t alignment, uint64_t offset, size_t size) {
    return Builder(2, 1)
        .pair("general.alignment", u32, alignment)
        .tensor("a", {4}, F32, 0)
        .tensor("b", {4}, F32, offset)
        .data(size, alignment == 0 ? 32 : alignment);
  };
  CHECK(parse(with(64, 64, 80)).tensors.size() == 2);
  CHECK(parse(with(1, 16, 32)).tensors.size() == 2);
  CHECK_REFUSED(parse(with(64, 32, 80)), "ERR_MODEL_FORMAT", "not a multiple of the alignment 64");
  for (const uint32_t alignment : {0u, 3u, 48u, 1u << 31}) {
    Builder file(0, 1);
    file.pair("general.alignment", u32, alignment);
    CHECK_REFUSED(parse(file), "ERR_MODEL_FORMAT", "power of two");
  }
  CHECK_REFUSED(parse(Builder(0, 1).pair("general.alignment", 5, int32_t{32})), "ERR_MODEL_FORMAT",
                "power of two");
}

TEST_CASE("a file cut off anywhere is refused") {
  for (const std::string name : {"llama", "qwen2", "qwen3", "empty"}) {
    const Bytes whole = read_bytes(fixture("io/seeds/gguf/" + name));
    CHECK(error_of([&] { parse(whole); }) == "");
    const Parsed parsed = parse(whole);
    size_t needed = 24;
    for (const TensorEntry& tensor : parsed.tensors) {
      needed = std::max(needed, static_cast<size_t>(tensor.data - whole.data()) + tensor.bytes);
    }
    // Padding after the last tensor may be missing; nothing else may.
    for (size_t size = 0; size < needed; ++size) {
      CAPTURE(size);
      const Bytes part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
      CHECK_REFUSED(parse(part), "ERR_MODEL_FORMAT", "weights: ");
    }
  }
}

TEST_CASE("another magic, version or byte order is refused") {
  Bytes bytes = Builder(0, 0).bytes;
  bytes[0] = 'g';
  CHECK_REFUSED(parse(bytes), "ERR_MODEL_FORMAT", "not a GGUF file");
  CHECK_REFUSED(parse(Builder(0, 0, 2)), "ERR_MODEL_FORMAT", "version 2");
  CHECK_REFUSED(parse(Builder(0, 0, 4)), "ERR_MODEL_FORMAT", "version 4");
  CHECK_REFUSED(parse(Builder(0, 0, 3u << 24)), "ERR_MODEL_FORMAT", "big-endian");
}

TEST_CASE("counts and lengths that the file cannot hold are refused before memory is taken") {
  for (const uint64_t huge : {uint64_t{20}, uint64_t{1} << 40, uint64_t{1} << 63, uint64_t{UINT64_MAX}}) {
    CAPTURE(huge);
    CHECK_REFUSED(parse(Builder(huge, 0)), "ERR_MODEL_FORMAT", "the tensor count claims");
    CHECK_REFUSED(parse(Builder(0, huge)), "ERR_MODEL_FORMAT", "the metadata count claims");
    CHECK_REFUSED(parse(Builder(0, 1).number(huge).number(uint64_t{0})), "ERR_MODEL_FORMAT",
                  "a metadata key");
    CHECK_REFUSED(parse(Builder(0, 1).text("key").number(string).number(huge)), "ERR_MODEL_FORMAT",
                  "ends inside a metadata value");
    for (const uint32_t item : {u8, u32, boolean, string, 6u, 10u, 12u}) {
      CHECK_REFUSED(parse(Builder(0, 1).text("key").number(array).number(item).number(huge)),
                    "ERR_MODEL_FORMAT", "more than the file can hold");
    }
  }
}

TEST_CASE("metadata of a wrong type or value is refused") {
  CHECK_REFUSED(parse(Builder(0, 1).pair("key", 13, uint64_t{0})), "ERR_MODEL_FORMAT", "unknown type 13");
  CHECK_REFUSED(parse(Builder(0, 1).text("key").number(array).number(13u).number(uint64_t{0})),
                "ERR_MODEL_FORMAT", "unknown type 13");
  CHECK_REFUSED(parse(Builder(0, 1).text("key").number(array).number(array).number(uint64_t{0})),
                "ERR_MODEL_FORMAT", "array of arrays");
  CHECK_REFUSED(parse(Builder(0, 1).pair("key", boolean, uint8_t{2})), "ERR_MODEL_FORMAT", "bool of value 2");
  CHECK_REFUSED(parse(Builder(0, 2).pair("key", u8, uint8_t{0}).pair("key", u32, 0u)), "ERR_MODEL_FORMAT",
                "\"key\" appears twice");
  CHECK_REFUSED(parse(Builder(0, 1).pair("", u32, 0u)), "ERR_MODEL_FORMAT", "1 to 65535 bytes");
  CHECK_REFUSED(parse(Builder(0, 1).pair(std::string(65536, 'k'), u32, 0u)), "ERR_MODEL_FORMAT",
                "1 to 65535");
}

TEST_CASE("tensors that do not fit are refused") {
  const auto one = [](const std::vector<uint64_t>& dims, uint32_t type = F32, uint64_t offset = 0,
                      const std::string& name = "x") {
    return Builder(1, 0).tensor(name, dims, type, offset).data(128);
  };
  CHECK(parse(one({32})).tensors.size() == 1);
  CHECK_REFUSED(parse(one({33})), "ERR_MODEL_FORMAT", "ends after");
  CHECK_REFUSED(parse(one({})), "ERR_MODEL_FORMAT", "0 dimensions");
  CHECK_REFUSED(parse(one({1, 1, 1, 1, 1})), "ERR_MODEL_FORMAT", "5 dimensions");
  CHECK_REFUSED(parse(one({0})), "ERR_MODEL_FORMAT", "dimension of 0");
  CHECK_REFUSED(parse(one({UINT64_MAX})), "ERR_MODEL_FORMAT", "overflows");
  CHECK_REFUSED(parse(one({uint64_t{1} << 32, uint64_t{1} << 32})), "ERR_MODEL_FORMAT", "overflows");
  CHECK_REFUSED(parse(one({uint64_t{1} << 31, uint64_t{1} << 30})), "ERR_MODEL_FORMAT", "overflows");
  CHECK_REFUSED(parse(one({uint64_t{1} << 40})), "ERR_MODEL_FORMAT", "ends after");
  CHECK_REFUSED(parse(one({48}, Q8_0)), "ERR_MODEL_FORMAT", "blocks of 32 (Q8_0)");
  CHECK_REFUSED(parse(one({32}, Q4_K)), "ERR_MODEL_FORMAT", "blocks of 256 (Q4_K)");
  CHECK_REFUSED(parse(one({256}, Q2_K)), "ERR_MODEL_FORMAT", "\"x\" has type Q2_K");
  CHECK_REFUSED(parse(one({4}, 99)), "ERR_MODEL_FORMAT", "type number 99");
  CHECK_REFUSED(parse(one({4}, F32, 16)), "ERR_MODEL_FORMAT", "not a multiple of the alignment 32");
  CHECK_REFUSED(parse(one({4}, F32, 128)), "ERR_MODEL_FORMAT", "ends after");
  CHECK_REFUSED(parse(one({4}, F32, uint64_t{1} << 63)), "ERR_MODEL_FORMAT", "ends after");
  CHECK_REFUSED(parse(one({4}, F32, UINT64_MAX - 31)), "ERR_MODEL_FORMAT", "ends after");
  CHECK_REFUSED(parse(one({4}, F32, 0, "")), "ERR_MODEL_FORMAT", "1 to 64 bytes");
  CHECK_REFUSED(parse(one({4}, F32, 0, std::string(65, 'n'))), "ERR_MODEL_FORMAT", "1 to 64 bytes");
}

TEST_CASE("tensors that overlap or share a name are refused") {
  const auto two = [](const char* second, uint64_t offset) {
    return Builder(2, 0).tensor("a", {16}, F32, 32).tensor(second, {16}, F16, offset).data(128);
  };
  CHECK(parse(two("b", 0)).tensors.size() == 2);
  CHECK(parse(two("b", 96)).tensors.size() == 2);
  CHECK_REFUSED(parse(two("b", 32)), "ERR_MODEL_FORMAT", "overlap");
  CHECK_REFUSED(parse(two("b", 64)), "ERR_MODEL_FORMAT", "overlap");
  CHECK_REFUSED(parse(two("a", 0)), "ERR_MODEL_FORMAT", "\"a\" appears twice");
}

TEST_CASE("the numbers of values, pairs and tensors are limited") {
  const std::string numbers(5'000'000, '\x01');
  Builder array(0, 1);
  array.text("many").number(uint32_t{9}).number(uint32_t{0}).number(uint64_t{numbers.size()});
  array.raw(numbers.data(), numbers.size());
  CHECK_REFUSED(parse(array.bytes), "ERR_MODEL_FORMAT", "more than 4000000");
  Builder pairs(0, 100'000);
  pairs.raw(numbers.data(), numbers.size());
  CHECK_REFUSED(parse(pairs.bytes), "ERR_MODEL_FORMAT", "more than 65536");
  Builder two(0, 2);  // the arrays of a file share the limit
  for (const char* key : {"a", "b"}) {
    two.text(key).number(uint32_t{9}).number(uint32_t{0}).number(uint64_t{3'000'000});
    two.raw(numbers.data(), 3'000'000);
  }
  CHECK_REFUSED(parse(two.bytes), "ERR_MODEL_FORMAT", "more than 1000000");
}
