// Reading the prompts of one generate call. They form a tree of shared prefixes; each stretch of tokens is
// read once, starting from the best kept cache, and handed on to whoever continues it.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <vector>

#include "core/generate/generate.h"

namespace nlac {

// Tokens of one inference call while prompts are read: enough to fill the matrix products, few enough that
// activations stay small and cancelling is prompt.
constexpr int64_t kPrefillTokens = 2048;

// A shared prefix shorter than this is cheaper to read again than to split off or to copy.
constexpr int64_t kWorthSharing = 16;

// A prompt that has been read: who continues it, and where the hidden state of its last token lies.
struct ReadPrompt {
  int64_t request;
  int64_t row;            // into Prefill::hidden()
  int64_t cached_tokens;  // found among the kept entries
  KvCache cache;
};

class Generator::Prefill {
 public:
  // `chosen`: indices of the requests to read. The requests must outlive this.
  Prefill(Generator& generator, const std::vector<GenerateRequest>& requests, std::vector<int64_t> chosen);

  // Reads everything. False when `cancelled` was raised; what was read by then goes to the kept entries.
  bool read(const Weights& weights, const std::atomic<bool>* cancelled);

  std::vector<ReadPrompt>& prompts() { return prompts_; }
  at::Tensor hidden() const { return at::cat(hidden_); }  // [distinct prompts, hidden]

 private:
  using EntryIterator = std::list<Entry>::iterator;

  struct Node {
    const std::vector<int64_t>* tokens;  // the first `end` of these
    int64_t end;
    int64_t parent;                 // -1: none; always before this node in the list
    std::vector<int64_t> requests;  // whose whole prompt this is
    std::vector<int64_t> children;  // nodes that continue from this one's cache
    EntryIterator entry;            // with reuse > 0: where the first `reuse` tokens come from
    int64_t reuse = 0;
    int64_t consumers = 0;  // requests and children still to be served
    int64_t cached_tokens = 0;
    KvCache cache;
  };

  void build(std::vector<int64_t>::const_iterator first, std::vector<int64_t>::const_iterator last,
             int64_t parent);
  void choose_sources();
  void start(int64_t index);
  void complete(int64_t index);
  KvCache take(Node& node);

  Generator& generator_;
  const std::vector<GenerateRequest>& requests_;
  std::vector<Node> nodes_;
  std::map<const Entry*, int64_t> entry_users_;
  std::deque<int64_t> ready_;  // nodes whose cache is there and whose tokens are to be read
  std::vector<ReadPrompt> prompts_;
  std::vector<at::Tensor> hidden_;
  int64_t rows_ = 0;
};

}  // namespace nlac
