#include "core/io/safetensors.h"

#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

namespace {

Bytes file_of(const std::string& header, size_t data_bytes, uint64_t header_size) {
  Bytes bytes(8 + header.size() + data_bytes, 0x3f);
  std::memcpy(bytes.data(), &header_size, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}
Bytes file_of(const std::string& header, size_t data_bytes) {
  return file_of(header, data_bytes, header.size());
}

struct Parsed {
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};
Parsed parse(const Bytes& bytes) {
  Parsed parsed;
  parse_safetensors(bytes.data(), bytes.size(), "weights", parsed.tensors, parsed.metadata);
  return parsed;
}

// The header's one tensor "x", with dtype, shape and data_offsets as given.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

}  // namespace

TEST_CASE("tensors of every type that safetensors' own writer makes") {
  const SafetensorsFile file = open_safetensors(fixture("io/seeds/safetensors/every-type"));
  REQUIRE(file.tensors.size() == 7);
  CHECK(file.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  for (const TensorEntry& tensor : file.tensors) {
    CAPTURE(tensor.name);
    CHECK(tensor.shape == std::vector<int64_t>{2, 3});
    if (tensor.type == StoredType::i64 || tensor.type == StoredType::i32 || tensor.type == StoredType::u8)
      continue;
    float values[6];
    dequantize(tensor, 0, 6, values);
    for (int i = 0; i < 6; ++i) CHECK(values[i] == static_cast<float>(i));
  }
}

TEST_CASE("scalars, empty tensors and a file without tensors") {
  const SafetensorsFile file = open_safetensors(fixture("io/seeds/safetensors/shapes"));
  std::map<std::string, const TensorEntry*> by_name;
  for (const TensorEntry& tensor : file.tensors) by_name[tensor.name] = &tensor;
  REQUIRE(by_name.size() == 3);
  CHECK(by_name["scalar"]->shape.empty());
  CHECK(by_name["scalar"]->elements() == 1);
  CHECK(by_name["empty"]->shape == std::vector<int64_t>{0, 3});
  CHECK(by_name["empty"]->bytes == 0);
  CHECK(by_name["deep"]->shape.size() == 5);
  CHECK(open_safetensors(fixture("io/seeds/safetensors/nothing")).tensors.empty());
}

TEST_CASE("tensors come in the order of the file, not of their names") {
  const Parsed parsed = parse(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                                      3));
  REQUIRE(parsed.tensors.size() == 2);
  CHECK(parsed.tensors[0].name == "b");
  CHECK(parsed.tensors[1].name == "a");
}

TEST_CASE("a written file is read back") {
  Scratch scratch;
  const float floats[] = {1.5f, -2.0f, 3.25f};
  const uint8_t odd[] = {1, 2, 3};
  const int64_t count = 1LL << 40;
  const auto at = [](const auto& value) { return reinterpret_cast<const uint8_t*>(&value); };
  const std::vector<TensorEntry> written = {
      {"odd", StoredType::u8, {3}, odd, 3},
      {"floats", StoredType::f32, {3, 1}, at(floats), 12},
      {"count", StoredType::i64, {}, at(count), 8},
      {"none", StoredType::f32, {4, 0}, nullptr, 0},
  };
  write_safetensors(scratch / "x.safetensors", written, {{"step", "12"}, {"quote", "\"\n"}});
  const SafetensorsFile file = open_safetensors(scratch / "x.safetensors");
  CHECK(file.metadata == std::map<std::string, std::string>{{"step", "12"}, {"quote", "\"\n"}});
  REQUIRE(file.tensors.size() == 4);
  for (const TensorEntry& tensor : file.tensors) {
    CAPTURE(tensor.name);
    // An 8-byte-aligned start, wider types first: readers may view the values in place.
    if (tensor.name != "odd") CHECK(reinterpret_cast<uintptr_t>(tensor.data) % 4 == 0);
    for (const TensorEntry& want : written) {
      if (want.name != tensor.name) continue;
      CHECK(tensor.type == want.type);
      CHECK(tensor.shape == want.shape);
      REQUIRE(tensor.bytes == want.bytes);
      if (want.bytes > 0) CHECK(std::memcmp(tensor.data, want.data, want.bytes) == 0);
    }
  }
}

TEST_CASE("tensors that cannot be written are refused, and no file appears") {
  Scratch scratch;
  const uint8_t bytes[64] = {};
  const std::string path = scratch / "x.safetensors";
  CHECK_REFUSED(write_safetensors(path, {{"x", StoredType::q8_0, {32}, bytes, 34}}, {}), "ERR_IO", "Q8_0");
  CHECK_REFUSED(write_safetensors(path, {{"x", StoredType::f32, {2}, bytes, 4}}, {}), "ERR_IO", "4 bytes");
  CHECK_REFUSED(write_safetensors(
                    path, {{"x", StoredType::u8, {1}, bytes, 1}, {"x", StoredType::u8, {1}, bytes, 1}}, {}),
                "ERR_IO", "taken");
  CHECK_REFUSED(write_safetensors(path, {{"__metadata__", StoredType::u8, {1}, bytes, 1}}, {}), "ERR_IO",
                "taken");
  CHECK_REFUSED(write_safetensors(path, {}, {{"k", "\xff"}}), "ERR_IO", "UTF-8");
  CHECK_REFUSED(write_safetensors(scratch / "absent/x", {}, {}), "ERR_IO", "absent/x");
  CHECK(std::filesystem::is_empty(scratch.path()));
}

TEST_CASE("a file cut off anywhere is refused") {
  for (const std::string name : {"every-type", "shapes", "nothing"}) {
    const Bytes whole = read_bytes(fixture("io/seeds/safetensors/" + name));
    CHECK(error_of([&] { parse(whole); }) == "");
    for (size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      // A copy of just that size, so that a sanitizer sees a byte read too many.
      const Bytes part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
      CHECK_REFUSED(parse(part), "ERR_MODEL_FORMAT", "weights: ");
    }
  }
}

TEST_CASE("headers that lie about their size are refused") {
  for (const uint64_t size :
       {uint64_t{3}, uint64_t{1} << 20, uint64_t{100'000'001}, uint64_t{1} << 63, uint64_t{UINT64_MAX}}) {
    CAPTURE(size);
    CHECK_REFUSED(parse(file_of("{}", 0, size)), "ERR_MODEL_FORMAT", "does not fit");
  }
  CHECK_REFUSED(parse(file_of("{}", 0, 0)), "ERR_MODEL_FORMAT", "not a JSON object");
}

TEST_CASE("malformed headers are refused") {
  const struct {
    std::string header, part;
  } cases[] = {
      {"[]", "not a JSON object"},
      {" {}", "not a JSON object"},
      {"{} {}", "not valid JSON"},
      {"{\"a\":", "not valid JSON"},
      {std::string("{}\0", 3), "not valid JSON"},
      {"{\"\xff\":1}", "not valid JSON"},
      {R"({"x":1})", "not described by an object"},
      {R"({"x":{}})", "has no dtype"},
      {R"({"x":{"dtype":"F32"}})", "has no shape"},
      {R"({"x":{"dtype":"F32","shape":[]}})", "has no data_offsets"},
      {R"({"x":{"dtype":32,"shape":[],"data_offsets":[0,4]}})", "dtype is not a string"},
      {R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,4],"more":1}})", "unknown key"},
      {R"({"__metadata__":[]})", "__metadata__ is not an object"},
      {R"({"__metadata__":{"a":1}})", "is not a string"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "appears twice"},
      {R"({"x":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "appears twice"},
      {one("F32", "[[1]]", "[0,4]"), "nested deeper"},
      {std::string("{\"a\":") + std::string(100'000, '['), "nested deeper"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.header.substr(0, 100));
    CHECK_REFUSED(parse(file_of(test.header, 4)), "ERR_MODEL_FORMAT", test.part);
  }
}

TEST_CASE("an unsupported type is named, with the tensor") {
  for (const std::string dtype : {"F8_E4M3", "F8_E5M2", "BOOL", "I8", "U16", "C64", "f32", ""}) {
    const Bytes file = file_of(one(dtype, "[4]", "[0,4]"), 4);
    CHECK_REFUSED(parse(file), "ERR_MODEL_FORMAT", "tensor \"x\" has dtype \"" + dtype + "\"");
  }
}

TEST_CASE("shapes and offsets that do not fit are refused") {
  const struct {
    std::string dtype, shape, offsets, part;
  } cases[] = {
      {"F32", "[-1]", "[0,4]", "something other than integers of 0 or more"},
      {"F32", "[1.0]", "[0,4]", "something other"},
      {"F32", "[\"1\"]", "[0,4]", "something other"},
      {"F32", "[1e0]", "[0,4]", "something other"},
      {"F32", "{}", "[0,4]", "not a list"},
      {"F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", "more than 8"},
      {"F32", "[18446744073709551615]", "[0,4]", "overflows"},
      {"F32", "[18446744073709551616]", "[0,4]", "something other"},
      {"F32", "[9223372036854775807]", "[0,4]", "overflows"},
      {"F32", "[4294967296,4294967296]", "[0,4]", "overflows"},
      {"U8", "[4294967296,2147483648]", "[0,4]", "overflows"},
      {"U8", "[0,4294967296,4294967296]", "[0,0]", "overflows"},
      {"F32", "[4611686018427387905]", "[0,4]", "overflows"},
      {"F32", "[2]", "[0,4]", "span 4 bytes where dtype and shape need 8"},
      {"F32", "[0]", "[0,4]", "span 4 bytes"},
      {"F32", "[1]", "[4,0]", "do not lie"},
      {"F32", "[1]", "[0,8]", "do not lie"},
      {"F32", "[1]", "[18446744073709551612,18446744073709551615]", "do not lie"},
      {"F32", "[1]", "[-4,0]", "something other"},
      {"F32", "[1]", "[0]", "two entries"},
      {"F32", "[1]", "[0,4,4]", "more than 2"},
      {"U8", "[3]", "[0,3]", "1 bytes after the last tensor"},
      {"U8", "[3]", "[1,4]", "after a gap"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.shape);
    CAPTURE(test.offsets);
    CHECK_REFUSED(parse(file_of(one(test.dtype, test.shape, test.offsets), 4)), "ERR_MODEL_FORMAT",
                  test.part);
  }
}

TEST_CASE("overlaps and gaps between tensors are refused") {
  const auto two = [](const char* a, const char* b) {
    return file_of(std::string(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)") + a +
                       R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b + "}}",
                   4);
  };
  CHECK(error_of([&] { parse(two("[0,2]", "[2,4]")); }) == "");
  CHECK_REFUSED(parse(two("[0,2]", "[0,2]")), "ERR_MODEL_FORMAT", "inside another tensor");
  CHECK_REFUSED(parse(two("[1,3]", "[2,4]")), "ERR_MODEL_FORMAT", "after a gap");
  CHECK_REFUSED(parse(two("[0,2]", "[1,3]")), "ERR_MODEL_FORMAT", "inside another tensor");
}

TEST_CASE("a sharded directory opens whole") {
  const std::vector<SafetensorsFile> files = open_huggingface_weights(fixture("io/llama"));
  CHECK(files.size() == 3);
  size_t tensors = 0;
  for (const SafetensorsFile& file : files) tensors += file.tensors.size();
  CHECK(tensors == 21);
}

TEST_CASE("directories whose index and shards do not agree are refused") {
  Scratch scratch;
  const uint8_t bytes[4] = {};
  const auto shard = [&](const char* file, const char* tensor) {
    write_safetensors(scratch / file, {{tensor, StoredType::f32, {1}, bytes, 4}}, {});
  };
  const auto index = [&](const std::string& map) {
    write_text(scratch / "model.safetensors.index.json",
               R"({"metadata":{"total_size":8},"weight_map":)" + map + "}");
  };
  const auto open = [&] { return open_huggingface_weights(scratch.path()); };

  CHECK_REFUSED(open(), "ERR_IO", "neither model.safetensors nor");
  write_text(scratch / "pytorch_model.bin", "");
  CHECK_REFUSED(open(), "ERR_IO", "pickle");

  shard("a.safetensors", "one");
  shard("b.safetensors", "two");
  index(R"({"one":"a.safetensors","two":"b.safetensors"})");
  CHECK(open().size() == 2);

  index(R"({"one":"a.safetensors","three":"b.safetensors"})");
  CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "tensor \"three\" is not in \"b.safetensors\"");
  index(R"({"one":"a.safetensors","two":"c.safetensors"})");
  CHECK_REFUSED(open(), "ERR_IO", "c.safetensors");
  shard("c.safetensors", "one");
  index(R"({"one":"c.safetensors","two":"b.safetensors"})");
  CHECK(open().size() == 2);
  write_safetensors(scratch / "c.safetensors",
                    {{"one", StoredType::f32, {1}, bytes, 4}, {"two", StoredType::f32, {1}, bytes, 4}}, {});
  CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "tensor \"two\" is in both");

  for (const std::string name : {"../a.safetensors", "/etc/passwd", "x/../a.safetensors", "..", "",
                                 ".safetensors", "a.bin", "a\\\\b.safetensors", "a\\u0000.safetensors"}) {
    CAPTURE(name);
    index(std::string(R"({"one":")") + name + "\"}");
    CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "not the plain name");
  }
  index(R"({"one":1})");
  CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "not mapped to a file name");
  index("{}");
  CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "no weight_map");
  index(R"({"one":"a.safetensors","one":"b.safetensors"})");
  CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "appears twice");
  write_text(scratch / "model.safetensors.index.json", "[]");
  CHECK_REFUSED(open(), "ERR_MODEL_FORMAT", "no weight_map");
}
