// Masks against a naive one: for every token, whether some match starts with the current prefix and
// the token.
#include "core/generate/grammar.h"

#include <doctest/doctest.h>

#include <functional>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "test/core/failing_new.h"

using nlac::Error;
using nlac::GrammarCompiler;
using nlac::GrammarMatcher;

namespace {

// A language as a finite list of strings.
using Language = std::set<std::string>;

std::shared_ptr<const nlac::Grammar> compiled(const std::vector<std::string>& tokens,
                                              const std::string& grammar) {
  return GrammarCompiler(tokens).compile(grammar).get();
}

std::string refusal(const std::string& grammar, const std::vector<std::string>& tokens = {"a", "b"}) {
  try {
    compiled(tokens, grammar);
  } catch (const Error& error) {
    CHECK(std::string(error.code()) == "ERR_VALUE");
    return error.what();
  }
  return "";
}

bool is_allowed(std::span<const uint32_t> mask, int64_t id) {
  return !mask.empty() && (mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1);
}

bool begins_some(const Language& language, const std::string& text) {
  const auto next = language.lower_bound(text);
  return next != language.end() && next->starts_with(text);
}

// Follows `grammar` along random strings and compares every mask with the language.
void check_masks(const std::vector<std::string>& tokens, const std::string& grammar, const Language& language,
                 uint64_t seed) {
  CAPTURE(grammar);
  const int64_t stop = 0;  // tokens[0] has no bytes
  const auto shared = compiled(tokens, grammar);
  std::mt19937_64 numbers(seed);
  for (int text_number = 0; text_number < 8; ++text_number) {
    GrammarMatcher matcher(shared, {stop});
    std::string text;
    for (;;) {
      CAPTURE(text);
      const bool complete = language.contains(text);
      CHECK(matcher.complete() == complete);
      const auto mask = matcher.allowed({});
      std::vector<int64_t> next;
      for (int64_t id = 0; id < static_cast<int64_t>(tokens.size()); ++id) {
        CAPTURE(id);
        const std::string& bytes = tokens[static_cast<size_t>(id)];
        const bool fits = id == stop ? complete : !bytes.empty() && begins_some(language, text + bytes);
        CHECK(is_allowed(mask, id) == fits);
        if (fits) next.push_back(id);
      }
      if (next.empty()) break;
      const int64_t id = next[numbers() % next.size()];
      REQUIRE(matcher.accept(id));
      if (id == stop) break;
      text += tokens[static_cast<size_t>(id)];
    }
  }
}

// The grammar of a JSON schema.
std::string of_schema(const std::string& schema) {
  std::string escaped;
  for (const char c : schema) escaped += c == '"' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  return R"({"jsonSchema": ")" + escaped + R"("})";
}

// All strings over `letters` of up to `longest` letters that `fits` accepts.
Language texts(const std::string& letters, size_t longest,
               const std::function<bool(const std::string&)>& fits) {
  Language language;
  std::vector<std::string> layer{""};
  for (size_t length = 0;; ++length) {
    for (const std::string& text : layer)
      if (fits(text)) language.insert(text);
    if (length == longest) return language;
    std::vector<std::string> longer;
    for (const std::string& text : layer)
      for (const char letter : letters) longer.push_back(text + letter);
    layer = std::move(longer);
  }
}

// The stop id, and words over the letters; with `bytes` every letter is a token by itself.
std::vector<std::string> vocabulary(const std::string& letters, bool bytes, uint64_t seed) {
  std::mt19937_64 numbers(seed);
  std::vector<std::string> tokens{""};
  if (bytes)
    for (const char letter : letters) tokens.emplace_back(1, letter);
  while (tokens.size() < letters.size() + 40) {
    std::string token;
    for (size_t length = 1 + numbers() % 4; length > 0; --length)
      token += letters[numbers() % letters.size()];
    tokens.push_back(token);
  }
  tokens.emplace_back();  // a row of padding
  return tokens;
}

}  // namespace

