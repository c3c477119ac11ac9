#include "core/generate/grammar.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/generate/id_mask.h"
#include "core/io/json.h"

// --- the library's log ---------------------------------------------------------------------------

namespace {

// A warning means that a part of the grammar was ignored, so it could not be enforced.
thread_local std::string passed_over;

constexpr int kWarning = 2;  // XGRAMMAR_LOG_LEVEL_WARNING

}  // namespace

// The library's own hooks; it is built with XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw nlac::Error("ERR_VALUE", message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level == kWarning && passed_over.empty()) passed_over = message;
}

}  // namespace xgrammar

namespace nlac {
namespace {

// Time and memory of a grammar grow with its length, its depth and its repetitions.
constexpr size_t kLongestGrammar = size_t{64} << 10;         // bytes of JSON
constexpr size_t kDeepestGrammar = 64;                       // grammars in grammars, schemas in schemas
constexpr size_t kLargestAutomata = size_t{2} << 20;         // bytes
constexpr double kLongestCompile = 16, kLongestStep = 0.25;  // seconds of the processor; a step: a token

using Json = nlohmann::json;

bool is_too_deep(const std::string& schema) {
  size_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < schema.size(); ++i) {
    const char c = schema[i];
    if (c == '"') quoted = !quoted;
    if (c == '\\' && quoted) ++i;
    if (quoted) continue;
    if ((c == '{' || c == '[') && ++depth > kDeepestGrammar) return true;
    if (c == '}' || c == ']') --depth;
  }
  return false;
}

// The library parses nested groups recursively, and parses their contents again at every level.
void require_shallow(const std::string& pattern) {
  size_t depth = 0;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') ++i;
    if (c == '[' || c == ']') in_class = c == '[';
    if (in_class) continue;
    if (c == '(') ++depth;
    if (c == ')' && depth > 0) --depth;
    NLAC_REQUIRE(depth <= kDeepestGrammar, "ERR_VALUE",
                 "a regular expression's groups are nested deeper than ", kDeepestGrammar, " levels");
  }
}

void require_shallow_patterns(const Json& schema) {
  for (const auto& [key, value] : schema.items()) {
    if (key == "pattern" && value.is_string()) require_shallow(value.get_ref<const std::string&>());
    if (value.is_structured()) require_shallow_patterns(value);
  }
}

void require_nothing_passed_over() { NLAC_REQUIRE(passed_over.empty(), "ERR_VALUE", passed_over); }

// An error names the schema by its title, if it has one.
xgrammar::Grammar from_schema(const std::string& schema, bool strict) {
  require_nothing_passed_over();  // in the preceding part
  NLAC_REQUIRE(!is_too_deep(schema), "ERR_VALUE", "the schema is nested deeper than ", kDeepestGrammar,
               " levels");
  const Json parsed = Json::parse(schema);
  try {
    if (parsed.is_structured()) require_shallow_patterns(parsed);
    const xgrammar::Grammar grammar =
        xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/false, /*indent=*/std::nullopt,
                                          /*separators=*/std::nullopt, strict);
    require_nothing_passed_over();
    return grammar;
  } catch (const Error& error) {
    const Json title = parsed.is_object() ? parsed.value("title", Json()) : Json();
    if (!title.is_string()) throw;
    fail(error.code(), "the schema ", printable(title.get<std::string>()), ": ", error.what());
  }
}

// An EBNF string that is `text`, byte by byte.
xgrammar::Grammar from_literal(const std::string& text) {
  std::string rule = "root ::= \"";
  for (const char c : text) {
    if (c == '"' || c == '\\') rule += '\\';
    if (c == '\n') {
      rule += "\\n";
    } else if (c == '\r') {
      rule += "\\r";
    } else {
      rule += c;
    }
  }
  return xgrammar::Grammar::FromEBNF(rule + "\"");
}

xgrammar::Grammar build(const Json& grammar, size_t depth) {
  NLAC_REQUIRE(depth <= kDeepestGrammar, "ERR_VALUE", "it is nested deeper than ", kDeepestGrammar,
               " levels");
  NLAC_REQUIRE(grammar.is_object() && grammar.size() == 1, "ERR_VALUE", "it must be an object of one key");
  const auto only = grammar.begin();
  const std::string& kind = only.key();
  const Json& value = only.value();
  if (kind == "json") return from_schema(R"({"type": "object"})", false);
  if (kind == "sequence" || kind == "anyOf") {
    NLAC_REQUIRE(value.is_array() && !value.empty(), "ERR_VALUE", kind, " must be a list that is not empty");
    std::vector<xgrammar::Grammar> parts;
    for (const Json& part : value) parts.push_back(build(part, depth + 1));
    if (parts.size() == 1) return parts.front();
    return kind == "sequence" ? xgrammar::Grammar::Concat(parts) : xgrammar::Grammar::Union(parts);
  }
  NLAC_REQUIRE(value.is_string(), "ERR_VALUE", kind, " must be a text");
  const std::string& text = value.get_ref<const std::string&>();
  if (kind == "jsonSchema") return from_schema(text, true);
  if (kind == "regex") {
    require_shallow(text);
    return xgrammar::Grammar::FromRegex(text);
  }
  if (kind == "ebnf") return xgrammar::Grammar::FromEBNF(text);
  if (kind == "literal") return from_literal(text);
  fail("ERR_VALUE", "there is no grammar ", printable(kind));
}

