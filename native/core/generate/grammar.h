// Grammars compiled for a vocabulary, and matchers that follow a text. Implemented by xgrammar
// (third_party/), which only grammar.cc includes. No torch.
//
// A grammar is given as JSON, one object of one key:
//   {"jsonSchema": text of a schema}   a value of the schema on one line, keys in the schema's order
//   {"json": true}                     any JSON object, on one line
//   {"regex": text}                    a full match of a regular expression in JavaScript's syntax
//   {"ebnf": text}                     the rule `root` in xgrammar's EBNF (similar to GBNF)
//   {"literal": text}                  the text itself
//   {"sequence": [grammar …]}          one after another
//   {"anyOf": [grammar …]}             one of them
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nlac {

// A grammar compiled for a vocabulary. Immutable: matchers on any threads may share it.
class Grammar;
// A grammar that is ready or being compiled. get() throws ERR_VALUE if it was refused, std::bad_alloc
// if there was no memory.
class PendingGrammar : public std::shared_future<std::shared_ptr<const Grammar>> {
 public:
  PendingGrammar() = default;
  PendingGrammar(std::shared_future<std::shared_ptr<const Grammar>> compiled,
                 std::shared_ptr<const void> wanted)
      : shared_future(std::move(compiled)), wanted_(std::move(wanted)) {}

 private:
  std::shared_ptr<const void> wanted_;  // released with the last copy
};

// Compiles grammars for one vocabulary on its own thread, which starts with the first grammar.
// Caches the most recently used grammars, up to `kKeptBytes`. Refuses grammars that cannot be
// enforced or that take too long to compile; grammar.cc has the limits. Skips a grammar that no
// request waits for any more. Any thread may call.
class GrammarCompiler {
 public:
  static constexpr size_t kKeptBytes = size_t{64} << 20;

  // `bytes` of every id. An id without bytes never occurs in a text that has a grammar.
  explicit GrammarCompiler(std::vector<std::string> token_bytes);
  // Waits for the grammar that is being compiled. Queued ones are dropped.
  ~GrammarCompiler();

  PendingGrammar compile(const std::string& grammar);
  size_t kept() const;  // number of grammars, queued ones included

 private:
  struct Vocabulary;
  struct Kept {
    std::string grammar;
    std::shared_future<std::shared_ptr<const Grammar>> compiled;
    std::weak_ptr<const void> wanted = {};  // expired: no request waits
    size_t bytes = 0;                       // 0: queued
  };

  static PendingGrammar asked_for(Kept& kept);
  void run();
  void drop_oldest();

  std::unique_ptr<Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::list<Kept> kept_;  // most recently requested first
  std::unordered_map<std::string, std::list<Kept>::iterator> by_grammar_;
  std::deque<std::pair<std::string, std::promise<std::shared_ptr<const Grammar>>>> waiting_;
  std::thread thread_;
};

// The position of one text in a grammar. One thread at a time.
class GrammarMatcher {
 public:
  // `stop_ids` end the text. They are allowed only where the grammar may end, whatever their bytes.
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, const std::vector<int64_t>& stop_ids);
  ~GrammarMatcher();

  // Returns the mask of the ids that may come next: bit id % 32 of word id / 32. `forbidden` ids
  // are excluded. Empty if none may come. Valid until the next call. Throws ERR_VALUE for a grammar
  // that takes too long to follow.
  std::span<const uint32_t> allowed(const std::vector<int64_t>& forbidden);
  // Advances by the next id. Returns false, and does not advance, if it is not allowed. Throws as
  // allowed() does.
  bool accept(int64_t id);
  bool complete() const;  // whether the grammar may end here

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nlac
