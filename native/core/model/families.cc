#include "core/model/families.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace nlac {

static constexpr std::array families = {
    &llama_family,     &qwen2_family,   &qwen3_family,   &qwen3_5_family,    &qwen3_5_moe_family,
    &qwen3_moe_family, &smollm3_family, &mistral_family, &ministral3_family, &olmo3_family,
    &gemma3_family,    &gemma4_family,  &gpt_oss_family};

std::span<const FamilyEntry* const> all_families() { return families; }

const FamilyEntry& entry_of(Family family) {
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const auto* entry) { return entry->family == family; });
  NLAC_REQUIRE(found != families.end(), "ERR_INTERNAL", "a family without an entry");
  return **found;
}

const FamilyEntry* family_named(std::string_view wanted) {
  const auto found = std::find_if(families.begin(), families.end(), [&](const auto* entry) {
    return wanted == entry->architecture || wanted == entry->name;
  });
  return found == families.end() ? nullptr : *found;
}

}  // namespace nlac