TEST_CASE("a mask has exactly the tokens that some match continues with") {
  // Each matches texts of 7 letters at most, so that the list of them is complete.
  const std::vector<std::string> patterns = {
      "a",
      "(a|b){0,7}",
      "a{2,5}b?",
      "(ab|ba){1,3}",
      "[ab]{3}c?(ab)?",
      "(a|ab)(c|bca)?",
      "a{0,3}b{0,3}",
      "(abc|acb|bac){2}",
      "(a(b(c)?)?)?",
  };
  const std::string letters = "abc";
  for (const std::string& pattern : patterns) {
    const std::regex expected(pattern);
    const Language language =
        texts(letters, 7, [&](const std::string& text) { return std::regex_match(text, expected); });
    for (uint64_t seed = 0; seed < 6; ++seed)
      check_masks(vocabulary(letters, seed % 2 == 0, seed), R"({"regex": ")" + pattern + "\"}", language,
                  seed);
  }
}

TEST_CASE("a token is matched as a whole, not by a token that it contains") {
  const Language language = {"acab", "acaba"};
  check_masks({"", "ab", "acab", "ba", "a"}, R"({"regex": "acaba?"})", language, 1);
}

TEST_CASE("a schema's mask has exactly the tokens that some value continues with") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> schemas = {
      {R"({"enum": ["ab", "abc", "b"]})", {"\"ab\"", "\"abc\"", "\"b\""}},
      {R"({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 1]", "[1, 1, 1]"}},
      {R"({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}, "required": ["a"]})",
       {R"({"a": true})", R"({"a": false})", R"({"a": true, "b": null})", R"({"a": false, "b": null})"}},
      {R"({"type": "integer", "minimum": 8, "maximum": 12})", {"8", "9", "10", "11", "12"}},
  };
  for (const auto& [schema, values] : schemas) {
    const Language language(values.begin(), values.end());
    for (uint64_t seed = 0; seed < 6; ++seed)
      check_masks(vocabulary("ab1:, \"{}[]truefalsn0289", true, seed), of_schema(schema), language, seed);
  }
}

TEST_CASE("a schema's pattern may repeat often") {
  const auto quoted = [](size_t count) { return '"' + std::string(count, 'a') + '"'; };
  Language some, any;
  for (size_t count = 0; count <= 160; ++count) {
    any.insert(quoted(count));
    if (count >= 150) some.insert(quoted(count));
  }
  for (const auto& [pattern, language] : {std::pair("^a{150,160}$", some), {"^(a?){160}$", any}}) {
    const std::string schema = R"({"type": "string", "pattern": ")" + std::string(pattern) + "\"}";
    check_masks(vocabulary("a\"", true, 1), of_schema(schema), language, 1);
  }
}

TEST_CASE("a character is the bytes of UTF-8, without surrogates and overlong sequences") {
  std::set<std::string> starts;  // of the characters beyond ASCII
  for (uint32_t point = 0x80; point <= 0x10FFFF; ++point) {
    if (point >= 0xD800 && point <= 0xDFFF) continue;
    const size_t more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    const uint32_t mark = more == 1 ? 0xC0 : more == 2 ? 0xE0 : 0xF0;
    std::string text(1, static_cast<char>(mark | point >> (6 * more)));
    starts.insert(text);
    for (size_t left = more; left-- > 0;) {
      text += static_cast<char>(0x80 | (point >> (6 * left) & 0x3F));
      starts.insert(text);
    }
  }
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  const auto check = [&](const std::string& grammar, const std::string& before) {
    CAPTURE(grammar);
    const auto shared = compiled(bytes, grammar);
    const std::function<void(const std::string&)> follow = [&](const std::string& prefix) {
      GrammarMatcher matcher(shared, {});
      for (const char byte : before + prefix) REQUIRE(matcher.accept(static_cast<unsigned char>(byte)));
      const auto mask = matcher.allowed({});
      std::vector<std::string> open;
      for (int byte = 0x80; byte < 256; ++byte) {
        const std::string text = prefix + static_cast<char>(byte);
        CAPTURE(text);
        CHECK(is_allowed(mask, byte) == starts.contains(text));
        // The bytes of a length's first and last character, and all second bytes.
        const bool ends = byte == 0x80 || byte == 0xBF || prefix.size() < 2;
        const auto next = starts.upper_bound(text);
        if (ends && next != starts.end() && next->starts_with(text)) open.push_back(text);
      }
      for (const std::string& text : open) follow(text);
    };
    follow("");
  };
  check(R"({"jsonSchema": "{\"type\": \"string\", \"maxLength\": 200}"})", "\"");
  check(R"({"jsonSchema": "{\"type\": \"string\"}"})", "\"");
  check(R"({"regex": "."})", "");
  check(R"({"regex": "[^a]{3}"})", "");
  check(R"({"regex": "[^a]{1,300}"})", "");
  check(R"({"ebnf": "root ::= [^a]*"})", "");
}

