#include "eval/mt_report.h"

#include <gtest/gtest.h>

#include <string>

#include "io/atomic_file.h"
#include "io/io_test_support.h"

namespace kda::test {
namespace {

using eval::MtReport;
using eval::MtSection;
using eval::Stage;
using text::Direction;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

MtSection section(const std::string& set, const std::vector<std::string>& hypotheses) {
  MtSection made;
  made.task.set = set;
  made.task.direction = Direction::kEnToZh;
  made.task.sources = {"Open the file in the text editor.", "The weather is fine <today> & here."};
  made.task.references = {"在文本编辑器中打开该文件。", "今天<这里>的天气很好。"};
  made.task.strata = {"ui", "docs"};
  for (const std::string& text : hypotheses)
    made.translations.push_back({text, 5, model::FinishReason::kStop});
  eval::judge(made, {});
  return made;
}

MtReport report_of(MtSection made) {
  MtReport report;
  report.system = "runs/<b>";
  report.checkpoint.stage = Stage::kFineTuned;
  report.sections.push_back(std::move(made));
  return report;
}

TEST(MtReport_Judge, FillsRatesPerStratum) {
  const MtSection made = section("test", {"在文本编辑器中打开该文件。", ""});
  EXPECT_EQ(made.counts.success, 1);
  EXPECT_EQ(made.counts.empty, 1);
  ASSERT_EQ(made.strata.size(), 2U);
  EXPECT_EQ(made.strata[0].first, "ui");
  EXPECT_EQ(made.strata[0].second.success, 1);
  EXPECT_EQ(made.strata[1].second.empty, 1);
  EXPECT_GT(made.chrf, 30.0);
  EXPECT_LT(made.chrf, 100.0);
}

TEST(MtReport_Translates, NeedsBleuFloorAndSuccess) {
  MtSection made = section("indomain", {"在文本编辑器中打开该文件。", "今天<这里>的天气很好。"});
  made.task.strata = {"indomain", "indomain"};
  EXPECT_FALSE(eval::translates(made, {}).has_value());  // no BLEU
  made.scores.emplace();
  made.scores->bleu = 11.0;
  made.scores->chrf = 60.0;
  EXPECT_EQ(eval::translates(made, {}), false);  // below the floor of BLEU
  made.scores->bleu = 30.0;
  EXPECT_EQ(eval::translates(made, {}), true);
  made.scores->chrf = 5.0;
  EXPECT_EQ(eval::translates(made, {}), false);
  made.scores->chrf = 60.0;
  made.translations[0].text = "";
  made.translations[1].text = "";
  eval::judge(made, {});
  EXPECT_EQ(eval::translates(made, {}), false);
  made.task.set = "my.en";  // no floor is known: success decides
  EXPECT_EQ(eval::floor_of(made.task), nullptr);
  EXPECT_EQ(eval::translates(made, {}), false);
}

// Every corpus has a "test"; only the frozen one has the measured floor.
TEST(MtReport_Floor, IsOfTheFrozenSetsOnly) {
  eval::EvalTask task{"test", Direction::kZhToEn, {"a", "b"}, {"c", "d"}, {"ui", "desc"}};
  ASSERT_NE(eval::floor_of(task), nullptr);
  EXPECT_EQ(eval::floor_of(task)->bleu, 2.01);
  task.strata = {"ui", "simple"};
  EXPECT_EQ(eval::floor_of(task), nullptr);
  task.strata.clear();
  EXPECT_EQ(eval::floor_of(task), nullptr);
  task.strata = {"indomain", "indomain"};
  EXPECT_EQ(eval::floor_of(task), nullptr);
  task.set = "indomain";
  EXPECT_EQ(eval::floor_of(task)->bleu, 7.32);
}

// A pretrained model that translates nothing has not failed; the report must say so.
TEST(MtReport_Notes, SayWhyAPretrainedModelScoresNothing) {
  MtReport report = report_of(section("test", {"", ""}));
  report.checkpoint.stage = Stage::kPretrained;
  const std::string text = eval::to_text(report);
  EXPECT_TRUE(has(text, "(pretrained")) << text;
  EXPECT_TRUE(has(text, "never seen a translation prompt")) << text;
  EXPECT_TRUE(has(text, "kda sft")) << text;
  EXPECT_TRUE(has(eval::to_html(report), "never seen a translation prompt"));
  EXPECT_EQ(eval::to_json(report).at("stage"), "pretrained");
  report.checkpoint.stage = Stage::kUnknown;
  EXPECT_TRUE(has(eval::to_text(report), "does not say how it was trained"));
  report.checkpoint.stage = Stage::kFineTuned;
  report.checkpoint.prompt_version = 99;
  EXPECT_TRUE(has(eval::to_text(report), "version 99"));
  report.checkpoint.prompt_version = 1;
  EXPECT_TRUE(eval::notes_of(report).empty());
  report.limit = 10;
  EXPECT_TRUE(has(eval::to_text(report), "Only 10 sentences"));
  report.is_model = false;
  EXPECT_FALSE(eval::to_json(report).contains("stage"));
}

TEST(MtReport_Html, IsSelfContainedAndEscaped) {
  const std::string evil = "<script>alert('x')</script> \"&amp;\" \x01";
  const std::string html = eval::to_html(report_of(section("test", {evil, "好"})));
  EXPECT_FALSE(has(html, "<script"));
  EXPECT_TRUE(has(html,
                  "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &quot;&amp;amp;&quot; "
                  "\xEF\xBF\xBD"))
      << html;
  EXPECT_TRUE(has(html, "The weather is fine &lt;today&gt; &amp; here."));
  EXPECT_TRUE(has(html, "runs/&lt;b&gt;"));
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url("})
    EXPECT_FALSE(has(html, outside)) << outside;
  // Every element that is opened is closed.
  for (const char* element : {"table", "tr", "td", "th", "p", "h1", "h2", "ul", "li", "b"}) {
    const auto count = [&](const std::string& what) {
      std::size_t n = 0;
      for (std::size_t at = 0; (at = html.find(what, at)) != std::string::npos; ++at)
        ++n;
      return n;
    };
    const std::string name = element;
    EXPECT_EQ(count("<" + name + ">") + count("<" + name + " "), count("</" + name + ">")) << name;
  }
}

TEST(MtReport_Json, HasEveryNumber) {
  MtSection made = section("test", {"在文本编辑器中打开该文件。", "Open it"});
  made.scores.emplace();
  made.scores->bleu = 12.5;
  made.scores->bleu_signature = "nrefs:1|tok:zh";
  made.scores->bleu_of_strata = {{"ui", 80.0}, {"docs", 1.5}};
  made.scores->langdetect_match_rate = 0.5;
  made.scores->langdetect_counts = R"({"zh": 1, "en": 1})";
  const io::Json json = eval::to_json(report_of(made));
  const io::Json& row = json.at("sections").at(0);
  for (const char* key :
       {"sentences", "success_rate", "language_match_rate", "copy_rate", "empty_rate",
        "repetition_rate", "wrong_length_rate", "low_chrf_rate", "chrf", "bleu", "bleu_signature",
        "langdetect_match_rate", "floor", "pass", "translates", "cut_at_limit", "seconds"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_EQ(row.at("strata").at("docs").at("bleu"), 1.5);
  EXPECT_EQ(row.at("strata").at("ui").at("success_rate"), 1.0);
  EXPECT_EQ(row.at("langdetect_counts").at("en"), 1);
  EXPECT_EQ(json.at("thresholds").at("min_chrf_chinese"), 15.0);
  EXPECT_EQ(json.at("prompt_version"), 1);
  EXPECT_FALSE(json.at("decoding").contains("length_penalty"));  // greedy
  MtReport beams = report_of(made);
  beams.decoding.beam = 4;
  EXPECT_EQ(eval::to_json(beams).at("decoding").at("length_penalty"), 1.0);
  const std::string text = eval::to_text(report_of(made));
  for (const char* part : {"test.en2zh", "12.50", "3.05", "nrefs:1|tok:zh", "  docs", "80.00"})
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
}

TEST(Stage_OfAFolder, IsWhatItsTrainerWrote) {
  const TempFolder folder;
  const auto file = folder / "trainer.json";
  EXPECT_EQ(eval::stage_of(folder.path()).stage, Stage::kUnknown);
  io::write_file_atomic(file, R"({"options": {}, "state": {"step": 12}})");
  EXPECT_EQ(eval::stage_of(folder.path()).stage, Stage::kPretrained);
  EXPECT_EQ(eval::stage_of(folder.path()).step, 12);
  io::write_file_atomic(file, R"({"options": {"task": "train"}})");
  EXPECT_EQ(eval::stage_of(folder.path()).stage, Stage::kPretrained);
  io::write_file_atomic(file, R"({"options": {"task": "sft"}, "prompt_version": 1})");
  EXPECT_EQ(eval::stage_of(folder.path()).stage, Stage::kFineTuned);
  EXPECT_EQ(eval::stage_of(folder.path()).prompt_version, 1);
  io::write_file_atomic(file, "[]");
  EXPECT_EQ(eval::stage_of(folder.path()).stage, Stage::kUnknown);
}

}  // namespace
}  // namespace kda::test
