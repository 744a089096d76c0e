#include "config/run_config.h"

#include "config/config_draft.h"
#include "config/field.h"
#include "core/error.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

Json recipe(const std::string& text) { return Json::parse(text, "recipe"); }

// The message of the ConfigError that `recipe` gives, or "" when it is accepted.
std::string problem(const std::string& text) {
  try {
    run_config_from_json(recipe(text), "recipe.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(RunConfig, TakesValuesAndKeepsTheOtherDefaults) {
  const RunConfig config = run_config_from_json(
      recipe(
          R"({"model": "m", "data": {"train": ["a.jsonl", "b.jsonl"]}, "optimizer": {"learning_rate": 2e-4},
                 "train": {"max_steps": 7, "seed": 3}})"),
      "recipe.yaml");
  EXPECT_EQ(config.model, "m");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(config.optimizer.learning_rate, 2e-4);
  EXPECT_EQ(config.train.max_steps, 7);
  EXPECT_EQ(config.train.seed, 3u);
  EXPECT_EQ(config.optimizer.beta2, OptimizerConfig().beta2);
  EXPECT_FALSE(config.train.threads.has_value());
}

TEST(RunConfig, DumpOfEveryFieldReadsBackToTheSame) {
  const Json defaults = run_config_to_json(RunConfig());
  for (const Field& field : run_config_fields()) {
    const std::size_t dot = field.name.find('.');
    const Json* section = dot == std::string::npos ? &defaults : defaults.find(field.name.substr(0, dot));
    ASSERT_NE(section, nullptr) << field.name;
    EXPECT_NE(section->find(field.name.substr(dot + 1)), nullptr) << field.name << " is missing in the dump";
  }
  EXPECT_EQ(run_config_to_json(run_config_from_json(defaults, "dump")), defaults);

  RunConfig config;
  config.data.validation = {"v"};
  config.train.router_aux_loss_coef = 0.01;
  config.train.threads = 2;
  config.eval_every = 3;
  const Json dump = run_config_to_json(config);
  EXPECT_EQ(run_config_to_json(run_config_from_json(Json::parse(dump.dump(2), "dump"), "dump")), dump);
  EXPECT_NE(dump, defaults);
}

TEST(RunConfig, EveryFieldHasItsOwnPlaceFlagAndDoc) {
  std::vector<std::string> seen;
  for (const Field& field : run_config_fields()) {
    EXPECT_FALSE(field.doc.empty()) << field.name;
    for (const std::string& name : {field.name, field.flag}) {
      EXPECT_TRUE(name.empty() || std::find(seen.begin(), seen.end(), name) == seen.end())
          << name << " is used twice";
      seen.push_back(name);
    }
    RunConfig config;
    for (const Field& other : run_config_fields()) {
      EXPECT_TRUE(&other == &field || other.locate(config) != field.locate(config))
          << field.name << ", " << other.name;
    }
  }
}

TEST(RunConfig, NamesTheNearestFieldAndThePlace) {
  EXPECT_EQ(problem(R"({"optimizer": {"lerning_rate": 1}})"),
            "recipe.yaml: optimizer.lerning_rate: unknown field; did you mean 'optimizer.learning_rate'?");
  EXPECT_NE(problem(R"({"learning_rate": 1})").find("did you mean 'optimizer.learning_rate'?"),
            std::string::npos);
  EXPECT_NE(problem(R"({"num_train_epochs": 1})").find("'train.epochs'"), std::string::npos);
  EXPECT_NE(
      problem(R"({"per_device_train_batch_size": 1})").find("here it is called 'train.micro_batch_size'"),
      std::string::npos);
  EXPECT_NE(problem(R"({"banana": 1})").find("--help-fields"), std::string::npos);
}

TEST(RunConfig, SaysWhatWasFoundAndWhatIsAllowed) {
  EXPECT_EQ(problem(R"({"optimizer": {"learning_rate": "fast"}})"),
            "recipe.yaml: optimizer.learning_rate: found \"fast\" (string); expected a number in (0, 1]");
  EXPECT_NE(problem(R"({"optimizer": {"learning_rate": 0}})"), "");
  EXPECT_NE(problem(R"({"optimizer": {"beta1": 1}})"), "");
  EXPECT_NE(problem(R"({"train": {"micro_batch_size": 0}})").find("an integer in [1, 65536]"),
            std::string::npos);
  EXPECT_NE(problem(R"({"train": {"micro_batch_size": 1.5}})").find("an integer"), std::string::npos);
  EXPECT_NE(problem(R"({"train": {"seed": -1}})").find("an integer in [0"), std::string::npos);
  EXPECT_NE(problem(R"({"train": {"precision": "bf16_masters"}})").find("did you mean 'bf16_master'?"),
            std::string::npos);
  EXPECT_NE(problem(R"({"data": {"train": [1]}})").find("a list of text"), std::string::npos);
  EXPECT_NE(problem(R"({"model": 123})").find("put it in quotes"), std::string::npos);
  EXPECT_NE(problem(R"({"data": 3})").find("expected a section"), std::string::npos);
  EXPECT_NE(problem(R"({"log_every": null})").find("no value"), std::string::npos);
  EXPECT_NE(problem("[]").find("expected an object"), std::string::npos);
}

TEST(RunConfig, ListsEveryProblemAtOnce) {
  const std::string message = problem(R"({"log_evry": 1, "train": {"epochs": -1}})");
  EXPECT_NE(message.find("log_evry"), std::string::npos);
  EXPECT_NE(message.find("\nrecipe.yaml: train.epochs"), std::string::npos);
}

TEST(RunConfig, ChecksFieldsAgainstEachOther) {
  EXPECT_NE(problem(R"({"schedule": {"warmup_steps": 3, "warmup_ratio": 0.1}})").find("keep one"),
            std::string::npos);
  EXPECT_NE(
      problem(R"({"schedule": {"warmup_steps": 30}, "train": {"max_steps": 20}})").find("more than the 20"),
      std::string::npos);
  EXPECT_NE(problem(R"({"data": {"validation": ["v"], "validation_fraction": 0.1}})").find("keep one"),
            std::string::npos);
  EXPECT_NE(problem(R"({"eval_every": 5})").find("no validation data"), std::string::npos);
}

TEST(RunConfig, AcceptsWhatPeopleWrite) {
  const RunConfig config = run_config_from_json(
      recipe(
          R"({"data": {"train": "one.jsonl", "packing": "off"}, "export_model": "no", "train": {"epochs": 2,
                 "max_steps": 1e3}, "optimizer": {}, "schedule": null})"),
      "recipe.yaml");
  EXPECT_EQ(config.data.train, std::vector<std::string>{"one.jsonl"});
  EXPECT_FALSE(config.data.packing);
  EXPECT_FALSE(config.export_model);
  EXPECT_EQ(config.train.max_steps, 1000);
}