xgrammar::TokenizerInfo vocabulary_of(const std::vector<std::string>& bytes) {
  return {bytes, xgrammar::VocabType::RAW, std::nullopt, /*stop_token_ids=*/std::vector<int32_t>{}};
}

double thread_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Following an ambiguous grammar can take long, and longer as the text grows.
template <typename Step>
auto in_time(Step step) {
  const double begun = thread_seconds();
  auto result = step();
  NLAC_REQUIRE(thread_seconds() - begun <= kLongestStep, "ERR_VALUE",
               "the grammar takes too long to follow: texts can be read in too many ways");
  return result;
}

}  // namespace

class Grammar {
 public:
  xgrammar::CompiledGrammar compiled;
};

// --- compiling -----------------------------------------------------------------------------------

struct GrammarCompiler::Vocabulary {
  explicit Vocabulary(std::vector<std::string> token_bytes) : bytes(std::move(token_bytes)) {}

  std::shared_ptr<const Grammar> compile(const std::string& text) {
    NLAC_REQUIRE(text.size() <= kLongestGrammar, "ERR_VALUE", "it is longer than ", kLongestGrammar,
                 " bytes");
    passed_over.clear();
    const xgrammar::Grammar grammar = build(Json::parse(text), 0);
    if (!compiler) prepare();
    const auto require = [](bool quick) {
      NLAC_REQUIRE(quick, "ERR_VALUE",
                   "it takes too long to compile: it has too many parts, or lets them repeat too often");
    };
    // The library cannot be interrupted while it compiles. Without tokens it takes seconds at most,
    // by the limits above, and reports the size of the automata. The time with more and longer tokens
    // is extrapolated from that with fewer and shorter ones.
    require(without_tokens.CompileGrammar(grammar).MemorySizeBytes() <= kLargestAutomata);
    const auto seconds = [&](xgrammar::GrammarCompiler& sample) {
      const double begun = thread_seconds();
      sample.CompileGrammar(grammar);
      return thread_seconds() - begun;
    };
    double before = 0;
    for (xgrammar::GrammarCompiler& sample : longer) {
      before = seconds(sample);
      require(before * kTwiceAsLong <= kLongestCompile);
    }
    for (xgrammar::GrammarCompiler& sample : more) {
      const double now = seconds(sample);
      require(now + (now - before) * kFewer <= kLongestCompile);
      before = now;
    }
    auto made = std::make_shared<Grammar>(Grammar{compiler->CompileGrammar(grammar)});
    require_nothing_passed_over();
    GrammarMatcher matcher(made, {});
    NLAC_REQUIRE(matcher.complete() || !matcher.allowed({}).empty(), "ERR_VALUE", "no text fits it");
    return made;
  }

  void prepare() {
    longer.clear();  // of an attempt without memory
    more.clear();
    std::vector<std::string> sorted = bytes;
    std::ranges::sort(sorted, std::greater{}, &std::string::size);
    std::map<char, std::string> longest;  // by the first byte
    for (const std::string& token : sorted)
      if (!token.empty()) longest.emplace(token.front(), token);
    const auto add = [](std::vector<xgrammar::GrammarCompiler>& to, const std::vector<std::string>& tokens) {
      to.emplace_back(vocabulary_of(tokens), /*max_threads=*/1, /*cache_enabled=*/false);
    };
    for (size_t length = 2;; length *= 2) {
      std::vector<std::string> cut;
      for (const auto& [first, token] : longest) cut.push_back(token.substr(0, length));
      add(longer, cut);
      if (sorted.empty() || sorted.front().size() <= length) break;
    }
    for (size_t stride = kFewer * kFewer * kFewer; stride > 1; stride /= kFewer) {
      std::vector<std::string> some;
      for (const auto& [first, token] : longest) some.push_back(token);
      for (size_t i = 0; i < sorted.size(); i += stride) some.push_back(sorted[i]);
      add(more, some);
    }
    compiler.emplace(vocabulary_of(bytes), /*max_threads=*/1, /*cache_enabled=*/true,
                     int64_t{kKeptBytes} / 2);
  }

  static constexpr size_t kFewer = 16;
  // A token of twice the length takes up to nine times as long (nested repetitions of one letter).
  static constexpr double kTwiceAsLong = 8;
  const std::vector<std::string> bytes;
  xgrammar::GrammarCompiler without_tokens{vocabulary_of({}), /*max_threads=*/1, /*cache_enabled=*/false};
  // The longest token of every first byte, cut to 2, 4, 8, … bytes. An ambiguous grammar takes most of
  // its time with long tokens.
  std::vector<xgrammar::GrammarCompiler> longer;
  // The longest tokens, and every kFewer^3rd, kFewer^2nd and kFewer-th of all.
  std::vector<xgrammar::GrammarCompiler> more;
  std::optional<xgrammar::GrammarCompiler> compiler;  // with all tokens; made by the first grammar
};

