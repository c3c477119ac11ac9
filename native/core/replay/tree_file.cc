#include "core/replay/tree_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/checksum.h"
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

TreeState load_tree(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  struct stat status;
  NLAC_REQUIRE(file != nullptr && ::fstat(::fileno(file.get()), &status) == 0, "ERR_IO", path, ": ",
               std::strerror(errno));
  NLAC_REQUIRE(S_ISREG(status.st_mode), "ERR_IO", path, ": not a file");
  const auto size = static_cast<int64_t>(status.st_size);
  const auto read = [&](void* to, size_t bytes) {
    NLAC_REQUIRE(std::fread(to, 1, bytes, file.get()) == bytes, "ERR_CHECKPOINT", path, ": ends too early");
  };

  FileHeader header;
  read(&header, sizeof(header));
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
  NLAC_REQUIRE(static_cast<size_t>(size) == expected_size, "ERR_CHECKPOINT", path, ": holds ", size,
               " bytes, ", expected_size, " expected");

  ZeroedMemory<float> priorities(make_tree_shape(header.capacity).size[0]);
  read(priorities.data(), bytes);
  uint64_t expected;
  read(&expected, sizeof(expected));
  Checksum checksum;
  checksum.add(&header, sizeof(header));
  checksum.add(priorities.data(), bytes);
  NLAC_REQUIRE(checksum.value() == expected, "ERR_CHECKPOINT", path, ": the checksum does not match");
  const float largest = largest_priority(header.alpha);
  for (int64_t i = 0; i < header.stored; ++i) {
    NLAC_REQUIRE(priorities[i] >= 0 && priorities[i] <= largest, "ERR_CHECKPOINT", path, ": priority ",
                 priorities[i], " of leaf ", i);
  }
  return {options, header.draws, std::move(priorities)};
}

}  // namespace nlac