TEST(ConfigDraft, ReadsTextAsPeopleMeanIt) {
  EXPECT_EQ(value_from_text("1e-5"), Json(1e-5));
  EXPECT_EQ(value_from_text(".5"), Json(0.5));
  EXPECT_EQ(value_from_text("+3"), Json(3));
  EXPECT_EQ(value_from_text("-3"), Json(-3));
  EXPECT_EQ(value_from_text("010"), Json(10));
  EXPECT_EQ(value_from_text("true"), Json(true));
  EXPECT_EQ(value_from_text(""), Json());
  EXPECT_EQ(value_from_text("~"), Json());
  EXPECT_EQ(value_from_text("a.jsonl"), Json("a.jsonl"));
  EXPECT_EQ(value_from_text("inf"), Json("inf"));
  EXPECT_EQ(value_from_text("1e999"), Json("1e999"));
  EXPECT_EQ(value_from_text("3 apples"), Json("3 apples"));
  EXPECT_EQ(value_from_text("\"5\""), Json("5"));
  EXPECT_EQ(value_from_text("[1, \"b\"]").as_array().size(), 2u);
}

TEST(ConfigDraft, ALaterValueWinsAndKeepsItsPlace) {
  ConfigDraft draft;
  draft.merge(recipe(R"({"optimizer": {"eps": 5}})"),
              [](const std::string& key) { return "r.yaml:7 " + key; });
  draft.assign("optimizer.eps=1e-6");
  EXPECT_EQ(draft.resolve().optimizer.eps, 1e-6);
  draft.assign("model=5");
  draft.assign("data.train=[\"a\", \"b\"]");
  EXPECT_EQ(draft.resolve().model, "5");
  EXPECT_EQ(draft.resolve().data.train.size(), 2u);
  draft.set("train.epochs", Json(0), "--epochs");
  try {
    draft.resolve();
    FAIL() << "epochs 0 was accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "--epochs: train.epochs: found 0 (integer); expected a number in (0, 1000000]");
  }
}

TEST(ConfigDraft, RefusesAnAssignmentThatIsNone) {
  ConfigDraft draft;
  EXPECT_THROW(draft.assign("optimizer.eps"), ConfigError);
  EXPECT_THROW(draft.assign("=3"), ConfigError);
  EXPECT_THROW(draft.assign("data.train=[a"), ConfigError);
}

}  // namespace
}  // namespace phalanx