GrammarCompiler::GrammarCompiler(std::vector<std::string> token_bytes)
    : vocabulary_(std::make_unique<Vocabulary>(std::move(token_bytes))) {}

GrammarCompiler::~GrammarCompiler() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

PendingGrammar GrammarCompiler::compile(const std::string& grammar) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_grammar_.find(grammar); found != by_grammar_.end()) {
    kept_.splice(kept_.begin(), kept_, found->second);
    return asked_for(kept_.front());
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  std::promise<std::shared_ptr<const Grammar>> promise;
  kept_.push_front({grammar, promise.get_future().share()});
  try {
    by_grammar_[grammar] = kept_.begin();
    waiting_.emplace_back(grammar, std::move(promise));
  } catch (...) {  // no memory: a grammar that is not queued would never be ready
    by_grammar_.erase(grammar);
    kept_.pop_front();
    throw;
  }
  changed_.notify_all();
  return asked_for(kept_.front());
}

PendingGrammar GrammarCompiler::asked_for(Kept& kept) {
  std::shared_ptr<const void> wanted = kept.wanted.lock();
  if (!wanted) kept.wanted = wanted = std::make_shared<char>();
  return {kept.compiled, std::move(wanted)};
}

size_t GrammarCompiler::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

void GrammarCompiler::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    if (closing_) return;
    auto [text, promise] = std::move(waiting_.front());
    waiting_.pop_front();
    if (const auto kept = by_grammar_.find(text); kept->second->wanted.expired()) {
      kept_.erase(kept->second);
      by_grammar_.erase(kept);
      continue;
    }
    lock.unlock();
    std::shared_ptr<const Grammar> grammar;
    std::exception_ptr refusal;
    bool full = false;
    try {
      grammar = vocabulary_->compile(text);
    } catch (const Error&) {
      refusal = std::current_exception();
    } catch (const std::bad_alloc&) {
      refusal = std::current_exception();
      full = true;
    } catch (const std::exception& error) {
      refusal = std::make_exception_ptr(Error("ERR_VALUE", error.what()));
    }
    lock.lock();
    if (full) {  // not a property of the grammar: the next request compiles it again
      const auto kept = by_grammar_.find(text);
      kept_.erase(kept->second);
      by_grammar_.erase(kept);
    } else {
      by_grammar_.at(text)->bytes = text.size() + (grammar ? grammar->compiled.MemorySizeBytes() : 0);
      drop_oldest();
    }
    if (refusal) {
      promise.set_exception(refusal);
    } else {
      promise.set_value(std::move(grammar));
    }
  }
}

// Evicts the grammars beyond the limit, the oldest first. Queued ones stay.
void GrammarCompiler::drop_oldest() {
  size_t bytes = 0;
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    bytes += kept->bytes;
    if (kept->bytes > 0 && bytes > kKeptBytes) {
      by_grammar_.erase(kept->grammar);
      kept = kept_.erase(kept);
    } else {
      ++kept;
    }
  }
}

// --- matching ------------------------------------------------------------------------------------

struct GrammarMatcher::State {
  std::shared_ptr<const Grammar> grammar;
  xgrammar::GrammarMatcher matcher;
  std::vector<uint32_t> mask;
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, const std::vector<int64_t>& stop_ids) {
  std::optional<std::vector<int>> stops;
  if (!stop_ids.empty()) stops.emplace(stop_ids.begin(), stop_ids.end());
  xgrammar::GrammarMatcher matcher(grammar->compiled, std::move(stops));
  const int64_t vocab = grammar->compiled.GetTokenizerInfo().GetVocabSize();
  const auto words = static_cast<size_t>((vocab + 31) / 32);
  state_ =
      std::make_unique<State>(State{std::move(grammar), std::move(matcher), std::vector<uint32_t>(words)});
}

GrammarMatcher::~GrammarMatcher() = default;

std::span<const uint32_t> GrammarMatcher::allowed(const std::vector<int64_t>& forbidden) {
  std::vector<uint32_t>& mask = state_->mask;
  std::fill(mask.begin(), mask.end(), 0);
  int64_t words = static_cast<int64_t>(mask.size());
  DLTensor bits{mask.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &words, nullptr, 0};
  in_time([&] { return state_->matcher.FillNextTokenBitmask(&bits); });
  const int64_t vocab = state_->grammar->compiled.GetTokenizerInfo().GetVocabSize();
  if (vocab % 32 != 0) mask.back() &= (uint32_t{1} << (vocab % 32)) - 1;
  for (const int64_t id : forbidden)
    if (id < vocab) take_from_mask(mask.data(), id);
  if (std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; })) return {};
  return mask;
}

bool GrammarMatcher::accept(int64_t id) {
  return in_time([&] { return state_->matcher.AcceptToken(static_cast<int32_t>(id)); });
}

bool GrammarMatcher::complete() const { return state_->matcher.IsCompleted(); }

}  // namespace nlac
