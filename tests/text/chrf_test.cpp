#include "text/chrf.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kda::text {
namespace {

struct Case {
  std::string hypothesis, reference;
  double score;
};

double corpus(const std::vector<Case>& cases) {
  ChrfStatistics sums;
  for (const Case& c : cases)
    sums.add(c.hypothesis, c.reference);
  return sums.score();
}

// Numbers of sacreBLEU itself (commit f615c72), signature nc:6|nw:0|space:no|eff:yes.
TEST(Chrf, English_EqualsSacreBleu) {
  const std::vector<Case> cases = {
      {"The cat sat on the mat.", "The cat sat on a mat.", 71.422475630},
      {"It is 3.5% cheaper, isn't it?", "It's 3.5% cheaper, is it not?", 65.601953665},
      {"Hello world", "Hello, world!", 49.508258645},
  };
  for (const Case& c : cases)
    EXPECT_NEAR(sentence_chrf(c.hypothesis, c.reference), c.score, 1e-6) << c.hypothesis;
  EXPECT_NEAR(corpus(cases), 64.409813691, 1e-6);
}

TEST(Chrf, Chinese_EqualsSacreBleu) {
  const std::vector<Case> cases = {
      {"今天天气很好，我们去公园。", "今天天气很好，我们去公园吧。", 84.902441109},
      {"他有3.5米高“巨人”", "他身高3.5米，是“巨人”。", 29.558013488},
      {"猫", "一只猫", 38.461538462},
  };
  for (const Case& c : cases)
    EXPECT_NEAR(sentence_chrf(c.hypothesis, c.reference), c.score, 1e-6) << c.hypothesis;
  EXPECT_NEAR(corpus(cases), 56.094303038, 1e-6);
}

TEST(Chrf, EdgeCases_EqualSacreBleu) {
  EXPECT_EQ(sentence_chrf("abc", "xyz"), 0.0);
  EXPECT_EQ(sentence_chrf("", "xyz"), 0.0);
  EXPECT_EQ(sentence_chrf("abc", ""), 0.0);
  EXPECT_EQ(sentence_chrf("", ""), 0.0);
  EXPECT_NEAR(sentence_chrf("Hello world", "Hello world"), 100.0, 1e-9);
  EXPECT_NEAR(sentence_chrf("the a b c d the", "the x y z w the"), 21.574074074, 1e-6);
  EXPECT_NEAR(sentence_chrf("a\u3000b c", "abc"), 100.0, 1e-9);  // white space does not count
}

}  // namespace
}  // namespace kda::text
