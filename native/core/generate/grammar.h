// Text that must have a form: grammars, compiled for a vocabulary, and where a text stands in one. The library behind it
// is xgrammar (third_party/), which nothing outside grammar.cc sees. Needs no torch.
//
// A grammar is given as JSON, one object of one key:
//   {"jsonSchema": text of a schema}   the value it describes, on one line, keys in the schema's order
//   {"json": true}                     any JSON object, on one line
//   {"regex": text}                    what all of a regular expression matches, in JavaScript's spelling
//   {"ebnf": text}                     what the rule `root` derives, in xgrammar's EBNF (much like GBNF)
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

// Compiled for a vocabulary. Immutable: any number of matchers on any threads may share it.
class Grammar;
// Ready, or being compiled. get() throws what the grammar was refused with, ERR_VALUE.
class PendingGrammar : public std::shared_future<std::shared_ptr<const Grammar>> {
 public:
  PendingGrammar() = default;
  PendingGrammar(std::shared_future<std::shared_ptr<const Grammar>> compiled,
                 std::shared_ptr<const void> wanted)
      : shared_future(std::move(compiled)), wanted_(std::move(wanted)) {}

 private:
  std::shared_ptr<const void> wanted_;  // goes with the last copy
};

// Compiles for one vocabulary, on a thread of its own that begins with the first grammar, and keeps what it compiled:
// the grammars asked for last, up to `kKeptBytes` together. A grammar is refused that says more than can be held to, and
// one that would take long to compile; the limits stand in grammar.cc. One that nobody waits for any more once its turn
// comes is not compiled. Any thread may call.
class GrammarCompiler {
 public:
  static constexpr size_t kKeptBytes = size_t{64} << 20;

  // Of every id its bytes. An id without any is never part of a text that has a grammar.
  explicit GrammarCompiler(std::vector<std::string> token_bytes);
  // Waits for the grammar that is being compiled; those in line are never compiled.
  ~GrammarCompiler();

  PendingGrammar compile(const std::string& grammar);
  size_t kept() const;  // grammars, those in line too

 private:
  struct Vocabulary;
  struct Kept {
    std::string grammar;
    std::shared_future<std::shared_ptr<const Grammar>> compiled;
    std::weak_ptr<const void> wanted = {};  // expired: nobody has it
    size_t bytes = 0;                       // 0: in line
  };

  static PendingGrammar asked_for(Kept& kept);
  void run();
  void drop_oldest();

  std::unique_ptr<Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::list<Kept> kept_;  // the last one asked for first
  std::unordered_map<std::string, std::list<Kept>::iterator> by_grammar_;
  std::deque<std::pair<std::string, std::promise<std::shared_ptr<const Grammar>>>> waiting_;
  std::thread thread_;
};

// Where one text stands in a grammar. One thread at a time.
class GrammarMatcher {
 public:
  // `stop_ids` end the text: they may stand where the grammar may end and nowhere else, whatever their bytes.
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, const std::vector<int64_t>& stop_ids);
  ~GrammarMatcher();

  // Bit id % 32 of word id / 32 says whether the id may come next; `forbidden` ids never may. Empty where none may. The words
  // stay as they are until the next call. Throws ERR_VALUE for a grammar that takes too long to follow.
  std::span<const uint32_t> allowed(const std::vector<int64_t>& forbidden);
  // Takes the next id. False, and nothing is taken, for one that may not come. Throws as allowed() does.
  bool accept(int64_t id);
  bool complete() const;  // whether the grammar may end here

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nlac