TEST_CASE("grammars are concatenated or alternatives, and text is literal") {
  const std::string grammar =
      R"({"sequence": [{"literal": "a\"b\\\n"}, {"anyOf": [{"regex": "c{1,2}"}, {"ebnf": "root ::= \"x\" | \"y\""}]}]})";
  const Language language = {"a\"b\\\nc", "a\"b\\\ncc", "a\"b\\\nx", "a\"b\\\ny"};
  for (uint64_t seed = 0; seed < 6; ++seed)
    check_masks(vocabulary("ab\"\\\ncxy", true, seed), grammar, language, seed);
}

TEST_CASE("a grammar that cannot be enforced is rejected") {
  const auto nested = [](int times, const std::string& open, const std::string& close) {
    std::string text;
    for (int i = 0; i < times; ++i) text += open;
    text += "{}";
    for (int i = 0; i < times; ++i) text += close;
    return text;
  };
  CHECK(refusal(R"({"regex": "a"})").empty());
  CHECK(refusal("nonsense").find("parse") != std::string::npos);
  CHECK(refusal("[]").find("one key") != std::string::npos);
  CHECK(refusal(R"({"grammar": "a"})").find("no grammar \"grammar\"") != std::string::npos);
  CHECK(refusal(R"({"regex": 3})").find("must be a text") != std::string::npos);
  CHECK(refusal(R"({"sequence": []})").find("list") != std::string::npos);
  CHECK(refusal(R"({"regex": "(a"})").find("not closed") != std::string::npos);
  CHECK(refusal(R"({"regex": "a^b"})").find("ignored") != std::string::npos);  // would be passed over
  CHECK(refusal(R"({"regex": "(?=a)b"})").find("ookahead") != std::string::npos);
  CHECK(refusal(R"({"ebnf": "root ::= other"})").find("not defined") != std::string::npos);
  CHECK(refusal(R"({"ebnf": "root ::= root"})").find("no text fits") != std::string::npos);
  CHECK(refusal(R"({"regex": "c"})").find("no text fits") != std::string::npos);  // no token spells it
  CHECK(refusal(R"({"jsonSchema": "false"})").find("cannot accept") != std::string::npos);
  CHECK(refusal(R"({"jsonSchema": "{\"allOf\": [{\"type\": \"string\"}, {\"maxLength\": 3}]}"})")
            .find("allOf") != std::string::npos);
  CHECK(refusal(R"({"jsonSchema": "{\"required\": [3]}"})").empty() == false);
  const std::string titled = refusal(
      R"({"anyOf": [{"jsonSchema": "true"}, {"jsonSchema": "{\"title\": \"wait\", \"$ref\": \"#/$defs/none\"}"}]})");
  CHECK(titled.find("the schema \"wait\": ") == 0);
  CHECK(titled.find("none") != std::string::npos);
  CHECK(
      refusal(R"({"sequence": [{"regex": "a^b"}, {"jsonSchema": "{\"title\": \"wait\"}"}]})").find("wait") ==
      std::string::npos);
  CHECK(refusal(R"({"jsonSchema": ")" + nested(200, R"({\"items\":)", "}") + "\"}").find("deeper") !=
        std::string::npos);
  CHECK(refusal(nested(200, R"({"sequence":[)", "]}")).find("deeper") != std::string::npos);
  CHECK(refusal(R"({"regex": ")" + std::string(70'000, 'a') + "\"}").find("longer") != std::string::npos);
}

