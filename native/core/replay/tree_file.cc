#include "core/replay/tree_file.h"

#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/checksum.h"
#include "core/io/mapped_file.h"
#include "core/replay/sum_tree_math.h"

namespace nlac {
namespace {

constexpr char file_magic[8] = {'N', 'L', 'A', 'C', 'T', 'R', 'E', 'E'};
constexpr uint64_t file_version = 1;

// Little-endian, followed by `stored` float32 priorities, zero bytes up to a multiple of eight, and
// the checksum of everything before it. Leaves past `stored` are 0.
struct FileHeader {
  char magic[8];
  uint64_t version;
  int64_t capacity, stored;
  double alpha, beta;
  uint64_t seed, draws;
};
static_assert(sizeof(FileHeader) == 64);

// Priorities are read and written in pairs.
size_t stored_bytes(int64_t stored) { return static_cast<size_t>((stored + 1) / 2 * 2) * sizeof(float); }

}  // namespace

void save_tree(const std::string& path, const TreeOptions& options, uint64_t draws, const float* priorities) {
  int64_t stored = options.capacity;
  while (stored > 0 && priorities[stored - 1] == 0) --stored;
  FileHeader header{};
  std::memcpy(header.magic, file_magic, sizeof(file_magic));
  header.version = file_version;
  header.capacity = options.capacity;
  header.stored = stored;
  header.alpha = options.alpha;
  header.beta = options.beta;
  header.seed = options.seed;
  header.draws = draws;
  Checksum checksum;
  checksum.add(&header, sizeof(header));
  checksum.add(priorities, stored_bytes(stored));
  const uint64_t sum = checksum.value();
  AtomicFile file(path);
  file.write(&header, sizeof(header));
  file.write(priorities, stored_bytes(stored));
  file.write(&sum, sizeof(sum));
  file.commit();
}

TreeState parse_tree(const uint8_t* data, size_t size, const std::string& path) {
  FileHeader header;
  NLAC_REQUIRE(size >= sizeof(header), "ERR_CHECKPOINT", path, ": ends too early");
  std::memcpy(&header, data, sizeof(header));
  NLAC_REQUIRE(std::memcmp(header.magic, file_magic, sizeof(file_magic)) == 0, "ERR_CHECKPOINT", path,
               ": not a saved sampler");
  NLAC_REQUIRE(header.version == file_version, "ERR_CHECKPOINT", path, ": version ", header.version,
               " is not one this build reads");
  const TreeOptions options{header.capacity, header.alpha, header.beta, header.seed};
  try {
    require_options(options);
  } catch (const Error& error) {
    fail("ERR_CHECKPOINT", path, ": ", error.what());
  }
  NLAC_REQUIRE(header.stored >= 0 && header.stored <= header.capacity, "ERR_CHECKPOINT", path, ": ",
               header.stored, " priorities of ", header.capacity);
  const size_t bytes = stored_bytes(header.stored);
  const size_t expected_size = sizeof(header) + bytes + sizeof(uint64_t);
  NLAC_REQUIRE(size == expected_size, "ERR_CHECKPOINT", path, ": holds ", size, " bytes, ", expected_size,
               " expected");
  uint64_t expected;
  std::memcpy(&expected, data + size - sizeof(expected), sizeof(expected));
  Checksum checksum;
  checksum.add(data, size - sizeof(expected));
  NLAC_REQUIRE(checksum.value() == expected, "ERR_CHECKPOINT", path, ": the checksum does not match");

  ZeroedMemory<float> priorities(make_tree_shape(header.capacity).size[0]);
  std::memcpy(priorities.data(), data + sizeof(header), bytes);
  const float largest = largest_priority(header.alpha);
  for (int64_t i = 0; i < header.stored; ++i) {
    NLAC_REQUIRE(priorities[i] >= 0 && priorities[i] <= largest, "ERR_CHECKPOINT", path, ": priority ",
                 priorities[i], " of leaf ", i);
  }
  // What pads an odd number of priorities would be a leaf's priority.
  NLAC_REQUIRE(header.stored % 2 == 0 || priorities[header.stored] == 0, "ERR_CHECKPOINT", path,
               ": the padding is ", priorities[header.stored], ", not 0");
  return {options, header.draws, std::move(priorities)};
}

TreeState load_tree(const std::string& path) {
  const auto file = MappedFile::open(path);
  return parse_tree(file->data(), file->size(), path);
}

}  // namespace nlac
