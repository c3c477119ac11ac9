#include "core/generate/prefill.h"

#include <algorithm>
#include <utility>

namespace nlac {
namespace {

int64_t common_prefix(const std::vector<int64_t>& a, const std::vector<int64_t>& b, int64_t limit) {
  limit = std::min({limit, static_cast<int64_t>(a.size()), static_cast<int64_t>(b.size())});
  return std::mismatch(a.begin(), a.begin() + limit, b.begin()).first - a.begin();
}

// The cache of the first `length` tokens, with some room to grow.
KvCache copy_prefix(const KvCache& source, int64_t length) {
  const auto copy = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    copies.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
      at::Tensor fresh = at::empty({tensor.size(0), length + 128, tensor.size(2)}, tensor.options());
      fresh.narrow(1, 0, length).copy_(tensor.narrow(1, 0, length));
      copies.push_back(std::move(fresh));
    }
    return copies;
  };
  return KvCache{copy(source.keys), copy(source.values), length};
}

}  // namespace

Generator::Prefill::Prefill(Generator& generator, const std::vector<GenerateRequest>& requests,
                            std::vector<int64_t> chosen)
    : generator_(generator), requests_(requests) {
  // In lexicographic order, what begins alike lies together, the shorter first.
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](int64_t a, int64_t b) { return requests_[a].tokens < requests_[b].tokens; });
  build(chosen.begin(), chosen.end(), -1);
  choose_sources();
}

// Adds the nodes of a sorted range whose prompts all begin with `parent`'s tokens.
void Generator::Prefill::build(std::vector<int64_t>::const_iterator first,
                               std::vector<int64_t>::const_iterator last, int64_t parent) {
  if (first == last) return;
  const auto& tokens = requests_[*first].tokens;
  const int64_t length = static_cast<int64_t>(tokens.size());
  const int64_t begin = parent < 0 ? 0 : nodes_[parent].end;
  const int64_t shared = common_prefix(tokens, requests_[*(last - 1)].tokens, length);

  // Those that end where the range parts come first.
  const auto ends_here = [&](int64_t request) {
    return static_cast<int64_t>(requests_[request].tokens.size()) == shared;
  };
  const auto longer = std::find_if_not(first, last, ends_here);
  if (longer != first || shared >= begin + kWorthSharing) {
    Node node;
    node.tokens = &tokens;
    node.end = shared;
    node.parent = parent;
    node.requests.assign(first, longer);
    nodes_.push_back(std::move(node));
    parent = static_cast<int64_t>(nodes_.size()) - 1;
  }
  for (auto group = longer; group != last;) {
    const int64_t next = requests_[*group].tokens[shared];
    const auto end =
        std::find_if(group, last, [&](int64_t r) { return requests_[r].tokens[shared] != next; });
    build(group, end, parent);
    group = end;
  }
}

// Decides for every node whether it starts from a kept entry, from its parent, or from nothing. From the
// leaves up, so that a prefix nobody needs is not read.
void Generator::Prefill::choose_sources() {
  for (int64_t i = static_cast<int64_t>(nodes_.size()) - 1; i >= 0; --i) {
    Node& node = nodes_[i];
    node.consumers += static_cast<int64_t>(node.requests.size());
    if (node.consumers == 0) continue;
    // A prompt's last token is always read: its logits are needed.
    const int64_t limit = node.requests.empty() ? node.end : node.end - 1;
    const int64_t from_parent = node.parent < 0 ? 0 : nodes_[node.parent].end;
    bool whole = false;
    for (auto entry = generator_.entries_.begin(); entry != generator_.entries_.end(); ++entry) {
      const int64_t common = common_prefix(entry->tokens, *node.tokens, limit);
      const bool all = common == static_cast<int64_t>(entry->tokens.size());
      const bool pays = common >= from_parent + (all ? 1 : kWorthSharing);
      if (pays && (common > node.reuse || (common == node.reuse && all && !whole))) {
        node.reuse = common;
        node.entry = entry;
        whole = all;
      }
    }
    if (node.reuse > 0) {
      ++entry_users_[&*node.entry];
    } else if (node.parent >= 0) {
      nodes_[node.parent].children.push_back(i);
      ++nodes_[node.parent].consumers;
    }
  }
}

// Gives a node its first tokens' cache and queues it for reading.
void Generator::Prefill::start(int64_t index) {
  Node& node = nodes_[index];
  if (node.reuse > 0) {
    auto& entries = generator_.entries_;
    const bool whole = node.reuse == static_cast<int64_t>(node.entry->tokens.size());
    if (--entry_users_[&*node.entry] == 0 && whole) {
      node.cache = std::move(node.entry->cache);
      entries.erase(node.entry);
    } else {
      node.cache = copy_prefix(node.entry->cache, node.reuse);
      entries.splice(entries.begin(), entries, node.entry);
    }
    node.cached_tokens = node.reuse;
  } else if (node.parent >= 0) {
    node.cache = take(nodes_[node.parent]);
    node.cached_tokens = nodes_[node.parent].cached_tokens;
  }
  if (node.cache.length < node.end) {
    ready_.push_back(index);
  } else {
    complete(index);
  }
}

// Serves those who wait for a node that has been read: the last of them gets the cache itself.
void Generator::Prefill::complete(int64_t index) {
  Node& node = nodes_[index];
  for (int64_t request : node.requests) prompts_.push_back({request, rows_, node.cached_tokens, take(node)});
  if (!node.requests.empty()) ++rows_;
  for (int64_t child : node.children) start(child);
}

KvCache Generator::Prefill::take(Node& node) {
  return --node.consumers == 0 ? std::move(node.cache) : copy_prefix(node.cache, node.end);
}

bool Generator::Prefill::read(const Weights& weights, const std::atomic<bool>* cancelled) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].consumers > 0 && (nodes_[i].reuse > 0 || nodes_[i].parent < 0))
      start(static_cast<int64_t>(i));
  }
  while (!ready_.empty()) {
    if (cancelled && cancelled->load(std::memory_order_relaxed)) {
      for (int64_t index : ready_) {
        Node& node = nodes_[index];
        if (node.cache.length == 0) continue;
        generator_.store({node.tokens->begin(), node.tokens->begin() + node.cache.length},
                         std::move(node.cache));
      }
      for (ReadPrompt& prompt : prompts_) {
        generator_.store(requests_[prompt.request].tokens, std::move(prompt.cache));
      }
      return false;
    }
    std::vector<int64_t> ids, last_rows, finished;
    std::vector<CacheSlice> slices;
    while (!ready_.empty() && static_cast<int64_t>(ids.size()) < kPrefillTokens) {
      Node& node = nodes_[ready_.front()];
      const int64_t begin = node.cache.length;
      const int64_t end = std::min(node.end, begin + kPrefillTokens - static_cast<int64_t>(ids.size()));
      ids.insert(ids.end(), node.tokens->begin() + begin, node.tokens->begin() + end);
      slices.push_back({&node.cache, end - begin});
      if (end < node.end) break;
      if (!node.requests.empty()) last_rows.push_back(static_cast<int64_t>(ids.size()) - 1);
      finished.push_back(ready_.front());
      ready_.pop_front();
    }
    const at::Device device = weights.embedding.device();
    const at::Tensor hidden =
        generator_.decoder_.infer(weights, at::tensor(ids, at::kLong).to(device), slices);
    if (!last_rows.empty())
      hidden_.push_back(hidden.index_select(0, at::tensor(last_rows, at::kLong).to(device)));
    for (int64_t index : finished) complete(index);
  }
  return true;
}

}  // namespace nlac
