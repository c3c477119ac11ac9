#include "core/io/json.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/error.h"

namespace nlac {

namespace {

using Json = nlohmann::json;

// Builds the value that a text describes, within the limits. Linear in the text: the library's own
// parser with a callback searches an object again after each of its members.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  TreeBuilder(const std::string& source, const JsonLimits& limits) : source_(source), limits_(limits) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON has no such values
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    NLAC_REQUIRE(!open_.back()->contains(name), "ERR_MODEL_FORMAT", source_, ": the JSON key ",
                 printable(name), " appears twice in one object");
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    // The library's message may quote the raw text at length.
    fail("ERR_MODEL_FORMAT", source_, ": not valid JSON: ", printable(error.what()));
  }

  Json take() { return std::move(root_); }

 protected:
  // The containers that are open, the root first.
  const std::vector<Json*>& containers() const { return open_; }
  // Called after each value that is complete.
  virtual void completed() {}
  void start_member() { member_values_ = 0; }

 private:
  Json* place(Json value) {
    NLAC_REQUIRE(++values_ <= limits_.values, "ERR_MODEL_FORMAT", source_, ": JSON with more than ",
                 limits_.values, " values");
    NLAC_REQUIRE(++member_values_ <= limits_.member, "ERR_MODEL_FORMAT", source_, ": JSON with more than ",
                 limits_.member, " values in one member");
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool add(Json value) {
    place(std::move(value));
    completed();
    return true;
  }
  bool open(Json container) {
    NLAC_REQUIRE(open_.size() < limits_.depth, "ERR_MODEL_FORMAT", source_, ": JSON nested deeper than ",
                 limits_.depth);
    open_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    completed();
    return true;
  }

  const std::string& source_;
  const JsonLimits& limits_;
  Json root_;
  std::vector<Json*> open_;  // stable: a container does not change while a member of it is open
  std::string key_;
  size_t values_ = 0, member_values_ = 0;
};

// Keeps one member of the root at a time.
class MemberReader : public TreeBuilder {
 public:
  MemberReader(const std::string& source, const JsonLimits& limits, const JsonMember& read)
      : TreeBuilder(source, limits), read_(read) {}

 protected:
  void completed() override {
    if (containers().size() != 1) return;
    Json& root = *containers().front();
    if (!root.is_object()) return;
    for (const auto& [name, value] : root.items()) read_(name, value);
    root.clear();
    start_member();
  }

 private:
  const JsonMember& read_;
};

void parse(std::string_view text, const std::string& source, TreeBuilder& builder) {
  // The library treats a null byte as the end of the text and would ignore the rest.
  NLAC_REQUIRE(text.find('\0') == std::string_view::npos, "ERR_MODEL_FORMAT", source,
               ": not valid JSON: it holds a null byte");
  Json::sax_parse(text.begin(), text.end(), &builder);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  TreeBuilder builder(source, limits);
  parse(text, source, builder);
  return builder.take();
}

void parse_json_members(std::string_view text, const std::string& source, const JsonLimits& limits,
                        const JsonMember& read) {
  MemberReader reader(source, limits, read);
  parse(text, source, reader);
}

std::string printable(std::string_view text) {
  constexpr size_t longest = 160;
  std::string out = "\"";
  for (size_t i = 0; i < text.size() && i < longest; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", c);
      out += escape;
    }
  }
  out += text.size() > longest ? "…\"" : "\"";
  return out;
}

}  // namespace nlac
