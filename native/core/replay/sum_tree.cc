// A tree of sums, 16 children a node. See sum_tree_math.h for its shape and arithmetic.
#include "core/replay/sum_tree.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/random.h"

namespace nlac {
namespace {

// Draws that walk down together: enough to hide a cache miss a level behind the others' work.
constexpr int64_t walkers = 32;
constexpr int64_t prefetch_ahead = 16;
// The sum of 2^27 such masses is still finite.
constexpr double mass_limit = std::numeric_limits<double>::max() * 0x1p-28;

void prefetch_node(const double* children) {
  __builtin_prefetch(children);
  __builtin_prefetch(children + 8);
}

// --- the file ----------------------------------------------------------------------------------------

constexpr char file_magic[8] = {'N', 'L', 'A', 'C', 'T', 'R', 'E', 'E'};
constexpr uint64_t file_version = 1;

// Little-endian, followed by `stored` float32 priorities, zero bytes up to a multiple of eight, and the
// checksum of everything before it. Leaves past `stored` are 0.
struct FileHeader {
  char magic[8];
  uint64_t version;
  int64_t capacity, stored;
  double alpha, beta;
  uint64_t seed, draws;
};
static_assert(sizeof(FileHeader) == 64);

int64_t padded_floats(int64_t count) { return (count + 1) / 2 * 2; }

// Each step maps both the state and the word one to one, so a change confined to one word is always seen;
// other damage passes with a chance of 2^-64.
class Checksum {
 public:
  void add(const void* data, size_t bytes) {  // bytes: a multiple of eight
    const char* at = static_cast<const char*>(data);
    for (size_t i = 0; i < bytes; i += 8) {
      uint64_t word;
      std::memcpy(&word, at + i, 8);
      state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u;
      state_ ^= state_ >> 32;
    }
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x6E6C616374726565u;
};

}  // namespace

SumTree::SumTree(int64_t capacity, double alpha, double beta, uint64_t seed)
    : capacity_(capacity), alpha_(alpha), beta_(beta), seed_(seed) {
  NLAC_REQUIRE(capacity >= 1 && capacity <= tree_max_capacity, "ERR_VALUE",
               "capacity must be between 1 and 2^27, not ", capacity);
  NLAC_REQUIRE(std::isfinite(alpha) && alpha >= 0, "ERR_VALUE", "alpha must be finite and at least 0, not ",
               alpha);
  NLAC_REQUIRE(beta >= 0 && beta <= 1, "ERR_VALUE", "beta must be between 0 and 1, not ", beta);
  shape_ = make_tree_shape(capacity);
  raw_ = ZeroedMemory<float>(padded_floats(capacity));
  tree_ = ZeroedMemory<double>(shape_.total);
  if (beta > 0) least_ = ZeroedMemory<double>(shape_.total - shape_.size[0]);
  marks_.resize(static_cast<size_t>(shape_.size[1] + 63) / 64);
}

double SumTree::mass(float priority) const {
  if (!(priority > 0)) return 0;  // 0^0 too: a leaf never set is never drawn
  return alpha_ == 1 ? priority : std::pow(static_cast<double>(priority), alpha_);
}

void SumTree::set(const int64_t* indices, const float* priorities, int64_t count) {
  NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative");
  masses_.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    NLAC_REQUIRE(indices[i] >= 0 && indices[i] < capacity_, "ERR_INDEX", "index ", indices[i],
                 " at position ", i, " is outside a sampler of capacity ", capacity_);
    NLAC_REQUIRE(std::isfinite(priorities[i]) && priorities[i] >= 0, "ERR_PRIORITY", "priority ",
                 priorities[i], " at position ", i, " must be finite and at least 0");
    masses_[i] = mass(priorities[i]);
    NLAC_REQUIRE(masses_[i] <= mass_limit, "ERR_PRIORITY", "priority ", priorities[i], " at position ", i,
                 " raised to alpha ", alpha_, " is too large");
  }
  write_leaves(indices, priorities, count);
  update_parents(indices, count);
}

// In order, so that the last of several priorities for one leaf stays.
void SumTree::write_leaves(const int64_t* indices, const float* priorities, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + prefetch_ahead < count) {
      const int64_t next = indices[i + prefetch_ahead];
      prefetch_node(tree_.data() + next / tree_fanout * tree_fanout);
      __builtin_prefetch(raw_.data() + next, 1);
    }
    raw_[indices[i]] = priorities[i];
    tree_[indices[i]] = masses_[i];
  }
}

// Level by level, each touched node once.
void SumTree::update_parents(const int64_t* indices, int64_t count) {
  nodes_.assign(indices, indices + count);
  for (int level = 1; level < shape_.levels; ++level) {
    const double* children = tree_.data() + shape_.offset[level - 1];
    double* sums = tree_.data() + shape_.offset[level];
    size_t touched = 0;
    for (const int64_t child : nodes_) {
      const int64_t node = child / tree_fanout;
      uint64_t& mark = marks_[static_cast<size_t>(node) / 64];
      const uint64_t bit = uint64_t{1} << (node % 64);
      if (mark & bit) continue;
      mark |= bit;
      nodes_[touched++] = node;
    }
    nodes_.resize(touched);
    for (const int64_t node : nodes_) {
      marks_[static_cast<size_t>(node) / 64] = 0;
      sums[node] = node_sum(children + node * tree_fanout);
    }
    if (least_.empty()) continue;
    double* least = least_.data() - shape_.size[0] + shape_.offset[level];
    const double* below = level == 1 ? children : least_.data() - shape_.size[0] + shape_.offset[level - 1];
    for (const int64_t node : nodes_) least[node] = node_least(below + node * tree_fanout);
  }
}

