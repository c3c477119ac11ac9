// Checkpoints of a whole model, and exports.
#include "test/core/learner/examples.h"

using namespace learner_test;
using namespace nlac;

TEST_CASE("a resumed learner continues bit for bit") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (bool pending : {false, true}) {
      CAPTURE(pending);
      const auto train = [&](Learner& learner, int from, int to) {
        for (int i = from; i < to; ++i) {
          learner.token_kl(some_distilled(), 1, {}, true);
          learner.step(quick_step(), "critic");
          learner.token_nll(some_texts(), true);
          learner.step(quick_step(), "policy", 0.05);
        }
      };
      const auto learner = Learner::create(tiny_config(Family::qwen2), 3, options_of(dtype));
      train(*learner, 0, 2);
      if (pending) learner->token_nll(some_texts(), true);
      Scratch directory;
      learner->save(directory.path());
      CHECK(fs::exists(directory / "gradients.safetensors") == pending);
      const auto resumed = Learner::resume(directory.path(), options_of(dtype));
      CHECK(equal(resumed->masters().list(), learner->masters().list()));
      CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
      train(*learner, 2, 5);
      train(*resumed, 2, 5);
      CHECK(equal(resumed->masters().list(), learner->masters().list()));
      CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
      const GenerateRequest request = request_of(random_ids(10, 1), 10, 1.0, 2);
      for (WeightSet which : {WeightSet::online, WeightSet::target}) {
        CHECK(resumed->generate({request}, which, {})[0].tokens ==
              learner->generate({request}, which, {})[0].tokens);
      }
    }
  }
}

TEST_CASE("a checkpoint holds a target only once there is one") {
  const auto learner = tiny_learner();
  Scratch directory;
  learner->save(directory.path());
  CHECK_FALSE(fs::exists(directory / "target.safetensors"));
  CHECK(Learner::resume(directory.path(), options_of())->target_masters() == nullptr);
  // The same directory can be loaded as a model.
  CHECK(equal(Learner::load(directory.path(), options_of())->masters().list(), learner->masters().list()));
}

TEST_CASE("a damaged checkpoint is rejected") {
  const auto learner = tiny_learner();
  learner->update_target(1);
  learner->token_nll(some_texts(), true);
  learner->step(quick_step(), "");
  Scratch directory;
  learner->save(directory.path());
  const auto resume = [&] { return code_of([&] { Learner::resume(directory.path(), options_of()); }); };
  REQUIRE(resume() == "none");
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(directory / name, std::ios::binary | std::ios::trunc) << text;
  };
  for (const char* name : {"learner.json", "config.json", "model.safetensors", "target.safetensors",
                           "optimizer-0.safetensors"}) {
    CAPTURE(name);
    fs::copy_file(directory / name, directory / "kept");
    fs::remove(directory / name);
    CHECK(resume() == "ERR_CHECKPOINT");
    write(name, "torn");
    CHECK(resume() == "ERR_CHECKPOINT");
    fs::copy_file(directory / "kept", directory / name, fs::copy_options::overwrite_existing);
    fs::resize_file(directory / name, fs::file_size(directory / name) / 2);
    CHECK(resume() == "ERR_CHECKPOINT");
    fs::remove(directory / name);
    fs::rename(directory / "kept", directory / name);
  }
  // Tensors of another model.
  fs::copy_file(directory / "target.safetensors", directory / "optimizer-0.safetensors",
                fs::copy_options::overwrite_existing);
  CHECK(resume() == "ERR_CHECKPOINT");
  // A name that leads out of the directory.
  write("learner.json", R"({"format":1,"target":false,"targetUpdates":0,"gradients":false,
      "optimizers":[{"name":"","file":"../x","steps":1}]})");
  CHECK(resume() == "ERR_CHECKPOINT");
  write("learner.json", R"({"format":2})");
  CHECK(resume() == "ERR_CHECKPOINT");
  write("learner.json", R"([])");
  CHECK(resume() == "ERR_CHECKPOINT");
}

TEST_CASE("an exported model scores like the learner") {
  const auto learner = tiny_learner(options_of(), Family::qwen3);
  Scratch directory;
  learner->export_huggingface(directory.path());
  const auto loaded = Learner::load(directory.path(), options_of());
  CHECK(loaded->log_probs(some_texts(), WeightSet::online) ==
        learner->log_probs(some_texts(), WeightSet::online));
}
