#include "core/json.h"

#include "core/error.h"
#include "core/file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace phalanx {
namespace {

std::string refusal(std::string_view text, int max_depth = 64) {
  try {
    Json::parse(text, "model.json", max_depth);
  } catch (const IoError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JsonParse, KeepsKindsAndTheOrderOfMembers) {
  const Json value = Json::parse(R"( {"b": [1, -2.5, "x\u00e9\n", true, null], "a": {}} )", "t");
  ASSERT_TRUE(value.is_object());
  EXPECT_EQ(value.as_object()[0].first, "b");
  EXPECT_EQ(value.as_object()[1].first, "a");
  const Json::Array& list = value.at("b").as_array();
  EXPECT_EQ(list[0].as_integer(), 1);
  EXPECT_EQ(list[1].as_number(), -2.5);
  EXPECT_EQ(list[2].as_string(), "x\u00e9\n");
  EXPECT_TRUE(list[3].as_bool());
  EXPECT_TRUE(list[4].is_null());
  EXPECT_TRUE(value.at("a").as_object().empty());
}

TEST(JsonParse, KeepsIntegersOf64BitsExact) {
  EXPECT_EQ(Json::parse("9223372036854775807", "t").as_integer(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(Json::parse("-9223372036854775808", "t").as_integer(), std::numeric_limits<std::int64_t>::min());
}

TEST(JsonParse, RefusesWithFileLineAndColumn) {
  EXPECT_EQ(refusal("{\"a\": 1,\n \"b\": 2,\n  \"a\": 3}"),
            "model.json:3:3: key 'a' occurs twice in this object");
  EXPECT_EQ(refusal("[1,\n 18446744073709551615]"),
            "model.json:2:2: integer 18446744073709551615 does not fit 64 bits with a sign");
  EXPECT_EQ(refusal("[18446744073709551616]"),
            "model.json:1:2: integer 18446744073709551616 does not fit 64 bits with a sign");
  EXPECT_EQ(refusal("-9223372036854775809"),
            "model.json:1:1: integer -9223372036854775809 does not fit 64 bits with a sign");
  EXPECT_EQ(refusal("{\"\u00e9\u00e9\": 1, \"a\\u0000b\": 1}"),
            "model.json:1:11: key 'a\\x00b' holds a NUL character");
  EXPECT_EQ(refusal(std::string_view("1\0", 2)), "model.json:1:2: NUL character; this is no JSON text");
  EXPECT_EQ(refusal("[\n[[1]]]", 2), "model.json:2:2: nesting deeper than 2 levels");
  EXPECT_TRUE(refusal("{\"a\":\n tru}").starts_with("model.json:2:5: syntax error"))
      << refusal("{\"a\":\n tru}");
  EXPECT_TRUE(refusal("[1, 2").starts_with("model.json:1:6: syntax error")) << refusal("[1, 2");
  EXPECT_TRUE(refusal("").starts_with("model.json:1:1: syntax error")) << refusal("");
  EXPECT_TRUE(refusal("[1e999]").starts_with("model.json:1:")) << refusal("[1e999]");
}

TEST(JsonParse, RefusesWhatOtherReadersLetPass) {
  for (const std::string text :
       {"NaN", "Infinity", "-Infinity", "1e999", "1 2", "{} x", "[1,]", "{\"a\":1,}", "'a'", "\"\\ud800\"",
        "\"\x01\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "// c\n1", "01",
        "\xef\xbb\xbf\xef\xbb\xbf"
        "1"}) {
    EXPECT_TRUE(refusal(text).starts_with("model.json:1:")) << text << " -> " << refusal(text);
  }
  EXPECT_EQ(Json::parse("\xef\xbb\xbf{}", "t"), Json::object());
}

TEST(JsonParse, FindsARepeatedKeyAmongMany) {
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) {
    text += "\"k" + std::to_string(i) + "\": 0,\n";
  }
  EXPECT_EQ(refusal(text + "\"k5\": 0}"), "model.json:1001:1: key 'k5' occurs twice in this object");
  EXPECT_EQ(Json::parse(text + "\"k1000\": 0}", "t").as_object().size(), 1001u);
}

TEST(JsonParse, StopsAtTheDepthLimitAtOnce) {
  const std::string text(100'000'000, '[');
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(refusal(text), "model.json:1:65: nesting deeper than 64 levels");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(JsonParse, KeepsMessagesOfForeignBytesShortAndPrintable) {
  const std::string message = refusal("[\"" + std::string(100'000, 'x') + "\xff\"]");
  EXPECT_LT(message.size(), 600u);
  EXPECT_EQ(message.find('\xff'), std::string::npos);
}

TEST(JsonDump, ReadsBackToTheSameValue) {
  const std::string text =
      R"({"s":"q\" \\ \u0001 é\n","i":-7,"d":1.0,"e":1e-06,"big":1e+300,"t":[0.1,10000000.0,-0.0],"n":null,"o":{},"l":[]})";
  const Json value = Json::parse(text, "t");
  EXPECT_EQ(value.dump(), text);
  EXPECT_EQ(Json::parse(value.dump(2), "t"), value);
  EXPECT_TRUE(Json::parse(value.dump(), "t").at("d").kind() == std::string("number"));
}

TEST(JsonDump, IndentsAsPythonDoes) {
  EXPECT_EQ(Json::parse(R"({"a":[1,{"b":2}],"c":{}})", "t").dump(2),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": {}\n}");
}

TEST(JsonDump, RefusesWhatJsonCannotHold) {
  EXPECT_THROW(Json(std::numeric_limits<double>::infinity()).dump(), Error);
  EXPECT_THROW(Json("\xff").dump(), Error);
  EXPECT_THROW(Json(std::uint64_t{1} << 63), Error);
}

TEST(JsonValue, AccessorsNameTheKindFoundAndWanted) {
  const Json value = Json::parse(R"({"a": "text"})", "t");
  try {
    value.at("a").as_integer();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "JSON value is of kind string, expected integer");
  }
  EXPECT_THROW(value.at("b"), Error);
  EXPECT_EQ(value.find("b"), nullptr);
  EXPECT_EQ(Json(3).find("b"), nullptr);
  EXPECT_EQ(Json(3).as_number(), 3.0);
}

TEST(JsonValue, SetReplacesOrAppends) {
  Json value;
  value.set("a", 1);
  value.set("b", 2);
  value.set("a", "x");
  EXPECT_EQ(value.dump(), R"({"a":"x","b":2})");
  Json list;
  list.push_back(1);
  list.push_back(Json());
  EXPECT_EQ(list.dump(), "[1,null]");
  EXPECT_THROW(list.set("a", 1), Error);
}

}  // namespace
}  // namespace phalanx