void SumTree::rebuild() {
  for (int level = 1; level < shape_.levels; ++level) {
    const double* children = tree_.data() + shape_.offset[level - 1];
    const double* below =
        level == 1 || least_.empty() ? children : least_.data() - shape_.size[0] + shape_.offset[level - 1];
    const int64_t nodes = shape_.size[level - 1] / tree_fanout;
    for (int64_t node = 0; node < nodes; ++node) {
      const double sum = node_sum(children + node * tree_fanout);
      if (sum == 0) continue;  // already 0, and writing it would take memory
      tree_[shape_.offset[level] + node] = sum;
      if (!least_.empty()) {
        least_[shape_.offset[level] - shape_.size[0] + node] = node_least(below + node * tree_fanout);
      }
    }
  }
}

void SumTree::get(const int64_t* indices, float* priorities, int64_t count) const {
  NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative");
  for (int64_t i = 0; i < count; ++i) {
    NLAC_REQUIRE(indices[i] >= 0 && indices[i] < capacity_, "ERR_INDEX", "index ", indices[i],
                 " at position ", i, " is outside a sampler of capacity ", capacity_);
    priorities[i] = raw_[indices[i]];
  }
}

double SumTree::total() const { return tree_[shape_.total - 1]; }

void SumTree::sample(int64_t count, bool stratified, int64_t* indices, float* probabilities, float* weights) {
  NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative");
  const double sum = total();
  NLAC_REQUIRE(sum > 0, "ERR_EMPTY", "no leaf has a positive priority");
  const double least = least_.empty() ? 0 : least_[least_.size() - 1];
  double targets[walkers];
  for (int64_t first = 0; first < count; first += walkers) {
    const int64_t here = std::min(walkers, count - first);
    int64_t* nodes = indices + first;
    for (int64_t i = 0; i < here; ++i) {
      const double u = uniform(seed_, draw_stream, draws_ + static_cast<uint64_t>(first + i));
      targets[i] = draw_target(u, first + i, count, stratified, sum);
      nodes[i] = 0;
    }
    for (int level = shape_.levels - 2; level >= 0; --level) {
      const double* entries = tree_.data() + shape_.offset[level];
      const double* below = level > 0 ? tree_.data() + shape_.offset[level - 1] : nullptr;
      for (int64_t i = 0; i < here; ++i) {
        const int64_t children = nodes[i] * tree_fanout;
        nodes[i] = children + choose_child(entries + children, &targets[i]);
        if (below != nullptr) prefetch_node(below + nodes[i] * tree_fanout);
      }
    }
    for (int64_t i = 0; i < here; ++i) {
      const double leaf = tree_[nodes[i]];
      probabilities[first + i] = static_cast<float>(leaf / sum);
      // (n·P)^-beta over its maximum: n and the total cancel, the rarest leaf gets 1.
      weights[first + i] = least > 0 ? static_cast<float>(std::pow(leaf / least, -beta_)) : 1.0f;
    }
  }
  draws_ += static_cast<uint64_t>(count);
}

void SumTree::save(const std::string& path) const {
  int64_t stored = capacity_;
  while (stored > 0 && raw_[stored - 1] == 0) --stored;
  FileHeader header{};
  std::memcpy(header.magic, file_magic, sizeof(file_magic));
  header.version = file_version;
  header.capacity = capacity_;
  header.stored = stored;
  header.alpha = alpha_;
  header.beta = beta_;
  header.seed = seed_;
  header.draws = draws_;
  const size_t bytes = static_cast<size_t>(padded_floats(stored)) * sizeof(float);
  Checksum checksum;
  checksum.add(&header, sizeof(header));
  checksum.add(raw_.data(), bytes);
  const uint64_t sum = checksum.value();
  AtomicFile file(path);
  file.write(&header, sizeof(header));
  file.write(raw_.data(), bytes);
  file.write(&sum, sizeof(sum));
  file.commit();
}

SumTree SumTree::load(const std::string& path) {
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
  NLAC_REQUIRE(header.capacity >= 1 && header.capacity <= tree_max_capacity && header.stored >= 0 &&
                   header.stored <= header.capacity && std::isfinite(header.alpha) && header.alpha >= 0 &&
                   header.beta >= 0 && header.beta <= 1,
               "ERR_CHECKPOINT", path, ": a field of the header is out of its range");
  const int64_t bytes = padded_floats(header.stored) * static_cast<int64_t>(sizeof(float));
  NLAC_REQUIRE(size == static_cast<int64_t>(sizeof(header)) + bytes + 8, "ERR_CHECKPOINT", path, ": holds ",
               size, " bytes, ", sizeof(header) + static_cast<size_t>(bytes) + 8, " expected");

  SumTree tree(header.capacity, header.alpha, header.beta, header.seed);
  tree.draws_ = header.draws;
  read(tree.raw_.data(), static_cast<size_t>(bytes));
  uint64_t expected;
  read(&expected, sizeof(expected));
  Checksum checksum;
  checksum.add(&header, sizeof(header));
  checksum.add(tree.raw_.data(), static_cast<size_t>(bytes));
  NLAC_REQUIRE(checksum.value() == expected, "ERR_CHECKPOINT", path, ": the checksum does not match");
  for (int64_t i = 0; i < header.stored; ++i) {
    const float priority = tree.raw_[i];
    NLAC_REQUIRE(std::isfinite(priority) && priority >= 0, "ERR_CHECKPOINT", path, ": priority ", priority,
                 " of leaf ", i);
    const double leaf = tree.mass(priority);
    NLAC_REQUIRE(leaf <= mass_limit, "ERR_CHECKPOINT", path, ": priority ", priority, " of leaf ", i);
    if (leaf > 0) tree.tree_[i] = leaf;
  }
  tree.rebuild();
  return tree;
}

}  // namespace nlac