TEST_CASE("forbidden ids and eos ids are not part of a match") {
  const auto grammar = compiled({"", "a", "b", "ab"}, R"({"regex": "(ab)*"})");
  GrammarMatcher matcher(grammar, {2});
  CHECK(is_allowed(matcher.allowed({}), 1));
  CHECK(is_allowed(matcher.allowed({}), 2));  // the empty text may end
  CHECK_FALSE(is_allowed(matcher.allowed({1}), 1));
  CHECK(matcher.allowed({1, 2, 3}).empty());
  CHECK_FALSE(matcher.accept(0));
  REQUIRE(matcher.accept(1));
  CHECK(matcher.allowed({}).empty());  // "b" is the only way on, and it may only end a text
  CHECK_FALSE(matcher.accept(2));
  CHECK_FALSE(matcher.complete());
}

TEST_CASE("a compiler caches results, rejections too, and drops the oldest") {
  GrammarCompiler compiler({"", "a"});
  const auto first = compiler.compile(R"({"regex": "a"})");
  CHECK(compiler.compile(R"({"regex": "a"})").get() == first.get());
  CHECK_THROWS_AS(compiler.compile(R"({"regex": "("})").get(), Error);
  CHECK_THROWS_AS(compiler.compile(R"({"regex": "("})").get(), Error);
  CHECK(compiler.kept() == 2);
  // Each counts at least its own length.
  const std::string filler(60'000, 'a');
  const size_t enough = GrammarCompiler::kKeptBytes / filler.size() + 9;
  for (size_t i = 0; i < enough; ++i) {
    const auto compiled = compiler.compile("[\"" + std::to_string(i) + filler + "\"]");
    CHECK_THROWS_AS(compiled.get(), Error);
  }
  CHECK(compiler.kept() < enough);
  CHECK(compiler.compile(R"({"regex": "a"})").get() != first.get());
}

TEST_CASE("deeply nested groups are rejected because the library would overflow the stack") {
  const std::vector<std::string> tokens = {"a", "(", "[", "]", "\""};
  const auto nested = [](size_t levels, const std::string& close) {
    std::string pattern(levels, '(');
    pattern += "a";
    for (size_t i = 0; i < levels; ++i) pattern += close;
    return pattern;
  };
  for (const std::string& close : {std::string(")"), std::string(")?")}) {
    for (const size_t levels : {60, 65, 15'000}) {
      CAPTURE(levels);
      const std::string pattern = nested(levels, close);
      const std::string refused = levels > 64 ? "nested deeper" : "";
      for (const std::string& grammar :
           {R"({"regex": ")" + pattern + R"("})",
            R"({"jsonSchema": "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": \")" +
                pattern + R"(\"}}"})"}) {
        const std::string message = refusal(grammar, tokens);
        CHECK(message.empty() == refused.empty());
        CHECK(message.find(refused) != std::string::npos);
      }
    }
  }
  // Neither a class nor an escape is a group.
  CHECK(refusal(R"({"regex": "[)" + std::string(100, '(') + R"(]\\(*"})", tokens).empty());
}

TEST_CASE("a pattern that long tokens can match in many ways is rejected") {
  std::vector<std::string> tokens = {"", "b", "\""};
  for (size_t length = 1; length <= 128; length *= 2) tokens.emplace_back(length, 'a');
  const auto refused = [&](const std::string& pattern) {
    return refusal(of_schema(R"({"type": "string", "pattern": ")" + pattern + "\"}"), tokens);
  };
  // It would compile, after minutes.
  CHECK(refused("^((a{1,100}){1,100}){1,3}b$").find("takes too long to compile") != std::string::npos);
  CHECK(refused("^((a{1,5}){1,5}){1,3}b$").empty());
}

TEST_CASE("a grammar without waiting requests is not compiled") {
  GrammarCompiler compiler({"", "a", "b"});
  const auto first = compiler.compile(R"({"regex": "a"})");
  compiler.compile(R"({"regex": "b"})");  // in line, and given up at once
  const auto last = compiler.compile(R"({"regex": "ab"})");
  CHECK(last.get());
  CHECK(compiler.kept() == 2);
  CHECK(compiler.compile(R"({"regex": "b"})").get());
  CHECK(compiler.kept() == 3);
  CHECK(compiler.compile(R"({"regex": "a"})").get() == first.get());
}

TEST_CASE("hostile grammars are compiled or rejected") {
  // Pieces of regular expressions, EBNF and schemas in any order.
  const std::vector<std::string> pieces = {"a",
                                           "b",
                                           "(",
                                           ")",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           "*",
                                           "+",
                                           "?",
                                           "|",
                                           "^",
                                           "$",
                                           ".",
                                           ",",
                                           "1",
                                           "9",
                                           "-",
                                           "#",
                                           "/",
                                           "=",
                                           "!",
                                           ":",
                                           "é",
                                           "\\\\",
                                           "\\n",
                                           "\\\"",
                                           "{2,3}",
                                           "{0}",
                                           "{9,99}",
                                           "[^a]",
                                           "[a-z]",
                                           "(?:",
                                           "(?=",
                                           "(?<n>",
                                           "\\\\d",
                                           "\\\\u0061",
                                           "\\\\x",
                                           "root ::= ",
                                           "x ::= ",
                                           "root",
                                           "x",
                                           "TagDispatch(",
                                           "Token(1)",
                                           "\\\"type\\\"",
                                           "\\\"string\\\"",
                                           "\\\"$ref\\\"",
                                           "\\\"#\\\"",
                                           "\\\"enum\\\"",
                                           "\\\"items\\\""};
  std::mt19937_64 numbers(7);
  GrammarCompiler compiler({"", "a", "b", "ab", "\"", "{", "}", ":"});
  for (int i = 0; i < 2'000; ++i) {
    static const char* const kinds[] = {"regex", "ebnf", "jsonSchema"};
    const char* const kind = kinds[numbers() % 3];
    std::string text = kind[0] == 'e' && numbers() % 2 ? "root ::= " : "";
    for (size_t count = 1 + numbers() % 12; count > 0; --count) text += pieces[numbers() % pieces.size()];
    const std::string grammar = std::string("{\"") + kind + "\": \"" + text + "\"}";
    CAPTURE(grammar);
    try {
      GrammarMatcher matcher(compiler.compile(grammar).get(), {0});
      for (int step = 0; step < 20; ++step) {
        const auto mask = matcher.allowed({});
        if (mask.empty()) break;
        int64_t id = static_cast<int64_t>(numbers() % 8);
        while (!is_allowed(mask, id)) id = (id + 1) % 8;
        REQUIRE(matcher.accept(id));
        if (id == 0) break;
      }
    } catch (const Error& error) {
      CHECK(std::string(error.code()) == "ERR_VALUE");
    }
  }
}

TEST_CASE("a grammar that could not be queued for lack of memory is compiled when it is asked for again") {
  GrammarCompiler compiler({"a", "b"});
  int64_t failures = 0;
  for (bool failed = true; failed; ++failures) {
    const std::string grammar =
        R"({"literal": ")" + std::string(40 + static_cast<size_t>(failures), 'a') + "\"}";
    failed = false;
    {
      const nlac::test::FailingNew failing(failures);
      try {
        compiler.compile(grammar);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
    }
    CHECK(compiler.compile(grammar).get() != nullptr);
  }
  CHECK(failures > 5);
}

TEST_CASE("a grammar for which there was no memory is compiled again for the next request") {
  GrammarCompiler compiler({"a", "b"});
  int failures = 0;
  for (const int64_t allocations : {0, 1, 10, 100, 1000}) {
    CAPTURE(allocations);
    const std::string grammar = R"({"regex": "a{)" + std::to_string(allocations + 1) + R"(}b*"})";
    {
      const nlac::test::FailingNewElsewhere failing(allocations);
      try {
        compiler.compile(grammar).get();
      } catch (const std::bad_alloc&) {
        ++failures;
      }
    }
    CHECK(compiler.compile(grammar).get() != nullptr);
  }
  CHECK(failures > 1);
}
