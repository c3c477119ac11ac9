// NativeRanks of lib/native/addon.ts: this process's place among the ranks of a training, and the
// store through which they find each other. Its calls wait for other ranks, so they run on a
// worker.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "binding/addon_data.h"
#include "binding/convert.h"
#include "binding/functions.h"
#include "core/error.h"
#include "core/ranks/rank_group.h"

namespace nlac::binding {
namespace {

struct Nothing {};

class RanksHandle : public Napi::ObjectWrap<RanksHandle> {
 public:
  static constexpr napi_type_tag tag = {0x8c15e7d2094fa36b, 0x6be38f50d17c2a94};
  static std::span<const Member<RanksHandle>> members();

  explicit RanksHandle(const Napi::CallbackInfo& info) : Napi::ObjectWrap<RanksHandle>(info) {
    const auto* made = given_to_handle<Made>(info, "joinRanks");
    tag_handle<RanksHandle>(info);
    worker_ = made->worker;
    group_ = made->group;
  }

  ~RanksHandle() override {
    if (worker_) worker_->close_silently({});
  }

  static Napi::Promise join(Napi::Env env, const RankPlace& place) {
    const auto made = std::make_shared<Made>();
    made->worker = Worker::start(env, [] { return false; });
    return made->worker->submit(
        env,
        [made, place] {
          made->group = std::make_shared<RankGroup>(place);
          return Nothing{};
        },
        [made](Napi::Env env, const Nothing&) { return make_handle(AddonData::of(env).ranks, made.get()); },
        [worker = made->worker](bool succeeded) {
          if (!succeeded) worker->close_silently({});
        });
  }

  std::shared_ptr<RankGroup> group() const {
    NLAC_REQUIRE(group_, "ERR_DISPOSED", "the ranks were disposed");
    return group_;
  }

  Napi::Value call(const Napi::CallbackInfo& info) { return call_member(*this, info); }

 private:
  struct Made {
    std::shared_ptr<Worker> worker;
    std::shared_ptr<RankGroup> group;
  };

  std::shared_ptr<Worker> worker_;
  std::shared_ptr<RankGroup> group_;
};

std::span<const Member<RanksHandle>> RanksHandle::members() {
  using Self = RanksHandle;
  using Value = Napi::Value;
  static constexpr Member<Self> rows[] = {
      method("set",
             [](Self& self, Value key, Value value) {
               return self.worker_->submit(
                   self.Env(),
                   [group = self.group(), key = to_string(key, "key"), value = to_string(value, "value")] {
                     group->set(key, value);
                     return Nothing{};
                   },
                   [](Napi::Env env, const Nothing&) { return env.Undefined(); });
             }),
      method("get",
             [](Self& self, Value key) {
               return self.worker_->submit(
                   self.Env(),
                   [group = self.group(), key = to_string(key, "key")] { return group->get(key); },
                   [](Napi::Env env, const std::string& value) { return Napi::String::New(env, value); });
             }),
      method("dispose",
             [](Self& self) {
               // The group itself ends with the last learner that uses it.
               return self.worker_->close(self.Env(),
                                          [group = std::move(self.group_)]() mutable { group.reset(); });
             }),
  };
  return rows;
}

constexpr Function functions[] = {
    function("joinRanks",
             [](Napi::Env env, Napi::Value value) {
               const Fields fields(value, "place");
               RankPlace place;
               const int64_t rank = fields.integer("rank"), ranks = fields.integer("ranks");
               NLAC_REQUIRE(std::abs(rank) <= INT32_MAX && std::abs(ranks) <= INT32_MAX, "ERR_VALUE",
                            "place.rank is ", rank, " of ", ranks);
               place.rank = static_cast<int>(rank);
               place.ranks = static_cast<int>(ranks);
               place.address = fields.string("address");
               const int64_t port = fields.integer("port");
               NLAC_REQUIRE(port >= 0 && port < 65536, "ERR_VALUE", "place.port is ", port);
               place.port = static_cast<uint16_t>(port);
               place.serves = fields.boolean("serves");
               place.prefix = fields.string("prefix");
               const int64_t timeout = fields.integer("timeoutMs");  // in nanoseconds it must fit, too
               NLAC_REQUIRE(timeout >= 0 && timeout <= INT32_MAX, "ERR_VALUE", "place.timeoutMs is ",
                            timeout);
               place.timeout = std::chrono::milliseconds(timeout);
               return RanksHandle::join(env, place);
             }),
};

}  // namespace

std::shared_ptr<RankGroup> unwrap_ranks(Napi::Value value, const std::string& where) {
  NLAC_REQUIRE(is_handle<RanksHandle>(value), "ERR_VALUE", where, " must come from joinRanks");
  return RanksHandle::Unwrap(value.As<Napi::Object>())->group();
}

void define_ranks(Napi::Env env) {
  AddonData::of(env).ranks = Napi::Persistent(define_class(env, "NativeRanks", RanksHandle::members()));
}

void export_ranks(Napi::Env env, Napi::Object exports) { export_functions(env, exports, functions); }

}  // namespace nlac::binding
