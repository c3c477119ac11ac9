// The fuzzers' checks without libFuzzer: the seeds, mutated at random but the same on every run.
// With the sanitizer builds, this tests the parsers against hostile files on every change.
#include <random>

#include "fuzz/exercise.h"
#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

namespace {

class Mutator {
 public:
  Mutator(std::vector<Bytes> seeds, std::vector<std::string> words)
      : seeds_(std::move(seeds)), words_(std::move(words)) {}

  Bytes next() {
    Bytes bytes = seeds_[below(seeds_.size())];
    for (uint64_t i = 1 + below(4); i > 0; --i) mutate(bytes);
    return bytes;
  }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }

  void mutate(Bytes& bytes) {
    const size_t at = below(bytes.size() + 1);
    const auto here = bytes.begin() + static_cast<ptrdiff_t>(at);
    const size_t length = std::min<size_t>(1 + below(16), bytes.size() - at);
    switch (below(8)) {
      case 0:  // a bit
        if (at < bytes.size()) bytes[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:  // a byte
        if (at < bytes.size()) bytes[at] = static_cast<uint8_t>(random_());
        break;
      case 2:  // cut off
        bytes.resize(at);
        break;
      case 3:  // a piece less
        bytes.erase(here, here + static_cast<ptrdiff_t>(length));
        break;
      case 4: {  // a piece twice
        const Bytes piece(here, here + static_cast<ptrdiff_t>(length));
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), piece.begin(), piece.end());
        break;
      }
      case 5: {  // a number of note over what is there
        constexpr uint64_t numbers[] = {
            0,         1, 31, 32, 255, 1u << 31, UINT32_MAX, uint64_t{1} << 62, INT64_MAX, uint64_t{1} << 63,
            UINT64_MAX};
        const uint64_t value = numbers[below(std::size(numbers))];
        for (size_t i = 0; i < 8 && at + i < bytes.size(); ++i)
          bytes[at + i] = static_cast<uint8_t>(value >> 8 * i);
        break;
      }
      default: {  // a word, over what is there or between
        const std::string& word = words_[below(words_.size())];
        if (below(2) == 0)
          bytes.erase(here, here + static_cast<ptrdiff_t>(std::min(word.size(), bytes.size() - at)));
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), word.begin(), word.end());
      }
    }
  }

  std::vector<Bytes> seeds_;
  std::vector<std::string> words_;
  std::mt19937_64 random_{20240607};  // its sequence is fixed by the standard
};

template <typename Exercise>
void run(const std::string& format, std::vector<std::string> words, Exercise exercise, int mutations = 7000) {
  std::vector<Bytes> seeds;
  std::vector<std::filesystem::path> paths;
  for (const auto& item : std::filesystem::directory_iterator(fixture("io/seeds/" + format))) {
    paths.push_back(item.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) seeds.push_back(read_bytes(path));
  REQUIRE(seeds.size() >= 2);
  for (const Bytes& seed : seeds) exercise(seed.data(), seed.size());

  Mutator mutator(std::move(seeds), std::move(words));
  int different = 0;
  Bytes last;
  for (int i = 0; i < mutations; ++i) {
    Bytes bytes = mutator.next();
    exercise(bytes.data(), bytes.size());  // aborts or throws, except for a refusal
    different += bytes != last;
    last = std::move(bytes);
  }
  CHECK(different > mutations * 9 / 10);
}

}  // namespace

TEST_CASE("mutated safetensors files are refused or read, never worse") {
  run("safetensors",
      {"[0,4]", "[-1]", "[18446744073709551615]", "\"F32\"", "\"BOOL\"", "{", "}", "[", "]", "1e999",
       "\"shape\":[4294967296,4294967296]", "\"__metadata__\":{\"a\":\"b\"},"},
      fuzz::exercise_safetensors);
}

TEST_CASE("mutated GGUF files are refused or read, never worse") {
  run("gguf",
      {"general.alignment", "general.architecture", "llama", "qwen2", "qwen3", std::string("\4\0\0\0", 4),
       std::string("\10\0\0\0", 4), std::string("\11\0\0\0", 4), std::string("\36\0\0\0", 4), "linear"},
      fuzz::exercise_gguf);
}

TEST_CASE("mutated configurations are refused or read, never worse") {
  run("config",
      {"null", "-1", "0", "1e308", "true", "\"dynamic\"", "[", "]", "{", "}", ",", ":",
       "\"rope_scaling\":{\"type\":\"yarn\"},", "\"head_dim\":1,", "\"rope_theta\":0,",
       "\"sliding_window\":3,", "\"sliding_attention\",", "\"text_config\":{", "18446744073709551615"},
      fuzz::exercise_config);
}

TEST_CASE("mutated shard indexes are refused or read, never worse") {
  run("index",
      {"\"weight_map\":{", "\"a\":\"a.safetensors\"", "../", "\\u0000", "\\\\", ".safetensors", "{", "}", "[",
       "null"},
      fuzz::exercise_index);
}

TEST_CASE("blocks of any bytes have values") { run("values", {"\x7c", "\xfc\x7f"}, fuzz::exercise_values); }

TEST_CASE("mutated files of priority trees are refused or read, never worse") {
  run("sampler",
      {std::string("\0\0\xc0\x7f", 4), std::string("\0\0\x80\xbf", 4), std::string("\0\0\x80\x7f", 4)},
      fuzz::exercise_sampler);
}

TEST_CASE("mutated grammars are refused or followed, never worse") {
  run("grammar",
      {"(", ")", "[^", "{2,3}", "|", "\\d", "::=", "root", "\"$ref\":\"#\"", "\"anyOf\":[", "\"type\":",
       "\"integer\"", "\"maxItems\":3,", "\"pattern\":\"a*\",", "\"minimum\":-1,", "{\"regex\":\"a\"}"},
      fuzz::exercise_grammar, 500);
}

TEST_CASE("grammars are followed in any vocabulary") {
  run("vocabulary", {"\n", "\n\n", "\"", "{\"", "\":", "}", "\xc3\n\xa9", "\xff", "b", "cd\n"},
      fuzz::exercise_vocabulary, 500);
}
